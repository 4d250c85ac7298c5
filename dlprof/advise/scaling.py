"""What several ranks that loaded at once gave: each of them, all together, and against one.

By a belief of their own: how far a window's rate may lie from the next one's counts, not only how
evenly its batches came.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from dlprof.advise import thresholds as at
from dlprof.advise.situation import measured_step
from dlprof.records import Config, Estimate, NumaBinding, RankFigures, Run, StepTimes, Trial
from dlprof.records.record import record
from dlprof.stats.belief import Belief, believe, observe
from dlprof.stats.intervals import t_quantile, typical


@record(frozen=True, slots=True, kw_only=True)
class RankSpeed:
    """One rank over all trials of the recommended configuration."""

    rank: int  # its number
    host: str  # its machine
    samples_per_s: Estimate  # its own steady rate
    startup_s: float | None  # time to its first batch, median
    barrier_fraction: float | None  # share of its time in which it waited for slower ranks, median
    slowest: int  # in how many of the trials it was the slowest
    trials: int  # of how many
    # What it is slower by than the others, in half of the trials at least; empty where that is not
    # seen.
    cause: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Scale:
    """The recommended configuration by one number of ranks."""

    ranks: int  # how many loaded at once
    num_workers: int  # of each
    samples_per_s: Estimate  # of the slowest
    together_samples_per_s: Estimate  # of all, where each waits for the slowest
    over_one: Estimate | None  # that over what one rank by itself gave, interleaved with it
    # Why so many gave less than their number of the fewest; of another number of workers, why less
    # than as many workers in more ranks. Empty where they didn't, or it isn't seen.
    limit: str = ""
    # Share of the time in which the step of the slowest rank passes, as MLPerf Storage counts that
    # of accelerators; ``None`` without a step of known length.
    utilization: Estimate | None = None


LawShape = Literal["sharp", "gradual"]


@record(frozen=True, slots=True, kw_only=True)
class ScalingLaw:
    """How the rate of each rank falls with their number, fitted to what each number gave.

    All together give no more than ``bend`` ranks would that share nothing. Of ``N`` ranks each has
    this part of what one has by itself:

    - ``sharp``: ``min(1, bend / N)``, the asymptotic bounds of a queueing network (Denning & Buzen
      1978), for batches loaded ahead hide that ranks wait for each other;
    - ``gradual``: ``1 / (1 + (N - 1) / bend)``, Amdahl's law.
    """

    shape: LawShape  # the one that lies nearer; ``sharp`` where two numbers of ranks can't show it
    # In ranks; ``None`` where it isn't certain that there is one, or it costs less than is worth
    # saying why.
    bend: Estimate | None
    straight_to: float  # ranks up to which there is none, with 97.5%
    # How far what was measured lies from the law, at most: 0.05 is 5%; ``None`` for two numbers of
    # ranks, which any law fits.
    misfit: float | None
    cause: str = ""  # what is used up beyond it; empty without a bend, or where that isn't seen


def rank_speeds(run: Run, config: Config) -> tuple[RankSpeed, ...]:
    """Each rank of the trials of one configuration; empty where one loader was measured."""
    own = (t for t in run.trials if t.config == config and t.purpose in {"measure", "scaling"})
    trials = [trial for trial in own if len(trial.ranks) > 1 and _measured(trial)]
    count = max((len(trial.ranks) for trial in trials), default=0)  # on all nodes
    trials = [trial for trial in trials if len(trial.ranks) == count]
    paces = [[rank.pace for rank in trial.ranks] for trial in trials]
    slowest = [each.index(min(each)) for each in paces]
    each_rank = (
        (str(rank), trial, each.samples_per_s)
        for trial in trials
        for rank, each in enumerate(trial.ranks)
    )
    fit = _believed(run, each_rank)
    if fit is None:
        return ()
    found = []
    for rank, seen in enumerate(zip(*(trial.ranks for trial in trials), strict=True)):
        if str(rank) not in fit.log_rates:
            continue
        causes = sorted(filter(None, (slow_for(t.ranks, rank, config.num_workers) for t in trials)))
        often = 2 * len(causes) >= len(trials)  # else one may have been disturbed
        found.append(
            RankSpeed(
                rank=rank,
                host=seen[0].host,
                samples_per_s=fit.rate(str(rank)),
                startup_s=typical(each.startup_s for each in seen),
                barrier_fraction=typical(each.barrier_fraction for each in seen),
                slowest=slowest.count(rank),
                trials=len(trials),
                cause=statistics.mode(causes) if causes and often else "",
            )
        )
    return tuple(found)


OTHER_JOB, CORES, SHARD, NODE, STORAGE, WAITS = (
    "another job on its cores",
    "its cores",
    "its shard: a sample takes more CPU time",
    "its NUMA node: a sample takes more CPU time on all its ranks",
    "its storage",
    "its storage or network: its samples wait, and no disk is read",
)


def slow_for(ranks: Sequence[RankFigures], rank: int, num_workers: int) -> str:
    """What a rank is slower by than most others; empty for one that isn't, or doesn't show it.

    By where the time goes that its samples take longer: CPU time, waiting for a core, or neither.
    On a busy machine more CPU time brings more waiting, which counts with it.
    """
    times = [_times(each, num_workers) for each in ranks]
    known = [each for each in times if each is not None]
    slow = times[rank]
    if slow is None or len(known) < 2:
        return ""
    usual = [statistics.median_low(sorted(part)) for part in zip(*known, strict=True)]
    took_s = slow[0] - usual[0]
    if took_s < at.SLOWER_RANK * usual[0] or not _surely_slower(ranks, rank):
        return ""
    delay = usual[2] / usual[1] if usual[1] else 0.0  # of a second on a core
    cpu_s, delayed_s = (slow[1] - usual[1]) * (1 + delay), slow[2] - slow[1] * delay
    rates = (each.samples_per_s or each.batches_per_s for each in ranks)
    reads = [
        (each.read_bytes_per_s or 0.0) / rate.value if rate is not None and rate.value else 0.0
        for each, rate in zip(ranks, rates, strict=True)
    ]
    # A page a sample, which costs CPU time, too: less is not the data. Ten times what most fetch,
    # and it has its data not in memory, as they have theirs.
    page = 4096
    if reads[rank] > max(page, 10 * statistics.median_low(reads)):
        cpu_s = 0.0
    parts = {CORES: delayed_s, SHARD: cpu_s, STORAGE: took_s - cpu_s - delayed_s}
    found = max(parts, key=lambda part: parts[part])
    others = [each.other_cpu_cores or 0.0 for each in ranks]
    if found == CORES and others[rank] > statistics.median_low(others) + at.OTHERS:
        return OTHER_JOB  # and not one that all ranks share their cores with
    if found == SHARD and _is_of_node(ranks, rank, times):
        return NODE
    if found == STORAGE and reads[rank] < page:
        # What is left of a window may be anything; blocked time of a batch's making was seen.
        return WAITS if ranks[rank].fetch_io_s is not None else ""
    return found


def _is_of_node(
    ranks: Sequence[RankFigures], rank: int, times: Sequence[tuple[float, float, float] | None]
) -> bool:
    """Whether all ranks of its NUMA node, and none of another, take as much more CPU time."""
    node, here, there = ranks[rank].numa_node, list[float](), list[float]()
    for each, known in zip(ranks, times, strict=True):
        if known is None or each.numa_node is None:
            return False
        (here if each.numa_node == node else there).append(known[1])
    return len(here) > 1 and len(there) > 1 and min(here) > (1 + at.SLOWER_RANK) * max(there)


@record(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Which rank of a training is late with its data."""

    rank: int | None  # which, where it stays one rank; ``None`` where it changes
    # Whether the others wait for it in their steps; else each goes at its own pace.
    in_step: bool = True
    # Share of the time in which the others wait in their steps for its batches; where it changes,
    # that in which a rank waits for those of others; without steps in common, that in which it
    # waits for data itself.
    waits_fraction: float
    cause: str = ""  # what it is slow for; empty where that isn't seen, or it changes


