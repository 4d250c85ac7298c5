"""Rates over whole epochs, from those within one."""

from __future__ import annotations

import math

from dlprof.model.bounds import Bound, own_cores
from dlprof.model.work import Cell

_LOADING: tuple[Bound, ...] = ("workers", "order", "cores")
"""Limits that hold back the loading of batches, so that it comes in rounds."""


def over_epochs(cell: Cell, rate: float, bound: Bound, turnover_s: float | None) -> float | None:
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
    count = cell.conditions.epoch_batches
    if count is None or not 0 < rate < math.inf:
        return None
    period_s, means = 1.0 / rate, cell.work.means
    if cell.workers and bound in _LOADING:
        at_once = _at_once(cell, bound)
        loaded, first_s = math.ceil(count / at_once) * at_once, means.cpu + means.io
    else:
        loaded, first_s = count, max(0.0, period_s - cell.whole_step_s)
    return count / (loaded * period_s + max(0.0, (turnover_s or 0.0) - first_s))


def _at_once(cell: Cell, bound: Bound) -> int:
    """Batches that are loaded at the same time."""
    if bound != "cores":
        return cell.workers
    return max(1, min(cell.workers, math.floor(own_cores(cell) / cell.conditions.ranks)))
