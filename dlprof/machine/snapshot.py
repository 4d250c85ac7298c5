"""What a trial has used so far and what the machine is doing: one reading of everything.

Two of them make the figures of a window: see ``usage_between``. Made for a process beside
the trial that samples a few times a second; a reading costs about a millisecond.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.machine.cgroups import Cgroups, cpu_quota, read_cgroups, throttled_ns
from dlprof.machine.inspection import available_memory, read_shared_memory
from dlprof.machine.procfs import (
    CpuTicks,
    parse_allowed_cpus,
    parse_cpu_ticks,
    parse_runnable,
    read_pressures,
    read_text,
    usable_cpus,
)
from dlprof.machine.tree import TreeUsage, cpu_times, has_proc, open_tree
from dlprof.records import GpuUsage, Usage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Totals at one moment; only differences between two of them mean something.

    ``None`` is a figure that the system doesn't report.
    """

    time_ns: int
    tree: TreeUsage
    # Idle time of the CPUs that the trial may use, summed, since the first snapshot; ``stolen_ns``
    # likewise is what a hypervisor gave to others.
    idle_ns: int | None
    allowed_cpus: int | None
    quota_cores: float | None  # tightest CPU quota over all ancestor cgroups; ``None`` for no quota
    # Time for which quotas held CPUs back, summed over CPUs, by cgroup.
    throttled_ns: Mapping[Path, int] | None
    # Time in which some task of the machine waited, by resource.
    pressures_us: Mapping[str, int | None]
    # Most memory seen so far in readings with ``memory=True``; ``shm_peak_bytes`` the most growth
    # of /dev/shm.
    pss_peak_bytes: int | None
    shm_peak_bytes: int | None
    observer_cpu_ns: int  # CPU time of the process that takes the snapshots
    # Threads of the whole machine that ran or waited for a core, summed over ``looks``.
    runnable: int = 0
    looks: int = 0
    stolen_ns: int | None = None
    is_linux: bool = True  # whether the system has a ``/proc`` as Linux has it


