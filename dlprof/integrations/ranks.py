"""Which process of a job this is, and what its ranks get of the data.

torchrun and its like say the first in the environment. Of the data some ranks may get none, or rank
0 loads it all, or one waits for it while the others wait for that one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from dlprof.advise import thresholds as at
from dlprof.advise.wording import percent
from dlprof.errors import DlprofError
from dlprof.machine.launchers import launched_as
from dlprof.machine.portable import began_at
from dlprof.records import Config, Diagnosis, Estimate, Finding, Fix, Run, WatchedLoader
from dlprof.store import read_run
from dlprof.store.format import SUFFIX
from dlprof.units import format_duration

BY_RANK = "by rank: "
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
    rank: Rank, path: Path, began_at: str, *, sleep: Callable[[float], None] = time.sleep
) -> dict[int, Run]:
    """What the other ranks of this machine have seen, each to its end.

    They end with this one, or a moment later; one that goes on for longer is left out. A file that
    is older than this rank's ``path``, begun at ``began_at``, is of another job.
    """
    first = rank.rank // rank.local_size * rank.local_size
    left = set(range(first, first + rank.local_size)) - {rank.rank}
    head, _, tail = path.name.rpartition(f".rank{rank.rank}")
    seen: dict[int, Run] = {}
    job_began = datetime.fromisoformat(began_at) - _TOGETHER
    waits = 12  # of a quarter of a second
    while left:
        for other in sorted(left):
            with contextlib.suppress(DlprofError):  # it has none yet
                run = read_run(path.with_name(f"{head}.rank{other}{tail}"))
                of_this_job = datetime.fromisoformat(run.header.started_at) >= job_began
                if of_this_job and run.script is not None and run.script.ending != "running":
                    seen[other] = run
        left -= seen.keys()
        if not waits:
            break
        if left:
            sleep(0.25)
        waits -= 1
    return seen


def read_rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank of this process; ``None`` where it is the only one, or that isn't known."""
    said = launched_as(environ)
    rank, size = said["RANK"], said["WORLD_SIZE"]
    if rank is None or size is None or size <= 1 or rank >= size:
        return None
    return Rank(rank=rank, world_size=size, local_size=min(said["LOCAL_WORLD_SIZE"] or 1, size))


def job_moment(
    environ: Mapping[str, str], parent: int, *, began_at: Callable[[int], float | None] = began_at
) -> datetime:
    """What the run files of this job are named after: the same moment for all ranks of a machine.

    torchrun starts all of them, so it is when torchrun began, or what srun or mpirun has there. The
    fraction of its second keeps jobs apart that began together, and the attempts of one. Without
    any of them it is now.
    """
    by_others = "RANK" not in environ and read_rank(environ) is not None
    launched = by_others or "TORCHELASTIC_RUN_ID" in environ
    began_s = began_at(parent) if launched else None
    if began_s is None:
        return datetime.now().astimezone()
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    attempt = int(restarts) if restarts.isdecimal() else 0
    # Seven attempts of a job never share a name with another's of the next process number.
    apart = (7 * parent + attempt) % 1_000_000
    return datetime.fromtimestamp(int(began_s)).astimezone().replace(microsecond=apart)


def waits_by_rank(runs: Mapping[int, Run]) -> str:
    """Which rank of a machine waits longest for its data and why, in a sentence; empty for one."""
    waits = {rank: run.script.wait_fraction or 0.0 for rank, run in runs.items() if run.script}
    if len(waits) < 2:
        return ""
    order = sorted(waits, key=lambda rank: (waits[rank], rank))
    slow, least, most = order[-1], waits[order[0]], waits[order[-2]]
    apart = waits[slow] - most >= at.NOTABLE
    words = f"all {len(waits)} wait {percent(least)} to {percent(waits[slow])} of the time for data"
    if apart:
        why = [each.title for each in runs[slow].findings if each.code != "consumer"]
        words = (
            f"rank {slow} waits longest for data, {percent(waits[slow])} of the time"
            f"{f' ({why[0]})' if why else ''}; the others wait {percent(least)} to {percent(most)}"
        )
    starts = [
        each.startup_s
        for run in runs.values()
        for each in run.watched[:1]
        if each.startup_s is not None
    ]
    if starts:
        first, last = format_duration(min(starts)), format_duration(max(starts))
        words += f"; first batches took {first} to {last}"
    return f"{BY_RANK}{words}"


_DISPATCH = """config = accelerate.DataLoaderConfiguration(dispatch_batches=False)
accelerator = accelerate.Accelerator(dataloader_config=config)"""


