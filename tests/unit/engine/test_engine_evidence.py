"""What trials tell, where it makes sense."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from finding_cases import Loader, explanation

from dlprof.engine.preparation import explanation_of, sensible, timeline_of
from dlprof.records import Calibration
from dlprof.records.codec import to_json


@pytest.mark.parametrize(
    "told",
    [{}, {"explanation": None}, {"explanation": {"batches": float("nan")}}, {"explanation": []}],
)
def test_what_makes_no_sense_is_no_explanation(told: dict[str, object]) -> None:
    assert explanation_of(told, "t0001") is None
    assert timeline_of(told, "t0001") is None


def test_an_explanation_bears_the_id_of_its_trial() -> None:
    told = to_json(dataclasses.replace(explanation(Loader()), trial_id=""))
    assert explanation_of({"explanation": told}, "t0007") == explanation(Loader(), "t0007")


@pytest.mark.parametrize("costs", [{"copy_s": -0.1}, {"samples_per_batch": 0.0}])
def test_costs_that_could_not_be_read_again_are_not_kept(costs: dict[str, Any]) -> None:
    assert sensible(Calibration(**costs)) is None
    assert sensible(Calibration()) == Calibration()
