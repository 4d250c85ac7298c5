"""dlprof's own sweep, calibration, prediction, race and all, on emulated cores.

What ``dlprof sweep`` does to a target it does here to a load: only that its trials are runs on
emulated cores, and that nothing has to be built or probed.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from emulated_cores import EPOCH, Load, Ran, Setup, explanation, run
from rivals import Pick

from dlprof.advise.thresholds import MOST_WORKERS
from dlprof.engine.sweep import Sweep
from dlprof.engine.trials import Deadline, Outlook, new_header, plan_sweep
from dlprof.machine import inspect_machine
from dlprof.records import Config, Estimate, Machine, Target, Trial, Usage
from dlprof.records.codec import to_json
from dlprof.report.live import QuietListener
from dlprof.search.space import build_cells, build_space
from dlprof.settings import SweepSettings
from dlprof.store import RunWriter
from dlprof.trial.protocol import Message, TrialRequest

_REPEAT = 0.03
"""How far a run on emulated cores repeats ; stands for a trial's own interval."""

_LEAST_BATCHES = 10


@dataclasses.dataclass(slots=True, kw_only=True)
class EmulatedBench:
    """Runs trials of a load as ``dlprof.trial.runner.TrialRunner`` does those of a target.

    Attributes:
        load: What samples cost.
        cores: Emulated ones.
        seed: Of the samples' order.
        ranks: That load at once.
        fork_safe: As of a target that is built once.
        versions: Of what a run file names.
    """

    load: Load
    cores: int
    seed: int
    ranks: int = 1
    fork_safe: bool = True
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"torch": "2.13.0", "python": "3.11"}
    )
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def explain(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float | None,
        ranks: int | None,
    ) -> tuple[Trial, Message]:
        """Measure one configuration once, and say what its batches cost."""
        del wall_s, ranks  # runs on emulated cores end by themselves, and are of one rank
        began_s = time.monotonic()
        setup = Setup(
            load=self.load,
            config=request.config,
            cores=self.cores,
            step_s=request.step_s,
            window_s=request.trial_s,
            batches=_LEAST_BATCHES,
            seed=1000 * self.seed + next(self._numbers),
        )
        ran = run(setup)[0]
        trial = dataclasses.replace(
            self._trial(request.config, ran),
            id=trial_id,
            repetition=repetition,
            wall_s=time.monotonic() - began_s,
        )
        shown = to_json(explanation(setup, ran, trial_id))
        return trial, {"explanation": shown} if request.explain else {}

    def _trial(self, config: Config, ran: Ran) -> Trial:
        own = min(float(self.cores), sum(ran.cpu_s) / ran.span_s)
        return Trial(
            id="",
            config=config,
            repetition=0,
            outcome="completed",
            samples_per_s=_estimate(ran.rate * self.load.batch_size),
            batches_per_s=_estimate(ran.rate),
            startup_s=0.05,
            usage=Usage(
                own_cpu_cores=own, available_cpu_cores=float(self.cores), other_cpu_cores=0.0
            ),
            measured_s=ran.span_s,
            window_batches=len(ran.cpu_s),
            samples_per_batch=float(self.load.batch_size),
        )


def _estimate(rate: float) -> Estimate:
    return Estimate(value=rate, low=(1 - _REPEAT) * rate, high=(1 + _REPEAT) * rate)


def machine_of(cores: int) -> Machine:
    """This machine, with so many cores."""
    return dataclasses.replace(
        inspect_machine(), logical_cpus=cores, affinity_cpus=cores, usable_cores=float(cores)
    )


def sweep(load: Load, *, cores: int, budget_s: float, seed: int) -> Pick:
    """What a sweep with its defaults recommends, and what it took.

    Args:
        load: What samples cost.
        cores: Emulated ones.
        budget_s: Of the sweep.
        seed: Of the sweep and of the samples' order.

    Raises:
        DlprofError: Nothing could be measured.
    """
    began_s = time.monotonic()
    settings = SweepSettings(target="emulated", budget_s=budget_s, seed=seed)
    bench: Any = EmulatedBench(load=load, cores=cores, seed=seed)
    machine = machine_of(cores)
    outlook = _outlook(load, settings, machine)
    deadline = Deadline(budget_s=budget_s, began_s=began_s)
    plan, left_out = plan_sweep(settings, machine, outlook, bench, deadline)
    header = new_header(settings, machine, outlook, bench, plan=plan, left_out=left_out)
    with (
        tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder,
        RunWriter.create(Path(folder) / "run.dlprof.jsonl", header) as writer,
    ):
        found = Sweep(
            header=header,
            settings=settings,
            plan=plan,
            runner=bench,
            writer=writer,
            listener=QuietListener(),
            deadline=deadline,
            before=None,
            earlier_s=0.0,
            faults={},
        ).run()
    recommended = cast(Any, found.recommendation)
    sure = recommended.certificate
    return Pick(
        config=recommended.config,
        cost_s=time.monotonic() - began_s,
        epsilon=None if sure is None else sure.epsilon,
        epsilon_measured=None if sure is None else sure.epsilon_measured,
    )


def _outlook(load: Load, settings: SweepSettings, machine: Machine) -> Outlook:
    """What building and probing would have shown."""
    factor = 1 + load.slow / EPOCH * (load.slow_factor - 1)
    target = Target(
        spec="emulated",
        kind="map",
        dataset="emulated",
        batch_size=load.batch_size,
        batch_bytes=40,
        batch_tensors=1,
        batch_s=(load.cpu_s + load.io_s) * factor * load.batch_size,
        batch_cpu_s=load.cpu_s * factor * load.batch_size,
    )
    return Outlook(
        target=target,
        accelerator=None,
        space=build_space(settings, target, machine, has_accelerator=False),
        faults={},
        cells=build_cells(
            settings, target, machine, has_accelerator=False, most_workers=MOST_WORKERS
        ),
    )
