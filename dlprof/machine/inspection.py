"""What this machine offers to one job: the ``Machine`` record of every run file, and its key."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from dlprof.machine import tree
from dlprof.machine.cgroups import (
    Cgroups,
    allowed_cpus,
    cpu_quota,
    memory_headroom,
    memory_limit,
    read_cgroups,
    read_limit,
)
from dlprof.machine.gpus import Gpus, asked
from dlprof.machine.launchers import launcher_of
from dlprof.machine.procfs import (
    numbered,
    parse_allowed_cpus,
    parse_cpu_list,
    parse_cpu_ticks,
    parse_cpuinfo,
    parse_meminfo,
    read_int,
    read_text,
    usable_cpus,
)
from dlprof.records import GpuInfo, Machine

_HERE = Path("/")


def inspect_machine(
    root: Path = _HERE, *, gpus: Gpus | None = None, pid: int | None = None
) -> Machine:
    """What the machine offers to a process, this one by default, and its children.

    Below ``root`` are ``/proc``, ``/sys`` and ``/dev``: another machine's recorded texts read as
    well as this one's. ``gpus`` lists the GPUs; for ``None`` whoever can, opened and closed again.
    """
    cgroups = read_cgroups(pid, root)
    info = parse_cpuinfo(read_text(root / "proc/cpuinfo"))
    online = frozenset(parse_cpu_ticks(read_text(root / "proc/stat")))
    logical = len(online) or os.cpu_count() or 1
    model = info.model or (_named_by_macos() if root == _HERE else "")
    model = model or platform.processor() or platform.machine() or "unknown CPU"
    affinity = _count_affinity(cgroups, online, root, pid) or logical
    quota, limit, reads = cpu_quota(cgroups), memory_limit(cgroups), read_limit(cgroups)
    usable_cores = min(float(affinity), (quota and quota.amount) or float("inf"))
    memory, shm = read_meminfo(root), read_shared_memory(root, pid)
    total = memory.get("MemTotal")
    swap = [memory[name] for name in ("SwapTotal", "SwapFree") if name in memory]
    limit_bytes = None if limit is None else int(limit.amount)
    with asked(gpus) as reader:
        cards, no_gpus = reader.list_gpus(root), dict(reader.unavailable)
    # Cores by who shares one, from ``/sys``: right on every architecture that has it.
    cpus = root / "sys/devices/system/cpu"
    each = numbered(cpus, "cpu").values()
    cores = len({read_text(cpu / "topology/thread_siblings_list") for cpu in each} - {""})
    with contextlib.suppress(psutil.Error, OSError):  # as where /proc has processes alone
        cores = cores or (root == _HERE and psutil.cpu_count(logical=False)) or 0
    lines = (read_text(root / "proc/sys/kernel" / name) for name in ("osrelease", "hostname"))
    release, host = (line.strip() for line in lines)
    machine = Machine(
        hostname=host or platform.node(),
        platform=f"Linux {release}" if release else f"{platform.system()} {platform.release()}",
        cpu_model=model,
        logical_cpus=logical,
        physical_cores=cores or info.physical_cores,
        base_ghz=_base_ghz(cpus / "cpu0", info.guest_mhz),
        affinity_cpus=affinity,
        quota_cores=None if quota is None else quota.amount,
        usable_cores=usable_cores,
        memory_bytes=total,
        memory_limit_bytes=limit_bytes,
        memory_available_bytes=available_memory(cgroups, root),
        swap_used_bytes=max(0, swap[0] - swap[1]) if len(swap) == 2 else None,
        shm_bytes=None if shm is None else shm.size_bytes,
        shm_available_bytes=None if shm is None else shm.free_bytes,
        read_limit_bytes_per_s=None if reads is None else reads.amount,
        open_files_limit=open_files_limit(),
        numa_nodes=len(node_cpus(root)) or None,  # there are also nodes of memory alone
        gpus=cards,
        fingerprint=fingerprint(
            cpu_model=model,
            usable_cores=usable_cores,
            logical_cpus=logical,
            memory_bytes=min(filter(None, (total, limit_bytes)), default=None),
            gpus=cards,
        ),
        unavailable=no_gpus,
    )
    missing = {name: why for name, why in REASONS.items() if getattr(machine, name) is None}
    return dataclasses.replace(machine, unavailable={**machine.unavailable, **missing})


def _named_by_macos() -> str:
    """The CPU's name on a Mac, of which Python knows no more than ``arm``; else empty."""
    command = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    if platform.system() == "Darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
    return ""


def _base_ghz(cpu: Path, guest_mhz: float | None) -> float | None:
    """The clock of a CPU without boost, by its driver or its firmware; a guest's has no other."""
    kilohertz = read_int(cpu / "cpufreq/base_frequency")
    megahertz = read_int(cpu / "acpi_cppc/nominal_freq")
    clocks = ((kilohertz or 0) / 1e6, (megahertz or 0) / 1e3, (guest_mhz or 0.0) / 1e3)
    # as a profile may say
    return next((round(clock, 3) for clock in clocks if 0.001 <= clock <= 100), None)


def _count_affinity(
    cgroups: Cgroups, online: frozenset[int], root: Path, pid: int | None
) -> int | None:
    """How many CPUs of the affinity mask are online."""
    status = read_text(root / "proc" / str(pid or "self") / "status")
    if not status:
        return len(tree.allowed_cpus()) or None if root == _HERE else None
    mask = parse_allowed_cpus(status) or allowed_cpus(cgroups)
    return len(usable_cpus(mask, online or mask)) if mask else None


