"""What commonly breaks data loading, held against one machine: facts, and checks over them.

Nothing here imports torch: versions come from the metadata of what is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal, NamedTuple

from dlprof.files import is_there, too_long_for_sockets
from dlprof.machine.gpus import Gpus
from dlprof.machine.inspection import USUAL_SHM_BYTES, inspect_machine, open_files_limit
from dlprof.machine.neighbours import Neighbours, watch
from dlprof.machine.procfs import numbered, read_text
from dlprof.records import Machine
from dlprof.units import counted, format_bytes

_SHM = "/dev/shm"  # noqa: S108 - no file is made there
_CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
    """What the checks look at. ``None`` is not known.

    The soft limit of open files can be raised to ``hard_open_files``; ``gpu_devices`` are NVIDIA's
    device files, whether a driver answers or not; ``others`` are further programs on PATH that are
    called dlprof; ``temporary`` is ``None`` where no such directory can be written to. What others
    use was watched while this process slept.
    """

    machine: Machine
    system: str = "linux"
    cpu_count: int | None = None
    shm_writable: bool | None = None
    hard_open_files: int | None = None
    start_method: str = "fork"
    python: tuple[int, int, int] = (3, 11, 0)
    torch: str | None = None
    gpu_devices: int = 0
    others: tuple[str, ...] = ()
    temporary: str | None = None
    clock: str | None = None
    others_use: Neighbours | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str  # what
    # Whether loading works (``ok``), may suffer (``warning``) or breaks (``problem``).
    state: Literal["ok", "warning", "problem"]
    finding: str  # what is so, one sentence
    advice: str = ""  # what to do; empty where nothing is to be done


def examine(facts: SystemFacts) -> tuple[Check, ...]:
    """All checks, in the order in which they are shown."""
    return tuple(check for rule in _RULES for check in rule(facts))


def look(root: Path = Path("/"), *, gpus: Gpus | None = None) -> SystemFacts:
    """The facts of this machine and this Python."""
    shm, temporary = root / "dev/shm", None
    with contextlib.suppress(FileNotFoundError):
        temporary = tempfile.gettempdir()
    return SystemFacts(
        machine=inspect_machine(root, gpus=gpus),
        system=sys.platform,
        cpu_count=os.cpu_count() if root == Path("/") else None,
        shm_writable=os.access(shm, os.W_OK) if is_there(shm) else None,
        hard_open_files=open_files_limit(hard=True),
        start_method=multiprocessing.get_all_start_methods()[0],  # the first is the default
        python=sys.version_info[:3],
        torch=next((each.version for each in distributions(name="torch")), None),
        gpu_devices=len(numbered(root / "dev", "nvidia")),
        others=tuple(_others(os.environ.get("PATH", ""), Path(sys.executable).parent)),
        temporary=temporary,
        clock=read_text(root / _CLOCK).strip() or None,
        others_use=watch(0.5) if root == Path("/") else None,
    )


def _others(path: str, own: Path) -> Iterator[str]:
    """Programs called dlprof outside of the environment that runs; the user's home is ``~``."""
    homes = {own, own.resolve()}
    for folder in dict.fromkeys(path.split(os.pathsep)):
        found = shutil.which("dlprof", path=folder) if folder else None
        if found and homes.isdisjoint({Path(found).parent, Path(found).resolve().parent}):
            yield found.replace(os.path.expanduser("~/"), "~/", 1)  # Path.home() may raise


def _shared_memory(facts: SystemFacts) -> Iterator[Check]:
    name, machine = "shared memory", facts.machine
    size, free = machine.shm_bytes, machine.shm_available_bytes or 0
    more = (
        "Start the container with --shm-size=8g; in Kubernetes, mount an emptyDir of medium Memory "
        f"at {_SHM}."
    )
    if size is None:
        if facts.system == "linux":
            text = f"There is no {_SHM}, through which workers hand over batches."
            yield Check(name, "problem", text, "Mount a tmpfs there, or load with num_workers=0.")
    elif facts.shm_writable is False:
        text = f"{_SHM} can't be written to."
        yield Check(name, "problem", text, "Mount it writable, with mode=1777.")
    # What a container's /dev/shm holds where nobody asked for more (docker run --shm-size).
    elif size <= 64 << 20:
        text = f"{_SHM} holds {format_bytes(size)}: a few batches fill it, and workers die."
        yield Check(name, "problem", text, more)
    elif free < USUAL_SHM_BYTES:
        usual = format_bytes(USUAL_SHM_BYTES)
        text = (
            f"{format_bytes(free)} of {_SHM} are free. Four workers with images need some {usual}."
        )
        yield Check(name, "warning", text, more)
    else:
        yield Check(name, "ok", f"{_SHM} holds {format_bytes(size)}, {format_bytes(free)} free.")


