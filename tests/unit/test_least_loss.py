"""What loses least, with background load and without; a sweep beside a load of dlprof's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import blocks, config, run
from golden import drawn
from predicted_runs import calibrated, calibration

from dlprof.advise.recommend import recommend
from dlprof.records import Constraints, LeastLoss, Recommendation, Run
from dlprof.records.codec import from_json, to_json
from dlprof.report.sweep import recommendation_report

RATES = {config(0): (100.0, 101.0), config(2): (380.0, 384.0), config(8): (400.0, 398.0)}


def _beside(load: dict[str, float] | None, *, known: bool = True, **rest: Any) -> Run:
    settings = {"make_load": load, "step_s": None}
    made = run(blocks(RATES), settings=settings, **rest)
    costs = calibration(cpu=0.05, receive=0.0002) if known else None
    return dataclasses.replace(made, calibration=costs)


def test_a_sweep_beside_a_load_says_both_forms() -> None:
    """Measured as shared, and predicted without the load, where eight workers pay."""
    answer = recommend(_beside({"cores": 12.0}))
    assert answer.basis == "measured"
    shared, dedicated = answer.cases
    assert (shared.name, shared.neighbours) == ("as shared now", 12.0)
    assert (dedicated.name, dedicated.neighbours) == ("dedicated", 0.0)
    assert shared.expected.samples_per_s == answer.expected.samples_per_s
    assert dedicated.best_samples_per_s.value > shared.best_samples_per_s.value


def _least(answer: Recommendation) -> LeastLoss:
    assert answer.least_loss is not None
    return answer.least_loss


def test_what_loses_least_is_near_the_best_in_both() -> None:
    answer = recommend(_beside({"cores": 12.0}))
    least = _least(answer)
    assert set(least.speeds) == {"as shared now", "dedicated"}
    assert all(0 < speed <= 1 for speed in least.speeds.values())
    # Two workers are nearly as fast beside the load, and far behind without it.
    assert least.config.num_workers == 8
    assert answer.config.num_workers <= 8
    assert all(0 < least.at_least[name] <= speed for name, speed in least.speeds.items())
    known = _known(answer)
    text = drawn(recommendation_report(_beside({"cores": 12.0}), known), 120, verbose=True)
    assert "loses least in both: num_workers=8" in text
    # Beside another recommendation it is said when to take it.
    other = dataclasses.replace(known, config=config(2))
    text = drawn(recommendation_report(_beside({"cores": 12.0}), other), 160)
    assert (
        "take num_workers=8 if the load may change: by the model at least 89% of the best" in text
    )
    assert "of the best as shared now (95%), 87% alone on the machine" in text


def _known(answer: Recommendation, **at_least: float) -> Recommendation:
    """The same where what is lost is known as well as this."""
    bounds = {"as shared now": 0.89, "dedicated": 0.87} | at_least
    least = dataclasses.replace(_least(answer), at_least=bounds)
    return dataclasses.replace(answer, least_loss=least)


def test_what_loses_least_is_not_said_where_nobody_knows_what_it_loses() -> None:
    """It was "100% of the best as shared now, 45% alone" of rates known to a factor of thousands.

    Files of earlier versions hold no bounds.
    """
    answer = recommend(_beside({"cores": 12.0}))
    saved = to_json(_known(answer))
    del saved["least_loss"]["at_least"]
    for unsure in (_known(answer, dedicated=0.2), from_json(Recommendation, saved)):
        other = dataclasses.replace(unsure, config=config(2))
        text = drawn(recommendation_report(_beside({"cores": 12.0}), other), 120, verbose=True)
        assert "if the load may change" not in text
        assert "loses least" not in text


def test_what_keeps_a_fifth_of_the_rate_is_no_advice_for_any_load() -> None:
    """It was the best for both of two ranks, certain to keep 22% alone, and advised."""
    answer = _known(recommend(_beside({"cores": 12.0})), dedicated=0.22)
    least = dataclasses.replace(_least(answer), speeds={"as shared now": 0.9, "dedicated": 0.25})
    other = dataclasses.replace(answer, config=config(2), least_loss=least)
    text = drawn(recommendation_report(_beside({"cores": 12.0}), other), 120, verbose=True)
    assert "if the load may change" not in text
    assert "loses least" not in text


def test_no_second_recommendation_where_the_first_loses_as_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dlprof.advise.recommend.NEAR", 0.0)  # then all lose as little
        answer = recommend(_beside({"cores": 12.0}))
        assert _least(answer).config == answer.config


def test_workers_that_persist_are_no_second_recommendation() -> None:
    answer = _known(recommend(_beside({"cores": 12.0})))
    least = _least(answer)
    kept = dataclasses.replace(least.config, persistent_workers=True)
    other = dataclasses.replace(answer, least_loss=dataclasses.replace(least, config=kept))
    same = dataclasses.replace(other, config=least.config)
    text = drawn(recommendation_report(_beside({"cores": 12.0}), same), 120, verbose=True)
    assert "if the load may change" not in text
    assert "loses least" not in text


@pytest.mark.parametrize(
    ("load", "known"), [({"cores": 12.0}, False), ({"cores": 1.0, "memory": 1e9}, True)]
)
def test_what_the_model_can_not_take_away_is_to_be_measured(
    load: dict[str, float],
    known: bool,
) -> None:
    answer = recommend(_beside(load, known=known))
    (reason,) = [each for each in answer.reasons if "load of dlprof's own" in each.claim]
    assert "sweep without it" in reason.claim
    assert reason.evidence == {"make_load": load}
    assert bool(answer.cases) == known


def test_without_a_load_a_measured_answer_has_no_cases() -> None:
    answer = recommend(_beside(None))
    assert (answer.cases, answer.least_loss) == ((), None)


def test_a_background_that_is_assumed_has_both_forms_too() -> None:
    answer = recommend(calibrated(), Constraints(neighbours=4.0))
    assert [case.name for case in answer.cases] == ["as shared now", "dedicated"]
    assert min(_least(answer).speeds.values()) > 0.5
    assert recommend(calibrated(), Constraints(cores=4.0)).least_loss is None
