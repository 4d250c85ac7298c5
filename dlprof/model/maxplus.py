"""The predictor: when each batch is sent, loaded and returned, one after the other.

    sent[k] = ret[k - W * P]
    done[k] = max(done[k - W], sent[k]) + s * cpu[k] + io[k]
    ret[k]  = max(ret[k - 1] + T[k - 1], done[k] + pin[k]) + m * g_cpu[k] + g_io[k]

a recursion in the max-plus algebra. A handshake adds to ``ret[k]`` while the batch's worker loads
batch ``k + W``. Ranks that meet at a barrier each step have a recursion each, with batches of their
own; the latest ``ret[k - 1]`` of all is in the place of each one's.

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
import operator
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from dlprof.model.bounds import bounds, slowdown
from dlprof.model.work import Cell, Rows, Work, means_of
from dlprof.units import parse_step

FAR_BELOW = 0.93  # a rate below this share of every bound has another reason than they

_BATCHES = 1600
"""That the recursion goes through. With 3 % of batches 15 times as expensive, the luck of their
order makes 600 of them 3 to 7 % faster or slower (standard deviation, 4 to 32 workers)."""

_MOST_TOGETHER = 16
"""Ranks at one barrier that the recursion follows; more are as slow as so many. Of normal costs the
slowest of 16 is 1.8 standard deviations above the mean, of 1,000 3.2 (order statistics)."""

_SEED = 20260101

_Times = tuple[Iterable[float], Iterable[float], list[float]]


class Steady(NamedTuple):
    """A loader that runs on and on."""

    batches_per_s: float  # rate of one rank
    # What batches wait for, if not for cores alone: slow ones before them, or those of other ranks.
    held_by: Literal["", "order", "barrier"] = ""
    lost_log: float = 0.0  # logarithm of what ranks lose at a barrier, where that is the limit


class _Slow(NamedTuple):
    """How much computing slows down in workers, and in main; 1 for not at all."""

    workers: float = 1.0
    main: float = 1.0


class _Columns(NamedTuple):
    """What each batch of the sequence costs: loading, the pin thread, taking in; and each step.

    Of ``ranks`` that begin each step together, one batch of each rank in turn, the step with the
    first one. ``busy`` is what taking any of them in costs more while its worker is loading the
    next.
    """

    load: Sequence[float]
    pin: Sequence[float]
    take: Sequence[float]
    step: Sequence[float | None]
    busy: float
    ranks: int


class _Ran(NamedTuple):
    """Batches per second of a rank, and when each batch of all of them was begun and loaded."""

    rate: float
    begun: Iterable[float]  # once only: both take time where they are asked for
    loaded: Iterable[float]


@functools.lru_cache(maxsize=16)  # drawn again it is the same object, which compares at once
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


@functools.lru_cache(maxsize=16)
def _dealt(work: Work, ranks: int) -> Rows:
    """The same batches for so many ranks, one of each rank in turn.

    Of each few that cost alike every rank gets one, so that none has more to do than others in the
    end, as none has in a long training. A few of the cheapest may be left over.

    Returns:
        Columns: CPU and waiting of loading, CPU of taking in with and without receiving, waiting of
        receiving, CPU of receiving and pinning.
    """
    rows = work.rows
    if ranks > 1:
        rng, hands = random.Random(_SEED), [list[tuple[float, ...]]() for _ in range(ranks)]
        by_cost = sorted(rows, key=lambda row: row[0] + row[1])
        for place in range(len(rows) % ranks, len(rows), ranks):
            alike = by_cost[place : place + ranks]
            rng.shuffle(alike)
            for hand, row in zip(hands, alike, strict=True):
                hand.append(row)
        for hand in hands:
            rng.shuffle(hand)
        rows = tuple(itertools.chain.from_iterable(zip(*hands, strict=True)))
    cpu, io, receive, wait, main, pin = zip(*rows, strict=True)
    taken, pinned = (tuple(map(operator.add, receive, more)) for more in (main, pin))
    return cpu, io, taken, main, wait, pinned


@functools.lru_cache(maxsize=256)  # one question asks for most cells several times
def steady_rate(cell: Cell) -> Steady:
    """The rate by the recursion, the bounds of cores, pin thread and storage kept.

    Of as many batches as its work has, which is ``drawn``, after the pipeline has filled, or at
    least four rounds of ``W``.
    """
    found, ranks = bounds(cell), _together(cell)
    if not cell.workers:
        limit = min(found.values())
        rate = limit if ranks == 1 else min(limit, _loaded_together(cell, ranks))
        if rate < FAR_BELOW * limit:
            return Steady(rate, "barrier", math.log(limit / rate))
        return Steady(rate)
    limit = min(rate for name, rate in found.items() if name not in {"step", "main", "workers"})
    slow = _Slow()
    so_many = 600 if ranks == 1 else 240  # batches that show how much computing slows down
    few = _recursion(cell, slow, so_many, ranks)
    others = min(bound for name, bound in found.items() if name != "cores")
    ordered = cell.in_order and cell.workers > 1 and few.rate < FAR_BELOW * others
    held_by: Literal["", "order", "barrier"] = "order" if ordered else ""
    # With work for twice the cores, some core is idle for less than 2 % of the time (four threads
    # that compute and wait for as long, on one core); more threads leave less still. Beside others'
    # threads they get less the fewer of them compute at once.
    if few.rate > 2 * found["cores"] and not cell.conditions.neighbours:
        return Steady(limit, held_by)
    before, slow = slow, _slowed(cell, slow, few, ranks)
    # Else the rate would change by less than that.
    if max(abs(slow.workers - before.workers), abs(slow.main - before.main)) >= 0.005:
        slow = _slowed(cell, slow, _recursion(cell, slow, so_many, ranks), ranks)
    rate = min(limit, _recursion(cell, slow, len(cell.work.rows), ranks).rate)
    if ranks > 1 and rate < FAR_BELOW * min(found.values()):
        means = cell.work.means
        loading = cell.workers / (slow.workers * means.cpu + means.io)
        free = _recursion(cell, slow, so_many).rate if ordered else min(others, loading)
        if rate < FAR_BELOW * min(limit, free):
            return Steady(rate, "barrier", math.log(min(limit, free) / rate))
    return Steady(rate, held_by)


def _together(cell: Cell) -> int:
    """How many ranks are followed that begin each step together; 1 where none waits for another."""
    where = cell.conditions
    return max(1, min(where.ranks * where.barrier_nodes, _MOST_TOGETHER))


def _loaded_together(cell: Cell, ranks: int) -> float:
    """Batches per second of each of so many ranks without workers that begin each step together.

    All load at once until the first has its batch, then all others, and so on to the last one: the
    more of them still load, the slower.
    """
    where, means = cell.conditions, cell.work.means
    step_cpu_s, threads = cell.whole_step_s - cell.step_s, 1.0 + cell.work.helpers
    compute_s = means.cpu + step_cpu_s
    alone_s = compute_s + means.io
    here = where.ranks / ranks  # those of one node share its cores
    stretched = [0.0]
    for count in range(1, ranks + 1):
        slow, _ = slowdown(
            count * here,
            compute_s=compute_s,
            wait_s=means.io,
            cores=where.cores / threads,
            beside=where.neighbours / threads,
        )
        more_s = (slow - 1.0) * compute_s
        stretched.append(1.0 + more_s / alone_s if alone_s > 0 else 1.0)
    cpu, io, *_ = _dealt(cell.work, ranks)
    loaded = [a + b for a, b in zip(cpu, io, strict=True)]
    steps, whole_s = len(loaded) // ranks, 0.0
    for place in range(0, len(loaded), ranks):
        ends = sorted(loaded[place : place + ranks])
        before_s = -step_cpu_s
        for left, end_s in zip(range(ranks, 0, -1), ends, strict=True):
            whole_s += (end_s - before_s) * stretched[left]
            before_s = end_s
    whole_s += steps * cell.step_s
    return steps / whole_s if whole_s > 0 else math.inf


def _slowed(cell: Cell, slow: _Slow, ran: _Ran, ranks: int) -> _Slow:
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
    beside = taking = where.neighbours + (where.ranks - 1) * main
    here, more = 1.0, (where.ranks - 1) * busy
    if ranks > 1:  # the crowd is that of all ranks that are followed
        here, more = where.ranks / ranks, 0.0
        # Who doesn't wait for batches takes them in as all begin a step.
        at_hand = min(1.0, rate * (cell.step_s + slow.main * computing_s))
        taking = where.neighbours + (where.ranks - 1) * max(main, at_hand * at_once)
    cost = {"compute_s": means.cpu, "wait_s": means.io, "cores": where.cores}
    workers_s = main_s = loading_s = 0.0
    for count, seconds in _levels(crowd):
        crowd_of_all = here * count + more
        if ranks > 1 and crowd_of_all > _MOST_TOGETHER:  # where a whole number says as much
            crowd_of_all = round(crowd_of_all)
        if count:
            own, _ = slowdown(crowd_of_all, **cost, beside=beside + main)
            workers_s += seconds * own
            loading_s += seconds
        _, own = slowdown(crowd_of_all, **cost, beside=taking + at_once)
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


def _recursion(cell: Cell, slow: _Slow, batches: int, ranks: int = 1) -> _Ran:
    workers = ranks * cell.workers
    many = max(batches, 4 * cell.workers, workers)
    count = many - many % workers  # whole rounds: batches come in bursts of W
    # Until queues have filled all workers compute at once; of few batches that is cut, for speed.
    full = workers * cell.prefetch
    warm_up = workers + (full if ranks > 1 else min(full, count))
    run = _in_order if cell.in_order else _as_they_come
    where, own, main, shape = cell.conditions, slow.workers, slow.main, (1.0,)
    dealt = (column[: batches - batches % ranks] for column in _dealt(cell.work, ranks))
    cpu, io, taken, let_go, wait, pinned = dealt
    load = [own * a + b for a, b in zip(cpu, io, strict=True)]
    if cell.work.pinned:  # the thread adds to a batch's way; its rate is a bound by itself
        pin = [main * a + b for a, b in zip(pinned, wait, strict=True)]
        take = [main * a for a in let_go]
    else:
        pin = [0.0] * len(load)
        take = [main * a + b for a, b in zip(taken, wait, strict=True)]
    if where.step_spread:
        shape = getattr(parse_step(where.step_spread), "shape", shape)
    mean_s = cell.step_s + main * (cell.whole_step_s - cell.step_s)
    lengths = [mean_s + where.step_s * (of - 1.0) for of in shape]
    steps = itertools.cycle([each for s in lengths for each in (s, *[None] * (ranks - 1))])
    step = list(itertools.islice(steps, len(load)))
    # With one batch ahead a worker has no next one yet; a pin thread waits for it beside main.
    rests = cell.prefetch == 1 or cell.work.pinned or cell.work.means.cpu <= 0
    computing_s = slow.workers * cell.work.means.cpu
    busy = 0.0 if rests else cell.work.busy_s * computing_s / (computing_s + cell.work.means.io)
    columns = _Columns(load, pin, take, step, busy, ranks)
    begun, loaded, returned = run(columns, workers, cell.prefetch, warm_up + count)
    span = max(returned[-ranks:]) - max(returned[warm_up - ranks : warm_up])
    rate = count / ranks / span if span > 0 else math.inf
    return _Ran(rate, *(itertools.islice(each, warm_up, None) for each in (begun, loaded)))


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
    """When so many batches have been begun, loaded and returned; all ranks' workers and batches."""
    window = workers * prefetch
    returned = [0.0] * window  # batch k is at k + window: those before the first cost nothing
    done = [0.0] * workers
    give, loaded = returned.append, done.append
    busy, now, last = columns.busy, 0.0, -(columns.step[0] or 0.0)  # none before the first batch
    turn = workers % len(columns.load)
    nexts = (*columns.load[turn:], *columns.load[:turn])  # what the same worker loads after it
    batches = zip(columns.load, columns.pin, columns.take, nexts, columns.step, strict=True)
    costs = itertools.islice(itertools.cycle(batches), count)
    # Of a batch, and of the one that its worker loads after it. The lists grow meanwhile.
    sends = itertools.islice(returned, workers, None) if busy else itertools.repeat(0.0)
    turns = zip(done, returned, sends, costs, strict=False)
    for ready, sent, next_sent, (load, pin, take, then, step) in turns:
        if step is not None:
            now = last + step
        if sent > ready:  # a call of max() would double the loop's time
            ready = sent
        ready += load
        loaded(ready)
        ready += pin
        taken = now
        if ready > taken:
            taken = ready
        if busy and taken < max(ready, next_sent) + then:
            taken += busy
        taken += take
        give(taken)
        if taken > last:
            last = taken
    begun = itertools.islice(map(max, done, returned), count)
    return begun, itertools.islice(done, workers, None), returned[window:]


