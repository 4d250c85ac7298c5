"""Sampling the GPUs in the background while a window is measured.

One thread asks the driver, from loading it to shutting it down, because a call into a sick driver
can take seconds or never come back: nothing else of the observer's ever waits for it for long.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence

from dlprof.machine.gpus import GpuNeighbours, Gpus, mean_usage, open_gpus
from dlprof.records import GpuInfo, GpuUsage

_Work = Callable[[Gpus], object]

_PATIENCE_S = 0.5  # for the last sample of a window: a round takes 80 ms where links are probed


class GpuSampler:
    """Collects samples between ``start`` and ``stop``; without a GPU it does nothing."""

    def __init__(
        self,
        opener: Callable[[], Gpus] = open_gpus,  # opens the driver, in the thread
        *,
        # Between two samples. NVML averages over up to a second: asking more than five times a
        # second adds nothing.
        period_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,  # monotonic seconds
    ) -> None:
        self._period_s = period_s
        self._clock = clock
        self._cards: tuple[GpuInfo, ...] = ()
        self._orders: queue.SimpleQueue[tuple[_Work, threading.Event] | None] = queue.SimpleQueue()
        self._window = _Window(period_s, clock)
        self._done = threading.Event()  # the last order
        self._done.set()
        self._owed_since_s = 0.0
        self._thread = threading.Thread(target=self._serve, args=[opener], daemon=True)
        self._thread.start()

    def _serve(self, opener: Callable[[], Gpus]) -> None:
        """In the thread: carry out orders until there is none."""
        gpus = opener()
        self._cards = gpus.list_gpus()
        while (order := self._orders.get()) is not None:
            work, done = order
            if self._cards:
                work(gpus)
            done.set()
        gpus.close()

    def begin(self) -> None:
        """A trial begins: see who is on the cards before it is."""
        self.stop()
        self._window = _Window(self._period_s, self._clock)
        self._give(self._window.look_before)

    def start(self) -> None:
        """The window begins, or begins again: samples so far were of another one."""
        if not self._window.restart():
            self._give(self._window.collect)

    def stop(self) -> None:
        """The window has ended; nothing is waited for."""
        if not self._window.over.is_set():
            self._owed_since_s = self._clock()
            self._window.over.set()

    def usage(self) -> tuple[GpuUsage, ...]:
        """What the GPUs did between ``start`` and ``stop``.

        Waits half a second for the last sample. Cards of a driver that hangs have reasons instead
        of figures.
        """
        is_done = self._done.wait(0 if self._is_overdue() else _PATIENCE_S)
        silence = "" if is_done else "the GPUs' driver gave no answer in time: it may hang"
        return self._window.usage(self._cards, silence)

    def latest(self) -> tuple[GpuUsage, ...]:
        """The last sample of the window so far; empty without one."""
        samples = self._window.samples
        return tuple(samples[-1]) if samples else ()

    def close(self) -> None:
        """End the thread, which shuts the driver down; one that hangs is left behind."""
        self.stop()
        self._orders.put(None)
        self._thread.join(_PATIENCE_S)

    def _give(self, work: _Work) -> None:
        """Order something; nothing, of a driver that has long owed an answer."""
        if not self._is_overdue():
            self._done, self._owed_since_s = threading.Event(), self._clock()
            self._orders.put((work, self._done))

    def _is_overdue(self) -> bool:
        """Whether the last order is long due; sampling is once its window has ended."""
        return not self._done.is_set() and self._clock() - self._owed_since_s > 2.0


class _Window:
    """What is collected for one trial; a thread that outlives it fills it all the same."""

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self.over = threading.Event()
        self.samples: list[Sequence[GpuUsage]] = []
        self._clock = clock
        self._period_s = period_s
        self._before: Sequence[GpuNeighbours] = ()
        self._after: Sequence[GpuNeighbours] = ()
        self._cpu_s = 0.0
        self._made_s = clock()
        self._began_s: float | None = None
        self._ended_s = 0.0

    def restart(self) -> bool:
        """Forget the samples so far; false if none are being taken yet."""
        if self._began_s is None or self.over.is_set():
            return False
        self.samples, self._cpu_s = [], 0.0
        self._began_s = self._clock()
        return True

    def look_before(self, gpus: Gpus) -> None:
        """See who is on the cards before the trial is: not late, as while a driver is loaded."""
        if self._clock() - self._made_s < 0.25:  # to reach a card takes a process longer
            self._before = gpus.neighbours()

    def collect(self, gpus: Gpus) -> None:
        """Sample until the window is over, then see who is on the cards once more.

        The first sample waits, because what NVML reports is of the time before it.
        """
        if self.over.is_set():
            return
        self._began_s = self._clock()
        gpus.prime()
        rest_s = self._period_s
        while not self.over.wait(rest_s):
            cpu_s = self._sample(gpus, pcie=True)
            # Asking takes at most 2 % of a core: where it would take more, it is asked less often.
            rest_s = max(self._period_s, cpu_s / 0.02)
        if not self.samples:
            self._sample(gpus, pcie=False)
        self._ended_s = self._clock()
        self._after = gpus.neighbours()

    def _sample(self, gpus: Gpus, *, pcie: bool) -> float:
        """Take one sample; returns the CPU seconds that it took."""
        began_s = time.thread_time()
        self.samples.append(gpus.sample(pcie=pcie))
        cpu_s = time.thread_time() - began_s
        self._cpu_s += cpu_s
        return cpu_s

    def usage(self, cards: Sequence[GpuInfo], silence: str) -> tuple[GpuUsage, ...]:
        """One entry per card; what is missing has ``silence`` for a reason, if that is one."""
        means = {usage.index: usage for usage in mean_usage(list(self.samples))}
        found = [
            means.get(card.index) or GpuUsage(index=card.index, name=card.name, uuid=card.uuid)
            for card in cards
        ]
        return tuple(self._finished(usage, len(cards), silence) for usage in found)

    def _finished(self, usage: GpuUsage, cards: int, silence: str) -> GpuUsage:
        nobody = GpuNeighbours(index=usage.index, name=usage.name)
        before, after = (
            next((card for card in crowd if card.index == usage.index), nobody)
            for crowd in (self._before, self._after)
        )
        length_s = (self._ended_s or self._clock()) - (self._began_s or self._clock())
        full = dataclasses.replace(
            usage,
            other_processes=before.processes,
            other_memory_bytes=before.process_memory_bytes,
            processes=after.processes,
            sampler_cpu_cores=self._cpu_s / cards / length_s if length_s > 0 else None,
        )
        return dataclasses.replace(full, unavailable=_reasons(full, before, after, silence))


_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(GpuUsage)
    if field.default is None  # what may be missing
)


def _reasons(
    usage: GpuUsage, before: GpuNeighbours, after: GpuNeighbours, silence: str
) -> dict[str, str]:
    """Why figures are missing, and what is wrong with those that are not."""
    short = {"not asked for": "the window was too short for this card's turn"}
    known = {name: short.get(why, why) for name, why in usage.unavailable.items()}
    known["other_processes"] = before.unavailable.get("processes", "")
    known["other_memory_bytes"] = before.unavailable.get("process_memory_bytes", "")
    known["processes"] = after.unavailable.get("processes", "")
    missing = [name for name in _FIELDS if getattr(usage, name) is None]
    otherwise = silence or "the GPUs' driver was not ready in time"
    reasons = {name: known.get(name) or otherwise for name in missing}
    if note := silence or known.get("samples", ""):
        reasons["samples"] = note
    return reasons
