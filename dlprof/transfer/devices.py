"""All about one device that needs no target: copies of plain buffers, its link, NUMA nodes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from dlprof.device.identity import identity
from dlprof.device.runtime import Runtime, UnavailableError
from dlprof.machine.links import read_link
from dlprof.records.transfer import DeviceTransfer, NumaRate
from dlprof.transfer.copying import Buffers, Copier, Measured, measure_copies
from dlprof.transfer.placing import look_at_link, near_and_far
from dlprof.transfer.protocol import TransferRequest

_LEAST_BYTES = 1 << 22
_SMALLER = 4
_SHORTAGES = ("out of memory", "allocate memory", "not enough memory")
"""As CUDA, torch and the system say it; an "illegal memory access" is none."""
_NO_LINK = "the host's own memory has no link"
_NO_COPIES = "no copy could be measured"
_ONE_NODE = "the machine has one NUMA node, or the kernel reports none"
_UNKNOWN_NODE = "the NUMA node of the device's slot is not known"

_Figure = TypeVar("_Figure")


def measure_device(
    name: str, runtime: Runtime, request: TransferRequest, budget_s: float
) -> DeviceTransfer:
    """Everything about one device that needs no target.

    Args:
        name: Torch's name of it.
        runtime: The device.
        request: What is asked for.
        budget_s: For plain buffers.
    """
    reasons: dict[str, str] = {}
    with _one_thread() if not runtime.asynchronous else contextlib.nullcontext():
        measured, size = _copies(runtime, request, budget_s, reasons)
    title, uuid = identity(runtime)
    found = DeviceTransfer(
        device=name,
        name=title,
        uuid=uuid,
        timed_by=runtime.timed_by,
        cells=measured.cells,
        fits=measured.fits,
    )
    reasons |= measured.unavailable
    best = found.best_bytes_per_s
    if not runtime.asynchronous or best is None:
        why = _NO_COPIES if runtime.asynchronous else _NO_LINK
        reasons |= dict.fromkeys(("link", "numa"), why)
        return dataclasses.replace(found, unavailable=reasons)
    link = _tried(
        lambda: look_at_link(runtime, size, best, lambda busy: read_link(uuid, busy)),
        "link",
        reasons,
    )
    numa = _numa(runtime, request, uuid, size, reasons)
    return dataclasses.replace(found, link=link, numa=numa, unavailable=reasons)


def _numa(
    runtime: Runtime, request: TransferRequest, uuid: str, size: int, reasons: dict[str, str]
) -> tuple[NumaRate, ...]:
    """Copies from each node's memory, where there are several and the device's is known."""
    node = request.near.get(uuid)
    nodes = {int(key): cpus for key, cpus in request.nodes.items()}
    if len(nodes) < 2:
        reasons["numa"] = _ONE_NODE
    elif node is None:
        reasons["numa"] = _UNKNOWN_NODE
    else:
        return _tried(lambda: near_and_far(runtime, size, nodes, node), "numa", reasons) or ()
    return ()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Copy within the host's memory as ``memcpy`` does, and as drivers stage pageable memory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _copies(
    runtime: Runtime, request: TransferRequest, budget_s: float, reasons: dict[str, str]
) -> tuple[Measured, int]:
    """Copies of all sizes that the memory of both sides allows; ``reasons`` gets the rest."""
    size = request.most_bytes
    while True:
        try:
            buffers, copier = Buffers(runtime, size), Copier(runtime)
            found = measure_copies(copier, buffers, budget_s=budget_s, seed=request.seed)
        except (RuntimeError, MemoryError) as error:
            if not _is_shortage(error):
                return Measured(cells=(), fits=(), unavailable={"copies": _first_line(error)}), size
            reasons["sizes"] = f"buffers of {size >> 20} MiB could not be allocated"
            if size <= _LEAST_BYTES:
                return Measured(cells=(), fits=(), unavailable={"copies": reasons["sizes"]}), size
            size //= _SMALLER
            continue
        return found, size


def _is_shortage(error: Exception) -> bool:
    """Whether memory was short: on the device, on the host, or of what may be page-locked."""
    short = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return short or any(words in str(error).lower() for words in _SHORTAGES)


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
