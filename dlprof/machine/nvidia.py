"""NVIDIA's GPUs as NVML reports them: each figure, or the reason that it is missing.

NVML's order of cards is not CUDA's: join by UUID. In a container NVML gives process ids of the
host, so that processes are only counted, never joined with one's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.machine.gpus import Driver, Gpu, GpuNeighbours, Gpus, SilentDriverError, within
from dlprof.machine.procfs import read_int
from dlprof.records import GpuInfo, GpuUsage
from dlprof.records.machine import link_bytes_per_s
from dlprof.records.transfer import LinkState


class GpuReader(Gpus):
    """Asks NVML; to be closed, after anything that samples with it has ended."""

    def __init__(self, nvml: Any = None, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        super().__init__({}, Nvml(nvml))

    def _find(self, driver: Driver) -> Iterable[Gpu]:
        reasons = self.unavailable
        for index in range(driver.ask(reasons, "gpus", "nvmlDeviceGetCount") or 0):
            key = f"gpus[{index}]"
            handle = driver.ask(reasons, key, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                name = driver.ask(reasons, key, "nvmlDeviceGetName", handle) or ""
                uuid = driver.ask(reasons, key, "nvmlDeviceGetUUID", handle) or ""
                yield GpuCard(driver, index, handle, name, uuid)

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards, in NVML's order, with CUDA's."""
        found = super().list_gpus(root)
        order, reasons = cuda_indices(found, self._environ)
        for card in found:
            if card.uuid in reasons:
                self.unavailable[f"gpus[{card.index}].cuda_index"] = reasons[card.uuid]
        return tuple(dataclasses.replace(card, cuda_index=order.get(card.uuid)) for card in found)


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

_EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons"
# The second is all that drivers before 510.39 have.
_RUNNING = "nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2"


