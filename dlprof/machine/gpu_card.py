"""What one NVIDIA card is doing at a moment, each figure or the reason that it is missing."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlprof.machine.gpm import GpmCounters, GpmFigures
from dlprof.machine.nvml import Nvml
from dlprof.records import GpuUsage

# nvmlDeviceGetPcieThroughput counts in units of 1024 bytes, over a probe of 20 ms.
_PCIE_UNIT_BYTES = 1024

_SPLIT = "MIG is on: NVML reports no activity of a card that is split"

# Bits of nvmlClocksEventReason in nvml.h; idle clocks and clocks that somebody set are not among
# them, for nothing is wrong there.
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}

_EVENT_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_RUNNING_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",  # all that drivers before 510.39 have
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who computes on a card.

    Attributes:
        processes: How many.
        memory_bytes: What they hold, summed; ``None`` where it isn't told of each of them.
    """

    processes: int | None = None
    memory_bytes: int | None = None


class GpuCard:
    """One card.

    Args:
        nvml: Open.
        index: NVML's.
        handle: NVML's.
        name: The product's name.
        uuid: NVML's.
    """

    def __init__(self, nvml: Nvml, index: int, handle: Any, name: str, uuid: str) -> None:
        self.index = index
        self.name = name
        self.uuid = uuid
        self._nvml = nvml
        self._handle = handle
        self._is_split = (self.ask({}, "mig", "nvmlDeviceGetMigMode") or [0])[0] == 1
        self._gpm: GpmCounters | None = None

    @property
    def has_gpm(self) -> bool:
        """Whether the link's bytes are counted, so that no probe is needed; known once primed."""
        return self._gpm is not None and self._gpm.unavailable is None

    def ask(self, reasons: dict[str, str], field: str, function: str, *arguments: Any) -> Any:
        """The answer of one NVML function about this card, or ``None`` and the reason."""
        return self._nvml.ask(reasons, field, function, self._handle, *arguments)

    def prime(self) -> None:
        """Begin a window: what the counters tell from now on is of it."""
        if self._is_split:
            return
        if self._gpm is None:
            self._gpm = GpmCounters(self._nvml, self._handle)
        self._gpm.prime()

    def close(self) -> None:
        """Give back what was taken from NVML."""
        if self._gpm is not None:
            self._gpm.close()
        self._gpm = None

    def sample(self, *, pcie: bool) -> GpuUsage:
        """What the card is doing.

        Args:
            pcie: Also probe the link, which blocks for 40 ms, where nothing counts its bytes.
        """
        reasons: dict[str, str] = {}
        busy, used = self.activity(reasons)
        figures = self._counted(reasons)
        received, sent = figures.pcie_rx_bytes_per_s, figures.pcie_tx_bytes_per_s
        if received is None and sent is None and not self.has_gpm:
            received, sent = self._probed(reasons, pcie=pcie)
        clock = self.ask(
            reasons, "sm_clock_hz", "nvmlDeviceGetClockInfo", self._nvml.constant("NVML_CLOCK_SM")
        )
        power = self.ask(reasons, "power_w", "nvmlDeviceGetPowerUsage")
        held = self._held_down(reasons)
        return GpuUsage(
            index=self.index,
            name=self.name,
            uuid=self.uuid,
            kernel_active_fraction=busy,
            memory_used_bytes=used,
            pcie_rx_bytes_per_s=received,
            pcie_tx_bytes_per_s=sent,
            pcie_generation=self.ask(
                reasons, "pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"
            ),
            pcie_width=self.ask(reasons, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            sm_active_fraction=figures.sm_active_fraction,
            sm_occupancy_fraction=figures.sm_occupancy_fraction,
            sm_clock_hz=None if clock is None else clock * 1e6,
            throttled_fraction=None if held is None else float(bool(held)),
            throttle_reasons=held or (),
            power_w=None if power is None else power / 1000,
            samples=1,
            unavailable=reasons,
        )

    def activity(self, reasons: dict[str, str]) -> tuple[float | None, int | None]:
        """Share of time in which any kernel ran, and bytes in use."""
        rates = None
        if self._is_split:
            reasons["kernel_active_fraction"] = _SPLIT
        else:
            rates = self.ask(reasons, "kernel_active_fraction", "nvmlDeviceGetUtilizationRates")
        memory = self.ask(reasons, "memory_used_bytes", "nvmlDeviceGetMemoryInfo")
        return (
            None if rates is None else int(rates.gpu) / 100,
            None if memory is None else int(memory.used),
        )

    def crowd(self, reasons: dict[str, str]) -> Crowd:
        """Who computes on it; milliseconds, under a lock of the driver's."""
        running = self._nvml.ask_first(reasons, "processes", _RUNNING_PROCESSES, self._handle)
        if running is None:
            return Crowd()
        held = [process.usedGpuMemory for process in running]
        if None in held:
            reasons["process_memory_bytes"] = "the driver doesn't report what each process holds"
            return Crowd(processes=len(running))
        return Crowd(processes=len(running), memory_bytes=sum(held))

    def _counted(self, reasons: dict[str, str]) -> GpmFigures:
        if self._is_split:
            reasons["sm_active_fraction"] = reasons["sm_occupancy_fraction"] = _SPLIT
            return GpmFigures()
        if self._gpm is None:
            self.prime()
        return GpmFigures() if self._gpm is None else self._gpm.read(reasons)

    def _probed(self, reasons: dict[str, str], *, pcie: bool) -> tuple[float | None, float | None]:
        if not pcie:
            reasons["pcie_rx_bytes_per_s"] = reasons["pcie_tx_bytes_per_s"] = "not asked for"
            return None, None
        return (
            self._link_rate(reasons, "pcie_rx_bytes_per_s", "NVML_PCIE_UTIL_RX_BYTES"),
            self._link_rate(reasons, "pcie_tx_bytes_per_s", "NVML_PCIE_UTIL_TX_BYTES"),
        )

    def _link_rate(self, reasons: dict[str, str], field: str, counter: str) -> float | None:
        number = self._nvml.constant(counter)
        rate = self.ask(reasons, field, "nvmlDeviceGetPcieThroughput", number)
        return None if rate is None else float(rate) * _PCIE_UNIT_BYTES

    def _held_down(self, reasons: dict[str, str]) -> tuple[str, ...] | None:
        """What holds the clocks down; ``None`` where that isn't told."""
        bits = self._nvml.ask_first(reasons, "throttled_fraction", _EVENT_REASONS, self._handle)
        if bits is None:
            return None
        return tuple(words for bit, words in _THROTTLES.items() if int(bits) & bit)
