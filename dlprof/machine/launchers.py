"""Which of a job's processes one is, as its launcher says it in the environment.

And what follows: what the job's files are named after, and how to launch as many again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from dlprof.machine.procfs import parse_parent, read_text
from dlprof.machine.tree import began_at

_NAMES: Mapping[str, tuple[str, ...]] = {
    "WORLD_SIZE": (
        *("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE"),
        "SLURM_STEP_NUM_TASKS",
    ),
    "RANK": (
        *("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"),
        "SLURM_PROCID",
    ),
    "LOCAL_RANK": (
        *("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
        *("HOROVOD_LOCAL_RANK", "SLURM_LOCALID"),
    ),
    "LOCAL_WORLD_SIZE": (
        *("LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
        *("MPI_LOCALNRANKS", "HOROVOD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"),
    ),
}
"""torch's names, and what others say instead: deepspeed (``LOCAL_SIZE``, beside torch's), mpirun of
Open MPI, of MVAPICH, and of MPICH and Intel (``PMI_``, ``MPI_``), horovodrun, and srun. In a job of
Slurm's, what mpirun starts has Slurm's numbers, too: those of the batch script, or of what srun
started for mpirun on each node."""


def launched_as(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Numbers by torch's names, whichever launcher says them; ``None`` for what none does."""
    return {name: _number(environ, (name, *others)) for name, others in _NAMES.items()}


def read_environ(pid: int, root: Path = Path("/")) -> dict[str, str]:
    """What a process found in its environment as it began; empty where that can't be read."""
    entries = (read_text(f"{root}/proc/{pid}/environ") or "").split("\0")
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
        command = read_text(f"{root}/proc/{above}/cmdline") or ""
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
    return parse_parent(read_text(f"{root}/proc/{pid}/status") or "") or 0


def is_parent(environ: Mapping[str, str]) -> bool:
    """Whether a rank's launcher is its parent, as torchrun and deepspeed (``CROSS_SIZE``) are."""
    return "TORCHELASTIC_RUN_ID" in environ or "CROSS_SIZE" in environ


def job_name(environ: Mapping[str, str], parent: int) -> str:
    """What all processes of a job have in common, and those of no other job on the machine.

    Those that no launcher started have the process that started them, as ``mp.spawn`` does.
    """
    names = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT")
    by_others = ("PMIX_NAMESPACE", "HOROVOD_GLOO_RENDEZVOUS_PORT")
    said = [environ.get(name, "") for name in (*names, *by_others)]
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
    by_torch = is_parent(environ)  # or by deepspeed, whose ranks torchrun starts as well
    # srun may set PMI_SIZE, too.
    by_mpi = {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"} & environ.keys()
    if not by_torch and by_mpi:
        return ("mpirun", "-n", str(world), "python", "-m")
    if not by_torch and "HOROVOD_SIZE" in environ:
        return ("horovodrun", "-np", str(world), "python", "-m")
    if not by_torch and "SLURM_STEP_NUM_TASKS" in environ:
        cores = environ.get("SLURM_CPUS_PER_TASK", "")
        each = (f"--cpus-per-task={cores}",) if cores else ()
        return ("srun", f"--nodes={nodes}", f"--ntasks={world}", *each, "python", "-m")
    host = environ.get("MASTER_ADDR", "HOST")
    meeting = (f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:29400")
    where = meeting if nodes > 1 else ("--standalone",)
    return ("torchrun", *where, f"--nproc-per-node={here}", "-m")


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
