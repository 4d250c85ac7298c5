"""What NVML tells of the machine's NVIDIA GPUs, each figure or the reason that it is missing.

Nothing here raises for want of a driver, a card, a right or a function that an old driver lacks.
NVML's order of cards is not CUDA's: join by UUID. In a container NVML gives process ids of the
host, so that processes are only counted, never joined with one's own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dlprof.machine.cuda_order import cuda_indices
from dlprof.machine.files import read_int
from dlprof.machine.gpu_card import GpuCard
from dlprof.machine.nvml import Nvml, text_of
from dlprof.records import GpuInfo, GpuUsage

_PROBES = 2
"""Cards whose link is probed in one sample; each takes 40 ms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeighbours:
    """Who is on one GPU, the caller's own processes included.

    Attributes:
        index: NVML's index.
        name: The product's name.
        uuid: NVML's UUID.
        processes: Processes that compute on it.
        process_memory_bytes: What these hold, summed.
        memory_used_bytes: Device memory in use by all of them, and by the driver.
        kernel_active_fraction: Share of NVML's last window in which any kernel ran.
        unavailable: Reasons for fields that are ``None``.
    """

    index: int
    name: str
    uuid: str = ""
    processes: int | None = None
    process_memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    kernel_active_fraction: float | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Gpus(Protocol):
    """Whoever can be asked about a machine's GPUs."""

    @property
    def unavailable(self) -> dict[str, str]:
        """Why there are no GPUs to read (key ``gpus``), or what of them can't be read."""

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards."""

    def prime(self) -> None:
        """Begin a window: what is counted from now on is of it."""

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing."""

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card."""

    def close(self) -> None:
        """Let go of the driver."""


class NoGpus:
    """A machine without GPUs that could be asked.

    Args:
        unavailable: Why, by whom was asked.
    """

    def __init__(self, unavailable: Mapping[str, str]) -> None:
        self.unavailable = dict(unavailable)

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """None."""
        del root
        return ()

    def prime(self) -> None:
        """Nothing to prime."""

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """Nothing to sample."""
        del pcie
        return ()

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Nobody."""
        return ()

    def close(self) -> None:
        """Nothing to close."""


class GpuReader:
    """Asks NVML; to be closed, after anything that samples with it has ended.

    Args:
        nvml: The bindings; the module ``pynvml`` of nvidia-ml-py for ``None``.
        environ: The environment by which CUDA orders its devices; this process's for ``None``.

    Attributes:
        unavailable: Why there are no GPUs to read (key ``gpus``), or why one of them can't be
            read (key ``gpus[INDEX]``); empty where all is well.
    """

    def __init__(self, nvml: Any = None, environ: Mapping[str, str] | None = None) -> None:
        self.unavailable: dict[str, str] = {}
        self._environ = os.environ if environ is None else environ
        self._nvml = Nvml(nvml)
        self._cards: tuple[GpuCard, ...] = ()
        self._turn = 0
        self._start()

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards, in NVML's order. What can't be had of a card is ``None``."""
        found = [self._describe(card, root) for card in self._cards]
        order, reasons = cuda_indices(found, self._environ)
        for card in found:
            if card.uuid in reasons:
                self.unavailable[f"gpus[{card.index}].cuda_index"] = reasons[card.uuid]
        return tuple(dataclasses.replace(card, cuda_index=order.get(card.uuid)) for card in found)

    def prime(self) -> None:
        """Begin a window: what GPM counts from now on is of it."""
        for card in self._cards:
            card.prime()

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing.

        Args:
            pcie: Also ask two of the cards in turn for their link's throughput, which blocks for
                40 ms each, where nothing counts its bytes.
        """
        due = self._due() if pcie else frozenset()
        return tuple(card.sample(pcie=card.index in due) for card in self._cards)

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card. Milliseconds per card under a lock of the driver's: ask seldom."""
        return tuple(_neighbours(card) for card in self._cards)

    def close(self) -> None:
        """Let go of NVML. Nothing can be read afterwards."""
        for card in self._cards:
            card.close()
        self._cards = ()
        self._nvml.close()

    def _start(self) -> None:
        why = self._nvml.open()
        if why is not None:
            self.unavailable["gpus"] = why
            return
        count = self._nvml.ask(self.unavailable, "gpus", "nvmlDeviceGetCount") or 0
        found = (self._card(index) for index in range(count))
        self._cards = tuple(card for card in found if card is not None)
        if not self._cards:
            self.unavailable.setdefault("gpus", "NVML lists no GPU")

    def _card(self, index: int) -> GpuCard | None:
        key, ask = f"gpus[{index}]", self._nvml.ask
        handle = ask(self.unavailable, key, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None
        name = text_of(ask(self.unavailable, key, "nvmlDeviceGetName", handle))
        uuid = text_of(ask(self.unavailable, key, "nvmlDeviceGetUUID", handle))
        return GpuCard(self._nvml, index, handle, name or f"GPU {index}", uuid)

    def _due(self) -> frozenset[int]:
        """The cards whose turn it is to have their link probed."""
        waiting = [card.index for card in self._cards if not card.has_gpm]
        first = self._turn
        self._turn += _PROBES
        return frozenset(
            waiting[(first + step) % len(waiting)] for step in range(_PROBES) if waiting
        )

    def _describe(self, card: GpuCard, root: Path) -> GpuInfo:
        reasons: dict[str, str] = {}
        memory = card.ask(reasons, "memory_bytes", "nvmlDeviceGetMemoryInfo")
        pci = card.ask(reasons, "numa_node", "nvmlDeviceGetPciInfo")
        info = GpuInfo(
            index=card.index,
            name=card.name,
            uuid=card.uuid,
            memory_bytes=None if memory is None else int(memory.total),
            pcie_generation=card.ask(
                reasons, "pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration"
            ),
            pcie_width=card.ask(reasons, "pcie_width", "nvmlDeviceGetMaxPcieLinkWidth"),
            numa_node=None if pci is None else _numa_node(text_of(pci.busId), root),
        )
        for field, why in reasons.items():
            self.unavailable[f"gpus[{card.index}].{field}"] = why
        return info


def _neighbours(card: GpuCard) -> GpuNeighbours:
    reasons: dict[str, str] = {}
    busy, used = card.activity(reasons)
    crowd = card.crowd(reasons)
    if crowd.processes is None:
        reasons["process_memory_bytes"] = reasons["processes"]
    return GpuNeighbours(
        index=card.index,
        name=card.name,
        uuid=card.uuid,
        processes=crowd.processes,
        process_memory_bytes=crowd.memory_bytes,
        memory_used_bytes=used,
        kernel_active_fraction=busy,
        unavailable=reasons,
    )


def _numa_node(bus_id: str, root: Path) -> int | None:
    """NUMA node of a PCI device; ``None`` where the machine has only one (the kernel says -1)."""
    domain, _, rest = bus_id.lower().partition(":")
    # NVML writes the domain with eight digits, the kernel with four.
    node = read_int(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node")
    return None if node is None or node < 0 else node