def _open_files(facts: SystemFacts) -> Iterator[Check]:
    soft, hard = facts.machine.open_files_limit, facts.hard_open_files or 65536
    if soft is None:
        return
    text = f"A process may open {soft:,} files."
    # The kernel's soft limit where nobody set one (getrlimit(2)). Elsewhere torch shares by name.
    if soft > 1024 or facts.system != "linux":
        yield Check("open files", "ok", text)
        return
    other = 'torch.multiprocessing.set_sharing_strategy("file_system")'
    advice = f"Run ulimit -n {hard}, or call {other}." if hard > soft else f"Call {other}."
    text += " By default, each tensor on its way from a worker takes one."
    yield Check("open files", "warning", text, advice)


def _cores(facts: SystemFacts) -> Iterator[Check]:
    machine = facts.machine
    count = facts.cpu_count or machine.logical_cpus
    limits = []
    if machine.affinity_cpus < count:
        limits.append(f"its affinity allows {machine.affinity_cpus}")
    if machine.quota_cores is not None and machine.quota_cores < count:
        limits.append(f"a cgroup's quota allows {machine.quota_cores:g}")
    if limits:
        text = f"os.cpu_count() says {count}, but of this process {' and '.join(limits)}."
        advice = f"Choose num_workers and threads for {machine.usable_cores:g} cores."
        yield Check("cores", "warning", text, advice)
    else:
        yield Check("cores", "ok", f"This process may use all {count} CPUs.")


def _load(facts: SystemFacts) -> Iterator[Check]:
    """Whether others use the cores, by how busy these were, and by how many threads want one."""
    seen, cores = facts.others_use, facts.machine.logical_cpus
    if seen is None or seen.busy_cores is None:
        return
    text = f"Other processes keep {seen.busy_cores:.1f} of {cores} cores busy"
    # A quarter of them may be those that a loader's workers are then short of.
    if seen.busy_cores < 0.25 * cores:
        yield Check("load", "ok", f"{text}.")
        return
    if seen.load_1m is not None and seen.load_1m > cores:
        text += f" and more wait for one (load {seen.load_1m:.1f})"
    yield Check(
        "load",
        "warning",
        f"{text}: rates are lower and noisier than without them.",
        "Find them with dlprof machine. Measure when they are done, or for longer (--budget 5m).",
    )


def _memory(facts: SystemFacts) -> Iterator[Check]:
    machine = facts.machine
    total, limit = machine.memory_bytes, machine.memory_limit_bytes
    if total is None:
        return
    if limit is not None and limit < total:
        text = f"A cgroup allows {format_bytes(limit)} of {format_bytes(total)}."
        advice = "Choose workers and caches for the limit: beyond it the kernel kills processes."
        yield Check("memory", "warning", text, advice)
    else:
        available = format_bytes(machine.memory_available_bytes)
        yield Check("memory", "ok", f"{available} of {format_bytes(total)} are available.")


def _start_method(facts: SystemFacts) -> Iterator[Check]:
    text = f"Workers start by {facts.start_method}"
    if facts.start_method != "fork" and facts.system == "linux":
        text += ": datasets and collate functions must be picklable, and starting takes longer."
        advice = (
            "Define them in a module. Where no thread and no CUDA context exists yet, "
            'multiprocessing_context="fork" works too.'
        )
        yield Check("start method", "warning", text, advice)
    else:
        yield Check("start method", "ok", f"{text}.")


