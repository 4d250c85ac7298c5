"""What single threads of other processes do, looked at again and again at little cost.

A look reads a few files of ``/proc`` that are kept open, some 10 µs for each thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dlprof.machine.files import read_text
from dlprof.machine.procfs import parse_process_stat
from dlprof.machine.waits import Wait, needs_channel, parse_wait, python_data

_ENDED = "-1 0x0 0x0"
"""What ``syscall`` says of a thread without a stack, as of a process that nobody has waited for."""


def gil_of(folder: str) -> tuple[range, ...]:
    """Where a process's interpreter keeps its GIL; empty where that isn't known.

    Args:
        folder: The process's, below ``/proc``.
    """
    return python_data(read_text(f"{folder}/maps") or "")


class ProcFile:
    """A file of ``/proc`` that is kept open and read again and again."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str | None:
        """Its text now; ``None`` where it can't be read, as of a process that has ended."""
        if self._descriptor < 0:
            return None
        try:
            return os.pread(self._descriptor, 4096, 0).decode("ascii", "replace")
        except OSError:
            return None

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Thread:
    """One thread, and what it does just now.

    Args:
        folder: Its own, below ``/proc``.
        machine: The architecture, as ``os.uname`` names it.
        gil: Where its process keeps the GIL (``gil_of``); without, a wait for that is one for
            another thread.
    """

    def __init__(self, folder: str, machine: str, gil: Sequence[range] = ()) -> None:
        self._machine, self._gil = machine, gil
        self._syscall, self._channel = ProcFile(f"{folder}/syscall"), ProcFile(f"{folder}/wchan")
        self._stat = ProcFile(f"{folder}/stat")
        self.unreadable = self._syscall.read() is None

    def look(self) -> Wait | None:
        """What it does; ``None`` where it has ended."""
        call = None if self.unreadable else self._syscall.read()
        if call is None or call.startswith(_ENDED):
            stat = parse_process_stat(self._stat.read() or "")
            if stat is None or stat.state in ("Z", "X"):
                return None
            if stat.state == "R":
                return "running"
        channel = self._channel.read() if needs_channel(call, self._machine) else None
        return parse_wait(call, channel, self._machine, self._gil)

    def close(self) -> None:
        """Let go of its files."""
        for each in (self._syscall, self._channel, self._stat):
            each.close()
