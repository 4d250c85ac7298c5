r"""Which control groups hold a process, and what they allow it: cgroup v1, v2 and both at once.

A limit binds on every level: the tightest one over a process's own cgroup and all its ancestors
counts. In a container ``/proc/self/cgroup`` may name a path of the host that isn't there under
the mount; the mount's root in ``/proc/self/mountinfo`` says which part of the path is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from dlprof.files import is_there
from dlprof.machine.procfs import parse_counters, parse_cpu_list, parse_int, read_int, read_text


class CgroupMount(NamedTuple):
    """A cgroup file system: its controllers (v1's; none for v2), what of it is visible, where."""

    controllers: frozenset[str]
    root: str
    mount_point: str


class Level(NamedTuple):
    """A cgroup directory that binds a process; its path in the hierarchy is its name."""

    version: Literal[1, 2]
    directory: Path
    name: str


class Cgroups(NamedTuple):
    """The levels that bind a process, its own first: quotas, CPUs, memory, reads, threads."""

    cpu: tuple[Level, ...]
    cpuset: tuple[Level, ...]
    memory: tuple[Level, ...]
    io: tuple[Level, ...] = ()
    pids: tuple[Level, ...] = ()


class Limit(NamedTuple):
    """The tightest limit over all levels (cores, bytes, bytes/s), and the path of who set it."""

    amount: float
    cgroup: str


def parse_memberships(text: str) -> list[tuple[frozenset[str], str]]:
    """The lines ``ID:CONTROLLERS:PATH`` of ``/proc/PID/cgroup``; no controllers is v2's."""
    lines = re.findall(r"^[^:\n]*:([^:\n]*):(/.*)$", text, re.MULTILINE)
    return [(frozenset(filter(None, names.split(","))), path) for names, path in lines]


def parse_mounts(text: str) -> list[CgroupMount]:
    """The cgroup mounts of ``/proc/PID/mountinfo`` (see proc(5))."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        mount, kind = left.split(" "), right.split(" ")
        if len(mount) >= 5 and len(kind) >= 3 and kind[0] in {"cgroup", "cgroup2"}:
            controllers = frozenset(kind[2].split(",") if kind[0] == "cgroup" else ())
            found.append(CgroupMount(controllers, _unescape(mount[3]), _unescape(mount[4])))
    return found


def parse_cpu_max(text: str) -> float | None:
    r"""Cores that v2's ``cpu.max`` allows; ``None`` for no limit.

    >>> parse_cpu_max("150000 100000\n")
    1.5
    """
    first, _, second = text.strip().partition(" ")
    quota, period = parse_int(first), parse_int(second)
    return quota / period if quota and period and quota > 0 and period > 0 else None


def read_cgroups(pid: int | None = None, root: Path = Path("/")) -> Cgroups:
    """The levels that bind a process (this one for ``None``), as far as they are visible.

    Here, that is: what a container has mounted is elsewhere for who looks at it from outside.
    """
    proc = root / "proc"
    memberships = parse_memberships(read_text(proc / str(pid or "self") / "cgroup"))
    mounts = parse_mounts(read_text(proc / "self/mountinfo"))
    names = ("cpu", "cpuset", "memory", "blkio", "pids")  # the controllers', as the fields come
    return Cgroups(*(_levels(name, memberships, mounts, root) for name in names))


def cpu_quota(cgroups: Cgroups) -> Limit | None:
    """The tightest CPU quota in cores; ``None`` if no level sets one."""
    return _tightest((level, _quota_cores(level)) for level in cgroups.cpu)


def memory_limit(cgroups: Cgroups) -> Limit | None:
    """The tightest memory limit in bytes; ``None`` if no level sets one."""
    return _tightest((level, _memory_bytes(level)) for level in cgroups.memory)


def read_limit(cgroups: Cgroups) -> Limit | None:
    """The tightest limit of reads from a device in bytes/s; ``None`` if no level sets one."""
    return _tightest((level, _read_bytes_per_s(level)) for level in cgroups.io)


def memory_headroom(cgroups: Cgroups) -> int | None:
    """Bytes that can still be had under every level's limit; ``None`` if none sets one.

    Page cache that hasn't been used lately counts as free: the kernel drops it first.
    """
    rooms = []
    for level in cgroups.memory:
        limit = _memory_bytes(level)
        name = "memory.usage_in_bytes" if level.version == 1 else "memory.current"
        used = read_int(level.directory / name)
        if limit is not None and used is not None:
            counters = parse_counters(read_text(level.directory / "memory.stat"))
            idle = counters.get("total_inactive_file", counters.get("inactive_file", 0))
            rooms.append(max(0, limit - max(0, used - idle)))
    return min(rooms, default=None)


def threads_left(cgroups: Cgroups) -> int | None:
    """Threads, a process's first among them, that may be started yet; ``None`` for any number."""
    rooms = []
    for level in cgroups.pids:
        limit, used = (read_int(level.directory / f"pids.{name}") for name in ("max", "current"))
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used))
    return min(rooms, default=None)


