"""When each batch was where, for a picture of the pipeline."""

from __future__ import annotations

from dlprof.records.record import record


@record(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When each batch of an instrumented trial was where.

    Columns of equal length, one entry per batch in the order of its indices. Times are seconds
    since ``began_at`` by a clock that all processes share; ``None`` where a batch did not come
    that far or the configuration has no such stage.

    Attributes:
        trial_id: The trial that it shows.
        began_at: Wall-clock time of second 0, ISO 8601, UTC.
        batch: The batch's number in its epoch, from 0.
        epoch: The epoch, from 0.
        worker: The worker that made it; -1 for the main process.
        dispatched_s: Main has sent its indices.
        picked_s: The worker has taken them.
        fetched_s: All its samples are there; collating begins.
        collated_s: It is collated, and handed to the feeder thread.
        serialising_s: The feeder thread begins to pickle it.
        serialised_s: It is in the result queue.
        received_s: Main (or its pin thread) begins to take it.
        rebuilt_s: Its tensors exist in main.
        pinned_s: They are in page-locked memory.
        yielded_s: The consumer has it.
        asked_s: The consumer had asked for it: ``yielded_s`` - ``asked_s`` is its wait.
        dropped: Batches left out of the columns to keep them bounded.
    """

    trial_id: str
    began_at: str
    batch: tuple[int, ...] = ()
    epoch: tuple[int, ...] = ()
    worker: tuple[int, ...] = ()
    dispatched_s: tuple[float | None, ...] = ()
    picked_s: tuple[float | None, ...] = ()
    fetched_s: tuple[float | None, ...] = ()
    collated_s: tuple[float | None, ...] = ()
    serialising_s: tuple[float | None, ...] = ()
    serialised_s: tuple[float | None, ...] = ()
    received_s: tuple[float | None, ...] = ()
    rebuilt_s: tuple[float | None, ...] = ()
    pinned_s: tuple[float | None, ...] = ()
    yielded_s: tuple[float | None, ...] = ()
    asked_s: tuple[float | None, ...] = ()
    dropped: int = 0
