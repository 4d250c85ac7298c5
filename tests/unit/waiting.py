"""Waiting for what other processes and threads do, on a machine of any speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

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
