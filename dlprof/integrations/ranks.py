"""Which process of a job this is, by what torchrun and its like tell in the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from dlprof.store.naming import SUFFIX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of several.

    Attributes:
        rank: From 0, over all machines.
        world_size: Processes of the job.
        local_size: Those of them on this machine, which share its cores.
    """

    rank: int
    world_size: int
    local_size: int = 1

    def file(self, path: Path) -> Path:
        """The run file of this process, where the user named one for the job.

        >>> Rank(rank=3, world_size=8).file(Path("a.dlprof.jsonl")).name
        'a.rank3.dlprof.jsonl'
        """
        name = path.name
        stem, suffix = (
            (name.removesuffix(SUFFIX), SUFFIX)
            if name.endswith(SUFFIX)
            else (path.stem, path.suffix)
        )
        return path.with_name(f"{stem}.rank{self.rank}{suffix}")


def read_rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank of this process; ``None`` where it is the only one, or that isn't told."""
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    if size <= 1 or not 0 <= rank < size:
        return None
    return Rank(rank=rank, world_size=size, local_size=_local_size(environ, size))


def _local_size(environ: Mapping[str, str], world_size: int) -> int:
    """Ranks of this machine: as torchrun tells; one where nobody does."""
    told = environ.get("LOCAL_WORLD_SIZE", "")
    return min(max(1, int(told)), world_size) if told.isdecimal() else 1
