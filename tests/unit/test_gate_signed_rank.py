"""The exact test: its quantiles, its bounds, and how often they err."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlprof.gate.plan import LOOKS, looks_for
from dlprof.gate.signed_rank import (
    critical_value,
    distribution,
    least_differences,
    shift_interval,
)

DIFFERENCES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=24)
ALPHAS = st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.25])


@pytest.mark.parametrize("n", range(11))
def test_the_distribution_is_that_of_all_choices_of_signs(n: int) -> None:
    found = Counter(
        sum(rank for rank, positive in enumerate(signs, 1) if positive)
        for signs in itertools.product((False, True), repeat=n)
    )
    assert distribution(n) == tuple(found[value] for value in range(n * (n + 1) // 2 + 1))


@pytest.mark.parametrize(
    ("n", "statistic", "expected"),
    [
        (10, 10, 0.0419921875),
        (20, 26, 0.0009927749633789062),
        (36, 141, 0.0009795586811378598),
        (50, 400, 0.010611835818424176),
        (90, 1500, 0.01362565171850705),
    ],
)
def test_the_distribution_agrees_with_scipy(n: int, statistic: int, expected: float) -> None:
    """With ``scipy.stats.wilcoxon(…, alternative="less", method="exact")`` of SciPy 1.17.1."""
    below = sum(distribution(n)[: statistic + 1])
    assert below / 2**n == pytest.approx(expected, rel=1e-9)


def test_the_critical_values_of_the_rule() -> None:
    assert [critical_value(n, 0.001) for n in (10, 14, 20, 28, 36)] == [0, 6, 26, 71, 141]


@pytest.mark.parametrize("n", [1, 5, 9, 10, 14, 36])
@pytest.mark.parametrize("alpha", [0.0001, 0.001, 0.01, 0.05])
def test_a_critical_value_is_the_largest_that_keeps_alpha(n: int, alpha: float) -> None:
    k = critical_value(n, alpha)
    below = list(itertools.accumulate(distribution(n)))
    assert k < 0 or below[k] <= alpha * 2**n
    assert below[k + 1] > alpha * 2**n


@pytest.mark.parametrize("alpha", [0.5, 0.25, 0.01, 0.001, 0.0005, 2**-10, 1e-6])
def test_with_the_fewest_differences_one_rank_can_decide(alpha: float) -> None:
    n = least_differences(alpha)
    assert critical_value(n, alpha) >= 0
    assert n == 1 or critical_value(n - 1, alpha) < 0


def test_looks_come_no_earlier_than_they_can_decide() -> None:
    assert looks_for(0.001, LOOKS) == LOOKS
    assert looks_for(0.0001, LOOKS) == (14, *LOOKS[1:])
    assert looks_for(0.05, LOOKS) == LOOKS
    assert looks_for(1e-12, LOOKS) == (40, 45, 90)


@pytest.mark.parametrize(
    "sizes",
    [
        tuple(range(1, 11)),
        (1, 1, 1, 2, 2, 3, 3, 3, 3, 9),
        (0, 0, 1, 2, 3, 4, 5, 6, 7, 8),
        (1e-9, 1e-3, 1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e9),
        (0,) * 10,
    ],
)
@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.05])
def test_over_all_signs_a_bound_errs_with_alpha_at_most(
    sizes: tuple[float, ...], alpha: float
) -> None:
    """The claim of the whole gate, by enumeration: ties and zeros among the differences too."""
    wrong = Counter[str]()
    for signs in itertools.product((-1, 1), repeat=len(sizes)):
        shift = shift_interval(
            [sign * size for sign, size in zip(signs, sizes, strict=True)], alpha
        )
        wrong["low"] += shift.low > 0
        wrong["high"] += shift.high < 0
    assert wrong["low"] <= alpha * 2 ** len(sizes)
    assert wrong["high"] <= alpha * 2 ** len(sizes)


@example(differences=[5e-324], alpha=0.25)
@given(differences=DIFFERENCES, alpha=ALPHAS)
def test_bounds_lie_about_the_estimate(differences: list[float], alpha: float) -> None:
    shift = shift_interval(differences, alpha)
    assert shift.low <= shift.estimate <= shift.high
    assert math.isfinite(shift.estimate)
    too_few = critical_value(len(differences), alpha) < 0
    assert too_few == math.isinf(shift.low) == math.isinf(shift.high)
    assert min(differences) <= shift.estimate <= max(differences)


@given(differences=DIFFERENCES, alpha=ALPHAS)
def test_the_other_way_round_gives_the_mirror_image(differences: list[float], alpha: float) -> None:
    shift = shift_interval(differences, alpha)
    mirror = shift_interval([-each for each in differences], alpha)
    assert (mirror.low, mirror.high) == (-shift.high, -shift.low)
    assert mirror.estimate == -shift.estimate


@given(differences=DIFFERENCES)
def test_a_smaller_alpha_gives_wider_bounds(differences: list[float]) -> None:
    wide, narrow = (shift_interval(differences, alpha) for alpha in (0.001, 0.05))
    assert wide.low <= narrow.low
    assert wide.high >= narrow.high


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf]])
def test_no_shift_of_nothing(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="shift of no differences"):
        shift_interval(bad, 0.01)


def test_nobody_measures_so_many() -> None:
    with pytest.raises(ValueError, match="differences are not from"):
        distribution(10**9)
