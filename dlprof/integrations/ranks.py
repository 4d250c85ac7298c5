"""Which process of a job this is, by what torchrun and its like say in the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from dlprof.errors import DlprofError
from dlprof.machine.portable import began_at
from dlprof.records import WatchedLoader
from dlprof.store import read_run
from dlprof.store.format import SUFFIX

_PATIENCE_S, _PAUSE_S = 3.0, 0.25
_TOGETHER = timedelta(minutes=2)
"""Between the starts of the ranks of one job on one machine, at most."""


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


def read_others(
    rank: Rank,
    path: Path,
    began_at: str,
    *,
    wait_s: float = _PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[int, tuple[WatchedLoader, ...]]:
    """What the other ranks of this machine have seen of their loaders, each to its end.

    They end with this one, or a moment later; one that goes on for longer is left out.

    Args:
        rank: Of this process.
        path: Its run file.
        began_at: When that was begun: an older file is of another job.
        wait_s: How long to wait for them to end.
        sleep: Waits for so many seconds.
    """
    first = rank.rank // rank.local_size * rank.local_size
    left = set(range(first, first + rank.local_size)) - {rank.rank}
    head, _, tail = path.name.rpartition(f".rank{rank.rank}")
    seen: dict[int, tuple[WatchedLoader, ...]] = {}
    job_began = datetime.fromisoformat(began_at) - _TOGETHER
    while left:
        for other in sorted(left):
            with contextlib.suppress(DlprofError):  # it has none yet
                run = read_run(path.with_name(f"{head}.rank{other}{tail}"))
                of_this_job = datetime.fromisoformat(run.header.started_at) >= job_began
                if of_this_job and run.script is not None and run.script.ending != "running":
                    seen[other] = run.watched
        left -= seen.keys()
        if wait_s <= 0:
            break
        if left:
            sleep(_PAUSE_S)
        wait_s -= _PAUSE_S
    return seen


def read_rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank of this process; ``None`` where it is the only one, or that isn't known."""
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    if size <= 1 or not 0 <= rank < size:
        return None
    here = environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's
    local_size = min(max(1, int(here)), size) if here.isdecimal() else 1
    return Rank(rank=rank, world_size=size, local_size=local_size)


def job_moment(
    environ: Mapping[str, str],
    parent: int,
    *,
    began_at: Callable[[int], float | None] = began_at,
) -> datetime:
    """What the run files of this job are named after: the same moment for all ranks of a machine.

    torchrun starts all of them, so it is when torchrun began. The fraction of its second keeps jobs
    apart that began together, and the attempts of one. Without torchrun it is now.

    Args:
        environ: Environment variables.
        parent: The process that started this one.
        began_at: When a process began, in seconds since the epoch.
    """
    began_s = began_at(parent) if "TORCHELASTIC_RUN_ID" in environ else None
    if began_s is None:
        return datetime.now().astimezone()
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    attempt = int(restarts) if restarts.isdecimal() else 0
    # Seven attempts of a job never share a name with another's of the next process number.
    apart = (7 * parent + attempt) % 1_000_000
    return datetime.fromtimestamp(int(began_s)).astimezone().replace(microsecond=apart)
