"""The max-plus recursion: when each batch is sent, loaded and returned, one after the other.

    sent[k] = ret[k - W * P]
    done[k] = max(done[k - W], sent[k]) + s * cpu[k] + io[k]
    ret[k]  = max(ret[k - 1] + T[k - 1], done[k] + pin[k]) + s * g_cpu[k] + g_io[k]

A handshake adds to ``ret[k]`` while the batch's worker loads batch ``k + W``.

``s >= 1`` is how much computing slows down where the cores are short. The smallest ``s`` that
keeps ``X * CPU * ranks <= C`` gives ``X = C / (CPU * ranks)`` itself, for ``X`` falls steadily
with ``s``: so the cores' bound stands for the search of that ``s``. It says nothing of cores that
are short only now and then, which cost up to a fifth of the rate where workers both compute and
wait; so ``s`` is taken from the machine-repairman model (``sharing``), at as many workers as the
recursion with ``s = 1`` keeps busy, and the cores' bound is kept beside it.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Sequence

from dlprof.model.bounds import bounds, cores_bound, cpu_per_batch, own_cores
from dlprof.model.deck import Deck
from dlprof.model.predictor import Steady
from dlprof.model.sharing import slowdown
from dlprof.model.work import Cell, Rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What each batch of the sequence costs: loading, the pin thread, taking in, stepping.

    ``busy`` is what taking any of them in costs more while its worker is loading the next.
    """

    load: Sequence[float]
    pin: Sequence[float]
    take: Sequence[float]
    step: Sequence[float]
    busy: float


def steady_rate(cell: Cell, deck: Deck, *, batches: int, rank: int = 0) -> Steady:
    """The rate by the recursion, the bounds of cores, pin thread and storage kept.

    Args:
        cell: What to predict.
        deck: Deals batches.
        batches: Measured after the pipeline has filled; at least four rounds of ``W`` are.
        rank: Whose batches.
    """
    found = bounds(cell)
    if not cell.workers:
        return Steady(batches_per_s=min(found.values()), held_back=False)
    limit = min(rate for name, rate in found.items() if name in _BY_THEMSELVES)
    rows = deck.rows(cell.work, max(batches, 4 * cell.workers), rank)
    steps = deck.steps(cell, len(rows), rank)
    slow = max(1.0, 1.0 / own_cores(cell))
    steady = _recursion(cell, rows, steps, slow=slow)
    ordered = held_by_order(cell, slow * steady.batches_per_s)
    if steady.batches_per_s > _CROWDED * found["cores"]:
        return dataclasses.replace(steady, batches_per_s=limit)
    for _ in range(_PASSES):
        before, found_slow = slow, _slowdown(cell, steady.batches_per_s, slow)
        slow = math.sqrt(before * found_slow) if before > 1.0 else found_slow
        if abs(slow - before) < _WORTH_IT:
            break
        steady = _recursion(cell, rows, steps, slow=slow)
    rate = min(steady.batches_per_s, limit)
    return dataclasses.replace(steady, batches_per_s=rate, held_by_order=ordered)


def held_by_order(cell: Cell, unslowed: float) -> bool:
    """Whether batches wait for slow ones before them, whatever cores there are.

    Args:
        cell: With workers.
        unslowed: Its rate by the recursion with cores without end.
    """
    limit = min(rate for name, rate in bounds(cell).items() if name != "cores")
    return cell.in_order and cell.workers > 1 and unslowed < FAR_BELOW * limit


def luck(cell: Cell, deck: Deck, *, batches: int, ranks: int, many: int) -> float:
    """How much faster a few batches are than many, by the order in which they were drawn.

    Where costs vary, the rate over a few rounds of ``W`` batches depends on which worker gets the
    dear ones, and the first rounds, begun by all workers at once, are faster or slower than those
    that follow. The recursion sees the same of it as the simulation does, at a tenth of the time.

    Args:
        cell: With workers.
        deck: Deals batches.
        batches: The few, of each rank.
        ranks: That the few are drawn for.
        many: Batches.

    Returns:
        The ratio of the rates; 1 where batches cost nothing that the recursion knows of.
    """
    few = (steady_rate(cell, deck, batches=batches, rank=rank) for rank in range(ranks))
    few_s = math.fsum(1.0 / each.batches_per_s for each in few) / ranks
    many_s = 1.0 / steady_rate(cell, deck, batches=many).batches_per_s
    return many_s / few_s if few_s > 0 and many_s > 0 else 1.0


def unslowed_rate(cell: Cell, deck: Deck, *, batches: int) -> float:
    """The rate by the recursion if there were cores without end."""
    rows = deck.rows(cell.work, max(batches, 4 * cell.workers))
    return _recursion(cell, rows, deck.steps(cell, len(rows)), slow=1.0).batches_per_s


FAR_BELOW = 0.93
"""A rate below this share of every bound has another reason than they."""

_CROWDED = 2.0
"""With work for twice the cores, some core is idle for less than 2 % of the time (four threads
that compute and wait for as long, on one core); more threads leave less still."""

