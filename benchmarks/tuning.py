"""How good is ``dlprof.tune``, and what does it cost?

Replayed: half an hour of training each, in which something happens at ten minutes, on machines and
loaders drawn at random (``tuned_world.py``), against the best of a grid of settings that stay; and
the time that a batch spends in the tuner in the end. With ``--live`` the datasets of ``picks.py``
instead, two minutes each (``tuned_live.py``): untuned, tuned, and at the best of some settings that
stay, interleaved. That adds to what earlier runs found, until all is known to 1 %.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tuned_live
from common import RESULTS, Report, Table, keep, parser, publish, surroundings
from torch.utils.data import DataLoader
from tuned_live import QUIET, Lived, against, restarts, settling
from tuned_world import PHASES, Training, World, statics

import dlprof
from dlprof.errors import DlprofError
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window, opening

NAME = "tuning"
KINDS = ("map", "iterable")
RUNS, QUICK_RUNS = 20, 1
NEAR, SHARE, FLOOR, SETTLED_S = 0.03, 0.95, 0.98, 60.0
_EPOCH_S = 150.0
_STATIC_S = 60.0
_LIKELY = 4
"""Settings that are the best of a minute each, and are then run for as long as the tuned one."""

KNOWN = "the best, known beforehand"
_SWEEP_S = 60.0
PADDLES_BATCHES = 500
"""Of each number of workers that Paddle's tuner tries."""

_CALLS = 200_000

