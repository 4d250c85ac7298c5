"""The predictor: when each batch is sent, loaded and returned, one after the other.

    sent[k] = ret[k - W * P]
    done[k] = max(done[k - W], sent[k]) + s * cpu[k] + io[k]
    ret[k]  = max(ret[k - 1] + T[k - 1], done[k] + pin[k]) + m * g_cpu[k] + g_io[k]

a recursion in the max-plus algebra. A handshake adds to ``ret[k]`` while the batch's worker loads
batch ``k + W``.

``s`` and ``m`` are how much computing in workers and in main slows down where cores are short. The
recursion without them shows for how much of the time how many workers load at once. Each of these
numbers has its slowdown by the machine-repairman model (``bounds.slowdown``), and their mean over
time is ``s``: exact where nobody waits, for then all that goes on slows down alike, as if the clock
ran slower. In order, slow batches leave other workers idle and the cores to themselves: that is in
the numbers. The recursion runs again with ``s`` and ``m`` until they hardly change.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlprof.model.bounds import bounds, slowdown
from dlprof.model.work import Cell, Work, means_of
from dlprof.units import parse_step

FAR_BELOW = 0.93
"""A rate below this share of every bound has another reason than they."""

_BATCHES = 1600
"""That the recursion goes through. With 3 % of batches 15 times as expensive, the luck of their
order makes 600 of them 3 to 7 % faster or slower (standard deviation, 4 to 32 workers)."""

_BY_THEMSELVES = ("cores", "pin", "storage")
_SEED = 20260101

_Times = tuple[list[float], list[float], list[float]]


class Steady(NamedTuple):
    """A loader that runs on and on."""

    batches_per_s: float  # rate of one rank
    # Whether batches wait for slow ones before them, and not for cores alone.
    held_by_order: bool = False


class _Slow(NamedTuple):
    """How much computing slows down in workers, and in main; 1 for not at all."""

    workers: float = 1.0
    main: float = 1.0


class _Columns(NamedTuple):
    """What each batch of the sequence costs: loading, the pin thread, taking in; and each step.

    ``busy`` is what taking any of them in costs more while its worker is loading the next.
    """

    load: Sequence[float]
    pin: Sequence[float]
    take: Sequence[float]
    step: Sequence[float]
    busy: float


class _Ran(NamedTuple):
    """Batches per second, and when each batch was begun and loaded."""

    rate: float
    begun: Sequence[float]
    loaded: Sequence[float]


def drawn(work: Work) -> Work:
    """The same work with a sequence of batches that is the same for every cell.

    Cells that differ only in their settings see the same batches in the same order, so that what
    separates them is not the luck of the draw. In the order measured, a worker whose turn comes
    at a multiple of their number would get the same batches for ever.

    Each batch comes equally often. Of more than are wanted, one is drawn from each of as many
    groups of like cost, and the columns are scaled so that their means stay what they were.
    """
    rows, rng = work.rows, random.Random(_SEED)
    if len(rows) <= _BATCHES:
        made: list[tuple[float, ...]] = []
        while len(made) < _BATCHES:
            made += rng.sample(rows, len(rows))
        return dataclasses.replace(work, rows=tuple(made))
    by_cost = sorted(rows, key=lambda row: math.fsum(row[:2]))
    edges = [place * len(rows) // _BATCHES for place in range(_BATCHES + 1)]
    chosen = [by_cost[rng.randrange(a, b)] for a, b in itertools.pairwise(edges)]
    rng.shuffle(chosen)
    means = zip(work.means, means_of(chosen), strict=True)
    factors = [want / mean if mean > 0 else 0.0 for want, mean in means]
    scaled = (tuple(v * by for v, by in zip(row, factors, strict=True)) for row in chosen)
    return dataclasses.replace(work, rows=tuple(scaled))


@functools.lru_cache(maxsize=256)  # one question asks for most cells several times
def steady_rate(cell: Cell) -> Steady:
    """The rate by the recursion, the bounds of cores, pin thread and storage kept.

    Args:
        cell: What to predict, its work as ``drawn``. So many batches are measured after the
            pipeline has filled, or at least four rounds of ``W``.
    """
    found = bounds(cell)
    if not cell.workers:
        return Steady(batches_per_s=min(found.values()))
    limit = min(rate for name, rate in found.items() if name in _BY_THEMSELVES)
    slow = _Slow()
    so_many = 600  # batches that show how much computing slows down
    few = _recursion(cell, slow, so_many)
    others = min(bound for name, bound in found.items() if name != "cores")
    ordered = cell.in_order and cell.workers > 1 and few.rate < FAR_BELOW * others
    # With work for twice the cores, some core is idle for less than 2 % of the time (four threads
    # that compute and wait for as long, on one core); more threads leave less still. Beside others'
    # threads they get less the fewer of them compute at once.
    if few.rate > 2 * found["cores"] and not cell.conditions.neighbours:
        return Steady(batches_per_s=limit, held_by_order=ordered)
    for _ in range(2):
        before, slow = slow, _slowed(cell, slow, few)
        # The rate would change by less than that.
        if max(abs(slow.workers - before.workers), abs(slow.main - before.main)) < 0.005:
            break
        few = _recursion(cell, slow, so_many)
    rate = _recursion(cell, slow, len(cell.work.rows)).rate
    return Steady(batches_per_s=min(rate, limit), held_by_order=ordered)


def _slowed(cell: Cell, slow: _Slow, ran: _Ran) -> _Slow:
    """How much computing slows down where batches run as they do with other slowdowns."""
    means, where, rate = cell.work.means, cell.conditions, ran.rate
    mains = where.step_threads + 1.0
    if where.ranks * (cell.workers + mains) + where.neighbours <= where.cores:
        return slow
    crowd = _at_once(ran)
    whole_s = math.fsum(crowd.values())
    if whole_s <= 0:
        return slow
    busy = math.fsum(count * seconds for count, seconds in crowd.items()) / whole_s
    taking_s = means.receive_cpu + means.main_cpu + (means.pin if cell.work.pinned else 0.0)
    step_cpu_s = cell.whole_step_s - cell.step_s
    computing_s = taking_s + step_cpu_s
    threads_s = taking_s + where.step_threads * step_cpu_s
    at_once = threads_s / computing_s if computing_s > 0 else 1.0
    # Main and its step keep threads running for so much of the time, in this rank and in others.
    main = min(1.0, rate * slow.main * computing_s) * at_once
    beside = where.neighbours + (where.ranks - 1) * main
    more = (where.ranks - 1) * busy
    cost = {"compute_s": means.cpu, "wait_s": means.io, "cores": where.cores}
    workers_s = main_s = loading_s = 0.0
    for count, seconds in _levels(crowd):
        if count:
            own, _ = slowdown(count + more, **cost, beside=beside + main)
            workers_s += seconds * own
            loading_s += seconds
        _, own = slowdown(count + more, **cost, beside=beside + at_once)
        main_s += seconds * own
    found = _Slow(workers_s / loading_s if loading_s > 0 else 1.0, main_s / whole_s)
    if slow == _Slow():
        return found
    return _Slow(math.sqrt(slow.workers * found.workers), math.sqrt(slow.main * found.main))


def _levels(crowd: Mapping[int, float]) -> list[tuple[float, float]]:
    """The mean of each few numbers that follow each other, and their seconds; 0 by itself."""
    width = math.ceil(max(crowd) / 8) or 1
    levels: dict[int, tuple[float, float]] = {}
    for count, seconds in crowd.items():
        sums = levels.get(-(-count // width), (0.0, 0.0))
        levels[-(-count // width)] = sums[0] + count * seconds, sums[1] + seconds
    return [(sum_ / seconds, seconds) for sum_, seconds in levels.values() if seconds > 0]


def _recursion(cell: Cell, slow: _Slow, batches: int) -> _Ran:
    many = max(batches, 4 * cell.workers)
    count = many - many % cell.workers  # whole rounds: batches come in bursts of W
    warm_up = cell.workers + min(cell.workers * cell.prefetch, count)
    run = _in_order if cell.in_order else _as_they_come
    rows, where, main, shape = cell.work.rows[:batches], cell.conditions, slow.main, (1.0,)
    load = [slow.workers * row[0] + row[1] for row in rows]
    take, pin = [main * row[4] for row in rows], [0.0] * len(rows)
    if cell.work.pinned:  # the thread adds to a batch's way; its rate is a bound by itself
        pin = [main * (row[2] + row[5]) + row[3] for row in rows]
    else:
        take = [main * (row[2] + row[4]) + row[3] for row in rows]
    if where.step_spread:
        shape = getattr(parse_step(where.step_spread), "shape", shape)
    mean_s = cell.step_s + main * (cell.whole_step_s - cell.step_s)
    lengths = [mean_s + where.step_s * (of - 1.0) for of in shape]
    step = list(itertools.islice(itertools.cycle(lengths), len(rows)))
    # With one batch ahead a worker has no next one yet; a pin thread waits for it beside main.
    rests = cell.prefetch == 1 or cell.work.pinned or cell.work.means.cpu <= 0
    computing_s = slow.workers * cell.work.means.cpu
    busy = 0.0 if rests else cell.work.busy_s * computing_s / (computing_s + cell.work.means.io)
    columns = _Columns(load, pin, take, step, busy)
    begun, loaded, returned = run(columns, cell.workers, cell.prefetch, warm_up + count)
    span = returned[-1] - returned[warm_up - 1]
    return _Ran(count / span if span > 0 else math.inf, begun[warm_up:], loaded[warm_up:])


def _at_once(ran: _Ran) -> Mapping[int, float]:
    """For how many seconds so many batches were being loaded."""
    found: dict[int, float] = collections.defaultdict(float)
    begins = iter(sorted(ran.begun))
    begin = now = next(begins)
    count = 0
    for end in sorted(ran.loaded):
        while begin < end:
            found[count] += begin - now
            now = begin
            count += 1
            begin = next(begins, math.inf)
        found[count] += end - now
        now = end
        count -= 1
    return {count: seconds for count, seconds in found.items() if seconds > 0}


def _in_order(columns: _Columns, workers: int, prefetch: int, count: int) -> _Times:
    """When so many batches have been begun, loaded and returned."""
    window = workers * prefetch
    returned = [0.0] * window  # batch k is at k + window: those before the first cost nothing
    done = [0.0] * workers
    begun: list[float] = []
    give, loaded, begin = returned.append, done.append, begun.append
    busy, now = columns.busy, -columns.step[0]  # none comes before the first batch
    turn = workers % len(columns.load)
    nexts = (*columns.load[turn:], *columns.load[:turn])  # what the same worker loads after it
    batches = zip(columns.load, columns.pin, columns.take, nexts, columns.step, strict=True)
    costs = itertools.cycle(batches)
    for k, (load, pin, take, then, step) in zip(range(count), costs, strict=False):
        ready = done[k]
        sent = returned[k]
        if sent > ready:  # noqa: PLR1730 - a call of max() would double the loop's time
            ready = sent
        begin(ready)
        ready += load
        loaded(ready)
        ready += pin
        now += step
        if ready > now:  # noqa: PLR1730 - as above
            now = ready
        if busy and now < max(ready, returned[k + workers]) + then:
            now += busy
        now += take
        give(now)
    return begun, done[workers:], returned[window:]


def _as_they_come(columns: _Columns, workers: int, prefetch: int, count: int) -> _Times:
    """The same with ``in_order=False``: the batch that is done first is returned first.

    Torch then gives the next index to a worker with fewer than P batches on its hands: to the
    one whose batch has just been returned.
    """
    costs = itertools.cycle(zip(columns.load, columns.pin, columns.take, strict=True))
    finished: list[tuple[float, int]] = []
    free = [0.0] * workers
    for worker, (load, pin, _) in zip(list(range(workers)) * prefetch, costs, strict=False):
        free[worker] += load
        finished.append((free[worker] + pin, worker))
    heapq.heapify(finished)
    returned: list[float] = []
    begun: list[float] = []
    loaded: list[float] = []
    give, begin, end = returned.append, begun.append, loaded.append
    busy, now, replace = columns.busy, -columns.step[0], heapq.heapreplace
    steps = itertools.islice(itertools.cycle(columns.step), count)
    for step, (load, pin, take) in zip(steps, costs, strict=False):
        ready, worker = finished[0]
        now += step  # none comes before the first batch
        if ready > now:  # noqa: PLR1730 - as above
            now = ready
        then = free[worker]
        if busy and now < then:
            now += busy
        now += take
        give(now)
        if now > then:  # noqa: PLR1730 - as above
            then = now
        begin(then)
        then += load
        free[worker] = then
        end(then)
        replace(finished, (then + pin, worker))
    return begun, loaded, returned
