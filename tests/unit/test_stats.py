from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Estimate
from dlprof.stats.intervals import mean_interval, ratio_interval, t_quantile, t_tail

# Published tables of Student's t (two-sided 95 % and 99 %, one-sided 95 %), and closed forms for
# 1 and 2 degrees of freedom.
TABLE = [
    (0.975, 1, 12.706205),
    (0.975, 2, 4.302653),
    (0.975, 4, 2.776445),
    (0.975, 9, 2.262157),
    (0.975, 30, 2.042272),
    (0.975, 120, 1.979930),
    (0.995, 5, 4.032143),
    (0.995, 10, 3.169273),
    (0.95, 3, 2.353363),
    (0.9995, 10, 4.586894),
    (0.975, math.inf, 1.959964),
]


@pytest.mark.parametrize(("p", "df", "expected"), TABLE)
def test_t_quantile_agrees_with_the_tables(p: float, df: float, expected: float) -> None:
    assert t_quantile(p, df) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("p", [1e-9, 0.001, 0.3, 0.5, 0.9, 0.9999999])
def test_t_quantile_agrees_with_closed_forms(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(-1 / math.tan(math.pi * p), rel=1e-8, abs=1e-12)
    two = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    assert t_quantile(p, 2) == pytest.approx(two, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("df", [1.0, 4.0, 1e5, math.inf])
def test_a_tail_is_that_beyond_the_quantile(df: float) -> None:
    assert t_tail(0.0, df) == 0.5
    for p in (0.01, 0.3, 0.975):
        assert t_tail(t_quantile(p, df), df) == pytest.approx(1 - p, rel=1e-6)


# scipy.stats.t.ppf and .sf of SciPy 1.17.1.
@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (1e-12, 0.5, -1.0284911563163399e23),
        (0.001, 1.7, -34.77419785845834),
        (0.6, 3.3, 0.274501974221057),
        (0.975, 7.5, 2.333039626864974),
        (0.9999, 29.9, 4.235910038349092),
        (0.995, 1234.5, 2.579817729733322),
        (1e-6, 2e6, -4.753438328515179),
    ],
)
def test_t_quantile_agrees_with_scipy(p: float, df: float, expected: float) -> None:
    assert t_quantile(p, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("t", "df", "expected"),
    [
        (-3.0, 0.5, 0.8163459220070283),
        (0.1, 1.7, 0.4654289892798598),
        (5.0, 3.3, 0.0061072105640439375),
        (30.0, 7.5, 2.1873667050518222e-09),
        (2.0, 1234.5, 0.02285951161552739),
    ],
)
def test_t_tail_agrees_with_scipy(t: float, df: float, expected: float) -> None:
    assert t_tail(t, df) == pytest.approx(expected, rel=1e-9)


def test_t_quantile_is_continuous_where_the_expansion_takes_over() -> None:
    assert t_quantile(0.99, 999_999) == pytest.approx(t_quantile(0.99, 1_000_001), abs=1e-8)


@given(st.floats(0.001, 0.999), st.floats(0.3, 5000))
def test_t_quantile_is_odd_and_wider_than_the_normal(p: float, df: float) -> None:
    upper = t_quantile(p, df)
    assert upper == pytest.approx(-t_quantile(1 - p, df), rel=1e-6, abs=1e-9)
    assert abs(upper) >= abs(t_quantile(p, math.inf)) - 1e-9


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.5, 0), (0.5, -1)])
def test_t_quantile_refuses_what_is_no_probability(p: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"probability|degrees"):
        t_quantile(p, df)


def test_mean_interval_of_a_worked_example() -> None:
    estimate = mean_interval([9.0, 10.0, 11.0])
    assert estimate.value == 10.0
    half = 4.302653 / math.sqrt(3)
    assert estimate.low == pytest.approx(10 - half, abs=1e-6)
    assert estimate.high == pytest.approx(10 + half, abs=1e-6)


def test_mean_interval_of_equal_values_is_exact() -> None:
    estimate = mean_interval([5.0, 5.0])
    assert (estimate.low, estimate.high) == (5.0, 5.0)


def test_mean_interval_of_one_value_has_no_ends() -> None:
    estimate = mean_interval([7.0])
    assert (estimate.value, estimate.low, estimate.high) == (7.0, None, None)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_mean_interval_refuses_what_has_no_mean(values: list[float]) -> None:
    with pytest.raises(ValueError, match="the mean of"):
        mean_interval(values)


def test_the_ratio_of_paired_values() -> None:
    alike = ratio_interval([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (alike.value, alike.low, alike.high) == (2.0, 2.0, 2.0)
    shown = ratio_interval([3.0, 5.0], [2.0, 2.0])  # residuals of -1 and 1: an error of 1
    assert shown.value == 2.0
    assert shown.high == pytest.approx(2 + t_quantile(0.975, 1) / 2)
    assert ratio_interval([3.0], [2.0]) == Estimate(value=1.5)
    for over, under in (([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])):
        with pytest.raises(ValueError, match="a ratio"):
            ratio_interval(over, under)
