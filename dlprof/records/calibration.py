"""What the model predicts from: the costs of a target's batches on one machine."""

from __future__ import annotations

from collections.abc import Mapping

from dlprof.records.config import Config, Estimate
from dlprof.records.record import empty, record
from dlprof.records.stages import BatchCosts


@record(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Costs of one target's batches, at one batch size, on one machine."""

    batch_size: int | None = None  # as in the configurations; ``None`` for the target's own
    samples_per_batch: float | None = None  # mean samples in a batch
    batch_bytes: float | None = None  # mean bytes of tensor data in a batch
    # Mean tensors in a batch; each takes a file descriptor on its way.
    batch_tensors: float | None = None
    # Bytes that a batch fetches from storage, past the page cache.
    read_bytes_per_batch: float | None = None
    # Seconds that waiting in making a batch (``io_s``) takes longer for every other batch that is
    # waited for at once, on all ranks, by a straight line through what was seen: it nears ``1 /
    # queueing_s`` batches a second, or fewer where a batch computes much as well. 0 where waits
    # don't surely rise. ``io_s`` is that of a batch beside which nothing is waited for.
    queueing_s: float = 0.0
    # Seconds of making a batch in which its worker has a lock that all workers of a rank share, so
    # that together they make ``1 / lock_s`` batches a second at most. 0 where none was seen to wait
    # for one. What batches wait for it is not part of ``io_s``.
    lock_s: float = 0.0
    in_main: BatchCosts | None = None  # costs without workers (num_workers=0)
    # Costs with workers: fetching, putting, receiving. Where ``receive_busy_s`` knows the strategy,
    # ``receive_io_s`` is that of batches whose worker is idle.
    in_workers: BatchCosts | None = None
    # Costs with workers by sharing strategy, where more than the default was measured.
    receive: Mapping[str, BatchCosts] = empty()
    # Seconds that receiving a batch takes longer while its worker computes, by sharing strategy
    # (``default`` for torch's, or for that of ``in_workers``): the handshake of ``file_descriptor``
    # waits for the worker's interpreter lock.
    receive_busy_s: Mapping[str, float] = empty()
    # CPU seconds a batch of the main process's other threads without workers.
    helper_cpu_s: float = 0.0
    # Seconds to start, by start method: ``{"fork": (first, each further worker)}``; ``default`` for
    # the target's own method, ``main`` for no workers.
    startup_s: Mapping[str, tuple[float, ...]] = empty()
    # Seconds from an epoch's last batch to the next one's first, by ``"persistent"`` and start
    # method.
    turnover_s: Mapping[str, float] = empty()
    main_bytes: float | None = None  # memory of the main process (PSS)
    worker_bytes: float | None = None  # memory that one more worker adds, queued batches left out
    # Copying a batch to the device, as far as the step waits for it; from pageable memory where
    # that was measured.
    copy_s: float = 0.0
    # The same from pinned memory; ``None`` where it wasn't measured.
    pinned_copy_s: float | None = None
    # Coefficient of variation of a batch's cost: how long a calibration must be.
    cpu_cv: float | None = None
    # Relative standard error of the mean batch cost; with workers, where these were measured.
    standard_error: float | None = None
    # The same without workers; ``None`` where that was not measured, and in files of earlier
    # versions.
    main_standard_error: float | None = None
    # Standard deviation of the logarithm of the mean batch cost between trials, as far as their CPU
    # time explains it and chance doesn't: the machine's speed changed, or workers slow each other
    # down. ``None`` for a single trial of each kind.
    drift: float | None = None
    # Share of fetching that was run-queue delay, when this was measured.
    run_queue_fraction: float | None = None
    available_cores: float | None = None  # cores that were available during it
    # Share of those that were idle while threads of the trial were runnable, where these were more
    # than cores: Linux is late to move threads that run for a millisecond or two and wait again.
    idle_fraction: float = 0.0
    trials: tuple[str, ...] = ()  # ids of the trials that it comes from
    # What makes it unreliable, one sentence each; empty if nothing is known.
    doubts: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether there is any batch to predict from."""
        return any(costs is not None and costs.cpu_s for costs in (self.in_workers, self.in_main))


@record(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a configuration would give; kept apart from what was measured everywhere."""

    batches_per_s: Estimate  # steady rate of one rank
    # The same in samples; ``None`` where a batch's samples are not known.
    samples_per_s: Estimate | None = None
    # Over whole epochs, restarts included, or ten of a dataset that keeps samples; ``None`` where
    # their length is not known.
    epoch_batches_per_s: float | None = None
    # Share of the time within epochs in which the consumer would wait: for its batch and, where
    # ranks begin each step together, for those of the others.
    wait_fraction: float | None = None
    # What limits: ``step``, ``workers``, ``cores``, ``main``, ``pin``, ``storage``, ``order`` or
    # ``barrier``.
    bound: str = ""
    cores: float | None = None  # cores that one rank would keep busy
    # Natural logarithm of how many times as fast it would be without the others that are assumed.
    taken_log: float = 0.0
    # Memory of one rank's process tree; ``None`` where it was not calibrated.
    pss_bytes: float | None = None
    shm_bytes: float | None = None  # shared memory of one rank with full queues
    open_files: int | None = None  # file descriptors of the main process with full queues
    startup_s: float | None = None  # ``iter`` plus first ``next``
    turnover_s: float | None = None  # from an epoch's last batch to the first of the next
    method: str = "maxplus"  # ``maxplus``, the only one; older files name others

    @property
    def steady(self) -> Estimate:
        """Its rate in samples; in batches where a batch's samples are not known."""
        return self.samples_per_s or self.batches_per_s


@record(frozen=True, slots=True, kw_only=True)
class PredictedCell:
    """One configuration of a sweep as the model sees it before it is measured, if it ever is."""

    config: Config  # which
    # Steady rate; batches per second where a batch's samples can't be counted.
    samples_per_s: Estimate
    speed: float  # over whole epochs where their length is known, relative to the best
    bound: str = ""  # what limits it, as in ``Prediction``
    # Rate over whole epochs, restarts included; ``None`` where their length is not known.
    epoch_samples_per_s: float | None = None
    taken_log: float = 0.0  # as in ``Prediction``


@record(frozen=True, slots=True, kw_only=True)
class SweepPrediction:
    """What the model predicted of a sweep, and what was to be measured to verify it."""

    cells: tuple[PredictedCell, ...]  # all that can work, cheapest first
    race: tuple[Config, ...]  # the finalists: those to be measured, cheapest first
    pick: Config  # the recommended one of the model alone: the cheapest within 3% of the best
    cores: float  # cores that were assumed
    # Threads of other processes that were assumed to compute on them all the time.
    neighbours: float = 0.0
    # How far off rates may be from each other, as a standard deviation of their logarithm.
    log_sd: float = 0.1
    method: str = ""  # ``maxplus``, the only one; older files name others
