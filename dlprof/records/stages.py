"""Where a batch's time goes: what a traced trial shows beside its rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from dlprof.records.config import Config
from dlprof.records.record import record

StageName = Literal[
    "dispatch",
    "pick_up",
    "fetch",
    "collate",
    "serialise",
    "queue",
    "rebuild",
    "pin",
    "hold_up",
    "copy",
    "wait",
    "step",
]
AGE_STAGES: tuple[StageName, ...] = (
    "fetch",
    "collate",
    "serialise",
    "queue",
    "rebuild",
    "pin",
    "hold_up",
)
"""The stages whose times add up to a batch's age: from a worker's taking it up to its yield."""

_NO_IO = ("running", "queue", "gil")
"""What a thread does that is no blocked time of making a batch, the GIL left out."""


@record(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a batch's way, over the batches of a window; times per batch.

    Attributes:
        name: ``dispatch`` (main draws the indices and sends them), ``pick_up`` (they are in the
            worker's index queue), ``fetch`` (``__getitem__`` of all samples), ``collate``,
            ``serialise`` (pickled and moved to shared memory by the worker's feeder thread),
            ``queue`` (in the result queue until main takes it), ``rebuild`` (main deserializes it),
            ``pin``, ``hold_up`` (reorder wait: ready in main, until it is yielded), ``copy`` (to
            the device), ``wait`` (the consumer waits in ``next()``), ``step`` (the consumer works).
        mean_s: Mean seconds a batch.
        median_s: Median.
        p95_s: 95th percentile.
        max_s: Longest.
        cpu_s: Mean CPU seconds of the thread that does it; ``None`` where that isn't known apart.
        run_queue_s: Mean run-queue delay of that thread in seconds.
        io_s: Mean seconds blocked on I/O, a lock or the GIL: wall - CPU - run queue.
        gil_s: The part of it in which the thread waits for the GIL; ``None`` where that isn't
            known.
    """

    name: StageName
    mean_s: float
    median_s: float
    p95_s: float
    max_s: float
    cpu_s: float | None = None
    run_queue_s: float | None = None
    io_s: float | None = None
    gil_s: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """What single samples cost in ``__getitem__`` (or in an iterable's ``__next__``).

    Attributes:
        count: Samples timed.
        mean_s: Mean wall seconds.
        median_s: Median.
        p95_s: 95th percentile.
        p99_s: 99th percentile.
        max_s: Longest.
        slowest: Indices of the slowest samples, as text, slowest first, with their seconds; of an
            iterable, their positions in the worker's stream.
    """

    count: int
    mean_s: float
    median_s: float
    p95_s: float
    p99_s: float
    max_s: float
    slowest: Mapping[str, float] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class TransformCost:
    """One step of a dataset's chain of transforms.

    Attributes:
        name: Its class or function, and its place: ``2 RandomResizedCrop``.
        mean_s: Mean wall seconds a call.
        share: Of the time in ``fetch``.
    """

    name: str
    mean_s: float
    share: float


FREED = "freed memory that malloc keeps"
"""Named among what grows: blocks of glibc's heap that are free, and too scattered to go back."""