class _Fault(NamedTuple):
    """A fault of versions of Python or torch; its source was read in November 2026."""

    first: tuple[int, ...]  # version that has it
    until: tuple[int, ...]  # the next that hasn't
    finding: str  # what happens
    source: str  # where that is said
    fixed: str  # what to use instead: a version, or more
    needs: tuple[str, ...] = ()  # without any of them it doesn't show: a system, ``GPU``, ``fork``


_HANGS = (
    "A program may hang at its end while a process lives that it started with os.fork()",
    "github.com/python/cpython/issues/146313",
)
_CLEANS_NOT = (
    "joblib's worker processes fail to clean up (unknown resource type)",
    "github.com/joblib/loky/issues/475",
)
_NO_ARGUMENTS = (
    "Workers started by forkserver import the script without its arguments (sys.argv)",
    "github.com/python/cpython/issues/143706",
)
_MANY_ARGUMENTS = (
    "Workers can't be started by forkserver where the script has 128 KiB of arguments",
    "github.com/python/cpython/issues/144503",
)
_OF_PYTHON = (
    _Fault((3, 12, 10), (3, 13), *_HANGS, "3.13.14"),
    _Fault((3, 13, 3), (3, 13, 14), *_HANGS, "3.13.14"),
    _Fault((3, 14), (3, 14, 5), *_HANGS, "3.14.5"),
    _Fault((3, 13, 8), (3, 13, 12), *_NO_ARGUMENTS, "3.13.13"),
    _Fault((3, 14, 1), (3, 14, 3), *_NO_ARGUMENTS, "3.14.4"),
    _Fault((3, 13, 12), (3, 13, 13), *_MANY_ARGUMENTS, "3.13.13"),
    _Fault((3, 14, 3), (3, 14, 4), *_MANY_ARGUMENTS, "3.14.4"),
    _Fault((3, 13, 10), (3, 13, 11), *_CLEANS_NOT, "3.13.11"),
    _Fault((3, 14, 1), (3, 14, 2), *_CLEANS_NOT, "3.14.2"),
    _Fault(
        (3, 12),
        (3, 15),
        "A program may not end after workers sent it tensors",
        "github.com/pytorch/pytorch/issues/153050",
        "3.11",
        needs=("darwin",),
    ),
)
_OF_TORCH = (
    _Fault(
        (2, 6),
        (2, 7),
        "With in_order=False each worker still gets every num_workers-th batch, so a slow one "
        "leaves the others idle",
        "github.com/pytorch/pytorch/pull/142324",
        "2.7",
    ),
    _Fault(
        (2, 5),
        (2, 8),
        "A forked worker that loads sparse tensors with torch.load fails where CUDA is in use "
        "(initialization error)",
        "github.com/pytorch/pytorch/issues/153143",
        '2.8, or multiprocessing_context="spawn"',
        needs=("GPU", "fork"),
    ),
    _Fault(
        (1, 12),
        (2, 13),
        "A DataLoader with persistent_workers=True and pin_memory=True leaves files open when it "
        "is gone, until the program ends",
        "github.com/pytorch/pytorch/issues/91252",
        "2.13, or make such a DataLoader once, not each epoch",
        needs=("GPU",),
    ),
    _Fault(
        (1, 12),
        (2, 13),
        "A program that still has a DataLoader with persistent_workers=True and pin_memory=True "
        "ends 5 s later for each of its workers",
        "github.com/pytorch/pytorch/issues/81794",
        "2.13, or del the DataLoader when it is done",
        needs=("GPU",),
    ),
)


def _faults(
    name: str, version: str, table: tuple[_Fault, ...], there: Collection[str]
) -> Iterator[Check]:
    """What is known of a version. A pre-release or a build of one counts as that version."""
    numbers = _release(version)
    for fault in table:
        if fault.first <= numbers < fault.until and all(each in there for each in fault.needs):
            text = f"{version}: {fault.finding} ({fault.source})."
            yield Check(name, "warning", text, f"Use {name} {fault.fixed}.")


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def _python(facts: SystemFacts) -> Iterator[Check]:
    version = ".".join(map(str, facts.python))
    # All of them are of POSIX: on Windows there is no fork.
    table = () if facts.system == "win32" else _OF_PYTHON
    found = list(_faults("Python", version, table, {facts.system}))
    yield from found or [Check("Python", "ok", f"{version}: no fault of this version is known.")]


