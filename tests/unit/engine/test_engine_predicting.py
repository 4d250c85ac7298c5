"""Which configurations a sweep's model is asked about."""

from __future__ import annotations

import dataclasses

from builders import config, header, machine, plan
from predicted_runs import calibration

from dlprof.engine.sweep import sweep_prediction
from dlprof.records import Calibration, Run

CELLS = tuple(config(workers) for workers in (0, 1, 2, 4, 8, 16, 32))
WAITS = calibration(cpu=0.0005, io=0.04, startup_s={"main": (0.01,), "default": (0.1, 0.1)})


def most(calibrated: Calibration = WAITS, **settings: object) -> int:
    """The most workers among what is predicted on two cores."""
    made = header(
        machine=machine(2), plan=plan(CELLS, search="model", cells=CELLS), settings=settings
    )
    run = Run(path="run.dlprof.jsonl", header=made)
    found = sweep_prediction(dataclasses.replace(run, calibration=calibrated))
    assert found is not None
    return max(cell.config.num_workers for cell in found.cells)


def test_workers_that_start_too_slowly_for_the_budget_are_left_out() -> None:
    assert most(budget_s=120.0) == 32
    assert most(budget_s=30.0) == 8
    assert most(budget_s=10.0) == 4


def test_what_the_user_names_is_predicted_whatever_it_costs() -> None:
    assert most(budget_s=10.0, num_workers=[0, 32]) == 32


def test_a_first_batch_that_takes_long_leaves_nothing_out() -> None:
    """A dataset that opens its files with its first sample does so without workers, too."""
    slow = dataclasses.replace(WAITS, startup_s={"main": (3.0,), "default": (3.1, 0.1)})
    assert most(slow, budget_s=30.0) == 8
