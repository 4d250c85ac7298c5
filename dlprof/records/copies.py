"""What copying a trial's batches to the device took, and what pinning them was worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.records.record import record


@record(frozen=True, slots=True, kw_only=True)
class PinCosts:
    """What ``pin_memory=True`` cost in one trial.

    Attributes:
        thread_cpu_s: CPU seconds per batch of the thread that pins (``pt_data_pin``).
        thread_run_queue_s: Run-queue delay of that thread, seconds per batch.
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


@record(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copying a trial's batches to the device, means over the batches of the window.

    Attributes:
        device: Torch's name of it.
        uuid: By which NVML knows it; empty where torch doesn't report it.
        held_bytes: Device memory that torch's allocator held in the trial's process at the
            window's end; on Apple's GPUs the only figure of their memory.
        batches: Batches copied in the window.
        timed: Those that the figures are of: every few, because device events cost time.
        bytes: Bytes copied per batch.
        copy_s: Seconds that a batch's copy took on the device, by device events.
        exposed_s: Part of that in which the step had to wait for the copy; near ``copy_s`` means
            that nothing is overlapped, near 0 that copies cost no throughput.
        hidden_s: The rest of ``copy_s``.
        blocked_s: Seconds in which the copy itself blocked the consuming thread.
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


@record(frozen=True, slots=True, kw_only=True)
class PinGain:
    """What ``pin_memory=True`` changed between two trials that differ in nothing else.

    Attributes:
        off: Id of the trial without pinning.
        on: Id of the trial with it.
        total_s: Seconds per batch that it saved, apart from the time to the first batch;
            below 0 it cost time.
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