def _torch(facts: SystemFacts) -> Iterator[Check]:
    version, gpu = facts.torch, facts.machine.gpus or facts.gpu_devices or _is_of_rocm(facts)
    if version is None:
        advice = "Install it into the environment that dlprof runs in."
        yield Check("torch", "problem", "It is not installed for this Python.", advice)
        return
    if () < _release(version) < (2, 6):
        text = f"{version}: dlprof needs torch 2.6 or newer."
        yield Check("torch", "problem", text, "pip install 'torch>=2.6'.")
        return
    if alone := version.endswith("+cpu") and gpu:
        advice = "Install the build for your GPU: pytorch.org/get-started."
        text = f"{version} is built for the CPU alone, and there is a GPU."
        yield Check("torch", "warning", text, advice)
    has = {"GPU": bool(gpu) and not alone, "fork": facts.system != "win32"}
    there = {name for name, is_there in has.items() if is_there}
    found = list(_faults("torch", version, _OF_TORCH, there))
    yield from found
    if not alone and not found:
        yield Check("torch", "ok", f"{version}: no fault of this version is known.")


def _is_of_rocm(facts: SystemFacts) -> bool:
    """Whether torch is for AMD's GPUs, whose device file a processor's own graphics have, too."""
    return "rocm" in (facts.torch or "")


def _gpu_driver(facts: SystemFacts) -> Iterator[Check]:
    cards, why = facts.machine.gpus, facts.machine.unavailable.get("gpus", "none is listed")
    if cards:
        names = ", ".join(dict.fromkeys(card.name for card in cards))
        yield Check("GPU driver", "ok", f"It lists {len(cards)}: {names}.")
    elif facts.gpu_devices:
        files = counted(facts.gpu_devices, "device file")
        text = f"NVIDIA's driver has {files}, but doesn't answer: {why}."
        advice = "Try nvidia-smi. Start a container with --gpus all."
        yield Check("GPU driver", "problem", text, advice)
    elif _is_of_rocm(facts):
        text = f"torch is built for AMD's GPUs, and dlprof sees none: {why}."
        advice = "pip install amdsmi. Start a container with --device=/dev/kfd --device=/dev/dri."
        yield Check("GPU driver", "warning", text, advice)
    else:
        yield Check("GPU driver", "ok", f"No GPU is seen: {why}.")


def _program(facts: SystemFacts) -> Iterator[Check]:
    if facts.others:
        text = f"Other programs have this name: {', '.join(facts.others)}."
        advice = "NVIDIA's discontinued DLProf has it too. python -m dlprof runs this one."
        yield Check("dlprof on PATH", "warning", text, advice)


def _temporary_files(facts: SystemFacts) -> Iterator[Check]:
    name, place = "temporary files", facts.temporary
    if place is None:
        advice = "Free room on the disk, or name another directory with TMPDIR."
        yield Check(name, "problem", "No directory for them can be written to.", advice)
    elif fault := too_long_for_sockets(place):
        yield Check(name, "problem", f"{fault.message}.", fault.hint)
    else:
        yield Check(name, "ok", f"{place} can be written to.")


def _clock_source(facts: SystemFacts) -> Iterator[Check]:
    if facts.clock in ("hpet", "acpi_pm", "xen", "jiffies", "refined-jiffies"):
        text = f"The kernel uses {facts.clock}: each look at the time is a system call."
        advice = "Short times are less exact. Where you can, boot with clocksource=tsc."
        yield Check("clock", "warning", text, advice)
    elif facts.clock is not None:
        yield Check("clock", "ok", f"The kernel uses {facts.clock}.")


_RULES: tuple[Callable[[SystemFacts], Iterator[Check]], ...] = (
    _shared_memory,
    _open_files,
    _cores,
    _load,
    _memory,
    _start_method,
    _python,
    _torch,
    _gpu_driver,
    _program,
    _temporary_files,
    _clock_source,
)