FULL_MINUTES = 30.0
_LEAST_LIVE_S, _MOST_LIVE_S = 90.0, 180.0
_HALF_HOUR_S, _AT_S = 1800.0, 600.0
_DATASETS = 13


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One training, tuned, against its twins.

    Attributes:
        kind: Of the dataset.
        phase: What happened.
        lost: Batches that the best setting that stays had more, as a share; negative for fewer.
        settled_s: When nothing was tried any more for the first time.
        floor: Batches of the worst minute over those of the untuned twin, which meets the same.
        over: Whether there ever were more workers than allowed.
        tried: Settings that were tried.
        others: What is lost without tuning, by other ways to set a loader, and by whoever knows
            beforehand what will be best before and after, and changes to it when it may: an
            iterable dataset at the next edge of an epoch.
    """

    kind: str
    phase: str
    lost: float
    settled_s: float
    floor: float
    over: bool
    tried: int
    others: Mapping[str, float]


def drawn(rng: random.Random) -> tuple[World, Setting, int]:
    """A loader on a machine: what it costs, where it starts, and how many workers it may have."""
    cores = rng.choice((2, 4, 8, 16))
    batch_s = 0.01 * 12 ** rng.random()
    waits = rng.choice((0.0, rng.random(), 0.95))
    most = max(16, 2 * cores)
    need = rng.choice((0.7, 1.5, 3.0, 6.0))
    world = World(
        cpu_s=batch_s * (1 - waits),
        io_s=batch_s * waits,
        step_s=batch_s / need,
        cores=cores,
        spread=rng.choice((0.05, 0.2, 0.6)),
        slow=rng.choice((0.0, 0.0, 0.03)),
        slow_factor=8.0,
    )
    return world, Setting(rng.choice((1, 2, 2, 4, 8)), rng.choice((2, 2, 4))), most


def replay(kind: str, phase: str, seed: int) -> Replayed:
    """One training and its twins."""
    world, start, most = drawn(random.Random(f"{kind} {phase} {seed}"))
    if kind == "iterable":
        start = start._replace(workers=max(2, start.workers))
    training = Training(
        world=world, phase=phase, seed=seed, epoch_s=_EPOCH_S if kind == "iterable" else 1e9
    )
    begun, late_s, cores = start, 0.0, int(world.cores)
    if kind == "iterable":
        fetch_s, cpu_s, late_s = training.attempt()
        begun = opening(start, fetch_s, cpu_s, most_workers=most, cores=cores)
        late_s += training.start_s * (begun.workers - start.workers)
    control = Control(begun, most, live=kind == "map", cores=cores, least=start.workers)
    ran = training.run(begun, control, late_s=late_s)
    twin = training.run(start, beside=ran)
    rates = {each: _rates(training, each) for each in statics(most)}
    seconds = training.at_s, training.whole_s - training.at_s
    likely = sorted(rates, key=lambda each: -_batches(rates[each], seconds))[:_LIKELY]
    best = max(training.run(each).batches for each in likely)
    others = _others(training, start, rates, live=kind == "map")
    return Replayed(
        kind=kind,
        phase=phase,
        lost=1 - ran.batches / best,
        settled_s=ran.settled_s if ran.settled_s is not None else float("inf"),
        floor=min(
            mine / max(1, its)
            for mine, its in zip(ran.by_minute[:-1], twin.by_minute, strict=False)
        ),
        over=ran.most_workers > max(most, start.workers),
        tried=len(control.changes),
        others={name: 1 - batches / best for name, batches in others.items()},
    )


def _batches(rates: Sequence[float], seconds: Sequence[float]) -> float:
    return math.fsum(rate * each for rate, each in zip(rates, seconds, strict=True))


def _rates(training: Training, setting: Setting) -> tuple[float, float]:
    """Batches a second under a setting that stays, before and after, by a minute of each."""
    worlds = training.world, training.world.changed(training.phase)
    before, after = (
        dataclasses.replace(training, world=each, phase="quiet", whole_s=_STATIC_S)
        .run(setting)
        .batches
        / _STATIC_S
        for each in worlds
    )
    return before, after


class _Known:
    """Has what is best before and after something happens."""

    cores = 0
    settled_s: float | None = None

    def __init__(self, settings: Sequence[Setting], at_s: float, *, live: bool) -> None:
        self._settings, self._at_s, self.live = settings, at_s, live
        self._total_s = 0.0

    @property
    def kept(self) -> Setting:
        """What is best by now."""
        return self._settings[self._total_s >= self._at_s]

    def begin(self) -> Ask:
        return Ask(self.kept, 0, 1, 1.0)

    def look(self, window: Window) -> Ask:
        self._total_s += window.took_s
        return self.begin()


def _others(
    training: Training,
    start: Setting,
    rates: Mapping[Setting, tuple[float, float]],
    *,
    live: bool,
) -> dict[str, float]:
    """Batches under each other way to set a loader; what some take beforehand is lost.

    Lightning warns below one worker a core but one; grain takes as many workers as cores where
    their memory suffices; for Paddle see ``head_to_head.py``. A sweep is taken to find the best.
    """
    cores = int(training.world.cores)
    best = [max(rates, key=lambda each: rates[each][part]) for part in (0, 1)]
    paddles, tried_s = _paddle(training, cores)
    known = _Known(best, training.at_s, live=live)
    ran = {
        "untuned": training.run(start),
        "torch's default": training.run(Setting(0, 0)),
        "Lightning's warning": training.run(Setting(max(1, cores - 1), 2)),
        "grain's rule": training.run(Setting(cores, 2)),
        "Paddle's sweep": training.run(paddles),
        "the best at first": training.run(best[0]),
        KNOWN: training.run(start, known),
    }
    spent = {"Paddle's sweep": tried_s, "the best at first": _SWEEP_S}
    return {
        name: each.batches - spent.get(name, 0.0) * each.by_minute[0] / 60
        for name, each in ran.items()
    }


def _paddle(training: Training, cores: int) -> tuple[Setting, float]:
    """What Paddle's tuner sets, and the seconds that it takes."""
    alone = dataclasses.replace(
        training, world=dataclasses.replace(training.world, step_s=0.0), whole_s=_STATIC_S
    )
    best, least_s, spent_s = Setting(0, 0), math.inf, 0.0
    for workers in range(0, math.ceil(cores / 2), 2):
        setting = Setting(workers, 2 if workers else 0)
        cost_s = _STATIC_S / alone.run(setting).batches
        spent_s += PADDLES_BATCHES * cost_s
        if least_s * 0.75 <= cost_s:
            break
        best, least_s = setting, cost_s
    return best, spent_s


def replay_all(runs: int) -> list[Replayed]:
    """So many trainings of each kind and phase."""
    jobs = [(kind, phase, seed) for kind in KINDS for phase in PHASES for seed in range(runs)]
    with concurrent.futures.ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(replay, *zip(*jobs, strict=True), chunksize=1))


