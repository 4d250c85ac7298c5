"""Predicting many configurations at once, each with its interval and its needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.model.bounds import Bound, binding, cpu_per_batch, own_cores
from dlprof.model.conditions import Conditions
from dlprof.model.interval import interval
from dlprof.model.maxplus import FAR_BELOW, Steady, drawn, steady_rate
from dlprof.model.resources import needs
from dlprof.model.work import Cell, Work, cell_of, work_of
from dlprof.records import Calibration, Config, Prediction

_ALL_UP_TO = 8
_GROWTH = 1.2

_LOADING: tuple[Bound, ...] = ("workers", "order", "cores")
"""Limits that hold back the loading of batches, so that it comes in rounds."""


def spread_workers(most: int) -> tuple[int, ...]:
    """The ``num_workers`` that are worth predicting: all up to 8, then even ones, ever fewer.

    >>> spread_workers(20)
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 18, 20)
    """
    values = set(range(min(_ALL_UP_TO, most) + 1))
    count = float(_ALL_UP_TO)
    while count < most:
        count = max(count + 2, count * _GROWTH)
        values.add(min(most, 2 * round(count / 2)))
    return tuple(sorted(values))


def predict_all(
    calibration: Calibration, configs: Sequence[Config], conditions: Conditions
) -> list[Prediction]:
    """Predict many configurations, sharing what they have in common.

    Args:
        calibration: What batches cost.
        configs: Canonical ones.
        conditions: Where they run.

    Returns:
        One prediction for each configuration, in their order. Equal questions get equal answers.

    Raises:
        ValueError: The calibration holds no batch or is for another batch size.
    """
    works: dict[tuple[object, ...], Work] = {}
    rates: dict[tuple[object, ...], Steady] = {}
    made = []
    for config in configs:
        kind = (config.num_workers > 0, config.batch_size)
        key = (*kind, config.pin_memory, config.sharing_strategy)
        if key not in works:
            works[key] = drawn(work_of(calibration, config, conditions))
        cell = cell_of(calibration, config, conditions, work=works[key])
        same = (*key, cell.workers, cell.prefetch, cell.in_order)
        if same not in rates:
            rates[same] = steady_rate(cell)
        made.append(_prediction(calibration, config, cell, rates[same]))
    return made


def _prediction(calibration: Calibration, config: Config, cell: Cell, steady: Steady) -> Prediction:
    needed, where, rate = needs(calibration, config), cell.conditions, steady.batches_per_s
    estimate, samples = interval(rate, calibration, cell), calibration.samples_per_batch
    bound = _bound(cell, steady)
    wait = max(0.0, 1.0 - rate * cell.whole_step_s)
    return Prediction(
        batches_per_s=estimate,
        samples_per_s=None if samples is None else estimate.times(samples),
        epoch_batches_per_s=_over_epochs(cell, rate, bound, needed.turnover_s),
        wait_fraction=wait if where.step_s or where.step_cpu_s else None,
        bound=bound,
        cores=rate * cpu_per_batch(cell) if math.isfinite(rate) else None,
        **dataclasses.asdict(needed),
    )


def _bound(cell: Cell, steady: Steady) -> Bound:
    """The lowest bound; where the rate stays far below even that, the reason for it."""
    name, limit = binding(cell)
    if name not in ("workers", "cores") or steady.batches_per_s >= FAR_BELOW * limit:
        return name
    if steady.held_by_order:
        return "order"
    return "cores" if cell.conditions.ranks * cell.workers > own_cores(cell) else name


def _over_epochs(cell: Cell, rate: float, bound: Bound, turnover_s: float | None) -> float | None:
    """Batches per second over whole epochs of ``Conditions.epoch_batches``.

    An epoch of ``n`` batches begins with a turnover of ``T``, in which the first one is loaded.
    With ``r = 1 / rate`` and a step ``S`` it takes ``n * r + T - (r - S)`` where main is the limit,
    which takes batches in one by one. Where loading is, ``k`` batches are loaded at once, each of
    which takes ``L`` alone: ``ceil(n / k) * k * r + T - L``, as the last round leaves workers idle.

    Args:
        cell: Whose rate it is.
        rate: Steady batches per second.
        bound: What limits it.
        turnover_s: From an epoch's last batch to the first of the next; ``None``, where nobody has
            timed one, is one that takes no longer than loading a batch.

    Returns:
        ``None`` where the length of an epoch is not known, or the rate has no limit.
    """
    count, means = cell.conditions.epoch_batches, cell.work.means
    if count is None or not 0 < rate < math.inf:
        return None
    loaded, first_s = count, max(0.0, 1.0 / rate - cell.whole_step_s)
    if cell.workers and bound in _LOADING:
        at_once = cell.workers
        if bound == "cores":
            each = math.floor(own_cores(cell) / cell.conditions.ranks)
            at_once = max(1, min(cell.workers, each))
        loaded, first_s = math.ceil(count / at_once) * at_once, means.cpu + means.io
    return count / (loaded / rate + max(0.0, (turnover_s or 0.0) - first_s))
