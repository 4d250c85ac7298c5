"""Waiting for what other processes and threads do, on a machine of any speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from dlprof.errors import FileError
from dlprof.store import read_run

PATIENCE_S = 120.0  # which only a hang reaches


def until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether it comes to hold. Wait shorter for an end that would come by itself."""
    ends_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.02)
    return True


def has_ended(pid: int) -> bool:
    """Whether a process has gone, or waits for nothing but to be reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def has_trials(run_file: Path, count: int = 1) -> bool:
    """Whether a run file has so many by now; it is empty for a moment, once it is there."""
    with contextlib.suppress(FileError):
        return len(read_run(run_file).trials) >= count
    return False
