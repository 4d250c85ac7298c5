"""What the model predicts from: the costs of a target's batches on one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.records.config import Config, Estimate
from dlprof.records.record import record
from dlprof.records.stages import BatchCosts


@record(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Costs of one target's batches, at one batch size, on one machine.

    Attributes:
        batch_size: As in the configurations; ``None`` for the target's own.
        samples_per_batch: Mean samples in a batch.
        batch_bytes: Mean bytes of tensor data in a batch.
        batch_tensors: Mean tensors in a batch; each takes a file descriptor on its way.
        read_bytes_per_batch: Bytes that a batch fetches from storage, past the page cache.
        queueing_s: Seconds that waiting in making a batch (``io_s``) takes longer for every other
            batch that is waited for at once, on all ranks, by a straight line through what was
            seen: it nears ``1 / queueing_s`` batches a second, or fewer where a batch computes
            much as well. 0 where waits don't surely rise. ``io_s`` is that of a batch beside which
            nothing is waited for.
        in_main: Costs without workers (num_workers=0).
        in_workers: Costs with workers: fetching, putting, receiving. Where ``receive_busy_s`` knows
            the strategy, ``receive_io_s`` is that of batches whose worker is idle.
        receive: Costs with workers by sharing strategy, where more than the default was measured.
        receive_busy_s: Seconds that receiving a batch takes longer while its worker computes, by
            sharing strategy (``default`` for torch's, or for that of ``in_workers``): the handshake
            of ``file_descriptor`` waits for the worker's interpreter lock.
        helper_cpu_s: CPU seconds a batch of the main process's other threads without workers.
        startup_s: Seconds to start, by start method: ``{"fork": (first, each further worker)}``;
            ``default`` for the target's own method, ``main`` for no workers.
        turnover_s: Seconds from an epoch's last batch to the next one's first, by
            ``"persistent"`` and start method.
        main_bytes: Memory of the main process (PSS).
        worker_bytes: Memory that one more worker adds, queued batches left out.
        copy_s: Copying a batch to the device, as far as the step waits for it; from pageable
            memory where that was measured.
        pinned_copy_s: The same from pinned memory; ``None`` where it wasn't measured.
        cpu_cv: Coefficient of variation of a batch's cost: how long a calibration must be.
        standard_error: Relative standard error of the mean batch cost; with workers, where these
            were measured.
        main_standard_error: The same without workers; ``None`` where that was not measured, and in
            files of earlier versions.
        drift: Standard deviation of the logarithm of the mean batch cost between trials, as far as
            their CPU time explains it and chance doesn't: the machine's speed changed, or workers
            slow each other down. ``None`` for a single trial of each kind.
        run_queue_fraction: Share of fetching that was run-queue delay, when this was measured.
        available_cores: Cores that were available during it.
        trials: Ids of the trials that it comes from.
        doubts: What makes it unreliable, one sentence each; empty if nothing is known.
    """

    batch_size: int | None = None
    samples_per_batch: float | None = None
    batch_bytes: float | None = None
    batch_tensors: float | None = None
    read_bytes_per_batch: float | None = None
    queueing_s: float = 0.0
    in_main: BatchCosts | None = None
    in_workers: BatchCosts | None = None
    receive: Mapping[str, BatchCosts] = dataclasses.field(default_factory=dict)
    receive_busy_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    helper_cpu_s: float = 0.0
    startup_s: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    turnover_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    main_bytes: float | None = None
    worker_bytes: float | None = None
    copy_s: float = 0.0
    pinned_copy_s: float | None = None
    cpu_cv: float | None = None
    standard_error: float | None = None
    main_standard_error: float | None = None
    drift: float | None = None
    run_queue_fraction: float | None = None
    available_cores: float | None = None
    trials: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether there is any batch to predict from."""
        return any(costs is not None and costs.cpu_s for costs in (self.in_workers, self.in_main))


@record(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a configuration would give; kept apart from what was measured everywhere.

    Attributes:
        batches_per_s: Steady rate of one rank.
        samples_per_s: The same in samples; ``None`` where a batch's samples are not known.
        epoch_batches_per_s: Over whole epochs, restarts included; ``None`` where their length is
            not known.
        wait_fraction: Share of the time within epochs in which the consumer would wait: for its
            batch and, where ranks begin each step together, for those of the others.
        bound: What limits: ``step``, ``workers``, ``cores``, ``main``, ``pin``, ``storage``,
            ``order`` or ``barrier``.
        cores: Cores that one rank would keep busy.
        pss_bytes: Memory of one rank's process tree; ``None`` where it was not calibrated.
        shm_bytes: Shared memory of one rank with full queues.
        open_files: File descriptors of the main process with full queues.
        startup_s: ``iter`` plus first ``next``.
        turnover_s: From an epoch's last batch to the first of the next.
        method: ``maxplus``, the only one; older files name others.
    """

    batches_per_s: Estimate
    samples_per_s: Estimate | None = None
    epoch_batches_per_s: float | None = None
    wait_fraction: float | None = None
    bound: str = ""
    cores: float | None = None
    pss_bytes: float | None = None
    shm_bytes: float | None = None
    open_files: int | None = None
    startup_s: float | None = None
    turnover_s: float | None = None
    method: str = "maxplus"

    @property
    def steady(self) -> Estimate:
        """Its rate in samples; in batches where a batch's samples are not known."""
        return self.samples_per_s or self.batches_per_s


@record(frozen=True, slots=True, kw_only=True)
class PredictedCell:
    """One configuration of a sweep as the model sees it before it is measured, if it ever is.

    Attributes:
        config: Which.
        samples_per_s: Steady rate; batches per second where a batch's samples can't be counted.
        speed: Over whole epochs where their length is known, relative to the best.
        bound: What limits it, as in ``Prediction``.
        epoch_samples_per_s: Rate over whole epochs, restarts included; ``None`` where their length
            is not known.
    """

    config: Config
    samples_per_s: Estimate
    speed: float
    bound: str = ""
    epoch_samples_per_s: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class SweepPrediction:
    """What the model predicted of a sweep, and what was to be measured to verify it.

    Attributes:
        cells: All that can work, cheapest first.
        race: The finalists: those to be measured, cheapest first.
        pick: The recommended one of the model alone: the cheapest within 3% of the best.
        cores: Cores that were assumed.
        neighbours: Threads of other processes that were assumed to compute on them all the time.
        log_sd: How far off rates may be from each other, as a standard deviation of their
            logarithm.
        method: ``maxplus``, the only one; older files name others.
    """

    cells: tuple[PredictedCell, ...]
    race: tuple[Config, ...]
    pick: Config
    cores: float
    neighbours: float = 0.0
    log_sd: float = 0.1
    method: str = ""
