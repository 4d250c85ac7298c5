"""Which process of a job this is, and what its ranks get of the data.

torchrun and its like say the first in the environment. Of the data some ranks may get none, or rank
0 loads it all, or one waits for it while the others wait for that one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from dlprof.advise import thresholds as at
from dlprof.advise.findings.diagnosis import WRONG_DATA
from dlprof.advise.scaling import in_step, straggler_of, waits_for_late
from dlprof.advise.wording import accelerate_code
from dlprof.errors import DlprofError
from dlprof.machine.inspection import numa_node_of
from dlprof.machine.launchers import launched_as
from dlprof.machine.snapshot import cores_of_others
from dlprof.machine.tree import allowed_cpus
from dlprof.records import (
    BatchCosts,
    Config,
    Diagnosis,
    Estimate,
    Finding,
    Fix,
    RankFigures,
    Run,
    RunHeader,
    StepTimes,
    Usage,
    WatchedLoader,
)
from dlprof.store import SUFFIX, is_being_written, read_run

_TOGETHER = timedelta(minutes=2)
"""Between the starts of the ranks of one job on one machine, at most."""

_PAUSE_S, _PATIENCE_S, _LONGEST_S = 0.25, 3.0, 30.0
"""Between two looks for the files of other ranks; and how long they are looked for, where nobody
knows whether these live, and where they are seen to: a job ends no sooner than its last rank, but
one that hangs is not waited for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of several."""

    rank: int  # from 0, over all machines
    world_size: int  # processes of the job
    local_size: int = 1  # those of them on this machine, which share its cores
    local_rank: int = 0  # among those, from 0

    def file(self, path: Path) -> Path:
        """The run file of this process, where the user named one for the job.

        >>> Rank(rank=3, world_size=8).file(Path("a.dlprof.jsonl")).name
        'a.rank3.dlprof.jsonl'
        """
        suffix = SUFFIX if path.name.endswith(SUFFIX) else path.suffix
        return path.with_name(f"{path.name.removesuffix(suffix)}.rank{self.rank}{suffix}")


def read_others(
    rank: Rank,
    path: Path,
    own: RunHeader,
    *,
    patient: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[int, Run]:
    """What the other ranks of this machine have seen, each to its end.

    They end with this one, or a moment later; one that goes on for long, or was killed, is left
    out, and Ctrl-C leaves out all that go on. A file that is older than this rank's ``path``, which
    begins with ``own``, is of another job. Where machines share a folder and no launcher says how
    many ranks each has, a file may be another machine's. Who is not ``patient`` waits as long for
    one that lives as for any.
    """
    first = rank.rank - rank.local_rank
    left = set(range(first, first + rank.local_size)) - {rank.rank}
    head, _, tail = path.name.rpartition(f".rank{rank.rank}")
    seen: dict[int, Run] = {}
    begun: set[int] = set()  # of this job
    shows_living = is_being_written(path)  # as this rank's own is, where locks work
    waited_s = 0.0
    while left:
        living: set[int] = set()
        for other in sorted(left):
            place = path.with_name(f"{head}.rank{other}{tail}")
            if is_being_written(place):
                living.add(other)
            # One that lives is read as it begins, and again once it has ended.
            run = None if other in living & begun else _run_of(place, own)
            if run is None:
                continue
            begun.add(other)
            if run.header.machine.hostname != own.machine.hostname:
                left.discard(other)
            elif run.script is not None and run.script.ending != "running":
                seen[other] = run
            elif shows_living and other not in living:  # it was killed
                left.discard(other)
        left -= seen.keys()
        waits_s = _LONGEST_S if patient and left & living & begun else _PATIENCE_S
        if not left or waited_s >= waits_s:
            break
        try:
            sleep(_PAUSE_S)
        except KeyboardInterrupt:
            break
        waited_s += _PAUSE_S
    return seen


def _run_of(path: Path, own: RunHeader) -> Run | None:
    """The file of another rank; ``None`` where it has none yet, or one of an earlier job."""
    with contextlib.suppress(DlprofError):
        run = read_run(path)
        began = datetime.fromisoformat(run.header.started_at)
        return run if began >= datetime.fromisoformat(own.started_at) - _TOGETHER else None
    return None


def read_rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank of this process; ``None`` where it is the only one, or that isn't known."""
    said = launched_as(environ)
    rank, size = said["RANK"], said["WORLD_SIZE"]
    if rank is None or size is None or size <= 1 or rank >= size:
        return None
    here, local_rank = min(said["LOCAL_WORLD_SIZE"] or 1, size), said["LOCAL_RANK"]
    # Machines may have unequal numbers of them, so that the rank alone doesn't show its place.
    place = rank % here if local_rank is None else local_rank
    return Rank(rank=rank, world_size=size, local_size=here, local_rank=place)


