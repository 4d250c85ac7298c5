"""What a process and all its descendants have used, read again and again while they come and go.

Totals never go backwards. What ended processes and threads had used stays counted: a thread's own
figures are kept, and of a process that its parent has waited for, the kernel has the exact sum.
Where there is no ``/proc`` (macOS, Windows, the BSDs) psutil says what it knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from dlprof.files import is_there
from dlprof.machine.procfs import (
    IoCounters,
    ProcessStat,
    SchedStat,
    list_names,
    parse_io,
    parse_pss,
    parse_schedstat,
    parse_statm,
    read_stat,
    read_text,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TreeUsage:
    """Totals of a process tree since its first process started. ``None``: not reported here.

    CPU time is of everything that ever was in the tree; ``run_ns`` of the threads that were seen,
    and ``wait_ns`` the time that these were runnable but waited for a core; ``first_ns`` both of
    these of the first processes alone. ``read_chars`` are bytes asked for by ``read``,
    ``read_bytes`` those fetched from storage.
    """

    processes: int
    cpu_ns: int
    run_ns: int | None
    wait_ns: int | None
    read_chars: int | None
    read_bytes: int | None
    first_ns: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Member:
    """A process as it was last seen, with its living threads by name.

    ``reaped_ns`` is the CPU time of children that it has waited for, ``ended_*`` that and the
    run-queue delay of threads that were seen and have ended.
    """

    start_ticks: int
    cpu_ns: int = 0
    reaped_ns: int = 0
    threads: dict[str, SchedStat] = dataclasses.field(default_factory=dict)
    ended_run_ns: int = 0
    ended_wait_ns: int = 0
    io: IoCounters | None = None
    children: list[int] = dataclasses.field(default_factory=list)

    @property
    def run_ns(self) -> int:
        """CPU time of the threads that were seen."""
        return self.ended_run_ns + sum(thread.run_ns for thread in self.threads.values())

    @property
    def wait_ns(self) -> int:
        """Run-queue delay of those."""
        return self.ended_wait_ns + sum(thread.wait_ns for thread in self.threads.values())

    def read(self, folder: str, stat: ProcessStat, *, lists_children: bool = False) -> None:
        """See what it has used by now."""
        threads: dict[str, SchedStat] = {}
        self.children = []
        for name in list_names(f"{folder}/task"):
            thread = parse_schedstat(read_text(f"{folder}/task/{name}/schedstat"))
            if thread is not None:
                threads[name] = thread
            if lists_children:
                children = read_text(f"{folder}/task/{name}/children")
                self.children += [int(child) for child in children.split() if child.isdecimal()]
        for name, last in self.threads.items():
            now = threads.get(name)
            if now is None or now.run_ns < last.run_ns:
                self.ended_run_ns += last.run_ns
                self.ended_wait_ns += last.wait_ns
        self.threads = threads
        self.io = parse_io(read_text(f"{folder}/io")) or self.io
        # Threads report nanoseconds; the process reports ticks, but of threads never seen too.
        tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self.cpu_ns = max(self.cpu_ns, self.run_ns, stat.cpu_ticks * tick_ns)
        self.reaped_ns = max(self.reaped_ns, stat.reaped_ticks * tick_ns)


def member_of(folder: str) -> Member | None:
    """What one process, by its folder in ``/proc``, has used so far; ``None`` where it is gone."""
    stat = read_stat(folder)
    if stat is None:
        return None
    member = Member(start_ticks=stat.start_ticks)
    member.read(folder, stat)
    return member


class ProcessTree:
    """Reads the tree of a first process, and those beside it, from Linux's ``/proc``."""

    def __init__(self, pid: int, *, beside: Sequence[int] = (), root: Path = Path("/")) -> None:
        self._first = (*beside, pid)
        self._proc = f"{root}/proc".replace("//", "/")
        self._members: dict[int, Member] = {}
        self._lists_children = is_there(f"{self._proc}/{pid}/task/{pid}/children")
        self._unsettled_ns = self._gone_run_ns = self._gone_wait_ns = 0
        self._read_chars = self._read_bytes = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that were alive at the last reading."""
        return tuple(self._members)

    def member(self, pid: int) -> Member | None:
        """One of these as of then, a copy; ``None`` for one that isn't among them."""
        member = self._members.get(pid)
        return None if member is None else dataclasses.replace(member)

    def read(self) -> TreeUsage:
        """Read every process of the tree once."""
        before = {pid: member.reaped_ns for pid, member in self._members.items()}
        members = self._walk()
        gone = [member for pid, member in self._members.items() if members.get(pid) is not member]
        self._settle(before, members, gone)
        self._members = members
        alive = members.values()
        known = any(member.threads for member in alive) or bool(self._gone_run_ns)
        first = [members[pid] for pid in self._first if pid in members]
        # A reaped child's counters are in its parent's, so a plain sum loses none of them.
        io = [member.io for member in alive if member.io is not None]
        self._read_chars = max(self._read_chars, sum(each.read_chars for each in io))
        self._read_bytes = max(self._read_bytes, sum(each.read_bytes for each in io))
        has_io = bool(io) or self._read_chars > 0
        return TreeUsage(
            processes=len(members),
            cpu_ns=self._unsettled_ns + sum(m.cpu_ns + m.reaped_ns for m in alive),
            run_ns=self._gone_run_ns + sum(m.run_ns for m in alive) if known else None,
            wait_ns=self._gone_wait_ns + sum(m.wait_ns for m in alive) if known else None,
            first_ns=sum(m.run_ns + m.wait_ns for m in first) if known and first else None,
            read_chars=self._read_chars if has_io else None,
            read_bytes=self._read_bytes if has_io else None,
        )

    def pss_bytes(self) -> int | None:
        """Proportional set size of the tree as of the last reading: 1-24 ms a process."""
        sizes = [
            parse_pss(text)
            for pid in self._members
            if (text := read_text(f"{self._proc}/{pid}/smaps_rollup"))
        ]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def private_bytes(self) -> int | None:
        """Resident memory of the tree that no file and no shared memory backs; cheap.

        Pages that children share with their parent since a fork count in each of them.
        """
        sizes = [parse_statm(read_text(f"{self._proc}/{pid}/statm")) for pid in self._members]
        known = [resident - shared for resident, shared in filter(None, sizes)]
        return os.sysconf("SC_PAGE_SIZE") * sum(known) if known else None

    def _walk(self) -> dict[int, Member]:
        """All processes alive: from the first down, and those known that have lost their parent."""
        children: dict[int, list[int]] = defaultdict(list)
        if not self._lists_children:  # a kernel without CONFIG_PROC_CHILDREN
            for pid, stat in scan_processes(self._proc):
                children[stat.parent].append(pid)
        members: dict[int, Member] = {}
        waiting = [(pid, True) for pid in self._members]
        waiting += [(pid, bool(self._members)) for pid in self._first]
        while waiting:
            pid, must_be_known = waiting.pop()
            if pid in members:
                continue
            folder, member = f"{self._proc}/{pid}", self._members.get(pid)
            now = read_stat(folder)
            if now is None:
                continue
            if member is None or member.start_ticks != now.start_ticks:
                if must_be_known:
                    continue
                member = Member(start_ticks=now.start_ticks)
            member.read(folder, now, lists_children=self._lists_children)
            members[pid] = member
            own = member.children if self._lists_children else children[pid]
            waiting += [(child, False) for child in own]
        return members

    def _settle(
        self, before: dict[int, int], members: dict[int, Member], gone: list[Member]
    ) -> None:
        """Keep what ended processes had used until a parent's account of its children has it.

        A parent that waits for a child gets the child's exact total, which is at least what was
        last seen of it. What nobody in the tree waits for stays counted as last seen.
        """
        for member in gone:
            self._gone_run_ns += member.run_ns
            self._gone_wait_ns += member.wait_ns
            self._unsettled_ns += member.cpu_ns + member.reaped_ns
        for pid, member in members.items():
            if pid in before and self._members.get(pid) is member:
                self._unsettled_ns -= member.reaped_ns - before[pid]
        self._unsettled_ns = max(0, self._unsettled_ns)


