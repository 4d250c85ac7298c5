"""No finding is grave whose fix may bring nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, cast

import pytest
from builders import config
from finding_cases import Loader, evidence

from dlprof.advise.findings import diagnosis
from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.diagnosis import Cause, Placed, _graded, find
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.wording import as_fast, between
from dlprof.records import Estimate, Finding, FindingCode, Fix
from dlprof.report.findings import known_gain

STEP = Loader(fetch_cpu=0.038, rate=45.0, step=0.002, wait=0.02)
FINDING = Finding(
    code="too_few_workers",
    severity="high",
    title="More workers would pay",
    explanation="",
    fix=Fix(text="Set num_workers=4.", dataloader_kwargs={"num_workers": 4}),
    cost=0.5,
)


@pytest.mark.parametrize(
    ("gain", "severity"),
    [
        (Estimate(value=2.0, low=1.5, high=2.7), "high"),
        (Estimate(value=0.94, low=0.58, high=1.54), "medium"),
        (Estimate(value=0.94, low=0.8, high=1.1), "medium"),
        (Estimate(value=1.5, low=0.9, high=2.5), "medium"),
        (None, "medium"),
    ],
)
def test_a_gain_that_may_be_none_is_not_high(gain: Estimate | None, severity: str) -> None:
    stated = dataclasses.replace(FINDING, predicted_gain=gain)
    found = _graded(Placed(Place.SETTING, stated, config(4)), evidence(STEP))
    assert found is not None
    assert found.severity == severity
    assert found.fix is not None
    loses = gain is not None and gain.value < 1
    assert bool(found.fix.dataloader_kwargs) is not loses
    # Of an interval wider than a factor of two no figure is shown.
    noisy = gain is not None and gain.is_wide
    shown = "faster or slower (too noisy to say)" if noisy else "0.94x (95% CI 0.80-1.10)"
    assert (f"num_workers=4 shows no gain: {shown}" in found.fix.text) is loses


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Estimate(value=1.3, low=1.1, high=1.5), "1.30x as fast (95% CI 1.10-1.50)"),
        (Estimate(value=7.03, low=1.04, high=47.0), "faster (by how much is too noisy to say)"),
        (Estimate(value=0.4, low=0.2, high=0.9), "slower (by how much is too noisy to say)"),
        (Estimate(value=1.0, low=0.4, high=2.5), "faster or slower (too noisy to say)"),
        (Estimate(value=1.3), "1.30x as fast"),
        (Estimate(value=0.0021, low=0.0018, high=0.0024), "0.0021x as fast (95% CI 0.0018-0.0024)"),
        (Estimate(value=120.3, low=110.2, high=131.4), "120x as fast (95% CI 110-131)"),
    ],
)
def test_a_ratio_that_is_known_to_no_factor_of_two_has_no_figure(
    ratio: Estimate, said: str
) -> None:
    assert f"{as_fast(ratio)}{between(ratio)}" == said


def test_what_loses_nearly_all_has_a_figure() -> None:
    gain = Estimate(value=0.0021, low=0.0018, high=0.0024)
    stated = dataclasses.replace(FINDING, predicted_gain=gain)
    found = _graded(Placed(Place.SETTING, stated, config(4)), evidence(STEP))
    assert found is not None
    assert found.fix is not None
    assert "shows no gain: 0.0021x (95% CI 0.0018-0.0024)." in found.fix.text


def test_what_costs_nothing_leaves_to_the_next_cause_what_was_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = {"lock": 0.5, "collate": 0.0, "too_few_workers": 0.8}
    places = (Place.FAULT, Place.FAULT, Place.SETTING)

    def rule(cost: float) -> Callable[[Evidence], Claim]:
        return lambda _: Claim("", "", cost)

    causes = [
        Cause(cast("FindingCode", code), place, rule(cost))
        for (code, cost), place in zip(costs.items(), places, strict=True)
    ]
    monkeypatch.setattr(diagnosis, "TABLE", causes)
    free = evidence(dataclasses.replace(STEP, step=0.0))
    assert [each.cost for each in find(free)] == [0.5, 0.0, 0.5]


def test_what_ends_the_run_needs_no_gain_to_be_high() -> None:
    found = _graded(Placed(Place.BROKEN, FINDING, config(4)), evidence(STEP))
    assert found is not None
    assert found.severity == "high"


@pytest.mark.parametrize(
    ("step", "where"), [(0.0, "with no training step"), (0.002, "at a step of 2.0 ms")]
)
def test_a_gain_says_at_which_step_it_is_one(step: float, where: str) -> None:
    loader = dataclasses.replace(STEP, step=step)
    (first, *_) = [each for each in find(evidence(loader)) if each.predicted_gain is not None]
    assert f") {where}, " in known_gain(first)


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("seen_with", [1, 2])
def test_more_workers_of_an_iterable_are_sure_once_several_were_seen(
    kind: Literal["map", "iterable"], seen_with: int
) -> None:
    """A budget may end before the trial that would show whether they share samples out."""
    alone = Loader(config=config(0), fetch_cpu=0.0005, fetch_io=0.03, rate=32)
    calibration = dataclasses.replace(alone, config=config(seen_with), rate=32 * seen_with)
    seen = evidence(alone, calibrations=[calibration])
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, kind=kind))
    first = find(seen)[0]
    assert first.fix is not None
    assert first.fix.dataloader_kwargs["num_workers"] > 2
    open_ = kind == "iterable" and seen_with == 1
    assert ("wasn't seen with several workers" in first.fix.text) is open_
    assert first.severity == ("medium" if open_ else "high")
