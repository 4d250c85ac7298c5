"""The discrete-event simulation: the reference among the predictors."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from dlprof.model.bounds import bounds, cores_bound
from dlprof.model.clock import Clock
from dlprof.model.consumer import Consumer, FedConsumer, LoadingConsumer
from dlprof.model.deck import Deck
from dlprof.model.maxplus import held_by_order, luck, unslowed_rate
from dlprof.model.network import Costs, PinThread, Storage, Worker, costs_of
from dlprof.model.predictor import Steady
from dlprof.model.work import Cell

MIN_CORES = 4.0
"""Ranks are alike: where fewer of them keep this many cores to themselves, in proportion, the
rest need no simulating. With fewer cores than that, how they take turns matters."""

_CROWDED = 3.0
"""With work for three times the cores, cores are idle for less than a hundredth of the time."""

_COUNTS = 0.1
_PROBE = 120
_MIN_RANKS = 2
_MIN_BATCHES = 60
"""Of one rank, whatever the number of ranks."""

_MANY = 8
"""The recursion draws so many times as many batches as are simulated. With 3 % of batches 15 times
as dear, 600 simulated ones alone are 3 to 7 % off (standard deviation, 4 to 32 workers) and
240 are 5 to 15 %; so corrected, 600 are within 2 %."""


def steady_rate(cell: Cell, deck: Deck, *, batches: int) -> Steady:
    """The rate of one rank once the pipeline has filled.

    Args:
        cell: What to predict.
        deck: Deals batches.
        batches: Measured over all ranks together; at least four rounds of ``W`` are in each.
            The luck of drawing so few is taken out by the recursion, which draws many more.
    """
    if cell.workers and _is_crowded(cell, deck):
        return Steady(batches_per_s=min(bounds(cell).values()))
    ranks = _ranks(cell)
    wanted = max(math.ceil(batches / ranks), 4 * cell.workers, _MIN_BATCHES)
    warm_up = max(1, cell.workers + min(cell.workers * cell.prefetch, wanted))
    network = _network(cell, deck, ranks, measured=wanted, warm_up=warm_up)
    network.clock.run()
    spans = [
        consumer.yields_s[warm_up + count - 1] - consumer.yields_s[warm_up - 1]
        for consumer, count in zip(network.consumers, network.counts, strict=True)
    ]
    # All spans together: a mean of rates would count those ranks more that happen to be fast.
    whole = math.fsum(spans)
    rate = sum(network.counts) / whole if whole > 0 else math.inf
    if cell.workers and math.isfinite(rate):
        rate /= luck(cell, deck, batches=wanted, ranks=ranks, many=_MANY * batches)
    unslowed = unslowed_rate(cell, deck, batches=batches) if cell.workers else rate
    return Steady(
        batches_per_s=rate,
        held_back=any(worker.idle_again for worker in network.workers),
        held_by_order=held_by_order(cell, unslowed),
    )


def _is_crowded(cell: Cell, deck: Deck) -> bool:
    """Whether there is so much more work than cores that all of them are busy all the time."""
    limit = cores_bound(cell)
    if min(rate for name, rate in bounds(cell).items() if name != "cores") < _CROWDED * limit:
        return False
    return unslowed_rate(cell, deck, batches=_PROBE) > _CROWDED * limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """All ranks on one clock; ``counts`` are the batches to measure in each."""

    clock: Clock
    consumers: Sequence[Consumer]
    workers: Sequence[Worker]
    counts: Sequence[int]


def _ranks(cell: Cell) -> int:
    """How many ranks are simulated; the cores are cut in proportion."""
    where = cell.conditions
    needed = math.ceil(MIN_CORES * where.ranks / where.cores)
    return min(where.ranks, max(_MIN_RANKS, needed))


def _network(
    cell: Cell,
    deck: Deck,
    ranks: int,
    *,
    measured: int,
    warm_up: int,
) -> _Network:
    where = cell.conditions
    share = ranks / where.ranks
    clock = Clock(
        where.cores * share,
        neighbours=where.neighbours * share,
        weight=1.0 if cell.workers else 1.0 + cell.work.helpers,
    )
    storage = _storage(cell, share)
    consumers: list[Consumer] = []
    workers: list[Worker] = []
    counts = []
    for rank in range(ranks):
        rows = deck.rows(cell.work, measured, rank)
        costs = Costs(
            **costs_of(rows, pinned=cell.work.pinned),
            turns=_turns(cell, rank),
            busy_s=cell.work.busy_s,
            steps=deck.steps(cell, len(rows), rank),
            step_cores=where.step_cores,
            step_cpu=where.step_cpu_s / where.speed,
            step_threads=where.step_threads,
            storage=storage,
        )
        # In-order batches come in bursts of W: whole rounds are measured.
        count = _whole_rounds(cell, len(rows))
        counts.append(count)
        if not cell.workers:
            consumers.append(LoadingConsumer(clock, costs, wanted=warm_up + count))
            continue
        mine = [Worker(clock, costs) for _ in range(cell.workers)]
        workers += mine
        consumers.append(_fed(cell, clock, costs, mine, wanted=warm_up + count))
    for consumer in consumers:
        consumer.ask()
    return _Network(clock=clock, consumers=consumers, workers=workers, counts=counts)


def _turns(cell: Cell, rank: int) -> Sequence[Sequence[float]]:
    """How a batch's computing and waiting fall on its turns.

    A batch of many samples computes and waits many times. Where one of the two hardly counts, it
    doesn't matter; else three times come within a hundredth of many. They differ from batch to
    batch and from rank to rank, or workers and ranks would go on in step for ever where all
    batches cost the same.
    """
    means = cell.work.means
    if min(means.cpu, means.io) <= _COUNTS * (means.cpu + means.io):
        return ((1.0,),)
    first = rank % len(_THREE_TURNS)
    return _THREE_TURNS[first:] + _THREE_TURNS[:first]


def _uneven(rng: random.Random, count: int) -> tuple[float, ...]:
    parts = [rng.uniform(0.5, 1.5) for _ in range(count)]
    return tuple(part / sum(parts) for part in parts)


_THREE_TURNS = tuple(_uneven(random.Random(kind), 3) for kind in range(17))


def _whole_rounds(cell: Cell, count: int) -> int:
    return count - count % max(1, cell.workers)


def _fed(
    cell: Cell,
    clock: Clock,
    costs: Costs,
    workers: Sequence[Worker],
    *,
    wanted: int,
) -> FedConsumer:
    consumer = FedConsumer(clock, costs, workers, wanted=wanted, in_order=cell.in_order)
    sink = PinThread(clock, costs, consumer) if cell.work.pinned else consumer
    for worker in workers:
        worker.connect(sink)
    consumer.prime(cell.workers * cell.prefetch)
    return consumer


def _storage(cell: Cell, share: float) -> Storage | None:
    limit, read = cell.conditions.storage_bytes_per_s, cell.work.read_bytes
    if limit is None or read <= 0:
        return None
    return Storage(batch_s=read / (limit * share))
