"""Programs that tests run as a user does, whatever variables of dlprof's are set here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """That of these tests, without variables of dlprof's."""
    return {key: value for key, value in os.environ.items() if not key.startswith("DLPROF_")}


def python(
    folder: Path, *words: str, timeout_s: float = 240.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """What Python does in a folder, to its end; ``more`` are variables beside its own."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment(), **more},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The same while it runs, as the first of a session of its own."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
