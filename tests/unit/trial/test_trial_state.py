"""Which windows count as disturbed."""

from __future__ import annotations

import dataclasses

import pytest

from dlprof.records import Usage
from dlprof.trial.state import disturbances

SPREAD = 0.02
QUIET = Usage(other_cpu_cores=0.05, run_queue_wait_fraction=0.4, throttled_fraction=0.0)


def test_a_quiet_window_has_nothing_to_show() -> None:
    assert disturbances(QUIET, SPREAD, usable_cores=2.0) == ()
    assert disturbances(Usage(), None, usable_cores=2.0) == ()


def test_neighbours_count_where_they_are_felt() -> None:
    felt = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.4)
    unfelt = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.01)
    unknown = Usage(other_cpu_cores=1.0)

    assert "other processes" in disturbances(felt, SPREAD, usable_cores=2.0)[0]
    assert disturbances(unfelt, SPREAD, usable_cores=2.0) == ()
    assert len(disturbances(unknown, SPREAD, usable_cores=2.0)) == 1


def test_others_take_nothing_by_cores_that_a_quota_leaves_to_nobody() -> None:
    held = Usage(other_cpu_cores=30.0, available_cpu_cores=2.0, run_queue_wait_fraction=0.4)
    taken = Usage(other_cpu_cores=62.5, available_cpu_cores=1.5, run_queue_wait_fraction=0.4)

    assert disturbances(held, SPREAD, usable_cores=2.0) == ()
    assert "kept 0.5 of the usable" in disturbances(taken, SPREAD, usable_cores=2.0)[0]


def test_others_took_no_more_than_a_quota_lacked() -> None:
    nearly = Usage(other_cpu_cores=62.1, available_cpu_cores=1.9, run_queue_wait_fraction=0.4)
    assert nearly.taken_cores(2.0) == pytest.approx(0.1)
    assert disturbances(nearly, SPREAD, usable_cores=2.0) == ()
    assert Usage(available_cpu_cores=2.1, other_cpu_cores=0.5).taken_cores(2.0) == 0


def test_many_cores_bear_more() -> None:
    usage = Usage(other_cpu_cores=1.0, run_queue_wait_fraction=0.4)

    assert disturbances(usage, SPREAD, usable_cores=16.0) == ()


def test_a_quota_that_holds_back_is_a_disturbance_where_others_use_it_up() -> None:
    unknown = Usage(throttled_fraction=0.3)
    shared = dataclasses.replace(unknown, own_cpu_cores=1.0, available_cpu_cores=2.0)
    whole = dataclasses.replace(unknown, own_cpu_cores=1.99, available_cpu_cores=2.0)
    assert "quota" in disturbances(unknown, SPREAD, usable_cores=2.0)[0]
    assert "quota" in disturbances(shared, SPREAD, usable_cores=2.0)[0]
    assert disturbances(whole, SPREAD, usable_cores=2.0) == ()


def test_an_uncertain_rate_is_a_disturbance() -> None:
    assert disturbances(QUIET, 0.4, usable_cores=2.0) == (
        "the rate is uncertain by ±40%: batches came unevenly",
    )
    assert disturbances(QUIET, None, usable_cores=2.0) == ()
