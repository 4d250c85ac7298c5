"""Events, streams and page-locked memory of a device, whatever its maker; the CPU is one too.

Everything here goes through ``torch.accelerator``, ``torch.Event`` and ``torch.Stream``. What a
device has not raises ``UnavailableError`` with the reason, never anything else.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import torch


class UnavailableError(Exception):
    """The device can't do it; the message says why, in one clause without a full stop."""


class Event(Protocol):
    """A point in a stream's work; the methods are those of ``torch.Event``."""

    def record(self, stream: Any = None) -> None:
        """Mark where the stream's work stands now."""

    def synchronize(self) -> None:
        """Wait until the device has come to the mark."""

    def query(self) -> bool:
        """Whether the device has come to the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this mark to another, both reached."""


class Runtime:
    """A device: an accelerator, reached through torch."""

    timed_by = "device events"  # what its events are read from

    asynchronous = True  # whether work is only ordered by a call, and done later

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def event(self) -> Event:
        """A new event that records times."""
        with _reasons("events"):
            made: Event = torch.Event(self.device, enable_timing=True)
            return made

    def stream(self) -> Any:
        """A new stream beside the current one: a context manager with ``wait_event``."""
        with _reasons("side streams"):
            made = torch.Stream(self.device)
        if not hasattr(made, "__enter__"):
            raise UnavailableError("this version of torch can't make a stream the current one")
        return made

    def current(self) -> Any:
        """The stream that work goes to now; ``None`` where there are no streams."""
        return torch.accelerator.current_stream(self.device)

    def synchronize(self) -> None:
        """Wait until everything that was ordered is done."""
        torch.accelerator.synchronize(self.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in page-locked memory."""
        with _reasons("pinned memory"):
            return tensor.pin_memory()


class _Stamp:
    """An event of the CPU: its work is done when the call returns."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def record(self, stream: Any = None) -> None:
        del stream
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is ever on its way."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        ended_s: float = end_event.at_s
        return (ended_s - self.at_s) * 1e3


class HostRuntime(Runtime):
    """The CPU: copies are ``memcpy``, done by the calling thread, and timed by its clock."""

    timed_by = "host clock"
    asynchronous = False

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def event(self) -> Event:
        """A reading of the clock."""
        return _Stamp()

    def stream(self) -> Any:
        """There is none."""
        raise UnavailableError("the CPU has no streams")

    def current(self) -> Any:
        """There is none."""
        return

    def synchronize(self) -> None:
        """Nothing is ever on its way."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """There is no device to pin for."""
        del tensor
        raise UnavailableError("memory is pinned for an accelerator, and this is the CPU")


class EventTimer:
    """The device's time for what is ordered while it is entered, on the stream that is current.

    Its end is marked by ``ended``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._began, self.ended = runtime.event(), runtime.event()

    def __enter__(self) -> Self:
        self._began.record(self._runtime.current())
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.record(self._runtime.current())

    def is_over(self) -> bool:
        """Whether the device has done all of it; never waits."""
        return self.ended.query()

    def seconds(self) -> float:
        """How long it took; waits for its end."""
        self.ended.synchronize()
        return self._began.elapsed_time(self.ended) / 1e3


def find_accelerator() -> str | None:
    """Torch's name of the kind of accelerator that is here; ``None`` for none."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def is_in_use() -> bool:
    """Whether this process uses an accelerator to which pinned batches are copied faster.

    Nothing is begun by asking. A process that uses one can't be forked.
    """
    return bool(torch.cuda.is_initialized() or torch.xpu.is_initialized())


def open_runtime(name: str) -> Runtime:
    """The device of torch's name, such as ``cpu`` or ``cuda:1``; ``cuda`` is the current one.

    Raises:
        UnavailableError: There is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UnavailableError(f"torch knows no device {name}") from None
    if device.type == "cpu":
        return HostRuntime()
    found = find_accelerator()
    if device.type != found:
        has = "no accelerator" if found is None else f"an accelerator of kind {found}"
        raise UnavailableError(f"torch finds {has}, and no {name}")
    try:
        # Torch's own device says -1, None or 0 where its name has no index.
        given = name.partition(":")[2]
        index = int(given) if given else current_index()
        count = torch.accelerator.device_count()
        if index >= count:
            raise UnavailableError(f"torch finds {count} of kind {found}, counted from 0")
        _accelerator("set_device_index")(index)
        return Runtime(torch.device(found, index))
    except RuntimeError as error:  # taken by somebody alone, or so full that nothing can begin
        words, _, _ = str(error).strip().partition("\n")
        raise UnavailableError(f"{name} can't be used: {words}") from error


def current_index() -> int:
    """The number of the device that a name without one means now."""
    return int(_accelerator("current_device_index")())


def _accelerator(name: str) -> Any:
    """A function of ``torch.accelerator``; the first versions said ``idx`` for ``index``."""
    named = getattr(torch.accelerator, name, None)
    return named or getattr(torch.accelerator, name.replace("index", "idx"))


def empty_pinned_cache() -> bool:
    """Have torch give back page-locked memory that it keeps; false where it can't."""
    empty = getattr(torch.accelerator, "empty_host_cache", None)
    empty = empty or getattr(torch._C, "_host_emptyCache", None)  # older versions
    if empty is None:
        return False
    with contextlib.suppress(RuntimeError, NotImplementedError):  # the device pins nothing
        empty()
    return True


@contextlib.contextmanager
def _reasons(what: str) -> Iterator[None]:
    """Name what a device lacks, in torch's own words."""
    try:
        yield
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        if "out of memory" in str(error).lower():
            raise  # there is some, and less may do
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UnavailableError(f"this device has no {what} in torch: {words[0]}") from error


def identity(runtime: Runtime) -> tuple[str, str]:
    """A device's name and NVML's UUID, as far as torch says; empty texts otherwise."""
    if not runtime.asynchronous:
        return "", ""
    try:
        module = torch.get_device_module(runtime.device)
        properties = module.get_device_properties(runtime.device)
    except (AttributeError, RuntimeError):  # a kind of device that torch describes in no module
        return "", ""
    uuid = str(getattr(properties, "uuid", "") or "")
    known = uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return str(getattr(properties, "name", "")), known


def held_bytes(runtime: Runtime) -> int | None:
    """Device memory that torch's allocator holds in this process; ``None`` where it doesn't say.

    All that is known of Apple's GPUs, which report nothing to other processes.
    """
    if not runtime.asynchronous:
        return None
    try:
        module = torch.get_device_module(runtime.device)
        if hasattr(module, "driver_allocated_memory"):  # Apple's, of which there is only one
            return int(module.driver_allocated_memory())
        return int(module.memory_reserved(runtime.device))
    except (AttributeError, RuntimeError):
        return None


def pinned_memory(runtime: Runtime) -> Mapping[str, Any]:
    """What torch counts of page-locked memory; empty for devices of which it counts nothing."""
    try:
        return dict(torch.get_device_module(runtime.device).host_memory_stats())
    except (RuntimeError, AttributeError):
        return {}


_WARM_UP_S = 0.25
"""A card that rests has low clocks, by up to a factor of ten, and raises them only under load."""


class Spinner:
    """Keeps the device busy for a while.

    Rounds of an elementwise operation on a buffer of its own: public torch, on every device.
    """

    def __init__(self, runtime: Runtime, size: int = 64 << 20) -> None:
        self._runtime = runtime
        self._scratch = torch.zeros(size, dtype=torch.uint8, device=runtime.device)
        self._timed(1)  # loads the kernel
        # The fastest round once the card has come up to speed.
        until_s, best_s = time.perf_counter() + _WARM_UP_S, math.inf
        while best_s == math.inf or time.perf_counter() < until_s:
            best_s = min(best_s, self._timed(8) / 8)
        self._each_s = max(1e-6, best_s)

    def spin(self, seconds: float) -> None:
        """Order work of about so many seconds, on the current stream."""
        rest, rounds = math.modf(seconds / self._each_s)
        for _ in range(int(rounds)):
            self._scratch.bitwise_not_()
        part = self._scratch[: int(rest * self._scratch.numel())]
        if part.numel():
            part.bitwise_not_()

    def _timed(self, count: int) -> float:
        with EventTimer(self._runtime) as timer:
            for _ in range(count):
                self._scratch.bitwise_not_()
        return timer.seconds()
