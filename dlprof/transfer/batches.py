"""What a user's own batch costs on its way to the device: its tensors one by one, and together."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from dlprof.device.moving import apply, move, tensors_of
from dlprof.device.runtime import Runtime, UnavailableError
from dlprof.errors import DlprofError
from dlprof.records.transfer import BatchTransfer, CopyWay, TensorTransfer, WayTime
from dlprof.stats import median_interval

_Make = Callable[[bool], Any]


def measure_batch(load: _Make, runtime: Runtime, target: str) -> BatchTransfer:
    """Bring one batch over in each way.

    Times are from the call until the batch is there, on the caller's clock: ordering many small
    tensors is a part of what they cost.

    Raises:
        UnavailableError: There is nothing in the batch to copy.
    """
    batch = load(False)
    tensors = sorted(tensors_of(batch), key=lambda found: -found[1].nbytes)
    if not tensors:
        what = type(batch).__name__
        raise UnavailableError(f"no tensor is found in the batch ({what}), so nothing is copied")
    ways: dict[CopyWay, Any] = {"pageable": batch}
    why = "the batch is on a device already, or a part of it"
    if all(tensor.device.type == "cpu" for _, tensor in tensors):
        try:
            ways["pinned_by_caller"] = pinned(batch, runtime)
            ways["pinned_by_loader"] = _pinned_by_loader(load)
        except UnavailableError as reason:
            why = str(reason)
    wanted = ("pinned_by_caller", "pinned_by_loader")
    unavailable = {way: why for way in wanted if way not in ways}
    if not runtime.asynchronous:
        unavailable["device"] = "without an accelerator this is a copy within the host's memory"
    parts = {way: dict(tensors_of(each)) for way, each in ways.items()}
    return BatchTransfer(
        target=target,
        device=str(runtime.device),
        bytes=sum(tensor.nbytes for _, tensor in tensors),
        tensors=tuple(
            TensorTransfer(
                path=path or "the batch",
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                bytes=tensor.nbytes,
                contiguous=tensor.is_contiguous(),
                ways=_times({w: own[path] for w, own in parts.items() if path in own}, runtime),
            )
            for path, tensor in tensors[:16]
        ),
        tensors_count=len(tensors),
        together=_times(ways, runtime),
        unavailable=unavailable,
    )


def pinned(batch: Any, runtime: Runtime) -> Any:
    """A batch in page-locked memory, as a training loop would pin it by itself.

    Raises:
        UnavailableError: Nothing can be pinned here.
    """
    return apply(batch, lambda part: _pin(part, runtime))


def _pin(part: Any, runtime: Runtime) -> Any:
    if isinstance(part, torch.Tensor):
        return runtime.pin(part)
    own = getattr(part, "pin_memory", None)
    return own() if callable(own) else part


def _pinned_by_loader(load: _Make) -> Any:
    """The same batch from a loader that pins.

    Raises:
        UnavailableError: It came unpinned, or not at all.
    """
    try:
        batch = load(True)
    except DlprofError as error:  # not the target's fault: without pinning it loaded
        raise UnavailableError(f"with pin_memory=True: {error.message.rstrip('.')}") from error
    if not all(tensor.is_pinned() for _, tensor in tensors_of(batch)):
        raise UnavailableError("the loader's batch came without being pinned, or only in part")
    return batch


def _times(ways: dict[CopyWay, Any], runtime: Runtime) -> tuple[WayTime, ...]:
    """Each way, round after round in a new order; the first round only warms up."""
    order = random.Random()  # the global one, a target may have seeded
    copies: dict[CopyWay, list[float]] = {way: [] for way in ways}
    pins: list[float] = []
    began_s = time.perf_counter()
    for _ in range(12 + 1):
        for way in order.sample(list(ways), len(ways)):
            if way == "pinned_by_caller":
                pins.append(_timed(pinned, ways["pageable"], runtime))
            copies[way].append(_timed(bring, ways[way], runtime))
        # One way of one thing is measured no longer than this.
        if time.perf_counter() - began_s > 2.0 and len(copies["pageable"]) > 1:
            break
    pins, warm = pins[1:] or pins, {way: times[1:] or times for way, times in copies.items()}
    return tuple(
        WayTime(
            way=way,
            copy_s=median_interval(times),
            pin_s=median_interval(pins) if way == "pinned_by_caller" else None,
        )
        for way, times in warm.items()
    )


def bring(batch: Any, runtime: Runtime) -> Any:
    """The batch on the device; on the CPU a copy of it, for ``to`` would do nothing."""
    if runtime.asynchronous:
        return move(batch, runtime.device)
    return apply(batch, lambda part: part.clone() if isinstance(part, torch.Tensor) else part)


def _timed(work: Callable[[Any, Runtime], Any], batch: Any, runtime: Runtime) -> float:
    runtime.synchronize()
    began_s = time.perf_counter()
    kept = work(batch, runtime)
    runtime.synchronize()
    ended_s = time.perf_counter()
    del kept  # not before: freeing it is no part of the time
    return ended_s - began_s
