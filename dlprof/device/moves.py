"""Copies to the device on their way, and what they add up to for each batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch

from dlprof.device.runtime import Event


@dataclasses.dataclass(slots=True)
class Moves:
    """What was copied from a batch's coming until the next was asked for.

    Attributes:
        device: The last that was copied to; ``None`` where nothing was copied.
        bytes: Copied.
        pinned_bytes: Those that came from page-locked memory.
        copy_s: Seconds on the device; those of the calling thread where there are no events.
        exposed_s: The part on the stream that the loop works on, which waits for it.
        blocked_s: Seconds in which a copy held the calling thread up; its waiting for work that was
            ordered before isn't the copy's.
        pending: Copies that the device has not been seen to end.
        failed: Whether a copy could not be timed.
        busy: Whether a copy is being ordered: what its call does within itself is no copy more.
        streams: Where the loop's work went when the batch came, by device that it had reached.
    """

    device: torch.device | None = None
    bytes: int = 0
    pinned_bytes: int = 0
    copy_s: float = 0.0
    exposed_s: float = 0.0
    blocked_s: float = 0.0
    pending: int = 0
    failed: bool = False
    busy: bool = False
    streams: Mapping[torch.device, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class Copy:
    """A copy on its way.

    Attributes:
        moves: Of its batch.
        device: Where to.
        stream: That it is ordered on; ``None`` without events.
        events: Before and after it; ``None`` where the program's clock has to do.
        exposed: Whether the loop's own stream waits for it.
        host_s: What the call took.
    """

    moves: Moves
    device: torch.device
    stream: Any = None
    events: tuple[Event, Event] | None = None
    exposed: bool = True
    host_s: float = 0.0

    def is_over(self) -> bool:
        """Whether the device has come to its end, which is then counted; never waits."""
        moves = self.moves
        try:
            if self.events is not None and not self.events[1].query():
                return False
            took_s = self.host_s
            if self.events is not None:
                took_s = self.events[0].elapsed_time(self.events[1]) / 1e3
                seen.spare.setdefault(self.device, []).append(self.events)
            moves.copy_s += took_s
            moves.exposed_s += took_s if self.exposed else 0.0
            moves.blocked_s += min(took_s, self.host_s)
        except Exception:  # noqa: BLE001 - a device that refuses; its batch is not told of
            moves.failed = True
        moves.pending -= 1
        return True


@dataclasses.dataclass(slots=True)
class Seen:
    """What is known of this process's copies.

    Attributes:
        by_thread: The batch that each thread works on.
        pending: Copies on their way.
        spare: Pairs of events that can be used again.
        reached: Devices that the program itself has been seen to reach; no other may dlprof wake.
    """

    by_thread: dict[int, Moves] = dataclasses.field(default_factory=dict)
    pending: list[Copy] = dataclasses.field(default_factory=list)
    spare: dict[torch.device, list[tuple[Event, Event]]] = dataclasses.field(default_factory=dict)
    reached: set[torch.device] = dataclasses.field(default_factory=set)


seen = Seen()
_reading = Lock()


def read_pending() -> None:
    """Count copies that have ended."""
    if not seen.pending or not _reading.acquire(blocking=False):
        return
    try:
        for each in list(seen.pending):
            if each.is_over():
                seen.pending.remove(each)
    finally:
        _reading.release()


def streams_now() -> dict[torch.device, Any]:
    """Where work goes now on each device that was reached."""
    return {each: torch.accelerator.current_stream(each) for each in list(seen.reached)}
