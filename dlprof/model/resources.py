"""What a configuration needs beside time on cores: memory, shared memory, descriptors, start-up.

And what plain trials tell of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dlprof.model.work import DEFAULT, fetch_s
from dlprof.records import Calibration, Config, Explanation, Trial


class Needs(NamedTuple):
    """What one rank needs, as in ``Prediction``; ``None`` where the calibration doesn't tell."""

    pss_bytes: float | None
    shm_bytes: float | None
    open_files: int | None
    startup_s: float | None
    turnover_s: float | None


def needs(calibration: Calibration, config: Config) -> Needs:
    """Predict what one rank needs in a configuration."""
    workers, tensors = config.num_workers, calibration.batch_tensors
    if not workers or config.sharing_strategy == "file_system":
        tensors = 0.0
    queued: float | None = 0.0
    if workers:
        batch = calibration.batch_bytes
        queued = None if batch is None else config.queued_batches * batch
    pss, worker = calibration.main_bytes, calibration.worker_bytes
    if workers and pss is not None:
        pss = None if worker is None or queued is None else pss + workers * worker + queued
    return Needs(
        pss_bytes=pss,
        shm_bytes=queued,
        open_files=None if tensors is None else config.open_files(tensors),
        startup_s=startup_s(calibration, config),
        turnover_s=turnover_s(calibration, config),
    )


def startup_s(calibration: Calibration, config: Config) -> float | None:
    """Seconds from ``iter`` to the first batch: the first worker's start, then each further one's.

    ``None`` where the start method was not calibrated, or only with one worker while more are
    asked for.
    """
    if not config.num_workers:
        return next(iter(calibration.startup_s.get("main", ())), None)
    costs = calibration.startup_s.get(config.start_method or DEFAULT, ())
    if not costs or (config.num_workers > 1 and len(costs) < 2):
        return None
    return costs[0] + sum(costs[1:2]) * (config.num_workers - 1)


def turnover_s(calibration: Calibration, config: Config) -> float | None:
    """Seconds from an epoch's last batch to the first of the next.

    Workers that don't persist start anew: that takes at least as long as starting them. Those that
    do have their first batch to load, which is all that is known where no such end was timed.
    """
    known = calibration.turnover_s
    if not config.num_workers:
        return known.get("main")
    if config.persistent_workers:
        costs = calibration.in_workers
        first_s = statistics.fmean(fetch_s(costs)) if costs is not None and costs.cpu_s else None
        return known.get("persistent", first_s)
    found = (known.get(config.start_method or DEFAULT), startup_s(calibration, config))
    return max((each for each in found if each is not None), default=None)


def memory_of(trials: Iterable[Trial]) -> tuple[float | None, float | None]:
    """Bytes of the main process, and of one more worker, queued batches left out.

    The line through the proportional set sizes over ``num_workers``, after full queues of
    ``W * P + 1`` batches have been taken off, or as much of them as was seen in shared memory.

    Returns:
        ``None`` for what the trials don't tell: a worker's share needs two values of
        ``num_workers``.
    """
    points = []
    for trial in trials:
        whole = trial.usage.pss_peak_bytes
        if trial.outcome != "completed" or whole is None:
            continue
        workers = trial.config.num_workers
        full = trial.config.queued_batches * (trial.batch_bytes or 0.0)
        queued = min(full, trial.usage.shm_peak_bytes or full)
        points.append((float(workers), whole - (queued if workers else 0.0)))
    if len({workers for workers, _ in points}) > 1:
        first, slope = _rising(points)
        return max(0.0, first), slope
    alone = [bytes_ for workers, bytes_ in points if not workers]
    return (statistics.fmean(alone) if alone else None), None


def startups_of(trials: Iterable[Trial]) -> dict[str, tuple[float, ...]]:
    """Seconds to start, by start method: the first worker, and each further one.

    The line through medians over ``num_workers``; with a single value of it, only the first where
    that is one worker. ``main`` is without workers.
    """
    groups: dict[str, dict[int, list[float]]] = {}
    for trial in trials:
        if trial.outcome == "completed" and trial.startup_s is not None:
            by_workers = groups.setdefault(_method(trial), {})
            by_workers.setdefault(trial.config.num_workers, []).append(trial.startup_s)
    lines = ((name, _line(by_workers)) for name, by_workers in groups.items())
    return {name: line for name, line in lines if line}


def turnovers_of(trials: Iterable[Trial]) -> dict[str, float]:
    """Seconds from an epoch's last batch to the next one's first: medians.

    By ``persistent`` and by start method; ``main`` is without workers.
    """
    groups: dict[str, list[float]] = {}
    for trial in trials:
        if trial.epoch_turnover_s is not None:
            name = "persistent" if trial.config.persistent_workers else _method(trial)
            groups.setdefault(name, []).append(trial.epoch_turnover_s)
    return {name: statistics.median(values) for name, values in groups.items()}


def growth_of(explanations: Iterable[Explanation]) -> float:
    """Bytes that a worker grows by, a batch: the median over workers; 0 for not at all."""
    slopes = [
        worker.pss_growth_bytes_per_batch
        for each in explanations
        for worker in each.workers
        if worker.pss_growth_bytes_per_batch is not None
    ]
    return max(0.0, statistics.median(slopes)) if slopes else 0.0


def _method(trial: Trial) -> str:
    if not trial.config.num_workers:
        return "main"
    return trial.config.start_method or DEFAULT


def _line(by_workers: Mapping[int, Sequence[float]]) -> tuple[float, ...]:
    points = [(float(w), statistics.median(values)) for w, values in sorted(by_workers.items())]
    if points[0][0] == 0:
        return (points[0][1],)
    if len(points) == 1:
        return (points[0][1],) if points[0][0] == 1 else ()
    first, slope = _rising(points)
    return (max(0.0, first + slope), slope)


def _rising(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Where a line through points begins, at 0, and how it rises.

    Level at their mean where it would fall: no worker takes less than nothing, and what differs
    is chance.
    """
    slope, first = statistics.linear_regression(*zip(*points, strict=True))
    return (first, slope) if slope >= 0 else (statistics.fmean(y for _, y in points), 0.0)
