"""All about one device that needs no target: copies of plain buffers, its link, NUMA nodes."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from dlprof.device.runtime import (
    EventTimer,
    Runtime,
    UnavailableError,
    empty_pinned_cache,
    identity,
)
from dlprof.machine.nvidia import read_link
from dlprof.records import Estimate
from dlprof.records.transfer import (
    CopyTime,
    DeviceTransfer,
    LinkFit,
    LinkState,
    NumaRate,
    TogetherRate,
)
from dlprof.stats import median_interval
from dlprof.transfer.copying import Buffers, Copier, measure_copies
from dlprof.trial.protocol import TransferRequest

_ROUNDS = 10
_ROUND_S = 0.02
_ENDED = "the copies had ended before NVML answered"


def _send(runtime: Runtime, buffers: Buffers, copies: int) -> EventTimer:
    """Order so many copies of a whole buffer, and don't wait for them."""
    pairs = buffers.pairs(buffers.size, "pinned", copies)
    with EventTimer(runtime) as timer:
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
    return timer


def _large(runtime: Runtime, most_bytes: int) -> Buffers:
    """Buffers for large copies.

    Raises:
        UnavailableError: Nothing can be pinned here.
    """
    buffers = Buffers(runtime, min(64 << 20, most_bytes))
    if "pinned" in buffers.unavailable:
        raise UnavailableError(buffers.unavailable["pinned"])
    return buffers


def _copies_for(seconds: float, bytes_per_s: float, size: int) -> int:
    return min(400, max(1, math.ceil(seconds * bytes_per_s / size)))


def _rates(runtime: Runtime, buffers: Buffers) -> Estimate:
    speed = buffers.size / _send(runtime, buffers, 1).seconds()
    copies = _copies_for(_ROUND_S, speed, buffers.size)
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
            copies = _copies_for(3 * _ROUND_S, alone[name], size)
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
