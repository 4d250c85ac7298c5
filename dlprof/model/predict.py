"""Predicting many configurations at once, each with its needs, and how far off it may be."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dlprof.model.bounds import Bound, binding, cell_of, cpu_per_batch, own_cores
from dlprof.model.maxplus import FAR_BELOW, Steady, drawn, steady_rate
from dlprof.model.work import DEFAULT, Cell, Conditions, Means, Work, fetch_s, work_of
from dlprof.records import (
    PIPE_BYTES,
    Calibration,
    Config,
    Estimate,
    PredictedCell,
    Prediction,
    Target,
    WorkerStart,
)
from dlprof.records.findings import StartPhaseName

MODEL_ERROR = 0.03
"""Standard deviation of the logarithm of predicted over measured rates that is not the
calibration's luck. On emulated cores (``benchmarks/emulated.py``, 416 runs) predictions are off by
0.9 % in the median, and intervals of this alone hold in 91 %."""

EXTRAPOLATED_ERROR = 0.02
"""What adds to it where cores or ranks are not those of the calibration. Emulated cores are all
alike, and there such runs were predicted as well as others; real ones are not."""

HANDSHAKE_ERROR = 0.12
"""Standard deviation of the logarithm of what handing batches over and taking them in costs, from
the few workers of a calibration to any number. Of real datasets those of tiny tensors, which cost
little else, are predicted worst: off by 20 % in the median, others by 2 to 17 %
(``benchmarks/real_data.py``, each with the machine's own drift)."""

DOUBT_ERROR = 0.15
"""What adds to it for each doubt about the calibration: wide enough that no choice rests on it."""

RELATIVE_ERROR = 0.08
"""How far off the rates of two configurations may be from each other, as a standard deviation: on
real datasets predictions are off by 8 % in the median (``benchmarks/real_data.py``), on emulated
cores by 1 %, and what both have wrong alike cancels."""

_WIDEST_LOG = 3.0
_ALL = Means(cpu=1.0, io=1.0, receive_cpu=1.0, receive_io=1.0, main_cpu=1.0, pin=1.0)
_COMPUTING = Means(cpu=1.0, io=0.0, receive_cpu=1.0, main_cpu=1.0, pin=1.0)
"""What of each cost follows the speed of the cores; waiting is what it was."""


def spread_workers(most: int) -> tuple[int, ...]:
    """The ``num_workers`` that are worth predicting: all up to 8, then even ones, ever fewer.

    >>> spread_workers(20)
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 18, 20)
    """
    values, count = set(range(min(8, most) + 1)), 8.0
    while count < most:
        count = max(count + 2, count * 1.2)
        values.add(min(most, 2 * round(count / 2)))
    return tuple(sorted(values))


def predict_all(
    calibration: Calibration, configs: Sequence[Config], conditions: Conditions
) -> list[Prediction]:
    """Predict many configurations, canonical ones, each in its place; equal ones get equal answers.

    Raises:
        ValueError: The calibration holds no batch or is for another batch size.
    """
    works: dict[tuple[object, ...], Work] = {}
    rates: dict[tuple[object, ...], tuple[Steady, Estimate, float]] = {}
    alone = dataclasses.replace(conditions, neighbours=0.0, fair_cores=None)
    made = []
    for config in configs:
        kind = (config.num_workers > 0, config.batch_size)
        key = (*kind, config.pin_memory, config.sharing_strategy)
        if key not in works:
            works[key] = drawn(work_of(calibration, config, conditions))
        cell = cell_of(calibration, config, conditions, work=works[key])
        same = (*key, cell.workers, cell.prefetch, cell.in_order)
        if same not in rates:
            steady = steady_rate(cell)
            taken_log = 0.0
            if conditions.neighbours and steady.batches_per_s > 0:
                free = steady_rate(cell_of(calibration, config, alone, work=works[key]))
                taken_log = max(0.0, math.log(free.batches_per_s / steady.batches_per_s))
            of_it = interval(steady.batches_per_s, calibration, cell, steady.lost_log)
            rates[same] = steady, of_it, taken_log
        made.append(_prediction(calibration, config, cell, *rates[same]))
    return made


def cells_of(models: Mapping[Config, Prediction]) -> tuple[PredictedCell, ...]:
    """Predictions as a sweep keeps them, each beside the fastest."""
    speeds = [each.epoch_batches_per_s or each.batches_per_s.value for each in models.values()]
    best, found = max(speeds, default=0.0), []
    for (config, each), speed in zip(models.items(), speeds, strict=True):
        over = each.steady.value * speed / each.batches_per_s.value
        found.append(
            PredictedCell(
                config=config,
                samples_per_s=each.steady,
                speed=speed / best,
                bound=each.bound,
                epoch_samples_per_s=None if each.epoch_batches_per_s is None else over,
                taken_log=each.taken_log,
            )
        )
    return tuple(found)


def _prediction(
    calibration: Calibration,
    config: Config,
    cell: Cell,
    steady: Steady,
    estimate: Estimate,
    taken_log: float,
) -> Prediction:
    needed, where, rate = needs(calibration, config), cell.conditions, steady.batches_per_s
    samples = calibration.samples_per_batch
    bound, limit = binding(cell)
    if rate < FAR_BELOW * limit:  # there is another reason
        # What a batch mostly waits for is no core, however much longer computing takes it.
        waits = cell.workers <= 2 * cell.work.means.io * rate
        crowded = where.ranks * cell.workers > own_cores(cell) and not waits
        if bound in ("workers", "cores"):
            bound = steady.held_by or ("cores" if crowded else bound)
        elif steady.held_by == "barrier":
            bound = "barrier"
    wait = max(0.0, 1.0 - rate * cell.whole_step_s)
    over = _over_epochs(cell, rate, bound, needed.turnover_s)
    if where.keeping is not None:
        over = _over_training(cell, config, where.keeping, over or rate)
    return Prediction(
        batches_per_s=estimate,
        samples_per_s=None if samples is None else estimate.times(samples),
        epoch_batches_per_s=over,
        wait_fraction=wait if where.step_s or where.step_cpu_s else None,
        bound=bound,
        cores=rate * cpu_per_batch(cell) if math.isfinite(rate) else None,
        taken_log=taken_log,
        **needed._asdict(),
    )


class Needs(NamedTuple):
    """What one rank needs, as in ``Prediction``; ``None`` where the calibration doesn't say."""

    pss_bytes: float | None
    shm_bytes: float | None
    open_files: int | None
    startup_s: float | None
    turnover_s: float | None


def needs(calibration: Calibration, config: Config) -> Needs:
    """Predict what one rank needs in a configuration.

    Starting is that of the first worker, then of each further one. Workers that don't persist start
    again between epochs, which takes at least as long as starting them; those that do have their
    first batch to load, which is all that is known where no such end was timed.
    """
    workers, tensors = config.num_workers, calibration.batch_tensors
    pss, starts, turnovers = calibration.main_bytes, calibration.startup_s, calibration.turnover_s
    if not workers:
        return Needs(
            pss_bytes=pss,
            shm_bytes=0.0,
            open_files=config.open_files(0.0),
            startup_s=next(iter(starts.get("main", ())), None),
            turnover_s=turnovers.get("main"),
        )
    batch, worker = calibration.batch_bytes, calibration.worker_bytes
    queued = config.queued_bytes(batch)
    if pss is not None:
        pss = None if worker is None or queued is None else pss + workers * worker + queued
    if config.sharing_strategy == "file_system":
        tensors = 0.0
    method = config.start_method or DEFAULT
    costs, start_s = starts.get(method, ()), None
    if costs and (workers == 1 or len(costs) > 1):  # else only the first one's start is known
        start_s = costs[0] + sum(costs[1:2]) * (workers - 1)
    if config.persistent_workers:
        fed = calibration.in_workers
        first_s = statistics.fmean(fetch_s(fed)) if fed is not None and fed.cpu_s else None
        turnover_s = turnovers.get("persistent", first_s)
    else:
        ends = (turnovers.get(method), start_s)
        turnover_s = max((each for each in ends if each is not None), default=None)
    return Needs(
        pss_bytes=pss,
        shm_bytes=queued,
        open_files=None if tensors is None else config.open_files(tensors),
        startup_s=start_s,
        turnover_s=turnover_s,
    )


def _over_epochs(cell: Cell, rate: float, bound: Bound, turnover_s: float | None) -> float | None:
    """Batches per second over whole epochs of ``Conditions.epoch_batches``.

    An epoch of ``n`` batches begins with a turnover of ``T``, in which the first one is loaded.
    With ``r = 1 / rate`` and a step ``S`` it takes ``n * r + T - (r - S)`` where main is the limit,
    which takes batches in one by one. Where loading is, ``k`` batches are loaded at once, each of
    which takes ``L`` alone: ``ceil(n / k) * k * r + T - L``, as the last round leaves workers idle.
    A turnover that nobody has timed is taken to last no longer than loading a batch. Where some
    workers have one shard more, these load the last shards alone.

    ``None`` where neither an epoch's length nor that is known, or the rate has no limit.
    """
    where, means, longer = cell.conditions, cell.work.means, 1.0
    count, shards, loads_s = where.epoch_batches, where.shards or 0, means.cpu + means.io
    if not 0 < rate < math.inf:
        return None
    if 0 < cell.workers < shards and (last := shards % cell.workers):
        longer += max(0.0, rate * loads_s - last) / shards
    if count is None:
        return rate / longer if longer > 1 else None
    loaded, first_s = longer * count, max(0.0, 1.0 / rate - cell.whole_step_s)
    # What holds back the loading of batches has it come in rounds.
    if cell.workers and bound in {"workers", "storage", "lock", "order", "cores"}:
        at_once, first_s = cell.workers, loads_s
        if bound == "cores":
            each = math.floor(own_cores(cell) / where.ranks)
            at_once = max(1, min(cell.workers, each))
        loaded = max(loaded, math.ceil(count / at_once) * at_once)
    return count / (loaded / rate + max(0.0, (turnover_s or 0.0) - first_s))


def _over_training(cell: Cell, config: Config, target: Target, first: float) -> float:
    """Batches per second over ten epochs, of a dataset that each process keeps samples of.

    ``first`` is that of an epoch in which all are loaded.
    """
    kept = dataclasses.replace(cell, work=cell.work.kept(target.kept_cost))
    rate = steady_rate(kept).batches_per_s
    rate = _over_epochs(kept, rate, binding(kept)[0], None) or rate
    return 10 * first / target.ten_epochs(config, cell.conditions.ranks, min(1.0, first / rate))


def interval(rate: float, calibration: Calibration, cell: Cell, lost_log: float = 0.0) -> Estimate:
    """The rate with its 95 % interval: wider on cores or with ranks that were not calibrated.

    What is lost at a barrier (``lost_log``) rests on the few slowest of the batches that were
    traced: its standard error is taken as half of it.
    """
    if not math.isfinite(rate):
        return Estimate(value=rate)
    quantile = 1.96  # of the normal distribution, for 95 %
    where, known = cell.conditions, calibration.available_cores
    other_cores = known is None or abs(own_cores(cell) - known) > 0.25 * known
    elsewhere = other_cores or where.ranks > 1 or where.speed != 1.0
    beside = math.hypot(
        MODEL_ERROR,
        EXTRAPOLATED_ERROR if elsewhere else 0.0,
        *[DOUBT_ERROR] * len(calibration.doubts),
        # Few workers show how long many wait for each other.
        DOUBT_ERROR if calibration.queueing_s or calibration.lock_s else 0.0,
        lost_log / 2,
    )
    limit, work = binding(cell)[1], cell.work
    handing = work.hand_over_s / work.means.cpu if work.means.cpu > 0 else 0.0
    handshake = Means(cpu=handing, io=0.0, receive_cpu=1.0, receive_io=1.0, main_cpu=1.0)

    def half(far: float) -> float:
        own, drift = calibration.main_standard_error, calibration.drift or 0.0
        error = calibration.standard_error if cell.workers or own is None else own
        luck = _moved(limit, cell, far * (error or 0.0), _ALL)
        slower = _moved(limit, cell, far * where.speed_error, _COMPUTING)
        speed = max(_moved(limit, cell, far * drift, _ALL), slower)
        handing_over = _moved(limit, cell, far * HANDSHAKE_ERROR, handshake)
        return min(math.hypot(luck, speed, handing_over, quantile * beside), _WIDEST_LOG)

    low, high = rate * math.exp(-half(quantile)), rate * math.exp(half(-quantile))
    return Estimate(value=rate, low=low, high=high)


def relative_error(calibration: Calibration) -> float:
    """Standard deviation of the log ratio of two rates predicted from one calibration."""
    return math.hypot(RELATIVE_ERROR, *[DOUBT_ERROR] * len(calibration.doubts))


def _moved(limit: float, cell: Cell, log: float, shares: Means) -> float:
    """How far the lowest bound moves where batches cost ``exp(log)`` times what was calibrated.

    As the absolute value of the logarithm of their ratio. Not at all while the step is the limit
    before and after; where it is at one of the two, by as much as loading is the limit.
    """
    if math.isinf(limit) or not log:
        return 0.0
    more = math.exp(max(-_WIDEST_LOG, min(log, _WIDEST_LOG))) - 1
    costs = zip(cell.work.means, shares, strict=True)
    means = Means(*(cost * (1 + more * share) for cost, share in costs))
    work = dataclasses.replace(cell.work, means=means)
    return abs(math.log(binding(dataclasses.replace(cell, work=work))[1] / limit))


class _Need(NamedTuple):
    """What a process needs to go on: seconds, of a core where it computes, or a word of another."""

    seconds: float = 0.0
    computes: bool = False
    word: str = ""


_Life = Iterator[_Need]


def first_batch_s(start: WorkerStart, workers: int, *, cores: float) -> float:
    """Seconds from ``iter(loader)`` to the first batch, from the start of one worker.

    torch starts its workers one after the other and hands out indices when all are started, so that
    the first batch, which is the first worker's, waits for the start of the last. Meanwhile the
    workers compete for the cores: each of them imports and unpickles for itself. What is pickled
    goes through a pipe; where it is larger than that holds, main can't go on before the worker has
    read it.
    """
    # Of more workers than are gone through one by one, each further one takes as long.
    count, now_s, said = min(workers, 512), 0.0, set[str]()
    nothing_s = 1e-12
    needs: dict[_Life, _Need | None] = {}  # of each process; none once it has ended
    main = _main(start, count, said, needs)
    needs[main] = _Need()
    while True:
        went = True
        while went:  # through what lasts no time, by which others may go on
            went = False
            for life in [*needs]:
                while (
                    (need := needs[life]) is not None
                    and need.seconds <= nothing_s
                    and (not need.word or need.word in said)
                ):
                    needs[life], went = next(life, None), True
        timed = {life: n for life, n in needs.items() if n and n.seconds > nothing_s}
        if not needs[main] or not timed:
            return now_s * workers / count
        busy = sum(need.computes for need in timed.values())
        pace = min(1.0, max(cores, 0.01) / busy) if busy else 1.0
        step_s = min(need.seconds / (pace if need.computes else 1.0) for need in timed.values())
        now_s += step_s
        for life, need in timed.items():
            spent_s = step_s * (pace if need.computes else 1.0)
            needs[life] = need._replace(seconds=need.seconds - spent_s)


def _main(
    start: WorkerStart, count: int, said: set[str], needs: dict[_Life, _Need | None]
) -> _Life:
    """Start all, then ask all, then wait for the first."""
    yield from _lasting(start, "server")
    for number in range(count):
        yield from _lasting(start, "create")
        needs[_worker(start, number, said)] = _Need()
        if start.sent_bytes > PIPE_BYTES:
            yield _Need(word=f"read {number}")
    said.add("asked")
    yield _Need(word="made 0")


def _worker(start: WorkerStart, number: int, said: set[str]) -> _Life:
    yield from _lasting(start, "process", "imports", "unpickle")
    said.add(f"read {number}")
    yield from _lasting(start, "init")
    yield _Need(word="asked")
    for _ in range(2):  # batches that it is asked for at once (torch's ``prefetch_factor``)
        yield from _lasting(start, "fetch")
        said.add(f"made {number}")


def _lasting(start: WorkerStart, *names: StartPhaseName) -> _Life:
    for phase in map(start.phase, names):
        yield _Need(phase.cpu_s, computes=True)
        yield _Need(phase.wall_s - phase.cpu_s)
