"""Medians with intervals that assume nothing of the distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from dlprof.records import Estimate


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median of independent values with the interval of the sign test.

    The k-th value from either end, with the largest k for which the binomial distribution leaves at
    most ``1 - confidence`` outside. Six values are the fewest that allow 95 %; fewer have the whole
    range as their interval, and a single one has none.

    Args:
        values: At least one finite number.
        confidence: Probability that the interval covers the true median.

    Raises:
        ValueError: There is no value, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("the median of no values, or of ones that are not finite")
    ordered, count = sorted(values), len(values)
    middle = statistics.median(ordered)
    if count == 1:
        return Estimate(value=middle)
    outside, cut = 0.0, 0
    for below in range(count // 2):
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - confidence:
            break
        cut = below
    return Estimate(value=middle, low=ordered[cut], high=ordered[count - 1 - cut])
