"""The process beside the trials that samples what they use and what the machine is doing.

A process and not a thread of the trial: a thread would take turns with the loader on the GIL, and
a forking process with threads can deadlock. It imports no torch.

Run as ``python -m dlprof.trial.observer``: orders on standard input, answers on standard output.
"""

from __future__ import annotations

import dataclasses
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dlprof.internals import WORKER
from dlprof.machine.core_speed import SpeedProbe
from dlprof.machine.gpus import GpuNeighbours, Gpus, mean_usage, open_gpus
from dlprof.machine.inspection import numa_node_of
from dlprof.machine.sharing import GroupShares
from dlprof.machine.snapshot import Sampler, Snapshot, cores_of_others, usage_between
from dlprof.machine.tree import allowed_cpus
from dlprof.machine.waits import Glances
from dlprof.records import GpuInfo, GpuUsage, Usage
from dlprof.trial.protocol import Channel, Message
from dlprof.trial.runtime import Inbox
from dlprof.units import format_bytes

_Work = Callable[[Gpus], object]

_PATIENCE_S = 0.5  # for the last sample of a window: a round takes 80 ms where links are probed


class GpuSampler:
    """Collects samples of the GPUs between ``start`` and ``stop``; without one it does nothing.

    One thread asks the driver, from loading it to shutting it down, because a call into a sick
    driver can take seconds or never come back: nothing else of the observer's waits for it for
    long.
    """

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
        length_s = (self._ended_s or self._clock()) - (self._began_s or self._clock())
        before, after = ({c.index: c for c in crowd} for crowd in (self._before, self._after))
        found = []
        for card in cards:
            known: dict[str, Any] = {"index": card.index, "name": card.name}
            first, last = (each.get(card.index, GpuNeighbours(**known)) for each in (before, after))
            full = dataclasses.replace(
                means.get(card.index) or GpuUsage(**known, uuid=card.uuid),
                other_processes=first.processes,
                other_memory_bytes=first.process_memory_bytes,
                processes=last.processes,
                sampler_cpu_cores=self._cpu_s / len(cards) / length_s if length_s > 0 else None,
            )
            reasons = _reasons(full, first, last, silence)
            found.append(dataclasses.replace(full, unavailable=reasons))
        return tuple(found)


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


@dataclasses.dataclass
class MemoryGuard:
    """Notices that a trial takes more memory than it may, before the kernel has to.

    It may take so much of its own, where that is limited, and has to leave so much to others.
    """

    sampler: Sampler
    memory_bytes: int | None
    reserve_bytes: int
    _asked_at_bytes: float = 0.0

    def exceeded(self) -> str:
        """Which limit is exceeded, one sentence; empty if none is."""
        private, available = self.sampler.memory_now()
        # A trial that holds less than it would have to give back is not what fills the machine.
        if available is not None and available < self.reserve_bytes < (private or 0):
            return (
                f"The trial was ended because it left only {format_bytes(available)} of memory; "
                f"it held {format_bytes(private)}"
            )
        if self.memory_bytes is None or private is None:
            return ""
        if private <= max(self.memory_bytes, 1.05 * self._asked_at_bytes):
            return ""
        # Pages shared since a fork count in every process; what they take in truth costs more
        # to ask, so it is asked again only when there is clearly more.
        self._asked_at_bytes = private
        held = self.sampler.take(memory=True).pss_peak_bytes
        if held is None and sys.platform != "linux":  # what is private holds no page twice there
            held = private
        if held is None or held <= self.memory_bytes:
            return ""
        limit = format_bytes(self.memory_bytes)
        return f"The trial held {format_bytes(held)} of memory, more than its limit of {limit}"


LOOK_S, PULSE_S = 0.2, 0.5
"""Seconds between looks at a running trial's memory, and between samples of what it uses."""

SHARE, RAREST = 0.004, 4
"""What the ones and the others may take of one core each. Where they are expensive, as of many
workers on slow cores, they are up to so many times as far apart; samples farther, above 2 %."""


class EachRank:
    """What one of several ranks uses in the window, by which a slow one shows why.

    The CPUs are those that it may use; none where that isn't known.
    """

    def __init__(self, pid: int) -> None:
        self._sampler = Sampler(pid)
        self._first: Snapshot | None = None
        self.cpus = allowed_cpus(pid)
        self.usage = Usage()

    def start(self) -> None:
        """The window begins."""
        self._first = self._sampler.take()

    def end(self) -> None:
        """The window has ended."""
        if self._first is not None:
            self.usage, _ = usage_between(self._first, self._sampler.take())

    def used(self, ranks: Collection[EachRank]) -> dict[str, object]:
        """As in ``records.RankFigures``: of what others used, other ranks' part is left out."""
        mine = self.usage
        beside = [(each.usage.own_cpu_cores, each.cpus) for each in ranks if each is not self]
        return {
            "own_cpu_cores": mine.own_cpu_cores,
            "other_cpu_cores": cores_of_others(mine.other_cpu_cores, self.cpus, beside),
            "run_queue_wait_fraction": mine.run_queue_wait_fraction,
            "read_bytes_per_s": mine.read_bytes_per_s,
            "numa_node": numa_node_of(self.cpus),
        }


