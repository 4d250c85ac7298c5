"""What a trial has used so far and what the machine is doing: one reading of everything.

Two of them make the figures of a window: see ``usage.usage_between``. Made for a process beside
the trial that samples a few times a second; a reading costs about a millisecond.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlprof.machine import portable
from dlprof.machine.cgroups import Cgroups, cpu_quota, read_cgroups, throttled_ns
from dlprof.machine.files import read_text
from dlprof.machine.memory import MemoryNow, available_memory, read_shared_memory
from dlprof.machine.procfs import (
    CpuTicks,
    parse_allowed_cpus,
    parse_cpu_ticks,
    parse_pressure,
    parse_runnable,
)
from dlprof.machine.tree import TreeUsage

_SECOND = 1_000_000_000
_NO_PROC = "only Linux reports it (there is no /proc here)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Totals at one moment; only differences between two of them mean something.

    ``None`` is a figure that the system doesn't tell; ``unavailable`` has the reason.

    Attributes:
        time_ns: When, on a clock that never steps.
        tree: What the trial's processes had used.
        idle_ns: Idle time of the CPUs that the trial may use, summed.
        allowed_cpus: How many CPUs that is.
        quota_cores: Tightest CPU quota over all ancestor cgroups; ``None`` for no quota.
        throttled_ns: Time for which quotas held CPUs back, summed over CPUs, by cgroup.
        cpu_pressure_us: Time in which some task of the machine waited for a core.
        io_pressure_us: Time in which some task waited for storage.
        memory_pressure_us: Time in which some task waited for memory.
        pss_peak_bytes: Most memory seen so far in readings with ``memory=True``.
        shm_peak_bytes: Most growth of /dev/shm seen so far in such readings.
        observer_cpu_ns: CPU time of the process that takes the snapshots.
        runnable: Threads of the whole machine that ran or waited for a core, summed over looks.
        looks: How many of those there were.
        stolen_ns: Time of the CPUs that the trial may use which a hypervisor gave to others.
        unavailable: Reasons, by the names of ``records.Usage``.
    """

    time_ns: int
    tree: TreeUsage
    idle_ns: int | None
    allowed_cpus: int | None
    quota_cores: float | None
    throttled_ns: Mapping[Path, int] | None
    cpu_pressure_us: int | None
    io_pressure_us: int | None
    memory_pressure_us: int | None
    pss_peak_bytes: int | None
    shm_peak_bytes: int | None
    observer_cpu_ns: int
    runnable: int = 0
    looks: int = 0
    stolen_ns: int | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Sampler:
    """Takes snapshots of one trial: keeps what was learnt between them.

    Args:
        pid: The trial's first process; its descendants belong to it.
        beside: First processes of other ranks, which belong to it with all their descendants.
        root: Where ``/proc`` and ``/sys`` are found.
        clock: Nanoseconds of a clock that never steps.
        cpu_clock: CPU nanoseconds of this process.
        shm_base_bytes: What /dev/shm held before the trial; as it is now for ``None``.
    """

    def __init__(
        self,
        pid: int,
        *,
        beside: Sequence[int] = (),
        root: Path = Path("/"),
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
        shm_base_bytes: int | None = None,
    ) -> None:
        self._pid = pid
        self._root = root
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._linux = portable.has_proc(root)
        self._tree = portable.open_tree(pid, root, beside)
        self._cgroups: Cgroups = read_cgroups(pid, root)
        self._throttle_hidden = throttled_ns(self._cgroups) is None
        self._shm_base = shm_base_bytes
        shm = read_shared_memory(root)
        if shm is not None and shm_base_bytes is None:
            self._shm_base = shm.used_bytes
        self._shm_peak: int | None = None
        self._pss_peak: int | None = None
        self._cost_ns = 0
        self._runnable = self._looks = 0

    def take(self, *, memory: bool = False) -> Snapshot:
        """Read everything once.

        Args:
            memory: Also look at memory, which costs 1-24 ms per process of the trial.
        """
        cost = self._cpu_clock()
        tree = self._tree.read()
        idle_ns, stolen_ns, allowed = self._read_cpus()
        quota = cpu_quota(self._cgroups)
        moment = self._clock()
        if memory:
            self._watch_memory()
        pressures = [self._read_pressure(name) for name in ("cpu", "io", "memory")]
        throttled = None if self._throttle_hidden else throttled_ns(self._cgroups)
        observer = self._cpu_clock()
        self._cost_ns = observer - cost
        snapshot = Snapshot(
            time_ns=moment,
            tree=tree,
            idle_ns=idle_ns,
            allowed_cpus=allowed,
            quota_cores=None if quota is None else quota.amount,
            throttled_ns=throttled,
            cpu_pressure_us=pressures[0],
            io_pressure_us=pressures[1],
            memory_pressure_us=pressures[2],
            pss_peak_bytes=self._pss_peak,
            shm_peak_bytes=self._shm_peak,
            observer_cpu_ns=observer,
            runnable=self._runnable,
            looks=self._looks,
            stolen_ns=stolen_ns,
        )
        return dataclasses.replace(snapshot, unavailable=self._reasons(snapshot))

    def look(self) -> None:
        """Count who runs or waits for a core just now, this process left out; next to no cost."""
        runnable = parse_runnable(read_text(self._root / "proc/loadavg") or "")
        if runnable is not None:
            self._runnable += max(0, runnable - 1)
            self._looks += 1

    def memory_now(self) -> MemoryNow:
        """What the trial holds, its processes taken as of the last snapshot; cheap."""
        return MemoryNow(
            private_bytes=self._tree.private_bytes(),
            available_bytes=available_memory(self._cgroups, self._root),
        )

    def rest_s(self, share: float = 0.02) -> float:
        """Seconds to wait after the last snapshot to stay below a share of one core."""
        return self._cost_ns / _SECOND / share

    def _read_cpus(self) -> tuple[int | None, int | None, int | None]:
        """Idle and stolen time of the CPUs that the trial may use, and how many those are."""
        if not self._linux:
            idle, count = portable.cpu_times() or (None, None)
            return idle, None, count
        ticks = parse_cpu_ticks(read_text(self._root / "proc/stat") or "")
        status = read_text(self._root / "proc" / str(self._pid) / "status") or ""
        mask = parse_allowed_cpus(status)
        allowed = [ticks[cpu] for cpu in mask if cpu in ticks] if mask else list(ticks.values())
        if not any(_total(cpu) for cpu in allowed):
            return None, None, len(allowed) or None
        tick_ns = _SECOND // os.sysconf("SC_CLK_TCK")
        idle, stolen = (sum(cpu.idle for cpu in allowed), sum(cpu.stolen for cpu in allowed))
        return idle * tick_ns, stolen * tick_ns, len(allowed)

    def _read_pressure(self, name: str) -> int | None:
        return parse_pressure(read_text(self._root / "proc/pressure" / name) or "")

    def _watch_memory(self) -> None:
        pss = self._tree.pss_bytes()
        if pss is not None:
            self._pss_peak = max(pss, self._pss_peak or 0)
        shm = read_shared_memory(self._root)
        if shm is not None and self._shm_base is not None:
            growth = max(0, shm.used_bytes - self._shm_base)
            self._shm_peak = max(growth, self._shm_peak or 0)

    def _reasons(self, snapshot: Snapshot) -> dict[str, str]:
        """Why figures are missing, by the names that ``records.Usage`` has for them."""
        if not self._linux:
            missing = dict.fromkeys(_LINUX_FIELDS, _NO_PROC)
        else:
            missing = _linux_reasons(snapshot)
        if snapshot.idle_ns is None:
            uncounted = "the system doesn't count idle time"
            missing["available_cpu_cores"] = missing["other_cpu_cores"] = uncounted
            missing.setdefault("stolen_cpu_cores", uncounted)
        if not snapshot.tree.processes:
            missing["own_cpu_cores"] = f"process {self._pid} had ended"
        return missing


