"""What ``dlprof transfer`` finds: how fast plain buffers and a user's own batches are copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from dlprof.records.config import Estimate
from dlprof.records.machine import Machine
from dlprof.records.record import record

Memory = Literal["pageable", "pinned"]
CopyMode = Literal["blocking", "non_blocking", "side_stream"]
CopyWay = Literal["pageable", "pinned_by_caller", "pinned_by_loader"]


@record(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """One way to copy buffers of one size.

    Attributes:
        bytes: Size of a buffer.
        memory: Where it lies on the host.
        mode: ``blocking``, ``non_blocking`` on the compute stream, or ``side_stream``.
        time_s: Seconds per copy: median of the rounds with its interval.
        bytes_per_s: ``bytes`` over the median.
        host_s: Seconds that the calling thread spends in one copy, median.
        copies: Copies per round.
        rounds: Rounds.
    """

    bytes: int
    memory: Memory
    mode: CopyMode
    time_s: Estimate
    bytes_per_s: float
    host_s: float
    copies: int
    rounds: int


@record(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """``t = latency + bytes / bandwidth``, fitted to all sizes of one way to copy.

    Attributes:
        memory: Of the copies.
        mode: Of the copies.
        latency_s: What a copy costs however small.
        bytes_per_s: What each further byte goes at.
        worst_error: Largest relative distance of a measured median from the line.
    """

    memory: Memory
    mode: CopyMode
    latency_s: Estimate
    bytes_per_s: Estimate
    worst_error: float


@record(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The link as it was while a large copy ran: an idle link shows a lower generation.

    Attributes:
        generation: PCIe generation during the copy.
        width: Lanes during the copy.
        max_generation: The highest that card and slot support together.
        max_width: The most lanes.
        theory_bytes_per_s: What generation and width allow: GT/s x width x 128/130 / 8.
        best_bytes_per_s: The fastest pinned copies that were measured.
        reached_fraction: The latter over the former; pinned copies reach 0.75 to 0.9.
        unavailable: Reasons for fields that are ``None``.
    """

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    theory_bytes_per_s: float | None = None
    best_bytes_per_s: float | None = None
    reached_fraction: float | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class NumaRate:
    """Pinned copies from the memory of one NUMA node.

    Attributes:
        node: The node.
        near: Whether the device's slot is on it.
        bytes_per_s: Median bandwidth of large copies.
    """

    node: int
    near: bool
    bytes_per_s: Estimate


@record(frozen=True, slots=True, kw_only=True)
class DeviceTransfer:
    """Copies of plain buffers to one device.

    Attributes:
        device: Torch's name: ``cuda:0``, or ``cpu`` for copies within the host's memory.
        name: The product's name; empty where torch doesn't report it.
        uuid: By which NVML knows it; empty likewise.
        timed_by: ``device events`` or ``host clock``.
        cells: By size, memory and mode.
        fits: One line for each memory and mode.
        link: The link during a copy; ``None`` for the CPU.
        numa: Near and far memory; empty where there is one node, or that isn't known.
        unavailable: Reasons for what is missing: memories, modes, ``link``, ``numa``, sizes.
    """

    device: str
    name: str = ""
    uuid: str = ""
    timed_by: str
    cells: tuple[CopyTime, ...] = ()
    fits: tuple[LinkFit, ...] = ()
    link: LinkState | None = None
    numa: tuple[NumaRate, ...] = ()
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

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
    """One device's share where all devices are copied to at once.

    Attributes:
        device: Torch's name.
        alone_bytes_per_s: Large pinned copies to it alone.
        together_bytes_per_s: The same while all the others are copied to as well.
    """

    device: str
    alone_bytes_per_s: float
    together_bytes_per_s: Estimate

    @property
    def kept(self) -> float:
        """Share of its bandwidth that it keeps beside the others."""
        return self.together_bytes_per_s.value / self.alone_bytes_per_s


@record(frozen=True, slots=True, kw_only=True)
class WayTime:
    """What it costs to bring one tensor, or all of a batch, to the device in one way.

    Attributes:
        way: ``pageable`` (as the loader gives it without pinning), ``pinned_by_caller``
            (``pin_memory()`` in the training loop), ``pinned_by_loader`` (``pin_memory=True``).
        copy_s: Seconds of the copy: median with its interval.
        pin_s: Seconds in which the caller pins it first; ``None`` for the other ways.
    """

    way: CopyWay
    copy_s: Estimate
    pin_s: Estimate | None = None

    @property
    def total_s(self) -> float:
        """What the training loop waits for, seconds."""
        return self.copy_s.value + (0.0 if self.pin_s is None else self.pin_s.value)


@record(frozen=True, slots=True, kw_only=True)
class TensorTransfer:
    """One tensor of a batch.

    Attributes:
        path: Where it is in the batch, such as ``['image']`` or ``[0]``.
        shape: Its shape.
        dtype: Its type, by torch's name.
        bytes: Its size.
        contiguous: Whether it is contiguous; others are made so before they are copied.
        ways: What each way to bring it over costs.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    contiguous: bool
    ways: tuple[WayTime, ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class BatchTransfer:
    """A user's own batch, brought to the device.

    Attributes:
        target: TARGET as the user wrote it.
        device: Torch's name.
        bytes: Bytes of tensors in the batch.
        tensors: The largest tensors, one by one.
        tensors_count: How many there are in all.
        together: The whole batch, as a training loop copies it.
        unavailable: Reasons for ways that are missing.
    """

    target: str
    device: str
    bytes: int
    tensors: tuple[TensorTransfer, ...]
    tensors_count: int
    together: tuple[WayTime, ...]
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class Pinning:
    """What pinned memory changes for copies to the first device.

    Attributes:
        bytes: Of what was copied.
        of_batch: Whether that is the user's batch; else it is the largest plain buffer.
        pageable_s: Seconds of a copy from pageable memory.
        pinned_s: The same from pinned memory.
    """

    bytes: int
    of_batch: bool
    pageable_s: Estimate
    pinned_s: Estimate

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
class Transfers:
    """All that ``dlprof transfer`` found.

    Attributes:
        machine: Where.
        torch_version: Of the torch that copied.
        accelerator: Torch's name of the kind of accelerator; ``None`` where there is none, so that
            only copies within the host's memory were measured: the upper bound of any link.
        devices: The devices copied to; the last is always ``cpu``.
        together: All accelerators at once, where that was asked for.
        batch: The user's batch, where a target was given.
        warnings: Sentences for people.
        unavailable: Reasons for what is missing.
    """

    machine: Machine
    torch_version: str
    accelerator: str | None
    devices: tuple[DeviceTransfer, ...]
    together: tuple[TogetherRate, ...] = ()
    batch: BatchTransfer | None = None
    warnings: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

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
