"""NVIDIA's management library without a GPU: a C stub, and programs that meet it by ctypes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).with_name("nvml_stub.c")


def build(folder: Path, *, old: bool = False) -> Path:
    """Compile the stub; skips where that can't be done.

    Args:
        folder: Where the library goes, in a directory of its own.
        old: Leave out what old drivers lack.

    Returns:
        The directory for ``LD_LIBRARY_PATH``.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler for the stub of libnvidia-ml")
    place = folder / ("old" if old else "new")
    place.mkdir()
    shape = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *(["-DOLD"] if old else [])]
    library = str(place / "libnvidia-ml.so.1")
    subprocess.run([compiler, *shape, "-o", library, str(_SOURCE)], check=True, timeout=60)
    return place


def environment(library: Path, folder: Path, **scenario: object) -> dict[str, str]:
    """The environment of a process that finds the stub instead of a driver.

    Args:
        library: From ``build``.
        folder: Where the scenario's file goes.
        scenario: Its keys, as the stub's source explains them.
    """
    file = folder / "scenario.txt"
    file.write_text("".join(f"{key} {value}\n" for key, value in scenario.items()))
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    rest = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**rest, "LD_LIBRARY_PATH": str(library), "NVML_STUB": str(file)}


def answer_of(program: str, environ: dict[str, str], timeout_s: float = 60.0) -> Any:
    """What a Python program writes as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=timeout_s,
    )
    return json.loads(done.stdout)
