"""Sharing cores without simulating it, and the interval of predictions."""

from __future__ import annotations

import math

import pytest
from model_calibrations import constant, fed, prediction

from dlprof.model.bounds import slowdown
from dlprof.records import Calibration, Config


def own(threads: float, **where: float) -> float:
    """The slowdown of threads that compute and wait in turn."""
    return slowdown(threads, **where)[0]


def test_threads_that_only_compute_share_the_cores() -> None:
    assert own(4, compute_s=1.0, wait_s=0.0, cores=2.0) == 2
    assert own(2, compute_s=1.0, wait_s=0.0, cores=4.0) == 1
    assert own(1, compute_s=1.0, wait_s=9.0, cores=0.5) == pytest.approx(2)


def test_threads_that_fit_on_the_cores_never_wait() -> None:
    assert own(4, compute_s=1.0, wait_s=1.0, cores=4.0) == 1
    assert own(0, compute_s=1.0, wait_s=1.0, cores=1.0) == 1
    assert own(3, compute_s=0.0, wait_s=1.0, cores=1.0) == 1


def test_two_threads_on_one_core_by_hand() -> None:
    # D = Z: P(0) : P(1) : P(2) = 1 : 2 : 2, so 6 / 4 of a computation's time alone.
    assert own(2, compute_s=1.0, wait_s=1.0, cores=1.0) == pytest.approx(1.5)


def test_threads_of_others_take_a_share_for_each() -> None:
    assert own(1, compute_s=1.0, wait_s=1.0, cores=1.0, beside=1.0) == pytest.approx(2)
    assert own(2, compute_s=1.0, wait_s=0.0, cores=2.0, beside=4.0) == pytest.approx(3)
    assert own(2, compute_s=1.0, wait_s=1.0, cores=4.0, beside=2.0) == 1
    # D = Z, and ours get 1/2 or 2/3 of a core: P(0) : P(1) : P(2) = 1 : 4 : 6, and 16 / 6.
    found = own(2, compute_s=1.0, wait_s=1.0, cores=1.0, beside=1.0)
    assert found == pytest.approx(16 / 6)


def test_one_beside_them_is_slowed_down_by_as_many_as_compute() -> None:
    where = {"compute_s": 1.0, "wait_s": 1.0, "cores": 1.0, "beside": 1.0}
    # The same: a core of its own, half of one or a third for 1, 4 and 6 parts of the time.
    assert slowdown(2, **where)[1] == pytest.approx(11 / (1 + 4 / 2 + 6 / 3))
    assert slowdown(0, **where)[1] == 1
    assert slowdown(0, **where | {"beside": 3.0})[1] == 3
    assert slowdown(2, **where | {"cores": 3.0})[1] == 1
    assert slowdown(2, **where | {"wait_s": 0.0})[1] == 3


def test_many_threads_approach_their_share() -> None:
    found = own(400, compute_s=1.0, wait_s=1.0, cores=10.0)
    assert found == pytest.approx(400 / 10 - 1, rel=0.01)  # those that wait take no share


def test_between_whole_numbers_it_is_interpolated() -> None:
    one, two = (own(n, compute_s=1.0, wait_s=1.0, cores=1.0) for n in (1, 2))
    assert own(1.5, compute_s=1.0, wait_s=1.0, cores=1.0) == pytest.approx((one + two) / 2)


def test_an_interval_holds_its_figure_and_grows_with_the_spread() -> None:
    sure, unsure = (
        prediction(constant(io=0.01, standard_error=error), fed(2)).batches_per_s
        for error in (0.01, 0.1)
    )
    widths = []
    for each in (sure, unsure):
        assert each.low is not None
        assert each.high is not None
        assert each.low < each.value < each.high
        widths.append(math.log(each.high / each.low))
    assert widths[1] > widths[0]


def test_intervals_are_wider_away_from_where_it_was_calibrated() -> None:
    here = constant(io=0.01, available_cores=2.0)
    widths = []
    for where in ({"cores": 2.0}, {"cores": 2.0, "ranks": 2}, {"cores": 8.0}):
        found = prediction(here, fed(2), **where).batches_per_s
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high / found.low)
    assert widths[0] < widths[1] == pytest.approx(widths[2])


def test_a_crowd_that_was_there_while_it_was_calibrated_is_no_other_place() -> None:
    """Four threads leave two workers two thirds of a core, whatever two cores less four are."""
    here, crowd = constant(cpu=0.01, available_cores=2 / 3), {"cores": 2.0, "neighbours": 4.0}
    widths = [
        prediction(here, fed(workers), **crowd).batches_per_s.log_sd or 0.0 for workers in (2, 8)
    ]
    assert widths[0] < widths[1]


@pytest.mark.parametrize("step_ms", [4.5, 4.9, 5.1, 5.5, 6.0])
def test_an_interval_knows_what_limits_where_batches_are_costlier(step_ms: float) -> None:
    """From 5 ms on the step is the limit; were batches a half costlier, the workers would be."""
    calibration = constant(cpu=0.020, drift=0.2)
    found = prediction(calibration, fed(4), step_s=step_ms / 1000).batches_per_s
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 200 * math.exp(-1.96 * 0.2)
    assert found.high <= min(1000 / step_ms, 200 * math.exp(0.4)) * math.exp(0.3)


def test_a_step_with_time_to_spare_needs_no_exact_costs() -> None:
    sure, unsure = (
        prediction(constant(cpu=0.020, drift=drift), fed(4), step_s=0.02).batches_per_s
        for drift in (0.0, 0.3)
    )
    assert sure == unsure


def test_a_slower_core_does_not_lengthen_waiting() -> None:
    where = {"cores": 8.0, "speed_error": 0.3}
    computing, waiting = (
        prediction(each, fed(4), **where).batches_per_s
        for each in (constant(cpu=0.02), constant(io=0.02))
    )
    assert computing.low is not None
    assert waiting.low is not None
    assert computing.low < 200 * math.exp(-1.95 * 0.3)
    assert waiting.low > 200 * math.exp(-0.2)


@pytest.mark.parametrize(
    "handing",
    [
        constant(cpu=0.001, put=0.009),
        constant(cpu=0.001, between=0.009),
        constant(cpu=0.001, receive=0.004, receive_io=0.005),
        constant(cpu=0.001, main=0.009),
    ],
)
def test_intervals_are_wider_where_handing_over_is_the_limit(handing: Calibration) -> None:
    fetched = prediction(constant(cpu=0.01), fed(1), cores=8.0).batches_per_s
    handed = prediction(handing, fed(1), cores=8.0).batches_per_s
    assert fetched.low is not None
    assert handed.low is not None
    assert handed.low / handed.value < 0.93 * fetched.low / fetched.value


def test_without_workers_nothing_is_handed_over() -> None:
    alone, same = (
        prediction(each, Config()).batches_per_s
        for each in (constant(cpu=0.01), constant(cpu=0.01, put=0.1, receive=0.1))
    )
    assert alone == same
