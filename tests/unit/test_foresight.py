"""The step at which findings ask the model."""

from __future__ import annotations

import pytest
from model_calibrations import constant, fed

from dlprof.advise.foresight import Foresight
from dlprof.records import Stage

MS = 1e-3


def step(mean: float, cpu: float) -> Stage:
    return Stage(
        name="step", mean_s=mean, median_s=mean, p95_s=mean, max_s=mean, cpu_s=cpu, io_s=0.0
    )


def test_letting_batches_go_is_no_step() -> None:
    found = Foresight.at_step(constant(cpu=6 * MS, let_go=2 * MS), step(2 * MS, 2 * MS))
    assert (found.step_s, found.step_cpu_s) == pytest.approx((0.0, 0.0))


def test_a_step_waits_and_computes_beside_letting_batches_go() -> None:
    found = Foresight.at_step(constant(cpu=6 * MS, let_go=2 * MS), step(10 * MS, 5 * MS))
    assert (found.step_s, found.step_cpu_s) == pytest.approx((5 * MS, 3 * MS))


def test_one_rate_whichever_way_letting_go_is_told() -> None:
    told = Foresight.at_step(constant(cpu=6 * MS, let_go=2 * MS), step(10 * MS, 2 * MS))
    untold = Foresight.at_step(constant(cpu=6 * MS), step(10 * MS, 2 * MS))
    rates = [each(fed(2), cores=8.0) for each in (told, untold)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0].batches_per_s.value == pytest.approx(rates[1].batches_per_s.value, rel=0.01)
