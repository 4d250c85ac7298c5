"""How far off a prediction may be: the calibration's luck, and the model's own error."""

from __future__ import annotations

import dataclasses
import math

from dlprof.model.bounds import binding
from dlprof.model.work import Cell, Means, Work
from dlprof.records import Calibration, Estimate

MODEL_ERROR = 0.03
"""Standard deviation of the logarithm of predicted over measured rates that is not the
calibration's luck, on emulated cores (``benchmarks/emulated.py``, 416 runs, for which intervals of
this alone hold in 96 %)."""

EXTRAPOLATED_ERROR = 0.02
"""What adds to it where cores or ranks are not those of the calibration. Emulated cores are all
alike, and there such runs were foreseen as well as others; real ones are not."""

HANDSHAKE_ERROR = 0.12
"""Standard deviation of the logarithm of what handing batches over and taking them in costs, from
the few workers of a calibration to any number. Of real data sets those of tiny tensors, which cost
little else, are foreseen worst: off by 17 % in the median, others by 2 to 13 %
(``benchmarks/real_data.py``, each with the machine's own drift)."""

DOUBT_ERROR = 0.15
"""What adds to it for each doubt about the calibration: wide enough that no choice rests on it."""

RELATIVE_ERROR = 0.08
"""How far off the rates of two configurations may be from each other, as a standard deviation: on
real data sets predictions are off by 9 % in the median (``benchmarks/real_data.py``), on emulated
cores by 1 %, and what both have wrong alike cancels."""

_WIDEST_LOG = 3.0
_QUANTILE = 1.96
"""Of the normal distribution: 95 % lie within so many standard deviations."""


def interval(rate: float, calibration: Calibration, cell: Cell) -> Estimate:
    """The rate with its 95 % interval.

    Args:
        rate: Batches per second.
        calibration: Its luck and its doubts widen the interval.
        cell: Where it runs: other cores or ranks than those calibrated widen it too.
    """
    if not math.isfinite(rate):
        return Estimate(value=rate)
    beside = math.hypot(
        MODEL_ERROR,
        EXTRAPOLATED_ERROR if _is_elsewhere(calibration, cell) else 0.0,
        DOUBT_ERROR * len(calibration.doubts),
    )
    limit, work = binding(cell)[1], cell.work

    def half(far: float) -> float:
        error, drift = calibration.standard_error or 0.0, calibration.drift or 0.0
        luck = _moved(limit, cell, _loading(work, far * error))
        speed_error = far * cell.conditions.speed_error
        slower = _moved(limit, cell, _loading(work, speed_error, cpu_only=True))
        speed = max(_moved(limit, cell, _loading(work, far * drift)), slower)
        handshake = _moved(limit, cell, _handshake(work, far * HANDSHAKE_ERROR))
        return min(math.hypot(luck, speed, handshake, _QUANTILE * beside), _WIDEST_LOG)

    low, high = rate * math.exp(-half(_QUANTILE)), rate * math.exp(half(-_QUANTILE))
    return Estimate(value=rate, low=low, high=high)


def relative_error(calibration: Calibration) -> float:
    """How far off two rates predicted from one calibration may be from each other.

    Returns:
        Standard deviation of the logarithm of their ratio.
    """
    return math.hypot(RELATIVE_ERROR, *[DOUBT_ERROR] * len(calibration.doubts))


def _moved(limit: float, cell: Cell, means: Means) -> float:
    """How far the lowest bound moves where batches cost other than calibrated.

    Not at all while the step is the limit before and after; where it is at one of the two, by as
    much as loading is the limit.

    Args:
        limit: The lowest bound as calibrated.
        cell: As calibrated.
        means: What batches cost instead.

    Returns:
        The absolute value of the logarithm of the ratio of the bounds.
    """
    if math.isinf(limit) or means == cell.work.means:
        return 0.0
    work = dataclasses.replace(cell.work, means=means)
    return abs(math.log(binding(dataclasses.replace(cell, work=work))[1] / limit))


def _loading(work: Work, log: float, *, cpu_only: bool = False) -> Means:
    """All costs by a factor.

    Args:
        work: As calibrated.
        log: Logarithm of the factor.
        cpu_only: Cores are slower by that factor, and waiting is what it was.
    """
    factor, means = _factor(log), work.means
    wait = 1.0 if cpu_only else factor
    return Means(
        cpu=means.cpu * factor,
        io=means.io * wait,
        receive_cpu=means.receive_cpu * factor,
        receive_io=means.receive_io * wait,
        main_cpu=means.main_cpu * factor,
        pin=means.pin * factor,
    )


def _handshake(work: Work, log: float) -> Means:
    """What handing batches over and taking them in costs by a factor, and fetching as it is."""
    factor, means = _factor(log), work.means
    return dataclasses.replace(
        means,
        cpu=means.cpu + (factor - 1.0) * work.hand_over_s,
        receive_cpu=means.receive_cpu * factor,
        receive_io=means.receive_io * factor,
        main_cpu=means.main_cpu * factor,
    )


def _factor(log: float) -> float:
    return math.exp(max(-_WIDEST_LOG, min(log, _WIDEST_LOG)))


def _is_elsewhere(calibration: Calibration, cell: Cell) -> bool:
    where = cell.conditions
    known = calibration.available_cores
    other_cores = known is None or abs(where.cores - where.neighbours - known) > 0.25 * known
    return other_cores or where.ranks > 1 or where.speed != 1.0
