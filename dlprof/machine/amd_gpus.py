"""What ``amdsmi`` reports of AMD's GPUs, where that optional package of ROCm's is installed.

Written from AMD's reference of amdsmi 6 and 7, and not yet tried on a card: what it words
differently is ``None`` with a reason, like everything that it doesn't report (it says ``N/A``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlprof.machine.gpus import Driver, Gpu, GpuNeighbours, Gpus
from dlprof.records import GpuInfo, GpuUsage

_MISSING = "amdsmi doesn't report it"
_ONLY_NVML = (
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "pcie_generation"),
    *("sm_active_fraction", "sm_occupancy_fraction", "throttled_fraction"),
)


class AmdSmi(Driver):
    """ROCm's library."""

    library = "amdsmi"
    missing = "amdsmi is not installed, or finds no ROCm"
    begin, end = "amdsmi_init", "amdsmi_shut_down"
    # Its own, and what its wrapper of the C library lets through.
    faults = ("AmdSmiException", OSError, AttributeError, KeyError, TypeError, ValueError)

    def load(self) -> Any:
        """The bindings."""
        return importlib.import_module("amdsmi")


class AmdReader(Gpus):
    """AMD's cards, in amdsmi's order; to be closed."""

    def __init__(self, amdsmi: Any = None) -> None:
        super().__init__({}, AmdSmi(amdsmi))

    def _find(self, driver: Driver) -> Iterable[Gpu]:
        handles = driver.ask(self.unavailable, "gpus", "amdsmi_get_processor_handles") or ()
        for index, handle in enumerate(handles):
            answer = driver.ask({}, "name", "amdsmi_get_gpu_asic_info", handle)
            name = answer.get("market_name") if isinstance(answer, dict) else None
            uuid = driver.ask({}, "uuid", "amdsmi_get_gpu_device_uuid", handle)
            yield AmdCard(driver, index, handle, str(name or ""), str(uuid or ""))


class AmdCard(Gpu):
    """One of AMD's cards. ``pcie`` changes nothing, the link's bytes aren't reported."""

    def describe(self, root: Path, reasons: dict[str, str]) -> GpuInfo:
        """What it is."""
        del root
        link = "amdsmi_get_pcie_info", "pcie_static"
        width = self._number(reasons, "pcie_width", *link, "max_pcie_width")
        generation = self._number(reasons, "pcie_generation", *link, "pcie_interface_version")
        return GpuInfo(
            **self.known,
            memory_bytes=self._vram(reasons, "memory_bytes", "vram_total"),
            pcie_generation=None if generation is None else int(generation),
            pcie_width=None if width is None else int(width),
        )

    def sample(self, *, pcie: bool) -> GpuUsage:
        """What it is doing."""
        del pcie
        reasons = dict.fromkeys(_ONLY_NVML, _MISSING)
        busy, used = self._activity(reasons)
        # Watts, under the name that the card's generation has for them.
        power = self.ask(reasons, "power_w", "amdsmi_get_power_info")
        watts = _at({}, "power_w", power, "current_socket_power")
        if watts is None:
            watts = _at(reasons, "power_w", power, "average_socket_power")
        link = "amdsmi_get_pcie_info", "pcie_metric", "pcie_width"
        width = self._number(reasons, "pcie_width", *link)
        # MHz of the engine that computes.
        kind = getattr(self._driver.constant("AmdSmiClkType"), "GFX", None)
        answer = self.ask(reasons, "sm_clock_hz", "amdsmi_get_clock_info", kind)
        clock = _at(reasons, "sm_clock_hz", answer, "clk")
        return GpuUsage(
            **self.known,
            kernel_active_fraction=busy,
            memory_used_bytes=used,
            pcie_width=None if width is None else int(width),
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=watts,
            samples=1,
            unavailable=reasons,
        )

    def neighbours(self) -> GpuNeighbours:
        """Who is on it."""
        reasons = {"process_memory_bytes": _MISSING}
        busy, used = self._activity(reasons)
        processes = self.ask(reasons, "processes", "amdsmi_get_gpu_process_list")
        return GpuNeighbours(
            **self.known,
            processes=None if processes is None else len(processes),
            memory_used_bytes=used,
            kernel_active_fraction=busy,
            unavailable=reasons,
        )

    def _activity(self, reasons: dict[str, str]) -> tuple[float | None, int | None]:
        function = "amdsmi_get_gpu_activity"
        busy = self._number(reasons, "kernel_active_fraction", function, "gfx_activity")
        used = self._vram(reasons, "memory_used_bytes", "vram_used")
        return None if busy is None else busy / 100, used

    def _vram(self, reasons: dict[str, str], field: str, key: str) -> int | None:
        mib = self._number(reasons, field, "amdsmi_get_gpu_vram_usage", key)
        return None if mib is None else int(mib * (1 << 20))

    def _number(
        self, reasons: dict[str, str], field: str, function: str, *path: str
    ) -> float | None:
        return _at(reasons, field, self.ask(reasons, field, function), *path)


def _at(reasons: dict[str, str], field: str, answer: Any, *path: str) -> float | None:
    """The number at a path of keys in an answer."""
    for key in path:
        answer = answer.get(key) if isinstance(answer, dict) else None
    if isinstance(answer, (int, float)):
        return float(answer)
    reasons.setdefault(field, _MISSING)
    return None
