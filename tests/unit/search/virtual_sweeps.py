"""Sweeps on a pretended machine: trials with a rate and a cost, and nothing that takes time."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable

from builders import machine, target, trial

from dlprof.records import Config, Plan, Trial, TrialCost, Usage
from dlprof.search.grid import GridSearch, StopReason
from dlprof.search.space import DEFAULT_OVERHEAD_S, build_space, plan_trials
from dlprof.settings import SweepSettings

_SPENT_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A target whose batches take ``batch_s``, ``cpu_s`` of it computing, on some cores.

    Attributes:
        batch_s: One batch, loaded alone.
        cpu_s: CPU time of one batch.
        cores: Shared by all workers.
        slowness: What a trial really costs over what is expected.
        noise: Standard deviation of the log rate between trials.
        noisy: Whether trials are marked so.
    """

    batch_s: float
    cpu_s: float = 0.0
    cores: float = 2.0
    slowness: float = 1.0
    noise: float = 0.03
    noisy: bool = False

    @property
    def cost(self) -> TrialCost:
        """What the probe would say."""
        return TrialCost(
            overhead_s=DEFAULT_OVERHEAD_S,
            batch_s=self.batch_s,
            batch_cpu_s=self.cpu_s,
            usable_cores=self.cores,
        )

    def rate(self, config: Config) -> float:
        """Batches per second: workers side by side, as far as there are cores."""
        round_s = max(self.batch_s, self.cpu_s * config.num_workers / self.cores)
        return max(1, config.num_workers) / round_s

    def usage(self, config: Config) -> Usage:
        """Of all cores, those that compute at this rate."""
        own = min(self.cores, self.cpu_s * self.rate(config))
        return Usage(own_cpu_cores=own, available_cpu_cores=self.cores)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep that has ended.

    Attributes:
        plan: What it set out to measure.
        trials: What it measured.
        stop: Why it ended.
        took_s: All of it.
    """

    plan: Plan
    trials: tuple[Trial, ...]
    stop: StopReason
    took_s: float

    def block(self, number: int) -> list[Config]:
        """The configurations of one block, in order."""
        return [each.config for each in self.trials if each.repetition == number]

    def blocks_of(self, config: Config) -> set[int]:
        """Blocks in which the configuration, or its twin, was measured."""
        return {each.repetition for each in self.trials if steady(each.config) == steady(config)}


def steady(config: Config) -> Config:
    """What of a configuration decides its steady rate."""
    return dataclasses.replace(config, persistent_workers=False)


@functools.cache
def sweep(loader: Loader, budget_s: float, *, seed: int = 0) -> Sweep:
    """A whole sweep of the automatic space."""
    settings = SweepSettings(budget_s=budget_s, seed=seed)
    space = build_space(settings, target(), machine(loader.cores), has_accelerator=False)
    plan, _ = plan_trials(space.configs, settings, loader.cost, spent_s=_SPENT_S)
    return carry_out(plan, loader, budget_s, seed=seed)


def carry_out(
    plan: Plan,
    loader: Loader,
    budget_s: float,
    *,
    seed: int = 0,
    rate: Callable[[Config], float] | None = None,
) -> Sweep:
    """A planned sweep; ``rate`` replaces the loader's own."""
    search, rng = GridSearch(plan=plan, seed=seed), random.Random(seed)
    rate = rate or loader.rate
    took_s, trials = _SPENT_S, list[Trial]()
    while True:
        step = search.propose(trials, remaining_s=budget_s - took_s)
        if isinstance(step, str):
            return Sweep(plan=plan, trials=tuple(trials), stop=step, took_s=took_s)
        expected_s = plan.cost.of(step.config, step.trial_s)
        wall_s = expected_s * loader.slowness * rng.uniform(0.9, 1.1)
        trials.append(
            trial(
                step.config,
                32 * rate(step.config) * math.exp(rng.gauss(0, loader.noise)),
                repetition=step.repetition,
                wall_s=wall_s,
                noisy=loader.noisy,
                usage=loader.usage(step.config),
            )
        )
        took_s += wall_s
