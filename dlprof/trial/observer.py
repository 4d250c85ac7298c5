"""The process beside the trials that samples what they use and what the machine is doing.

A process and not a thread of the trial: a thread would take turns with the loader on the GIL, and
a forking process with threads can deadlock. It imports no torch.

Run as ``python -m dlprof.trial.observer``: orders on standard input, answers on standard output.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dlprof.internals import WORKER
from dlprof.machine.core_speed import SpeedProbe
from dlprof.machine.files import read_text
from dlprof.machine.procfs import parse_process_stat
from dlprof.machine.snapshot import Sampler, Snapshot, usage_between
from dlprof.machine.waits import Thread, gil_of
from dlprof.records import Usage
from dlprof.trial.gpu_sampling import GpuSampler
from dlprof.trial.protocol import Channel, Message
from dlprof.trial.runtime import Inbox
from dlprof.units import format_bytes


class MemoryGuard:
    """Notices that a trial takes more memory than it may, before the kernel has to.

    It may take so much of its own, where that is limited, and has to leave so much to others.
    """

    def __init__(self, sampler: Sampler, memory_bytes: int | None, reserve_bytes: int) -> None:
        self._sampler = sampler
        self._memory_bytes = memory_bytes
        self._reserve_bytes = reserve_bytes
        self._asked_at_bytes = 0.0

    def exceeded(self) -> str:
        """Which limit is exceeded, one sentence; empty if none is."""
        private, available = self._sampler.memory_now()
        # A trial that holds less than it would have to give back is not what fills the machine.
        if available is not None and available < self._reserve_bytes < (private or 0):
            return (
                f"The trial was ended because it left only {format_bytes(available)} of memory; "
                f"it held {format_bytes(private)}"
            )
        if self._memory_bytes is None or private is None:
            return ""
        if private <= max(self._memory_bytes, 1.05 * self._asked_at_bytes):
            return ""
        # Pages shared since a fork count in every process; what they take in truth costs more
        # to ask, so it is asked again only when there is clearly more.
        self._asked_at_bytes = private
        held = self._sampler.take(memory=True).pss_peak_bytes
        if held is None or held <= self._memory_bytes:
            return ""
        limit = format_bytes(self._memory_bytes)
        return f"The trial held {format_bytes(held)} of memory, more than its limit of {limit}"


LOOK_S = 0.2
"""Seconds between looks at a running trial's memory."""


class Glances:
    """What the first threads of a trial's main process and of its workers do, counted.

    Only that shows whether a thread that is blocked waits for the GIL. Where system calls can't be
    read (``ptrace_scope``), which lock it waits for isn't known, so nothing is counted.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._pid, self._proc = pid, f"{root}/proc".replace("//", "/")
        self._threads: dict[int, Thread] = {}
        self._main: collections.Counter[str] = collections.Counter()
        self._workers: collections.Counter[str] = collections.Counter()

    def find(self, pids: Collection[int]) -> None:
        """Take in the workers among the trial's processes, each once."""
        for pid in {self._pid, *pids} - self._threads.keys():
            folder = f"{self._proc}/{pid}"
            stat = parse_process_stat(read_text(f"{folder}/stat") or "")
            if stat is not None and (pid == self._pid or stat.name == WORKER):
                thread = Thread(f"{folder}/task/{pid}", os.uname().machine, gil_of(folder))
                if thread.unreadable:
                    thread.close()
                else:
                    self._threads[pid] = thread

    def look(self) -> None:
        """Look at each of them once."""
        for pid, thread in list(self._threads.items()):
            wait = thread.look()
            if wait is None:
                self._threads.pop(pid).close()
            else:
                (self._main if pid == self._pid else self._workers)[wait] += 1

    def close(self) -> None:
        """Let go of all files."""
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()

    def shares(self) -> dict[str, dict[str, float]]:
        """Shares of the looks that found them so, as in ``records.Usage``."""
        counted = {"main_waits": self._main, "worker_waits": self._workers}
        return {
            name: {wait: count / waits.total() for wait, count in waits.items()}
            for name, waits in counted.items()
        }


