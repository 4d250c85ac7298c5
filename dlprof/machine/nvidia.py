"""NVIDIA's GPUs as NVML reports them: each figure, or the reason that it is missing.

Nothing here raises for want of a driver, a card, a right or a function that an old driver lacks.
NVML's order of cards is not CUDA's: join by UUID. In a container NVML gives process ids of the
host, so that processes are only counted, never joined with one's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.machine.files import read_int
from dlprof.machine.gpus import GpuNeighbours, Gpus
from dlprof.records import GpuInfo, GpuUsage
from dlprof.records.machine import link_bytes_per_s
from dlprof.records.transfer import LinkState


class GpuReader(Gpus):
    """Asks NVML; to be closed, after anything that samples with it has ended.

    Args:
        nvml: The bindings; the module ``pynvml`` of nvidia-ml-py for ``None``.
        environ: The environment by which CUDA orders its devices; this process's for ``None``.
    """

    def __init__(self, nvml: Any = None, environ: Mapping[str, str] | None = None) -> None:
        super().__init__({})
        self._environ = os.environ if environ is None else environ
        self._nvml = Nvml(nvml)
        self._cards: tuple[GpuCard, ...] = ()
        self._turn = 0
        why = self._nvml.open()
        if why is not None:
            self.unavailable["gpus"] = why
            return
        count = self._nvml.ask(self.unavailable, "gpus", "nvmlDeviceGetCount") or 0
        found = (self._card(index) for index in range(count))
        self._cards = tuple(card for card in found if card is not None)
        if not self._cards:
            self.unavailable.setdefault("gpus", "NVML lists no GPU")

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards, in NVML's order. What can't be had of a card is ``None``."""
        found = [self._describe(card, root) for card in self._cards]
        order, reasons = cuda_indices(found, self._environ)
        for card in found:
            if card.uuid in reasons:
                self.unavailable[f"gpus[{card.index}].cuda_index"] = reasons[card.uuid]
        return tuple(dataclasses.replace(card, cuda_index=order.get(card.uuid)) for card in found)

    def prime(self) -> None:
        """Begin a window of GPM's."""
        for card in self._cards:
            card.prime()

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing."""
        due = self._due() if pcie else frozenset()
        return tuple(card.sample(pcie=card.index in due) for card in self._cards)

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card."""
        return tuple(card.neighbours() for card in self._cards)

    def close(self) -> None:
        """Let go of NVML. Nothing can be read afterwards."""
        for card in self._cards:
            card.close()
        self._cards = ()
        self._nvml.close()

    def _card(self, index: int) -> GpuCard | None:
        key, ask = f"gpus[{index}]", self._nvml.ask
        handle = ask(self.unavailable, key, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None
        name = text_of(ask(self.unavailable, key, "nvmlDeviceGetName", handle))
        uuid = text_of(ask(self.unavailable, key, "nvmlDeviceGetUUID", handle))
        return GpuCard(self._nvml, index, handle, name or f"GPU {index}", uuid)

    def _due(self) -> frozenset[int]:
        """The two cards whose turn it is to have their link probed."""
        waiting = [card.index for card in self._cards if not card.has_gpm]
        first, self._turn = self._turn, self._turn + 2
        return frozenset(waiting[(first + step) % len(waiting)] for step in (0, 1) if waiting)

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


def _numa_node(bus_id: str, root: Path) -> int | None:
    """NUMA node of a PCI device; ``None`` where the machine has only one (the kernel says -1)."""
    domain, _, rest = bus_id.lower().partition(":")
    # NVML writes the domain with eight digits, the kernel with four.
    node = read_int(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node")
    return None if node is None or node < 0 else node


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


class GpuCard:
    """One card."""

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
        """Begin a window: what the counters show from now on is of it."""
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
        received = figures.get("pcie_rx_bytes_per_s")
        sent = figures.get("pcie_tx_bytes_per_s")
        if received is None and sent is None and not self.has_gpm:
            if pcie:
                received = self._probed(reasons, "pcie_rx_bytes_per_s", "NVML_PCIE_UTIL_RX_BYTES")
                sent = self._probed(reasons, "pcie_tx_bytes_per_s", "NVML_PCIE_UTIL_TX_BYTES")
            else:
                reasons["pcie_rx_bytes_per_s"] = reasons["pcie_tx_bytes_per_s"] = "not asked for"
        clock = self.ask(
            reasons, "sm_clock_hz", "nvmlDeviceGetClockInfo", self._nvml.constant("NVML_CLOCK_SM")
        )
        power = self.ask(reasons, "power_w", "nvmlDeviceGetPowerUsage")
        bits = self._nvml.ask_first(reasons, "throttled_fraction", _EVENT_REASONS, self._handle)
        held = [words for bit, words in _THROTTLES.items() if int(bits or 0) & bit]
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
            sm_active_fraction=figures.get("sm_active_fraction"),
            sm_occupancy_fraction=figures.get("sm_occupancy_fraction"),
            sm_clock_hz=None if clock is None else clock * 1e6,
            throttled_fraction=None if bits is None else float(bool(held)),
            throttle_reasons=tuple(held),
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

    def neighbours(self) -> GpuNeighbours:
        """Who computes on it; milliseconds, under a lock of the driver's."""
        reasons: dict[str, str] = {}
        busy, used = self.activity(reasons)
        running = self._nvml.ask_first(reasons, "processes", _RUNNING_PROCESSES, self._handle)
        held = None if running is None else [process.usedGpuMemory for process in running]
        if held is None:
            reasons["process_memory_bytes"] = reasons["processes"]
        elif None in held:
            reasons["process_memory_bytes"] = "the driver doesn't report what each process holds"
        return GpuNeighbours(
            index=self.index,
            name=self.name,
            uuid=self.uuid,
            processes=None if held is None else len(held),
            process_memory_bytes=None if held is None or None in held else sum(held),
            memory_used_bytes=used,
            kernel_active_fraction=busy,
            unavailable=reasons,
        )

    def _counted(self, reasons: dict[str, str]) -> dict[str, float]:
        if self._is_split:
            reasons["sm_active_fraction"] = reasons["sm_occupancy_fraction"] = _SPLIT
            return {}
        if self._gpm is None:
            self.prime()
        return {} if self._gpm is None else self._gpm.read(reasons)

    def _probed(self, reasons: dict[str, str], field: str, counter: str) -> float | None:
        number = self._nvml.constant(counter)
        rate = self.ask(reasons, field, "nvmlDeviceGetPcieThroughput", number)
        return None if rate is None else float(rate) * 1024  # its unit


# Metrics by number (nvml.h: NVML_GPM_METRIC_...), and what their units are of ours: per cent, MiB.
_METRICS = {
    2: ("sm_active_fraction", 0.01),
    3: ("sm_occupancy_fraction", 0.01),
    21: ("pcie_rx_bytes_per_s", float(1 << 20)),
    20: ("pcie_tx_bytes_per_s", float(1 << 20)),
}
_FIELD = "sm_active_fraction"
_GPM_ONLY = ("sm_active_fraction", "sm_occupancy_fraction")
_GPM_FIELDS = tuple(name for name, _ in _METRICS.values())


class GpmCounters:
    """NVML's GPM counters of one card, which came with Hopper.

    ``utilization.gpu`` only shows that some kernel ran. GPM shows how many of the multiprocessors
    had work and how full they were, and counts the link's bytes without the 20 ms that
    ``nvmlDeviceGetPcieThroughput`` blocks. A figure comes of two readings of the counters.

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

    def read(self, reasons: dict[str, str]) -> dict[str, float]:
        """The figures since the counters were last read, by field; reasons for those it lacks."""
        was_primed = self._is_primed
        if not was_primed:
            self.prime()
        if self.unavailable is not None:
            # The link's come otherwise too.
            reasons.update(dict.fromkeys(_GPM_ONLY, self.unavailable))
            return {}
        if not was_primed:
            reasons.update(dict.fromkeys(_GPM_FIELDS, "the counters had not been read before"))
            return {}
        if not self._take(1, reasons):
            return {}
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
        sample = self._samples[place]
        return self._ask(reasons, "nvmlGpmSampleGet", self._handle, sample) is not None

    def _ask(self, reasons: dict[str, str], function: str, *arguments: Any) -> Any:
        """An answer that all figures come of; the reason under each where there is none."""
        answer = self._nvml.ask(reasons, _FIELD, function, *arguments)
        if answer is None:
            reasons.update(dict.fromkeys(_GPM_FIELDS, reasons[_FIELD]))
        return answer

    def _between(self, reasons: dict[str, str]) -> dict[str, float]:
        request = self._nvml.constant("c_nvmlGpmMetricsGet_t")()
        request.version = self._nvml.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = self._samples
        for place, number in enumerate(_METRICS):
            request.metrics[place].metricId = number
        answer = self._ask(reasons, "nvmlGpmMetricsGet", request)
        if answer is None:
            return {}
        found: dict[str, float] = {}
        for metric in answer.metrics[: len(_METRICS)]:
            name, unit = _METRICS[int(metric.metricId)]
            if metric.nvmlReturn == 0 and math.isfinite(metric.value):
                found[name] = float(metric.value) * unit
            else:
                reasons[name] = f"GPM gave no figure (code {metric.nvmlReturn})"
        return found


class Nvml:
    """NVIDIA's management library by its Python bindings, ``nvidia-ml-py``."""

    def __init__(self, bindings: Any = None) -> None:
        self._bindings = bindings
        self._faults: tuple[type[Exception], ...] = ()
        self._open = False

    def open(self) -> str | None:
        """Load the library and start it.

        Returns:
            Why it can't be had; ``None`` where it can.
        """
        if self._bindings is None:
            try:
                self._bindings = importlib.import_module("pynvml")
            except ImportError:
                return "nvidia-ml-py is not installed"
        # A mismatch of library and driver is an exception of its own, outside NVMLError.
        named = (getattr(self._bindings, name, None) for name in _FAULTS)
        self._faults = (OSError, AttributeError, *(fault for fault in named if fault))
        try:
            self._bindings.nvmlInit()
        except self._faults as fault:
            return explain(fault)
        self._open = True
        return None

    def close(self) -> None:
        """Shut the library down, once; nothing may be asked afterwards."""
        if self._open:
            self.ask({}, "close", "nvmlShutdown")
        self._open = False

    def ask(self, reasons: dict[str, str], field: str, function: str, *arguments: Any) -> Any:
        """The answer of one function, or ``None`` and the reason under ``field``."""
        return self.ask_first(reasons, field, (function,), *arguments)

    def ask_first(
        self, reasons: dict[str, str], field: str, functions: Sequence[str], *arguments: Any
    ) -> Any:
        """The answer of the first function that both driver and bindings have.

        Args:
            reasons: Takes the reason of the first where none answers.
            field: Its key there.
            functions: Names for the same thing, the present one first.
            arguments: For whichever it is.
        """
        why = ""
        for function in functions:
            try:
                return getattr(self._bindings, function)(*arguments)
            except self._faults as fault:
                why = why or explain(fault)
        reasons[field] = why
        return None

    def constant(self, name: str) -> Any:
        """A constant or type of the bindings; ``None`` where they are too old to have it."""
        return getattr(self._bindings, name, None)


_FAULTS = ("NVMLError", "NVMLLibraryMismatchError")

# What NVML's own words leave open, by the names of its exceptions.
_EXPLANATIONS = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_NotSupported": "this card or its mode doesn't report it (NVML: not supported)",
    "NVMLError_NoPermission": "this user has no permission (NVML)",
    "NVMLError_FunctionNotFound": "the driver is too old to report it",
    "NVMLError_GpuIsLost": "the card has dropped off the bus (NVML: GPU is lost)",
    "NVMLLibraryMismatchError": "the versions of nvidia-ml-py and of the driver don't match",
}


def explain(fault: Exception) -> str:
    """What a fault of the bindings means, in a few words."""
    kind = type(fault).__name__
    if isinstance(fault, AttributeError):
        return "nvidia-ml-py is too old for this query"
    return _EXPLANATIONS.get(kind) or f"NVML: {str(fault) or kind}"


def text_of(value: str | bytes | None) -> str:
    """Text of NVML's, which versions of the bindings before 11.5 gave as bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


_QUESTIONS = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
}


def read_link(
    uuid: str,
    meanwhile: Callable[[], object] = lambda: None,
    nvml: Any = None,
    *,
    opening_s: float = 20.0,
) -> LinkState:
    """The link of one card while it does something; whatever is not available has a reason.

    An idle link drops to generation 1 to save power: ask while it is busy.

    Args:
        uuid: NVML's of the card.
        meanwhile: Makes the card busy, once NVML has been loaded and knows it: that may take longer
            than the card can be kept busy. Not called where NVML hasn't.
        nvml: The bindings; the module ``pynvml`` of nvidia-ml-py for ``None``.
        opening_s: Loading it is not waited for longer; without its daemon it takes seconds a card.
    """
    found: list[LinkState] = []
    ready, busy = threading.Event(), threading.Event()

    def know() -> None:
        ready.set()
        busy.wait()

    def ask() -> None:
        found.append(_ask(uuid, Nvml(nvml), know))
        ready.set()  # also where there was nothing to know

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    is_ready = ready.wait(opening_s)
    try:
        if is_ready and not found:
            meanwhile()
    finally:
        busy.set()
    asking.join(2.0 if is_ready else 0.0)  # a sick driver's call is not waited for longer
    return found[0] if found else _without("NVML did not answer in time")


def _ask(uuid: str, nvml: Nvml, know: Callable[[], object]) -> LinkState:
    if not uuid:
        return _without("torch doesn't report by which UUID NVML knows this device")
    why = nvml.open()
    if why is not None:
        return _without(why)
    try:
        reasons: dict[str, str] = {}
        handle = nvml.ask(reasons, "card", "nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return _without(reasons["card"])
        know()
        return _read(nvml, handle)
    finally:
        nvml.close()


def _read(nvml: Nvml, handle: Any) -> LinkState:
    reasons: dict[str, str] = {}
    found: dict[str, int | None] = {
        field: nvml.ask(reasons, field, function, handle) for field, function in _QUESTIONS.items()
    }
    theory = link_bytes_per_s(found["generation"], found["width"])
    if theory is None:
        reasons["theory_bytes_per_s"] = "the link's generation or width is not known"
    return LinkState(
        generation=found["generation"],
        width=found["width"],
        max_generation=found["max_generation"],
        max_width=found["max_width"],
        theory_bytes_per_s=theory,
        unavailable=reasons,
    )


def _without(reason: str) -> LinkState:
    fields = (*_QUESTIONS, "theory_bytes_per_s")
    return LinkState(unavailable=dict.fromkeys(fields, reason))


UNSURE = "CUDA may order unlike cards by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
HIDDEN = "CUDA_VISIBLE_DEVICES hides the card"
SPLIT = "CUDA_VISIBLE_DEVICES names a part of a card (MIG)"


def cuda_indices(
    cards: Sequence[GpuInfo], environ: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """CUDA's index of each card, by UUID, and the reason for each that has none.

    Args:
        cards: In NVML's order, which is the bus's.
        environ: Of the process that uses CUDA.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    is_by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    is_sure = is_by_bus or len({card.name for card in cards}) <= 1
    if visible is None:
        if is_sure:
            return {card.uuid: place for place, card in enumerate(cards)}, {}
        return {}, {card.uuid: UNSURE for card in cards}
    found: dict[str, int] = {}
    hidden = HIDDEN
    for place, entry in enumerate(visible.split(",")):
        card = _named(entry.strip(), cards)
        if entry.strip().startswith("MIG-"):
            hidden = SPLIT
            continue
        if card is None or card.uuid in found:
            break  # CUDA sees nothing of what stands behind an entry that it can't take
        if not is_sure and _is_number(entry):
            return {}, {card.uuid: UNSURE for card in cards}
        found[card.uuid] = place
    return found, {card.uuid: hidden for card in cards if card.uuid not in found}


def _named(entry: str, cards: Sequence[GpuInfo]) -> GpuInfo | None:
    """The card that an entry of ``CUDA_VISIBLE_DEVICES`` names: by number or start of its UUID."""
    if _is_number(entry):
        return cards[int(entry)] if int(entry) < len(cards) else None
    matching = [card for card in cards if entry and card.uuid.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None


def _is_number(entry: str) -> bool:
    return entry.strip().isascii() and entry.strip().isdigit()