_LINUX_FIELDS = (
    "stolen_cpu_cores",
    "other_runnable",
    "run_queue_wait_fraction",
    "throttled_fraction",
    "cpu_pressure_fraction",
    "io_pressure_fraction",
    "memory_pressure_fraction",
    "pss_peak_bytes",
    "shm_peak_bytes",
    "read_bytes_per_s",
    "cache_hit_fraction",
)


def _linux_reasons(snapshot: Snapshot) -> dict[str, str]:
    tree = snapshot.tree
    no_psi = "this kernel has no pressure figures (/proc/pressure)"
    no_io = "the system doesn't report what these processes read (/proc/PID/io)"
    reasons = {
        "other_runnable": (tree.wait_ns, "this kernel has no /proc/PID/task/*/schedstat"),
        "run_queue_wait_fraction": (tree.wait_ns, "this kernel has no /proc/PID/task/*/schedstat"),
        "throttled_fraction": (
            snapshot.throttled_ns,
            "no CPU controller is visible in the process's cgroups",
        ),
        "cpu_pressure_fraction": (snapshot.cpu_pressure_us, no_psi),
        "io_pressure_fraction": (snapshot.io_pressure_us, no_psi),
        "memory_pressure_fraction": (snapshot.memory_pressure_us, no_psi),
        "pss_peak_bytes": (
            snapshot.pss_peak_bytes,
            "memory was not looked at, or /proc/PID/smaps_rollup can't be read",
        ),
        "shm_peak_bytes": (
            snapshot.shm_peak_bytes,
            "memory was not looked at, or there is no /dev/shm",
        ),
        "read_bytes_per_s": (tree.read_bytes, no_io),
        "cache_hit_fraction": (tree.read_bytes, no_io),
    }
    return {name: reason for name, (figure, reason) in reasons.items() if figure is None}


def _total(cpu: CpuTicks) -> int:
    return cpu.busy + cpu.idle + cpu.stolen
