"""How much dearer receiving is while workers are busy.

With ``file_descriptor`` sharing, main asks the worker for each tensor's descriptor. A thread of
the worker answers, and needs the interpreter's lock for it: while the worker computes in Python,
main waits for up to the switch interval, several times. So the time of receiving grows with the
share of time in which workers compute. Trials with and without a step see different shares; a
straight line through them tells rest from handshake.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from dlprof.records import BatchCosts, Explanation

_APART = 0.3
"""Trials whose workers compute for shares of time that differ less tell no slope."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Receiving told apart.

    Attributes:
        busy_s: What it takes longer while the worker computes; 0 where trials don't tell.
        costs: By trial, with the waiting of batches whose worker rests.
    """

    busy_s: float
    costs: Mapping[str, BatchCosts]


def split_receive(some: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> Split:
    """Tell what receiving costs at rest from what it costs beside busy workers.

    Args:
        some: Trials with workers and of one sharing strategy.
        clean: Their batches, by trial.
    """
    points = []
    for each in some:
        costs, share = clean[each.trial_id], computing_share(each, clean[each.trial_id])
        if costs.receive_io_s and share is not None:
            points.append((each.trial_id, share, statistics.fmean(costs.receive_io_s)))
    busy_s = max(0.0, _slope([(share, wait_s) for _, share, wait_s in points]))
    if busy_s <= 0:
        return Split(busy_s=0.0, costs=clean)
    rested = {name: _less(clean[name], busy_s * share) for name, share, _ in points}
    return Split(busy_s=busy_s, costs={**clean, **rested})


def computing_share(each: Explanation, costs: BatchCosts) -> float | None:
    """Share of time in which a worker of a trial computes; ``None`` where it isn't told."""
    busy = [worker.busy_fraction for worker in each.workers]
    cpu, queued = math.fsum(costs.cpu_s), math.fsum(costs.run_queue_s)
    whole = cpu + queued + math.fsum(costs.io_s)
    if not busy or whole <= 0:
        return None
    return statistics.fmean(busy) * (cpu + queued) / whole


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; 0 where the points lie too close together to tell."""
    shares = [share for share, _ in points]
    if len(points) < 2 or max(shares) - min(shares) < _APART:
        return 0.0
    slope, _ = statistics.linear_regression(shares, [value for _, value in points])
    return slope if math.isfinite(slope) else 0.0


def _less(costs: BatchCosts, seconds: float) -> BatchCosts:
    """Batches whose receiving waits less by so much on average, none of them below 0."""
    mean = statistics.fmean(costs.receive_io_s)
    factor = max(0.0, 1.0 - seconds / mean) if mean > 0 else 0.0
    return dataclasses.replace(
        costs, receive_io_s=tuple(value * factor for value in costs.receive_io_s)
    )
