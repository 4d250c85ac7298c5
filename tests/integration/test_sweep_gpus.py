"""A real sweep beside GPUs that a stub library stands for: it goes on, whatever the driver does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stub_nvml import build, environment

_SWEEP = (
    *("sweep", "synthetic:cpu_ms=0.2,shape=8", "--num-workers", "0", "--batch-size", "4"),
    *("--trial-time", "1s", "--repeats", "2", "--json", "-q"),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def _sweep(library: Path, folder: Path, **scenario: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", *_SWEEP, "-o", str(folder / "run.dlprof.jsonl")],
        env=environment(library, folder, **scenario),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [trial["outcome"] for trial in document["trials"]] == ["completed"] * 2
    return document


@pytest.mark.slow
def test_a_sweep_shows_all_eight_cards(library: Path, tmp_path: Path) -> None:
    document = _sweep(library, tmp_path, count=8, gpm=1, processes=2)
    assert len(document["machine"]["gpus"]) == 8
    cards = document["trials"][-1]["usage"]["gpu"]
    assert [card["index"] for card in cards] == list(range(8))
    assert cards[7]["kernel_active_fraction"] == pytest.approx(0.4)
    assert cards[7]["other_processes"] == 2
    assert cards[7]["sampler_cpu_cores"] >= 0
    assert cards[7]["unavailable"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        {"hang": "nvmlDeviceGetUtilizationRates"},
        pytest.param({"count": 2, "lost_after": 40}, marks=pytest.mark.slow),
    ],
)
def test_a_sweep_goes_on_beside_a_sick_driver(
    library: Path, tmp_path: Path, scenario: dict[str, object]
) -> None:
    document = _sweep(library, tmp_path, **scenario)
    for card in document["trials"][-1]["usage"]["gpu"]:
        assert card["kernel_active_fraction"] is None or card["unavailable"]
        assert all(card["unavailable"].values())


@pytest.mark.slow
def test_a_sweep_beside_an_old_and_slow_driver(tmp_path: Path) -> None:
    old = build(tmp_path, old=True)
    scenario = {"slow": "nvmlDeviceGetPcieThroughput", "slow_ms": 20, "processes": 2}
    (card,) = _sweep(old, tmp_path, **scenario)["trials"][-1]["usage"]["gpu"]
    assert card["other_processes"] == 2
    assert card["unavailable"]["sm_active_fraction"] == "the driver is too old to report it"


@pytest.mark.slow
def test_a_sweep_on_a_split_card_that_keeps_its_memory_to_itself(
    library: Path, tmp_path: Path
) -> None:
    scenario = {"mig": 1, "fail": "nvmlDeviceGetMemoryInfo", "code": 4}
    (card,) = _sweep(library, tmp_path, **scenario)["trials"][-1]["usage"]["gpu"]
    assert card["kernel_active_fraction"] is None
    assert card["unavailable"]["kernel_active_fraction"].startswith("MIG is on")
    assert card["unavailable"]["memory_used_bytes"].startswith("this user has no permission")