def replayed_table(found: Sequence[Replayed]) -> Table:
    """A row for each kind and phase, and one for all of a kind."""
    columns = (
        *("dataset", "what happens", "runs", "lost, median %", "lost, 95th percentile %"),
        *("within 3 %", "settled, slowest s", "a minute below 0.98", "untuned, median %"),
        *("known beforehand, median %", "known beforehand, within 3 %"),
    )
    rows = []
    for kind in KINDS:
        for phase in (*PHASES, "all"):
            some = [e for e in found if e.kind == kind and phase in (e.phase, "all")]
            known = [each.others[KNOWN] for each in some]
            rows.append(
                (
                    *(kind, phase, str(len(some)), *_shares([each.lost for each in some])),
                    f"{max(each.settled_s for each in some):.0f}",
                    f"{sum(each.floor < FLOOR for each in some)}",
                    f"{100 * statistics.median(each.others['untuned'] for each in some):.1f}",
                    *(_shares(known)[part] for part in (0, 2)),
                )
            )
    return Table("Replayed half hours, against the best setting that stays", columns, rows)


def _shares(lost: Sequence[float]) -> tuple[str, str, str]:
    """The median, the 95th percentile, and how many are near the best."""
    ordered = sorted(lost)
    return (
        f"{100 * statistics.median(ordered):.1f}",
        f"{100 * ordered[int(0.95 * (len(ordered) - 1))]:.1f}",
        f"{sum(each <= NEAR for each in ordered)}",
    )


def others_table(found: Sequence[Replayed]) -> Table:
    """A row for each way to set a loader."""
    shown = ("lost, median %", "lost, 95th percentile %", "within 3 %")
    columns = ("loader set by", *(f"{kind}: {each}" for kind in KINDS for each in shown))
    rows = []
    for name in ("dlprof.tune", *found[0].others):
        lost = {
            kind: [e.others.get(name, e.lost) for e in found if e.kind == kind] for kind in KINDS
        }
        rows.append((name, *(each for kind in KINDS for each in _shares(lost[kind]))))
    return Table("Side by side, in the same half hours", columns, rows)


def cost_us(calls: int) -> float:
    """Microseconds that one batch of a settled loader spends in the tuner's own code."""
    indexed: Any = range(1 << 30)
    made: Any = DataLoader(indexed, batch_size=1, num_workers=1)
    dlprof.tune(made)
    batches = iter(made)
    tap = vars(batches)["_dlprof_tap"]
    tap.begin(Ask(tap.setting, 0, 1 << 60, 0.0))
    in_flight = batches._task_info  # noqa: SLF001 - as many as there may be, or the valve would open

    def plain(_iterator: object) -> None:
        return None

    def tapped() -> None:
        tap(plain, batches)
        batches._try_put_index()  # noqa: SLF001 - the valve

    assert in_flight  # noqa: S101 - else indices would be handed out
    took = []  # of CPU time, whoever else is on the machine
    for _ in range(5):
        began_s = time.thread_time()
        for _ in range(calls):
            tapped()
        between_s = time.thread_time()
        for _ in range(calls):
            plain(batches)
        took.append((2 * between_s - began_s - time.thread_time()) / calls)
    return 1e6 * min(took)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HalfHour:
    """What live trainings of one dataset say of half an hour in which something happens, or not.

    Attributes:
        world: Name of the dataset.
        phase: What happened.
        lost: Batches that the best setting that stays had more, as a share, settling and epoch
            restarts included.
        steady: The same without these; and its standard error, with what runs differ by.
        restarts: Share of the time, settled, that epoch restarts take; and of the best one's.
        untuned: Rate over that of the untuned twin, settled; and its standard error.
        alone_s: How long the tuned one went on alone.
        settling_s: Seconds of these that it lost on the best one.
        settled: Whether it tried nothing any more then.
        runs: Of the dataset. Of a single one the errors don't have what runs differ by.
    """

    world: str
    phase: str
    lost: float
    steady: tuple[float, float]
    restarts: tuple[float, float]
    untuned: tuple[float, float]
    alone_s: float
    settling_s: float
    settled: bool
    runs: int

    @property
    def error(self) -> float:
        """The larger of both standard errors."""
        return max(self.steady[1], self.untuned[1])


