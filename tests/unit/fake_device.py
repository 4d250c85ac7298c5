"""A device whose streams, events and copies run on a clock of the test's own.

Work is done in order per stream, each at its time; nothing sleeps. It stands in for an accelerator:
tensors stay on the CPU, and what ``Copying`` and ``Copier`` order is what they would order there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import torch

from dlprof.device.runtime import Event, Runtime, UnavailableError


@dataclasses.dataclass
class FakeClock:
    """Seconds that pass only when somebody works or waits."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the host's time pass."""
        self.now_s += seconds


class FakeStream:
    """Work in order; ``until_s`` is when all of it is done."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.until_s = 0.0

    def order(self, seconds: float) -> None:
        """Append work."""
        self.until_s = max(self.until_s, self._device.clock()) + seconds

    def wait_event(self, event: Any) -> None:
        """Do nothing more before an event of another stream."""
        self.until_s = max(self.until_s, event.at_s)

    def __enter__(self) -> Self:
        self._device.stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.stack.pop()


class FakeEvent:
    """A mark in a stream."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.at_s = 0.0

    def record(self, stream: Any = None) -> None:
        """Mark the end of what was ordered so far."""
        self.at_s = max(stream.until_s, self._clock())

    def synchronize(self) -> None:
        """Let the host wait."""
        self._clock.now_s = max(self._clock.now_s, self.at_s)

    def query(self) -> bool:
        """Whether it is reached."""
        return self._clock() >= self.at_s

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds."""
        return float(end_event.at_s - self.at_s) * 1e3


class FakeDevice(Runtime):
    """One whose work takes the time of a clock.

    Args:
        copy_s: What a batch's copy takes on the device.
        pins: Whether memory can be pinned.
        streams: Whether there are side streams.
    """

    def __init__(self, copy_s: float = 0.0, *, pins: bool = True, streams: bool = True) -> None:
        super().__init__(torch.device("cpu"))
        self.clock = FakeClock()
        self.copy_s = copy_s
        self.main = FakeStream(self)
        self.stack = [self.main]
        self._pins, self._streams = pins, streams

    def event(self) -> Event:
        """A new one."""
        return FakeEvent(self.clock)

    def stream(self) -> Any:
        """A new one, if there are any."""
        if not self._streams:
            raise UnavailableError("this device has no side streams in torch: it is a fake")
        return FakeStream(self)

    def current(self) -> Any:
        """The innermost that was entered."""
        return self.stack[-1]

    def synchronize(self) -> None:
        """Wait for the main stream."""
        self.clock.now_s = max(self.clock.now_s, self.main.until_s)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, where memory can be pinned."""
        if not self._pins:
            raise UnavailableError("this device has no pinned memory in torch: it is a fake")
        return tensor

    @contextlib.contextmanager
    def blocking(self, seconds: float) -> Iterator[None]:
        """Host work that takes a while."""
        self.clock.sleep(seconds)
        yield


@dataclasses.dataclass
class FakeBatch:
    """A batch with a ``to`` of its own, whose copy takes the device's time.

    Args:
        home: The device.
        host_s: How long the calling thread stands in ``to``.
    """

    home: FakeDevice
    host_s: float = 0.0

    def to(self, device: torch.device) -> FakeBatch:
        """Order the copy on the current stream."""
        assert device == self.home.device
        self.home.clock.sleep(self.host_s)
        self.home.current().order(self.home.copy_s)
        return self
