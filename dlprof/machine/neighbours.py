"""Who else uses the machine: two looks at every process that can be seen, summed per user."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from dlprof.late import Shown
from dlprof.machine.cgroups import cpu_quota, memory_limit, read_cgroups
from dlprof.machine.core_speed import SpeedProbe
from dlprof.machine.gpus import GpuNeighbours, Gpus, asked
from dlprof.machine.inspection import inspect_machine
from dlprof.machine.procfs import (
    CpuTicks,
    ProcessStat,
    parse_allowed_cpus,
    parse_cpu_ticks,
    parse_load,
    parse_owner,
    parse_runnable,
    read_pressures,
    read_text,
    usable_cpus,
)
from dlprof.machine.snapshot import NO_PSI, pressure_fractions
from dlprof.machine.tree import scan_processes
from dlprof.records import Machine
from dlprof.units import watching_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserCpu:
    """What one user's processes used; never which programs."""

    user: str  # the user's name, or number where it has no name here
    cpu_cores: float  # CPU seconds per second
    processes: int  # how many of the user's processes used the CPU


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Who used the machine while it was watched. ``None``: the system doesn't report it."""

    watched_s: float  # for how long
    busy_cores: float | None = None  # cores that were busy, everyone's together, the whole machine
    idle_cores: float | None = None  # cores that were idle
    # Those of them that this process may use, a CPU quota left aside.
    free_cores: float | None = None
    stolen_cores: float | None = None  # cores that a hypervisor gave to other machines
    # Threads that ran or were queued for a core at the end, the watcher left out.
    runnable: int | None = None
    # Load average of the last minute; waiting for storage counts as well.
    load_1m: float | None = None
    # Share of time in which some task was queued for a core.
    cpu_pressure_fraction: float | None = None
    io_pressure_fraction: float | None = None  # share of time in which some task waited for storage
    # Share of time in which some task waited for memory.
    memory_pressure_fraction: float | None = None
    users: tuple[UserCpu, ...] = ()  # CPU per user, most first; those below 0.01 cores are left out
    # Cores busy with what can't be seen from here: other containers, processes hidden from this
    # user, or ones that ended unseen.
    unseen_cores: float | None = None
    gpus: tuple[GpuNeighbours, ...] = ()  # who is on the GPUs
    # Reasons for fields that are ``None``.
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessScan:
    """Totals at one moment. ``None``, or empty: the system doesn't report it.

    Of processes the owner and figures, by process id and start time; the CPUs ``allowed`` to this
    one; pressures by resource; threads ``runnable``, the watcher left out.
    """

    time_ns: int
    cpus: Mapping[int, CpuTicks]
    allowed: frozenset[int]
    processes: Mapping[tuple[int, int], tuple[int, ProcessStat]]
    pressures_us: Mapping[str, int | None]
    runnable: int | None
    load_1m: float | None


