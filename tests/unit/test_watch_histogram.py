from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.integrations.wait_statistics import Histogram

NANOSECONDS = st.integers(0, 10**13)


@given(st.lists(NANOSECONDS, min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_a_bin_of_the_true_one(durations: list[int], share: float) -> None:
    histogram = Histogram()
    histogram.add(durations)
    rank = max(1, -int(-share * len(durations) // 1))
    true_s = sorted(durations)[rank - 1] / 1e9
    assert histogram.quantile_s(share) == pytest.approx(true_s, rel=0.032, abs=2e-9)


@given(st.lists(NANOSECONDS, max_size=50), st.lists(NANOSECONDS, min_size=1, max_size=50))
def test_what_came_since_a_copy_is_what_was_added(before: list[int], after: list[int]) -> None:
    histogram, alone = Histogram(), Histogram()
    histogram.add(before)
    mark = histogram.copy()
    histogram.add(after)
    alone.add(after)
    since = histogram.since(mark)
    assert (since.count, since.total_ns, since.bins) == (alone.count, alone.total_ns, alone.bins)
    assert since.longest_ns >= alone.longest_ns
    assert since.longest_ns <= alone.longest_ns * 1.063 + 2


def test_nothing_counted_gives_no_figures() -> None:
    histogram = Histogram()
    histogram.add([])
    assert histogram.durations() is None
    assert histogram.quantile_s(0.5) == 0


def test_memory_is_bounded_however_much_is_counted() -> None:
    histogram = Histogram()
    for power in range(63):
        histogram.add(
            range(2**power, 2**power + 200 * max(1, 2**power // 200), max(1, 2**power // 200))
        )
    assert len(histogram.bins) <= 1100
