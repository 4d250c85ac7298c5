"""The machine's GPUs as any driver reports them, and one figure per card from many samples.

Drivers are asked with a limit of time: one that hangs holds nobody up. The rest goes on without
figures, and says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dlprof.files import is_there
from dlprof.records import GpuInfo, GpuUsage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeighbours:
    """Who is on one GPU, the caller's own processes included."""

    index: int  # NVML's index
    name: str  # the product's name
    uuid: str = ""  # NVML's UUID
    processes: int | None = None  # processes that compute on it
    process_memory_bytes: int | None = None  # what these hold, summed
    memory_used_bytes: int | None = None  # device memory in use by all of them, and by the driver
    # Share of NVML's last window in which any kernel ran.
    kernel_active_fraction: float | None = None
    # Reasons for fields that are ``None``.
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Driver:
    """A vendor's library by its Python bindings: its answers, or the reasons that there are none.

    Nothing here raises for want of a driver, a card, a right or a function that it lacks.
    """

    library = begin = end = ""  # its name, what starts it and what shuts it down
    missing = ""  # why there is nothing to ask without the bindings
    faults: tuple[type[Exception] | str, ...] = ()  # their own by name

    def __init__(self, bindings: Any = None) -> None:
        self._bindings = bindings
        self._faults: tuple[type[Exception], ...] = ()
        self._open = False

    def load(self) -> Any:
        """The bindings."""
        raise ImportError

    def explain(self, fault: Exception) -> str:
        """What a fault of the bindings means, in a few words."""
        return f"{self.library}: {str(fault) or type(fault).__name__}"

    def open(self) -> str | None:
        """Load the library and start it; why that can't be, where it can't."""
        if self._bindings is None:
            try:
                self._bindings = self.load()
            except (ImportError, OSError, KeyError):  # amdsmi looks for ROCm as it is loaded
                return self.missing
        named = (self.constant(each) if isinstance(each, str) else each for each in self.faults)
        self._faults = tuple(each for each in named if each is not None)
        reasons: dict[str, str] = {}
        self.ask(reasons, "gpus", self.begin)
        self._open = not reasons
        return reasons.get("gpus")

    def close(self) -> None:
        """Shut the library down, once; nothing may be asked afterwards."""
        if self._open:
            self.ask({}, "close", self.end)
        self._open = False

    def ask(self, reasons: dict[str, str], field: str, functions: str, *arguments: Any) -> Any:
        """The answer of a function, or ``None`` and the reason under ``field``.

        Of several names of the same thing, the present one first, the first counts that both driver
        and bindings have; where none answers, the reason is that of the first.
        """
        why = ""
        for function in functions.split():
            try:
                return getattr(self._bindings, function)(*arguments)
            except self._faults as fault:
                why = why or self.explain(fault)
        reasons[field] = why
        return None

    def constant(self, name: str) -> Any:
        """A constant or type of the bindings; ``None`` where they are too old to have it."""
        return getattr(self._bindings, name, None)


class Gpu:
    """One GPU. What its driver doesn't report is ``None``, with a reason."""

    def __init__(self, driver: Driver, index: int, handle: Any, name: str, uuid: str) -> None:
        self._driver, self._handle = driver, handle
        self.index = index
        self.known: dict[str, Any] = {"index": index, "name": name or f"GPU {index}", "uuid": uuid}

    @property
    def probes(self) -> bool:
        """Whether to look at the link's bytes blocks, because nothing counts them."""
        return False

    def ask(self, reasons: dict[str, str], field: str, functions: str, *arguments: Any) -> Any:
        """The answer of a function about this card, or ``None`` and the reason."""
        return self._driver.ask(reasons, field, functions, self._handle, *arguments)

    def describe(self, root: Path, reasons: dict[str, str]) -> GpuInfo:
        """What it is."""
        raise NotImplementedError

    def prime(self) -> None:
        """Begin a window: what is counted from now on is of it."""

    def sample(self, *, pcie: bool) -> GpuUsage:
        """What it is doing; with ``pcie`` its link is probed, where it ``probes``."""
        raise NotImplementedError

    def neighbours(self) -> GpuNeighbours:
        """Who computes on it; milliseconds, under a lock of the driver's."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what was taken from the driver."""