def of_this_process(rank: Rank, host: str) -> RankFigures:
    """A rank as it ends: where it ran. What it did is in its run."""
    cpus = allowed_cpus()
    return RankFigures(
        rank=rank.rank, host=host, cpus=tuple(sorted(cpus)), numa_node=numa_node_of(cpus)
    )


def with_figures(run: Run, *ranks: RankFigures) -> Run:
    """The run of a script with the figures of its ranks."""
    if run.script is None:
        return run
    return dataclasses.replace(run, script=dataclasses.replace(run.script, ranks=ranks))


def merged(runs: Mapping[int, Run]) -> tuple[RankFigures, ...]:
    """What each of these ranks did, of the loader that costs all of them together the most.

    Of ranks whose runs are here, as the others' part in what cores others took is known of them
    alone.
    """
    waited_s: defaultdict[str, float] = defaultdict(float)  # in the main thread
    for each in itertools.chain.from_iterable(run.watched for run in runs.values()):
        waited_s[each.name] += each.waited_s - each.nested_s - each.background_s
    name = max(waited_s, key=lambda name: waited_s[name], default="")
    found = [_figures(rank, run, name) for rank, run in sorted(runs.items())]
    cpus = [frozenset(each.cpus) for each in found]
    for place, figures in enumerate(found):
        beside = [(found[n].own_cpu_cores, cpus[n]) for n in range(len(found)) if n != place]
        # A rank by itself can't know which of the others are ranks.
        seen = figures.other_cpu_cores if beside else None
        other = cores_of_others(seen, cpus[place], beside)
        found[place] = dataclasses.replace(figures, other_cpu_cores=other)
    times = [
        each.step_times
        for _, run in sorted(runs.items())
        for each in run.watched
        if each.name == name and each.step_times is not None
    ]
    steps = in_step(times) if len(times) == len(found) > 1 else None
    for place, (waits, held) in enumerate(steps or ()):
        found[place] = dataclasses.replace(
            found[place], barrier_fraction=waits, held_up_fraction=held
        )
    return tuple(found)


def _figures(rank: int, run: Run, name: str) -> RankFigures:
    """One rank by its own run; what others used has the other ranks in it."""
    script = run.script
    usage = (None if script is None else script.usage) or Usage()
    known = RankFigures(rank=rank, host=run.header.machine.hostname)
    known = dataclasses.replace(
        next(iter(() if script is None else script.ranks), known),  # which has its CPUs
        own_cpu_cores=usage.own_cpu_cores,
        other_cpu_cores=usage.other_cpu_cores,
        run_queue_wait_fraction=usage.run_queue_wait_fraction,
        read_bytes_per_s=usage.read_bytes_per_s,
    )
    loader = next((each for each in run.watched if each.name == name), None)
    if loader is None:
        return known
    costs = next((each.costs for each in run.explanations if each.trial_id == name), BatchCosts())
    rates = (loader.samples_per_s, loader.batches_per_s)
    samples, batches = (None if rate is None else Estimate(value=rate) for rate in rates)
    times = loader.step_times or StepTimes()
    pairs = [*zip(times.wait_s, times.step_s, strict=True)]
    ready = sum(wait_s <= at.NOTABLE * (wait_s + step_s) for wait_s, step_s in pairs)
    return dataclasses.replace(
        known,
        loader=name,
        samples_per_s=samples,
        batches_per_s=batches,
        startup_s=loader.startup_s,
        wait_fraction=loader.wait_fraction,
        ready_fraction=ready / len(pairs) if pairs else None,
        fetch_cpu_s=statistics.fmean(costs.cpu_s) if costs.cpu_s else None,
        fetch_run_queue_s=statistics.fmean(costs.run_queue_s) if costs.run_queue_s else None,
        fetch_io_s=statistics.fmean(costs.io_s) if costs.io_s else None,
    )


