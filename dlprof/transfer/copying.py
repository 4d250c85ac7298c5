"""The process that copies: reads one request, reports what it measures as it goes, and ends.

That is plain buffers, the link, NUMA nodes, a batch of one's own.

Copies of buffers are timed by size, memory and mode, interleaved. A batch goes over tensor by
tensor, and all at once.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from dlprof.device.moving import apply, move, tensors_of
from dlprof.device.runtime import (
    EventTimer,
    HostRuntime,
    Runtime,
    Spinner,
    UnavailableError,
    empty_pinned_cache,
    find_accelerator,
    identity,
    open_runtime,
)
from dlprof.errors import DlprofError, TargetError, UsageError
from dlprof.machine.nvidia import read_link
from dlprof.records import Config, Estimate
from dlprof.records.codec import from_json
from dlprof.records.transfer import (
    BatchTransfer,
    CopyMode,
    CopyTime,
    CopyWay,
    DeviceTransfer,
    LinkFit,
    LinkState,
    Memory,
    NumaRate,
    TensorTransfer,
    TogetherRate,
    WayTime,
)
from dlprof.stats.intervals import median_interval
from dlprof.targets.faults import one_line, refuse_old_torch, user_traceback
from dlprof.trial.child import as_target_error, build
from dlprof.trial.processes import die_with_parent
from dlprof.trial.protocol import (
    BuildRequest,
    Channel,
    Message,
    TransferRequest,
    describe_error,
)


def line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """``(latency_s, s_per_byte)`` of the line through times of copies.

    Least squares of the *relative* errors, so that the small sizes, which alone show the latency,
    count as much as the large ones. A latency below 0 is none: the line then goes through 0.

    Raises:
        ValueError: There are fewer than two sizes.
    """
    rows = [(1 / seconds, size / seconds) for size, seconds in points]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, sa, sb = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError("a line needs two different sizes")
    latency_s = (sa * bb - sb * ab) / determinant
    if latency_s <= 0:
        return 0.0, sb / bb
    return latency_s, (sb * aa - sa * ab) / determinant


def fit(
    memory: Memory, mode: CopyMode, passes: Sequence[Sequence[tuple[int, float]]]
) -> LinkFit | None:
    """The line of one way to copy, with intervals over passes that each measured all sizes.

    ``None`` with fewer than three sizes, or where no line with a bandwidth fits.
    """
    lines = []
    for points in passes:
        if len({size for size, _ in points}) < 3:
            return None
        latency_s, s_per_byte = line(points)
        if s_per_byte > 0:
            lines.append((latency_s, 1 / s_per_byte))
    if not lines:
        return None
    latency = median_interval([each for each, _ in lines])
    bandwidth = median_interval([each for _, each in lines])
    times: dict[int, list[float]] = {}
    for size, seconds in itertools.chain.from_iterable(passes):
        times.setdefault(size, []).append(seconds)
    errors = [
        (latency.value + size / bandwidth.value) / median_interval(each).value - 1
        for size, each in times.items()
    ]
    return LinkFit(
        memory=memory,
        mode=mode,
        latency_s=latency,
        bytes_per_s=bandwidth,
        worst_error=max(map(abs, errors)),
    )


SIZES = tuple(4096 * 4**power for power in range(9))  # 4 KB to 256 MB

MODES: tuple[CopyMode, ...] = ("blocking", "non_blocking", "side_stream")

_Pair = tuple[torch.Tensor, torch.Tensor]


class Round(NamedTuple):
    """Seconds per copy of a size, a memory and a mode: on the device, and in the calling thread."""

    device_s: float
    host_s: float


class Buffers:
    """One large buffer per memory, of which smaller copies take one part after another.

    So that small copies, too, find their source in memory and not in a cache.
    """

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.unavailable: dict[str, str] = {}  # why a memory is missing
        self._target = torch.empty(size, dtype=torch.uint8, device=runtime.device)
        pageable = torch.ones(size, dtype=torch.uint8)
        self._sources: dict[Memory, torch.Tensor] = {"pageable": pageable}
        try:
            self._sources["pinned"] = runtime.pin(pageable)
        except UnavailableError as reason:
            self.unavailable["pinned"] = str(reason)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Those that there are."""
        return tuple(self._sources)

    @property
    def size(self) -> int:
        """Bytes of each buffer."""
        return self._target.numel()

    def pairs(self, size: int, memory: Memory, copies: int) -> list[_Pair]:
        """Targets and sources of some copies; they follow each other through the buffers."""
        source, places = self._sources[memory], self.size // size
        starts = [(copy % places) * size for copy in range(copies)]
        return [(self._target[at : at + size], source[at : at + size]) for at in starts]


