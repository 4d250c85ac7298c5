"""NVML's GPM counters: how much of a card worked, on Hopper and later.

``utilization.gpu`` only tells that some kernel ran. GPM tells how many of the multiprocessors had
work and how full they were, and counts the link's bytes without the 20 ms that
``nvmlDeviceGetPcieThroughput`` blocks. A figure comes of two readings of the counters.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dlprof.machine.nvml import Nvml

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpmFigures:
    """Means between two readings of a card's counters; ``None`` where they don't tell.

    Attributes:
        sm_active_fraction: Share of multiprocessors that had work.
        sm_occupancy_fraction: Warps that were active over the most that there can be.
        pcie_rx_bytes_per_s: From host to device.
        pcie_tx_bytes_per_s: From device to host.
    """

    sm_active_fraction: float | None = None
    sm_occupancy_fraction: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None


# Metrics by number (nvml.h: NVML_GPM_METRIC_...), and what their units are of ours: per cent, MiB.
_METRICS = {
    2: ("sm_active_fraction", 0.01),
    3: ("sm_occupancy_fraction", 0.01),
    21: ("pcie_rx_bytes_per_s", float(_MIB)),
    20: ("pcie_tx_bytes_per_s", float(_MIB)),
}
_FIELD = "sm_active_fraction"
_OWN = ("sm_active_fraction", "sm_occupancy_fraction")
"""Figures that only GPM has; the link's come otherwise too."""

_FIELDS = tuple(name for name, _ in _METRICS.values())


class GpmCounters:
    """The counters of one card, read again and again.

    Args:
        nvml: Open.
        handle: The card's.

    Attributes:
        unavailable: Why the card has none; ``None`` where it has.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self._is_primed = False
        self.unavailable = self._start()

    def prime(self) -> None:
        """Read the counters, so that the next figures are of the time from now on."""
        reasons: dict[str, str] = {}
        if self.unavailable is None and not self._take(0, reasons):
            self.unavailable = reasons[_FIELD]  # not for this user, say: the link is probed then
        self._is_primed = self.unavailable is None

    def read(self, reasons: dict[str, str]) -> GpmFigures:
        """The figures since the counters were last read; with reasons where there are none."""
        was_primed = self._is_primed
        if not was_primed:
            self.prime()
        if self.unavailable is not None:
            reasons.update(dict.fromkeys(_OWN, self.unavailable))
            return GpmFigures()
        if not was_primed:
            reasons.update(dict.fromkeys(_FIELDS, "the counters had not been read before"))
            return GpmFigures()
        if not self._take(1, reasons):
            return GpmFigures()
        figures = self._between(reasons)
        self._samples.reverse()  # this reading is the next one's first
        return figures

    def close(self) -> None:
        """Give the samples back; to be called before the library is shut down."""
        while self._samples:
            self._nvml.ask({}, _FIELD, "nvmlGpmSampleFree", self._samples.pop())
        self.unavailable = "closed"

    def _start(self) -> str | None:
        reasons: dict[str, str] = {}
        support = self._nvml.ask(reasons, _FIELD, "nvmlGpmQueryDeviceSupport", self._handle)
        if support is None:
            return reasons[_FIELD]
        if not support.isSupportedDevice:
            return "the card has no GPM counters (they came with Hopper)"
        for _ in range(2):
            sample = self._nvml.ask(reasons, _FIELD, "nvmlGpmSampleAlloc")
            if sample is None:
                self.close()
                return reasons[_FIELD]
            self._samples.append(sample)
        return None

    def _take(self, place: int, reasons: dict[str, str]) -> bool:
        function = "nvmlGpmSampleGet"
        sample = self._samples[place]
        if self._nvml.ask(reasons, _FIELD, function, self._handle, sample) is not None:
            return True
        reasons.update(dict.fromkeys(_FIELDS, reasons[_FIELD]))
        return False

    def _between(self, reasons: dict[str, str]) -> GpmFigures:
        request = self._request()
        answer = self._nvml.ask(reasons, _FIELD, "nvmlGpmMetricsGet", request)
        if answer is None:
            reasons.update(dict.fromkeys(_FIELDS, reasons[_FIELD]))
            return GpmFigures()
        found: dict[str, float] = {}
        for metric in answer.metrics[: len(_METRICS)]:
            name, unit = _METRICS[int(metric.metricId)]
            if metric.nvmlReturn == 0 and math.isfinite(metric.value):
                found[name] = float(metric.value) * unit
            else:
                reasons[name] = f"GPM gave no figure (code {metric.nvmlReturn})"
        return GpmFigures(**found)

    def _request(self) -> Any:
        request = self._nvml.constant("c_nvmlGpmMetricsGet_t")()
        request.version = self._nvml.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = self._samples
        for place, number in enumerate(_METRICS):
            request.metrics[place].metricId = number
        return request
