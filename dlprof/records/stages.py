"""Where a batch's time goes: what a traced trial shows beside its rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal

from dlprof.records.config import Config
from dlprof.records.record import empty, record

StageName = Literal[
    "dispatch", "pick_up", "fetch", "collate", "serialise", "queue", "rebuild", "pin", "hold_up",
    "copy", "wait", "step",
]  # fmt: skip
AGE_STAGES: tuple[StageName, ...] = (
    "fetch", "collate", "serialise", "queue", "rebuild", "pin", "hold_up",
)  # fmt: skip
"""The stages whose times add up to a batch's age: from a worker's taking it up to its yield."""

FORKED = "(forked)"
"""In place of a name among waits: a child that runs no program of its own, as of a pool."""


UNSEEN = "unseen"
"""Among waits: it may be anything but a child that computes, where the kernel hides the rest."""


def child_of(wait: str) -> str | None:
    """The name of the child process that computes, where it is a wait for such a one."""
    kind, _, name = wait.partition(" ")
    return name if kind == "child" and name else None


def blocked_share(waits: Mapping[str, float]) -> float:
    """Share of looks that found it blocked, but for children that compute: that is no waiting."""
    apart = {"running", "queue"}
    return math.fsum(s for wait, s in waits.items() if wait not in apart and not child_of(wait))


DRAWING, RECEIVING = "drawing indices", "receiving batches"
"""What the main process does for a loader with workers, of which it may be too busy."""


@record(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a batch's way, over the batches of a window; times per batch."""

    # ``dispatch`` (main draws the indices and sends them), ``pick_up`` (they are in the worker's
    # index queue), ``fetch`` (``__getitem__`` of all samples), ``collate``, ``serialise`` (pickled
    # and moved to shared memory by the worker's feeder thread), ``queue`` (in the result queue
    # until main takes it), ``rebuild`` (main deserializes it), ``pin``, ``hold_up`` (reorder wait:
    # ready in main, until it is yielded), ``copy`` (to the device), ``wait`` (the consumer waits in
    # ``next()``), ``step`` (the consumer works).
    name: StageName
    mean_s: float  # mean seconds a batch
    median_s: float  # median
    p95_s: float  # 95th percentile
    max_s: float  # longest
    # Mean CPU seconds of the thread that does it, and of child processes that ``fetch`` and
    # ``collate`` are blocked by; ``None`` where that isn't known apart.
    cpu_s: float | None = None
    run_queue_s: float | None = None  # mean run-queue delay of that thread in seconds
    # Mean seconds blocked on I/O, a lock or the GIL: wall - CPU - run queue.
    io_s: float | None = None
    # The part of it in which the thread waits for the GIL; ``None`` where that isn't known.
    gil_s: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class SampleCosts:
    """What single samples cost in ``__getitem__`` (or in an iterable's ``__next__``)."""

    count: int  # samples timed
    mean_s: float  # mean wall seconds
    median_s: float  # median
    p95_s: float  # 95th percentile
    p99_s: float  # 99th percentile
    max_s: float  # longest
    # Indices of the slowest samples, as text, slowest first, with their seconds; of an iterable,
    # their positions in the worker's stream.
    slowest: Mapping[str, float] = empty()


@record(frozen=True, slots=True, kw_only=True)
class TransformCost:
    """One step of a dataset's chain of transforms."""

    name: str  # its class or function, and its place: ``2 RandomResizedCrop``
    mean_s: float  # mean wall seconds a call
    share: float  # of the time in ``fetch``


CACHE = "(lru_cache)"  # what the name of such a one ends with, among what grows

FREED = "freed memory that malloc keeps"
"""Named among what grows: blocks of glibc's heap that are free, and too scattered to go back."""


