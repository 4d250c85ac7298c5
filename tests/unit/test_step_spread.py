"""Steps that differ: what is read, what is slept, and what the model makes of them."""

from __future__ import annotations

import dataclasses
import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_calibrations import constant
from predicted_runs import asked, calibrated

from dlprof.advise.recommend import recommend
from dlprof.errors import UsageError
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Config, Constraints, Run
from dlprof.units import StepTime, parse_step, spread_of


def _spread(text: str) -> StepTime:
    step = parse_step(text)
    assert isinstance(step, StepTime)
    return step


@pytest.mark.parametrize(
    ("text", "mean", "stdev"),
    [
        ("normal:50ms,5ms", 0.05, 0.005),
        ("lognormal:50ms,25ms", 0.05, 0.025),
        ("gamma:300ms,100ms", 0.3, 0.1),
        ("uniform:40ms,60ms", 0.05, 0.02 / 12**0.5),
        ("exponential:1s", 1.0, 1.0),
    ],
)
def test_steps_have_the_mean_and_the_deviation_that_were_asked_for(
    text: str, mean: float, stdev: float
) -> None:
    step = _spread(text)
    assert step == pytest.approx(mean)
    assert statistics.fmean(step.shape) == pytest.approx(1.0)
    assert statistics.pstdev(step.shape) * step == pytest.approx(stdev, rel=0.05)
    assert min(step.shape) >= 0


def test_of_a_step_below_0_the_size_counts_as_in_dlio() -> None:
    """The mean of the absolute value of a normal variable of mean 10 and deviation 20: 17.9."""
    assert _spread("normal:10ms,20ms") == pytest.approx(0.0179, rel=0.02)


def test_neighbouring_steps_are_not_alike() -> None:
    """As drawn one by one: sorted they would be a drift."""
    shape = _spread("normal:50ms,5ms").shape
    pairs = [(a - 1) * (b - 1) for a, b in itertools.pairwise(shape)]
    assert abs(statistics.fmean(pairs)) < 0.3 * statistics.pvariance(shape)


@pytest.mark.slow
@given(
    st.sampled_from(["normal", "lognormal", "gamma", "uniform", "exponential"]),
    st.integers(1, 10**7),
    st.integers(1, 10**7),
)
def test_how_steps_differ_reads_back_as_itself(name: str, one: int, two: int) -> None:
    low, high = sorted((one, two))
    two = min(two, 9 * one)
    values = {"exponential": [one], "uniform": [low, high]}.get(name, [one, two])
    step = parse_step(f"{name}:" + ",".join(f"{each}us" for each in values))
    assert parse_step(spread_of(step) or f"{step:.6f}") == step


def test_a_spread_makes_another_step_of_the_same_mean() -> None:
    one, two = parse_step("normal:50ms,5ms"), parse_step("normal:50ms,6ms")
    assert float(one) == float(two)
    assert one != two
    assert one not in {0.05, two}
    assert one == parse_step("normal:0.05,0.005") == parse_step(" Normal : 50ms, 5ms ")


def _rate(spread: str, prefetch: int = 1, step_s: float = 0.05) -> float:
    """Of two workers that take as long for two batches as a step does."""
    where = Conditions(cores=8.0, step_s=step_s, step_spread=spread)
    config = Config(num_workers=2, prefetch_factor=prefetch)
    return predict_all(constant(io=0.09), [config], where)[0].batches_per_s.value


def test_steps_that_differ_cost_where_queues_are_shallow() -> None:
    alike, differ = _rate(""), _rate("exponential:50ms")
    assert differ < 0.97 * alike
    assert _rate("exponential:50ms", prefetch=16) > 1.02 * differ


def test_steps_that_are_the_limit_go_at_their_mean() -> None:
    where = Conditions(cores=8.0, step_s=0.05, step_spread="normal:50ms,10ms")
    for in_order in (True, False):
        config = Config(num_workers=8, prefetch_factor=8, in_order=in_order)
        found = predict_all(constant(io=0.01), [config], where)[0]
        assert found.batches_per_s.value == pytest.approx(20.0, rel=0.01)


def test_a_step_of_another_spread_was_not_measured() -> None:
    made = calibrated(settings={"step_s": 0.05, "step_spread": "normal:50ms,5ms"})
    assert asked(made).as_measured
    assert asked(made).conditions.step_spread == "normal:50ms,5ms"
    assert asked(made, step_s=0.05, step_spread="normal:50ms,5ms").as_measured
    assert not asked(made, step_s=0.05).as_measured
    assert not asked(made, step_s=0.05, step_spread="normal:50ms,6ms").as_measured
    assert asked(made, step_s=0.0).conditions.step_spread == ""


def test_a_foreign_spread_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a step"):
        asked(calibrated(settings={"step_s": 0.05, "step_spread": "\x1b[2J:1,2"}))


def test_an_answer_names_the_steps_that_it_is_for() -> None:
    made: Run = calibrated()
    limits = Constraints(step_s=0.05, step_spread="normal:50ms,5ms")
    answer = recommend(made, limits)
    assert answer.constraints.step_spread == "normal:50ms,5ms"
    assert "--step-time normal:50ms,5ms" in answer.measure_there[0].command
    alone = recommend(made, dataclasses.replace(limits, step_spread=None))
    assert "--step-time 50ms" in alone.measure_there[0].command