class EachRank:
    """What one of several ranks uses in the window, by which a slow one shows why.

    The CPUs are those that it may use; none where that isn't known.
    """

    def __init__(self, pid: int) -> None:
        self._sampler = Sampler(pid)
        self._first: Snapshot | None = None
        self.cpus = frozenset[int]()
        with contextlib.suppress(OSError):
            self.cpus = frozenset(os.sched_getaffinity(pid))
        self.usage = Usage()

    def start(self) -> None:
        """The window begins."""
        self._first = self._sampler.take()

    def end(self) -> None:
        """The window has ended."""
        if self._first is not None:
            self.usage, _ = usage_between(self._first, self._sampler.take())

    def used(self, ranks: Collection[EachRank]) -> dict[str, float | None]:
        """As in ``records.RankFigures``: of what others used, other ranks' part is left out."""
        mine = self.usage
        other = mine.other_cpu_cores
        if other is not None:
            beside = [rank for rank in ranks if rank is not self and rank.cpus]
            for rank in beside:
                shared = len(self.cpus & rank.cpus) / len(rank.cpus)
                other -= shared * (rank.usage.own_cpu_cores or 0.0)
        return {
            "own_cpu_cores": mine.own_cpu_cores,
            "other_cpu_cores": None if other is None else max(0.0, other),
            "run_queue_wait_fraction": mine.run_queue_wait_fraction,
            "read_bytes_per_s": mine.read_bytes_per_s,
        }


PULSE_S = 0.5
"""Seconds between samples of a running trial; more where a sample is expensive (2 % of a core)."""


class Observer:
    """Obeys ``watch``, ``start``, ``end``, ``memory`` and ``unwatch``.

    It sends ``usage`` after ``memory``, and a ``pulse`` now and then.
    """

    def __init__(self, send: Callable[[Message], object], gpus: GpuSampler) -> None:
        self._speed = SpeedProbe()
        self._send = send
        self._gpus = gpus
        self._sampler: Sampler | None = None
        self._last: Snapshot | None = None
        self._start: Snapshot | None = None
        self._end: Snapshot | None = None
        self._each: tuple[EachRank, ...] = ()
        self._guard: MemoryGuard | None = None
        self._glances: Glances | None = None
        self._waits: dict[str, Any] = {}  # fields of the usage
        self._look_at_s = self._pulse_at_s = 0.0

    @property
    def pause_s(self) -> float:
        """Seconds until the next look; many while there is nothing to watch."""
        if self._sampler is None:
            return 60.0
        # Every 20 ms on average it glances at threads, where batches are traced.
        return LOOK_S if self._glances is None else 0.02 * random.uniform(0.5, 1.5)

    def obey(self, order: Message) -> None:
        """Carry out one order; what makes no sense in its place does nothing."""
        verb = str(order.get("order"))
        if verb == "watch":
            self._sampler = Sampler(order["pid"], beside=order.get("beside", ()))
            pids = [order["pid"], *order.get("beside", ())]
            self._each = tuple(EachRank(pid) for pid in pids) if pids[1:] else ()
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
                self._glances = Glances(pid)
                self._glances.find(sampler.pids)
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
        if self._glances is not None:
            self._waits = self._glances.shares()
            self._glances.close()
            self._glances = None

    def _answer(self, full: Snapshot) -> None:
        if self._start is None or self._end is None:
            return
        last = dataclasses.replace(
            self._end, pss_peak_bytes=full.pss_peak_bytes, shm_peak_bytes=full.shm_peak_bytes
        )
        usage, unavailable = usage_between(self._start, last, gpu=self._gpus.usage())
        usage = dataclasses.replace(usage, core_speed=self._speed.mean, **self._waits)
        if usage.core_speed is None:
            unavailable["core_speed"] = self._speed.unavailable
        else:
            unavailable.pop("core_speed", None)
        answer = {"event": "usage", "usage": dataclasses.asdict(usage), "unavailable": unavailable}
        self._send({**answer, "ranks": [rank.used(self._each) for rank in self._each]})

    def look(self) -> None:
        """Count who wants cores, hold the trial against its memory limits, and now and then report.

        Pulses report what the machine did.
        """
        if self._glances is not None:
            self._glances.look()
        if self._sampler is None or self._guard is None or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + (0.0 if self._glances is None else LOOK_S)
        self._sampler.look()
        reason = self._guard.exceeded()
        if reason:
            self._send({"event": "memory", "reason": reason})
            self._guard = None
        elif time.monotonic() >= self._pulse_at_s:
            self._pulse(self._sampler)
            self._pulse_at_s = time.monotonic() + max(PULSE_S, self._sampler.rest_s())

    def _pulse(self, sampler: Sampler) -> None:
        now, last = sampler.take(), self._last
        self._last = now
        if self._glances is not None:
            self._glances.find(sampler.pids)
        if last is not None:
            usage, _ = usage_between(last, now, gpu=self._gpus.latest())
            self._send({"event": "pulse", "usage": dataclasses.asdict(usage)})


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
