from __future__ import annotations

import dataclasses
import json

import pytest
from example_runs import example_recommendation, example_run, hostile_run
from gate_samples import failing_check, passing_check
from profiled_runs import profiled_run

from dlprof.cli.entry import run as run_program
from dlprof.errors import NothingMeasuredError
from dlprof.report.check import check_document
from dlprof.report.documents import (
    brief_document,
    json_document,
    profile_document,
    sweep_document,
)


def test_a_sweep_has_the_keys_of_the_contract() -> None:
    document = json.loads(sweep_document(example_run()))
    assert {
        "schema_version",
        "run_file",
        "machine",
        "target",
        "trials",
        "left_out",
        "recommendation",
        "cost_s",
    } <= set(document)
    assert document["schema_version"] == 1
    assert set(document["cost_s"]) == {"measured", "overhead", "total"}


def test_a_trial_has_the_keys_of_the_contract() -> None:
    trial = json.loads(sweep_document(example_run()))["trials"][0]
    wanted = (
        "id config repetition outcome failure samples_per_s batches_per_s bytes_per_s startup_s"
        " epoch_turnover_s wait_fraction usage noisy warnings unavailable"
    )
    assert set(wanted.split()) <= set(trial)
    assert set(trial["samples_per_s"]) == {"value", "low", "high"}
    config = (
        "num_workers prefetch_factor pin_memory persistent_workers batch_size in_order"
        " start_method sharing_strategy worker_threads"
    )
    assert set(trial["config"]) == set(config.split())


def test_a_recommendation_has_the_keys_of_the_contract() -> None:
    document = json.loads(json_document(example_recommendation(), run_file=""))
    wanted = (
        "schema_version config dataloader_kwargs expected confidence reasons alternatives"
        " constraints rules_of_thumb findings"
    )
    assert set(wanted.split()) <= set(document)
    assert {"claim", "evidence"} == set(document["reasons"][0])
    rule = {"name", "config", "expected_samples_per_s"}
    assert rule <= set(document["rules_of_thumb"][0])


def test_a_run_that_did_not_end_costs_what_its_trials_cost() -> None:
    run = dataclasses.replace(example_run(), end=None)
    cost = json.loads(sweep_document(run))["cost_s"]
    assert cost["total"] == sum(trial.wall_s for trial in run.trials)
    assert abs(cost["measured"] + cost["overhead"] - cost["total"]) < 1e-9


def test_documents_hold_nothing_that_a_terminal_acts_on() -> None:
    run = hostile_run()
    assert run.recommendation is not None
    for text in (sweep_document(run), json_document(run.recommendation, run_file=run.path)):
        assert text.isascii()
        assert "\x1b" not in text


def test_a_brief_document_has_the_answer_of_the_whole_one() -> None:
    whole = json_document(example_recommendation(), run_file="")
    for text in (whole, sweep_document(example_run())):
        brief = json.loads(brief_document(text))
        assert brief["dataloader_kwargs"] == json.loads(whole)["dataloader_kwargs"]
        assert brief["expected"] == json.loads(whole)["expected"]
        assert brief["reasons"][0] == json.loads(whole)["reasons"][0]["claim"]
    sweep = sweep_document(example_run())
    total = json.loads(sweep)["cost_s"]["total"]
    assert json.loads(brief_document(sweep))["cost_s"] == total


def test_a_brief_profile_has_its_findings_and_their_fixes() -> None:
    whole = json.loads(profile_document(profiled_run()))
    brief = json.loads(brief_document(profile_document(profiled_run())))
    for finding, full in zip(brief["findings"], whole["findings"], strict=True):
        assert finding["code"] == full["code"]
        assert finding["fix"] == full["fix"]["text"]
        assert finding["dataloader_kwargs"] == full["fix"]["dataloader_kwargs"]
    fault = NothingMeasuredError("Nothing worked.", hint="Try less.")
    failed = json.loads(brief_document(profile_document(profiled_run(), fault)))
    assert failed["error"] == fault.document


def test_a_brief_check_names_what_did_not_pass() -> None:
    brief = json.loads(brief_document(check_document(failing_check())))
    assert brief["state"] == "fail"
    assert brief["targets"][0]["not_passed"][0].startswith("Service time")
    assert (
        json.loads(brief_document(check_document(passing_check())))["targets"][0]["not_passed"]
        == []
    )


@pytest.mark.parametrize(
    "text",
    [
        sweep_document(example_run()),
        sweep_document(hostile_run()),
        profile_document(profiled_run()),
        check_document(failing_check()),
    ],
    ids=["sweep", "hostile", "profile", "check"],
)
def test_a_brief_document_is_brief(text: str) -> None:
    brief = brief_document(text)
    assert len(brief.splitlines()) <= 60
    assert len(brief) < len(text) / 2
    assert brief.isascii()


@pytest.mark.parametrize("command", ["sweep", "recommend", "profile", "check"])
def test_brief_alone_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program([command, "x", "--brief"], {}) == 2
    assert "--brief shortens --json" in capsys.readouterr().err