class GpuCard(Gpu):
    """One card."""

    def __init__(self, driver: Driver, index: int, handle: Any, name: str, uuid: str) -> None:
        super().__init__(driver, index, handle, name, uuid)
        self._is_split = (self.ask({}, "mig", "nvmlDeviceGetMigMode") or [0])[0] == 1
        self._gpm: GpmCounters | None = None

    @property
    def probes(self) -> bool:
        """Whether the link's bytes aren't counted; known once primed."""
        return self._gpm is None or self._gpm.unavailable is not None

    def describe(self, root: Path, reasons: dict[str, str]) -> GpuInfo:
        """What it is."""
        memory = self.ask(reasons, "memory_bytes", "nvmlDeviceGetMemoryInfo")
        pci, node = self.ask(reasons, "numa_node", "nvmlDeviceGetPciInfo"), None
        if pci is not None:
            domain, _, rest = pci.busId.lower().partition(":")
            # NVML writes the domain with eight digits, the kernel with four.
            node = read_int(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node")
        generation, width = "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth"
        return GpuInfo(
            **self.known,
            memory_bytes=None if memory is None else int(memory.total),
            pcie_generation=self.ask(reasons, "pcie_generation", generation),
            pcie_width=self.ask(reasons, "pcie_width", width),
            numa_node=None if node == -1 else node,  # which the kernel says where there is one
        )

    def prime(self) -> None:
        """Begin a window: what the counters show from now on is of it."""
        if self._is_split:
            return
        if self._gpm is None:
            self._gpm = GpmCounters(self._driver, self._handle)
        self._gpm.prime()

    def close(self) -> None:
        """Give back what was taken from NVML."""
        if self._gpm is not None:
            self._gpm.close()
        self._gpm = None

    def sample(self, *, pcie: bool) -> GpuUsage:
        """What the card is doing; to probe the link blocks for 40 ms."""
        reasons: dict[str, str] = {}
        busy, used = self.activity(reasons)
        figures = self._counted(reasons)
        received = figures.get("pcie_rx_bytes_per_s")
        sent = figures.get("pcie_tx_bytes_per_s")
        if received is None and sent is None and self.probes:
            if pcie:
                received = self._probed(reasons, "pcie_rx_bytes_per_s", "NVML_PCIE_UTIL_RX_BYTES")
                sent = self._probed(reasons, "pcie_tx_bytes_per_s", "NVML_PCIE_UTIL_TX_BYTES")
            else:
                reasons["pcie_rx_bytes_per_s"] = reasons["pcie_tx_bytes_per_s"] = "not asked for"
        clock = self.ask(
            reasons, "sm_clock_hz", "nvmlDeviceGetClockInfo", self._driver.constant("NVML_CLOCK_SM")
        )
        power = self.ask(reasons, "power_w", "nvmlDeviceGetPowerUsage")
        bits = self.ask(reasons, "throttled_fraction", _EVENT_REASONS)
        held = [words for bit, words in _THROTTLES.items() if int(bits or 0) & bit]
        return GpuUsage(
            **self.known,
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
        running = self.ask(reasons, "processes", _RUNNING)
        held = None if running is None else [process.usedGpuMemory for process in running]
        if held is None:
            reasons["process_memory_bytes"] = reasons["processes"]
        elif None in held:
            reasons["process_memory_bytes"] = "the driver doesn't report what each process holds"
        return GpuNeighbours(
            **self.known,
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
        number = self._driver.constant(counter)
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


class GpmCounters:
    """NVML's GPM counters of one card, which came with Hopper.

    ``utilization.gpu`` only shows that some kernel ran. GPM shows how many of the multiprocessors
    had work and how full they were, and counts the link's bytes without the 20 ms that
    ``nvmlDeviceGetPcieThroughput`` blocks. A figure comes of two readings of the counters.
    """

    def __init__(self, nvml: Driver, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self.unavailable = self._start()  # why the card has none; ``None`` where it has

    def prime(self) -> None:
        """Read the counters, so that the next figures are of the time from now on."""
        reasons: dict[str, str] = {}
        if self.unavailable is None and not self._take(0, reasons):
            self.unavailable = reasons[_FIELD]  # not for this user, say: the link is probed then

    def read(self, reasons: dict[str, str]) -> dict[str, float]:
        """The figures since the counters were last read, by field; reasons for those it lacks."""
        if self.unavailable is not None:
            # The link's figures come otherwise, too.
            only = (_FIELD, "sm_occupancy_fraction")
            reasons.update(dict.fromkeys(only, self.unavailable))
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
            reasons.update({name: reasons[_FIELD] for name, _ in _METRICS.values()})
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


class Nvml(Driver):
    """NVIDIA's management library."""

    library, missing = "NVML", "nvidia-ml-py is not installed"
    begin, end = "nvmlInit", "nvmlShutdown"
    # A mismatch of library and driver is an exception of its own, outside NVMLError.
    faults = ("NVMLError", "NVMLLibraryMismatchError", OSError, AttributeError)

    def load(self) -> Any:
        """The bindings."""
        return importlib.import_module("pynvml")

    def explain(self, fault: Exception) -> str:
        """What a fault of the bindings means, in a few words."""
        if isinstance(fault, AttributeError):
            return "nvidia-ml-py is too old for this query"
        return _EXPLANATIONS.get(type(fault).__name__) or super().explain(fault)


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

    An idle link drops to generation 1 to save power: ``meanwhile`` makes the card busy, once NVML
    is loaded and knows it, which may take longer than the card can be kept busy. Loading it is not
    waited for longer than ``opening_s``; without its daemon it takes seconds a card.
    """
    if not uuid:
        return _without("torch doesn't report by which UUID NVML knows this device")
    driver, reasons = Nvml(nvml), dict[str, str]()

    def find() -> Any:
        if why := driver.open():
            reasons["card"] = why
            return None
        return driver.ask(reasons, "card", "nvmlDeviceGetHandleByUUID", uuid)

    try:
        card = within(opening_s, find)
        if card is not None:
            meanwhile()
        found = within(2.0, lambda: None if card is None else _read(driver, card))
        within(2.0, driver.close)
    except SilentDriverError:
        return _without("NVML did not answer in time")
    return found or _without(reasons["card"])


def _read(nvml: Driver, handle: Any) -> LinkState:
    reasons: dict[str, str] = {}
    found: dict[str, Any] = {
        field: nvml.ask(reasons, field, function, handle) for field, function in _QUESTIONS.items()
    }
    theory = link_bytes_per_s(found["generation"], found["width"])
    if theory is None:
        reasons["theory_bytes_per_s"] = "the link's generation or width is not known"
    return LinkState(**found, theory_bytes_per_s=theory, unavailable=reasons)


def _without(reason: str) -> LinkState:
    return LinkState(unavailable=dict.fromkeys((*_QUESTIONS, "theory_bytes_per_s"), reason))


UNSURE = "CUDA may order unlike cards by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
HIDDEN = "CUDA_VISIBLE_DEVICES hides the card"
SPLIT = "CUDA_VISIBLE_DEVICES names a part of a card (MIG)"


def cuda_indices(
    cards: Sequence[GpuInfo], environ: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """CUDA's index of each card, by UUID, and the reason for each that has none.

    The cards are in NVML's order, which is the bus's; the environment is that of who uses CUDA.
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
