"""What ``dlprof transfer`` finds: how fast plain buffers and a user's own batches are copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dlprof.late import Shown
from dlprof.records.config import Estimate
from dlprof.records.machine import Machine
from dlprof.records.record import empty, record

Memory = Literal["pageable", "pinned"]
CopyMode = Literal["blocking", "non_blocking", "side_stream"]
CopyWay = Literal["pageable", "pinned_by_caller", "pinned_by_loader"]


@record(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """One way to copy buffers of one size."""

    bytes: int  # size of a buffer
    memory: Memory  # where it lies on the host
    mode: CopyMode  # ``blocking``, ``non_blocking`` on the compute stream, or ``side_stream``
    time_s: Estimate  # seconds per copy: median of the rounds with its interval
    bytes_per_s: float  # ``bytes`` over the median
    host_s: float  # seconds that the calling thread spends in one copy, median
    copies: int  # copies per round
    rounds: int  # rounds


@record(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """``t = latency + bytes / bandwidth``, fitted to all sizes of one way to copy."""

    memory: Memory  # of the copies
    mode: CopyMode  # of the copies
    latency_s: Estimate  # what a copy costs however small
    bytes_per_s: Estimate  # what each further byte goes at
    worst_error: float  # largest relative distance of a measured median from the line


@record(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The link as it was while a large copy ran: an idle link shows a lower generation."""

    generation: int | None = None  # PCIe generation during the copy
    width: int | None = None  # lanes during the copy
    max_generation: int | None = None  # the highest that card and slot support together
    max_width: int | None = None  # the most lanes
    # What generation and width allow: GT/s x width x 128/130 / 8.
    theory_bytes_per_s: float | None = None
    best_bytes_per_s: float | None = None  # the fastest pinned copies that were measured
    # The latter over the former; pinned copies reach 0.75 to 0.9.
    reached_fraction: float | None = None
    unavailable: Mapping[str, str] = empty()  # reasons for fields that are ``None``


@record(frozen=True, slots=True, kw_only=True)
class NumaRate:
    """Pinned copies from the memory of one NUMA node."""

    node: int  # the node
    near: bool  # whether the device's slot is on it
    bytes_per_s: Estimate  # median bandwidth of large copies


@record(frozen=True, slots=True, kw_only=True)
class DeviceTransfer:
    """Copies of plain buffers to one device."""

    device: str  # torch's name: ``cuda:0``, or ``cpu`` for copies within the host's memory
    name: str = ""  # the product's name; empty where torch doesn't report it
    uuid: str = ""  # by which NVML knows it; empty likewise
    timed_by: str  # ``device events`` or ``host clock``
    cells: tuple[CopyTime, ...] = ()  # by size, memory and mode
    fits: tuple[LinkFit, ...] = ()  # one line for each memory and mode
    link: LinkState | None = None  # the link during a copy; ``None`` for the CPU
    # Near and far memory; empty where there is one node, or that isn't known.
    numa: tuple[NumaRate, ...] = ()
    # Reasons for what is missing: memories, modes, ``link``, ``numa``, sizes.
    unavailable: Mapping[str, str] = empty()

    @property
    def best_bytes_per_s(self) -> float | None:
        """The fastest pinned copies, or the fastest of all where nothing can be pinned."""
        pinned = [cell.bytes_per_s for cell in self.cells if cell.memory == "pinned"]
        return max(pinned or [cell.bytes_per_s for cell in self.cells], default=None)

    @property
    def best_way(self) -> list[CopyTime]:
        """Copies by size: pinned and not waited for where that is possible, else the first way."""
        ways = [(cell.memory, cell.mode) for cell in self.cells]
        best = ("pinned", "non_blocking")
        way = best if best in ways else next(iter(ways), None)
        found = (cell for cell in self.cells if (cell.memory, cell.mode) == way)
        return sorted(found, key=lambda cell: cell.bytes)

    def cell(self, memory: Memory, mode: CopyMode, size: int) -> CopyTime | None:
        """One way to copy buffers of one size; ``None`` where it was not timed."""
        wanted = (memory, mode, size)
        cells = (cell for cell in self.cells if (cell.memory, cell.mode, cell.bytes) == wanted)
        return next(cells, None)


@record(frozen=True, slots=True, kw_only=True)
class TogetherRate:
    """One device's share where all devices are copied to at once."""

    device: str  # torch's name
    alone_bytes_per_s: float  # large pinned copies to it alone
    together_bytes_per_s: Estimate  # the same while all the others are copied to as well

    @property
    def kept(self) -> float:
        """Share of its bandwidth that it keeps beside the others."""
        return self.together_bytes_per_s.value / self.alone_bytes_per_s


