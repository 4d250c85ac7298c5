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
    """

    rank: int
    world_size: int

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
    return Rank(rank=rank, world_size=size) if size > 1 and 0 <= rank < size else None
