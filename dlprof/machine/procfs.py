r"""Linux's ``/proc`` texts: read at little cost, and parsed; ``None`` for what isn't there.

Nothing here raises, whatever a text says, and no parser does I/O. The formats are those of the
kernel's ``Documentation/filesystems/proc.rst``, ``Documentation/scheduler/sched-stats.rst`` and
``Documentation/accounting/psi.rst``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class CpuInfo(NamedTuple):
    """What ``/proc/cpuinfo`` says: an empty model or ``None`` cores where it doesn't.

    Cores are different pairs of socket and core. ``guest_mhz`` is a virtual machine's clock rate,
    which is that of its host's CPU without boost; others' is that of the moment, and ``None``.
    """

    model: str
    physical_cores: int | None
    guest_mhz: float | None = None


class CpuTicks(NamedTuple):
    """One CPU's line of ``/proc/stat``, in clock ticks since boot.

    Guests are busy, who waits for storage is idle, and what a hypervisor took while something here
    wanted to run is stolen.
    """

    busy: int
    idle: int
    stolen: int

    @property
    def are_counted(self) -> bool:
        """Whether the system counts them: where it doesn't (gVisor) all are 0."""
        return self.busy + self.idle + self.stolen > 0


class ProcessStat(NamedTuple):
    """The fields of ``/proc/PID/stat`` that matter here.

    ``cpu_ticks`` are user and system time of all threads, ended ones too, ``reaped_ticks`` those of
    ended children that it has waited for, and of theirs. Id and ``start_ticks`` name a process for
    good. ``name`` is its main thread's, 15 characters at most; ``state`` one letter: ``R`` runs or
    is runnable, ``D`` waits for a disk, ``Z`` has ended.
    """

    parent: int
    cpu_ticks: int
    reaped_ticks: int
    start_ticks: int
    name: str = ""
    state: str = ""
    threads: int = 1
    session: int = 0


class SchedStat(NamedTuple):
    """A thread's time on a core, and its time runnable but waiting for one."""

    run_ns: int
    wait_ns: int


class IoCounters(NamedTuple):
    """The fields of ``/proc/PID/io`` that matter here; a reaped child's are in its parent's.

    Bytes asked for by ``read``, fetched from storage, and given to ``write``, and the calls of
    these two and their kin; pipes and sockets count too. Then bytes of files that are to be stored.
    """

    read_chars: int
    read_bytes: int
    written_chars: int = 0
    reads: int = 0
    writes: int = 0
    write_bytes: int = 0


def parse_int(word: str) -> int | None:
    """An integer of plain digits; ``int`` alone would take ``1_0``, ``٣`` and 10,000 digits."""
    word = word.strip()
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        return None
    return int(word)


def parse_cpu_list(text: str) -> frozenset[int] | None:
    r"""CPU numbers of a list such as ``0-3,8``; ``None`` if it isn't one.

    >>> sorted(parse_cpu_list("0-2,8\n"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not part.strip():
            continue
        low, high = parse_int(first), parse_int(last if dash else first)
        # The largest CPU number worth believing; Linux is built for at most 8192 CPUs today. Bounds
        # what a broken text such as "0-99999999999" can cost.
        if low is None or high is None or not 0 <= low <= high < 65536:
            return None
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def parse_cpuinfo(text: str) -> CpuInfo:
    """The CPU's model and cores from ``/proc/cpuinfo``, of any architecture."""
    first: dict[str, str] = {}
    cores: set[tuple[str, str]] = set()
    for block in text.split("\n\n"):
        fields = _fields(block)
        first = {**fields, **first}
        if "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    guest_mhz = None
    if "hypervisor" in first.get("flags", "").split():
        with contextlib.suppress(ValueError):
            guest_mhz = float(first.get("cpu MHz", ""))
    return CpuInfo(
        model=_cpu_model(first),
        physical_cores=len(cores) or None,
        guest_mhz=guest_mhz,
    )