class Gpus:
    """A machine's GPUs, asked of a driver; of this class itself where there are none to ask.

    ``unavailable`` is why there are none to read (key ``gpus``), or what of them can't be read.
    """

    def __init__(self, unavailable: Mapping[str, str], driver: Driver | None = None) -> None:
        self.unavailable = dict(unavailable)
        self._driver = driver
        self._cards: tuple[Gpu, ...] = ()
        self._turn = 0
        if driver is None:
            return
        why = driver.open()
        if why is None:
            self._cards = tuple(self._find(driver))
            why = f"{driver.library} lists no GPU"
        if not self._cards:
            self.unavailable.setdefault("gpus", why)

    def _find(self, driver: Driver) -> Iterable[Gpu]:
        raise NotImplementedError

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards. What a driver doesn't report of one is ``None``, with its reason above."""
        found = []
        for card in self._cards:
            reasons: dict[str, str] = {}
            found.append(card.describe(root, reasons))
            missing = {f"gpus[{card.index}].{field}": why for field, why in reasons.items()}
            self.unavailable.update(missing)
        return tuple(found)

    def prime(self) -> None:
        """Begin a window: what is counted from now on is of it."""
        for card in self._cards:
            card.prime()

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        """What each card is doing.

        With ``pcie`` two of NVIDIA's cards in turn are also asked for their link's throughput,
        which blocks for 40 ms each, where nothing counts its bytes.
        """
        due = set[int]()
        if pcie and (waiting := [card.index for card in self._cards if card.probes]):
            due = {waiting[(self._turn + step) % len(waiting)] for step in (0, 1)}
            self._turn += 2
        return tuple(card.sample(pcie=card.index in due) for card in self._cards)

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card. Milliseconds per card under a lock of the driver's: ask seldom."""
        return tuple(card.neighbours() for card in self._cards)

    def close(self) -> None:
        """Let go of the driver. Nothing can be read afterwards."""
        for card in self._cards:
            card.close()
        self._cards = ()
        if self._driver is not None:
            self._driver.close()


class SilentDriverError(Exception):
    """A driver that can't be asked, or may hang; the message says which."""


_T = TypeVar("_T")


