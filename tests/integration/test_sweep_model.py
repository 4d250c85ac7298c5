"""Sweeps that the model leads, whole and cut off, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from programs import started
from waiting import until

from dlprof.errors import ExitCode
from dlprof.records import Run
from dlprof.store import read_run

pytestmark = pytest.mark.slow

FEW = ("--search", "model", "--num-workers", "0:4", "--trial-time", "0.2s", "--max-workers", "4")
WAITS = "synthetic:wait_ms=2,shape=4"

OF_ITS_OWN = """
class Loader:
    def __init__(self, num_workers):
        self.num_workers = num_workers

    def __iter__(self):
        import time, torch
        while True:
            time.sleep(0.001)
            yield torch.zeros(4, 2)


def make(num_workers=0, prefetch_factor=2, pin_memory=False, persistent_workers=False):
    return Loader(num_workers)
"""

ONE_AT_A_TIME = """
import multiprocessing, time, torch
from torch.utils.data import Dataset


class Data(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with self.lock:
            time.sleep(0.005)
        return torch.zeros(4)


def dataset():
    return Data()
"""


def command(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return started(place, "-m", "dlprof", "sweep", *arguments)


def swept(place: Path, *arguments: str) -> tuple[Run, str]:
    process = command(place, *arguments, "-o", "run.dlprof.jsonl")
    output, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    return read_run(place / "run.dlprof.jsonl"), output


def has_explained(path: Path) -> bool:
    """Whether a run file that is just written to, and may have no header yet, explains a trial."""
    return path.exists() and path.stat().st_size > 0 and bool(read_run(path).explanations)


def purposes(run: Run) -> list[str]:
    return [trial.purpose for trial in run.trials]


def test_few_of_many_configurations_are_measured(tmp_path: Path) -> None:
    run, output = swept(tmp_path, WAITS, *FEW, "--json")
    document: dict[str, Any] = json.loads(output)

    assert run.calibration is not None
    assert run.prediction is not None
    assert purposes(run)[:3] == ["explain"] * 3
    cells = {cell.config for cell in run.prediction.cells}
    measured = {trial.config for trial in run.completed}
    assert set(run.prediction.race) & measured
    assert measured <= cells  # what could be better by most is measured beside the first few
    assert len(measured) < len(cells)
    assert document["prediction"]["pick"] in [
        cell["config"] for cell in document["prediction"]["cells"]
    ]
    assert run.recommendation is not None
    assert run.recommendation.config in measured
    assert any("predicted" in reason.claim for reason in run.recommendation.reasons)


def test_a_budget_without_room_for_the_model_is_reported(tmp_path: Path) -> None:
    process = command(tmp_path, WAITS, "--num-workers", "0:7", "--budget", "5s")
    _, errors = process.communicate(timeout=150)
    if "can't hold a single trial" not in errors:  # as on a machine that is very slow just now
        assert process.returncode == 0, errors
        assert "too short for the model" in errors


def test_a_sweep_cut_off_while_it_calibrates_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.dlprof.jsonl"
    process = command(tmp_path, WAITS, *FEW, "-o", path.name)
    assert until(lambda: has_explained(path))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    before = read_run(path)
    assert before.explanations
    assert before.prediction is None

    run, _ = swept(tmp_path, WAITS, "--resume")

    explained = [trial.config for trial in run.trials if trial.purpose == "explain"]
    assert len(set(explained)) == 3
    assert run.trials[: len(before.trials)] == before.trials  # what was done isn't done again
    assert run.prediction is not None
    assert run.recommendation is not None


def test_a_loader_that_cannot_be_explained_is_measured(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OF_ITS_OWN)
    few = ("--num-workers", "0:4", "--prefetch-factor", "2,4", "--trial-time", "0.1s")
    run, _ = swept(tmp_path, "own.py:make", "--search", "model", *few, "--budget", "20s")

    assert run.prediction is None
    assert run.recommendation is not None
    assert run.completed


def test_a_dataset_that_raises_whatever_the_settings_ends_the_sweep_soon(tmp_path: Path) -> None:
    target = f"{Path(__file__).parent / 'faulty_targets.py'}:raises"
    process = command(tmp_path, target, "--trial-time", "0.1s", "-o", "run.dlprof.jsonl")
    _, errors = process.communicate(timeout=150)
    assert process.returncode == ExitCode.USAGE
    assert "is not there" in errors
    assert "so no others are tried" in " ".join(errors.split())
    trials = read_run(tmp_path / "run.dlprof.jsonl").trials
    assert not any(trial.outcome == "completed" for trial in trials)
    assert {trial.config.num_workers > 0 for trial in trials} == {False, True}
    assert len(trials) <= 4


def test_what_serves_one_at_a_time_is_predicted_to_serve_no_more_to_many(tmp_path: Path) -> None:
    """At most 200 samples a second, whoever waits: sleeping under a lock that all workers share."""
    (tmp_path / "one.py").write_text(ONE_AT_A_TIME)
    few = (
        "--search",
        "model",
        "--batch-size",
        "4",
        "--num-workers",
        "0:16",
        "--trial-time",
        "0.4s",
    )
    run, _ = swept(tmp_path, "one.py:dataset", *few, "--budget", "20s", "--step-time", "none")

    assert run.calibration is not None
    assert run.prediction is not None
    assert run.recommendation is not None
    # Batches of four. Where nobody may look at what workers wait for, it is known by its waits.
    assert 30 < 1 / (run.calibration.lock_s or run.calibration.queueing_s) < 80
    assert all(cell.samples_per_s.value < 320 for cell in run.prediction.cells)
    many = (cell.bound for cell in run.prediction.cells if cell.config.num_workers > 4)
    assert {*many} == {"lock" if run.calibration.lock_s else "storage"}
    assert run.recommendation.expected.samples_per_s.value < 240
