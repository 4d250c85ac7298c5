"""Programs that tests run as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(
    folder: Path, *words: str, timeout_s: float = 240.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """What Python does in a folder, to its end; ``more`` are variables beside its own."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def started(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """The same while it runs, as the first of a session of its own."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
