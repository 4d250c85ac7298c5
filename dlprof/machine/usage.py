"""The figures of a window, from the two snapshots at its ends. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.machine.snapshot import Snapshot
from dlprof.records import GpuUsage, Usage


def usage_between(
    first: Snapshot, last: Snapshot, *, gpu: Sequence[GpuUsage] = ()
) -> tuple[Usage, dict[str, str]]:
    """What was used between two snapshots of one ``Sampler``.

    Args:
        first: At the window's start.
        last: At its end.
        gpu: What the GPUs did in the window, see ``gpus.mean_usage``.

    Returns:
        The figures, and the reasons for those that are ``None``, by field name.
    """
    window_ns = last.time_ns - first.time_ns
    if window_ns <= 0:
        return Usage(gpu=tuple(gpu)), dict.fromkeys(_FIELDS, "the window has no length")
    own = _rate(first.tree.cpu_ns, last.tree.cpu_ns, window_ns)
    if not first.tree.processes:
        own = None
    available, other = _machine_cores(first, last, own, window_ns)
    usage = Usage(
        own_cpu_cores=own,
        available_cpu_cores=available,
        other_cpu_cores=other,
        stolen_cpu_cores=_rate(first.stolen_ns, last.stolen_ns, window_ns),
        other_runnable=_other_runnable(first, last, window_ns),
        run_queue_wait_fraction=_wait_fraction(first, last),
        throttled_fraction=_throttled_fraction(first, last, window_ns),
        cpu_pressure_fraction=_pressure(first.cpu_pressure_us, last.cpu_pressure_us, window_ns),
        io_pressure_fraction=_pressure(first.io_pressure_us, last.io_pressure_us, window_ns),
        memory_pressure_fraction=_pressure(
            first.memory_pressure_us, last.memory_pressure_us, window_ns
        ),
        pss_peak_bytes=last.pss_peak_bytes,
        shm_peak_bytes=last.shm_peak_bytes,
        read_bytes_per_s=_per_second(first.tree.read_bytes, last.tree.read_bytes, window_ns),
        cache_hit_fraction=_cache_hits(first, last),
        observer_cpu_cores=_rate(first.observer_cpu_ns, last.observer_cpu_ns, window_ns),
        gpu=tuple(gpu),
    )
    return usage, _reasons(usage, first, last)


_FIELDS = tuple(field.name for field in dataclasses.fields(Usage) if field.name != "gpu")

# Where both snapshots have the totals and there is still no figure.
_EMPTY = {
    "other_runnable": "the window was too short to look at who wants cores",
    "run_queue_wait_fraction": "the trial's processes didn't run, or lived too briefly to be seen",
    "cache_hit_fraction": "no process of the trial asked for data by read() in the window",
    "core_speed": "it is measured in trials alone",
}


def _reasons(usage: Usage, first: Snapshot, last: Snapshot) -> dict[str, str]:
    known = {**_EMPTY, **first.unavailable, **last.unavailable}
    missing = [name for name in _FIELDS if getattr(usage, name) is None]
    return {name: known.get(name, "the system stopped reporting it") for name in missing}


def _growth(first: int | None, last: int | None) -> int | None:
    """How much a total grew; totals of the system may be reset to below where they were."""
    return None if first is None or last is None else max(0, last - first)


def _rate(first: int | None, last: int | None, window_ns: int) -> float | None:
    growth = _growth(first, last)
    return None if growth is None else growth / window_ns


def _per_second(first: int | None, last: int | None, window_ns: int) -> float | None:
    rate = _rate(first, last, window_ns)
    return None if rate is None else rate * 1e9


def _pressure(first: int | None, last: int | None, window_ns: int) -> float | None:
    rate = _rate(first, last, window_ns)
    return None if rate is None else min(1.0, rate * 1000)


def _machine_cores(
    first: Snapshot, last: Snapshot, own: float | None, window_ns: int
) -> tuple[float | None, float | None]:
    """Cores that could be had, and cores that others kept busy.

    Others' share is what was neither idle nor own. Idle time is exact on kernels that stop an
    idle CPU's clock tick, where busy time is sampled tick by tick, so that busy is not read.
    Time stolen by a hypervisor counts as others'.
    """
    idle = _rate(first.idle_ns, last.idle_ns, window_ns)
    if idle is None or own is None or not last.allowed_cpus:
        return None, None
    quota = float("inf") if last.quota_cores is None else last.quota_cores
    available = max(own, min(own + idle, last.allowed_cpus, quota))
    return available, max(0.0, last.allowed_cpus - idle - own)


def _wait_fraction(first: Snapshot, last: Snapshot) -> float | None:
    """Only of threads that were seen, so ``None`` where those used less than half of the CPU time.

    Of a process that starts and ends between two readings nothing but its CPU time is known.
    """
    ran = _growth(first.tree.run_ns, last.tree.run_ns)
    waited = _growth(first.tree.wait_ns, last.tree.wait_ns)
    used = _growth(first.tree.cpu_ns, last.tree.cpu_ns)
    if ran is None or waited is None or used is None or ran + waited == 0 or ran < used / 2:
        return None
    return waited / (ran + waited)


def _other_runnable(first: Snapshot, last: Snapshot, window_ns: int) -> float | None:
    """All that ran or waited for a core, less the trial's own, whose mean is exact."""
    looks = last.looks - first.looks
    ran = _growth(first.tree.run_ns, last.tree.run_ns)
    waited = _growth(first.tree.wait_ns, last.tree.wait_ns)
    if looks <= 0 or ran is None or waited is None:
        return None
    return max(0.0, (last.runnable - first.runnable) / looks - (ran + waited) / window_ns)


def _throttled_fraction(first: Snapshot, last: Snapshot, window_ns: int) -> float | None:
    """Share of the window, or of the time that the trial wanted cores for where that is more.

    The kernel sums held-back time over CPUs: with several busy processes it exceeds the window.
    Of nested cgroups the one that held back longest counts, as their times overlap.
    """
    before, after = first.throttled_ns or {}, last.throttled_ns or {}
    grown = [max(0, after[cgroup] - before[cgroup]) for cgroup in before.keys() & after.keys()]
    if not grown:
        return None
    throttled = max(grown)
    used = max(0, last.tree.cpu_ns - first.tree.cpu_ns)
    return throttled / max(window_ns, throttled + used)


def _cache_hits(first: Snapshot, last: Snapshot) -> float | None:
    """Share of what was asked for that storage didn't have to deliver.

    Read-ahead and mapped files can fetch more than was asked for by ``read``: that is 0 hits.
    """
    asked = _growth(first.tree.read_chars, last.tree.read_chars)
    fetched = _growth(first.tree.read_bytes, last.tree.read_bytes)
    if not asked or fetched is None:
        return None
    return max(0.0, 1 - fetched / asked)
