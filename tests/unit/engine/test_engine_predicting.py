"""Which configurations a sweep's model is asked about."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import config, header, machine, plan, target
from predicted_runs import calibrated as run_of
from predicted_runs import calibration

from dlprof.engine.sweep import levers_of, sweep_prediction
from dlprof.records import Calibration, Machine, Run

CELLS = tuple(config(workers) for workers in (0, 1, 2, 4, 8, 16, 32, 64, 128))
WAITS = calibration(cpu=0.0005, io=0.04, startup_s={"main": (0.01,), "default": (0.1, 0.1)})
QUICK = dataclasses.replace(WAITS, startup_s={"main": (0.01,), "default": (0.1, 0.001)})


def most(
    calibrated: Calibration = WAITS,
    *,
    on: Machine | None = None,
    notes: tuple[str, ...] = (),
    shared_by: str | None = None,
    **settings: object,
) -> int:
    """The most workers among what is predicted on two cores."""
    made = header(
        machine=on or machine(2),
        target=target(notes=notes, sharing_strategy=shared_by),
        plan=plan(CELLS, search="model", cells=CELLS),
        settings=settings,
    )
    run = Run(path="run.dlprof.jsonl", header=made)
    found = sweep_prediction(dataclasses.replace(run, calibration=calibrated))
    assert found is not None
    return max(cell.config.num_workers for cell in found.cells)


def test_workers_that_start_too_slowly_for_the_budget_are_left_out() -> None:
    assert most(budget_s=120.0) == 64
    assert most(budget_s=60.0) == 32
    assert most(budget_s=30.0) == 16
    assert most(budget_s=10.0) == 4
    computes = dataclasses.replace(calibration(cpu=0.02), startup_s=WAITS.startup_s)
    assert most(computes, budget_s=60.0) == 16  # which none is sure to gain by


@pytest.mark.parametrize(
    ("alone_s", "one_s", "second_s", "workers"),
    [
        (0.01, 0.04, 0.02, 64),
        (0.01, 0.045, 0.4, 32),  # others disturbed the start of two workers
        (0.01, 0.4, 0.02, 32),  # or that of one, which counts by itself
        (0.5, 0.03, 0.02, 64),  # or that of none, which the workers have as well
        (0.01, 0.2, 0.2, 2),
        (0.5, 0.2, 0.2, 8),
    ],
)
def test_one_start_that_was_disturbed_does_not_decide_how_many_are_tried(
    alone_s: float, one_s: float, second_s: float, workers: int
) -> None:
    starts = {"main": (alone_s,), "default": (one_s, second_s)}
    assert most(dataclasses.replace(WAITS, startup_s=starts), budget_s=22.5) == workers


def test_what_the_user_names_is_predicted_whatever_it_costs() -> None:
    assert most(budget_s=10.0, num_workers=[0, 128]) == 128


def test_a_first_batch_that_takes_long_leaves_nothing_out() -> None:
    """A dataset that opens its files with its first sample does so without workers, too."""
    slow = dataclasses.replace(WAITS, startup_s={"main": (3.0,), "default": (3.1, 0.1)})
    assert most(slow, budget_s=30.0) == 16


def test_what_takes_no_longer_to_start_than_the_users_own_is_predicted() -> None:
    """As ``persistent_workers=True``, which is what spares a start of seconds in each epoch."""
    slow = dataclasses.replace(WAITS, startup_s={"main": (0.1,), "default": (3.3, 0.1)})
    own, kept = config(2), config(2, persistent_workers=True)
    cells = (config(0), config(1), own, kept, config(4))
    made = header(
        machine=machine(2),
        plan=plan(cells, search="model", cells=cells, present=own),
        settings={"budget_s": 45.0},
    )
    found = sweep_prediction(Run(path="run.dlprof.jsonl", header=made, calibration=slow))
    assert found is not None
    assert {each.config for each in found.cells} == {*cells} - {config(4)}


@pytest.mark.parametrize(
    ("cpu_s", "workers"),
    [(0.0005, 128), (0.001, 64), (0.004, 32), (0.02, 32)],
)
def test_workers_are_predicted_as_far_as_the_model_has_them_gain(
    cpu_s: float, workers: int
) -> None:
    """Batches wait for 40 ms; on two cores 32 are looked at where 2 are enough, too."""
    assert most(dataclasses.replace(calibration(cpu=cpu_s, io=0.04), startup_s={})) == workers


@pytest.mark.parametrize(
    "limited",
    [
        {"on": machine(2, memory_available_bytes=3 << 30)},
        {"on": machine(2, shm_available_bytes=200 << 20)},
        {"on": machine(2, open_files_limit=1024)},
        {"max_ram_bytes": 3 << 30},
        {"max_shm_bytes": 200 << 20},
    ],
)
def test_many_workers_are_predicted_where_what_they_need_is_there(limited: Any) -> None:
    """Each takes 30 MB, and two batches of 1 MB and of two tensors wait for each."""
    assert most(QUICK) == 128
    assert most(QUICK, **limited) == 64


def test_few_workers_are_tried_whatever_they_need() -> None:
    assert most(QUICK, max_ram_bytes=1 << 30) == 32


def test_workers_that_are_spawned_where_nothing_says_so_cost_what_spawning_costs() -> None:
    note = "Workers start by spawn here where no setting says otherwise, so each gets a copy."
    quick = dataclasses.replace(WAITS, startup_s={"main": (0.01,), "default": (1.0, 0.001)})
    assert most(quick, budget_s=60.0) > most(quick, notes=(note,), budget_s=60.0)


def test_tensors_that_are_shared_by_name_take_no_open_files() -> None:
    few = dataclasses.replace(machine(2), open_files_limit=1024)
    many = dataclasses.replace(QUICK, batch_tensors=8.0)
    assert most(many, on=few) < most(many, on=few, shared_by="file_system") == most(many)


def test_the_few_values_that_are_asked_for_are_all_measured() -> None:
    made = header(
        machine=machine(2),
        plan=plan(CELLS[:6], search="model", cells=CELLS[:6]),
        settings={"num_workers": [0, 1, 2, 4, 8, 16]},
    )
    run = Run(path="run.dlprof.jsonl", header=made, calibration=WAITS)
    found = sweep_prediction(run)
    assert found is not None
    assert {*CELLS[:6]} <= {*found.race}


@pytest.mark.parametrize("shared_by", [None, "file_descriptor", "file_system"])
def test_what_shares_tensors_by_name_already_is_not_tried_with_that(shared_by: str | None) -> None:
    many = calibration(cpu=0.001, receive=0.01, batch_tensors=40.0)
    found = levers_of(run_of(many, target=target(sharing_strategy=shared_by)), config(2))
    assert ("file_system" in {e.sharing_strategy for e in found}) is (shared_by != "file_system")