@record(frozen=True, slots=True, kw_only=True)
class WayTime:
    """What it costs to bring one tensor, or all of a batch, to the device in one way."""

    # ``pageable`` (as the loader gives it without pinning), ``pinned_by_caller`` (``pin_memory()``
    # in the training loop), ``pinned_by_loader`` (``pin_memory=True``).
    way: CopyWay
    copy_s: Estimate  # seconds of the copy: median with its interval
    # Seconds in which the caller pins it first; ``None`` for the other ways.
    pin_s: Estimate | None = None

    @property
    def total_s(self) -> float:
        """What the training loop waits for, seconds."""
        return self.copy_s.value + (0.0 if self.pin_s is None else self.pin_s.value)


@record(frozen=True, slots=True, kw_only=True)
class TensorTransfer:
    """One tensor of a batch."""

    path: str  # where it is in the batch, such as ``['image']`` or ``[0]``
    shape: tuple[int, ...]  # its shape
    dtype: str  # its type, by torch's name
    bytes: int  # its size
    contiguous: bool  # whether it is contiguous; others are made so before they are copied
    ways: tuple[WayTime, ...] = ()  # what each way to bring it over costs


@record(frozen=True, slots=True, kw_only=True)
class BatchTransfer:
    """A user's own batch, brought to the device."""

    target: str  # TARGET as the user wrote it
    device: str  # torch's name
    bytes: int  # bytes of tensors in the batch
    tensors: tuple[TensorTransfer, ...]  # the largest tensors, one by one
    tensors_count: int  # how many there are in all
    together: tuple[WayTime, ...]  # the whole batch, as a training loop copies it
    unavailable: Mapping[str, str] = empty()  # reasons for ways that are missing


@record(frozen=True, slots=True, kw_only=True)
class Pinning:
    """What pinned memory changes for copies to the first device."""

    bytes: int  # of what was copied
    of_batch: bool  # whether that is the user's batch; else it is the largest plain buffer
    pageable_s: Estimate  # seconds of a copy from pageable memory
    pinned_s: Estimate  # the same from pinned memory

    @property
    def speedup(self) -> Estimate:
        """How many times as fast; with both intervals at their worst ends, so never too narrow."""
        slow, fast = self.pageable_s, self.pinned_s
        low = slow.low / fast.high if slow.low is not None and fast.high else None
        high = slow.high / fast.low if slow.high is not None and fast.low else None
        value = slow.value / fast.value if fast.value > 0 else 1.0
        return Estimate(value=value, low=low, high=high)

    @property
    def pays(self) -> bool:
        """Whether pinned copies are surely faster."""
        low = self.speedup.low
        return (self.speedup.value if low is None else low) > 1


@record(frozen=True, slots=True, kw_only=True)
class Transfers(Shown):
    """All that ``dlprof transfer`` found."""

    machine: Machine  # where
    torch_version: str  # of the torch that copied
    # Torch's name of the kind of accelerator; ``None`` where there is none, so that only copies
    # within the host's memory were measured: the upper bound of any link.
    accelerator: str | None
    devices: tuple[DeviceTransfer, ...]  # the devices copied to; the last is always ``cpu``
    together: tuple[TogetherRate, ...] = ()  # all accelerators at once, where that was asked for
    batch: BatchTransfer | None = None  # the user's batch, where a target was given
    warnings: tuple[str, ...] = ()  # sentences for people
    unavailable: Mapping[str, str] = empty()  # reasons for what is missing

    @property
    def pinning(self) -> Pinning | None:
        """What it changes for the user's batch, else for the largest buffers, where timed."""
        if self.batch is not None:
            ways = {each.way: each.copy_s for each in self.batch.together}
            if {"pageable", "pinned_by_loader"} <= ways.keys():
                return Pinning(
                    bytes=self.batch.bytes,
                    of_batch=True,
                    pageable_s=ways["pageable"],
                    pinned_s=ways["pinned_by_loader"],
                )
        device = next(iter(self.devices), None)
        cells = [] if device is None else device.best_way
        pinned = next((cell for cell in reversed(cells) if cell.memory == "pinned"), None)
        plain = pinned and device and device.cell("pageable", pinned.mode, pinned.bytes)
        if not pinned or not plain:
            return None
        return Pinning(
            bytes=pinned.bytes, of_batch=False, pageable_s=plain.time_s, pinned_s=pinned.time_s
        )
