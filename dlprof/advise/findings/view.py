"""The evidence in the figures that rules ask for, each worked out once."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from dlprof.advise.findings.costs import Costs, costs_of
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import Config, Copies, Explanation, Stage, StageName, Trial, Usage

_UNSTEADY = 1.5
"""The fastest of a configuration's trials over the slowest, from which one was disturbed."""

_MEDIANS = (
    *("own_cpu_cores", "available_cpu_cores", "other_cpu_cores", "other_runnable"),
    *("run_queue_wait_fraction", "throttled_fraction", "io_pressure_fraction"),
    *("read_bytes_per_s", "cache_hit_fraction"),
)
_PEAKS = ("pss_peak_bytes", "shm_peak_bytes")

Limit = Literal["consumer", "main", "pin", "workers", "waiting", "unknown"]
"""``workers``: making batches (in main, without workers); ``waiting``: nobody is busy enough, so
that they wait for each other."""

_CONSUMER_WAITS = 0.1
"""A consumer that waits less than this is not held up: receiving a batch takes main itself
several hundredths of a step of 5 ms, whatever the loader's settings."""

_MAIN_SHARE = 0.6
"""Share of the consumer's wait that is main's own work, from which main is the limit."""

_NOISY_WAITS = 0.15
"""The same on a machine that others disturb."""

_OWN_SHARE = 0.3
_FAR_MORE = 1.3
"""Main's work for a batch over that of the others', from which it is the limit."""

_BUSY = 0.75
"""Share of time in which a resource works, from which it is the limit."""

_OWN_THREADS = 3
"""Threads of a worker that computes in one: itself, its feeder, and the one that hands descriptors
over."""

_LEAST_CPU_S = 0.0015
"""CPU of the other threads for one batch, below which it is the feeder's: pickling a batch of
twenty tensors takes half of that."""

_LEAST_PART = 0.15
"""The same over what making a batch takes, its waiting too: threads that are idle for most of a
worker's time compete for nothing."""

STARVED = 0.1
"""Share of making a batch spent waiting for a core, from which cores are short."""

HELPERS = 0.25
"""CPU of a worker's other threads over that of the one that fetches, from which they count."""


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
        rate = statistics.median(rates) if rates else None
        if rate is None and explained is not None and explained.window_s > 0:
            rate = explained.batches / explained.window_s or None
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
        told = self.evidence.explanations()
        found = [each for each in told if each.config.num_workers == num_workers]
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

    @property
    def limit(self) -> Limit:
        """The resource that sets the rate: settled first, so that no two causes claim one time."""
        held_up = _NOISY_WAITS if self.is_noisy else _CONSUMER_WAITS
        if self.evidence.has_step and self.wait is not None and self.wait <= held_up:
            return "consumer"
        costs = self.costs
        if costs is None:
            return "unknown"
        if not self.workers:
            return "workers"
        pinning = costs.pin_s / max(1e-12, costs.period_s)
        main, busy = self.main_share, self.busy or 0.0
        if pinning >= _BUSY and pinning >= main:
            return "pin"
        # Main's work against each worker's and that of all cores, as it would be with cores at
        # hand, so that it shows on a crowded machine too.
        each_s = (costs.making.own_s + costs.put_cpu_s) / self.workers
        far_more = costs.main_s >= _FAR_MORE * max(each_s, costs.cpu_s / self.cores)
        if (main >= _MAIN_SHARE and main > busy) or (far_more and main >= _OWN_SHARE):
            return "main"
        return "workers" if busy >= _BUSY else "waiting"

    @property
    def main_share(self) -> float:
        """Share of the consumer's wait in which main itself works for the loader."""
        if self.costs is None or self.costs.wait_s <= 0:
            return 0.0
        return min(1.0, self.costs.main_s / self.costs.wait_s)

    @property
    def starved(self) -> float:
        """Share of making a batch spent waiting for a core."""
        if self.costs is None or self.costs.making.wall_s <= 0:
            return self.usage.run_queue_wait_fraction or 0.0
        return self.costs.making.starved

    @property
    def most_threads(self) -> int:
        """Threads of the worker that has most; 0 where none were counted."""
        workers = () if self.explained is None else self.explained.workers
        return max((worker.threads or 0 for worker in workers), default=0)

    @property
    def helpers_share(self) -> float:
        """CPU of workers' other threads over that of the fetching one, where they are many."""
        costs = self.costs
        if costs is None or self.explained is None or costs.making.cpu_s <= 0:
            return 0.0
        if costs.put_cpu_s < max(_LEAST_CPU_S, _LEAST_PART * costs.making.own_s):
            return 0.0  # a feeder's pickling, or next to nothing beside what the worker waits for
        watched = self.config.start_method in ("spawn", "forkserver")  # by a thread of dlprof's
        many = self.most_threads > _OWN_THREADS + watched
        return costs.put_cpu_s / costs.making.cpu_s if many else 0.0

    def stage(self, name: StageName) -> Stage | None:
        """A stage of the configuration that is explained."""
        return None if self.explained is None else self.explained.stage(name)


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
    usages, figures = [trial.usage for trial in trials], dict[str, Any]()
    for name in (*_MEDIANS, *_PEAKS):
        known = [each for usage in usages if (each := getattr(usage, name)) is not None]
        if known:
            figures[name] = max(known) if name in _PEAKS else statistics.median(known)
    return Usage(**figures, gpu=usages[-1].gpu if usages else ())
