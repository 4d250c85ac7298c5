"""Which processes have no file descriptors left, so that they can't take or send a batch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

_HAND_OVER = 3
"""Descriptors that a process needs to hand over one piece of shared memory: the connection over
which it is asked for, the piece itself, and one for whatever it looks up meanwhile."""

_LIMIT = "Max open files"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """The file descriptors of one process.

    Attributes:
        pid: The process.
        count: How many it has open.
        limit: How many it may have: its soft limit.
    """

    pid: int
    count: int
    limit: int

    @property
    def scarce(self) -> bool:
        """Whether there is no room for what a hand-over takes."""
        return self.limit - self.count < _HAND_OVER


def open_files(pid: int, proc: Path = Path("/proc")) -> OpenFiles | None:
    """The file descriptors of a process; ``None`` where there is no telling, or no limit.

    Args:
        pid: The process.
        proc: Where the processes are.
    """
    place = proc / str(pid)
    with contextlib.suppress(OSError, ValueError, IndexError):
        limits = (place / "limits").read_text()
        soft = limits.partition(_LIMIT)[2].split(maxsplit=1)[0]
        if soft != "unlimited":
            count = sum(1 for _ in os.scandir(place / "fd"))
            return OpenFiles(pid=pid, count=count, limit=int(soft))
    return None


def without_room(pids: Sequence[int], proc: Path = Path("/proc")) -> list[OpenFiles]:
    """Those of the processes that have no room for another hand-over."""
    found = (open_files(pid, proc) for pid in pids)
    return [files for files in found if files is not None and files.scarce]
