"""What the thread that pins batches uses, and what pinned memory there is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.internals import PIN_THREAD
from dlprof.records import PinCosts

if TYPE_CHECKING:
    from dlprof.machine.procfs import SchedStat

_NO_THREAD = "no thread of this name runs: without workers the caller pins, in next()"
_REPLACED = "the thread ended with an epoch, and what it had used is not known any more"
_NO_SCHEDSTAT = "the kernel reports no CPU and run-queue time of threads here"
_NO_STATS = "torch reports page-locked memory on CUDA only"


def pin_threads(proc: Path = Path("/proc/self")) -> dict[int, SchedStat] | None:
    """The threads of this process that pin, by their ids; ``None`` where that isn't told."""
    # Where a trial pins only: importing the room takes as long as a trial takes to start.
    from dlprof.machine.files import list_names, read_text  # noqa: PLC0415
    from dlprof.machine.procfs import parse_schedstat  # noqa: PLC0415

    found: dict[int, SchedStat] = {}
    for name in list_names(proc / "task"):
        task = proc / "task" / name
        if (read_text(task / "comm") or "").strip() != PIN_THREAD:
            continue
        times = parse_schedstat(read_text(task / "schedstat") or "")
        if times is None:
            return None
        found[int(name)] = times
    return found


def pin_costs(
    before: Mapping[int, SchedStat] | None,
    after: Mapping[int, SchedStat] | None,
    batches: int,
    memory: Mapping[str, Any],
) -> PinCosts:
    """What pinning cost in a window.

    Args:
        before: The threads at its start.
        after: The threads at its end; one that began within it counts from its start.
        batches: Batches in the window.
        memory: ``torch.cuda.host_memory_stats()``; empty where there is none.
    """
    reasons: dict[str, str] = {}
    cpu_s = wait_s = None
    if before is None or after is None:
        reasons |= dict.fromkeys(("thread_cpu_s", "thread_run_queue_s"), _NO_SCHEDSTAT)
    elif before.keys() - after.keys():
        reasons |= dict.fromkeys(("thread_cpu_s", "thread_run_queue_s"), _REPLACED)
    elif not after or not batches:
        reasons |= dict.fromkeys(("thread_cpu_s", "thread_run_queue_s"), _NO_THREAD)
    else:
        early, late = before.values(), after.values()
        cpu_s = (sum(t.run_ns for t in late) - sum(t.run_ns for t in early)) / 1e9 / batches
        wait_s = (sum(t.wait_ns for t in late) - sum(t.wait_ns for t in early)) / 1e9 / batches
    if not memory:
        reasons |= dict.fromkeys(("pinned_bytes", "alloc_s", "allocations"), _NO_STATS)
    alloc_us = memory.get("host_alloc_time.total")
    return PinCosts(
        thread_cpu_s=cpu_s,
        thread_run_queue_s=wait_s,
        pinned_bytes=_whole(memory.get("allocated_bytes.current")),
        alloc_s=None if alloc_us is None else float(alloc_us) / 1e6,
        allocations=_whole(memory.get("num_host_alloc")),
        unavailable=reasons,
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def host_memory(kind: str) -> Mapping[str, Any]:
    """Torch's figures of page-locked memory; empty on devices other than CUDA."""
    import torch  # noqa: PLC0415 - only in a trial's process

    if kind != "cuda":
        return {}
    try:
        return dict(torch.cuda.host_memory_stats())
    except (RuntimeError, AttributeError):
        return {}
