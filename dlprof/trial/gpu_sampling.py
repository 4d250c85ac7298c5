"""Sampling the GPUs in the background while a window is measured."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dlprof.machine.gpus import GpuReader, mean_usage
from dlprof.records import GpuUsage

_PERIOD_S = 0.5
"""NVML averages over up to a second: asking more than five times a second adds nothing."""

_PATIENCE_S = 1.0


class GpuSampler:
    """Collects samples between ``start`` and ``stop``; without a GPU it does nothing.

    A thread of its own, because a call into a sick driver can take seconds and must not delay
    the marks at the window's edges.

    Args:
        reader: Asks NVML.
    """

    def __init__(self, reader: GpuReader | None = None) -> None:
        self._reader = reader or GpuReader()
        self._has_gpus = bool(self._reader.list_gpus())
        self._samples: list[Sequence[GpuUsage]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Forget earlier samples and begin anew."""
        self.stop()
        self._samples = []
        if not self._has_gpus:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_collect, args=[self._reader, self._samples, self._stop], daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; a call that hangs in the driver is not waited for long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        self._thread = None

    def usage(self) -> tuple[GpuUsage, ...]:
        """What the GPUs did between ``start`` and ``stop``."""
        return mean_usage(list(self._samples))


def _collect(reader: GpuReader, samples: list[Sequence[GpuUsage]], stop: threading.Event) -> None:
    """Sample until told to stop; a thread that outlives its window fills a list of its own."""
    while True:
        samples.append(reader.sample(pcie=True))
        if stop.wait(_PERIOD_S):
            return