def straggler(ranks: Sequence[RankFigures], num_workers: int) -> Straggler | None:
    """The late one; ``None`` where all are alike, or nearly."""
    held = _held_up(ranks)
    late = held or [each.wait_fraction or 0.0 for each in ranks]
    place = max(range(len(late)), key=lambda n: late[n], default=0)
    if held is not None and sum(held) >= at.NOTABLE and held[place] < at.STAYS * sum(held):
        return Straggler(rank=None, waits_fraction=sum(held) * (len(held) - 1) / len(held))
    if not _is_late(ranks, place):
        return None
    return Straggler(
        rank=ranks[place].rank,
        in_step=held is not None,
        waits_fraction=late[place],
        cause=slow_for(ranks, place, num_workers),
    )


def _is_late(ranks: Sequence[RankFigures], rank: int) -> bool:
    """Whether the others wait for it, or it waits longer than they do where none waits for it."""
    held = _held_up(ranks)
    if held is not None:
        return held[rank] >= max(at.NOTABLE, at.STAYS * sum(held))
    waits = {n: wait for n, e in enumerate(ranks) if (wait := e.wait_fraction) is not None}
    mine = waits.pop(rank, None)  # of none that iterates no such loader
    return mine is not None and bool(waits) and mine - max(waits.values()) >= at.NOTABLE


