"""How fast data reaches the device: copies of plain buffers, of a user's batches, of a trial's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from dlprof.records.config import Estimate
from dlprof.records.machine import Machine

Memory = Literal["pageable", "pinned"]
CopyMode = Literal["blocking", "non_blocking", "side_stream"]
CopyWay = Literal["pageable", "pinned_by_caller", "pinned_by_loader"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PinCosts:
    """What ``pin_memory=True`` cost in one trial.

    Attributes:
        thread_cpu_s: CPU seconds per batch of the thread that pins (``pt_data_pin``).
        thread_run_queue_s: Seconds per batch in which that thread could run and had no core.
        pinned_bytes: Page-locked memory that torch's allocator held at the window's end; blocks
            are rounded up to powers of two.
        alloc_s: Seconds in the driver's allocation of such memory since the process began.
        allocations: How many of those there were.
        unavailable: Reasons for fields that are ``None``.
    """

    thread_cpu_s: float | None = None
    thread_run_queue_s: float | None = None
    pinned_bytes: int | None = None
    alloc_s: float | None = None
    allocations: int | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copying a trial's batches to the device, means over the batches of the window.

    Attributes:
        device: Torch's name of it.
        uuid: By which NVML knows it; empty where torch doesn't tell.
        held_bytes: Device memory that torch's allocator held in the trial's process at the
            window's end; on Apple's GPUs the only figure of their memory.
        batches: Batches copied in the window.
        timed: Those that the figures are of: every few, because device events cost time.
        bytes: Bytes copied per batch.
        copy_s: Seconds that a batch's copy took on the device, by device events.
        exposed_s: Part of that in which the step had to wait for the copy; near ``copy_s`` means
            that nothing is overlapped, near 0 that copies cost no throughput.
        hidden_s: The rest of ``copy_s``.
        blocked_s: Seconds in which the consuming thread stood in the copy itself.
        pinned_fraction: Share of the bytes that came in page-locked memory.
        prefetched: Whether a batch was copied by a side stream while the one before was worked on.
        pin: What pinning cost; ``None`` without ``pin_memory``.
        unavailable: Reasons for fields that are ``None``.
    """

    device: str
    batches: int
    timed: int = 0
    bytes: float | None = None
    copy_s: float | None = None
    exposed_s: float | None = None
    hidden_s: float | None = None
    blocked_s: float | None = None
    pinned_fraction: float | None = None
    prefetched: bool = False
    pin: PinCosts | None = None
    uuid: str = ""
    held_bytes: int | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """One way to copy buffers of one size.

    Attributes:
        bytes: Size of a buffer.
        memory: Where it lies on the host.
        mode: ``blocking``, ``non_blocking`` on the compute stream, or ``side_stream``.
        time_s: Seconds per copy: median of the rounds with its interval.
        bytes_per_s: ``bytes`` over the median.
        host_s: Seconds that the calling thread stands in one copy, median.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The link as it stood while a large copy ran: an idle link shows a lower generation.

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTransfer:
    """Copies of plain buffers to one device.

    Attributes:
        device: Torch's name: ``cuda:0``, or ``cpu`` for copies within the host's memory.
        name: The product's name; empty where torch doesn't tell.
        uuid: By which NVML knows it; empty likewise.
        timed_by: ``device events`` or ``host clock``.
        cells: By size, memory and mode.
        fits: One line for each memory and mode.
        link: The link during a copy; ``None`` for the CPU.
        numa: Near and far memory; empty where there is one node, or that can't be told.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorTransfer:
    """One tensor of a batch.

    Attributes:
        path: Where it stands in the batch, such as ``['image']`` or ``[0]``.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PinGain:
    """What ``pin_memory=True`` changed between two trials that differ in nothing else.

    Attributes:
        off: Id of the trial without pinning.
        on: Id of the trial with it.
        total_s: Seconds per batch that it saved, start-up left aside; below 0 it cost time.
        copy_s: Part of that in which the step no longer waits for copies.
        receive_s: The rest: batches are received by a thread of their own, beside the step; below
            0 where that thread and the pinning take more from the loop than they spare it.
        costs: What it cost elsewhere.
    """

    off: str
    on: str
    total_s: float
    copy_s: float
    receive_s: float
    costs: PinCosts
