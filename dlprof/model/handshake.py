"""What batches cost, cleaned, and what main waits for in taking one in while workers are busy.

With ``file_descriptor`` sharing, main asks the worker for each tensor's descriptor. A thread of
the worker answers, and needs the interpreter's lock for it: while the worker computes in Python,
main waits for up to the switch interval, several times. So the time of receiving grows with the
share of time in which workers compute. Trials with and without a step see different shares, and
batches that were taken behind a window, when the workers rested, see none; a straight line through
all of them tells rest from handshake.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from dlprof.records import BatchCosts, Explanation, Trial, Usage

_CLOCK_ERROR_S = 2e-4
"""Waiting is a difference of clocks; down to this far below 0 it is 0."""

_NEARLY = 0.9

_APART = 0.3
"""Trials whose workers compute for shares of time that differ less tell no slope."""


def split_receive(
    some: Sequence[Explanation], clean: Mapping[str, BatchCosts]
) -> tuple[float, dict[str, BatchCosts]]:
    """Tell what receiving costs at rest from what it costs beside busy workers.

    Args:
        some: Trials with workers and of one sharing strategy.
        clean: Their batches, by trial.

    Returns:
        Seconds that it takes longer while the worker computes, 0 where trials don't tell; and by
        trial the costs with the waiting of batches whose worker rests.
    """
    waited = {each.trial_id: with_wakings(each, clean[each.trial_id]) for each in some}
    points = []
    for each in some:
        costs, share = waited[each.trial_id], computing_share(each, clean[each.trial_id])
        if costs.receive_io_s and share is not None:
            points.append((each.trial_id, share, statistics.fmean(costs.receive_io_s)))
    rests = [(0.0, each.rested_receive_s) for each in some if each.rested_receive_s is not None]
    busy_s = max(0.0, _slope([*((share, wait_s) for _, share, wait_s in points), *rests]))
    if busy_s <= 0:
        return 0.0, {**clean, **waited}
    rested = {name: _more(waited[name], -busy_s * share) for name, share, _ in points}
    return busy_s, {**clean, **waited, **rested}


def with_wakings(each: Explanation, costs: BatchCosts) -> BatchCosts:
    """Costs of a trial with what main waits for a core each time that a worker has woken it.

    The one that wakes goes on running for a while, often on the core that the woken one is put
    on: that much waiting for a core belongs to the handshake, however many cores are idle.
    Computing shows how much waiting the crowd of that moment brings, which does not belong to it.
    """
    rebuild = each.stage("rebuild")
    if rebuild is None or not rebuild.run_queue_s or not costs.receive_io_s:
        return costs
    cpu = math.fsum(costs.cpu_s)
    crowd = math.fsum(costs.run_queue_s) / cpu if cpu > 0 else 0.0
    cpu_s = rebuild.cpu_s or 0.0
    woken_s = rebuild.run_queue_s - crowd * cpu_s
    # It may have begun to wait before the batch was there, which no receiving is to blame for.
    room_s = rebuild.mean_s - cpu_s - statistics.fmean(costs.receive_io_s)
    return _more(costs, max(0.0, min(woken_s, room_s)))


def computing_share(each: Explanation, costs: BatchCosts) -> float | None:
    """Share of time in which a worker of a trial computes; ``None`` where it isn't told."""
    workers = each.config.num_workers
    if not workers or not costs.cpu_s or each.window_s <= 0:
        return None
    parts = (costs.cpu_s, costs.run_queue_s, costs.put_cpu_s, costs.between_cpu_s)
    batch_s = math.fsum(map(math.fsum, parts)) / len(costs.cpu_s)
    return min(1.0, batch_s * each.batches / each.window_s / workers)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; 0 where the points lie too close together to tell."""
    shares = [share for share, _ in points]
    if len(points) < 2 or max(shares) - min(shares) < _APART:
        return 0.0
    slope, _ = statistics.linear_regression(shares, [value for _, value in points])
    return slope if math.isfinite(slope) else 0.0


def _more(costs: BatchCosts, seconds: float) -> BatchCosts:
    """Batches whose receiving waits more, or less, by so much on average; none of them below 0."""
    if seconds >= 0:
        return dataclasses.replace(
            costs, receive_io_s=tuple(value + seconds for value in costs.receive_io_s)
        )
    mean = statistics.fmean(costs.receive_io_s)
    factor = max(0.0, 1.0 + seconds / mean) if mean > 0 else 0.0
    return dataclasses.replace(
        costs, receive_io_s=tuple(value * factor for value in costs.receive_io_s)
    )


def cleaned(costs: BatchCosts) -> BatchCosts:
    """The batches whose figures all make sense; missing columns stay empty."""
    columns = {f.name: getattr(costs, f.name) for f in dataclasses.fields(costs)}
    length = len(costs.cpu_s)
    present = {name: column for name, column in columns.items() if len(column) == length}
    kept = [
        row
        for row in zip(*present.values(), strict=True)
        if all(math.isfinite(each) and each >= -_CLOCK_ERROR_S for each in row)
    ]
    if not kept:
        return BatchCosts()
    rounded = ([max(0.0, value) for value in column] for column in zip(*kept, strict=True))
    return BatchCosts(**dict(zip(present, map(tuple, rounded), strict=True)))


def unstolen(costs: BatchCosts, trial: Trial | None) -> BatchCosts:
    """Costs without what a hypervisor took from a trial's cores, which looks like waiting.

    To a thread, time in which its core runs other machines is neither CPU time nor time in the
    run queue. It hits each second of computing alike.
    """
    if trial is None or not costs.io_s:
        return costs
    lost = _stolen_per_cpu_s(trial.usage)
    return dataclasses.replace(
        costs,
        io_s=_shortened(costs.io_s, lost * math.fsum(costs.cpu_s)),
        receive_io_s=_shortened(costs.receive_io_s, lost * math.fsum(costs.receive_cpu_s)),
    )


def _stolen_per_cpu_s(usage: Usage) -> float:
    """Seconds stolen for each second of computing on this machine, whoever computed.

    Others' cores hold the stolen ones, unless the kernel counts those as the threads' own CPU time:
    then they look like no waiting.
    """
    stolen, own, other = usage.stolen_cpu_cores, usage.own_cpu_cores, usage.other_cpu_cores
    if not stolen or not own or other is None or other < _NEARLY * stolen:
        return 0.0
    return stolen / (own + max(0.0, other - stolen))


def _shortened(column: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """Values that are so much less in all, and none of them below 0."""
    whole = math.fsum(column)
    factor = max(0.0, 1.0 - seconds / whole) if whole > 0 else 1.0
    return tuple(value * factor for value in column) if factor < 1.0 else column
