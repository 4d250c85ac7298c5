"""What the scheduler leaves a program beside others: a share for its group, however many threads.

Linux shares the cores between groups first (kernel documentation, *CFS Scheduler*, "Group scheduler
extensions"): between the cgroups of one level by their weights, and where all are in the root one,
between sessions by their nice values (sched(7), "The autogroup feature"); only within a group all
threads alike. A container, a job and a user of systemd are groups. What a group doesn't use the
others get (weighted max-min fairness, Bertsekas & Gallager, *Data Networks* 6.5). Of two cores
beside 1, 2, 4 and 8 busy sessions, 1 to 8 threads of another one got 0.83-1.00, 0.61-0.65,
0.39-0.42 and 0.29-0.35 together; by thread, eight would get 1.78, 1.60, 1.33 and 1.00
(``benchmarks/sharing.py``).
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

from dlprof.files import is_there
from dlprof.machine.cgroups import Level, cpu_quota, read_cgroups
from dlprof.machine.procfs import ProcessStat, read_int, read_text
from dlprof.machine.tree import scan_processes
from dlprof.records import Usage


class Entity(NamedTuple):
    """What shares cores with others of its level: a cgroup, a session or a process."""

    name: Hashable
    weight: float = 1.0  # over the usual


Group = tuple[Entity, ...]  # by what it is in, outermost first
Processes = Mapping[int, ProcessStat]

_IDLE_CORES = 0.02  # who uses less takes nothing that is worth to ask whose it is


class GroupShares:
    """Who shares the cores with a process and its descendants from now on, by group."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._pid = pid
        self._root = root
        self._began_s = time.monotonic()
        self._before = self._processes()

    def fair_cores(
        self, cores: int | None, usage: Usage, look: Callable[[], Processes] | None = None
    ) -> float | None:
        """Cores that the process's group gets if it wants all of them.

        Args:
            cores: Those that it may run on.
            usage: What was used of these. What no process here is seen to use, one group does, as
                from outside of a container; and what a hypervisor took nobody here has.
            look: Says which processes there are; by default a scan, 12 µs for each.

        Returns:
            ``None`` where others use none that is worth a word, or most of it in the process's own
            group, in which each thread has the same share; and where the process is gone.
        """
        stolen = usage.stolen_cpu_cores or 0.0
        most = (usage.other_cpu_cores or 0.0) - stolen
        if not cores or most < _IDLE_CORES:
            return None
        now, taken = (look or self._processes)(), dict[Group, float]()
        mine = now.get(self._pid)
        passed_s = time.monotonic() - self._began_s
        if mine is None or passed_s <= 0:
            return None
        own, ticks_per_core = {self._pid}, passed_s * os.sysconf("SC_CLK_TCK")
        for pid in sorted(now, key=lambda pid: now[pid].start_ticks):  # parents first
            if now[pid].parent in own:
                own.add(pid)
        own.add(os.getpid())  # which looks at it, or is it
        for pid, process in now.items():
            before = self._before.get(pid)
            known = before is not None and before.start_ticks == process.start_ticks
            ticks = process.cpu_ticks - (before.cpu_ticks if before and known else 0)
            if pid not in own and ticks >= _IDLE_CORES * ticks_per_core:
                group = self._group(pid, process.session)
                taken[group] = taken.get(group, 0.0) + ticks / ticks_per_core
        # On the CPUs that it may use: others may be busy elsewhere, too.
        seen = math.fsum(taken.values())
        taken = {group: each * min(1.0, most / seen) for group, each in taken.items()}
        if most > seen:
            taken[Entity("unseen"),] = most - seen
        group = self._group(self._pid, mine.session)
        beside = (each for other, each in taken.items() if other[: len(group)] == group)
        if math.fsum(beside) > most / 2:
            return None
        # What others in its group have, as if it were one more below that.
        fair = fair_share((*group, Entity(self._pid)), taken, cores - stolen)
        quota = cpu_quota(read_cgroups(self._pid, self._root))
        return fair if quota is None else min(fair, quota.amount)

    def _processes(self) -> Processes:
        """All that can be seen."""
        return dict(scan_processes(str(self._root / "proc")))

    def _group(self, pid: int, session: int) -> Group:
        """The group of a process; empty where all are in one."""
        levels = reversed(read_cgroups(pid, self._root).cpu)
        if found := tuple(filter(None, map(_entity, levels))):
            return found
        enabled = read_text(self._root / "proc/sys/kernel/sched_autogroup_enabled")
        if enabled.strip() != "1":
            return ()
        text = read_text(self._root / "proc" / str(pid) / "autogroup")
        nice = re.search(r"nice (-?\d{1,2})$", text.strip())
        return (Entity(session, 1.25 ** -int(nice[1]) if nice else 1.0),)


def _entity(level: Level) -> Entity | None:
    """A cgroup; ``None`` for the root, which a container's own may look like by name."""
    if level.version == 1:
        name, usual, is_root = "cpu.shares", 1024, is_there(level.directory / "release_agent")
    else:
        name, usual, is_root = "cpu.weight", 100, not is_there(level.directory / "cpu.weight")
    weight = (read_int(level.directory / name) or usual) / usual
    return None if is_root else Entity(level.name, weight)


def fair_share(mine: Group, used: Mapping[Group, float], cores: float) -> float:
    """Cores that one group gets if it wants all, by what others use.

    What they use is what they want, or what they get beside all others that want more.
    """
    for depth, entity in enumerate(mine):
        wanted = dict[Hashable, tuple[float, float]]()
        for group, taken in used.items():
            if group[:depth] == mine[:depth] and group[depth : depth + 1] != (entity,):
                other = group[depth] if len(group) > depth else Entity(group)
                wanted[other.name] = wanted.get(other.name, (0.0, 0.0))[0] + taken, other.weight
        cores = _level(cores, entity.weight, wanted.values())
    return cores


def _level(cores: float, weight: float, others: Collection[tuple[float, float]]) -> float:
    """What one gets that wants all, beside others that want so much each and have such weights."""
    weights = weight + math.fsum(each for _, each in others)
    for wanted, each in sorted(others, key=lambda other: other[0] / other[1]):
        if wanted / each >= cores / weights:
            break
        cores, weights = cores - wanted, weights - each
    return cores * weight / weights
