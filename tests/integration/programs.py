"""Programs that tests run as a user does, whatever variables are set here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """That of these tests, without variables of dlprof's or of a CI job."""
    theirs = ("DLPROF_", "GITHUB_")
    return {key: value for key, value in os.environ.items() if not key.startswith(theirs)}


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


def started(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """The same while it runs, as the first of a session of its own."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**environment(), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
