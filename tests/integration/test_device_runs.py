"""Sweeps, profiles and transfers as users run them, on an accelerator that torch is made to see."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python
from schemas import conforms

from dlprof.records import Config
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

TARGETS = Path(__file__).parent / "accelerated_target.py"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="trials are forked from a patched torch"
)


def _dlprof(place: Path, *arguments: str) -> dict[str, Any]:
    ended = python(place, "-m", "dlprof", *arguments, "--json", "-q", timeout_s=120)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.slow
def test_a_sweep_copies_its_batches_and_measures_pinning(tmp_path: Path) -> None:
    swept = _dlprof(
        tmp_path,
        *("sweep", f"{TARGETS}:train", "--step", f"{TARGETS}:step"),
        *("--num-workers", "1", "--prefetch-factor", "2", "--persistent-workers", "off"),
        *("--pin-memory", "both", "--trial-time", "0.2s", "--repeats", "1", "--budget", "60s"),
        *("--search", "grid"),
    )
    copies = {trial["config"]["pin_memory"]: trial["copies"] for trial in swept["trials"]}
    assert set(copies) == {False, True}
    assert copies[False]["device"] == "meta:0"
    assert copies[False]["pinned_fraction"] == 0.0
    assert copies[True]["pinned_fraction"] == 1.0
    assert copies[False]["pin"] is None
    assert copies[True]["pin"]["thread_cpu_s"] > 0
    assert copies[False]["bytes"] == 16 * 64 * 4
    assert copies[False]["copy_s"] > copies[True]["copy_s"] >= 1e-3


def test_an_explained_trial_keeps_copies_apart_from_the_step(tmp_path: Path) -> None:
    request = TrialRequest(
        config=Config(num_workers=1, prefetch_factor=2),
        trial_s=0.2,
        step_s=20e-3,
        device="auto",
        explain=True,
        turnover=False,
    )
    limits = TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0)
    build = BuildRequest(target=parse_target(f"{TARGETS}:train"))
    with contextlib.closing(TrialRunner(build, directory=tmp_path)) as bench:
        bench.build(limits)
        trial, shown = bench.explain(request, trial_id="t1", repetition=0)
    assert trial.copies is not None
    stages = {stage["name"]: stage["mean_s"] for stage in shown["explanation"]["stages"]}
    assert stages["copy"] == pytest.approx(trial.copies.exposed_s)
    assert stages["copy"] >= 4e-3
    assert stages["step"] >= 10e-3  # it wakes earlier by what sleeping was late when tried
    assert list(stages).index("copy") < list(stages).index("step")


@pytest.mark.slow
def test_transfer_brings_a_batch_over_without_an_accelerator(tmp_path: Path) -> None:
    found = _dlprof(
        tmp_path, "transfer", "--device", "cpu", "--budget", "1s", "--target", "synthetic:cpu_ms=0"
    )
    conforms("transfer", found)
    assert [device["device"] for device in found["devices"]] == ["cpu"]
    assert found["batch"]["tensors_count"] >= 1
    assert found["batch"]["together"][0]["way"] == "pageable"
