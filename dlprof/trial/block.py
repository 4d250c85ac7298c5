"""The figures of a block of loading: from the stamps of its batches to what a check compares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dlprof.tracing.spans import Span, spans
from dlprof.tracing.trace import Row

_NS = 1e-9
_MOST_PARTS = 16


def block_figures(
    rows: Sequence[Row],
    *,
    samples: Sequence[int],
    times_s: Sequence[float],
    transforms: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields of a ``Block`` that stamps tell; times are in seconds.

    The service time is that of fetching and collating, less what the process that did it waited
    for a core. Where a loader could not be hooked it is the wait in ``next()``.

    Args:
        rows: One per batch, in the order of yields.
        samples: Samples of each.
        times_s: When the first of them came, as far as nothing but loading happened meanwhile.
        transforms: Names of those that a chain in the dataset runs, in its order.
    """
    if len(rows) != len(samples):
        return {"failure": "some batches came past the hooks, so not all of them were timed"}
    fetch, collate = spans("fetch", rows), spans("collate", rows)
    receive = spans("rebuild", rows)
    hooked = len(fetch) == len(collate) == len(rows)
    service = (
        [_own_s(one) + _own_s(two) for one, two in zip(fetch, collate, strict=True)]
        if hooked
        else [span.wall_ns * _NS for span in spans("wait", rows)]
    )
    stages = {"fetch": fetch, "collate": collate} if hooked else {}
    stages_s = {name: math.fsum(map(_own_s, found)) for name, found in stages.items()}
    if len(receive) == len(rows):
        stages_s["receive"] = math.fsum(map(_received_s, receive))
    if hooked:
        stages_s |= _parts_s(rows, transforms)
    return {
        "service_s": service,
        "samples": list(samples),
        "wall_s": _wall_s(samples, times_s),
        "corrected": hooked and all(span.run_queue_ns is not None for span in (*fetch, *collate)),
        "stages_s": stages_s,
    }


def _own_s(span: Span) -> float:
    """What a stage took, less run-queue delay."""
    return max(0, span.wall_ns - (span.run_queue_ns or 0)) * _NS


def _received_s(span: Span) -> float:
    """What taking a batch cost the main process.

    Its CPU time, where that is known: the wall time holds waiting for a worker that sends, and
    beside neighbours that worker's own waiting for a core.
    """
    return _own_s(span) if span.cpu_ns is None else span.cpu_ns * _NS


def _parts_s(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """What each transform took within fetching, waiting for a core taken off in proportion."""
    found: dict[str, float] = {}
    for row, fetch in zip(rows, spans("fetch", rows), strict=True):
        chain = row.made.chain if row.made is not None else ()
        if not names or len(chain) != 2 * len(names) or not fetch.wall_ns:
            continue
        own = _own_s(fetch) / fetch.wall_ns
        for name, took_ns in zip(names, chain[1::2], strict=True):
            key = f"fetch: {name}"
            found[key] = found.get(key, 0.0) + took_ns * own
    return dict(itertools.islice(found.items(), _MOST_PARTS))


def _wall_s(samples: Sequence[int], times_s: Sequence[float]) -> float | None:
    """What the whole block would have taken at the rate of its undisturbed part."""
    came = sum(samples[1 : len(times_s)])
    if len(times_s) < 2 or not came:
        return None
    return (times_s[-1] - times_s[0]) / came * sum(samples)