def of_straggler(found: Diagnosis | None, runs: Mapping[int, Run]) -> Diagnosis | None:
    """The diagnosis of the rank that holds the others up, where it has one; else ``found``.

    That is ``found`` itself where it is of the first rank. So it is where ``found`` is of wrong
    data. ``runs`` are those of the ranks, the first of which has all ranks' figures in its script.
    """
    for each in () if found is None else found.findings:
        # What one worker would share with others limits nothing where there are none.
        if each.code in WRONG_DATA and (each.code != "data.shared_file" or each.cost):
            return found
    first = min(runs)
    late = straggler_of(runs[first])
    if late is None or late.rank is None or not late.in_step:
        return found
    theirs = found if late.rank == first else runs[late.rank].diagnosis
    if theirs is None or not theirs.findings:
        return found
    most = 1 / max(1e-9, 1 - waits_for_late(runs[first], late))
    findings = tuple(_of_rank(late.rank, each, most) for each in theirs.findings)
    return dataclasses.replace(theirs, findings=findings)


def _of_rank(rank: int | None, finding: Finding, most: float) -> Finding:
    """A finding of a rank that others wait for, which speeds them up so much at most."""
    if finding.code == "workers.unfed":  # which is of several ranks, and names them
        return finding
    # All ranks go at its pace.
    evidence = {**finding.evidence, "rank": rank, "gain_at": "in all ranks' loops"}
    finding = dataclasses.replace(finding, title=f"Rank {rank}: {finding.title}", evidence=evidence)
    gain = finding.predicted_gain
    if gain is None or gain.value <= most:
        return finding
    return dataclasses.replace(
        finding,
        explanation=f"{finding.explanation} With more than that the next rank is the slowest.",
        evidence={**evidence, "gain_from": "bound", "gain_at": f"{evidence['gain_at']} at most"},
        predicted_gain=Estimate(value=most),
        script_gain=None,
    )


def with_ranks(
    found: Diagnosis | None,
    loaders: Sequence[WatchedLoader],
    others: Mapping[int, Sequence[WatchedLoader]],
    *,
    failed: Collection[int] = (),
) -> Diagnosis | None:
    """A diagnosis of rank 0, which saw ``loaders``, with what the other ranks show.

    ``found`` is ``None`` where no loader costs time to speak of. Ranks that ``failed`` may have got
    less data for that reason alone.
    """
    unfed = (_unfed(each, others, failed) for each in loaders)
    poor = [*itertools.chain.from_iterable(unfed)]
    slow = [*itertools.chain.from_iterable(map(_dispatched, loaders))]
    if not poor and not slow:
        return found
    if found is None:
        config = next((each.config for each in loaders if each.config is not None), Config())
        found = Diagnosis(config=config)
    # As in a profile, where workers without data come before what would speed up the others.
    return dataclasses.replace(found, findings=(*poor, *slow, *found.findings))


def _unfed(
    loader: WatchedLoader,
    others: Mapping[int, Sequence[WatchedLoader]],
    failed: Collection[int],
) -> Iterator[Finding]:
    """Ranks that iterate a loader as others do, and get no data of it, or far less."""
    if loader.loads_for > 1:  # its batches reach other ranks in another way
        return
    ranks = sorted({0: [loader], **others}.items())
    made = {rank: each for rank, seen in ranks for each in seen if each.name == loader.name}
    batches = {rank: each.batches / max(1, each.epochs) for rank, each in made.items()}
    most = max(batches.values())
    # A rank with at most half of the batches of the one that got most lacks data.
    poor = [each for each, count in batches.items() if count <= 0.5 * most and each not in failed]
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
    code = accelerate_code(loader.call.checked(), "dispatch_batches", value=False)
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
        fix=Fix(text=text, code=code),
        predicted_gain=Estimate(value=gain),
        cost=wait * (1 - 1 / ranks),
    )
