"""The evidence in the figures that rules ask for, each worked out once."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from dlprof.advise.findings.costs import Costs, costs_of
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import Config, Copies, Explanation, Stage, StageName, Trial, Usage

_UNSTEADY = 1.5
"""The fastest of a configuration's trials over the slowest, from which one was disturbed."""

_USAGE = (
    *("own_cpu_cores", "available_cpu_cores", "other_cpu_cores", "other_runnable"),
    *("run_queue_wait_fraction", "throttled_fraction"),
    *("read_bytes_per_s", "cache_hit_fraction", "pss_peak_bytes"),
)
_FIGURES: Final = {
    "num_workers": "workers",
    "prefetch_factor": "config.prefetch_factor",
    "start_method": "config.start_method",
    "batches_per_epoch": "epoch_batches",
    "batches_per_s": "rate",
    "wait_fraction": "wait",
    "main_share_of_wait": "main_share",
    "worker_busy_fraction": "busy",
    "worker_threads": "most_threads",
    "starved_fraction": "starved",
    "usable_cores": "cores",
    "wanted_cores": "demand",
    "idle_workers": "idle_workers",
    "batch_bytes": "batch_bytes",
    "batch_tensors": "evidence.target.batch_tensors",
    "quota_cores": "evidence.machine.quota_cores",
    "affinity_cpus": "evidence.machine.affinity_cpus",
    "shm_available_bytes": "evidence.machine.shm_available_bytes",
    "making_s": "costs.making.wall_s",
    "waiting_s": "costs.making.io_s",
    "fetch_s": "costs.fetch.own_s",
    "fetch_cpu_s": "costs.fetch.cpu_s",
    "fetch_waiting_s": "costs.fetch.io_s",
    "collate_s": "costs.collate.own_s",
    "collate_cpu_s": "costs.collate.cpu_s",
    "receive_s": "costs.receive.own_s",
    "receive_cpu_s": "costs.receive.cpu_s",
    "dispatch_s": "costs.dispatch.own_s",
    "pin_s": "costs.pin_s",
}
"""Where a figure of a finding's evidence comes from; any other is of the trials' use."""

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

BUSY = 0.75
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

_SHM_ROOM = 0.8
"""Share of /dev/shm that full queues may take."""