_BY_THEMSELVES = ("cores", "pin", "storage")
_PASSES = 2
_WORTH_IT = 0.005
"""Changes of the slowdown up to this are left out: the rate would change by less than that."""


def _slowdown(cell: Cell, rate: float, slow: float) -> float:
    """How much computing slows down at a rate that came of another slowdown.

    By Little's law ``rate * (slow * cpu + io)`` workers of a rank are busy; what main computes
    leaves them fewer cores.
    """
    means, where = cell.work.means, cell.conditions
    cores = own_cores(cell)
    busy = min(float(cell.workers), rate * (slow * means.cpu + means.io))
    beside = cpu_per_batch(cell) - means.cpu
    rest = max(cores - where.ranks * beside * min(rate, cores_bound(cell)), cores / 4)
    return slowdown(where.ranks * busy, compute_s=means.cpu, wait_s=means.io, cores=rest)


def _recursion(cell: Cell, rows: Rows, steps: Sequence[float], *, slow: float) -> Steady:
    count = len(rows) - len(rows) % cell.workers  # whole rounds: batches come in bursts of W
    warm_up = cell.workers + min(cell.workers * cell.prefetch, count)
    columns = _columns(cell, rows, steps, slow)
    run = _in_order if cell.in_order else _as_they_come
    returned, held_back = run(columns, cell.workers, cell.prefetch, warm_up + count)
    span = returned[-1] - returned[warm_up - 1]
    return Steady(batches_per_s=count / span if span > 0 else math.inf, held_back=held_back)


def _columns(cell: Cell, rows: Rows, steps: Sequence[float], slow: float) -> _Columns:
    load = [slow * row[0] + row[1] for row in rows]
    if cell.work.pinned:  # the thread adds to a batch's way; its rate is a bound by itself
        pin = [slow * (row[2] + row[5]) + row[3] for row in rows]
        take = [slow * row[4] for row in rows]
    else:
        pin = [0.0] * len(rows)
        take = [slow * (row[2] + row[4]) + row[3] for row in rows]
    extra = slow * cell.conditions.step_cpu_s / cell.conditions.speed
    return _Columns(
        load=load,
        pin=pin,
        take=take,
        step=[step + extra for step in steps],
        busy=_busy_s(cell, slow),
    )


def _busy_s(cell: Cell, slow: float) -> float:
    """Mean seconds by which taking a batch in takes longer while its worker loads the next.

    With one batch ahead a worker has no next one yet; a pin thread waits for it beside main.
    """
    if cell.prefetch == 1 or cell.work.pinned or cell.work.means.cpu <= 0:
        return 0.0
    computing_s = slow * cell.work.means.cpu
    return cell.work.busy_s * computing_s / (computing_s + cell.work.means.io)


def _in_order(
    columns: _Columns, workers: int, prefetch: int, count: int
) -> tuple[list[float], bool]:
    """When each batch has been returned, and whether any waited to be sent."""
    window = workers * prefetch
    returned = [0.0] * window  # batch k stands at k + window: those before the first cost nothing
    done = [0.0] * workers
    give, loaded = returned.append, done.append
    held_back = False
    busy = columns.busy
    now = step = 0.0
    turn = workers % len(columns.load)
    nexts = (*columns.load[turn:], *columns.load[:turn])  # what the same worker loads after it
    parts = zip(columns.load, columns.pin, columns.take, columns.step, nexts, strict=True)
    costs = itertools.cycle(parts)
    for k, (load, pin, take, after, then) in zip(range(count), costs, strict=False):
        ready = done[k]
        sent = returned[k]
        if sent > ready:
            ready = sent
            held_back = True
        ready += load
        loaded(ready)
        ready += pin
        now += step
        if ready > now:  # noqa: PLR1730 - a call of max() would double the loop's time
            now = ready
        if busy and now < max(ready, returned[k + workers]) + then:
            now += busy
        now += take
        give(now)
        step = after
    return returned[window:], held_back


def _as_they_come(
    columns: _Columns, workers: int, prefetch: int, count: int
) -> tuple[list[float], bool]:
    """The same with ``in_order=False``: the batch that is done first is returned first.

    Torch then gives the next index to a worker with fewer than P batches on its hands: to the
    one whose batch has just been returned.
    """
    costs = itertools.cycle(zip(columns.load, columns.pin, columns.take, columns.step, strict=True))
    finished: list[tuple[float, int]] = []
    free = [0.0] * workers
    for worker in list(range(workers)) * prefetch:
        load, pin, _, _ = next(costs)
        free[worker] += load
        finished.append((free[worker] + pin, worker))
    heapq.heapify(finished)
    returned = []
    held_back = False
    now = step = 0.0
    for _ in range(count):
        load, pin, take, after = next(costs)
        ready, worker = finished[0]
        now += step
        if ready > now:  # noqa: PLR1730 - as above
            now = ready
        if columns.busy and now < free[worker]:
            now += columns.busy
        now += take
        returned.append(now)
        step = after
        begin = free[worker]
        if now > begin:
            begin = now
            held_back = True
        free[worker] = begin + load
        heapq.heapreplace(finished, (begin + load + pin, worker))
    return returned, held_back
