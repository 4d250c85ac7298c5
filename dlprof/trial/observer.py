"""The process beside the trials that samples what they use and what the machine is doing.

A process and not a thread of the trial: a thread would take turns with the loader on the GIL, and
a forking process with threads can deadlock. It imports no torch.

Run as ``python -m dlprof.trial.observer``: orders on standard input, answers on standard output.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from dlprof.machine.snapshot import Sampler, Snapshot
from dlprof.machine.usage import usage_between
from dlprof.trial.gpu_sampling import GpuSampler
from dlprof.trial.protocol import Channel, Message

PULSE_S = 0.5
"""Seconds between samples of a running trial; more where a sample is dear (2 % of a core)."""


class Observer:
    """Obeys ``watch``, ``start``, ``end``, ``memory`` and ``unwatch``.

    Args:
        send: Takes answers: ``usage`` after ``memory``, and a ``pulse`` now and then.
        gpus: Samples the GPUs in the background.
        root: Where ``/proc`` and ``/sys`` are found.
    """

    def __init__(
        self, send: Callable[[Message], object], gpus: GpuSampler, root: Path = Path("/")
    ) -> None:
        self._send = send
        self._gpus = gpus
        self._root = root
        self._sampler: Sampler | None = None
        self._last: Snapshot | None = None
        self._start: Snapshot | None = None
        self._end: Snapshot | None = None

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next pulse; ``None`` while there is nothing to watch."""
        return None if self._sampler is None else max(PULSE_S, self._sampler.rest_s())

    def obey(self, order: Message) -> None:
        """Carry out one order; what makes no sense in its place does nothing."""
        verb = order["order"]
        if verb == "watch":
            self._sampler = Sampler(order["pid"], root=self._root)
            self._last = self._start = self._end = None
        elif verb == "unwatch":
            self._sampler = None
            self._gpus.stop()
        elif self._sampler is not None:
            self._mark(verb, self._sampler)

    def _mark(self, verb: str, sampler: Sampler) -> None:
        if verb == "start":
            self._gpus.start()
            self._start = self._last = sampler.take()
        elif verb == "end":
            self._end = sampler.take()
            self._gpus.stop()
        elif verb == "memory":
            self._answer(sampler.take(memory=True))

    def _answer(self, full: Snapshot) -> None:
        if self._start is None or self._end is None:
            return
        last = dataclasses.replace(
            self._end,
            pss_peak_bytes=full.pss_peak_bytes,
            shm_peak_bytes=full.shm_peak_bytes,
            unavailable={
                name: reason
                for name, reason in self._end.unavailable.items()
                if name not in ("pss_peak_bytes", "shm_peak_bytes") or name in full.unavailable
            },
        )
        first = dataclasses.replace(
            self._start,
            unavailable={
                name: reason
                for name, reason in self._start.unavailable.items()
                if name not in ("pss_peak_bytes", "shm_peak_bytes")
            },
        )
        usage, unavailable = usage_between(first, last, gpu=self._gpus.usage())
        self._send(
            {"event": "usage", "usage": dataclasses.asdict(usage), "unavailable": unavailable}
        )

    def pulse(self) -> None:
        """Tell what the machine did since the last sample."""
        if self._sampler is None:
            return
        now, last = self._sampler.take(), self._last
        self._last = now
        if last is not None:
            usage, _ = usage_between(last, now)
            self._send({"event": "pulse", "usage": dataclasses.asdict(usage)})


def main() -> None:
    """Serve until standard input ends."""
    channel = Channel.of_descriptors(os.dup(0), os.dup(1))
    orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def read() -> None:
        order: Message | None = {}
        while order is not None:
            order = channel.receive()
            orders.put(order)

    threading.Thread(target=read, daemon=True).start()
    observer = Observer(channel.send, GpuSampler())
    while True:
        try:
            order = orders.get(timeout=observer.pause_s)
        except queue.Empty:
            observer.pulse()
            continue
        if order is None:
            return
        observer.obey(order)


if __name__ == "__main__":
    main()