def straggler_of(run: Run) -> Straggler | None:
    """That of a script's ranks, where its run has their figures."""
    ranks = () if run.script is None else run.script.ranks
    configs = (each.config for each in run.watched if ranks and each.name == ranks[0].loader)
    config = next(filter(None, configs), Config())
    return straggler(ranks, config.num_workers)


def waits_for_late(run: Run, late: Straggler) -> float:
    """Share of the time that each other rank waits in its steps for the late one, at least.

    Without it all are as fast as the next rank is by itself, which is waited for then.
    """
    ranks = () if run.script is None else run.script.ranks
    waits = (each.barrier_fraction or 0.0 for each in ranks if each.rank != late.rank)
    return min(waits, default=0.0)


def _held_up(ranks: Sequence[RankFigures]) -> list[float] | None:
    held = [each.held_up_fraction for each in ranks if each.held_up_fraction is not None]
    return held if len(held) == len(ranks) > 1 else None


def in_step(times: Sequence[StepTimes]) -> list[tuple[float, float]] | None:
    """What each rank waited in its steps for batches of others, and they for its own.

    Where a step synchronizes, no rank asks for its next batch before the last one has had this one.
    So a rank whose batch came earlier waits in its step for the last one's. What that one waited
    for its batch is the loader's part of it; the rest is the step's.
    Shares of the time, as in ``RankFigures``; ``None`` where the ranks don't go step by step.
    """
    stride = max(each.stride for each in times)
    kept = [
        [*zip(each.got_s, each.wait_s, each.step_s, strict=True)][:: stride // each.stride]
        for each in times
    ]
    steps = [*zip(*kept, strict=False)]
    whole_s = sum(wait_s + step_s for step in steps for _, wait_s, step_s in step) / len(times)
    if len(steps) < 10 or not whole_s:
        return None
    waited, held, together = [0.0] * len(times), [0.0] * len(times), 0
    for step in steps:
        last = max(range(len(step)), key=lambda n: step[n][0])
        last_s, last_wait_s, _ = step[last]
        together += min(got_s + step_s for got_s, _, step_s in step) >= last_s
        for rank, (got_s, _, step_s) in enumerate(step):
            lost_s = min(last_s - got_s, last_wait_s, step_s)
            waited[rank] += lost_s / whole_s
            held[last] += lost_s / whole_s / (len(step) - 1)
    if together < at.IN_STEP * len(steps):
        return None
    return [*zip(waited, held, strict=True)]


def _surely_slower(ranks: Sequence[RankFigures], rank: int) -> bool:
    """Whether the interval of its pace lies below that of most others; in a script, it is late."""
    if ranks[rank].loader:
        return _is_late(ranks, rank)
    paces = [
        each.samples_per_s.times(each.freed) for each in ranks if each.samples_per_s is not None
    ]
    if len(paces) < len(ranks):
        return False
    mine = paces.pop(rank)
    usual = sorted(paces, key=lambda each: each.value)[len(paces) // 2]
    return mine.high is not None and usual.low is not None and mine.high < usual.low


def _times(figures: RankFigures, num_workers: int) -> tuple[float, float, float] | None:
    """Seconds that a sample takes its loaders, those on a core and those waiting for one.

    Of a batch, where its making was followed: that knows nothing of what the step takes.
    """
    followed = figures.fetch_cpu_s, figures.fetch_run_queue_s, figures.fetch_io_s
    if None not in followed:
        on_core_s, queued_s, blocked_s = (each or 0.0 for each in followed)
        return on_core_s + queued_s + blocked_s, on_core_s, queued_s
    rate, own = figures.samples_per_s, figures.own_cpu_cores
    delayed = figures.run_queue_wait_fraction
    if rate is None or not rate.value or own is None or delayed is None or delayed >= 1:
        return None
    alone_s = (1 - (figures.barrier_fraction or 0.0)) / rate.value  # waiting for others left out
    cpu_s = own / rate.value
    return max(1, num_workers) * alone_s, cpu_s, cpu_s * delayed / (1 - delayed)


def scales(run: Run) -> tuple[Scale, ...]:
    """What each number of ranks gave, of the trials that were made for it; fewest first.

    By as many workers a rank as all of them have, and, behind those, by as many workers in all.
    """
    scaled = _scaled(run)
    if scaled is None:
        return ()
    groups, fit, workers = scaled
    # As many workers in all as the ranks of one machine have; on several nodes all ranks are more.
    fewest, here = min(c for c, each in groups if each == workers), run.header.launched
    most = here if (here, workers) in groups else max(groups)[0]
    found: list[Scale] = []
    for count, each in sorted(groups, key=lambda key: (key[1] != workers, key)):
        name, limit = str((count, each)), ""
        # What it would give if nothing were shared, or if its workers had more main processes.
        against = (fewest if each == workers else most, workers)
        rate, other = fit.rate(name), fit.rate(str(against)).value
        other *= 1.0 if each == workers else most / count
        if rate.value < at.SCALES * other and each == workers:
            limit = _limit(run, groups[count, each], groups[against])
        elif rate.value < at.SCALES * other and _receiving(run, groups[count, each]) >= at.BUSY:
            limit = _RECEIVING
        over = fit.ratio(name, str((1, workers))).times(count) if (1, workers) in groups else None
        found.append(
            Scale(
                ranks=count,
                num_workers=each,
                samples_per_s=rate,
                together_samples_per_s=rate.times(count),
                over_one=Estimate(value=1.0) if (count, each) == (1, workers) else over,
                limit=limit,
                utilization=_utilization(run, groups[count, each], rate),
            )
        )
    return tuple(found)


def _utilization(run: Run, trials: Sequence[Trial], rate: Estimate) -> Estimate | None:
    each, step_s = typical(trial.samples_per_batch or None for trial in trials), measured_step(run)
    if not each or not sum(step_s):
        return None
    return rate.through(lambda samples_per_s: min(1.0, samples_per_s * sum(step_s) / each))


_PARTS: Final[Mapping[LawShape, Callable[[float, float], float]]] = {
    "sharp": lambda ranks, bend: min(1.0, bend / ranks),
    "gradual": lambda ranks, bend: 1.0 / (1.0 + (ranks - 1.0) / bend),
}


def scaling_law(run: Run) -> ScalingLaw | None:
    """The law that what each number of ranks gave follows; ``None`` without one rank by itself.

    By least squares over logarithms, each weighted by how surely the belief knows it, and the
    interval by the likelihood's profile: all bends that explain what was measured nearly as well.
    """
    scaled = _scaled(run)
    if scaled is None:
        return None
    groups, fit, workers = scaled
    counts = sorted(count for count, each in groups if each == workers)
    if counts[0] != 1 or len(counts) < 2:
        return None
    names = {count: str((count, workers)) for count in counts}
    # Of each difference to one rank by itself, half of the variance is its own: what drifts is in
    # both, and in the rate of one rank, which is free.
    own = {c: fit.error(names[c], names[1]) ** 2 / 2 for c in counts[1:]}
    own[1] = statistics.fmean(own.values())
    near = t_quantile(0.975, fit.df) ** 2

    def off(shape: LawShape, bend: float) -> tuple[float, float]:
        """Sum of squares over their variances, and the largest misfit."""
        left = {c: fit.log_rates[names[c]] - math.log(_PARTS[shape](c, bend)) for c in counts}
        whole = math.fsum(1 / own[c] for c in counts)
        mean = math.fsum(left[c] / own[c] for c in counts) / whole
        squares = math.fsum((left[c] - mean) ** 2 / own[c] for c in counts)
        return squares, math.expm1(max(abs(left[c] - mean) for c in counts))

    most, steps = counts[-1], 400
    bends = {
        "sharp": [most ** (step / steps) for step in range(steps + 1)],
        # A bend so far away is none: 1 % for all of them.
        "gradual": [(100 * most) ** (step / steps) for step in range(-steps // 4, steps + 1)],
    }
    shape: LawShape = "sharp"
    fits = {each: [(*off(each, bend), bend) for bend in bends[each]] for each in _PARTS}
    best = {each: min(found) for each, found in fits.items()}
    straight = fits["sharp"][-1][0] <= best["sharp"][0] + near
    if not straight and len(counts) > 2 and best["gradual"][0] < best["sharp"][0]:
        shape = "gradual"

    def among(shape: LawShape) -> list[float]:
        """Bends that explain it nearly as well; the more, the worse the law fits."""
        squares, misfits = best[shape][0], 1.0
        if len(counts) > 2:
            misfits = max(1.0, squares / (len(counts) - 2))
        return [each for found, _, each in fits[shape] if found <= squares + near * misfits]

    _, worst, bend = best[shape]
    misfit, ends = None if len(counts) < 3 else worst, among(shape)
    if straight or ends[-1] == bends[shape][-1] or _PARTS[shape](most, bend) >= at.SCALES:
        # How far there is none only the law says that has one.
        return ScalingLaw(shape=shape, bend=None, straight_to=among("sharp")[0], misfit=misfit)
    limits = (each.limit for each in scales(run) if each.num_workers == workers)
    cause = next(filter(None, limits), "") or _limit(run, groups[most, workers], groups[1, workers])
    return ScalingLaw(
        shape=shape,
        bend=Estimate(value=bend, low=ends[0], high=ends[-1]),
        straight_to=ends[0],
        misfit=misfit,
        cause="" if cause == NOT_SEEN else cause,
    )


def numa_binding(run: Run, config: Config) -> NumaBinding | None:
    """What binding ranks to NUMA nodes brings; ``None`` of one rank, or where there is one node."""
    tried = [each for each in run.trials if each.purpose == "binding"]
    mine = [each for each in tried if each.config == config]
    found = NumaBinding(trials=tuple(each.id for each in mine))
    rates = ((each.numa_binding or _FREE, each, each.samples_per_s) for each in mine)
    fit = _believed(run, (each for each in rates if _measured(each[1])))
    whys = [each.failure.message for each in mine if each.failure is not None]
    if fit is not None and {_FREE, found.mode} == fit.log_rates.keys() and not whys:
        gain = fit.ratio(found.mode, _FREE)
        return dataclasses.replace(found, gain=gain, pays=at.is_gain(gain))
    whys += [each.reason for each in run.header.left_out if each.setting == found.option]
    whys += [f"it was tried with {each.config.text}" for each in tried if each.config != config]
    if not whys and (run.header.launched < 2 or (run.header.machine.numa_nodes or 1) < 2):
        return None
    return dataclasses.replace(found, unavailable=[*whys, _NOT_REACHED][0])


_FREE: Final = "free"
_NOT_REACHED: Final = "the sweep did not come to it: --resume it with a larger --budget"

_Groups = Mapping[tuple[int, int], Sequence[Trial]]
"""Trials of the recommended configuration by numbers of ranks and of workers of each."""


def _scaled(run: Run) -> tuple[_Groups, Belief, int] | None:
    """What was measured of other numbers of ranks, and the workers of each where all ranks load."""
    groups: dict[tuple[int, int], list[Trial]] = {}
    for trial in run.trials:
        if trial.purpose == "scaling" and _measured(trial):
            key = max(1, len(trial.ranks)), trial.config.num_workers
            groups.setdefault(key, []).append(trial)
    each = ((str(key), t, t.samples_per_s) for key, trials in groups.items() for t in trials)
    fit = _believed(run, each)
    return None if fit is None else (groups, fit, max(groups)[1])


def _limit(run: Run, more: Sequence[Trial], fewer: Sequence[Trial]) -> str:
    """What more ranks ran out of, as far as their windows show it."""
    usages = [trial.usage for trial in more]
    reads_at_most = run.header.machine.read_limit_bytes_per_s
    own, had = (
        typical(getattr(usage, name) for usage in usages)
        for name in ("own_cpu_cores", "available_cpu_cores")
    )
    delayed = typical(usage.run_queue_wait_fraction for usage in usages) or 0.0
    if own is not None and had and (own >= at.USED_UP * had or delayed > at.STARVED):
        return "cores"
    if (typical(usage.io_pressure_fraction for usage in usages) or 0.0) > at.STORAGE_WAITS:
        reads = typical(trial.node_usage.read_bytes_per_s for trial in more) or 0.0
        held = reads_at_most is not None and reads >= at.USED_UP * reads_at_most
        return "storage: a cgroup throttles reads" if held else "storage"
    if max(_receiving(run, trials) for trials in (more, fewer)) >= at.BUSY:
        return _RECEIVING
    one, two = (
        typical(
            trial.usage.own_cpu_cores / trial.samples_per_s.value
            for trial in trials
            if trial.usage.own_cpu_cores and trial.samples_per_s is not None
        )
        for trials in (fewer, more)
    )
    if one is not None and two is not None and two > (1 + at.SLOWER_RANK) * one:
        return "memory bandwidth, caches or the cores' clock: a sample takes more CPU time"
    waited = [each.barrier_fraction or 0.0 for trial in more for each in trial.ranks]
    barrier = max(waited, default=0.0) > at.STORAGE_WAITS
    return "barrier: some ranks wait for slower ones" if barrier else NOT_SEEN


NOT_SEEN: Final = "not seen: neither cores nor storage"
_RECEIVING: Final = "receiving: each main process takes in batches all the time"


def _receiving(run: Run, trials: Sequence[Trial]) -> float:
    """Share of its time in which a rank's main process takes in batches, by calibrated costs."""
    from dlprof.model.work import Conditions, work_of

    config, calibration = trials[0].config, run.calibration
    rate = typical(trial.batches_per_s.value for trial in trials if trial.batches_per_s)
    if calibration is None or not config.num_workers or rate is None:
        return 0.0
    try:
        work = work_of(calibration, config, Conditions(cores=1.0))
    except ValueError:  # of another batch size, or without a batch
        return 0.0
    return rate * work.main_s


def _measured(trial: Trial) -> bool:
    """Whether it has a rate and its uncertainty: a window that the budget cuts short has none."""
    rate = trial.samples_per_s
    return trial.has_rate and rate is not None and rate.low is not None


def _believed(run: Run, rates: Iterable[tuple[str, Trial, Estimate | None]]) -> Belief | None:
    """The rate of each key from its trials; ``None`` without any.

    Where more ranks load, cores get slower: that is their doing, and no matter of the window.
    """
    seen, cores = [], run.header.machine.usable_cores
    for key, trial, rate in rates:
        if rate is None or rate.value <= 0:
            continue
        usage = dataclasses.replace(trial.usage, core_speed=None)
        alone = dataclasses.replace(trial, usage=usage, samples_per_s=rate)  # as sure as that is
        if (found := observe(alone, usable_cores=cores)) is not None:
            seen.append(dataclasses.replace(found, key=key, group=""))
    return believe(seen) if seen else None
