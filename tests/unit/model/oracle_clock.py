"""A virtual clock over shared cores: the heart of the simulation.

Whoever computes shares the cores evenly with all others that do (processor sharing): each runs at
the pace ``min(1, C / running)``. Instead of touching every computation at every change of pace,
the clock keeps the work that a computation begun at time 0 would have had by now: one that needs
``d`` more ends when that has grown by ``d``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Then = Callable[[], None]


class Clock:
    """Virtual time, with computations that share cores and waits that don't.

    Attributes:
        now: Seconds since the beginning.
        others: Threads beside the computations that keep cores busy: neighbours, threads of
            steps.
        open: How many are still to reach their end; at 0 ``run`` returns.
    """

    __slots__ = (
        "_computing",
        "_cores",
        "_ticket",
        "_waiting",
        "_weight",
        "_work",
        "now",
        "open",
        "others",
    )

    def __init__(self, cores: float, *, neighbours: float = 0.0, weight: float = 1.0) -> None:
        """Begin at 0.

        Args:
            cores: That all share.
            neighbours: Threads of others that run all the time.
            weight: Cores that one computation would keep busy, its helpers included.
        """
        self._cores = cores
        self._weight = weight
        self._computing: list[tuple[float, int, Then]] = []
        self._waiting: list[tuple[float, int, Then]] = []
        self._work = 0.0
        self._ticket = 0  # of two at the same time, the one that was begun first ends first
        self.now = 0.0
        self.others = neighbours
        self.open = 0

    def compute(self, seconds: float, then: Then) -> None:
        """Call ``then`` after so many CPU seconds."""
        self._ticket += 1
        heapq.heappush(self._computing, (self._work + seconds, self._ticket, then))

    def wait(self, seconds: float, then: Then) -> None:
        """Call ``then`` after so many seconds."""
        self._ticket += 1
        heapq.heappush(self._waiting, (self.now + seconds, self._ticket, then))

    def run(self) -> None:
        """Let time pass until nobody is open any more."""
        computing, waiting, pop = self._computing, self._waiting, heapq.heappop
        cores, weight = self._cores, self._weight
        while self.open:
            if not computing:
                self.now, _, then = pop(waiting)
                then()
                continue
            load = len(computing) * weight + self.others
            pace = 1.0 if load <= cores else cores / load
            ends = self.now + (computing[0][0] - self._work) / pace
            if waiting and waiting[0][0] < ends:
                moment, _, then = pop(waiting)
                self._work += (moment - self.now) * pace
                self.now = moment
            else:
                self._work, _, then = pop(computing)
                self.now = ends
            then()
