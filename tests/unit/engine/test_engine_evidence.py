"""What trials show, where it makes sense."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import config, trial
from finding_cases import Loader, explanation

from dlprof.engine import trials
from dlprof.engine.trials import calibrated, explanation_of, sent
from dlprof.records import Target, Timeline, Usage
from dlprof.records.codec import to_json


@pytest.mark.parametrize(
    "shown",
    [{}, {"explanation": None}, {"explanation": {"batches": float("nan")}}, {"explanation": []}],
)
def test_what_makes_no_sense_is_no_explanation(shown: dict[str, object]) -> None:
    assert explanation_of(shown, trial(config(2))) is None
    assert sent(Timeline, shown, "timeline", trial_id="t0001") is None


def test_an_explanation_bears_the_id_of_its_trial() -> None:
    shown = to_json(dataclasses.replace(explanation(Loader()), trial_id=""))
    made = dataclasses.replace(trial(config(2)), id="t0007")
    assert explanation_of({"explanation": shown}, made) == explanation(Loader(), "t0007")


def test_a_trial_that_was_glanced_at_has_waits_for_the_gil_apart() -> None:
    shown = {"explanation": to_json(explanation(Loader(fetch_cpu=0.001, fetch_io=0.018)))}
    waits = {"running": 0.1, "gil": 0.6, "sleep": 0.3}
    seen = dataclasses.replace(trial(config(2)), usage=Usage(worker_waits=waits))
    found = explanation_of(shown, seen)
    assert found is not None
    fetch = found.stage("fetch")
    assert fetch is not None
    assert fetch.io_s == pytest.approx(0.018)
    assert fetch.gil_s == pytest.approx(0.012)  # two workers, 100 batches a second: 20 ms each


@pytest.mark.parametrize("costs", [{"copy_s": -0.1}, {"samples_per_batch": 0.0}])
def test_costs_that_could_not_be_read_again_are_not_kept(
    costs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(spec="", kind="map", dataset="")
    seen = [explanation(Loader(), "t0001")], [trial(config(2))], target
    found = calibrated(*seen)
    assert found is not None
    assert calibrated([], [], target) is None
    broken = dataclasses.replace(found, **costs)
    monkeypatch.setattr(trials, "fit", lambda *_, **__: broken)
    assert calibrated(*seen) is None


def test_a_trial_of_samples_that_others_may_have_stored_may_be_off_by_what_that_makes() -> None:
    """Where one process had them they cost a twentieth, so its rate is off by twenty either way."""
    made = trial(config(2), 100.0)
    either = trials._either_way(made, 0.05)
    assert either.samples_per_s is not None
    assert either.samples_per_s.ends == pytest.approx((5.0, 2000.0))
    assert either.noisy
    assert either.warnings != made.warnings
