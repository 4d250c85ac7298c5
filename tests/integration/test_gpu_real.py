"""What only a real accelerator can show; skipped where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dlprof.machine.nvidia import GpuReader
from dlprof.trial.observer import GpuSampler

_HAS_CUDA = torch.cuda.is_available() and torch.version.hip is None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _HAS_CUDA, reason="needs an NVIDIA GPU that torch finds"),
]


def _dlprof(*arguments: str) -> Any:
    command = [sys.executable, "-m", "dlprof", *arguments, "--json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return json.loads(done.stdout)


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def test_cudas_devices_are_found_among_nvmls_cards() -> None:
    reader = GpuReader()
    cards = reader.list_gpus()
    reader.close()
    by_uuid = {card.uuid.removeprefix("GPU-"): card for card in cards}
    for index in range(torch.cuda.device_count()):
        card = by_uuid[_uuid(index)]
        assert card.cuda_index in (index, None)  # None where the environment alone can't say


def test_kernels_memory_and_clocks_show_in_a_window() -> None:
    sampler, done = GpuSampler(period_s=0.3), threading.Event()
    matrix = torch.ones(2048, 2048, device="cuda")
    timer = threading.Timer(3.0, done.set)
    sampler.begin()
    sampler.start()
    timer.start()
    while not done.is_set():
        (matrix @ matrix).sum().item()
    sampler.stop()
    usage = {each.uuid.removeprefix("GPU-"): each for each in sampler.usage()}[_uuid(0)]
    sampler.close()
    assert usage.kernel_active_fraction is None or usage.kernel_active_fraction > 0
    assert usage.memory_used_bytes is None or usage.memory_used_bytes > 0
    for field, figure in (("power_w", usage.power_w), ("sm_clock_hz", usage.sm_clock_hz)):
        assert figure is not None or usage.unavailable[field]
    assert usage.sampler_cpu_cores is not None
    assert usage.sampler_cpu_cores < 0.1


def test_copies_show_the_link_as_it_is_while_they_run() -> None:
    shown = _dlprof("transfer", "--device", "cuda:0", "--budget", "5s")
    device = shown["devices"][0]
    assert device["timed_by"] == "device events"
    assert device["link"]["generation"] is not None or device["link"]["unavailable"]
    assert {cell["memory"] for cell in device["cells"]} == {"pageable", "pinned"}


def test_a_trial_shows_its_copies_and_its_card(tmp_path: Path) -> None:
    shown = _dlprof(
        *("sweep", "synthetic:cpu_ms=0.2,shape=3x224x224", "--num-workers", "2"),
        *("--pin-memory", "both", "--device", "cuda:0", "--trial-time", "2s", "--repeats", "1"),
        *("-o", str(tmp_path / "run.dlprof.jsonl")),
    )
    for trial in shown["trials"]:
        assert trial["copies"]["exposed_s"] is not None
        assert trial["usage"]["gpu"]
    pinned = {trial["config"]["pin_memory"]: trial["copies"] for trial in shown["trials"]}
    assert pinned[True]["pinned_fraction"] == pytest.approx(1)
    assert pinned[False]["pinned_fraction"] == 0
