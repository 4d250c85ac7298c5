"""What psutil reports where there is no ``/proc``: macOS, Windows and the BSDs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from dlprof.files import is_there
from dlprof.machine.tree import ProcessTree, TreeUsage

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
    """Reads one process tree through psutil; ended processes stay counted as last seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._alive: dict[int, psutil.Process] = {}
        self._cpu_ns: dict[tuple[int, float], int] = {}

    def read(self) -> TreeUsage:
        """Read every process of the tree once."""
        self._alive = {}
        with contextlib.suppress(psutil.Error, OSError):  # as where /proc has processes alone
            first = psutil.Process(self._pid)
            family = [first, *first.children(recursive=True)]
            self._alive = {process.pid: process for process in family}
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
    """A process tree, read from ``/proc`` where there is one, which has those beside it, too."""
    return ProcessTree(pid, beside=beside, root=root) if has_proc(root) else PortableTree(pid)


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


def physical_core_count() -> int | None:
    """Physical cores; ``None`` where psutil doesn't know."""
    return _known(lambda: psutil.cpu_count(logical=False))
