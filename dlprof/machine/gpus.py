"""What NVML tells of the machine's NVIDIA GPUs, each figure or the reason that it is missing.

Nothing here raises for want of a driver, a card, a right or a function that an old driver lacks.
NVML's order of cards is not CUDA's: join by UUID. In a container NVML gives process ids of the
host, so that processes are only counted, never joined with one's own.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dlprof.machine.files import read_int
from dlprof.records import GpuInfo, GpuUsage

_T = TypeVar("_T")

# nvmlDeviceGetPcieThroughput counts in units of 1024 bytes, over a probe of 20 ms.
_PCIE_UNIT_BYTES = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeighbours:
    """Who is on one GPU, the caller's own processes included.

    Attributes:
        index: NVML's index.
        name: The product's name.
        processes: Processes that compute on it.
        memory_used_bytes: Device memory in use by all of them.
        kernel_active_fraction: Share of NVML's last window in which any kernel ran.
        unavailable: Reasons for fields that are ``None``.
    """

    index: int
    name: str
    processes: int | None = None
    memory_used_bytes: int | None = None
    kernel_active_fraction: float | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Card:
    index: int
    handle: Any
    name: str
    uuid: str


class GpuReader:
    """Asks NVML; to be closed, after anything that samples with it has ended.

    Args:
        nvml: The bindings; the module ``pynvml`` of nvidia-ml-py for ``None``.

    Attributes:
        unavailable: Why there are no GPUs to read (key ``gpus``), or why one of them can't be
            read (key ``gpus[INDEX]``); empty where all is well.
    """

    def __init__(self, nvml: Any = None) -> None:
        self.unavailable: dict[str, str] = {}
        self._nvml = nvml
        self._faults: tuple[type[Exception], ...] = ()
        self._open = False
        self._cards: tuple[_Card, ...] = ()
        self._start()

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards, in NVML's order. What can't be had of a card is ``None``."""
        return tuple(self._describe(card, root) for card in self._cards)

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing.

        Args:
            pcie: Also ask for the link's throughput, which blocks for 40 ms per card.
        """
        return tuple(self._sample(card, pcie=pcie) for card in self._cards)

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card. Milliseconds per card under a lock of the driver's: ask seldom."""
        return tuple(self._neighbours(card) for card in self._cards)

    def close(self) -> None:
        """Let go of NVML. Nothing can be read afterwards."""
        if self._open:
            self._ask({}, "close", "nvmlShutdown")
        self._open = False
        self._cards = ()

    def _start(self) -> None:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                self.unavailable["gpus"] = "nvidia-ml-py is not installed"
                return
        # A mismatch of library and driver is an exception of its own, outside NVMLError.
        named = (getattr(self._nvml, name, None) for name in _FAULTS)
        self._faults = (OSError, AttributeError, *(fault for fault in named if fault))
        try:
            self._nvml.nvmlInit()
        except self._faults as fault:
            self.unavailable["gpus"] = _explain(fault)
            return
        self._open = True
        count = self._ask(self.unavailable, "gpus", "nvmlDeviceGetCount") or 0
        found = (self._card(index) for index in range(count))
        self._cards = tuple(card for card in found if card is not None)
        if not self._cards:
            self.unavailable.setdefault("gpus", "NVML lists no GPU")

    def _card(self, index: int) -> _Card | None:
        key = f"gpus[{index}]"
        handle = self._ask(self.unavailable, key, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None
        name = self._ask(self.unavailable, key, "nvmlDeviceGetName", handle)
        uuid = self._ask(self.unavailable, key, "nvmlDeviceGetUUID", handle)
        return _Card(index, handle, _text(name) or f"GPU {index}", _text(uuid))

    def _describe(self, card: _Card, root: Path) -> GpuInfo:
        reasons = self.unavailable
        key = f"gpus[{card.index}]"
        memory = self._ask(reasons, f"{key}.memory_bytes", "nvmlDeviceGetMemoryInfo", card.handle)
        pci = self._ask(reasons, f"{key}.numa_node", "nvmlDeviceGetPciInfo", card.handle)
        return GpuInfo(
            index=card.index,
            name=card.name,
            uuid=card.uuid,
            memory_bytes=None if memory is None else int(memory.total),
            pcie_generation=self._ask(
                reasons,
                f"{key}.pcie_generation",
                "nvmlDeviceGetMaxPcieLinkGeneration",
                card.handle,
            ),
            pcie_width=self._ask(
                reasons, f"{key}.pcie_width", "nvmlDeviceGetMaxPcieLinkWidth", card.handle
            ),
            numa_node=None if pci is None else _numa_node(_text(pci.busId), root),
        )

    def _sample(self, card: _Card, *, pcie: bool) -> GpuUsage:
        reasons: dict[str, str] = {}
        busy, used = self._activity(card, reasons)
        received = sent = None
        if pcie:
            received = self._link_rate(
                card, reasons, "pcie_rx_bytes_per_s", "NVML_PCIE_UTIL_RX_BYTES"
            )
            sent = self._link_rate(card, reasons, "pcie_tx_bytes_per_s", "NVML_PCIE_UTIL_TX_BYTES")
        else:
            reasons["pcie_rx_bytes_per_s"] = reasons["pcie_tx_bytes_per_s"] = "not asked for"
        return GpuUsage(
            index=card.index,
            name=card.name,
            uuid=card.uuid,
            kernel_active_fraction=busy,
            memory_used_bytes=used,
            pcie_rx_bytes_per_s=received,
            pcie_tx_bytes_per_s=sent,
            unavailable=reasons,
        )

    def _neighbours(self, card: _Card) -> GpuNeighbours:
        reasons: dict[str, str] = {}
        busy, used = self._activity(card, reasons)
        running = self._ask(
            reasons, "processes", "nvmlDeviceGetComputeRunningProcesses", card.handle
        )
        return GpuNeighbours(
            index=card.index,
            name=card.name,
            processes=None if running is None else len(running),
            memory_used_bytes=used,
            kernel_active_fraction=busy,
            unavailable=reasons,
        )

    def _activity(self, card: _Card, reasons: dict[str, str]) -> tuple[float | None, int | None]:
        rates = self._ask(
            reasons, "kernel_active_fraction", "nvmlDeviceGetUtilizationRates", card.handle
        )
        memory = self._ask(reasons, "memory_used_bytes", "nvmlDeviceGetMemoryInfo", card.handle)
        return (
            None if rates is None else int(rates.gpu) / 100,
            None if memory is None else int(memory.used),
        )

    def _link_rate(
        self, card: _Card, reasons: dict[str, str], field: str, counter: str
    ) -> float | None:
        number = getattr(self._nvml, counter, None)
        rate = self._ask(reasons, field, "nvmlDeviceGetPcieThroughput", card.handle, number)
        return None if rate is None else float(rate) * _PCIE_UNIT_BYTES

    def _ask(self, reasons: dict[str, str], field: str, function: str, *arguments: Any) -> Any:
        """The answer of one NVML function, or ``None`` and the reason under ``field``."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._faults as fault:
            reasons[field] = _explain(fault)
            return None


def mean_usage(samples: Sequence[Sequence[GpuUsage]]) -> tuple[GpuUsage, ...]:
    """One figure per card from several samples: means, and the peak of the memory."""
    by_card: dict[int, list[GpuUsage]] = {}
    for sample in samples:
        for usage in sample:
            by_card.setdefault(usage.index, []).append(usage)
    return tuple(_mean_of(usages) for usages in by_card.values())


def _mean_of(usages: Sequence[GpuUsage]) -> GpuUsage:
    mean = dataclasses.replace(
        usages[-1],
        kernel_active_fraction=_mean(usages, lambda usage: usage.kernel_active_fraction),
        memory_used_bytes=max(_known(usages, lambda usage: usage.memory_used_bytes), default=None),
        pcie_rx_bytes_per_s=_mean(usages, lambda usage: usage.pcie_rx_bytes_per_s),
        pcie_tx_bytes_per_s=_mean(usages, lambda usage: usage.pcie_tx_bytes_per_s),
    )
    reasons = {name: why for usage in usages for name, why in usage.unavailable.items()}
    missing = {name: why for name, why in reasons.items() if getattr(mean, name, None) is None}
    return dataclasses.replace(mean, unavailable=missing)


def _known(usages: Sequence[GpuUsage], get: Callable[[GpuUsage], _T | None]) -> list[_T]:
    return [value for usage in usages if (value := get(usage)) is not None]


def _mean(usages: Sequence[GpuUsage], get: Callable[[GpuUsage], float | None]) -> float | None:
    known = _known(usages, get)
    return sum(known) / len(known) if known else None


_FAULTS = ("NVMLError", "NVMLLibraryMismatchError")

# What NVML's own words leave open, by the names of its exceptions.
_EXPLANATIONS = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_NotSupported": "this card or its mode doesn't tell (NVML: not supported)",
    "NVMLError_NoPermission": "this user may not ask (NVML: no permission)",
    "NVMLError_FunctionNotFound": "the driver is too old to tell",
    "NVMLError_GpuIsLost": "the card has dropped off the bus (NVML: GPU is lost)",
    "NVMLLibraryMismatchError": "nvidia-ml-py and the driver's library don't fit together",
}


def _explain(fault: Exception) -> str:
    kind = type(fault).__name__
    if isinstance(fault, AttributeError):
        return "nvidia-ml-py is too old to ask"
    return _EXPLANATIONS.get(kind) or f"NVML: {str(fault) or kind}"


def _text(value: str | bytes | None) -> str:
    """Text of NVML's, which versions of the bindings before 11.5 gave as bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _numa_node(bus_id: str, root: Path) -> int | None:
    """NUMA node of a PCI device; ``None`` where the machine has only one (the kernel says -1)."""
    domain, _, rest = bus_id.lower().partition(":")
    # NVML writes the domain with eight digits, the kernel with four.
    node = read_int(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node")
    return None if node is None or node < 0 else node