def _cpu_model(fields: dict[str, str]) -> str:
    for key in ("model name", "Model", "cpu model", "cpu", "Hardware", "uarch"):
        if fields.get(key):
            return fields[key]
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer and part:
        return f"ARM implementer {implementer} part {part}"
    return ""


def parse_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes, by its own names (``MemTotal``, ``MemAvailable`` ...)."""
    sizes: dict[str, int] = {}
    for key, value in _fields(text).items():
        number, _, unit = value.partition(" ")
        size = parse_int(number)
        if size is not None:
            sizes[key] = size * 1024 if unit == "kB" else size
    return sizes


def parse_cpu_ticks(text: str) -> dict[int, CpuTicks]:
    """Ticks per CPU number from ``/proc/stat``."""
    ticks: dict[int, CpuTicks] = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break  # The CPUs come first; the interrupts after them are thousands of columns.
        name, *columns = line.split()
        cpu = parse_int(name.removeprefix("cpu"))
        values = _parse_ints(columns)
        if cpu is None or values is None or len(values) < 4:
            continue
        user, nice, system, idle, iowait, irq, softirq, steal = (values + [0] * 4)[:8]
        ticks[cpu] = CpuTicks(
            busy=user + nice + system + irq + softirq, idle=idle + iowait, stolen=steal
        )
    return ticks


def parse_process_stat(text: str) -> ProcessStat | None:
    """The figures of a ``/proc/PID/stat``.

    The second field is the program's name in parentheses and may hold spaces and parentheses of
    its own, so that columns are counted from the last ``)``.
    """
    head, _, rest = text.rpartition(")")
    columns = rest.split()
    values = _parse_ints(columns[1:20])
    if values is None or len(values) < 19:
        return None
    user, system, reaped_user, reaped_system = values[10:14]
    return ProcessStat(
        parent=values[0],
        cpu_ticks=user + system,
        # The kernel shows these two as signed; a process can't have used less than nothing.
        reaped_ticks=max(0, reaped_user) + max(0, reaped_system),
        start_ticks=values[18],
        name=head.partition("(")[2],
        state=columns[0],
        threads=values[16],
        session=values[2],
    )


def parse_schedstat(text: str) -> SchedStat | None:
    r"""A thread's time on a core and in the run queue.

    >>> parse_schedstat("941011 145265 2\n")
    SchedStat(run_ns=941011, wait_ns=145265)
    """
    values = _parse_ints(text.split()[:3])
    # Three zeros are a kernel's that keeps no such account, or a thread's that never ran.
    if values is None or len(values) < 2 or not any(values):
        return None
    return SchedStat(run_ns=values[0], wait_ns=values[1])


def parse_io(text: str) -> IoCounters | None:
    """What a process has read and written, from ``/proc/PID/io``."""
    fields = _fields(text)
    names = ("rchar", "read_bytes", "wchar", "syscr", "syscw", "write_bytes")
    found = [parse_int(fields.get(name, "")) for name in names]
    return None if None in found[:2] else IoCounters(*(figure or 0 for figure in found))


def parse_pss(text: str) -> int | None:
    """Proportional set size in bytes from ``/proc/PID/smaps_rollup``."""
    return parse_meminfo(text).get("Pss")


def parse_statm(text: str) -> tuple[int, int] | None:
    """Resident pages, and those of them that are shared, from ``/proc/PID/statm``."""
    values = _parse_ints(text.split()[:3]) or []
    return (values[1], values[2]) if len(values) == 3 else None


def parse_pressure(text: str) -> int | None:
    r"""Microseconds in which some task was held up, from a file of ``/proc/pressure``.

    >>> parse_pressure("some avg10=3.38 avg60=1.15 avg300=0.35 total=3926113\n")
    3926113
    """
    found = re.search(r"^some .*\btotal=(\d{1,20})$", text, re.ASCII | re.MULTILINE)
    return int(found[1]) if found else None


def parse_allowed_cpus(text: str) -> frozenset[int] | None:
    """The affinity mask, cpuset included, from ``/proc/PID/status``."""
    allowed = _fields(text).get("Cpus_allowed_list")
    return None if allowed is None else parse_cpu_list(allowed)


def parse_parent(text: str) -> int | None:
    """The parent's id, from ``/proc/PID/status``; 0 above the first of a PID namespace."""
    parent = _fields(text).get("PPid", "")
    return int(parent) if parent.isdecimal() else None


