"""Rules by which others judge timings, as far as they decide "slower": for comparison only.

Each takes the wall seconds of equal work by the base and by the change. They are written from what
their makers document, reduced to the decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dlprof.stats.intervals import t_quantile

Rule = Callable[[Sequence[float], Sequence[float]], bool]


def mann_whitney_p(base: Sequence[float], change: Sequence[float]) -> float:
    """One-sided p of the change being slower, by the normal approximation with mid-ranks."""
    n, m = len(base), len(change)
    wins = sum((two > one) + (two == one) / 2 for one in base for two in change)
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return 1 - statistics.NormalDist().cdf((wins - n * m / 2 - 0.5) / spread)


def _ratio(base: Sequence[float], change: Sequence[float]) -> float:
    return statistics.fmean(change) / statistics.fmean(base)


def _student(base: Sequence[float], change: Sequence[float]) -> bool:
    """Whether Student's two-sample t says slower at 95 %, two-sided."""
    df = len(base) + len(change) - 2
    squares = statistics.variance(base) * (len(base) - 1)
    squares += statistics.variance(change) * (len(change) - 1)
    error = math.sqrt(squares / df * (1 / len(base) + 1 / len(change)))
    return statistics.fmean(change) - statistics.fmean(base) > t_quantile(0.975, df) * error


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mean more than 10 % up": lambda base, change: _ratio(base, change) > 1.10,
        "Mann-Whitney, p < 0.05": lambda base, change: mann_whitney_p(base, change) < 0.05,
        "t test at 95 % (pyperf)": _student,
        "t test and 2 % up (criterion-like)": lambda base, change: (
            _student(base, change) and _ratio(base, change) > 1.02
        ),
        "Mann-Whitney, p < 0.002, and 10 % up (asv)": lambda base, change: (
            mann_whitney_p(base, change) < 0.002
            and statistics.median(change) > 1.10 * statistics.median(base)
        ),
    }
)
"""By name."""
