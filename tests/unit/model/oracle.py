"""The discrete-event simulation: an oracle for the predictor, which it shares no code with.

Every batch on its way through workers, queue and main process, on cores that all share. It takes
some milliseconds a configuration.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from model_calibrations import conditions
from oracle_clock import Clock
from oracle_consumer import Barrier, Consumer, FedConsumer, LoadingConsumer
from oracle_network import Costs, PinThread, Storage, Worker, costs_of

from dlprof.model.bounds import cell_of
from dlprof.model.work import Cell, Rows
from dlprof.records import Calibration, Config

MIN_CORES = 4.0
"""Ranks are alike: where fewer of them keep this many cores to themselves, in proportion, the
rest need no simulating. With fewer cores than that, how they take turns matters."""

_COUNTS = 0.1
_MIN_RANKS = 2


def simulated(
    calibration: Calibration, config: Config, *, batches: float = 1200, **where: Any
) -> float:
    """Batches per second of one rank on eight cores, unless ``where`` says otherwise."""
    return steady_rate(cell_of(calibration, config, conditions(**where)), batches=batches)


def steady_rate(cell: Cell, *, batches: float) -> float:
    """The rate of one rank once the pipeline has filled.

    Args:
        cell: What to predict.
        batches: Measured in each rank; at least four rounds of ``W`` are.
    """
    ranks = _ranks(cell)
    wanted = max(round(batches), 4 * cell.workers)
    warm_up = max(1, cell.workers + min(cell.workers * cell.prefetch, wanted))
    network = _network(cell, ranks, measured=wanted, warm_up=warm_up)
    network.clock.run()
    spans = [
        consumer.yields_s[warm_up + count - 1] - consumer.yields_s[warm_up - 1]
        for consumer, count in zip(network.consumers, network.counts, strict=True)
    ]
    # All spans together: a mean of rates would count those ranks more that happen to be fast.
    whole = math.fsum(spans)
    return sum(network.counts) / whole if whole > 0 else math.inf


def _rows(rows: Rows, count: int, seed: int) -> Rows:
    """So many rows or a few more, each equally often, in random order.

    The first rank takes rows as they come where there are enough: those that are predicted from.
    """
    if len(rows) >= count and not seed:
        return rows
    rng = random.Random(seed)
    made: list[tuple[float, ...]] = []
    while len(made) < count:
        made += rng.sample(rows, len(rows))
    return tuple(made)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """All ranks on one clock; ``counts`` are the batches to measure in each."""

    clock: Clock
    consumers: Sequence[Consumer]
    counts: Sequence[int]


def _ranks(cell: Cell) -> int:
    """How many ranks are simulated; the cores are cut in proportion."""
    where = cell.conditions
    if where.barrier_nodes:  # all of one node
        return where.ranks
    needed = math.ceil(MIN_CORES * where.ranks / where.cores)
    return min(where.ranks, max(_MIN_RANKS, needed))


def _network(cell: Cell, ranks: int, *, measured: int, warm_up: int) -> _Network:
    where = cell.conditions
    share = ranks / where.ranks
    clock = Clock(
        where.cores * share,
        neighbours=where.neighbours * share,
        weight=1.0 if cell.workers else 1.0 + cell.work.helpers,
    )
    storage = _storage(cell, share)
    consumers: list[Consumer] = []
    counts = []
    for rank in range(ranks):
        rows = _rows(cell.work.rows, measured, rank)
        costs = Costs(
            **costs_of(rows, pinned=cell.work.pinned),
            turns=_turns(cell, rank),
            busy_s=cell.work.busy_s,
            step_s=cell.step_s,
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
        consumers.append(_fed(cell, clock, costs, mine, wanted=warm_up + count))
    if where.barrier_nodes:
        barrier = Barrier(ranks)
        for consumer in consumers:
            consumer.join(barrier)
    for consumer in consumers:
        consumer.ask()
    return _Network(clock=clock, consumers=consumers, counts=counts)


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