class Copier:
    """Times rounds of copies to one device."""

    def __init__(self, runtime: Runtime, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runtime = runtime
        self._clock = clock
        self._spinner = Spinner(runtime) if runtime.asynchronous else None
        self._side = contextlib.nullcontext()
        self._enqueue_s = 0.0  # what ordering one copy was last seen to take

    def modes(self) -> tuple[tuple[CopyMode, ...], dict[str, str]]:
        """The modes that mean something here, and why others don't."""
        if not self._runtime.asynchronous:
            reason = "copies within the host's memory are done by the calling thread"
            return ("blocking",), {"non_blocking": reason, "side_stream": reason}
        try:
            self._side = self._runtime.stream()
        except UnavailableError as reason:
            return MODES[:2], {"side_stream": str(reason)}
        return MODES, {}

    def round(self, pairs: Sequence[_Pair], memory: Memory, mode: CopyMode) -> Round:
        """Copy all pairs between two events.

        Copies of pinned memory that only are ordered wait behind a spin of the device, so that
        ordering them is not timed. Pageable ones are staged by the calling thread itself, and
        blocking ones are waited for one by one: for those that is part of the time. It always ends
        with an event, because a pageable copy returns when it is staged.
        """
        asynchronous = mode != "blocking"
        with self._side if mode == "side_stream" else contextlib.nullcontext():
            if self._spinner is not None and asynchronous and memory == "pinned":
                wanted_s = 2 * self._enqueue_s * len(pairs)
                self._spinner.spin(min(max(wanted_s, 100e-6), 20e-3))
            with EventTimer(self._runtime) as timer:
                from_s = self._clock()
                for target, source in pairs:
                    target.copy_(source, non_blocking=asynchronous)
                host_s = (self._clock() - from_s) / len(pairs)
            device_s = timer.seconds()
        if asynchronous and memory == "pinned":
            self._enqueue_s = host_s
        # Never 0, however coarse the device's clock is: bandwidths are made of it.
        return Round(max(1e-9, device_s) / len(pairs), host_s)


def copies_per_round(size: int) -> int:
    """Copies between two events: enough to be timed well, and no more than that takes."""
    return min(100, max(1, (32 << 20) // size))


def measure_copies(
    copier: Copier,
    buffers: Buffers,
    *,
    budget_s: float,
    sizes: Iterable[int] = SIZES,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[tuple[CopyTime, ...], tuple[LinkFit, ...], dict[str, str]]:
    """Time all sizes, memories and modes in random order, pass after pass.

    It gives the median of each, a line for each memory and mode, and why some are missing.
    """
    modes, missing = copier.modes()
    kept = [size for size in sizes if size <= buffers.size]
    cells = list(itertools.product(kept, buffers.memories, modes))
    passes: list[dict[tuple[int, Memory, CopyMode], Round]] = []
    began_s = clock()
    generator = random.Random(seed)
    for number in itertools.count():
        found = {
            (size, memory, mode): copier.round(
                buffers.pairs(size, memory, copies_per_round(size)), memory, mode
            )
            for size, memory, mode in generator.sample(cells, len(cells))
        }
        if number:  # the first only warms up: pages are touched, the driver sets up
            passes.append(found)
        if len(passes) >= 30:
            break
        # The fewest rounds whose median has an interval of 95 %.
        if len(passes) >= 6 and clock() - began_s > budget_s:
            break
    times = []
    for size, memory, mode in cells:
        rounds = [found[size, memory, mode] for found in passes]
        time_s = median_interval([each.device_s for each in rounds])
        times.append(
            CopyTime(
                bytes=size,
                memory=memory,
                mode=mode,
                time_s=time_s,
                bytes_per_s=size / time_s.value,
                host_s=statistics.median(each.host_s for each in rounds),
                copies=copies_per_round(size),
                rounds=len(rounds),
            )
        )
    fits = []
    for way in itertools.product(buffers.memories, modes):
        points = [[(size, found[size, *way].device_s) for size in kept] for found in passes]
        fits.append(fit(*way, points))
    return tuple(times), tuple(filter(None, fits)), {**buffers.unavailable, **missing}


_ROUNDS = 10
_ENDED = "the copies had ended before NVML answered"


def _send(runtime: Runtime, buffers: Buffers, copies: int) -> EventTimer:
    """Order so many copies of a whole buffer, and don't wait for them."""
    pairs = buffers.pairs(buffers.size, "pinned", copies)
    with EventTimer(runtime) as timer:
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
    return timer


def _large(runtime: Runtime, most_bytes: int) -> Buffers:
    """Buffers for large copies."""
    buffers = Buffers(runtime, min(64 << 20, most_bytes))
    if "pinned" in buffers.unavailable:
        raise UnavailableError(buffers.unavailable["pinned"])
    return buffers


def _copies_for(seconds: float, bytes_per_s: float, size: int) -> int:
    return min(400, max(1, math.ceil(seconds * bytes_per_s / size)))


def _rates(runtime: Runtime, buffers: Buffers) -> Estimate:
    speed = buffers.size / _send(runtime, buffers, 1).seconds()
    copies = _copies_for(0.02, speed, buffers.size)
    sent = copies * buffers.size
    rounds = (_send(runtime, buffers, copies) for _ in range(_ROUNDS))
    return median_interval([sent / timer.seconds() for timer in rounds])


def look_at_link(
    runtime: Runtime,
    most_bytes: int,
    best_bytes_per_s: float,
    read: Callable[[Callable[[], object]], LinkState],
) -> LinkState:
    """The link as NVML reports it while a third of a second of copies is on its way.

    Raises:
        UnavailableError: Nothing can be pinned here.
    """
    buffers = _large(runtime, most_bytes)
    copies = _copies_for(0.3, best_bytes_per_s, buffers.size)
    flights: list[EventTimer] = []
    state = read(lambda: flights.append(_send(runtime, buffers, copies)))
    in_time = any(not flight.is_over() for flight in flights)
    runtime.synchronize()
    reasons, theory = dict(state.unavailable), state.theory_bytes_per_s
    if theory is not None and not in_time:
        # What NVML then reported is of an idle link, or may be.
        theory = None
        reasons |= dict.fromkeys(("generation", "width", "theory_bytes_per_s"), _ENDED)
        state = dataclasses.replace(state, generation=None, width=None)
    fraction = None if theory is None else best_bytes_per_s / theory
    if fraction is None:
        reasons["reached_fraction"] = reasons.get("theory_bytes_per_s", _ENDED)
    elif fraction > 1:
        fraction = None
        reasons["reached_fraction"] = "the copies were faster than the link that NVML reports"
    return dataclasses.replace(
        state,
        theory_bytes_per_s=theory,
        best_bytes_per_s=best_bytes_per_s,
        reached_fraction=fraction,
        unavailable=reasons,
    )


def near_and_far(
    runtime: Runtime, most_bytes: int, nodes: Mapping[int, Sequence[int]], near: int
) -> tuple[NumaRate, ...]:
    """Copies from the memory of each NUMA node that this process may run on.

    Memory lies where the thread runs that touches it first, so this thread goes to each node.

    Raises:
        UnavailableError: Threads can't be placed here, fewer than two nodes are allowed, or torch
            keeps pinned memory.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UnavailableError("this system can't place a thread on chosen CPUs")
    before = os.sched_getaffinity(0)
    allowed = {node: before & set(cpus) for node, cpus in nodes.items() if before & set(cpus)}
    if near not in allowed or len(allowed) < 2:
        raise UnavailableError("this process may not run on both a near and a far node")
    if not empty_pinned_cache():  # memory of another node would be handed out again
        raise UnavailableError("this version of torch can't give pinned memory back in between")
    rates = []
    for node, cpus in allowed.items():
        os.sched_setaffinity(0, cpus)
        try:
            empty_pinned_cache()
            rate = _rates(runtime, _large(runtime, most_bytes))
        finally:
            os.sched_setaffinity(0, before)
        rates.append(NumaRate(node=node, near=node == near, bytes_per_s=rate))
    empty_pinned_cache()
    return tuple(rates)


def all_at_once(runtimes: Mapping[str, Runtime], most_bytes: int) -> tuple[TogetherRate, ...]:
    """Copies to each device alone, and to all of them at once.

    Raises:
        UnavailableError: Nothing can be pinned here.
    """
    buffers = {name: _large(runtime, most_bytes) for name, runtime in runtimes.items()}
    alone = {name: _rates(runtime, buffers[name]).value for name, runtime in runtimes.items()}
    together: dict[str, list[float]] = {name: [] for name in runtimes}
    for _ in range(_ROUNDS):
        flights = {}
        for name, runtime in runtimes.items():
            size = buffers[name].size
            copies = _copies_for(0.06, alone[name], size)  # long enough for all to be under way
            flights[name] = copies * size, _send(runtime, buffers[name], copies)
        for name, (sent, timer) in flights.items():
            together[name].append(sent / timer.seconds())
    return tuple(
        TogetherRate(
            device=name, alone_bytes_per_s=alone[name], together_bytes_per_s=median_interval(rates)
        )
        for name, rates in together.items()
    )


_Figure = TypeVar("_Figure")


def measure_device(
    name: str, runtime: Runtime, request: TransferRequest, budget_s: float
) -> DeviceTransfer:
    """Everything about one device that needs no target."""
    reasons: dict[str, str] = {}
    threads = torch.get_num_threads()
    if not runtime.asynchronous:  # as ``memcpy`` does, and as drivers stage pageable memory
        torch.set_num_threads(1)
    try:
        cells, fits, size = _copies(runtime, request, budget_s, reasons)
    finally:
        torch.set_num_threads(threads)
    title, uuid = identity(runtime)
    found = DeviceTransfer(
        device=name, name=title, uuid=uuid, timed_by=runtime.timed_by, cells=cells, fits=fits
    )
    best = found.best_bytes_per_s
    if not runtime.asynchronous or best is None:
        why = "no copy could be measured"
        if not runtime.asynchronous:
            why = "the host's own memory has no link"
        reasons |= dict.fromkeys(("link", "numa"), why)
        return dataclasses.replace(found, unavailable=reasons)
    link = _tried(
        lambda: look_at_link(runtime, size, best, lambda busy: read_link(uuid, busy)),
        "link",
        reasons,
    )
    # Copies from each node's memory, where there are several and the device's is known.
    near, nodes = request.near.get(uuid), {int(key): cpus for key, cpus in request.nodes.items()}
    numa = None
    if len(nodes) < 2:
        reasons["numa"] = "the machine has one NUMA node, or the kernel reports none"
    elif near is None:
        reasons["numa"] = "the NUMA node of the device's slot is not known"
    else:
        numa = _tried(lambda: near_and_far(runtime, size, nodes, near), "numa", reasons)
    return dataclasses.replace(found, link=link, numa=numa or (), unavailable=reasons)


def _copies(
    runtime: Runtime, request: TransferRequest, budget_s: float, reasons: dict[str, str]
) -> tuple[tuple[CopyTime, ...], tuple[LinkFit, ...], int]:
    """Copies of all sizes up to what the memory of both sides allows; ``reasons`` gets the rest."""
    size = request.most_bytes
    while True:
        try:
            buffers, copier = Buffers(runtime, size), Copier(runtime)
            cells, fits, missing = measure_copies(
                copier, buffers, budget_s=budget_s, seed=request.seed
            )
        except (RuntimeError, MemoryError) as error:
            why, is_short = _first_line(error), _is_shortage(error)
            if is_short:
                why = reasons["sizes"] = f"buffers of {size >> 20} MiB could not be allocated"
            if not is_short or size <= 1 << 22:
                reasons["copies"] = why
                return (), (), size
            size //= 4
            continue
        reasons |= missing
        return cells, fits, size


def _is_shortage(error: Exception) -> bool:
    """Whether memory was short: on the device, on the host, or of what may be page-locked."""
    # As CUDA, torch and the system say it; an "illegal memory access" is none.
    words = ("out of memory", "allocate memory", "not enough memory")
    short = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return short or any(each in str(error).lower() for each in words)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _tried(work: Callable[[], _Figure], name: str, reasons: dict[str, str]) -> _Figure | None:
    try:
        return work()
    except UnavailableError as reason:
        reasons[name] = str(reason)
    except RuntimeError as error:  # the device's own fault, which costs this figure only
        reasons[name] = _first_line(error)
    return None


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
            ways["pinned_by_caller"] = pinned(_again(batch), runtime)
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

    What has no ``pin_memory`` of its own is pinned part by part, as tokenizers' batches are by
    torch.

    Raises:
        UnavailableError: Nothing can be pinned here.
    """

    def pin(part: Any) -> Any:
        return runtime.pin(part) if isinstance(part, torch.Tensor) else part.pin_memory()

    return apply(batch, pin, by="pin_memory")


def _pinned_by_loader(load: _Make) -> Any:
    """The same batch from a loader that pins."""
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
    return apply(batch, lambda part: part.clone(), by="clone")


def _again(batch: Any) -> Any:
    """A batch to bring over once: objects that go by themselves may stay where they have gone."""

    def again(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            with contextlib.suppress(Exception):  # the user's type may not allow it
                return copy.copy(part)
        return part

    return apply(batch, again)


def _timed(work: Callable[[Any, Runtime], Any], batch: Any, runtime: Runtime) -> float:
    batch = _again(batch)
    runtime.synchronize()
    began_s = time.perf_counter()
    kept = work(batch, runtime)
    runtime.synchronize()
    ended_s = time.perf_counter()
    del kept  # not before: freeing it is no part of the time
    return ended_s - began_s


def main() -> None:
    """Answer the one request on standard input; what the target prints goes to standard error."""
    channel = Channel.of_standard_streams()
    order = channel.receive()
    if order is not None:
        request = from_json(TransferRequest, order["request"])
        die_with_parent(request.parent or None)  # it may have died while torch was imported
        answer(request, channel.send)
    channel.close()
    os._exit(0)  # not by way of what the user's code has left running


def answer(
    request: TransferRequest,
    send: Callable[[Message], object],
    opened: Callable[[str], Runtime] = open_runtime,
) -> None:
    """Measure all that is asked for, and report each part when it is known."""
    try:
        _answer(request, send, opened)
    except DlprofError as error:
        send({"event": "failed", "error": describe_error(error)})
        return
    version = str(torch.__version__)
    send({"event": "done", "torch_version": version, "accelerator": find_accelerator()})


def _answer(
    request: TransferRequest, send: Callable[[Message], object], opened: Callable[[str], Runtime]
) -> None:
    refuse_old_torch(torch.__version__)
    try:
        found = [opened(name) for name in _names(request)]
    except UnavailableError as reason:
        raise UsageError(
            f"--device {request.device} can't be copied to: {reason}",
            hint="Leave --device out, or install a torch that supports the device.",
        ) from None
    runtimes = {str(runtime.device): runtime for runtime in found}
    target = request.build
    load = None if target is None else _loading(request, target)
    if load is not None:
        load(False)  # what is wrong with a target is reported before all else is measured
    everywhere = {**runtimes, "cpu": HostRuntime()}
    for name, runtime in everywhere.items():
        send({"event": "progress", "text": f"copying to {name}"})
        copied = measure_device(name, runtime, request, request.budget_s / len(everywhere))
        send({"event": "device", "device": copied})
    if request.all_devices and len(runtimes) > 1:
        send({"event": "progress", "text": f"copying to {len(runtimes)} devices at once"})
        with _missing("together", send):
            send({"event": "together", "rates": all_at_once(runtimes, request.most_bytes)})
    if load is not None and target is not None:
        send({"event": "progress", "text": "copying the target's own batch"})
        with _missing("batch", send):
            runtime = next(iter(everywhere.values()))
            batch = measure_batch(load, runtime, target.target.text)
            send({"event": "batch", "batch": batch})


@contextlib.contextmanager
def _missing(what: str, send: Callable[[Message], object]) -> Iterator[None]:
    """Go on without one part; the device or the batch's own code may raise anything."""
    try:
        yield
    except DlprofError:
        raise
    except UnavailableError as reason:
        send({"event": "missing", "what": what, "reason": str(reason)})
    except Exception as error:  # a batch's objects have a ``to`` of the user's own
        send({"event": "missing", "what": what, "reason": one_line(error)})


def _names(request: TransferRequest) -> tuple[str, ...]:
    """The accelerators to copy to, by torch's names; the CPU always comes besides."""
    found = find_accelerator()
    if request.all_devices and found is not None:
        return tuple(f"{found}:{index}" for index in range(torch.accelerator.device_count()))
    if request.device == "auto":
        return () if found is None else (found,)
    return () if request.device.partition(":")[0] == "cpu" else (request.device,)


def _loading(request: TransferRequest, target: BuildRequest) -> _Make:
    """Builds the target; the function then loads the same first batch again and again."""
    from dlprof.targets.loader import make_loader  # torch.utils.data with it

    try:
        built = build(target)
    except BaseException as error:
        raise as_target_error(error) from error

    def load(pin: bool) -> Any:  # noqa: FBT001 - passed on as the one thing that differs
        random.seed(request.seed)
        torch.manual_seed(request.seed)
        loader = make_loader(built, Config(pin_memory=pin, batch_size=request.batch_size))
        batches, spec = iter(loader), built.target.spec
        try:
            return next(batches)
        except StopIteration:
            raise UsageError(
                f"The target {spec!r} gave no batch",
                hint="Give a target with at least one batch.",
            ) from None
        except Exception as error:
            raise TargetError(
                f"Loading a batch of {spec!r} raised {one_line(error)}.",
                hint="The traceback shows where.",
                traceback=user_traceback(error),
            ) from error

    return load


if __name__ == "__main__":
    main()
