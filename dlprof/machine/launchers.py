"""Which of a job's processes one is, as its launcher says it in the environment.

And what follows: what the job's files are named after, and how to launch as many again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from dlprof.machine.procfs import parse_parent, read_text
from dlprof.machine.tree import began_at

_NAMES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # torch's


class _Launcher(NamedTuple):
    """What starts the ranks of a job."""

    sign: str  # what only its ranks have in their environment
    numbers: tuple[str, ...]  # what it says for each of ``_NAMES``; empty for what it doesn't say
    job: tuple[str, ...]  # what all of its job's ranks have in common
    again: str  # what starts as many ranks, before ``dlprof`` (``launch_words``)
    is_parent: bool = False  # of its ranks


def _numbers(prefix: str) -> tuple[str, ...]:
    """As most call theirs."""
    return tuple(f"{prefix}_{each}" for each in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE"))


_TORCHRUN = "torchrun {meeting} --nproc-per-node={here} -m"
_MPIRUN = "mpirun -n {world} python -m"
_LAUNCHERS = (
    _Launcher(
        "TORCHELASTIC_RUN_ID", _NAMES, ("TORCHELASTIC_RUN_ID", "MASTER_PORT"), _TORCHRUN, True
    ),
    _Launcher("CROSS_SIZE", ("", "", "", "LOCAL_SIZE"), (), _TORCHRUN, True),  # deepspeed
    # Open MPI, and MVAPICH
    _Launcher("OMPI_COMM_WORLD_SIZE", _numbers("OMPI_COMM_WORLD"), ("PMIX_NAMESPACE",), _MPIRUN),
    _Launcher("MV2_COMM_WORLD_SIZE", _numbers("MV2_COMM_WORLD"), (), _MPIRUN),
    _Launcher(  # MPICH and Intel: srun may set PMI_SIZE, too
        "MPI_LOCALNRANKS",
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        (),
        _MPIRUN,
    ),
    _Launcher(
        "HOROVOD_SIZE",
        _numbers("HOROVOD"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT",),
        "horovodrun -np {world} python -m",
    ),
    _Launcher(
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "srun --nodes={nodes} --ntasks={world} {cores} python -m",
    ),
)
"""All that are known, and whom to believe first: in a job of Slurm's, what mpirun starts has
Slurm's numbers, too, those of the batch script, or of what srun started for mpirun on each node."""


def launched_as(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Numbers by torch's names, whichever launcher says them; ``None`` for what none does."""
    columns = zip(*(each.numbers for each in _LAUNCHERS), strict=True)
    return {name: _number(environ, said) for name, said in zip(_NAMES, columns, strict=True)}


def read_environ(pid: int, root: Path = Path("/")) -> dict[str, str]:
    """What a process found in its environment as it began; empty where that can't be read."""
    entries = read_text(f"{root}/proc/{pid}/environ").split("\0")
    return {name: value for name, sign, value in (e.partition("=") for e in entries) if sign}


def launcher_of(pid: int, root: Path = Path("/")) -> int:
    """The process that started all ranks of a rank's machine; 0 where none is seen.

    A rank may have processes of its own between, such as a shell: they have its numbers, too. Of
    what no launcher has started it is the parent.
    """
    own, seen = launched_as(read_environ(pid, root)), {pid}
    is_rank = any(value is not None for value in own.values())
    above = _parent(pid, root) or (os.getppid() if pid == os.getpid() else 0)
    while is_rank and above not in seen:
        command = read_text(f"{root}/proc/{above}/cmdline")
        is_ranks = launched_as(read_environ(above, root)) == own
        if not is_ranks and not any(sign in command for sign in _BETWEEN):
            break
        seen.add(above)
        above = _parent(above, root)
    return above


_BETWEEN = ("--multiprocessing-fork", "HOROVOD_RANK=")
"""In the command of a process that ``multiprocessing`` has spawned, and of a shell that is to set a
rank's numbers: horovodrun has both between itself and each rank. Other names that end in ``RANK``
may be arguments of the launcher itself."""


def _parent(pid: int, root: Path) -> int:
    return parse_parent(read_text(f"{root}/proc/{pid}/status")) or 0


def is_parent(environ: Mapping[str, str]) -> bool:
    """Whether a rank's launcher is its parent, as torchrun and deepspeed are."""
    return any(each.sign in environ for each in _LAUNCHERS if each.is_parent)


def job_name(environ: Mapping[str, str], parent: int) -> str:
    """What all processes of a job have in common, and those of no other job on the machine.

    Those that no launcher started have the process that started them, as ``mp.spawn`` does.
    """
    said = [environ.get(name, "") for each in _LAUNCHERS for name in each.job]
    return ":".join(said) if any(said) else f"started by {parent}"


def job_moment(
    environ: Mapping[str, str], launcher: int, *, began_at: Callable[[int], float | None] = began_at
) -> datetime:
    """What the run files of a job are named after: the same moment for all ranks of a machine.

    That is when their ``launcher`` began (``launcher_of``). The fraction of its second keeps jobs
    apart that began together, and the attempts of one. Without a launcher it is now.
    """
    said = launched_as(environ)
    by_others = "RANK" not in environ and said["RANK"] is not None and (said["WORLD_SIZE"] or 1) > 1
    launched = by_others or is_parent(environ)
    began_s = began_at(launcher) if launched else None
    if began_s is None:
        return datetime.now().astimezone()
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    attempt = int(restarts) if restarts.isdecimal() else 0
    # Seven attempts of a job never share a name with another's of the next process number.
    apart = (7 * launcher + attempt) % 1_000_000
    return datetime.fromtimestamp(int(began_s)).astimezone().replace(microsecond=apart)


def launch_words(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What starts as many ranks again, before ``dlprof``; empty for a process by itself.

    As far as the environment says it: torchrun where no launcher has left a name, and torch's
    default for the port by which nodes meet.
    """
    said = launched_as(environ)
    world, here = said["WORLD_SIZE"] or 1, said["LOCAL_WORLD_SIZE"] or 1
    nodes = -(-world // here)
    if world <= 1:
        return ()
    per_task = environ.get("SLURM_CPUS_PER_TASK", "")
    host = environ.get("MASTER_ADDR", "HOST")
    meeting = f"--nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint={host}:29400"
    again = next((each.again for each in _LAUNCHERS if each.sign in environ), _TORCHRUN)
    words = again.format(
        world=world,
        nodes=nodes,
        here=here,
        cores=f"--cpus-per-task={per_task}" if per_task else "",
        meeting=meeting if nodes > 1 else "--standalone",
    )
    return tuple(words.split())


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if name.endswith("_PER_NODE"):  # ``4(x2),2``: 4 on each of two nodes, and 2 on the third
            runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
            counts = [count for count, times in runs for _ in range(int(times or 1))]
            node = environ.get("SLURM_NODEID", "0" if len({*counts}) == 1 else "")
            is_one = node.isdecimal() and int(node) < len(counts)
            text = counts[int(node)] if is_one else ""
        if text.isdecimal():
            return int(text)
    return None