@record(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """What one worker did in the window.

    Attributes:
        worker: Its number, from 0.
        batches: Batches that it made.
        busy_fraction: Share of the window in fetch and collate.
        cpu_cores: CPU seconds a second of all its threads.
        threads: Most threads that it had.
        affinity_cpus: CPUs that it may run on.
        pss_growth_bytes_per_batch: Slope of its private memory over its batches, warm-up left
            out; ``None`` where it could not be read or the window was too short.
        growing: Bytes a batch by which the dataset's containers grow, the most first: by the size
            of their last entry; and ``FREED``, which is no container.
    """

    worker: int
    batches: int
    busy_fraction: float
    cpu_cores: float | None = None
    threads: int | None = None
    affinity_cpus: int | None = None
    pss_growth_bytes_per_batch: float | None = None
    growing: Mapping[str, float] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """What each batch of a window cost, batch by batch in the order of their indices.

    Without the first one of each worker, which pays for starting it, unless there is no other. What
    the model is fitted to; the columns are of equal length. Seconds.

    Attributes:
        cpu_s: CPU of the thread that fetched and collated.
        io_s: Seconds blocked in fetch and collate.
        run_queue_s: Run-queue delay in fetch and collate.
        put_cpu_s: CPU of the worker beside that thread: the feeder's pickling; 0 without workers.
        between_cpu_s: CPU of that thread between batches: sending one, taking indices; 0 without
            workers.
        receive_cpu_s: CPU of main in taking and deserializing the batch once it could be read.
        receive_io_s: Seconds blocked in that, run-queue delay left out.
        main_cpu_s: CPU of main for everything else in ``next()``: drawing indices, dispatch.
        let_go_cpu_s: CPU of main between batches, where only the last batch's memory is freed
            there; empty where a step computes at the same time.
        pin_s: Copying into page-locked memory; empty where nothing is pinned.
    """

    cpu_s: tuple[float, ...] = ()
    io_s: tuple[float, ...] = ()
    run_queue_s: tuple[float, ...] = ()
    put_cpu_s: tuple[float, ...] = ()
    between_cpu_s: tuple[float, ...] = ()
    receive_cpu_s: tuple[float, ...] = ()
    receive_io_s: tuple[float, ...] = ()
    main_cpu_s: tuple[float, ...] = ()
    let_go_cpu_s: tuple[float, ...] = ()
    pin_s: tuple[float, ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a traced trial shows beside its rate; never compared with untraced ones.

    Attributes:
        trial_id: The trial's record, whose rate and use of the machine belong to it.
        config: What ran.
        window_s: Length of the window.
        batches: Batches in it.
        stages: In a batch's order; only those that this configuration has.
        samples: Single samples; ``None`` where the dataset is asked for whole batches.
        transforms: The chain of transforms, in its order; empty where none was found.
        workers: One entry per worker.
        costs: Batch by batch.
        age_s: Mean seconds from when a worker takes a batch's indices until the batch is yielded.
        waiting_batches: Mean batches at each place, by stage (Little's law: rate x mean time).
        wait_fraction: Share of the window in which the consumer waited in ``next()``.
        main_threads_cpu_cores: CPU seconds a second of the main process's other threads.
        fetch_threads_cpu_s: Mean CPU seconds a batch of the other threads of the process that
            fetches: in ``next()`` without workers, from one batch to the next with them. Blocked
            time in ``fetch`` and ``collate`` up to that may be a wait for the GIL; ``None`` where
            it isn't known.
        step_cpu_s: Mean CPU seconds of the main process in a step, all of its threads together;
            ``None`` where no step was timed.
        rested_receive_s: Seconds blocked in receiving a batch while all workers are idle, run-queue
            delay included: the lower median of some batches after the window; ``None`` for fewer
            than three.
        hooked: Whether the hooks could be put in; without them only ``wait`` and ``step`` are
            known.
        unavailable: Why something is missing, by field or stage.
    """

    trial_id: str
    config: Config
    window_s: float
    batches: int
    stages: tuple[Stage, ...] = ()
    samples: SampleCosts | None = None
    transforms: tuple[TransformCost, ...] = ()
    workers: tuple[WorkerCosts, ...] = ()
    costs: BatchCosts = dataclasses.field(default_factory=BatchCosts)
    age_s: float | None = None
    waiting_batches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    wait_fraction: float | None = None
    main_threads_cpu_cores: float | None = None
    fetch_threads_cpu_s: float | None = None
    step_cpu_s: float | None = None
    rested_receive_s: float | None = None
    hooked: bool = True
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def with_gil(self, waits: Mapping[str, float]) -> Explanation:
        """The same with the waits for the GIL apart, in making batches; where that isn't known, so.

        What other waits leave of the blocked time of ``fetch`` and ``collate`` is a wait for the
        GIL, and no more than was seen of that: outside of these, a worker waits for indices.

        Args:
            waits: What the threads that fetch did, shares of the window (``records.Usage``).
        """
        making = [stage for stage in self.stages if stage.name in ("fetch", "collate")]
        no_gil = "fetch_threads_cpu_s" in self.unavailable
        if not waits or no_gil or not self.batches or any(each.io_s is None for each in making):
            return self
        each_s = self.window_s * max(1, self.config.num_workers) / self.batches
        blocked_s = sum(stage.io_s or 0.0 for stage in making)
        others_s = each_s * sum(share for wait, share in waits.items() if wait not in _NO_IO)
        step = None if self.config.num_workers else self.stage("step")
        if step is not None:  # it is the same thread
            others_s = max(0.0, others_s - (step.mean_s - (step.cpu_s or 0.0)))
        gil_s = min(waits.get("gil", 0.0) * each_s, max(0.0, blocked_s - others_s))
        part = gil_s / blocked_s if blocked_s > 0 else 0.0
        apart = {
            stage.name: dataclasses.replace(stage, gil_s=part * (stage.io_s or 0.0))
            for stage in making
        }
        stages = tuple(apart.get(stage.name, stage) for stage in self.stages)
        return dataclasses.replace(self, stages=stages)

    @property
    def fed_workers(self) -> int:
        """Workers that made batches; all, unless each of these made several and others none."""
        made = [worker.batches for worker in self.workers if worker.batches]
        # Batches that each of the others has made, before a worker without any counts as
        # idle.
        clear = min(made, default=0) >= 3
        return len(made) if clear else self.config.num_workers

    def stage(self, name: StageName) -> Stage | None:
        """One stage; ``None`` if this configuration does not have it."""
        return next((stage for stage in self.stages if stage.name == name), None)
