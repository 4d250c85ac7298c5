"""How far off a prediction may be: the calibration's luck, and the model's own error."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence

from dlprof.model.bounds import binding
from dlprof.model.work import Cell, Means, Rows, Work
from dlprof.records import Calibration, Estimate
from dlprof.stats import t_quantile

MODEL_ERROR = {"closed": 0.12, "maxplus": 0.04, "simulation": 0.03}
"""Standard deviation of the logarithm of predicted over measured rates that is not the
calibration's luck, by method. Measured on emulated cores (``benchmarks/emulated.py``, 416 runs): in
all 0.091, 0.054 and 0.027, with the luck of both sides. With these figures 95 % intervals held for
97, 96 and 97 % of the runs."""

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

REPLICATES = 40
_LEAST_BLOCKS = 5
_WIDEST_LOG = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Resampled:
    """The same work with batches drawn anew, as another calibration might have seen them."""

    work: Work
    replicates: tuple[Work, ...]


def resampled(work: Work, *, count: int, seed: int) -> Resampled:
    """Draw batches anew by blocks, so that what lasts for several batches stays together.

    The moving-block bootstrap (Kuensch 1989) with blocks of about the cube root of the number of
    batches.

    Args:
        work: With the batches as calibrated, in their order.
        count: How often.
        seed: Of the draws.
    """
    rng = random.Random(seed)
    return Resampled(work, tuple(work.with_rows(_blocks(work.rows, rng)) for _ in range(count)))


def _blocks(rows: Rows, rng: random.Random) -> Rows:
    length = max(1, min(round(len(rows) ** (1 / 3)), len(rows) // _LEAST_BLOCKS))
    made: list[tuple[float, ...]] = []
    while len(made) < len(rows):
        start = rng.randrange(len(rows) - length + 1)
        made += rows[start : start + length]
    return tuple(made[: len(rows)])


def log_error(cell: Cell, drawn: Resampled) -> float:
    """Standard deviation of the logarithm of the rate over replicates, by the closed form.

    The closed form is wrong by the same factor in all replicates; what it answers to a change of
    the mean costs is what the others answer too.
    """
    rates = [binding(dataclasses.replace(cell, work=work))[1] for work in drawn.replicates]
    return spread_of(rates)


def spread_of(rates: Sequence[float]) -> float:
    """Standard deviation of the logarithm of rates; 0 of fewer than two."""
    logs = [math.log(rate) for rate in rates if 0 < rate < math.inf]
    return statistics.stdev(logs) if len(logs) > 1 else 0.0


def interval(
    rate: float, *, sampling: float, calibration: Calibration, cell: Cell, method: str
) -> Estimate:
    """The rate with its 95 % interval.

    Args:
        rate: Batches per second.
        sampling: Standard deviation of its logarithm that the luck of the calibration leaves.
        calibration: Its doubts widen the interval.
        cell: Where it runs: other cores or ranks than those calibrated widen it too.
        method: Whose prediction it is.
    """
    if not math.isfinite(rate):
        return Estimate(value=rate)
    quantile = t_quantile(0.975, max(2, len(cell.work.rows) - 1))
    beside = math.hypot(
        MODEL_ERROR.get(method, MODEL_ERROR["closed"]),
        EXTRAPOLATED_ERROR if _is_elsewhere(calibration, cell) else 0.0,
        DOUBT_ERROR * len(calibration.doubts),
    )

    limit, work = binding(cell)[1], cell.work

    def half(far: float) -> float:
        error, drift = calibration.standard_error or 0.0, calibration.drift or 0.0
        speed_error = far * cell.conditions.speed_error
        luck = max(quantile * sampling, _moved(limit, cell, _loading(work, far * error)))
        slower = _moved(limit, cell, _loading(work, speed_error, cpu_only=True))
        speed = max(_moved(limit, cell, _loading(work, far * drift)), slower)
        handshake = _moved(limit, cell, _handshake(work, far * HANDSHAKE_ERROR))
        return min(math.hypot(luck, speed, handshake, quantile * beside), _WIDEST_LOG)

    low, high = rate * math.exp(-half(quantile)), rate * math.exp(half(-quantile))
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