OTHERS = 0.15
"""Share of the usable cores that others may keep busy before they count, as in a trial's noise."""

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
        plain, own = evidence.plain("present"), evidence.trials("present")
        explained = evidence.explained(evidence.config)
        rates = [trial.batches_per_s.value for trial in plain if trial.batches_per_s]
        rate = statistics.median(rates) if rates else None
        if rate is None and explained is not None and explained.window_s > 0:
            rate = explained.batches / explained.window_s or None
        waits = [trial.wait_fraction for trial in plain if trial.wait_fraction is not None]
        wait = None if explained is None else explained.wait_fraction
        if not evidence.has_step:
            wait = 1.0
        elif waits:
            wait = statistics.median_low(waits)  # of two that disagree, the one less disturbed
        followed = () if explained is None else (explained.trial_id,)
        shown = plain or tuple(trial for trial in own if trial.outcome == "completed")
        return cls(
            evidence=evidence,
            explained=explained,
            costs=None if explained is None else costs_of(explained),
            usage=_usage(shown),
            rate=rate,
            wait=wait,
            trial_ids=tuple(dict.fromkeys([*(trial.id for trial in plain or own), *followed])),
            copies=_copies(shown),
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
    def available(self) -> float:
        """Cores that were to be had beside others."""
        return self.usage.available_cpu_cores or self.cores

    @property
    def busy(self) -> float | None:
        """Mean share of time that workers fetch and collate; ``None`` where that isn't told."""
        if self.explained is None or not self.explained.workers:
            return None
        workers = self.explained.workers  # those that made a batch
        total = math.fsum(worker.busy_fraction for worker in workers)
        return total / max(len(workers), self.explained.config.num_workers)

    @property
    def idle_workers(self) -> int:
        """Workers that made no batch while others did."""
        return 0 if self.explained is None else self.workers - self.explained.fed_workers

    @property
    def batch_bytes(self) -> float | None:
        """Tensor data of a batch: as measured, calibrated or probed."""
        sizes = [trial.batch_bytes for trial in self.evidence.trials() if trial.batch_bytes]
        if sizes:
            return statistics.median(sizes)
        calibration = self.evidence.calibration
        known = None if calibration is None else calibration.batch_bytes
        return known or self.evidence.target.batch_bytes

    def shared_bytes(self, config: Config) -> float | None:
        """What full queues of a configuration hold in /dev/shm; ``None`` where nobody knows."""
        size = self.batch_bytes
        return None if size is None else config.queued_batches * size

    def fits_shared_memory(self, config: Config) -> bool:
        """Whether that finds room, as far as it is known."""
        room, held = self.evidence.machine.shm_available_bytes, self.shared_bytes(config)
        return room is None or held is None or held <= _SHM_ROOM * room

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
        """Batches in an epoch; ``None`` where the target doesn't say."""
        return self.evidence.target.epoch_batches(self.config.batch_size)

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
        if pinning >= BUSY and pinning >= main:
            return "pin"
        # Main's work against each worker's and that of all cores, as it would be with cores at
        # hand, so that it shows on a crowded machine too.
        each_s = (costs.making.own_s + costs.put_cpu_s) / self.workers
        far_more = costs.main_s >= _FAR_MORE * max(each_s, costs.cpu_s / self.cores)
        if (main >= _MAIN_SHARE and main > busy) or (far_more and main >= _OWN_SHARE):
            return "main"
        return "workers" if busy >= BUSY else "waiting"

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
    def demand(self) -> float:
        """Cores that making batches would use if there were enough: workers less their waiting."""
        costs = self.costs
        if costs is None or costs.making.own_s <= 0:
            return 0.0
        making, put_s = costs.making, costs.put_cpu_s
        active = max(1, self.workers - self.idle_workers)
        # A feeder pickles in turns with the thread that fetches; a pool of threads runs beside it.
        beside = self.helpers_share >= HELPERS
        return active * (making.cpu_s + put_s) / (making.own_s + (0.0 if beside else put_s))

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

    @property
    def gil_s(self) -> float:
        """Blocked time in making a batch that may be a wait for the GIL, at most.

        Other threads of the process held it for no longer than they computed. A worker's feeder
        and what hands descriptors over release it while they copy.
        """
        explained, costs = self.explained, self.costs
        if explained is None or costs is None:
            return 0.0
        watched = self.config.start_method in ("spawn", "forkserver")
        if self.workers and self.most_threads <= _OWN_THREADS + watched:
            return 0.0
        return min(costs.making.io_s, explained.fetch_threads_cpu_s or 0.0)

    def having(self, **changes: Any) -> Config:
        """The configuration with other settings."""
        return dataclasses.replace(self.config, **changes).canonical()

    def figures(self, names: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Figures as evidence of a finding, in the order of their names, the rest behind."""
        found: dict[str, Any] = {**dict.fromkeys(names.split()), **given}
        for name in found.keys() - given.keys():
            found[name] = operator.attrgetter(_FIGURES.get(name, f"usage.{name}"))(self)
        return found

    def stage(self, name: StageName) -> Stage | None:
        """A stage of the configuration that is explained."""
        return None if self.explained is None else self.explained.stage(name)


def _copies(trials: Sequence[Trial]) -> Copies | None:
    """Those of the trial in the middle."""
    found = [trial.copies for trial in trials if trial.copies is not None]
    timed = [each for each in found if each.exposed_s is not None]
    if not timed:
        return found[-1] if found else None
    return sorted(timed, key=lambda each: each.exposed_s or 0.0)[(len(timed) - 1) // 2]


def _usage(trials: Sequence[Trial]) -> Usage:
    """Medians of what trials used; of memory, the peak."""
    usages, figures = [trial.usage for trial in trials], dict[str, Any]()
    for name in _USAGE:
        known = [each for usage in usages if (each := getattr(usage, name)) is not None]
        if known:
            figures[name] = max(known) if "peak" in name else statistics.median(known)
    return Usage(**figures, gpu=usages[-1].gpu if usages else ())
