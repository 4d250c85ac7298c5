"""What trials tell, where it makes sense."""

from __future__ import annotations

import dataclasses

import pytest
from finding_cases import Loader, explanation

from dlprof.engine.telling import explanation_of, timeline_of
from dlprof.store.codec import to_json


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
