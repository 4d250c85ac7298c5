"""What cheaper batches would bring, by the model, held against the simulation."""

from __future__ import annotations

import dataclasses

import pytest
from builders import config
from finding_cases import Loader, evidence
from model_calibrations import tailed
from oracle import simulated

from dlprof.advise.findings.claims import predicted_gain
from dlprof.advise.findings.evidence import Costs, Evidence, ModelAtStep
from dlprof.records import BatchCosts, Calibration, Usage

FREE = Usage(own_cpu_cores=1.0, available_cpu_cores=8.0, other_cpu_cores=0.0)
TAILED = tailed(io=0.010)  # 17 ms in the mean
ROWS = TAILED.in_workers or BatchCosts()


def _view(loader: Loader) -> Evidence:
    model = ModelAtStep.at_step(TAILED, loader.step)
    seen = evidence(loader, cores=8, usage=FREE, predict=model)
    observed = (
        dataclasses.replace(
            each, explanation=each.explanation and dataclasses.replace(each.explanation, costs=ROWS)
        )
        for each in seen.observations
    )
    return dataclasses.replace(seen, observations=tuple(observed))


def _simulated(costs: Costs, view: Evidence) -> float:
    own = costs.shaped(ROWS, 2)
    calibration = Calibration(in_main=own, in_workers=own)
    return simulated(calibration, view.config, cores=8.0, step_s=view.step_s)


def test_shorter_waits_help_where_order_costs_what_no_bound_knows() -> None:
    """By the bounds the step is the limit before and after."""
    loader = Loader(config=config(4), fetch_io=0.017, collate_cpu=0.0, step=0.006)
    view = _view(loader)
    now = view.costs
    assert now is not None
    then = now.without(now.fetch.io_s / 2)
    gain = predicted_gain(view, costs=then)
    bound = predicted_gain(dataclasses.replace(view, predict=None), costs=then)
    true = _simulated(then, view) / _simulated(now, view)
    assert gain is not None
    assert bound is not None
    assert (gain.source, bound.source) == ("model", "bound")
    assert gain.value == pytest.approx(true, rel=0.08)
    assert true > 1.15 * bound.value


def test_halved_blocked_time_is_worth_what_workers_make_of_it() -> None:
    view = _view(Loader(config=config(2), fetch_io=0.017, collate_cpu=0.0))
    now = view.costs
    assert now is not None
    then = now.without(now.fetch.io_s / 2)
    gain = predicted_gain(view, costs=then)
    assert gain is not None
    assert gain.value == pytest.approx(_simulated(then, view) / _simulated(now, view), rel=0.08)


def test_costs_have_their_means_however_batches_differ() -> None:
    costs = _view(Loader(fetch_io=0.017, put_cpu=0.002)).costs
    assert costs is not None
    own = costs.shaped(ROWS, 2)
    assert sum(own.io_s) / len(own.io_s) == pytest.approx(costs.making.io_s)
    assert max(own.io_s) > 10 * min(own.io_s)
    assert set(own.put_cpu_s) == {costs.put_cpu_s}  # nobody saw how that differs
    assert costs.shaped(BatchCosts(), 2) == BatchCosts()
