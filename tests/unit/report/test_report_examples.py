"""The run files of the documentation say what the documentation says of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from golden import drawn

from dlprof import api
from dlprof.advise.compare import compare
from dlprof.advise.recommend import with_recommendation
from dlprof.records import Estimate
from dlprof.report.compare import comparison_report
from dlprof.report.predict import forecast_report
from dlprof.report.sweep import recommendation_report, sweep_report
from dlprof.store import read_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"


def test_the_page_shows_what_the_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = compare(
        read_run("single-box.dlprof.jsonl"),
        read_run("shared-server.dlprof.jsonl"),
    )
    page = (ROOT / "docs" / "concepts" / "comparing.md").read_text(encoding="utf-8")
    assert drawn(comparison_report(found), 80).strip() in page
    assert found.findings[0].code == "cpu.neighbours"


def test_the_quota_hides_behind_the_neighbours() -> None:
    a, b = (read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in ("single-box", "shared-server"))
    parts = {part.code: part.log_ratio.value for part in compare(a, b).parts}
    assert parts["neighbours"] < 5 * parts["quota"] < 0


def test_how_sure_it_is_of_named_settings_counts_all_of_them() -> None:
    run = read_run(EXAMPLES / "why.dlprof.jsonl")
    of_the_run, named = api.predict(run), api.predict(run, num_workers=range(17))
    assert of_the_run.confidence_reason.endswith("of the 2 measured settings (95%)")
    assert named.pick == of_the_run.pick
    assert named.confidence == "low"
    assert named.confidence_reason.endswith(f"of the best of {len(named.rows)} settings (95%)")


def test_of_named_settings_the_screen_says_that_the_run_has_others() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    found = api.predict(run, num_workers=range(4))
    assert run.recommendation is not None
    assert run.recommendation.config not in {row.config for row in found.rows}
    hint = "(of those named; of all: dlprof recommend)"
    assert hint in drawn(forecast_report(run, found, named=True), 80)
    assert hint not in drawn(forecast_report(run, found), 80)


def test_the_default_is_one_at_the_same_batch_size() -> None:
    run = read_run(EXAMPLES / "single-box.dlprof.jsonl")
    text = " ".join(drawn(sweep_report(run), 80).split())
    assert (
        "not slower than PyTorch's default at batch_size=8 (95%); how much faster, if at all, "
        "is too noisy to say; rerun with --budget 60s"
    ) in text


def test_a_certificate_that_says_nothing_is_no_promise() -> None:
    run = read_run(EXAMPLES / "single-box.dlprof.jsonl")
    found = with_recommendation(run).recommendation
    assert found is not None
    assert found.certificate is not None
    sure = dataclasses.replace(found.certificate, epsilon=0.94, epsilon_measured=0.94)
    wide = Estimate(value=1.0, low=0.05, high=20.0)
    rates = tuple(dataclasses.replace(each, ratio=wide) for each in found.rates)
    advice = dataclasses.replace(found, certificate=sure, rates=rates)
    text = " ".join(drawn(recommendation_report(run, advice), 80).split())
    assert "too noisy to say (95% CI 0.05-20); rerun" in text
    assert "slower" not in text
