"""Reading the small texts of ``/proc`` and ``/sys`` at little cost, and never failing at it."""

from __future__ import annotations

import os
from pathlib import Path

from dlprof.machine.procfs import parse_int, parse_pressure


def read_text(path: str | Path) -> str | None:
    """The whole text of a file, or ``None`` where it can't be read.

    A file of ``/proc`` may vanish, or be forbidden, at any time; callers say what that means.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (OSError, ValueError):
        return None
    try:
        chunks = []
        while chunk := os.read(descriptor, 32768):
            chunks.append(chunk)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode("utf-8", "replace")


def list_names(path: str | Path) -> list[str]:
    """The names in a directory; empty where it can't be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_int(path: str | Path) -> int | None:
    """A file's text as an integer; ``None`` where it is missing or says something else."""
    return parse_int(read_text(path) or "")


def read_pressures(root: Path) -> dict[str, int | None]:
    """Microseconds in which some task was held up for want of each resource (PSI)."""
    places = {name: root / "proc/pressure" / name for name in ("cpu", "io", "memory")}
    return {name: parse_pressure(read_text(place) or "") for name, place in places.items()}