class Sampler:
    """Takes snapshots of one trial: keeps what was learnt between them."""

    def __init__(
        self,
        pid: int,  # the trial's first process; its descendants belong to it
        *,
        # First processes of other ranks, which belong to it with all their descendants.
        beside: Sequence[int] = (),
        root: Path = Path("/"),  # where ``/proc`` and ``/sys`` are found
        clock: Callable[[], int] = time.monotonic_ns,  # nanoseconds of a clock that never steps
        cpu_clock: Callable[[], int] = time.process_time_ns,  # CPU nanoseconds of this process
    ) -> None:
        self._first = (pid, *beside)
        self._root = root
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._linux = has_proc(root)
        self._tree = open_tree(pid, root, beside)
        self._cgroups: Cgroups = read_cgroups(pid, root)
        self._throttle_hidden = throttled_ns(self._cgroups) is None
        shm = read_shared_memory(root)
        self._shm_base = None if shm is None else shm.used_bytes
        self._shm_peak: int | None = None
        self._pss_peak: int | None = None
        self._cost_ns = 0
        self._runnable = self._looks = 0
        self._masks: dict[int, frozenset[int]] = {}
        self._ticks: Mapping[int, CpuTicks] = {}
        self._idle = self._stolen = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The trial's processes at the last reading; empty where ``/proc`` doesn't show them."""
        return getattr(self._tree, "pids", ())

    def take(self, *, memory: bool = False) -> Snapshot:
        """Read everything once; with ``memory`` that too, which costs 1-24 ms a process."""
        cost = self._cpu_clock()
        tree = self._tree.read()
        idle_ns, stolen_ns, allowed = self._read_cpus()
        quota = cpu_quota(self._cgroups)
        moment = self._clock()
        if memory:
            pss = self._tree.pss_bytes()
            if pss is not None:
                self._pss_peak = max(pss, self._pss_peak or 0)
            shm = read_shared_memory(self._root)
            if shm is not None and self._shm_base is not None:
                growth = max(0, shm.used_bytes - self._shm_base)
                self._shm_peak = max(growth, self._shm_peak or 0)
        pressures = read_pressures(self._root)
        throttled = None if self._throttle_hidden else throttled_ns(self._cgroups)
        observer = self._cpu_clock()
        self._cost_ns = observer - cost
        return Snapshot(
            time_ns=moment,
            tree=tree,
            idle_ns=idle_ns,
            allowed_cpus=allowed,
            quota_cores=None if quota is None else quota.amount,
            throttled_ns=throttled,
            pressures_us=pressures,
            pss_peak_bytes=self._pss_peak,
            shm_peak_bytes=self._shm_peak,
            observer_cpu_ns=observer,
            runnable=self._runnable,
            looks=self._looks,
            stolen_ns=stolen_ns,
            is_linux=self._linux,
        )

    def look(self) -> None:
        """Count who runs or waits for a core just now, this process left out; next to no cost."""
        runnable = parse_runnable(read_text(self._root / "proc/loadavg"))
        if runnable is not None:
            self._runnable += max(0, runnable - 1)
            self._looks += 1

    def memory_now(self) -> tuple[int | None, int | None]:
        """Bytes that the trial holds and bytes that are left, cheap enough to watch a limit with.

        Resident memory of the processes as of the last snapshot that no file and no shared memory
        backs, where pages still shared since a fork count in each; and what the machine and the
        cgroup limits leave.
        """
        return self._tree.private_bytes(), available_memory(self._cgroups, self._root)

    def rest_s(self, share: float = 0.02) -> float:
        """Seconds to wait after the last snapshot to stay below a share of one core."""
        return self._cost_ns / 1e9 / share

    def _read_cpus(self) -> tuple[int | None, int | None, int | None]:
        """Idle and stolen time of the CPUs that the trial may use, and how many those are."""
        if not self._linux:
            idle, count = cpu_times() or (None, None)
            return idle, None, count
        ticks = parse_cpu_ticks(read_text(self._root / "proc/stat"))
        for pid in self._first:  # a launcher may bind each rank; one that ended keeps its mask
            mask = parse_allowed_cpus(read_text(f"{self._root}/proc/{pid}/status"))
            self._masks[pid] = mask or self._masks.get(pid, frozenset())
        cpus = usable_cpus(frozenset[int]().union(*self._masks.values()), ticks.keys())
        if not any(ticks[cpu].are_counted for cpu in cpus):
            return None, None, len(cpus) or None
        # Of CPUs that come or go (hotplug, a cpuset that is changed) only what they do meanwhile.
        for cpu in cpus & self._ticks.keys():
            self._idle += max(0, ticks[cpu].idle - self._ticks[cpu].idle)
            self._stolen += max(0, ticks[cpu].stolen - self._ticks[cpu].stolen)
        self._ticks = {cpu: ticks[cpu] for cpu in cpus}
        tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return self._idle * tick_ns, self._stolen * tick_ns, len(cpus)


def _reasons(snapshot: Snapshot) -> dict[str, str]:
    """Why figures are missing, by the names that ``records.Usage`` has for them."""
    tree, idle = snapshot.tree, (snapshot.idle_ns, "the system doesn't count idle time")
    no_delay = "this kernel doesn't count it (/proc/PID/task/*/schedstat)"
    no_io = "the system doesn't report what these processes read (/proc/PID/io)"
    no_quota = "no CPU controller is visible in the process's cgroups"
    no_pss = "memory was not looked at, or /proc/PID/smaps_rollup can't be read"
    no_shm = "memory was not looked at, or there is no /dev/shm"
    reasons: dict[str, tuple[object, str]] = {
        "own_cpu_cores": (tree.processes or None, "the process had ended"),
        **dict.fromkeys(("available_cpu_cores", "other_cpu_cores", "stolen_cpu_cores"), idle),
        "other_runnable": (tree.wait_ns, no_delay),
        "main_runnable": (tree.first_ns, no_delay),
        "run_queue_wait_fraction": (tree.wait_ns, no_delay),
        "throttled_fraction": (snapshot.throttled_ns, no_quota),
        **{f"{name}_pressure_fraction": (us, NO_PSI) for name, us in snapshot.pressures_us.items()},
        "pss_peak_bytes": (snapshot.pss_peak_bytes, no_pss),
        "shm_peak_bytes": (snapshot.shm_peak_bytes, no_shm),
        "read_bytes_per_s": (tree.read_bytes, no_io),
        "cache_hit_fraction": (tree.read_bytes, no_io),
    }
    missing = {name: reason for name, (figure, reason) in reasons.items() if figure is None}
    if not snapshot.is_linux:
        anywhere = {"own_cpu_cores", "available_cpu_cores", "other_cpu_cores"}
        elsewhere = {"stolen_cpu_cores", *missing} - anywhere
        missing |= dict.fromkeys(elsewhere, "only Linux reports it (there is no /proc here)")
    return missing


def usage_between(
    first: Snapshot, last: Snapshot, *, gpu: Sequence[GpuUsage] = ()
) -> tuple[Usage, dict[str, str]]:
    """What was used between two snapshots of one ``Sampler``, and why fields are ``None``."""
    window_ns = last.time_ns - first.time_ns
    if window_ns <= 0:
        return Usage(gpu=tuple(gpu)), dict.fromkeys(_FIELDS, "the window has no length")

    def grown(name: str) -> int | None:
        """How much a total of the tree grew; the system may reset it to below where it was."""
        then, now = getattr(first.tree, name), getattr(last.tree, name)
        return None if then is None or now is None else max(0, now - then)

    used, ran, waited = (grown(name) for name in ("cpu_ns", "run_ns", "wait_ns"))
    asked, fetched, first_ns = (grown(name) for name in ("read_chars", "read_bytes", "first_ns"))
    own = used / window_ns if used is not None and first.tree.processes else None
    idle = _rate(first.idle_ns, last.idle_ns, window_ns)
    available = other = wait_fraction = other_runnable = None
    if idle is not None and own is not None and last.allowed_cpus:
        # Others' share is what was neither idle nor own. Idle time is exact on kernels that stop an
        # idle CPU's clock tick, where busy time is sampled tick by tick, so that busy is not read.
        # Time stolen by a hypervisor counts as others'.
        quota = float("inf") if last.quota_cores is None else last.quota_cores
        available = max(own, min(own + idle, last.allowed_cpus, quota))
        other = max(0.0, last.allowed_cpus - idle - own)
    if ran is not None and waited is not None:
        # Only of threads that were seen, so not where those used less than half of the CPU time: of
        # a process that starts and ends between two readings nothing but that is known.
        if ran + waited and ran >= (used or 0) / 2:
            wait_fraction = waited / (ran + waited)
        # All that ran or waited for a core, less the trial's own, whose mean is exact.
        if (looks := last.looks - first.looks) > 0:
            all_runnable = (last.runnable - first.runnable) / looks
            other_runnable = max(0.0, all_runnable - (ran + waited) / window_ns)
    usage = Usage(
        own_cpu_cores=own,
        available_cpu_cores=available,
        other_cpu_cores=other,
        stolen_cpu_cores=_rate(first.stolen_ns, last.stolen_ns, window_ns),
        other_runnable=other_runnable,
        main_runnable=None if first_ns is None else first_ns / window_ns,
        run_queue_wait_fraction=wait_fraction,
        throttled_fraction=_throttled_fraction(first, last, window_ns),
        **pressure_fractions(first.pressures_us, last.pressures_us, window_ns),
        pss_peak_bytes=last.pss_peak_bytes,
        shm_peak_bytes=last.shm_peak_bytes,
        read_bytes_per_s=None if fetched is None else fetched / window_ns * 1e9,
        # Read-ahead and mapped files can fetch more than was asked for by ``read``: that is 0 hits.
        cache_hit_fraction=max(0.0, 1 - fetched / asked) if asked and fetched is not None else None,
        observer_cpu_cores=_rate(first.observer_cpu_ns, last.observer_cpu_ns, window_ns),
        gpu=tuple(gpu),
    )
    known = {**_EMPTY, **_reasons(first)}
    missing = [name for name in _FIELDS if getattr(usage, name) is None]
    return usage, {name: known.get(name, "the system stopped reporting it") for name in missing}


_FIELDS = tuple(field.name for field in dataclasses.fields(Usage) if field.name != "gpu")

# Where both snapshots have the totals and there is still no figure.
_EMPTY = {
    "other_runnable": "the window was too short to look at who wants cores",
    "run_queue_wait_fraction": "the trial's processes didn't run, or lived too briefly to be seen",
    "cache_hit_fraction": "no process of the trial asked for data by read() in the window",
    **dict.fromkeys(("core_speed", "fair_cpu_cores"), "it is measured in trials alone"),
}


def _rate(first: int | None, last: int | None, window_ns: int) -> float | None:
    return None if first is None or last is None else max(0, last - first) / window_ns


NO_PSI = "this kernel has no pressure figures (/proc/pressure)"


def pressure_fractions(
    first: Mapping[str, int | None], last: Mapping[str, int | None], window_ns: int
) -> dict[str, Any]:
    """Shares of time in which some task waited, as the fields of records name them."""
    rates = {name: _rate(first[name], last[name], window_ns) for name in last}
    return {
        f"{name}_pressure_fraction": None if rate is None else min(1.0, rate * 1000)
        for name, rate in rates.items()
    }


def cores_of_others(
    other: float | None,
    cpus: frozenset[int],
    beside: Iterable[tuple[float | None, frozenset[int]]],
) -> float | None:
    """Cores that others than the ranks of one job kept busy, among the CPUs of one rank.

    That is of ``other``, as in its ``Usage.other_cpu_cores``, without what each rank beside it used
    of the CPUs that it may use; none where those aren't known.
    """
    if other is None:
        return None
    known = ((own, theirs) for own, theirs in beside if own and theirs)
    return max(0.0, other - sum(own * len(cpus & theirs) / len(theirs) for own, theirs in known))


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