def _as_they_come(columns: _Columns, workers: int, prefetch: int, count: int) -> _Times:
    """The same with ``in_order=False``: the batch that is done first is returned first.

    Torch then gives the next index to a worker with fewer than P batches on its hands: to the
    one whose batch has just been returned.
    """
    ranks = columns.ranks
    queued = workers * min(prefetch, math.ceil(count / workers))  # no more will be asked for
    first = itertools.cycle(zip(columns.load, columns.pin, strict=True))
    loads, pins = zip(*itertools.islice(first, queued), strict=True)
    ready_of: list[list[tuple[float, int]]] = [[] for _ in range(ranks)]
    free_of: list[list[float]] = [[] for _ in range(ranks)]
    for place in range(workers):
        ends = [*itertools.accumulate(loads[place::workers])]
        pinned = map(operator.add, ends, pins[place::workers])
        ready_of[place % ranks] += zip(pinned, itertools.repeat(place // ranks))
        free_of[place % ranks].append(ends[-1])
    for finished in ready_of:
        heapq.heapify(finished)
    whole = itertools.cycle(zip(columns.load, columns.pin, columns.take, strict=True))
    costs = itertools.islice(whole, queued, None)
    returned: list[float] = []
    begun: list[float] = []
    give, begin = returned.append, begun.append
    busy, replace = columns.busy, heapq.heapreplace
    now, last = 0.0, -(columns.step[0] or 0.0)  # none before the first batch
    steps = itertools.islice(itertools.cycle(columns.step), count)
    turns = zip(steps, itertools.cycle(ready_of), itertools.cycle(free_of), costs, strict=False)
    for step, finished, free, (load, pin, take) in turns:
        if step is not None:
            now = last + step
        ready, worker = finished[0]
        taken = now
        if ready > taken:
            taken = ready
        then = free[worker]
        if busy and taken < then:
            taken += busy
        taken += take
        give(taken)
        if taken > last:
            last = taken
        if taken > then:
            then = taken
        begin(then)
        then += load
        free[worker] = then
        replace(finished, (then + pin, worker))
    later = itertools.islice(itertools.cycle(columns.load), queued, None)
    return begun, map(operator.add, begun, later), returned
