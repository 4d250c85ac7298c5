"""Which windows count as disturbed."""

from __future__ import annotations

from dlprof.records import Estimate, Usage
from dlprof.trial.noise import disturbances

RATE = Estimate(value=100.0, low=98.0, high=102.0)
QUIET = Usage(other_cpu_cores=0.05, run_queue_wait_fraction=0.4, throttled_fraction=0.0)


def test_a_quiet_window_has_nothing_to_tell() -> None:
    assert disturbances(QUIET, RATE, usable_cores=2.0) == ()
    assert disturbances(Usage(), None, usable_cores=2.0) == ()


def test_neighbours_count_where_they_are_felt() -> None:
    felt = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.4)
    unfelt = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.01)
    unknown = Usage(other_cpu_cores=1.0)

    assert "other processes" in disturbances(felt, RATE, usable_cores=2.0)[0]
    assert disturbances(unfelt, RATE, usable_cores=2.0) == ()
    assert len(disturbances(unknown, RATE, usable_cores=2.0)) == 1


def test_many_cores_bear_more() -> None:
    usage = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.4)

    assert disturbances(usage, RATE, usable_cores=16.0) == ()


def test_a_quota_that_holds_back_is_a_disturbance() -> None:
    assert "quota" in disturbances(Usage(throttled_fraction=0.3), RATE, usable_cores=2.0)[0]


def test_a_rate_that_varies_is_a_disturbance() -> None:
    wide = Estimate(value=100.0, low=60.0, high=140.0)

    assert "varied" in disturbances(QUIET, wide, usable_cores=2.0)[0]