class Observer:
    """Obeys ``watch``, ``start``, ``end``, ``memory`` and ``unwatch``.

    It sends ``usage`` after ``memory``, and a ``pulse`` now and then, each with the ``pid`` that is
    watched: what comes late must not be taken for the next trial's.
    """

    def __init__(self, send: Callable[[Message], object], gpus: GpuSampler) -> None:
        self._speed = SpeedProbe()
        self._send = send
        self._gpus = gpus
        self._pid = 0
        self._sampler: Sampler | None = None
        self._last: Snapshot | None = None
        self._start: Snapshot | None = None
        self._end: Snapshot | None = None
        self._each: tuple[EachRank, ...] = ()
        self._guard: MemoryGuard | None = None
        self._shares: GroupShares | None = None
        self._glances: dict[str, Glances] = {}  # by fields of the usage
        self._waits: dict[str, Any] = {}  # fields of the usage
        self._look_at_s = self._pulse_at_s = 0.0
        self._rest_s = LOOK_S

    @property
    def pause_s(self) -> float:
        """Seconds until the next look; many while there is nothing to watch."""
        if self._sampler is None:
            return 60.0
        # Every 20 ms on average it glances at threads, where batches are traced.
        return 0.02 * random.uniform(0.5, 1.5) if self._glances else self._rest_s

    def obey(self, order: Message) -> None:
        """Carry out one order; what makes no sense in its place does nothing."""
        verb = str(order.get("order"))
        if verb == "watch":
            self._pid, beside = order["pid"], order.get("beside", ())
            self._sampler = Sampler(self._pid, beside=beside)
            pids = [self._pid, *beside]
            self._each = tuple(EachRank(pid) for pid in pids) if pids[1:] else ()
            # Of ranks each may be a group by itself.
            self._shares = None if beside else GroupShares(self._pid)
            self._guard = MemoryGuard(
                self._sampler, order.get("memory_bytes"), order.get("reserve_bytes", 0)
            )
            self._last = self._start = self._end = None
            self._waits = {}
            self._pulse_at_s = time.monotonic() + PULSE_S
            self._gpus.begin()
        elif verb == "unwatch":
            self._sampler = self._guard = None
            self._end_glances()
            self._gpus.stop()
            self._speed.stop()
        elif self._sampler is not None:
            self._mark(verb, self._sampler, pid=order.get("traced"))

    def _mark(self, verb: str, sampler: Sampler, *, pid: int | None) -> None:
        if verb == "start":
            self._gpus.start()
            self._start = self._last = sampler.take()
            for rank in self._each:
                rank.start()
            self._speed.start()
            self._end_glances()  # a window may begin again
            if pid is not None:
                self._glances = {"main_waits": Glances(), "worker_waits": Glances()}
                self._glances["main_waits"].add(pid, leave_out=WORKER)
                self._glances["worker_waits"].add(*sampler.pids, name=WORKER)
        elif verb == "end":
            self._end_glances()
            self._end = sampler.take()
            for rank in self._each:
                rank.end()
            self._speed.stop()
            self._gpus.stop()
        elif verb == "memory":
            self._answer(sampler.take(memory=True))

    def _end_glances(self) -> None:
        for name, glances in self._glances.items():
            glances.close()
            self._waits[name] = glances.shares()
        self._glances = {}

    def _answer(self, full: Snapshot) -> None:
        if self._start is None or self._end is None:
            return
        last = dataclasses.replace(
            self._end, pss_peak_bytes=full.pss_peak_bytes, shm_peak_bytes=full.shm_peak_bytes
        )
        usage, unavailable = usage_between(self._start, last, gpu=self._gpus.usage())
        fair = None
        if self._shares is not None:
            fair = self._shares.fair_cores(last.allowed_cpus, usage)
        usage = dataclasses.replace(
            usage, core_speed=self._speed.mean, fair_cpu_cores=fair, **self._waits
        )
        reasons = {
            "core_speed": self._speed.unavailable,
            "fair_cpu_cores": "no other session or cgroup is known to take cores",
        }
        for name, reason in reasons.items():
            unavailable.pop(name, None)
            if getattr(usage, name) is None:
                unavailable[name] = reason
        ranks = [rank.used(self._each) for rank in self._each]
        self._say("usage", usage=usage, unavailable=unavailable, ranks=ranks)

    def _say(self, event: str, **details: Any) -> None:
        self._send({"event": event, "pid": self._pid, **details})

    def look(self) -> None:
        """Count who wants cores, hold the trial against its memory limits, and now and then report.

        Pulses report what the machine did.
        """
        for glances in self._glances.values():
            glances.look()
        if self._sampler is None or self._guard is None or time.monotonic() < self._look_at_s:
            return
        began_s = time.thread_time()
        self._sampler.look()
        reason = self._guard.exceeded()
        cost_s = time.thread_time() - began_s
        self._rest_s = min(RAREST * LOOK_S, max(LOOK_S, cost_s / SHARE))
        self._look_at_s = time.monotonic() + (self._rest_s if self._glances else 0.0)
        if reason:
            self._say("memory", reason=reason)
            self._guard = None
        elif time.monotonic() >= self._pulse_at_s:
            self._pulse(self._sampler)
            rest_s = min(RAREST * PULSE_S, self._sampler.rest_s(SHARE))
            self._pulse_at_s = time.monotonic() + max(PULSE_S, rest_s, self._sampler.rest_s())

    def _pulse(self, sampler: Sampler) -> None:
        now, last = sampler.take(), self._last
        self._last = now
        if self._glances:
            self._glances["worker_waits"].add(*sampler.pids, name=WORKER)
        if last is not None:
            usage, _ = usage_between(last, now, gpu=self._gpus.latest())
            self._say("pulse", usage=usage)


def main() -> None:
    """Serve until standard input ends."""
    channel = Channel.of_standard_streams()
    inbox, gpus = Inbox(), GpuSampler()
    inbox.listen("orders", channel.receive)
    observer = Observer(channel.send, gpus)
    while True:
        received = inbox.get(observer.pause_s)
        if received is None:
            observer.look()
        elif received.message is None:
            gpus.close()
            return
        else:
            observer.obey(received.message)


if __name__ == "__main__":
    main()