def half_hours(lived: Sequence[Lived]) -> list[HalfHour]:
    """Two of each dataset: nothing happens, or something at ten minutes."""
    found = []
    for world in dict.fromkeys(each.world for each in lived):
        some = [each for each in lived if each.world == world]
        lost_s, left_s = 0.0, _HALF_HOUR_S
        for phase in (QUIET, some[0].event):
            log, error = _together([against(each.turns, "best", phase) for each in some])
            ratio, its = _together([against(each.turns, "untuned", phase) for each in some])
            alone = [settling(each.turns, phase) for each in some]
            alone_s, settling_s = (statistics.fmean(each) for each in zip(*alone, strict=True))
            restart, its_restart = (
                statistics.fmean(shares)
                for shares in zip(*(_restart_shares(each, phase) for each in some), strict=True)
            )
            steady = 1 - math.exp(log)
            share = 1 - math.exp(log) * (1 - restart) / (1 - its_restart)
            found.append(
                HalfHour(
                    world=world,
                    phase=phase,
                    lost=(lost_s + settling_s + share * (left_s - alone_s)) / _HALF_HOUR_S,
                    steady=(steady, error),
                    restarts=(restart, its_restart),
                    untuned=(math.exp(ratio), its),
                    alone_s=alone_s,
                    settling_s=settling_s,
                    settled=all(phase in each.rested for each in some),
                    runs=len(some),
                )
            )
            lost_s, left_s = settling_s + share * (_AT_S - alone_s), _HALF_HOUR_S - _AT_S
    return found


def _restart_shares(lived: Lived, phase: str) -> tuple[float, float]:
    """Of their time, that the tuned one and the best lose to epoch restarts.

    One turn in twenty has such an edge. What only the tuned one came to is none of its losses,
    unless the best has no workers to start.
    """
    mine, its = (restarts(lived.turns, phase, arm) for arm in ("tuned", "best"))
    seen = any(t.restart_batches for t in lived.turns if (t.phase, t.arm) == (phase, "best"))
    return (mine, its) if seen or lived.best == tuned_live.key(NO_WORKERS) else (0.0, 0.0)


