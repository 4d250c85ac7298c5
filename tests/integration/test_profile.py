"""Whole profiles through the command line, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schemas import conforms, run_file_conforms
from test_sweep import TARGETS, dlprof

from dlprof.records.stages import AGE_STAGES
from dlprof.store import read_run

QUICK = ("--trial-time", "0.2s", "--budget", "60s", "-q")
WAITING = "synthetic:wait_ms=4"


def profile(place: Path, *arguments: str) -> dict[str, Any]:
    done = dlprof(place, "profile", *arguments, *QUICK, "-o", "run.dlprof.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    conforms("profile", document)
    return document


@pytest.mark.slow
def test_a_consumer_that_is_the_limit_is_reported(tmp_path: Path) -> None:
    options = ("--num-workers", "2", "--batch-size", "2", "--step-time", "100ms")
    document = profile(tmp_path, WAITING, *options)
    assert [finding["code"] for finding in document["findings"][:1]] == ["consumer"]
    assert document["config"]["num_workers"] == 2
    assert document["stalls"]["prep_fraction"] < 0.5


_FEW = """
import time
import torch

class Few(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4)

def few(drop_last="no"):
    return torch.utils.data.DataLoader(Few(), batch_size=8, drop_last=drop_last == "yes")
"""


def test_an_epoch_of_less_than_a_batch_is_profiled_and_said(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(_FEW)
    profile(tmp_path, "small.py:few")
    run = read_run(tmp_path / "run.dlprof.jsonl")
    trial = run.completed[0]
    assert (trial.samples_per_batch, trial.whole_epochs) == (5.0, True)
    said = " ".join(dlprof(tmp_path, "report", "run.dlprof.jsonl").stdout.split())
    assert said.startswith("An epoch is one batch of 5 samples, less than a full batch of 8")
    # A sweep compares rates, of which there is none for full batches; nor is there any batch here.
    for arguments in (
        ("sweep", "small.py:few"),
        ("profile", "small.py:few", "--arg", "drop_last=yes"),
    ):
        done = dlprof(tmp_path, *arguments, *QUICK, "-o", "none.dlprof.jsonl")
        assert done.returncode == 2, done.stderr


def remedied(document: dict[str, Any]) -> None:
    codes = [finding["code"] for finding in document["findings"]]
    assert set(codes[:2]) & {"too_few_workers", "fetch.io"}, codes
    assert document["findings"][0]["predicted_gain"]["value"] > 1.5


@pytest.mark.slow
def test_waiting_without_workers_is_reported_with_a_remedy(tmp_path: Path) -> None:
    remedied(profile(tmp_path, WAITING, "--num-workers", "0", "--batch-size", "4"))


def test_waiting_is_reported_with_a_remedy_and_the_run_file_holds_all_of_it(tmp_path: Path) -> None:
    remedied(profile(tmp_path, WAITING, "--num-workers", "1", "--batch-size", "2"))
    run_file_conforms(tmp_path / "run.dlprof.jsonl")
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.diagnosis is not None
    assert run.calibration is not None
    assert run.timelines
    explained = next(each for each in run.explanations if each.config == run.diagnosis.config)
    assert explained.age_s is not None
    parts = sum(stage.mean_s for stage in explained.stages if stage.name in AGE_STAGES)
    assert abs(parts - explained.age_s) <= 0.02 * explained.age_s
    assert {trial.purpose for trial in run.trials} >= {"measure", "explain"}
    assert all(trial.purpose == "measure" for trial in run.completed)
    for command in (("recommend",), ("report", "--format", "perfetto")):
        assert dlprof(tmp_path, *command, "run.dlprof.jsonl").returncode == 0


@pytest.mark.slow
def test_a_loader_that_fails_is_reported_with_its_own_fault(tmp_path: Path) -> None:
    options = ("--arg", "how=exit", "--num-workers", "1", *QUICK)
    done = dlprof(tmp_path, "profile", f"{TARGETS}:dies", *options)
    assert done.returncode == 6, done.stderr
    assert "exit code 3" in done.stderr
