"""Which of a job's processes one is, as torchrun, srun or mpirun says it in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES: Mapping[str, tuple[str, ...]] = {
    "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"),
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
"""torch's names, and what srun and mpirun say instead."""


def launched_as(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Numbers by torch's names, whichever launcher says them; ``None`` for what none does."""
    return {name: _number(environ, (name, *others)) for name, others in _NAMES.items()}


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if name.endswith("_PER_NODE"):
            text = _of_this_node(text, environ)
        if text.isdecimal():
            return int(text)
    return None


def _of_this_node(text: str, environ: Mapping[str, str]) -> str:
    """This node's number of ``4(x2),2``: 4 on each of two nodes, and 2 on the third."""
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    counts = [count for count, times in runs for _ in range(int(times or 1))]
    node = environ.get("SLURM_NODEID", "0" if len({*counts}) == 1 else "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else ""