def scan_processes(proc: str) -> Iterator[tuple[int, ProcessStat]]:
    """Every process that can be seen."""
    for name in list_names(proc):
        if name.isdecimal():
            stat = read_stat(f"{proc}/{name}")
            if stat is not None:
                yield int(name), stat


_T = TypeVar("_T")


def _known(ask: Callable[[], _T]) -> _T | None:
    """What psutil answers; ``None`` where it doesn't know, or lacks the function on this system."""
    with contextlib.suppress(psutil.Error, AttributeError, OSError):
        return ask()
    return None


def began_at(pid: int) -> float | None:
    """When a process began, in seconds since the epoch; ``None`` where that isn't known."""
    return _known(lambda: psutil.Process(pid).create_time())


class PortableTree:
    """Reads process trees through psutil; ended processes stay counted as last seen."""

    def __init__(self, *pids: int) -> None:
        self._first = pids
        self._alive: dict[int, psutil.Process] = {}
        self._cpu_ns: dict[tuple[int, float], int] = {}

    def read(self) -> TreeUsage:
        """Read every process of the tree once."""
        self._alive = {}
        for pid in self._first:
            with contextlib.suppress(psutil.Error, OSError):  # as where /proc has processes alone
                first = psutil.Process(pid)
                family = [first, *first.children(recursive=True)]
                self._alive |= {process.pid: process for process in family}
        for process in self._alive.values():
            with contextlib.suppress(psutil.Error, OSError):
                times = process.cpu_times()
                key = (process.pid, process.create_time())
                self._cpu_ns[key] = int((times.user + times.system) * 1e9)
        return TreeUsage(
            processes=len(self._alive),
            cpu_ns=sum(self._cpu_ns.values()),
            run_ns=None,
            wait_ns=None,
            read_chars=None,
            read_bytes=None,
        )

    def pss_bytes(self) -> int | None:
        """Always ``None``: only Linux reports a proportional size."""
        return None

    def private_bytes(self) -> int | None:
        """Memory that would be free if the tree's processes ended (psutil's ``uss``)."""
        sizes = []
        for process in self._alive.values():
            with contextlib.suppress(psutil.Error, OSError):
                sizes.append(int(process.memory_full_info().uss))
        return sum(sizes) if sizes else None


def open_tree(
    pid: int, root: Path = Path("/"), beside: Sequence[int] = ()
) -> ProcessTree | PortableTree:
    """The trees of a process and of those beside it, read from ``/proc`` where there is one."""
    if has_proc(root):
        return ProcessTree(pid, beside=beside, root=root)
    return PortableTree(pid, *beside)


def has_proc(root: Path = Path("/")) -> bool:
    """Whether there is a ``/proc`` as Linux has it."""
    return is_there(root / "proc/stat")


def cpu_times() -> tuple[int, int] | None:
    """Idle nanoseconds since boot, summed over the CPUs, and their number."""
    idle = _known(lambda: [times.idle for times in psutil.cpu_times(percpu=True)])
    return None if idle is None else (int(sum(idle) * 1e9), len(idle))


def allowed_cpus(pid: int = 0) -> frozenset[int]:
    """The CPUs in a process's affinity mask, in this one's by default; none where that isn't known.

    It is not on all systems, not of all processes, and not of one that has ended.
    """
    return frozenset(_known(lambda: psutil.Process(pid or None).cpu_affinity()) or ())