def cpus_of_job(pid: int, root: Path = _HERE) -> int | None:
    """How many CPUs all may run on that were launched with a process; ``None`` if not known.

    A launcher may have bound each of its ranks to some, and a shell between them is bound as well:
    then it is the launcher's own mask, within the cpuset of this one.
    """
    most = allowed_cpus(read_cgroups(pid, root))
    masks = (
        parse_allowed_cpus(read_text(root / "proc" / str(each) / "status"))
        for each in (pid, launcher_of(pid, root))
    )
    own, launchers = ((mask & most if most else mask) if mask else None for mask in masks)
    return max(len(own), len(launchers or ())) if own else None


def open_files_limit(*, hard: bool = False) -> int | None:
    """The limit of file descriptors, by default the soft one; ``None`` for none, and on Windows."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[hard]
    return None if limit == resource.RLIM_INFINITY else limit


REASONS = {
    "base_ghz": "the system doesn't report it",
    "physical_cores": "the system doesn't report which CPUs share a core",
    **dict.fromkeys(
        ("memory_bytes", "memory_available_bytes", "swap_used_bytes"),
        "the system doesn't report it (no such line in /proc/meminfo)",
    ),
    "shm_bytes": "there is no /dev/shm here",
    "shm_available_bytes": "there is no /dev/shm here",
    "open_files_limit": "the system sets none or doesn't report it",
    "numa_nodes": "the system doesn't report it (no /sys/devices/system/node)",
    "core_speed": "each trial has that of its own window (usage.core_speed)",
}
"""Why fields of a machine are missing; others are ``None`` because there is no such limit."""


def node_cpus(root: Path = Path("/")) -> dict[int, tuple[int, ...]]:
    """The CPUs of each node that has any, by node; empty where the kernel doesn't say."""
    nodes = numbered(root / "sys/devices/system/node", "node").items()
    known = ((node, parse_cpu_list(read_text(at / "cpulist"))) for node, at in nodes)
    return {node: tuple(sorted(cpus)) for node, cpus in known if cpus}


def numa_node_of(cpus: Collection[int], root: Path = Path("/")) -> int | None:
    """The node that all of these CPUs are of; ``None`` for CPUs of several, or of the only one."""
    nodes = node_cpus(root)
    if len(nodes) < 2 or not cpus:
        return None
    return next((node for node, known in nodes.items() if {*cpus} <= {*known}), None)


_NOISE = re.compile(r"\((?:r|tm|c)\)|\bcpu\b|\bprocessor\b|\b\d+-core\b|@", re.IGNORECASE)


def fingerprint(
    *,
    cpu_model: str,
    usable_cores: float,
    logical_cpus: int,
    memory_bytes: int | None,
    gpus: Sequence[GpuInfo],
) -> str:
    """A key such as ``intel-xeon-2.50ghz-2c-24g-0gpu-1a2b3c4d``.

    The same after a reboot, whatever the clock rates and the free memory: it is made of names and
    sizes only, and the memory is rounded to a size that machines are sold with.
    """
    model = slug(cpu_model)
    memory = "" if memory_bytes is None else f"{installed_gib(memory_bytes):g}g"
    # Of a card whose memory isn't known, 0; the sizes of others are floats.
    cards = sorted(
        (gpu.name, installed_gib(gpu.memory_bytes) if gpu.memory_bytes is not None else 0)
        for gpu in gpus
    )
    facts = [model, round(usable_cores, 2), logical_cpus, memory, cards]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    parts = [model, f"{round(usable_cores, 2):g}c", memory, f"{len(gpus)}gpu", digest]
    return "-".join(part for part in parts if part)


def slug(name: str) -> str:
    """A name in lower-case letters, digits, dots and single dashes.

    >>> slug("Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz")
    'intel-core-i9-9900k-3.60ghz'
    """
    words = re.findall(r"[a-z0-9.]+", _NOISE.sub(" ", name).lower())
    return "-".join(words) or "cpu"


def installed_gib(size_bytes: int) -> float:
    """The next size of 1, 1.5, 2, 3, 4, 6 ... GiB: the system shows a little less than is there.

    >>> installed_gib(62 * 2**30), installed_gib(377 * 2**30)
    (64.0, 384.0)
    """
    size = 1.0
    while size * (1 << 30) < size_bytes:
        is_power_of_two = size.is_integer() and int(size) & (int(size) - 1) == 0
        size = size * 1.5 if is_power_of_two else size / 1.5 * 2
    return size


USUAL_SHM_BYTES = 9 * 38_535_168
"""torch's default of 2 batches ahead for each of 4 workers, and the one in use, of 38.5 MB each (64
images of 3x224x224 in float32): with less, loading may die of a bus error."""


class SharedMemory(NamedTuple):
    """Bytes of /dev/shm, where batches travel from workers to the main process.

    ``free_bytes`` is how much more this user may put there.
    """

    size_bytes: int
    used_bytes: int
    free_bytes: int


def read_meminfo(root: Path = _HERE) -> dict[str, int]:
    """Bytes of the machine's memory by the names of ``/proc/meminfo``, cgroup limits left aside.

    By psutil where there is no such file.
    """
    text = read_text(root / "proc/meminfo")
    if text or root != _HERE:
        return parse_meminfo(text)
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        found = {"MemTotal": memory.total, "MemAvailable": memory.available}
        return found | {"SwapTotal": swap.total, "SwapFree": swap.total - swap.used}
    return {}


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
    sizes = (read_meminfo(root).get("MemAvailable"), memory_headroom(cgroups))
    return min((size for size in sizes if size is not None), default=None)
