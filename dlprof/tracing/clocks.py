"""The clocks that stamps come from: wall, CPU of a thread, its waiting for a core, its children."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

resource: ModuleType | None = None
with contextlib.suppress(ImportError):  # Windows has none
    import resource

MISSING = -1  # stands for a figure that could not be had, in columns of whole nanoseconds

now_ns = time.perf_counter_ns
"""CLOCK_MONOTONIC on Linux: comparable between the processes of one machine."""

now_s = time.perf_counter
"""The same clock in seconds, for stamps of single samples: computing with floats is cheaper."""

cpu_ns = time.thread_time_ns  # CPU time of the calling thread

process_cpu_ns = time.process_time_ns  # CPU time of all threads of the process

# Read several times for each batch, so even the look-up of their names would show.
_pread, _new = os.pread, tuple.__new__


class Reading(NamedTuple):
    """One look at all three clocks, in nanoseconds."""

    wall: int  # of the clock that all processes share
    cpu: int  # CPU time of this thread so far
    # How long this thread was runnable without a core, so far; ``MISSING`` if unknown.
    run_queue: int


class ThreadClock:
    """Reads the clocks of the thread that made it; no other thread may use it.

    The kernel's file stays open: opening it for each batch would cost more than all else here.
    """

    def __init__(self, schedstat: Path = Path("/proc/thread-self/schedstat")) -> None:
        try:
            self._file = os.open(schedstat, os.O_RDONLY | os.O_CLOEXEC)
            # So says a kernel that keeps no such account: a thread that runs had a time slice.
            if _pread(self._file, 64, 0).split() == [b"0"] * 3:
                self.close()
        except OSError:
            self._file = MISSING

    def read(self) -> Reading:
        """Look at all three clocks."""
        try:
            waited_ns = int(_pread(self._file, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):
            waited_ns = MISSING
        return _new(Reading, (now_ns(), cpu_ns(), waited_ns))

    def close(self) -> None:
        """Let go of the kernel's file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = MISSING


class ChildrenClock:
    """CPU time of child processes: of the living that this thread has started, of all that ended.

    Each of the living has a clock of its own. Once the process has waited for one, its time is in
    the sum of all such, so that its end changes nothing.
    """

    def __init__(self, *, leave_out: str = "") -> None:
        self._leave_out = leave_out  # children of this name, which make no batch of this thread's
        self._left_out: dict[int, bool] = {}
        self._used_ns = 0
        try:
            self._file = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the kernel lists no children: they count when they have ended
            self._file = MISSING

    def read(self) -> int:
        """Nanoseconds so far; ``MISSING`` where the system doesn't say."""
        if resource is None:
            return MISSING
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_ns = round((ended.ru_utime + ended.ru_stime) * 1e9)
        for pid in self._living():
            with contextlib.suppress(OSError, OverflowError):  # another thread waited for it
                used_ns += time.clock_gettime_ns(~pid << 3 | 2)  # the kernel's number of its clock
        self._used_ns = max(self._used_ns, used_ns)
        return self._used_ns

    def _living(self) -> list[int]:
        try:
            pids = list(map(int, _pread(self._file, 4096, 0).split()))
        except (OSError, ValueError):
            return []
        if self._leave_out:
            for pid in set(pids) - self._left_out.keys():
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    self._left_out[pid] = name == self._leave_out
        return [pid for pid in pids if not self._left_out.get(pid)]

    def close(self) -> None:
        """Let go of the kernel's file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = MISSING


def waited_between(began: Reading, ended: Reading) -> int:
    """Nanoseconds in the run queue between two readings; ``MISSING`` if either lacks them."""
    before, after = began.run_queue, ended.run_queue
    return MISSING if before < 0 or after < 0 else after - before
