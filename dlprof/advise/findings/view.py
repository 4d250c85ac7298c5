"""The evidence in the figures that rules ask for, each worked out once."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from dlprof.advise.findings.costs import Costs, costs_of
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import Config, Copies, Explanation, Stage, StageName, Trial, Usage

_UNSTEADY = 1.5
"""The fastest of a configuration's trials over the slowest, from which one was disturbed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One configuration's evidence, worked out.

    Attributes:
        evidence: All of it.
        explained: The explanation of the configuration itself.
        costs: From that; ``None`` without it.
        usage: Medians over the configuration's own trials.
        rate: Batches per second, uninstrumented where that was measured.
        wait: Share of time that the consumer waits: 1 for one that does nothing else.
        trial_ids: Of the trials that the figures come from.
        copies: Copying to the device, in the trial where it held the step up as long as it mostly
            does; ``None`` where nothing was copied.
    """

    evidence: Evidence
    explained: Explanation | None
    costs: Costs | None
    usage: Usage
    rate: float | None
    wait: float | None
    trial_ids: tuple[str, ...]
    copies: Copies | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> View:
        """Work the figures out."""
        plain = evidence.plain("present")
        explained = evidence.explained(evidence.config)
        rates = [trial.batches_per_s.value for trial in plain if trial.batches_per_s]
        rate = statistics.median(rates) if rates else _rate_of(explained)
        own = evidence.trials("present")
        completed = [trial for trial in own if trial.outcome == "completed"]
        return cls(
            evidence=evidence,
            explained=explained,
            costs=None if explained is None else costs_of(explained),
            usage=_usage(plain or completed),
            rate=rate,
            wait=_wait(evidence, plain, explained),
            trial_ids=tuple(trial.id for trial in plain or own),
            copies=_copies(plain or completed),
        )

    @property
    def config(self) -> Config:
        """The configuration that is explained."""
        return self.evidence.config

    @property
    def workers(self) -> int:
        """``num_workers``."""
        return self.evidence.config.num_workers

    @property
    def cores(self) -> float:
        """Cores that the job may use."""
        return max(0.1, self.evidence.machine.usable_cores)

    @property
    def busy(self) -> float | None:
        """Mean share of time that workers fetch and collate; ``None`` where that isn't told."""
        if self.explained is None or not self.explained.workers:
            return None
        workers = self.explained.workers  # those that made a batch
        total = math.fsum(worker.busy_fraction for worker in workers)
        return total / max(len(workers), self.explained.config.num_workers)

    @property
    def others(self) -> float:
        """Cores that others kept busy; 0 where that isn't known."""
        return self.usage.other_cpu_cores or 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether most of the configuration's own trials were disturbed, or they disagree."""
        plain = self.evidence.plain("present")
        return 2 * sum(trial.noisy for trial in plain) > len(plain) or self.disagrees

    @property
    def disagrees(self) -> bool:
        """Whether the configuration's own trials differ by more than they do by themselves."""
        return self.unsteady >= _UNSTEADY

    @property
    def unsteady(self) -> float:
        """The fastest of the configuration's own trials over the slowest like it; 1 or more.

        Others that come and go needn't be seen to use a core: a virtual machine may be held. The
        first trial may have found its files cold.
        """
        plain = self.evidence.plain("present")[1 if self.evidence.reads_files else 0 :]
        spans = [1.0]
        for whole in (False, True):
            alike = [each.batches_per_s for each in plain if each.whole_epochs is whole]
            rates = [rate.value for rate in alike if rate is not None and rate.value > 0]
            spans.append(max(rates) / min(rates) if rates else 1.0)
        return max(spans)

    def costs_at(self, num_workers: int) -> Costs | None:
        """What the calibration with so many workers told."""
        found = [each for each in self.evidence.explanations() if _is_at(each, num_workers)]
        return costs_of(found[-1]) if found else None

    @property
    def epoch_batches(self) -> int | None:
        """Batches in an epoch; ``None`` where the target doesn't tell."""
        return self.evidence.target.epoch_batches(self.config.batch_size)

    def sharing_unseen(self, config: Config) -> str:
        """Why it isn't known whether more workers share samples out; empty where it may be."""
        if self.evidence.target.kind != "iterable" or config.num_workers <= max(1, self.workers):
            return ""
        unshared = self.evidence.integrity.unshared
        right = (t for t in self.evidence.trials() if t.failure is None and t.id not in unshared)
        if any(trial.config.num_workers > 1 for trial in right):
            return ""
        script = self.evidence.script
        if script is None:
            never = bool(unshared)
        elif script.loader.asks_worker:
            return ""
        else:  # in workers that are not forked nobody looked
            forked = (self.config.start_method or script.start_method) == "fork"
            never = script.loader.asks_worker is False and (forked or not self.workers)
        return "never asks get_worker_info()" if never else "wasn't seen with several workers"

    def epoch_s(self) -> float | None:
        """Length of an epoch without its turn; ``None`` where the target doesn't tell."""
        batches = self.epoch_batches
        return batches / self.rate if batches and self.rate else None


