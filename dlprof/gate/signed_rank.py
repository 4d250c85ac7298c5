"""The interval of Wilcoxon's signed-rank test, exactly: no table and no normal approximation.

For ``n`` differences that are symmetric about a shift, the number of Walsh averages (means of all
pairs, each with itself among them) below that shift is distributed as the statistic ``W+``, so that
order statistics of the Walsh averages bound the shift (Hollander, Wolfe & Chicken, Nonparametric
Statistical Methods, section 3.3). With ties the bounds err with ``alpha`` at most.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

MOST_DIFFERENCES = 200
"""Beyond this many an exact distribution is no longer quick, and nobody measures so many quads."""


@functools.cache
def distribution(n: int) -> tuple[int, ...]:
    """In how many of the ``2**n`` choices of signs ``W+`` takes each value from 0 on."""
    if not 0 <= n <= MOST_DIFFERENCES:
        raise ValueError(f"{n} differences are not from 0 to {MOST_DIFFERENCES}")
    counts = [1]
    for rank in range(1, n + 1):
        longer = counts + [0] * rank
        for value, count in enumerate(counts):
            longer[value + rank] += count
        counts = longer
    return tuple(counts)


@functools.cache
def critical_value(n: int, alpha: float) -> int:
    """``max{k: P(W+ <= k) <= alpha}``; -1 where even ``W+ = 0`` is likelier than that."""
    allowed = Fraction(alpha) * 2**n
    below = 0
    for k, count in enumerate(distribution(n)):
        below += count
        if below > allowed:
            return k - 1
    return n * (n + 1) // 2


def least_differences(alpha: float) -> int:
    """The fewest differences that can decide anything at ``alpha``: ``2**-n <= alpha``."""
    n = max(1, math.ceil(-math.log2(alpha)))
    return n if critical_value(n, alpha) >= 0 else n + 1


class Shift(NamedTuple):
    """Where the middle of the differences lies."""

    estimate: float  # median of the Walsh averages (Hodges and Lehmann's estimate)
    low: float
    """The shift is above this, but for a probability of ``alpha``; ``-inf`` where there are too few
    differences to say."""
    high: float  # the shift is below this, likewise; ``inf`` likewise


def shift_interval(
    differences: Sequence[float], alpha: float, alpha_high: float | None = None
) -> Shift:
    """The shift of symmetric differences with one-sided bounds that err with ``alpha`` each.

    Args:
        differences: Finite numbers whose sums are finite, at least one.
        alpha: Above 0, at most 0.5.
        alpha_high: What the upper bound errs with; ``alpha`` if not given.
    """
    if not differences or not all(map(math.isfinite, differences)):
        raise ValueError("a shift of no differences, or of some that are not finite")
    averages = sorted(
        (one + other) / 2
        for place, one in enumerate(differences)
        for other in differences[: place + 1]
    )
    size = len(averages)
    k = critical_value(len(differences), alpha)
    k_high = k if alpha_high is None else critical_value(len(differences), alpha_high)
    return Shift(
        estimate=(averages[(size - 1) // 2] + averages[size // 2]) / 2,
        low=averages[k] if k >= 0 else -math.inf,
        high=averages[size - 1 - k_high] if k_high >= 0 else math.inf,
    )