@record(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """What one worker did in the window."""

    worker: int  # its number, from 0
    batches: int  # batches that it made
    busy_fraction: float  # share of the window in fetch and collate
    cpu_cores: float | None = None  # CPU seconds a second of all its threads
    threads: int | None = None  # most threads that it had
    affinity_cpus: int | None = None  # CPUs that it may run on
    # Slope of its private memory over its batches, warm-up left out; ``None`` where it could not be
    # read or the window was too short.
    pss_growth_bytes_per_batch: float | None = None
    # Bytes a batch by which the dataset's containers grow, the most first: by the size of their
    # last entry; and ``FREED``, which is no container.
    growing: Mapping[str, float] = empty()


@record(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """What each batch of a window cost, batch by batch in the order of their indices.

    Without the first one of each worker, which pays for starting it, unless there is no other. What
    the model is fitted to; the columns are of equal length. Seconds.
    """

    # CPU of the thread that fetched and collated, and of child processes that it waited for.
    cpu_s: tuple[float, ...] = ()
    io_s: tuple[float, ...] = ()  # seconds blocked in fetch and collate
    run_queue_s: tuple[float, ...] = ()  # run-queue delay in fetch and collate
    # CPU of the worker beside that thread: the feeder's pickling, child processes that it didn't
    # wait for; 0 without workers.
    put_cpu_s: tuple[float, ...] = ()
    # CPU of that thread between batches: sending one, taking indices; 0 without workers.
    between_cpu_s: tuple[float, ...] = ()
    # CPU of main in taking and deserializing the batch once it could be read.
    receive_cpu_s: tuple[float, ...] = ()
    receive_io_s: tuple[float, ...] = ()  # seconds blocked in that, run-queue delay left out
    # CPU of main for everything else in ``next()``: drawing indices, dispatch.
    main_cpu_s: tuple[float, ...] = ()
    # CPU of main between batches, where only the last batch's memory is freed there; empty where a
    # step computes at the same time.
    let_go_cpu_s: tuple[float, ...] = ()
    pin_s: tuple[float, ...] = ()  # copying into page-locked memory; empty where nothing is pinned


KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1073741824"
"""What in its environment has glibc's malloc keep up to 1 GiB of what a process frees."""


@record(frozen=True, slots=True, kw_only=True)
class PageFaults:
    """What it costs the main process that freed memory goes back to the system, without workers.

    By some batches after the window, before and after malloc was set to keep what is freed.
    """

    spared: float  # minor page faults of a batch that it has no more once memory is kept
    cpu_s: float  # CPU seconds of a batch with them
    kept_cpu_s: float  # and without


@record(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a traced trial shows beside its rate; never compared with untraced ones."""

    trial_id: str  # the trial's record, whose rate and use of the machine belong to it
    config: Config  # what ran
    window_s: float  # length of the window
    batches: int  # batches in it
    stages: tuple[Stage, ...] = ()  # in a batch's order; only those that this configuration has
    # Single samples; ``None`` where the dataset is asked for whole batches.
    samples: SampleCosts | None = None
    # The chain of transforms, in its order; empty where none was found.
    transforms: tuple[TransformCost, ...] = ()
    workers: tuple[WorkerCosts, ...] = ()  # one entry per worker
    costs: BatchCosts = dataclasses.field(default_factory=BatchCosts)  # batch by batch
    # Mean seconds from when a worker takes a batch's indices until the batch is yielded.
    age_s: float | None = None
    # Mean batches at each place, by stage (Little's law: rate x mean time).
    waiting_batches: Mapping[str, float] = empty()
    # Share of the window in which the consumer waited in ``next()``.
    wait_fraction: float | None = None
    # CPU seconds a second of the main process's other threads.
    main_threads_cpu_cores: float | None = None
    # Mean CPU seconds a batch of the other threads of the process that fetches: in ``next()``
    # without workers, from one batch to the next with them. Blocked time in ``fetch`` and
    # ``collate`` up to that may be a wait for the GIL; ``None`` where it isn't known.
    fetch_threads_cpu_s: float | None = None
    # Mean CPU seconds a batch of child processes while fetching and collating were blocked: part of
    # these stages' CPU time. ``None`` where the system doesn't say.
    children_cpu_s: float | None = None
    # Mean CPU seconds of the main process in a step, all of its threads together; ``None`` where no
    # step was timed.
    step_cpu_s: float | None = None
    # Seconds that a worker's first fetch took, median over the starts of workers: what it imports
    # and opens then, and what an iterable fetches before it yields. ``None`` where none was seen.
    first_fetch_s: float | None = None
    # Seconds blocked in receiving a batch while all workers are idle, run-queue delay included: the
    # lower median of some batches after the window; ``None`` for fewer than three.
    rested_receive_s: float | None = None
    # Page faults of memory that was freed before. ``None`` with workers, with several ranks or a
    # limit of memory, at under 8 batches a second, where an epoch ends too soon, where there are
    # few, and where malloc can't be set to keep what is freed.
    page_faults: PageFaults | None = None
    # Whether the hooks could be put in; without them only ``wait`` and ``step`` are known.
    hooked: bool = True
    # What the workers of a script did, shares of the looks at them; of a trial: ``Usage``.
    worker_waits: Mapping[str, float] = empty()
    unavailable: Mapping[str, str] = empty()  # why something is missing, by field or stage

    def with_waits(self, waits: Mapping[str, float]) -> Explanation:
        """The same with what making batches was blocked by apart, where looks at that say it.

        Of a wait for a child that computes all but its CPU time is that child's run-queue delay.
        What other waits leave of the blocked time of ``fetch`` and ``collate`` is a wait for the
        GIL, and no more than was seen of that: outside of these, a worker waits for indices. The
        waits are what the threads that fetch did, shares of the window (``records.Usage``).
        """
        making = [stage for stage in self.stages if stage.name in ("fetch", "collate")]
        if not waits or not self.batches or any(each.io_s is None for each in making):
            return self
        each_s = self.window_s * max(1, self.config.num_workers) / self.batches
        blocked_s = sum(stage.io_s or 0.0 for stage in making)
        child_s = each_s * sum(share for wait, share in waits.items() if child_of(wait))
        # Whether a child computes at all is known by its CPU time.
        queued_s = child_s - self.children_cpu_s if self.children_cpu_s else 0.0
        queued_s = min(blocked_s, max(0.0, queued_s))
        found = self._queued(queued_s / blocked_s) if queued_s else self
        if "fetch_threads_cpu_s" in self.unavailable or UNSEEN in waits:
            return found
        # What a thread does that is no blocked time of making a batch, and the GIL.
        apart = {"running", "queue", "gil", *filter(child_of, waits)}
        others_s = each_s * sum(share for wait, share in waits.items() if wait not in apart)
        step = None if self.config.num_workers else self.stage("step")
        if step is not None:  # it is the same thread
            others_s = max(0.0, others_s - (step.mean_s - (step.cpu_s or 0.0)))
        blocked_s -= queued_s
        gil_s = min(waits.get("gil", 0.0) * each_s, max(0.0, blocked_s - others_s))
        part = gil_s / blocked_s if blocked_s > 0 else 0.0
        stages = _making(
            found, lambda stage: dataclasses.replace(stage, gil_s=part * (stage.io_s or 0.0))
        )
        return dataclasses.replace(found, stages=stages)

    def _queued(self, part: float) -> Explanation:
        """The same where that part of the blocked time is run-queue delay."""

        def moved(stage: Stage) -> Stage:
            io_s, queue_s = stage.io_s or 0.0, stage.run_queue_s or 0.0
            return dataclasses.replace(
                stage, io_s=(1 - part) * io_s, run_queue_s=queue_s + part * io_s
            )

        rows = zip(self.costs.io_s, self.costs.run_queue_s, strict=True)
        costs = dataclasses.replace(
            self.costs,
            io_s=tuple((1 - part) * io_s for io_s in self.costs.io_s),
            run_queue_s=tuple(queue_s + part * io_s for io_s, queue_s in rows),
        )
        return dataclasses.replace(self, stages=_making(self, moved), costs=costs)

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


def _making(found: Explanation, changed: Callable[[Stage], Stage]) -> tuple[Stage, ...]:
    """Its stages with others for those that make batches."""
    making = ("fetch", "collate")
    return tuple(changed(each) if each.name in making else each for each in found.stages)
