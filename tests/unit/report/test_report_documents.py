from __future__ import annotations

import dataclasses
import json

from example_runs import example_recommendation, example_run, hostile_run

from dlprof.report.documents import recommend_document, sweep_document


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
    document = json.loads(recommend_document(example_run(), example_recommendation()))
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
    for text in (sweep_document(run), recommend_document(run, run.recommendation)):
        assert text.isascii()
        assert "\x1b" not in text
