"""Neighbours that take cores: one that never rests, or several that come and go."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

_LIVES = "import os\nparent = os.getppid()\n"  # ends with its parent, however that ends
_STEADY = (
    _LIVES
    + """
import time
while os.getppid() == parent:
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
"""
)
_BURSTS = (
    _LIVES
    + """
import random, sys, time
rng = random.Random(int(sys.argv[1]))
while os.getppid() == parent:
    end = time.monotonic() + rng.uniform(0.5, 4.0)
    while time.monotonic() < end:
        pass
    time.sleep(rng.uniform(0.5, 4.0))
"""
)


@contextlib.contextmanager
def neighbours(count: int, *, bursts: bool = False) -> Iterator[None]:
    """Keep cores busy meanwhile.

    Args:
        count: Processes, a core each.
        bursts: Whether each works for some seconds and rests for some, at random, so that what is
            measured beside them differs from one second to the next.
    """
    program = _BURSTS if bursts else _STEADY
    commands = [[sys.executable, "-c", program, str(seed)] for seed in range(count)]
    started = [subprocess.Popen(command) for command in commands]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
