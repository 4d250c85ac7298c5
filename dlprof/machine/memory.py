"""How much memory and shared memory there is, and how much of it is available."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import NamedTuple

import psutil

from dlprof.machine.cgroups import Cgroups, memory_headroom
from dlprof.machine.procfs import parse_meminfo, read_text

USUAL_SHM_BYTES = 9 * 38_535_168
"""torch's default of 2 batches ahead for each of 4 workers, and the one in use, of 38.5 MB each (64
images of 3x224x224 in float32): with less, loading may die of a bus error."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """Bytes of the machine's memory, cgroup limits left aside."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_used_bytes: int | None = None


class SharedMemory(NamedTuple):
    """Bytes of /dev/shm, where batches travel from workers to the main process.

    ``free_bytes`` is how much more this user may put there.
    """

    size_bytes: int
    used_bytes: int
    free_bytes: int


def read_system_memory(root: Path = Path("/")) -> SystemMemory:
    """The machine's memory from ``/proc/meminfo``, or by psutil where there is none."""
    text = read_text(root / "proc/meminfo")
    if text is None:
        if root != Path("/"):
            return SystemMemory()
        try:
            memory, swap_of = psutil.virtual_memory(), psutil.swap_memory()
        except (psutil.Error, OSError, RuntimeError):
            return SystemMemory()
        return SystemMemory(
            total_bytes=memory.total, available_bytes=memory.available, swap_used_bytes=swap_of.used
        )
    sizes = parse_meminfo(text)
    swap = None
    if "SwapTotal" in sizes and "SwapFree" in sizes:
        swap = max(0, sizes["SwapTotal"] - sizes["SwapFree"])
    return SystemMemory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=sizes.get("MemAvailable"),
        swap_used_bytes=swap,
    )


def read_shared_memory(root: Path = Path("/"), pid: int | None = None) -> SharedMemory | None:
    """How full /dev/shm is now, as a process sees it, which may be in a container.

    ``None`` where there is none.
    """
    folder = (root if pid is None else root / "proc" / str(pid) / "root") / "dev/shm"
    try:
        return SharedMemory(*shutil.disk_usage(folder)) if folder.is_dir() else None
    except OSError:
        return None


def available_memory(cgroups: Cgroups, root: Path = Path("/")) -> int | None:
    """Bytes that are available: the machine's, or less where a cgroup allows less."""
    system = read_system_memory(root).available_bytes
    room = memory_headroom(cgroups)
    return min((size for size in (system, room) if size is not None), default=None)