def with_ranks(
    found: Diagnosis | None,
    loaders: Sequence[WatchedLoader],
    others: Mapping[int, Sequence[WatchedLoader]],
) -> Diagnosis | None:
    """A diagnosis of rank 0, which saw ``loaders``, with what the other ranks show.

    ``found`` is ``None`` where no loader costs time to speak of.
    """
    poor = [*itertools.chain.from_iterable(_unfed(each, others) for each in loaders)]
    slow = [*itertools.chain.from_iterable(map(_dispatched, loaders))]
    if not poor and not slow:
        return found
    if found is None:
        config = next((each.config for each in loaders if each.config is not None), Config())
        found = Diagnosis(config=config)
    # As in a profile, where workers without data come before what would speed up the others.
    return dataclasses.replace(found, findings=(*poor, *slow, *found.findings))


def _unfed(
    loader: WatchedLoader, others: Mapping[int, Sequence[WatchedLoader]]
) -> Iterator[Finding]:
    """Ranks that iterate a loader as others do, and get no data of it, or far less."""
    if loader.loads_for > 1:  # its batches reach other ranks in another way
        return
    made = {0: loader}
    made |= {
        rank: each for rank, seen in others.items() for each in seen if each.name == loader.name
    }
    batches = {rank: each.batches / max(1, each.epochs) for rank, each in sorted(made.items())}
    most = max(batches.values())
    # A rank with at most half of the batches of the one that got most lacks data.
    poor = [rank for rank, count in batches.items() if count <= 0.5 * most]
    # A loader of rank 0 alone has no others, and how a few batches fall between ranks says little.
    if len(made) < 2 or most < 10 or not poor:
        return
    none = all(batches[rank] == 0 for rank in poor)
    named = f"{'Rank' if len(poor) == 1 else 'Ranks'} {', '.join(map(str, poor))}"
    verb = "gets" if len(poor) == 1 else "get"
    counts = ", ".join(f"{rank}: {count:.0f}" for rank, count in batches.items())
    text = (
        "Cut the data into more shards, a multiple of ranks times workers, and split them by "
        "steps: shards[rank::world_size]."
    )
    if loader.dataset.startswith("datasets."):
        text += " split_dataset_by_node does that where the shards are a multiple of the ranks."
    elif "webdataset" in loader.kind + loader.dataset:
        text += " Or draw shards at random: ResampledShards gives each rank as many as it asks for."
    yield Finding(
        code="workers.unfed",
        severity="high",
        title=f"{named} of {len(made)} {verb} {'no' if none else 'far less'} data",
        explanation=f"Batches an epoch of {loader.name} by rank: {counts}. A training that "
        "synchronizes its ranks stops, or hangs, when the first of them runs out.",
        evidence={
            "unfed_ranks": poor,
            "batches_by_rank": {str(rank): count for rank, count in batches.items()},
            "seen_in": [loader.name],
        },
        fix=Fix(text=text),
        cost=1.0,
    )


def _dispatched(loader: WatchedLoader) -> Iterator[Finding]:
    """Rank 0 loads for all ranks, as accelerate does for iterable datasets unless set otherwise."""
    wait, ranks = loader.wait_fraction or 0.0, loader.loads_for
    if ranks < 2 or wait < 0.05:  # what holds nobody up is no fault
        return
    gain = 1 / (1 - wait + wait / ranks)
    text = (
        "Set dispatch_batches=False, so that each rank loads its own batches. The dataset has to "
        "split by rank: otherwise each rank reads all of it and drops what is of the others."
    )
    if loader.dataset.startswith("datasets."):
        text = (
            "Set dispatch_batches=False, so that each rank loads its own shards; the dataset needs "
            f"{ranks} of them or more (num_shards), best a multiple of ranks times workers."
        )
    yield Finding(
        code="workers.unfed",
        severity="high" if wait >= 1 / 4 else "medium",
        title=f"Rank 0 loads the batches of all {ranks} ranks",
        explanation=f"accelerate dispatches batches from rank 0: before each step {loader.name} "
        f"makes {ranks} batches there, and the loaders of the other ranks "
        f"are idle. Rank 0 waits for data in {wait:.0%} of its loop.",
        evidence={
            "ranks": ranks,
            "wait_fraction": wait,
            "gain_from": "bound",
            "gain_at": "at most",
            "seen_in": [loader.name],
        },
        fix=Fix(text=text, code=_DISPATCH),
        predicted_gain=Estimate(value=gain),
        cost=wait * (1 - 1 / ranks),
    )
