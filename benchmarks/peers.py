"""Other programs that choose settings, run as their users run them: for comparison only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import DLPROF
from rivals import Pick

from dlprof.records import Config

_WORKLOAD = Path(__file__).with_name("loadtune_workload.py")
_TARGET = "TARGET = "
_LIMIT_S = 300.0
_BEST = re.compile(r"best overall: (?P<label>.*) — ")
_CHOSE_NOTHING = ("no better config found", "proposed no trials")


class PeerError(Exception):
    """It chose nothing; says why."""


def run_dlprof(target: str, *, budget_s: float, seed: int) -> Pick:
    """``dlprof sweep TARGET``, everything but the budget and the seed at its default.

    Raises:
        PeerError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        flags = ("--budget", f"{budget_s:g}s", "--seed", str(seed), "--json", "-q")
        command = [*DLPROF, "sweep", target, *flags, "-o", f"{folder}/run.dlprof.jsonl"]
        wall_s, stdout = _run(command, Path(folder), {})
    found = json.loads(stdout)
    advice = found.get("recommendation")
    if advice is None:
        raise PeerError(str(found.get("error") or "no recommendation"))
    sure = advice["certificate"] or {}
    return Pick(
        config=Config(**advice["config"]),
        cost_s=wall_s,
        epsilon=sure.get("epsilon"),
        epsilon_measured=sure.get("epsilon_measured"),
    )


def run_loadtune(target: str, site: Path) -> Pick:
    """``loadtune tune`` with a step that does nothing, everything at its default but the charts.

    Args:
        target: TARGET of a map-style dataset.
        site: Where loadtune is installed: ``pip install --no-deps --target SITE loadtune psutil``.

    Raises:
        PeerError: It failed; it takes no iterable dataset.
    """
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        workload = Path(folder) / "workload.py"
        workload.write_text(_WORKLOAD.read_text().replace(f'{_TARGET}""', f"{_TARGET}{target!r}"))
        command = [sys.executable, "-m", "loadtune.cli", "tune", str(workload), "--no-plots"]
        wall_s, stdout = _run(command, Path(folder), {"PYTHONPATH": str(site)})
    return Pick(config=loadtune_choice(stdout), cost_s=wall_s)


def loadtune_choice(stdout: str) -> Config:
    """What loadtune's last words name; its baseline, which is PyTorch's default, if nothing.

    Raises:
        PeerError: They say neither.
    """
    found = _BEST.search(stdout)
    if found is None:
        if any(words in stdout for words in _CHOSE_NOTHING):
            return Config()
        raise PeerError(f"loadtune said: {stdout[-200:]}")
    parts = dict(part.partition("=")[::2] for part in found["label"].split(", "))
    prefetch = parts.get("prefetch")
    return Config(
        num_workers=int(parts["workers"]), prefetch_factor=int(prefetch) if prefetch else None
    ).canonical()


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> tuple[float, str]:
    """Run a command to its end; returns seconds and what it wrote."""
    began_s = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise PeerError(f"it did not end within {_LIMIT_S:g} s") from None
        finally:  # a trial of loadtune would outlive it, and slow what is asked next
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise PeerError((stdout + stderr)[-300:])
    return time.perf_counter() - began_s, stdout