def within(limit_s: float, work: Callable[[], _T]) -> _T:
    """What asking a driver gives, with a limit of time.

    A call into a sick driver may never come back, and nothing can break it off. So it is made by a
    thread of its own, which is left behind.

    Raises:
        SilentDriverError: It failed, or gave nothing in time.
    """
    found: queue.SimpleQueue[tuple[_T, None] | tuple[None, Exception]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put((work(), None))
        except Exception as error:  # a driver's binding may raise anything
            found.put((None, error))

    worker = threading.Thread(target=ask, daemon=True)
    worker.start()
    try:
        answer = found.get(timeout=limit_s)
    except queue.Empty:
        raise SilentDriverError("the GPUs' driver gave no answer in time: it may hang") from None
    worker.join(limit_s)  # it ends at once; whoever forks next finds no thread
    if answer[1] is not None:
        error, text = answer[1], " ".join(str(answer[1]).split())
        why = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise SilentDriverError(f"the GPUs' driver can't be asked: {why}") from error
    return answer[0]


def open_gpus(root: Path = Path("/"), platform: str = sys.platform) -> Gpus:
    """Whoever knows this machine's GPUs: NVML, else amdsmi; may hang, as every call may."""
    from dlprof.machine.amd_gpus import AmdReader  # vendors build on this module
    from dlprof.machine.nvidia import GpuReader

    reasons = []
    for vendor in (GpuReader, AmdReader):
        gpus = vendor()
        if gpus.list_gpus(root):
            return gpus
        gpus.close()
        reasons.append(gpus.unavailable)
    nvidia, amd = reasons
    if is_there(root / "sys/class/kfd"):  # ROCm's driver is loaded: NVIDIA's is not what lacks
        return Gpus(amd)
    if platform == "darwin":
        return Gpus({"gpus": "Apple's GPUs report to their user's processes only"})
    return Gpus(nvidia)


class PatientGpus(Gpus):
    """The machine's GPUs, asked with a limit of time."""

    def __init__(
        self,
        # Seconds for one call. After one that ran over it, or failed, none is made any more.
        limit_s: float = 5.0,
        opener: Callable[[], Gpus] = open_gpus,  # opens the driver
        *,
        # For that: without its daemon it wakes one card after the other, each in a second or two,
        # and a server has eight.
        opening_s: float = 20.0,
    ) -> None:
        self._cards, self._limit_s = (), limit_s
        try:
            self._gpus = within(opening_s, opener)
        except SilentDriverError as silence:
            self._gpus = Gpus({"gpus": str(silence)})
        self.unavailable = self._gpus.unavailable

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards."""
        return self._within(lambda: self._gpus.list_gpus(root), ())

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card."""
        return self._within(self._gpus.neighbours, ())

    def close(self) -> None:
        """Let go of the driver, where it answers."""
        self._within(self._gpus.close, None)

    def _within(self, work: Callable[[], _T], otherwise: _T) -> _T:
        """What ``work`` gives; ``otherwise`` once that has failed or taken too long."""
        try:
            return within(self._limit_s, work)
        except SilentDriverError as silence:
            self._gpus = Gpus({"gpus": str(silence)})
            self.unavailable = self._gpus.unavailable
            return otherwise


def asked(gpus: Gpus | None) -> contextlib.AbstractContextManager[Gpus]:
    """Those that are given, or the machine's own, which are then let go of."""
    return contextlib.closing(PatientGpus()) if gpus is None else contextlib.nullcontext(gpus)


_MEANS = (
    *("kernel_active_fraction", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    *("sm_active_fraction", "sm_occupancy_fraction", "sm_clock_hz"),
    *("throttled_fraction", "power_w"),
)


def mean_usage(samples: Sequence[Sequence[GpuUsage]]) -> tuple[GpuUsage, ...]:
    """One entry per card: means, the peak of the memory, and the link at its widest.

    A card that fell silent keeps what it reported before, with the reason under ``samples``.
    """
    by_card: dict[int, list[GpuUsage]] = {}
    for sample in samples:
        for usage in sample:
            by_card.setdefault(usage.index, []).append(usage)
    return tuple(_mean_of(usages) for usages in by_card.values())


def _mean_of(usages: Sequence[GpuUsage]) -> GpuUsage:
    figures: dict[str, Any] = {}  # by field, each of the field's type
    for name in (*_MEANS, "memory_used_bytes", "pcie_generation", "pcie_width"):
        values = (getattr(usage, name) for usage in usages)
        known = [value for value in values if value is not None]
        mean = sum(known) / max(1, len(known))
        figures[name] = None if not known else mean if name in _MEANS else max(known)
    held = (words for usage in usages for words in usage.throttle_reasons)
    reasons = {name: why for usage in usages for name, why in usage.unavailable.items()}
    missing = {name: why for name, why in reasons.items() if figures.get(name) is None}
    heard = [
        each.kernel_active_fraction is not None or each.memory_used_bytes is not None
        for each in usages
    ]
    if any(heard) and not heard[-1]:
        why = next(iter(usages[-1].unavailable.values()), "it reported nothing more")
        missing["samples"] = f"{why}; the figures are of the {sum(heard)} samples before"
    return dataclasses.replace(
        usages[-1],
        throttle_reasons=tuple(dict.fromkeys(held)),
        samples=sum(usage.samples for usage in usages),
        unavailable=missing,
        **figures,
    )
