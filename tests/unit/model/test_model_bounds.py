"""The closed form: cases that can be computed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from model_calibrations import constant, fed, lowest_bound, prediction, rate
from oracle import simulated

from dlprof.model.bounds import bounds, cell_of, describe, main_work
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Calibration, Config

MS = 0.001


def test_without_workers_loading_and_stepping_add_up() -> None:
    calibration = constant(cpu=6 * MS, io=2 * MS, main=1 * MS)
    found = prediction(calibration, Config(), step_s=11 * MS)
    assert found.batches_per_s.value == pytest.approx(50)
    assert found.bound == "step"
    assert found.wait_fraction == pytest.approx(9 / 20)


def test_without_workers_main_pins_by_itself() -> None:
    calibration = constant(cpu=6 * MS, pin=4 * MS)
    assert lowest_bound(calibration, Config()) == pytest.approx(1 / 0.006)
    assert lowest_bound(calibration, Config(pin_memory=True)) == pytest.approx(100)


def test_workers_load_side_by_side() -> None:
    calibration = constant(cpu=6 * MS, put=2 * MS, io=12 * MS)
    found = prediction(calibration, fed(4))
    assert found.batches_per_s.value == pytest.approx(4 / 0.020)
    assert found.bound == "workers"


def test_ranks_share_the_cores() -> None:
    calibration = constant(cpu=6 * MS, put=2 * MS, receive=1 * MS, main=1 * MS)
    found = prediction(calibration, fed(16), cores=8.0, ranks=4)
    assert found.batches_per_s.value == pytest.approx(8 / (4 * 0.010))
    assert found.bound == "cores"
    assert found.cores == pytest.approx(2)


def test_cores_that_stay_idle_are_missing_where_threads_are_more() -> None:
    whole = constant(cpu=4 * MS, receive=1 * MS)
    partly = dataclasses.replace(whole, idle_fraction=0.2)
    for workers, share in ((1, 1.0), (2, 0.8), (8, 0.8)):
        cut, full = (lowest_bound(each, fed(workers), cores=2.0) for each in (partly, whole))
        assert cut == pytest.approx(share * full)


@pytest.mark.parametrize("fair", [None, 1.0, 1.7])
def test_no_neighbor_makes_a_loader_faster(fair: float | None) -> None:
    """Others fill what would be idle before they take any of the rest."""
    partly = dataclasses.replace(constant(cpu=4 * MS, receive=1 * MS), idle_fraction=0.25)
    rates = [
        rate(partly, fed(8), cores=2.0, neighbours=others, fair_cores=fair if others else None)
        for others in (0.0, 0.02, 0.1, 0.5, 2.0, 8.0)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] > 0.9 * min(rates[0], 1000 * (fair or 2.0) / 5)


@pytest.mark.parametrize("workers", [1, 8])
def test_workers_that_mostly_wait_are_the_limit_beside_others_that_compute(workers: int) -> None:
    calibration, where = constant(cpu=2 * MS, io=32 * MS), {"cores": 2.0, "neighbours": 6.0}
    found, more = (prediction(calibration, fed(n), **where) for n in (workers, 2 * workers))
    assert found.batches_per_s.value < 0.9 * workers / 0.034  # for others do slow them down
    assert more.batches_per_s.value > 1.7 * found.batches_per_s.value
    assert found.bound == "workers"
    computing = prediction(constant(cpu=17 * MS, io=17 * MS), fed(workers), **where)
    assert computing.bound == "cores"


def test_main_takes_batches_in_one_by_one() -> None:
    calibration = constant(cpu=1 * MS, receive=3 * MS, receive_io=1 * MS, main=1 * MS)
    found = prediction(calibration, fed(16), step_s=1 * MS, cores=64.0)
    assert found.batches_per_s.value == pytest.approx(1 / 0.006)
    assert found.bound == "main"


def test_a_step_that_is_fed_is_the_limit() -> None:
    calibration = constant(cpu=4 * MS, receive=1 * MS)
    found = prediction(calibration, fed(4), step_s=9 * MS)
    assert found.batches_per_s.value == pytest.approx(100)
    assert found.bound == "step"
    assert found.wait_fraction == pytest.approx(0.1)


def test_the_pin_thread_frees_main_and_is_a_limit_of_its_own() -> None:
    calibration = constant(cpu=1 * MS, receive=2 * MS, main=1 * MS, pin=3 * MS)
    unpinned, pinned = (
        prediction(calibration, fed(16, pin_memory=pins), step_s=4 * MS, cores=64.0)
        for pins in (False, True)
    )
    assert unpinned.batches_per_s.value == pytest.approx(1 / 0.007)
    assert pinned.batches_per_s.value == pytest.approx(1 / 0.005)
    alone = prediction(calibration, fed(16, pin_memory=True), cores=64.0)
    assert alone.bound == "pin"
    assert alone.batches_per_s.value == pytest.approx(1 / 0.005)


def test_storage_gives_all_ranks_so_much_together() -> None:
    calibration = constant(io=1 * MS, read_bytes_per_batch=1e6)
    found = prediction(calibration, fed(8), ranks=2, storage_bytes_per_s=1e8)
    assert found.batches_per_s.value == pytest.approx(50)
    assert found.bound == "storage"


def test_with_one_batch_ahead_a_worker_rests_until_its_batch_is_taken_in() -> None:
    calibration = constant(io=4 * MS, receive_io=1 * MS)
    assert lowest_bound(calibration, fed(1, 1)) == pytest.approx(200)
    assert lowest_bound(calibration, fed(1, 2)) == pytest.approx(250)


def test_neighbours_get_a_share_for_each_of_their_threads() -> None:
    calibration = constant(cpu=10 * MS)
    # 4 workers beside 4 neighbours on 4 cores: half of the cores each.
    assert lowest_bound(calibration, fed(4), cores=4.0, neighbours=4.0) == pytest.approx(200)
    # Idle cores are never given up: 8 - 2 of them stay, more than 4 workers can use.
    assert lowest_bound(calibration, fed(4), neighbours=2.0) == pytest.approx(400)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_other_sessions_leave_workers_the_same_however_many_they_are(workers: int) -> None:
    calibration = constant(cpu=10 * MS)
    where = {"cores": 4.0, "neighbours": 8.0, "fair_cores": 1.5}
    assert lowest_bound(calibration, fed(workers), **where) == pytest.approx(150)
    assert simulated(calibration, fed(workers), **where) == pytest.approx(150, rel=0.02)
    # As before where nobody is there, and for one thread that wants no more than its share.
    assert lowest_bound(calibration, fed(workers), **where | {"neighbours": 0.0}) > 190
    assert lowest_bound(calibration, Config(), **where) == pytest.approx(100)


@pytest.mark.parametrize(
    ("workers", "step_ms", "batches_per_s"),
    [
        # Main and the worker have 10 ms each to do, and half of what four threads share on 2 cores.
        (1, 9, 50),
        (2, 4, 80),  # 15 ms a batch by 3 threads of 5
        (4, 9, 50),  # main has most to do: workers are one thread beside it
    ],
)
@pytest.mark.parametrize("pinned", [False, True])  # main's other millisecond is drawing indices
def test_main_gets_its_share_beside_a_crowd(
    workers: int, step_ms: float, batches_per_s: float, *, pinned: bool
) -> None:
    drawing_s, receive_s = (1 * MS, 0.0) if pinned else (0.0, 1 * MS)
    calibration = constant(cpu=10 * MS, receive=receive_s, main=drawing_s)
    where = {"cores": 2.0, "neighbours": 2.0, "step_cpu_s": step_ms * MS}
    chosen = fed(workers, pin_memory=pinned)
    assert lowest_bound(calibration, chosen, **where) == pytest.approx(batches_per_s)
    assert simulated(calibration, chosen, **where) == pytest.approx(batches_per_s, rel=0.02)


def test_workers_that_wait_get_their_share_beside_a_crowd() -> None:
    """Measured on two cores beside 8 threads that computed: 88 batches a second of 12 workers."""
    calibration = constant(cpu=0.0041, io=0.129)
    crowd = Conditions(cores=2.0, neighbours=8.3)
    (found,) = predict_all(calibration, [fed(12)], crowd)
    # Of 2 cores each of some 10 threads that want one gets a fifth: 12 / (129 ms + 5 x 4.1 ms).
    assert found.batches_per_s.value == pytest.approx(80, rel=0.06)


def test_a_slower_core_slows_computing_and_not_waiting() -> None:
    calibration = constant(cpu=4 * MS, io=2 * MS)
    assert lowest_bound(calibration, fed(1), speed=0.5) == pytest.approx(100)


def test_helpers_of_main_share_its_cores() -> None:
    calibration = constant(cpu=10 * MS, helper_cpu_s=10 * MS)
    assert lowest_bound(calibration, Config(), cores=2.0) == pytest.approx(100)
    assert lowest_bound(calibration, Config(), cores=1.0) == pytest.approx(50)
    assert simulated(calibration, Config(), cores=1.0) == pytest.approx(50)


@pytest.mark.parametrize("rate", [lowest_bound, rate, simulated])
def test_a_handshake_costs_nothing_where_workers_are_held_back(rate: Callable[..., float]) -> None:
    """Each of four has a batch ready when it is asked for, and rests until that is taken."""
    calibration = constant(cpu=10 * MS, receive=1 * MS, receive_busy_s={"default": 4 * MS})
    found = rate(calibration, fed(4), cores=64.0, step_s=5 * MS)
    assert found == pytest.approx(1 / 0.006)


def test_every_bound_has_words() -> None:
    known = constant(cpu=1 * MS)
    cell = cell_of(known, fed(2), Conditions(cores=1.0))
    assert all("limit" in describe(name, main_work(known)) for name in bounds(cell))
    assert describe("something else", "") == "something else"


def test_the_main_process_is_said_to_do_what_takes_it_longest() -> None:
    """What it waits for while it receives is no core of which others take a part."""
    quick, slow = (constant(main=4 * MS, receive=1 * MS, receive_io=io * MS) for io in (0, 4))
    assert "drawing indices keeps" in describe("main", main_work(quick))
    assert main_work(slow) == "receiving batches"
    crowded = dataclasses.replace(slow, run_queue_fraction=0.8)
    assert main_work(crowded) == "drawing indices"


def test_without_any_batch_nothing_is_predicted() -> None:
    with pytest.raises(ValueError, match="holds no batch"):
        prediction(Calibration(), fed(1))


def test_a_calibration_says_nothing_of_another_batch_size() -> None:
    calibration = constant(cpu=1 * MS, batch_size=32)
    with pytest.raises(ValueError, match="batch_size=64"):
        prediction(calibration, Config(batch_size=64))
    both = [Config(batch_size=size) for size in (32, 64)]
    with pytest.raises(ValueError, match="batch_size=64"):
        predict_all(calibration, both, Conditions(cores=1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"cores": value} for value in (0.0, -1.0, float("nan"), float("inf"))),
        *({"cores": 1.0, name: -1.0} for name in ("step_s", "neighbours", "speed", "step_cpu_s")),
        {"cores": 1.0, "ranks": 0},
        {"cores": 1.0, "epoch_batches": 0},
        {"cores": 1.0, "storage_bytes_per_s": 0.0},
    ],
)
def test_conditions_that_no_machine_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Conditions(**wrong)