def watch(
    seconds: float,
    *,
    root: Path = Path("/"),
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Neighbours:
    """Look twice, and say what happened between."""
    first = look(root=root, clock=clock)
    sleep(seconds)
    return between(first, look(root=root, clock=clock))


def look(*, root: Path = Path("/"), clock: Callable[[], int] = time.monotonic_ns) -> ProcessScan:
    """Read every process and the machine's totals once; 10 µs per process, or 40 of root's."""
    stat = read_text(root / "proc/stat")
    cpus = parse_cpu_ticks(stat)
    mask = parse_allowed_cpus(read_text(root / "proc/self/status"))
    load, proc = read_text(root / "proc/loadavg"), str(root / "proc")
    running = parse_runnable(load)
    processes = {}
    for pid, process in scan_processes(proc):
        with contextlib.suppress(OSError):
            owner = os.stat(f"{proc}/{pid}").st_uid
            # The folder is root's, too, of one that nobody may look into (ssh-agent).
            owner = owner or parse_owner(read_text(f"{proc}/{pid}/status")) or 0
            processes[pid, process.start_ticks] = owner, process
    return ProcessScan(
        time_ns=clock(),
        cpus=cpus,
        allowed=usable_cpus(mask, cpus.keys()),
        processes=processes,
        pressures_us=read_pressures(root),
        runnable=None if running is None else max(0, running - 1),
        load_1m=parse_load(load),
    )


def between(
    first: ProcessScan, last: ProcessScan, *, user_name: Callable[[int], str] | None = None
) -> Neighbours:
    """Who used the machine between two looks."""
    window_ns = last.time_ns - first.time_ns
    if window_ns <= 0:
        return Neighbours(watched_s=0.0, unavailable=dict.fromkeys(_FIELDS, "no time passed"))
    kinds = ("busy", "idle", "stolen")
    busy, idle, stolen = (_machine_cores(first, last, kind, last.cpus.keys()) for kind in kinds)
    used = _cores_by_user(first, last, window_ns, busy)
    name = user_name or name_of_user
    users = [
        UserCpu(user=name(user), cpu_cores=cores, processes=processes)
        for user, (cores, processes) in used.items()
        if cores >= 0.01  # fewer are the noise of the clock ticks
    ]
    seen = sum(cores for cores, _ in used.values())
    neighbours = Neighbours(
        watched_s=window_ns / 1e9,
        busy_cores=busy,
        idle_cores=idle,
        free_cores=_machine_cores(first, last, "idle", last.allowed),
        stolen_cores=stolen,
        runnable=last.runnable,
        load_1m=last.load_1m,
        users=tuple(sorted(users, key=lambda user: (-user.cpu_cores, user.user))),
        unseen_cores=None if busy is None else max(0.0, busy - seen),
        **pressure_fractions(first.pressures_us, last.pressures_us, window_ns),
    )
    missing = {name: why for name, why in _FIELDS.items() if getattr(neighbours, name) is None}
    return dataclasses.replace(neighbours, unavailable=missing)


_NO_STAT = "the system doesn't count it (/proc/stat)"
_FIELDS = {
    **dict.fromkeys(("busy_cores", "idle_cores", "free_cores", "stolen_cores"), _NO_STAT),
    "unseen_cores": _NO_STAT,
    **dict.fromkeys(("runnable", "load_1m"), "the system doesn't report it (no /proc/loadavg)"),
    **{f"{name}_pressure_fraction": NO_PSI for name in ("cpu", "io", "memory")},
}


def _cores_by_user(
    first: ProcessScan, last: ProcessScan, window_ns: int, most: float | None
) -> dict[int, tuple[float, int]]:
    """Cores and busy processes by user, ``most`` in all.

    Of a process that started meanwhile all its time counts. What one that ended had used since
    the first look is in the account of its children that its parent keeps, or whoever took that
    one's place: the first process has more on it then than was used meanwhile, hence ``most``.
    """
    gone = {key: first.processes[key] for key in first.processes.keys() - last.processes.keys()}
    parents = {pid: process.parent for (pid, _), (_, process) in gone.items()}
    ended: dict[int, int] = defaultdict(int)
    for _, process in gone.values():
        heir = process.parent
        for _ in parents:  # no further, should ids that are used again form a ring
            if heir not in parents:
                break
            heir = parents[heir]
        ended[heir] += process.cpu_ticks + process.reaped_ticks
    ticks: dict[int, int] = defaultdict(int)
    busy: dict[int, int] = defaultdict(int)
    for (pid, start), (user, now) in last.processes.items():
        _, before = first.processes.get((pid, start), (user, None))
        own, children = now.cpu_ticks, now.reaped_ticks
        if before is not None:
            own, children = own - before.cpu_ticks, children - before.reaped_ticks
        used = max(0, own) + max(0, children - ended[pid])
        ticks[user] += used
        busy[user] += used > 0
    cores = {user: _to_cores(total, window_ns) for user, total in ticks.items()}
    seen = math.fsum(cores.values())
    share = 1.0 if most is None or seen <= most else most / seen
    return {user: (share * mine, busy[user]) for user, mine in cores.items()}


def _machine_cores(
    first: ProcessScan, last: ProcessScan, kind: str, cpus: Collection[int]
) -> float | None:
    """Cores that one kind of ticks makes, of CPUs that were there at both looks."""
    both = ((first.cpus[cpu], last.cpus[cpu]) for cpu in cpus if cpu in first.cpus)
    there = [(then, now) for then, now in both if now.are_counted]
    grown = sum(max(0, getattr(now, kind) - getattr(then, kind)) for then, now in there)
    return _to_cores(grown, last.time_ns - first.time_ns) if there else None


def _to_cores(ticks: int, window_ns: int) -> float:
    return max(0, ticks) * (1e9 / os.sysconf("SC_CLK_TCK")) / window_ns


def name_of_user(number: int) -> str:
    """A user's name, or the number where it has none here."""
    try:
        return str(importlib.import_module("pwd").getpwuid(number).pw_name)
    except (ImportError, KeyError):
        return str(number)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Shown):
    """A machine and its users at one time."""

    machine: Machine  # what it offers, the speed of its cores while it was watched included
    # The cgroup that sets ``machine.quota_cores``; ``None`` without a quota.
    quota_cgroup: str | None
    memory_limit_cgroup: str | None  # the cgroup that sets ``machine.memory_limit_bytes``
    neighbours: Neighbours  # who used it while it was watched


def survey(
    seconds: float,
    *,
    root: Path = Path("/"),
    gpus: Gpus | None = None,
    speed: SpeedProbe | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Overview:
    """Inspect the machine and watch it for a while."""
    watched_s, probe = watching_s(seconds), speed or SpeedProbe(root)
    with asked(gpus) as reader:
        machine = inspect_machine(root, gpus=reader)
        probe.start()
        try:
            neighbours = watch(watched_s, root=root, sleep=sleep)
        finally:
            probe.stop()
        neighbours = dataclasses.replace(neighbours, gpus=reader.neighbours())
    found, missing = probe.over_all, {**machine.unavailable, "core_speed": probe.unavailable}
    if found is not None:
        del missing["core_speed"]
    machine = dataclasses.replace(machine, core_speed=found, unavailable=missing)
    cgroups = read_cgroups(None, root)
    quota, limit = cpu_quota(cgroups), memory_limit(cgroups)
    return Overview(
        machine=machine,
        quota_cgroup=None if quota is None else quota.cgroup,
        memory_limit_cgroup=None if limit is None else limit.cgroup,
        neighbours=neighbours,
    )
