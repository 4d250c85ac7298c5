"""Screens of sweeps that a model led: whole, cut off, and where it was wrong."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable

import pytest
from builders import around, blocks, config, failed, machine, plan, run, trial
from golden import drawn

from dlprof.advise.recommend import recommend
from dlprof.records import Cost, PredictedCell, Run, RunEnd, SweepPrediction, Trial
from dlprof.records.run import EndReason
from dlprof.report.export.formats import render_as, render_html
from dlprof.report.sweep import sweep_report

NONE, TWO, EIGHT = config(0), config(2), config(8)
RATES = {NONE: 100.0, TWO: 200.0, EIGHT: 170.0}
PREDICTION = SweepPrediction(
    cells=tuple(
        PredictedCell(config=each, samples_per_s=around(rate, 0.1), speed=rate / 200.0)
        for each, rate in RATES.items()
    ),
    race=(NONE, TWO),
    pick=TWO,
    cores=2.0,
    log_sd=0.08,
)


def led(
    trials: Iterable[Trial],
    prediction: SweepPrediction | None = PREDICTION,
    reason: EndReason = "decided",
) -> Run:
    calibration = (NONE, config(1), TWO)
    planned = plan((NONE, TWO, config(4), EIGHT), search="model", calibration=calibration)
    cost = Cost(measured=3.0, overhead=1.0, total=4.0)
    end = RunEnd(ended_at="2026-01-01T00:01:00Z", reason=reason, cost_s=cost)
    made = run(trials, plan=planned, machine=machine(8))
    return dataclasses.replace(made, end=end, prediction=prediction)


def screen(found: Run) -> str:
    return " ".join(drawn(sweep_report(found), 80, verbose=True).split())


def test_what_is_left_out_on_purpose_is_not_called_unmeasured() -> None:
    text = screen(led(blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})))
    assert "3 configurations predicted, 2 configurations measured in 4 trials" in text
    assert "were not measured" not in text


def test_one_that_was_interrupted_while_calibrating_shows_no_empty_table() -> None:
    explained = [trial(NONE, purpose="explain"), trial(config(1), purpose="explain")]
    text = screen(led(explained, None, "interrupted"))
    assert "The sweep ended early. Continue it: dlprof sweep" in screen(
        led(explained, None, "failed")
    )
    assert "0 configurations measured in 0 trials; 2 traced trials" in text
    assert "The sweep was interrupted. Continue it: dlprof sweep" in text
    assert "relative" not in text
    assert "not measured" not in text


def test_rules_that_were_predicted_are_marked_beside_those_that_were_measured() -> None:
    found = led([*blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]}), failed(config(7))])
    text = screen(dataclasses.replace(found, recommendation=recommend(found)))
    assert "num_workers = cores: num_workers=8: 170 samples/s, 0.85x, predicted" in text
    assert "PyTorch's default: num_workers=0: 100 samples/s" in text


def test_what_was_predicted_is_reported_as_what_was_measured_lets_expect() -> None:
    """All was predicted twice as fast as it is: so is the rule's."""
    found = led([*blocks({NONE: [50.0, 50.5], TWO: [99.0, 100.5]}), failed(config(7))])
    made = recommend(found)
    rule = next(each for each in made.rules_of_thumb if each.name == "num_workers = cores")
    assert rule.predicted
    assert rule.expected_samples_per_s == pytest.approx(85, rel=0.05)
    assert "num_workers=8: 8" in screen(dataclasses.replace(found, recommendation=made))


@pytest.mark.parametrize("reason", typing.get_args(typing.get_type_hints(RunEnd)["reason"]))
def test_reports_show_every_way_in_which_a_sweep_can_end(reason: EndReason) -> None:
    found = led(blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]}), reason=reason)
    assert "; ended: " in render_as(found, "markdown").decode()
    assert ">ended<" in render_html(found)
    assert screen(found)


@pytest.mark.parametrize(("prediction", "drawn_too"), [(PREDICTION, True), (None, False)])
def test_a_page_speaks_of_predictions_where_it_draws_some(
    prediction: SweepPrediction | None, *, drawn_too: bool
) -> None:
    page = render_html(led(blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]}), prediction))
    assert "samples/s by num_workers: " in page
    assert ("predictions as lines" in page) is drawn_too