def _together(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Several means as one, each by how sure it is, and its standard error.

    Each run has processes of its own, whose luck its turns don't show: what runs differ by beyond
    their errors is added to the error of each (DerSimonian and Laird).
    """
    known = [(mean, max(error, 1e-6) ** 2) for mean, error in found if error < math.inf]
    if not known:
        return 0.0, math.inf

    def weighed(between: float) -> tuple[float, list[float]]:
        weights = [1 / (square + between) for _, square in known]
        sums = (w * each for w, (each, _) in zip(weights, known, strict=True))
        return math.fsum(sums) / math.fsum(weights), weights

    mean, weights = weighed(0.0)
    apart = math.fsum(w * (each - mean) ** 2 for w, (each, _) in zip(weights, known, strict=True))
    free = math.fsum(weights) - math.fsum(w * w for w in weights) / math.fsum(weights)
    more = apart - (len(known) - 1)
    mean, weights = weighed(more / free if more > 0 and len(known) > 1 else 0.0)
    return mean, 1 / math.sqrt(math.fsum(weights))


def live_all(known: Sequence[Lived], names: Sequence[str], minutes: float) -> Iterator[Lived]:
    """What is missing, as far as the time goes: datasets that weren't run, then the least sure."""
    due_s = time.monotonic() + 60 * minutes
    errors: dict[str, float] = {}
    for each in half_hours(known):
        errors[each.world] = max(errors.get(each.world, 0.0), each.error)
    missing = [
        world
        for world in tuned_live.worlds()
        if errors.get(world.name, math.inf) > tuned_live.SURE
        and (not names or world.name.startswith(tuple(names)))
    ]
    missing.sort(key=lambda world: -errors.get(world.name, math.inf))
    for place, world in enumerate(missing):
        left_s = due_s - time.monotonic()
        seconds = min(_MOST_LIVE_S, max(_LEAST_LIVE_S, left_s / (len(missing) - place)))
        if left_s < _LEAST_LIVE_S:
            print(f"{world.name}: no time left", file=sys.stderr, flush=True)
            continue
        try:
            lived = tuned_live.live(world, tuned_live.Design(), seconds)
        except DlprofError as error:
            print(f"{world.name}: left out, {error.message}", file=sys.stderr, flush=True)
            continue
        for each in half_hours([lived]):
            share, sure = each.steady
            said = f"{100 * each.lost:.1f} % lost in half an hour, {100 * share:.1f} % settled"
            print(
                f"{world.name}, {each.phase}: {said} (± {100 * sure:.1f})",
                file=sys.stderr,
                flush=True,
            )
        yield lived


def earlier(path: Path) -> list[Lived]:
    """What earlier runs found; nothing where there is no result yet."""
    kept = json.loads(path.read_text())["data"]["live"] if path.exists() else []
    return [Lived(**e | {"turns": [tuned_live.Turn(**turn) for turn in e["turns"]]}) for e in kept]


def live_report(lived: Sequence[Lived]) -> Report:
    """What the trainings of real loaders say."""
    found = half_hours(lived)
    near = sum(each.lost <= NEAR for each in found)
    low = sum(math.log(e.untuned[0]) + 2 * e.untuned[1] < math.log(FLOOR) for e in found)
    disordered = sum(each.disordered for each in lived)
    over = sum(each.most_workers > tuned_live.MOST_WORKERS for each in lived)
    known = [each for each in found if each.error <= tuned_live.SURE]
    once = sum(each.runs == 1 for each in known)
    whole = len(found) >= 2 * _DATASETS
    passed = (
        near >= SHARE * len(found)
        and statistics.median([each.lost for each in found] or [0.0]) <= 0.01
        and len(known) == len(found)
        and not (low or disordered or over)
    )
    return Report(
        name=f"{NAME}_live",
        title="A loader that tunes itself, live",
        goal=f"of {_DATASETS} datasets at most 3 % lost against the best setting that stays in 95 "
        "% of the half hours, 1 % in the median, known to a standard error of 1 %; none below 0.98 "
        "of the untuned twin; no batch with other samples than were due; never over the budget",
        passed=passed if whole else None,
        tables=[_live_table(lived, found)],
        notes=[
            *_live_notes(len(found), near=near, low=low, sure=len(known), once=once),
            f"{disordered} batches had other samples than were due, in any of the trainings.",
            f"{over} trainings ever had more workers than allowed, {tuned_live.MOST_WORKERS}.",
        ],
        data={"live": [dataclasses.asdict(each) for each in lived]},
    )


def _live_table(lived: Sequence[Lived], found: Sequence[HalfHour]) -> Table:
    columns = (
        *("dataset", "what happens", "began with", "best that stays", "had in the end"),
        *("lost in half an hour, %", "lost, settled %", "standard error, %"),
        *("epoch restarts, %", "of the best, %"),
        *("over the untuned", "its standard error, %", "alone until settled, s"),
        *("lost of these, s", "runs", "turns of each"),
    )
    rows = []
    for each in found:
        some = [one for one in lived if one.world == each.world]
        turns = sum(
            turn.phase == each.phase and turn.arm == "tuned" and turn.round >= 0
            for one in some
            for turn in one.turns
        )
        rows.append(
            (
                *(each.world, each.phase, some[0].start),
                " ".join(dict.fromkeys(one.best for one in some)),
                " ".join(dict.fromkeys(one.kept for one in some)),
                f"{100 * each.lost:.1f}",
                f"{100 * each.steady[0]:.1f}",
                f"{100 * each.steady[1]:.1f}",
                *(f"{100 * share:.1f}" for share in each.restarts),
                f"{each.untuned[0]:.2f}",
                f"{100 * each.untuned[1]:.1f}",
                f"{'' if each.settled else '> '}{each.alone_s:.0f}",
                f"{each.settling_s:.1f}",
                str(each.runs),
                str(turns),
            )
        )
    return Table("Half hours by what live trainings show, two of each dataset", columns, rows)


def _live_notes(count: int, *, near: int, low: int, sure: int, once: int) -> list[str]:
    design = tuned_live.Design()
    grid = ", ".join(map(tuned_live.key, design.grid))
    text = f"""\
{near} of {count} half hours lost at most 3 %; {sure} are known to a standard error of 1 %, \
{once} of these by a single run.
{low} are surely below 0.98 of the untuned twin.
A half hour is what a training of two minutes shows: what the tuned one lost until it had settled, \
and after that what it loses all the time. Something happens at ten minutes.
The step sleeps as long as the fastest setting takes for a batch without one. One process that \
keeps a core busy comes, or the step halves; for all trainings at once.
The best that stays is the fastest of {grid}, by up to {2 * design.rounds} turns of \
{design.slice_s:g} s with the step as it will be.
Trainings take turns of {design.turn_s:g} s in random order; each is held between them, with its \
workers and its clock, which dlprof.tune reads. Rates are those at the usual speed of the cores, \
by the slope over what dlprof's probe saw in each turn; the standard error is that of the mean of \
the logarithms of their ratios, turn by turn.
Each run of a dataset has processes of its own, some luckier than others: what runs differ by \
beyond the error of their turns is added to it (DerSimonian and Laird). With two runs that is \
rough, and of a single one nothing shows it: that error is of its turns alone, and too small.
The tuned one may have {tuned_live.MOST_WORKERS} workers. Epochs take \
{tuned_live.EPOCH_S:g} s, and a stream's as many batches as that brings untuned. What the first \
batches of an epoch, which wait for workers, take beyond others is apart, and counts in half an \
hour, for the tuned one as for the best, where that came to such an edge or has no workers; alone, \
all batches count, and all of the time."""
    return text.splitlines()


def report(found: Sequence[Replayed], us: float) -> Report:
    """All of it."""
    near = [each.lost <= NEAR for each in found]
    lost = statistics.median(each.lost for each in found)
    low = sum(each.floor < FLOOR for each in found)
    passed = (
        sum(near) >= SHARE * len(near)
        and lost <= 0.01
        and us <= 2
        and not low
        and all(each.settled_s <= SETTLED_S for each in found)
        and not any(each.over for each in found)
    )
    return Report(
        name=NAME,
        title="A loader that tunes itself",
        goal="at most 3 % lost against the best setting that stays in 95 % of the runs, 1 % in the "
        "median; no minute below 0.98 of the untuned twin; settled after 60 s; never over the "
        "budget; 2 µs a batch",
        passed=passed,
        tables=[replayed_table(found), others_table(found)],
        notes=_notes(found, us),
        data={"replayed": [dataclasses.asdict(each) for each in found], "cost_us": us},
    )


def _notes(found: Sequence[Replayed], us: float) -> list[str]:
    near = sum(each.lost <= NEAR for each in found)
    lost = 100 * statistics.median(each.lost for each in found)
    low = sum(each.floor < FLOOR for each in found)
    over = sum(each.over for each in found)
    iterables = [each for each in found if each.kind == "iterable"]
    beside = sum(each.lost - each.others[KNOWN] <= NEAR for each in iterables)
    text = f"""\
{near} of {len(found)} replayed runs lost at most 3 %; the median lost {lost:.1f} %.
{low} had a minute below 0.98 of the untuned twin's.
{over} ever had more workers than allowed.
A batch of a settled loader spends {us:.2f} µs in the tuner.
Twins meet cores of the same speed at the same time, and batches of the same cost: the best \
setting in all of its half hour, the untuned one in each minute the batches that the tuned one had.
Replayed worlds have the model's own slow-down of threads, cores whose speed changes by 1.6, and \
batches of unlike cost: no real loader is in them.
An iterable dataset changes its workers only between epochs, here of 150 s, and with max_workers: \
it begins with those that a forked process's first batches ask for, whose time counts.
Known beforehand: by whoever knows the best setting before and after, and waits for edges, too; \
{beside} of the {len(iterables)} iterable ones lost at most 3 % more than that one.
The best at first: what a sweep of {_SWEEP_S:g} s finds beforehand if it finds the best, its \
time counted. So are the {PADDLES_BATCHES} batches that Paddle's tuner loads with each number of \
workers."""
    return text.splitlines()


def run_live(names: Sequence[str], minutes: float | None, *, quick: bool) -> None:
    """Add what is missing to what earlier live runs found, and publish it."""
    before = surroundings()
    found = [] if quick else earlier(RESULTS / f"{NAME}_live.json")
    runs = (
        (tuned_live.live(world, tuned_live.QUICK, 0.0) for world in tuned_live.worlds()[1::8])
        if quick
        else live_all(found, names, FULL_MINUTES if minutes is None else minutes)
    )
    for each in runs:
        found = [*found, each]
        keep(live_report(found), before, quick=quick)
    publish(live_report(found), before, quick=quick)


def main() -> None:
    """Run all of it."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="datasets, or beginnings")
    options.add_argument("--runs", type=int, help="replays of each kind and phase")
    options.add_argument(
        "--live", action="store_true", help="real trainings: add those that are missing"
    )
    options.add_argument("--minutes", type=float, help=f"of them; {FULL_MINUTES:g} if left out")
    asked = options.parse_args()
    if asked.live:
        run_live(asked.names, asked.minutes, quick=asked.quick)
        return
    before = surroundings()
    runs = asked.runs or (QUICK_RUNS if asked.quick else RUNS)
    found = replay_all(runs)
    us = cost_us(_CALLS // 20 if asked.quick else _CALLS)
    publish(report(found, us), before, quick=asked.quick)


if __name__ == "__main__":
    main()
