"""Student's t distribution, intervals of means and of medians, and medians of what is known."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Sequence

from dlprof.records import Config, Estimate, Trial, undisturbed


@functools.cache
def t_quantile(p: float, df: float) -> float:
    """The quantile of Student's t distribution.

    The upper tail is ``I_x(df / 2, 1 / 2) / 2`` at ``x = df / (df + t * t)``, with the
    regularised incomplete beta function ``I`` (Abramowitz & Stegun 26.7.1); it is inverted by
    bisection.

    It is right to a relative 1e-9 or better. Degrees of freedom need not be whole, and may be
    infinite.

    Raises:
        ValueError: One of them is out of range.
    """
    if not 0 < p < 1:
        raise ValueError(f"a probability lies between 0 and 1, not {p}")
    if not df > 0:
        raise ValueError(f"degrees of freedom are positive, not {df}")
    tail = min(p, 1 - p)
    sign = -1.0 if p < 0.5 else 1.0
    # Degrees of freedom from which two terms of the normal expansion are exact to 1e-12.
    if df >= 1e6:
        z = -statistics.NormalDist().inv_cdf(tail)
        return sign * (z + (z**3 + z) / (4 * df))
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return sign * high if tail < 0.5 else 0.0


def t_tail(t: float, df: float) -> float:
    """``P(T > t)`` of Student's t distribution; ``df`` may be infinite."""
    if t < 0:
        return 1 - t_tail(-t, df)
    if math.isinf(df):
        return math.erfc(t / math.sqrt(2)) / 2
    square = t * t
    return _incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square)) / 2


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function ``I_x(a, b)``.

    By the continued fraction ``1 + d1 / (1 + d2 / (1 + ...))`` of Abramowitz & Stegun 26.5.8, front
    to back by the modified Lentz method: it converges within a few times ``sqrt(max(a, b))`` steps.
    ``rest`` is ``1 - x``, passed in because the difference would lose digits near 1.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, rest, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    value = math.exp(a * math.log(x) + b * math.log(rest) - log_beta) / a
    tiny, upper, lower, change, step = 1e-300, 1.0, 0.0, 0.0, 0
    while abs(change - 1.0) > 1e-15 and step < 100_000:
        step += 1
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1.0 / (1.0 + term * lower or tiny)
        upper = 1.0 + term / upper or tiny
        change = upper * lower
        value /= change
    return value


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values with its interval by Student's t, ``mean ± t * s / sqrt(n)``.

    A single value says nothing of its own spread: then ``low`` and ``high`` are ``None``.

    Raises:
        ValueError: If there is no value, or one is not finite.
    """
    if not values:
        raise ValueError("the mean of no values")
    mean = math.fsum(values) / len(values)
    if not math.isfinite(mean):
        raise ValueError("the mean of values that are not finite")
    if len(values) == 1:
        return Estimate(value=mean)
    error = statistics.stdev(values, mean) / math.sqrt(len(values))
    half = t_quantile(0.975, len(values) - 1) * error
    return Estimate(value=mean, low=mean - half, high=mean + half)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """The ratio of two means of paired values with its interval.

    By the residuals ``over - ratio * under`` (the delta method) and Student's t: what moves both
    values of a pair alike, as a machine that gets slower does, leaves the interval narrow. A single
    pair has none.

    Raises:
        ValueError: There is no pair, one is not whole, or the ratio isn't finite.
    """
    if not over or len(over) != len(under):
        raise ValueError("a ratio needs pairs")
    below = math.fsum(under) / len(under)
    if not below > 0:
        raise ValueError("a ratio to what is not positive")
    ratio = math.fsum(over) / math.fsum(under)
    residuals = [one - ratio * other for one, other in zip(over, under, strict=True)]
    spread = mean_interval(residuals)
    if spread.low is None or spread.high is None:
        return Estimate(value=ratio)
    half = (spread.high - spread.low) / 2 / below
    return Estimate(value=ratio, low=ratio - half, high=ratio + half)


def median_interval(values: Sequence[float]) -> Estimate:
    """The median of independent values with the interval of the sign test.

    The k-th value from either end, with the largest k for which the binomial distribution leaves at
    most 5 % outside. Six values are the fewest that allow 95 %; fewer have no interval.

    Raises:
        ValueError: There is no value, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("the median of no values, or of ones that are not finite")
    ordered, count = sorted(values), len(values)
    outside, found = 0.0, Estimate(value=statistics.median(ordered))
    for cut in range(count // 2):
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 1 - 0.95:
            break
        found = dataclasses.replace(found, low=ordered[cut], high=ordered[count - 1 - cut])
    return found


def typical(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; ``None`` where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def turnovers(trials: Iterable[Trial]) -> dict[Config, float]:
    """Seconds from an epoch to the next, by ``Config.turnover_group``: the median of its trials.

    Of undisturbed ones, if any: beside others a restart takes several times as long. Workers that
    don't persist start again at each epoch: where no turnover was timed, starting them stands for
    it.
    """
    timed: dict[Config, list[Trial]] = {}
    started: dict[Config, list[Trial]] = {}
    for trial in trials:
        group = trial.config.turnover_group
        if trial.epoch_turnover_s is not None:
            timed.setdefault(group, []).append(trial)
        elif trial.startup_s is not None and not trial.config.persistent_workers:
            started.setdefault(group, []).append(trial)
    found: dict[Config, float] = {}
    for group, some in (started | timed).items():
        quiet = undisturbed(some)
        turns = typical(each.epoch_turnover_s for each in quiet)
        starts = typical(each.startup_s for each in quiet)
        found[group] = (starts or 0.0) if turns is None else turns
    return found
