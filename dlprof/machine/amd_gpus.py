"""What ``amdsmi`` reports of AMD's GPUs, where that optional package of ROCm's is installed.

Written from AMD's reference of amdsmi 6 and 7, and not yet tried on a card: what it words
differently is ``None`` with a reason, like everything that it doesn't report (it says ``N/A``).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlprof.machine.gpus import GpuNeighbours, Gpus
from dlprof.records import GpuInfo, GpuUsage

_MISSING = "amdsmi doesn't report it"
_ONLY_NVML = (
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "pcie_generation"),
    *("sm_active_fraction", "sm_occupancy_fraction", "throttled_fraction"),
)


class AmdReader(Gpus):
    """Asks amdsmi; to be closed."""

    def __init__(self, amdsmi: Any = None) -> None:
        super().__init__({})
        self._amdsmi = amdsmi
        self._faults: tuple[type[Exception], ...] = (
            *(OSError, AttributeError, KeyError, TypeError, ValueError),
        )  # its own, and what its wrapper of the C library lets through
        self._handles: Sequence[Any] = ()
        self._is_open = False
        self._start()

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards, in amdsmi's order."""
        del root
        return tuple(self._describe(index, card) for index, card in enumerate(self._handles))

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing; ``pcie`` changes nothing, the link's bytes aren't reported."""
        del pcie
        return tuple(self._sample(index, card) for index, card in enumerate(self._handles))

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card."""
        return tuple(self._neighbours(index, card) for index, card in enumerate(self._handles))

    def close(self) -> None:
        """Let go of amdsmi."""
        if self._is_open:
            self._ask({}, "close", "amdsmi_shut_down")
        self._is_open = False
        self._handles = ()

    def _start(self) -> None:
        if self._amdsmi is None:
            try:
                self._amdsmi = importlib.import_module("amdsmi")
            except (ImportError, OSError, KeyError):  # it looks for ROCm's library as it is loaded
                self.unavailable["gpus"] = "amdsmi is not installed, or finds no ROCm"
                return
        own = getattr(self._amdsmi, "AmdSmiException", None)
        self._faults = (*self._faults, *([own] if own else []))
        self._ask(self.unavailable, "gpus", "amdsmi_init")
        if self.unavailable:
            return
        self._is_open = True
        self._handles = self._ask(self.unavailable, "gpus", "amdsmi_get_processor_handles") or ()
        if not self._handles:
            self.unavailable.setdefault("gpus", "amdsmi lists no GPU")

    def _describe(self, index: int, card: Any) -> GpuInfo:
        reasons: dict[str, str] = {}
        memory = self._vram(reasons, "memory_bytes", card, "vram_total")
        link = "amdsmi_get_pcie_info", card, "pcie_static"
        width = self._number(reasons, "pcie_width", *link, "max_pcie_width")
        generation = self._number(reasons, "pcie_generation", *link, "pcie_interface_version")
        for field, why in reasons.items():
            self.unavailable[f"gpus[{index}].{field}"] = why
        return GpuInfo(
            index=index,
            name=self._name(index, card),
            uuid=self._uuid(card),
            memory_bytes=memory,
            pcie_generation=None if generation is None else int(generation),
            pcie_width=None if width is None else int(width),
        )

    def _sample(self, index: int, card: Any) -> GpuUsage:
        reasons = dict.fromkeys(_ONLY_NVML, _MISSING)
        busy, used = self._activity(card, reasons)
        # Watts, under the name that the card's generation has for them.
        power = self._ask(reasons, "power_w", "amdsmi_get_power_info", card)
        watts = self._at({}, "power_w", power, "current_socket_power")
        if watts is None:
            watts = self._at(reasons, "power_w", power, "average_socket_power")
        width = self._number(
            reasons, "pcie_width", "amdsmi_get_pcie_info", card, "pcie_metric", "pcie_width"
        )
        clock = self._clock(reasons, card)
        return GpuUsage(
            index=index,
            name=self._name(index, card),
            uuid=self._uuid(card),
            kernel_active_fraction=busy,
            memory_used_bytes=used,
            pcie_width=None if width is None else int(width),
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=watts,
            samples=1,
            unavailable=reasons,
        )

    def _neighbours(self, index: int, card: Any) -> GpuNeighbours:
        reasons = {"process_memory_bytes": _MISSING}
        busy, used = self._activity(card, reasons)
        processes = self._ask(reasons, "processes", "amdsmi_get_gpu_process_list", card)
        return GpuNeighbours(
            index=index,
            name=self._name(index, card),
            uuid=self._uuid(card),
            processes=None if processes is None else len(processes),
            memory_used_bytes=used,
            kernel_active_fraction=busy,
            unavailable=reasons,
        )

    def _activity(self, card: Any, reasons: dict[str, str]) -> tuple[float | None, int | None]:
        busy = self._number(
            reasons, "kernel_active_fraction", "amdsmi_get_gpu_activity", card, "gfx_activity"
        )
        used = self._vram(reasons, "memory_used_bytes", card, "vram_used")
        return None if busy is None else busy / 100, used

    def _vram(self, reasons: dict[str, str], field: str, card: Any, key: str) -> int | None:
        mib = self._number(reasons, field, "amdsmi_get_gpu_vram_usage", card, key)
        return None if mib is None else int(mib * (1 << 20))

    def _clock(self, reasons: dict[str, str], card: Any) -> float | None:
        """MHz of the engine that computes."""
        kind = getattr(getattr(self._amdsmi, "AmdSmiClkType", None), "GFX", None)
        answer = self._ask(reasons, "sm_clock_hz", "amdsmi_get_clock_info", card, kind)
        return self._at(reasons, "sm_clock_hz", answer, "clk")

    def _name(self, index: int, card: Any) -> str:
        answer = self._ask({}, "name", "amdsmi_get_gpu_asic_info", card)
        name = answer.get("market_name") if isinstance(answer, dict) else None
        return str(name or f"GPU {index}")

    def _uuid(self, card: Any) -> str:
        return str(self._ask({}, "uuid", "amdsmi_get_gpu_device_uuid", card) or "")

    def _number(
        self, reasons: dict[str, str], field: str, function: str, card: Any, *path: str
    ) -> float | None:
        return self._at(reasons, field, self._ask(reasons, field, function, card), *path)

    def _at(self, reasons: dict[str, str], field: str, answer: Any, *path: str) -> float | None:
        """The number at a path of keys in an answer."""
        for key in path:
            answer = answer.get(key) if isinstance(answer, dict) else None
        if isinstance(answer, (int, float)):
            return float(answer)
        reasons.setdefault(field, _MISSING)
        return None

    def _ask(self, reasons: dict[str, str], field: str, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._amdsmi, function)(*arguments)
        except self._faults as fault:
            reasons[field] = f"amdsmi: {str(fault) or type(fault).__name__}"
            return None