def parse_owner(text: str) -> int | None:
    """The user in whose name a process runs, from ``/proc/PID/status``: its effective id.

    The folder ``/proc/PID`` itself may be root's, whoever that is.
    """
    ids = _fields(text).get("Uid", "").split()
    return int(ids[1]) if len(ids) > 1 and ids[1].isdecimal() else None


def usable_cpus(mask: Collection[int] | None, online: Collection[int]) -> frozenset[int]:
    """The CPUs of ``/proc/stat`` that a mask allows; all of them without one.

    A mask may name CPUs that are offline. Where a container numbers its CPUs again (lxcfs), it has
    the host's numbers: others than are there, and not all of those. Whatever is there is the
    container's own then.
    """
    cpus, allowed = frozenset(online), frozenset(mask or online)
    return cpus & allowed if cpus <= allowed or allowed <= cpus else cpus


def parse_counters(text: str) -> dict[str, int]:
    """Lines of a name and a number, as in ``/proc/vmstat`` and the ``*.stat`` of cgroups."""
    lines = re.findall(r"^(\S+) (-?\d{1,20})$", text, re.ASCII | re.MULTILINE)
    return {name: int(number) for name, number in lines}


def parse_load(text: str) -> float | None:
    """The load average of the last minute, from ``/proc/loadavg``."""
    found = re.match(r"\s*\d{1,20}\.\d+(?!\S)", text, re.ASCII)
    return float(found[0]) if found else None


def parse_runnable(text: str) -> int | None:
    """Threads of the whole machine that run or wait for a core, from ``/proc/loadavg``.

    Who reads it runs, so that 0 is a system's that doesn't count them (gVisor).
    """
    words = text.split()
    return parse_int(words[3].partition("/")[0]) or None if len(words) > 3 else None


def parse_switches(text: str) -> tuple[int, int]:
    """How often a thread let go of its core, and was made to, from its ``status``; 0 if unknown."""
    fields, names = _fields(text), ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    own, forced = (parse_int(fields.get(name, "")) or 0 for name in names)
    return own, forced


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _parse_ints(words: list[str]) -> list[int] | None:
    values = [parse_int(word) for word in words]
    return [value for value in values if value is not None] if None not in values else None


def read_text(path: str | Path) -> str:
    """The whole text of a file; empty where it can't be read.

    A file of ``/proc`` may vanish, or be forbidden, at any time; callers say what that means.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (OSError, ValueError):
        return ""
    try:
        chunks = []
        while chunk := os.read(descriptor, 32768):
            chunks.append(chunk)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode("utf-8", "replace")


def read_stat(folder: str) -> ProcessStat | None:
    """The figures of a process or thread by its folder in ``/proc``; ``None`` where it is gone."""
    return parse_process_stat(read_text(f"{folder}/stat"))


def list_names(path: str | Path) -> list[str]:
    """The names in a directory; empty where it can't be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """What a directory has by that name and a number, in their order."""
    names = (name.removeprefix(prefix) for name in list_names(folder) if name.startswith(prefix))
    return {n: folder / f"{prefix}{n}" for n in sorted(int(n) for n in names if n.isdecimal())}


def read_int(path: str | Path) -> int | None:
    """A file's text as an integer; ``None`` where it is missing or says something else."""
    return parse_int(read_text(path))


def read_pressures(root: Path) -> dict[str, int | None]:
    """Microseconds in which some task was held up for want of each resource (PSI)."""
    places = {name: root / "proc/pressure" / name for name in ("cpu", "io", "memory")}
    return {name: parse_pressure(read_text(place)) for name, place in places.items()}
