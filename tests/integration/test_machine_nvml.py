"""The real NVML bindings against a stub library: no GPU, but every call goes through ctypes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Functions and their codes as in nvml.h; what is left out acts as on an old driver.
_STUB = r"""
#include <stdint.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
int nvmlInitWithFlags(unsigned int flags) { return INIT; }
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    if (index == 1) return 15;
    *handle = (void *)(uintptr_t)(index + 1);
    return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    strncpy(name, "Stub GPU", length);
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    strncpy(uuid, "GPU-stub", length);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    memory->total = 11ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = 10ULL << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates) { return 3; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned int *generation) { return 4; }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned int *width) { *width = 16; return 0; }
"""

_PROGRAM = """
import dataclasses, json
from dlprof.machine.gpus import GpuReader
reader = GpuReader()
cards = [dataclasses.asdict(card) for card in reader.list_gpus()]
usage = [dataclasses.asdict(sample) for sample in reader.sample(pcie=True)]
neighbours = [dataclasses.asdict(card) for card in reader.neighbours()]
reader.close()
print(json.dumps([cards, usage, neighbours, reader.unavailable]))
"""


def _ask(folder: Path, init: int) -> list[Any]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    source, library = folder / "stub.c", folder / "libnvidia-ml.so.1"
    source.write_text(_STUB)
    shape = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", f"-DINIT={init}"]
    subprocess.run([compiler, *shape, "-o", str(library), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_an_old_driver_with_one_card_lost(tmp_path: Path) -> None:
    cards, usage, neighbours, unavailable = _ask(tmp_path, init=0)
    assert [card["name"] for card in cards] == ["Stub GPU"]
    assert cards[0]["memory_bytes"] == 11 << 30
    assert cards[0]["pcie_width"] == 16
    assert cards[0]["pcie_generation"] is None
    assert usage[0]["memory_used_bytes"] == 1 << 30
    assert usage[0]["kernel_active_fraction"] is None
    assert usage[0]["unavailable"] == {
        "kernel_active_fraction": "this card or its mode doesn't tell (NVML: not supported)",
        "pcie_rx_bytes_per_s": "the driver is too old to tell",
        "pcie_tx_bytes_per_s": "the driver is too old to tell",
    }
    assert neighbours[0]["processes"] is None
    assert unavailable == {
        "gpus[1]": "the card has dropped off the bus (NVML: GPU is lost)",
        "gpus[0].numa_node": "the driver is too old to tell",
        "gpus[0].pcie_generation": "this user may not ask (NVML: no permission)",
    }


def test_a_library_without_a_driver(tmp_path: Path) -> None:
    cards, usage, neighbours, unavailable = _ask(tmp_path, init=9)
    assert cards == usage == neighbours == []
    assert unavailable == {"gpus": "the NVIDIA driver is not loaded"}
