"""From a process id to an answer, and from a machine to a list of its trainings."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path

from dlprof.attach.diagnosis import Attached, diagnose_training
from dlprof.attach.trainings import (
    Training,
    find_trainings,
    has_torch,
    is_readable,
    read_training,
    training_of,
)
from dlprof.attach.watching import Watcher
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.machine.gpus import PatientGpus
from dlprof.machine.procfs import read_stat
from dlprof.machine.tree import has_proc, scan_processes

_HERE = Path("/")


def attach(pid: int, seconds: float) -> Attached:
    """Watch one training for some ``seconds`` from its first worker on, and say why it waits.

    One that has no workers yet is waited for as long. ``pid`` is that of its main process, of a
    worker, or of what launched it.
    """
    _check_system(_HERE)
    training = training_of(pid)
    stat = read_stat(f"/proc/{training.pid}")
    if stat is not None and stat.state == "T":  # its last wait would seem to go on
        raise UsageError(
            f"Process {training.pid} is stopped, as by Ctrl-Z or SIGSTOP, and loads nothing",
            hint=f"Let it go on first: kill -CONT {training.pid}",
        )
    watcher = Watcher(training)
    ends_s = time.monotonic() + seconds
    waiting = not watcher.has_workers
    try:
        while time.monotonic() < ends_s and watcher.look():
            if waiting and watcher.has_workers:  # from here on there is something to see
                waiting = False
                watcher.close()
                watcher = Watcher(read_training(training))
                ends_s = time.monotonic() + seconds
            watcher.rest(time.sleep)
        with contextlib.suppress(NothingMeasuredError):  # it has ended
            watcher.meet(read_training(training).ranks)
        return _answer(watcher)
    finally:
        watcher.close()


def _answer(watcher: Watcher) -> Attached:
    seen = watcher.seen()
    pid = seen.training.pid
    found = diagnose_training(seen, watcher.machine, watcher.usage())
    if seen.ended and not found.diagnosis.findings:
        raise NothingMeasuredError(
            f"Process {pid} ended after {seen.window_s:.1f} s, before it was known why it waits",
            hint="dlprof run looks into a script from its start: "
            + (seen.training.rerun or "dlprof run SCRIPT"),
        )
    if not seen.ended and not seen.workers and not has_torch(pid, _HERE):
        raise NothingMeasuredError(
            f"Process {pid} has loaded no torch and no data in {seen.window_s:.0f} s",
            hint="Attach once its training loop runs, or watch longer: --seconds 60. `dlprof top` "
            "lists the trainings on this machine.",
        )
    return found


def _check_system(root: Path) -> None:
    if not has_proc(root):
        raise UsageError(
            "Trainings can be watched from outside on Linux only",
            hint="Run the script under dlprof instead: dlprof run SCRIPT",
        )


class Board:
    """All trainings of this machine, watched at once."""

    def __init__(
        self,
        *,
        root: Path = _HERE,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        _check_system(root)
        self._root, self._clock = root, clock
        # Opened once, with the first training: to wake the driver for each would cost more than
        # looking at it.
        self._gpus: PatientGpus | None = None
        self._watched: dict[tuple[int, int], Watcher] = {}
        # Trainings that can't be looked at: other users', and own ones that are protected.
        self.unseen = 0
        self._pause_ns = 0
        self._torch: dict[tuple[int, int], bool] = {}

    def watch(self, seconds: float) -> tuple[Attached, ...]:
        """Watch for a while, and say what is known so far; those that wait longest come first.

        It takes longer where there are so many trainings that to find and judge them would cost
        more than a fraction of a percent of a core.
        """
        known, began_ns = {*self._watched}, time.process_time_ns()
        self._refresh()
        # To begin with one costs once, and far more than to see that no other has come.
        cost_ns = time.process_time_ns() - began_ns if known >= self._watched.keys() else 0
        ends = self._clock() + max(int(seconds * 1e9), min(self._pause_ns, 30 * 10**9))
        while self._clock() < ends:
            left_s = (ends - self._clock()) / 1e9
            pauses = [left_s]
            for key, each in list(self._watched.items()):
                if not each.look():
                    self._watched.pop(key).close()
                    continue
                # Looks at all of them may take two thousandths of a core together.
                pauses.append(each.pause_s(0.002 / len(self._watched)))
            time.sleep(max(0.0, min(pauses)))
        judged_ns = time.process_time_ns()
        # All of them are of one moment, and looked for once.
        processes = functools.cache(lambda: dict(scan_processes(f"{self._root}/proc")))
        found = [
            diagnose_training(each.seen(), each.machine, each.usage(processes))
            for each in self._watched.values()
        ]
        cost_ns += time.process_time_ns() - judged_ns
        # Finding and judging them may take less.
        self._pause_ns = int(cost_ns / 0.0015)
        found.sort(
            key=lambda each: each.wait_fraction.value if each.wait_fraction else -1.0, reverse=True
        )
        return tuple(found)

    def close(self) -> None:
        """Let go of all files."""
        while self._watched:
            self._watched.popitem()[1].close()
        if self._gpus is not None:
            self._gpus.close()

    def _refresh(self) -> None:
        """Take in trainings that came, and let go of those that went."""
        found = find_trainings(self._root, self._torch)
        now = {(each.pid, each.start_ticks): each for each in found}
        for key in self._watched.keys() - now.keys():
            self._watched.pop(key).close()
        self.unseen = 0
        for new, each in now.items():
            if new in self._watched:
                self._watched[new].meet(each.ranks)
                continue
            try:
                training: Training = training_of(each.pid, self._root)
            except UsageError:
                if not is_readable(each.pid, self._root):  # else it is a launcher of several
                    with contextlib.suppress(NothingMeasuredError):  # it has just ended
                        read_training(each, self._root)
                        self.unseen += 1
                continue
            key = training.pid, training.start_ticks  # of a worker that had no name yet, its main
            if key not in self._watched:
                self._gpus = self._gpus or PatientGpus()
                self._watched[key] = Watcher(training, root=self._root, gpus=self._gpus)
