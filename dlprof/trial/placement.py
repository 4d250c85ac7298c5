"""Which cores the processes of a check's side run on: the same ones for both sides of a quad.

Cores change their speed by a factor of up to two for seconds, each by itself. Two sides that keep
to different cores differ by that, whichever order they take turns in. Linux only; elsewhere, and
where it might change more than the place, processes are left where they are.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from dlprof.records import Config

_PROC = Path("/proc")
_THREADED = 1.15
"""Cores that one process kept busy, from which it computes with several threads."""

_CORE = 39
"""Field of ``/proc/PID/stat`` that holds the core a thread was last on (proc_pid_stat(5))."""


class Placement:
    """Holds a side's processes to cores, one each, while a block is loaded.

    Not where one of them computes with several threads, which a single core would slow down; nor
    where the code itself has chosen cores, for its workers or for all; nor where workers are
    started for each epoch, as these would all be held to the core of the process that starts them.
    """

    def __init__(self) -> None:
        self._own = _affinity(os.getpid())
        self._spent_ns: dict[int, int] = {}
        self._is_free = self._own is None
        self._held = False

    def hold(self, workers: Sequence[int], config: Config, cores: Sequence[int]) -> bool:
        """Hold processes to cores for a block.

        Args:
            workers: Those that live on.
            config: Whose they are.
            cores: Worker after worker gets the next of them, the main process the one behind.

        Returns:
            Whether that was done.
        """
        pids = [*workers, os.getpid()]
        if not self._held and any(_affinity(pid) != self._own for pid in pids):
            self._is_free = True  # the code places its processes itself
        fits = len(workers) == config.num_workers and set(cores) <= set(self._own or ())
        if cores and fits and not self._is_free and self._place(pids, cores):
            return True
        self.release(workers)
        self._spent_ns = {pid: _spent_ns(pid) for pid in pids}
        return False

    def _place(self, pids: Sequence[int], cores: Sequence[int]) -> bool:
        self._held = True  # of some, where it fails for others
        try:
            for place, pid in enumerate(pids):
                _hold(pid, {cores[place % len(cores)]})
        except OSError:  # not allowed, or the job's cores have changed
            return False
        return True

    def learn(self, workers: Sequence[int], took_s: float) -> None:
        """See by a block that ran free whether processes compute with several threads.

        Args:
            workers: Those that loaded it.
            took_s: How long it took.
        """
        for pid in [*workers, os.getpid()]:
            if _spent_ns(pid) - self._spent_ns.get(pid, 0) > _THREADED * took_s * 1e9:
                self._is_free = True

    def release(self, workers: Sequence[int]) -> None:
        """Let processes run wherever they might before."""
        if self._held and self._own is not None:
            for pid in [*workers, os.getpid()]:
                try:
                    _hold(pid, self._own)
                except OSError:  # the job's cores have changed: it has those that are left
                    continue
        self._held = False


def cores_of(pids: Sequence[int]) -> list[int]:
    """The core that each process's first thread was last on; empty where that isn't known."""
    try:
        stats = [(_PROC / str(pid) / "stat").read_text() for pid in pids]
        # The name before may hold anything, blanks and parentheses too; it is field 2.
        return [int(stat.rpartition(")")[2].split()[_CORE - 3]) for stat in stats]
    except (OSError, ValueError, IndexError):
        return []


def _threads(pid: int) -> list[int]:
    return [int(task.name) for task in (_PROC / str(pid) / "task").iterdir()]


def _affinity(pid: int) -> Collection[int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return os.sched_getaffinity(pid)
    except OSError:  # it has ended
        return None


def _hold(pid: int, cores: Collection[int]) -> None:
    """Hold all threads of a process, and those that they start, to cores."""
    for thread in _threads(pid):
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:  # a thread that ended meanwhile
            continue


def _spent_ns(pid: int) -> int:
    """CPU time of a process by all of its threads; 0 where that can't be read."""
    try:
        paths = [_PROC / str(pid) / "task" / str(each) / "schedstat" for each in _threads(pid)]
        return sum(int(path.read_text().split()[0]) for path in paths)
    except (OSError, ValueError, IndexError):
        return 0
