"""Where settings are chosen in ``picks.py``: real datasets here, and emulated machines."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import real_targets
from emulated import KINDS
from emulated_bench import machine_of, sweep
from emulated_cores import Load, Setup, run
from real_loaders import DATA, loaded
from rivals import Pick, Shot

from dlprof.advise.candidates import workers_by_rule
from dlprof.machine import inspect_machine
from dlprof.records import Config, Machine, Target

Measure = Callable[[Config, float], Shot]
"""Measures a configuration once, in a window of so many seconds."""

_CORES = 4
_BATCH = 8  # one of the rules asks for it
_EMULATED = ("CPU", "waiting", "mixed", "waiting tail")
_LARGER = {"waiting": 4, "waiting tail": 4}
"""Batches of so many times the samples, as 32 workers that wait would bring more small ones than a
machine with few cores can take in: how fast would then say more of it than of the settings."""

_BEHIND = 3.0
"""An emulated loader is measured for so many times as long as a real one: its batches are slow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A dataset on a machine.

    Attributes:
        name: For people.
        rules: What rules of thumb say, by name.
        cores: As the operating system would count them.
        target: TARGET, for programs that are run from outside; ``None`` where they can't be.
        load: Of an emulated machine; ``None`` for a real one.
    """

    name: str
    rules: Mapping[str, Config]
    cores: int
    target: str | None = None
    load: Load | None = None

    @contextlib.contextmanager
    def opened(self, machine: Machine) -> Iterator[Measure]:
        """Something that measures.

        Raises:
            DlprofError: The target can't be built.
        """
        if self.target is None:
            yield self._emulated
            return
        with loaded(self.target, machine) as source:

            def measure(config: Config, trial_s: float) -> Shot:
                trial = source.measure(config, trial_s)
                rate = trial.batches_per_s.value if trial.batches_per_s is not None else 0.0
                return Shot(rate=rate, cost_s=trial.wall_s, speed=trial.usage.core_speed)

            yield measure

    def _emulated(self, config: Config, trial_s: float) -> Shot:
        began_s = time.perf_counter()
        setup = Setup(
            load=self.load or Load(), config=config, cores=self.cores, window_s=_BEHIND * trial_s
        )
        rate = statistics.fmean(each.rate for each in run(setup))
        return Shot(rate=rate, cost_s=time.perf_counter() - began_s)

    def swept(self, *, budget_s: float, seed: int) -> Pick:
        """What dlprof's sweep chooses on an emulated machine.

        Raises:
            DlprofError: It could measure nothing.
        """
        return sweep(self.load or Load(), cores=self.cores, budget_s=budget_s, seed=seed)


def _rules(machine: Machine) -> dict[str, Config]:
    """What rules of thumb say; those that need a GPU where there is none say nothing."""
    target = Target(spec="", kind="map", dataset="", batch_size=_BATCH)
    said = workers_by_rule(machine, target, 1)
    return {
        name: Config(num_workers=workers).canonical()
        for name, workers in said.items()
        if workers is not None
    }


def real_worlds() -> list[World]:
    """The eight real datasets, and storage that serves only a few at once."""
    machine = inspect_machine()
    targets = {**DATA, "storage of 4 lanes": f"{real_targets.__file__}:laned"}
    return [
        World(
            name=name,
            rules=_rules(machine),
            cores=machine.logical_cpus,
            target=target,
        )
        for name, target in targets.items()
    ]


def emulated_worlds() -> list[World]:
    """Loads on four emulated cores."""
    machine = machine_of(_CORES)
    return [
        World(
            name=f"{kind} on {_CORES} emulated cores",
            rules=_rules(machine),
            cores=_CORES,
            load=_served(kind),
        )
        for kind in _EMULATED
    ]


def _served(kind: str) -> Load:
    load = KINDS[kind]
    return dataclasses.replace(load, batch_size=load.batch_size * _LARGER.get(kind, 1))
