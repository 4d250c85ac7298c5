"""The clocks that stamps come from: wall, CPU of a thread, its waiting for a core, its children."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MISSING = -1  # stands for a figure that could not be had, in columns of whole nanoseconds

now_ns = time.perf_counter_ns
"""CLOCK_MONOTONIC on Linux: comparable between the processes of one machine."""

now_s = time.perf_counter
"""The same clock in seconds, for stamps of single samples: computing with floats is cheaper."""

cpu_ns = time.thread_time_ns  # CPU time of the calling thread

process_cpu_ns = time.process_time_ns  # CPU time of all threads of the process

_new = tuple.__new__

if sys.platform != "win32":
    import resource

    # Read several times for each batch, so even the look-up of its name would show.
    _pread, _TICK_NS = os.pread, 1_000_000_000 // os.sysconf("SC_CLK_TCK")


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
        except (OSError, AttributeError):  # Windows has no such flag, either
            self._file = MISSING

    def read(self) -> Reading:
        """Look at all three clocks."""
        try:
            waited_ns = int(_pread(self._file, 64, 0).split()[1]) if self._file >= 0 else MISSING
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

    Each of the living has a clock of its own, as have those that they have started in turn, as deep
    as ``machine.waits.computing`` looks. Of what these have waited for the kernel shows whole
    ticks. Once the process has waited for one, its time is in the sum of all such, so that its end
    changes nothing; where nobody waits, it stays counted as last seen.
    """

    def __init__(self, *, leave_out: str = "") -> None:
        # Processes of this name, with all that they start, make no batch of this thread's.
        self._leave_out = leave_out.encode()
        self._left_out, self._living = set[int](), set[int]()
        self._used_ns = self._lost_ns = 0
        try:
            self._file = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, AttributeError):  # nothing lists them: they count when they have ended
            self._file = MISSING

    def read(self) -> int:
        """Nanoseconds so far; 0 on Windows, where nobody knows."""
        if sys.platform == "win32":
            return 0
        used_ns, living = self._look()
        if used_ns < self._used_ns:  # one may just have gone from one account to the other
            used_ns, living = self._look()
        # Of who has ended, the sum of whoever waited for it may lack up to two ticks.
        rounded_ns = 2 * _TICK_NS * len(self._living - living)
        self._living = living
        if self._used_ns - used_ns > rounded_ns:  # nobody has waited for what ended
            self._lost_ns += self._used_ns - used_ns
        self._used_ns = max(self._used_ns, used_ns)
        return self._used_ns

    def _look(self) -> tuple[int, set[int]]:
        """Nanoseconds by all accounts, and who lives."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_ns = self._lost_ns + round((ended.ru_utime + ended.ru_stime) * 1e9)
        try:
            listed = _pread(self._file, 4096, 0)
        except OSError:
            listed = b""
        living = set[int]()
        used_ns += sum(self._used_by(listed, living))
        self._left_out &= living
        return used_ns, living

    def _used_by(self, listed: bytes, living: set[int], *, depth: int = 3) -> Iterator[int]:
        """What some processes and their own have used; all of them are noted as living."""
        for pid in (int(each) for each in listed.split() if each.isdigit()):
            living.add(pid)
            if pid in self._left_out:
                continue
            head, _, rest = _read(f"/proc/{pid}/stat").rpartition(b")")
            if self._leave_out and head.partition(b"(")[2] == self._leave_out:
                self._left_out.add(pid)
                continue
            # What it has waited for, user and system time.
            yield sum(int(ticks) for ticks in rest.split()[13:15] if ticks.isdigit()) * _TICK_NS
            with contextlib.suppress(OSError, OverflowError):  # it was waited for just now
                yield time.clock_gettime_ns(~pid << 3 | 2)  # the kernel's number of its clock
            if depth > 1:
                below = _read(f"/proc/{pid}/task/{pid}/children")
                yield from self._used_by(below, living, depth=depth - 1)

    def close(self) -> None:
        """Let go of the kernel's file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = MISSING


def _read(path: str) -> bytes:
    """A file of ``/proc``, which may vanish; a process's name in it is any bytes."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 4096)
        finally:
            os.close(file)
    return b""


def waited_between(began: Reading, ended: Reading) -> int:
    """Nanoseconds in the run queue between two readings; ``MISSING`` if either lacks them."""
    before, after = began.run_queue, ended.run_queue
    return MISSING if before < 0 or after < 0 else after - before