def _rate_of(explained: Explanation | None) -> float | None:
    if explained is None or explained.window_s <= 0 or not explained.batches:
        return None
    return explained.batches / explained.window_s


def _wait(
    evidence: Evidence, plain: Sequence[Trial], explained: Explanation | None
) -> float | None:
    if not evidence.has_step:
        return 1.0
    waits = [trial.wait_fraction for trial in plain if trial.wait_fraction is not None]
    if waits:
        return statistics.median_low(waits)  # of two that disagree, the one less disturbed
    return None if explained is None else explained.wait_fraction


def _copies(trials: Sequence[Trial]) -> Copies | None:
    """Those of the trial in the middle."""
    found = [trial.copies for trial in trials if trial.copies is not None]
    timed = [each for each in found if each.exposed_s is not None]
    if not timed:
        return found[-1] if found else None
    return sorted(timed, key=lambda each: each.exposed_s or 0.0)[(len(timed) - 1) // 2]


def _usage(trials: Sequence[Trial]) -> Usage:
    """Medians of what trials used; peaks of memory."""
    usages = [trial.usage for trial in trials]
    return Usage(
        own_cpu_cores=_median(usages, lambda u: u.own_cpu_cores),
        available_cpu_cores=_median(usages, lambda u: u.available_cpu_cores),
        other_cpu_cores=_median(usages, lambda u: u.other_cpu_cores),
        other_runnable=_median(usages, lambda u: u.other_runnable),
        run_queue_wait_fraction=_median(usages, lambda u: u.run_queue_wait_fraction),
        throttled_fraction=_median(usages, lambda u: u.throttled_fraction),
        io_pressure_fraction=_median(usages, lambda u: u.io_pressure_fraction),
        read_bytes_per_s=_median(usages, lambda u: u.read_bytes_per_s),
        cache_hit_fraction=_median(usages, lambda u: u.cache_hit_fraction),
        pss_peak_bytes=_largest(u.pss_peak_bytes for u in usages),
        shm_peak_bytes=_largest(u.shm_peak_bytes for u in usages),
        gpu=usages[-1].gpu if usages else (),
    )


def _median(usages: Sequence[Usage], figure: Callable[[Usage], float | None]) -> float | None:
    known = [value for value in map(figure, usages) if value is not None]
    return statistics.median(known) if known else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _is_at(explained: Explanation, num_workers: int) -> bool:
    return explained.config.num_workers == num_workers


def stage_of(view: View, name: StageName) -> Stage | None:
    """A stage of the configuration that is explained."""
    return None if view.explained is None else view.explained.stage(name)


def starved(view: View) -> float:
    """Share of making a batch spent waiting for a core."""
    costs = view.costs
    if costs is None or costs.making.wall_s <= 0:
        return view.usage.run_queue_wait_fraction or 0.0
    return costs.making.run_queue_s / costs.making.wall_s