def allowed_cpus(cgroups: Cgroups) -> frozenset[int] | None:
    """CPUs that the process's cpuset allows; ``None`` where no cpuset is visible."""
    for level in cgroups.cpuset:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpus = parse_cpu_list(read_text(level.directory / name))
            if cpus:
                return cpus
    return None


def throttled_ns(cgroups: Cgroups) -> dict[Path, int] | None:
    """Time for which each level's quota held CPUs back, summed over CPUs, by directory.

    Levels are kept apart, since several may hold back the same CPU at the same time. ``None``
    where no level counts it: the CPU controller is off, or not visible.
    """
    found = {}
    for level in cgroups.cpu:
        counters = parse_counters(read_text(level.directory / "cpu.stat"))
        if level.version == 1 and "throttled_time" in counters:
            found[level.directory] = counters["throttled_time"]
        elif level.version == 2 and "throttled_usec" in counters:
            found[level.directory] = counters["throttled_usec"] * 1000
    return found or None


def oom_kills(cgroups: Cgroups, root: Path = Path("/")) -> int | None:
    """Processes that the kernel has killed for memory, as close to the process as is counted.

    The process's own cgroup where it counts them (any kind of out-of-memory kill of a member),
    else the whole machine. Only its growth means something.
    """
    for level in cgroups.memory[:1]:
        name = "memory.oom_control" if level.version == 1 else "memory.events"
        counters = parse_counters(read_text(level.directory / name))
        if "oom_kill" in counters:
            return counters["oom_kill"]
    return parse_counters(read_text(root / "proc/vmstat")).get("oom_kill")


def _tightest(limits: Iterable[tuple[Level, float | None]]) -> Limit | None:
    """The smallest limit; of equal ones the outermost, which the others may only repeat."""
    found = [Limit(amount=amount, cgroup=level.name) for level, amount in limits if amount]
    return min(reversed(found), key=lambda limit: limit.amount, default=None)


def _quota_cores(level: Level) -> float | None:
    if level.version == 2:
        return parse_cpu_max(read_text(level.directory / "cpu.max"))
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return parse_cpu_max(" ".join(read_text(level.directory / name) for name in names))


def _read_bytes_per_s(level: Level) -> float | None:
    """Of the device that has least: which one the data is on isn't known."""
    name, line = "io.max", r"\brbps=(\d+)"  # 8:0 rbps=1048576 wbps=max riops=max wiops=max
    if level.version == 1:
        name, line = "blkio.throttle.read_bps_device", r"\S+ (\d+)"
    found = re.findall(line, read_text(level.directory / name))
    return min(map(float, found), default=None)


def _memory_bytes(level: Level) -> int | None:
    if level.version == 2:
        # Above memory.high a group is slowed until it is below again: as good as a limit.
        limits = [read_int(level.directory / name) for name in ("memory.max", "memory.high")]
    else:
        counters = parse_counters(read_text(level.directory / "memory.stat"))
        # The hierarchical limit knows of ancestors that a container can't see.
        limits = [
            read_int(level.directory / "memory.limit_in_bytes"),
            counters.get("hierarchical_memory_limit"),
        ]
    # cgroup v1 writes "no limit" as the largest multiple of the page size in 63 bits.
    return min((limit for limit in limits if limit and limit < (1 << 60)), default=None)


def _levels(
    controller: str,
    memberships: Sequence[tuple[frozenset[str], str]],
    mounts: Sequence[CgroupMount],
    root: Path,
) -> tuple[Level, ...]:
    """The levels of the v1 hierarchy that has the controller, and those of v2's.

    On a hybrid system only one of the two has it; the other's directories lack its files.
    """
    levels: list[Level] = []
    for controllers, path in memberships:
        if controllers and controller not in controllers:
            continue
        candidates = [
            mount
            for mount in mounts
            if (controller in mount.controllers if controllers else not mount.controllers)
        ]
        if candidates:
            # The mount that shows most of the path's ancestors; any if none shows the path.
            showing = [each for each in candidates if _below(path, each.root) is not None]
            widest = min(showing or candidates, key=lambda mount: len(mount.root))
            levels += _ancestry(path, widest, root)
    return tuple(levels)


def _below(path: str, top: str) -> PurePosixPath | None:
    """The rest of a path below ``top``; ``None`` if it isn't below, or outside the namespace."""
    if ".." in PurePosixPath(path).parts or not PurePosixPath(path).is_relative_to(top):
        return None
    return PurePosixPath(path).relative_to(top)


def _ancestry(path: str, mount: CgroupMount, root: Path) -> list[Level]:
    """The visible directories from the process's own up to the mount's root."""
    top = root / mount.mount_point.lstrip("/")
    rest = _below(path, mount.root)
    if rest is None or not is_there(top / rest):
        rest = PurePosixPath()
    return [
        Level(
            version=1 if mount.controllers else 2,
            directory=top / part,
            name=str(PurePosixPath(mount.root) / part),
        )
        for part in (rest, *rest.parents)
    ]


def _unescape(text: str) -> str:
    """Undo the octal escapes that the kernel writes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
