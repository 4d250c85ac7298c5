"""How fast the cores are at this moment: a little fixed work on each, timed by its CPU clock.

A virtual core switches between speeds that can be 1.8x apart, for 0.3 to 10 s at a time and each
core by itself; neither steal nor CPU time shows it. So the speed is measured in
the very window whose rate is to be understood: before it or after it says nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlprof.machine.procfs import parse_cpu_ticks, read_text
from dlprof.records import CoreSpeeds

PERIOD_S, SHARE = 0.01, 0.008
"""Between two pieces of work on whichever core, at least; and what they may take of one core, all
together, however many cores there are: where cores are slow, waking up for one takes 200 us, and
they are fewer."""

_STEPS = 400  # steps of a Python loop that are timed: 20 to 40 us


_MOST_CORES = 16
"""Cores that a window visits often enough for a mean; on a larger machine they change from window
to window."""


UNPINNED = "threads can't be put on a core of their choice on this system"
TOO_SHORT = "the window was too short to visit each core"
ELSEWHERE = "it ran on more cores than can be visited in a window"


class SpeedProbe:
    """Works a little on each core between ``start`` and ``stop``, in a thread pinned to it."""

    def __init__(
        self,
        root: Path = Path("/"),  # where ``/proc`` is found
        *,
        # Numbers of the cores; ``None`` for those that this process may use.
        cpus: Sequence[int] | None = None,
        work: Callable[[int], object] | None = None,  # does the fixed work of so many steps
        # CPU time of the calling thread, in nanoseconds.
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        # Looked up here and not in a thread, which may outlive whoever took it away from ``os``.
        self._pin = getattr(os, "sched_setaffinity", None)
        self.unavailable = UNPINNED if self._pin is None else TOO_SHORT
        self._root = root
        self._asked = cpus
        self._turn = 0
        self._work = work or _loop
        self._clock = clock
        self._visits: dict[int, list[float]] = {}
        self._busy: Mapping[int, float] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """The window begins, or begins again."""
        self.stop()
        if self.unavailable == ELSEWHERE:  # which was said of another window
            self.unavailable = TOO_SHORT
        if self._pin is None:
            return
        cpus = self._asked or sorted(os.sched_getaffinity(0))
        first = self._turn % len(cpus) if cpus else 0
        some = [*cpus[first:], *cpus[:first]][:_MOST_CORES]
        self._turn += len(some)  # the others are visited in the next window
        self._visits = {cpu: [] for cpu in some}
        self._busy = {cpu: -ticks for cpu, ticks in self._ticks().items()}
        self._over = threading.Event()
        for place, cpu in enumerate(some):
            visit = (place, cpu, self._visits, self._over, self._pin)
            thread = threading.Thread(target=self._visit, args=visit, daemon=True)
            with contextlib.suppress(RuntimeError):  # a limit of threads (pids.max, ulimit -u)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """The window has ended."""
        if not self._threads:
            return
        self._over.set()
        # For threads to end; one that gets no time on its core is left behind.
        due_s = time.monotonic() + 0.5
        for thread in self._threads:
            thread.join(max(0.0, due_s - time.monotonic()))
        self._threads = []
        ticks = self._ticks()
        self._busy = {cpu: ticks.get(cpu, 0.0) + before for cpu, before in self._busy.items()}

    @property
    def speeds(self) -> dict[int, float]:
        """Speed of each core in the last window: thousands of steps per second of CPU time.

        Cores that were not visited are left out.
        """
        return {cpu: statistics.fmean(seen) for cpu, seen in self._visits.items() if seen}

    @property
    def mean(self) -> float | None:
        """The mean over the cores, each by how busy it was.

        A loader without workers keeps one busy. ``None`` where some core was not visited.
        """
        speeds = self.speeds
        if not speeds or len(speeds) < len(self._visits):
            return None
        # Where a container numbers its CPUs again (lxcfs), nothing says how busy each of them was.
        known = self._busy if speeds.keys() <= self._busy.keys() else {}
        busy = {cpu: max(0.0, ticks) for cpu, ticks in known.items()}
        if sum(busy.get(cpu, 0.0) for cpu in speeds) < sum(busy.values()) / 2:
            self.unavailable = ELSEWHERE
            return None
        return statistics.fmean(speeds.values(), [1e-3 + busy.get(cpu, 0.0) for cpu in speeds])

    @property
    def over_all(self) -> CoreSpeeds | None:
        """What the last window says of the machine; ``None`` where no core was visited."""
        speeds = sorted(self.speeds.values())
        if not speeds:
            return None
        kinds: dict[str, list[float]] = {}  # of cores, such as big and little ones
        for cpu, seen in self._visits.items():
            clock = self._root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"
            kinds.setdefault(read_text(clock), []).extend(seen)
        slow = 0
        for seen in kinds.values():
            # Visits that took 1.3 times as long as the quickest tenth: those of one state scatter
            # by 7 to 10 %, states lie 1.8x apart.
            quick = sorted(seen)[math.ceil(0.9 * len(seen)) - 1] if seen else 0.0
            slow += sum(speed * 1.3 < quick for speed in seen)
        return CoreSpeeds(
            median=statistics.median(speeds),
            low=speeds[0],
            high=speeds[-1],
            unit=CoreSpeeds.unit_of(platform.python_version()),
            slow_fraction=slow / sum(map(len, kinds.values())),
        )

    def _visit(
        self,
        place: int,
        cpu: int,
        window: Mapping[int, list[float]],
        over: threading.Event,
        pin: Callable[[int, set[int]], object],
    ) -> None:
        """Work on one core now and then until the window is over, which is not the probe's last."""
        visits, period_s = window[cpu], PERIOD_S * len(window)
        try:
            pin(0, {cpu})  # of this thread alone
        except OSError:  # taken away from this process since
            return
        ended_ns, due_s = self._clock(), time.monotonic() + PERIOD_S * place
        while not over.wait(max(0.0, due_s - time.monotonic())):
            # Before them, untimed: what the core's caches hold is another's.
            self._work(100)
            began_ns = self._clock()
            self._work(_STEPS)
            now_ns = self._clock()
            visits.append(1e6 * _STEPS / max(1, now_ns - began_ns))
            # From one visit to the next, waking up and waiting included.
            rarer = max(1.0, (now_ns - ended_ns) / (1e9 * PERIOD_S * SHARE))
            ended_ns = now_ns
            # What was missed is not made up for.
            due_s = max(due_s + rarer * period_s, time.monotonic())

    def _ticks(self) -> dict[int, float]:
        """Clock ticks that each core was busy since boot."""
        found = parse_cpu_ticks(read_text(self._root / "proc/stat"))
        return {cpu: float(each.busy) for cpu, each in found.items()}


def _loop(steps: int) -> int:
    """Steps whose time follows the core's speed: neither memory nor a library takes part.

    It does follow the version of Python. Work of a library that doesn't, such as zlib's, doesn't
    follow the core either: 1.12x between states that are 1.87x apart for a loop.
    So speeds are compared where the version is the same, and state it.
    """
    found = 0
    for step in range(steps):
        found += step & 7
    return found
