"""From a trace to columns for a picture of the pipeline: pure, without torch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from dlprof.records.run import Timeline
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.explain import in_window
from dlprof.tracing.trace import Row, Trace

MOST = 4096
"""Batches in a timeline unless more are asked for; about 1 MB of JSON."""


def timeline(
    trace: Trace, *, trial_id: str, window: tuple[int, int] | None = None, most: int = MOST
) -> Timeline:
    """When each batch of a window was where.

    Args:
        trace: From a tracer.
        trial_id: The trial that it belongs to.
        window: As for ``explain``; second 0 is its beginning, or that of the tracer.
        most: Batches that are kept, the first ones of the window.
    """
    found = in_window(trace, window)
    rows = sorted(found[:most], key=lambda row: (row.epoch, row.batch))
    began_ns = trace.began_ns if window is None else window[0]
    began_at = trace.began_at + (began_ns - trace.began_ns) * 1e-9

    def column(stamp: Callable[[Row], int]) -> tuple[float | None, ...]:
        stamps = map(stamp, rows)
        return tuple(None if each == MISSING else (each - began_ns) * 1e-9 for each in stamps)

    return Timeline(
        trial_id=trial_id,
        began_at=datetime.fromtimestamp(began_at, UTC).isoformat(),
        batch=tuple(row.batch for row in rows),
        epoch=tuple(row.epoch for row in rows),
        worker=tuple(-1 if row.made is None else row.made.worker for row in rows),
        dispatched_s=column(lambda row: row.dispatched),
        picked_s=column(lambda row: MISSING if row.made is None else row.made.picked),
        fetched_s=column(lambda row: MISSING if row.made is None else row.made.fetched),
        collated_s=column(lambda row: MISSING if row.made is None else row.made.collated),
        serialising_s=column(lambda row: row.serialising),
        serialised_s=column(lambda row: row.serialised),
        received_s=column(lambda row: row.received),
        rebuilt_s=column(lambda row: row.rebuilt),
        pinned_s=column(lambda row: row.pinned),
        yielded_s=column(lambda row: row.yielded),
        asked_s=column(lambda row: row.asked),
        dropped=len(found) - len(rows) + (trace.dropped if window is None else 0),
    )
