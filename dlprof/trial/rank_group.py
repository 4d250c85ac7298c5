"""What the ranks of one trial share: where each of them is, and the barrier of a step.

Ranks of other nodes have their marks in it too: the supervisors pass them on. At the barrier of a
step, which can't wait for that, ranks on several nodes say themselves where they are.

A page of memory, mapped by all: reading it costs a microsecond and no system call, so that a rank
goes on loading while it waits for the others, and none is relieved of load before all are done.
Linux only. Whoever waits for a rank that has died is ended by the supervisor.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from pathlib import Path

_NAME = "ranks"
_BARRIER_BYTES = 64  # room for pthread's barrier, of 32 bytes with glibc

_MEETINGS = 16
"""More than a trial has: its start, the end of the warm-up, and at most four windows. The last of
rank 0's places is for its number."""


class RankGroup:
    """One rank among those of its trial, or with ``rank=-1`` the supervisor, which only looks.

    ``create`` has made the page in ``place``. With a ``barrier`` all ranks, of all nodes, pass each
    step together, as under DDP.
    """

    def __init__(self, place: Path, rank: int, ranks: int, *, barrier: bool = False) -> None:
        with (place / _NAME).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self._marks = memoryview(self._page)[_BARRIER_BYTES:].cast("q")
        self._rank, self._ranks, self._barrier = rank, ranks, barrier
        self._meeting, self._steps, self._again = -1, 0, False
        # Of ranks on several nodes with a barrier: takes what this one says at a step, and returns
        # the least that any of them says, or raises ``ConnectionError`` where one is lost; ``None``
        # on one node.
        self.least: Callable[[list[int]], list[int]] | None = None
        self._agreed = [-1, 0]  # at the last step: what meeting all have come to, and minus again
        self._known = [0] * len(self._marks)
        self._threads = ctypes.CDLL(None)
        self._address = ctypes.byref(ctypes.c_char.from_buffer(self._page))
        self.waited_s = 0.0  # how long ``step`` has waited for the others

    @classmethod
    def create(cls, place: Path, ranks: int, here: int) -> RankGroup:
        """Make the page, in an empty directory, for ranks of which some are on this node."""
        size = _BARRIER_BYTES + 8 * _MEETINGS * ranks
        (place / _NAME).write_bytes(bytes(size))
        made = cls(place, -1, ranks)
        shared = ctypes.create_string_buffer(_BARRIER_BYTES)
        made._threads.pthread_barrierattr_init(shared)
        made._threads.pthread_barrierattr_setpshared(shared, 1)  # PTHREAD_PROCESS_SHARED
        made._threads.pthread_barrier_init(made._address, shared, here)
        return made

    def arrive(self, *, again: bool = False) -> None:
        """Say that this rank is ready for what comes next; and whether it wants another window.

        With a barrier the mark holds from the next step on, which all pass after it was written:
        so all of them see the last one come at the same step, and none waits for one that has gone.
        """
        self._meeting, self._again = self._meeting + 1, again
        self._marks[self._rank * _MEETINGS + self._meeting] = 2 * (self._steps + 1) + again

    def answer(self) -> bool | None:
        """Whether any rank wants another window; ``None`` until all have arrived."""
        if self.least is not None:
            return bool(self._agreed[1]) if self._agreed[0] == self._meeting else None
        marks = self._marks[self._meeting : _MEETINGS * self._ranks : _MEETINGS].tolist()
        late = self._barrier and self._meeting > 0 and max(marks) // 2 > self._steps
        if late or not all(marks):
            return None
        return any(mark % 2 for mark in marks)

    def begin(self, beat: Callable[[float], object], clock: Callable[[], float]) -> None:
        """Wait until all ranks are there, before any of them loads."""
        self.arrive()
        while self.answer() is None:
            beat(clock())
            time.sleep(0.001)

    def number_of_first(self, own: int) -> int:
        """A number that rank 0 gives to all, once it is there."""
        if self._rank == 0:
            self._marks[_MEETINGS - 1] = own
        while not (number := self._marks[_MEETINGS - 1]):
            time.sleep(0.001)
        return number

    def step(self) -> None:
        """End a step: with a barrier, together with all others."""
        if self._barrier:
            began_s = time.perf_counter()
            if self.least is None:
                self._threads.pthread_barrier_wait(self._address)
            else:
                try:
                    self._agreed = self.least([self._meeting, -self._again])
                except ConnectionError:
                    while True:  # until the supervisor ends this one for the one that is lost
                        time.sleep(1.0)
            self.waited_s += time.perf_counter() - began_s
        self._steps += 1

    def fresh(self) -> list[tuple[int, int]]:
        """Marks that are new since this was last asked, by their places."""
        now = self._marks.tolist()
        found = [(at, now[at]) for at in range(len(now)) if now[at] != self._known[at]]
        self._known = now
        return found

    def take(self, marks: object) -> None:
        """Marks of ranks on other nodes, as these had them fresh."""
        for at, mark in marks if isinstance(marks, list) else ():
            self._marks[at] = mark

    def passed(self, rank: int) -> int:
        """How many meetings a rank has come to."""
        first = rank * _MEETINGS
        return sum(map(bool, self._marks[first : first + _MEETINGS - 1]))
