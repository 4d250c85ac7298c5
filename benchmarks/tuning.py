"""How good is ``dlprof.tune``, and what does it cost?

Replayed: half an hour of training each, in which something happens at ten minutes, on machines and
loaders drawn at random (``tuned_world.py``), against the best of a grid of settings that stay.
Live: two datasets, one that waits and one that computes, each untuned, tuned, and at the best of
some settings that stay, interleaved. And the time that a batch spends in the tuner in the end.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from common import Report, Table, keep, parser, publish, spread, surroundings
from tuned_world import PHASES, Training, World, statics

from dlprof.tuning.control import Ask, Control, Setting, Window

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
_LIVE_S, _QUICK_LIVE_S = 20.0, 4.0
_LIVE_REPEATS = 3


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
    control = Control(start, most, live=kind == "map", cores=int(world.cores))
    ran = training.run(start, control)
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

    settled_s: float | None = None

    def __init__(self, settings: Sequence[Setting], at_s: float, *, live: bool) -> None:
        self._settings, self._at_s, self.live = settings, at_s, live
        self._total_s = 0.0

    def begin(self) -> Ask:
        return Ask(self._settings[self._total_s >= self._at_s], 0, 1, 1.0)

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
    from torch.utils.data import DataLoader  # replays need no torch

    import dlprof

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


LIVE = r"""
import json, sys, time, warnings, torch, dlprof
from torch.utils.data import DataLoader, Dataset
warnings.simplefilter("ignore")
kind, how, workers, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
class Data(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        if kind == "waits":
            time.sleep(0.004)
        else:
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                pass
        return torch.zeros(1000)
torch.set_num_threads(1)
loader = DataLoader(Data(), batch_size=4, num_workers=workers)
if how == "tuned":
    dlprof.tune(loader)
began = None
for count, batch in enumerate(loader):
    time.sleep(0.004)
    if began is None:
        began = time.perf_counter()
    if time.perf_counter() - began > seconds:
        break
kept = loader.tuning.kwargs if how == "tuned" else {}
print(json.dumps({"rate": count / (time.perf_counter() - began), "kept": kept}))
"""
"""A training of its own process."""

LIVE_STATICS = {"waits": (2, 4, 6, 8), "computes": (1, 2, 3, 4)}
LIVE_START = {"waits": 2, "computes": 1}


def live(kind: str, how: str, workers: int, seconds: float) -> dict[str, Any]:
    """One training of a dataset."""
    command = [sys.executable, "-c", LIVE, kind, how, str(workers), str(seconds)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    reported: dict[str, Any] = json.loads(made.stdout)
    return reported


def live_all(*, quick: bool) -> list[dict[str, Any]]:
    """Both datasets, each way, interleaved; first which of the settings that stay is the best."""
    seconds = _QUICK_LIVE_S if quick else _LIVE_S
    found = []
    for kind, settings in LIVE_STATICS.items():
        start = LIVE_START[kind]
        tried = {each: live(kind, "static", each, seconds / 4)["rate"] for each in settings}
        best = max(tried, key=tried.__getitem__)
        arms = {"untuned": ("static", start), "tuned": ("tuned", start), "best": ("static", best)}
        for _ in range(1 if quick else _LIVE_REPEATS):
            for arm, (how, workers) in arms.items():
                came = live(kind, how, workers, seconds)
                found.append({"kind": kind, "arm": arm, "workers": workers, **came})
    return found


def live_table(found: Sequence[dict[str, Any]]) -> Table:
    """A row for each dataset and way."""
    rows = []
    for kind in LIVE_STATICS:
        best = statistics.median(
            each["rate"] for each in found if each["kind"] == kind and each["arm"] == "best"
        )
        for arm in ("untuned", "tuned", "best"):
            some = [each for each in found if each["kind"] == kind and each["arm"] == arm]
            rates = [each["rate"] for each in some]
            kept = sorted(
                {json.dumps(each["kept"] or {"num_workers": each["workers"]}) for each in some}
            )
            rows.append(
                (
                    kind,
                    arm,
                    f"{statistics.median(rates):.1f}",
                    spread(rates, 1),
                    f"{statistics.median(rates) / best:.3f}",
                    " ".join(map(str, kept)),
                )
            )
    columns = (
        "dataset",
        "loader",
        "batches/s, median",
        "quartiles",
        "of the best",
        "workers at the end",
    )
    return Table(f"Live trainings of {_LIVE_S:g} s, settling included", columns, rows)


def report(found: Sequence[Replayed], lived: Sequence[dict[str, Any]], us: float) -> Report:
    """All of it."""
    near = [each.lost <= NEAR for each in found]
    lost = statistics.median(each.lost for each in found)
    low = sum(each.floor < FLOOR for each in found)
    passed = (
        sum(near) >= SHARE * len(near)
        and lost <= 0.01
        and us <= 2
        and not low
        and all(each.settled_s <= SETTLED_S for each in found if each.kind == "map")
        and not any(each.over for each in found)
    )
    return Report(
        name=NAME,
        title="A loader that tunes itself",
        goal="at most 3 % lost against the best setting that stays in 95 % of the runs, 1 % in the "
        "median; no minute below 0.98 of the untuned twin; settled after 60 s where settings "
        "change at once; never over the budget; 2 µs a batch",
        passed=passed,
        tables=[
            replayed_table(found),
            others_table(found),
            *([live_table(lived)] if lived else []),
        ],
        notes=_notes(found, us),
        data={
            "replayed": [dataclasses.asdict(each) for each in found],
            "live": list(lived),
            "cost_us": us,
        },
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
An iterable dataset changes its workers only between epochs, here of 150 s, and with max_workers.
Known beforehand: by whoever knows the best setting before and after, and waits for edges, too; \
{beside} of the {len(iterables)} iterable ones lost at most 3 % more than that one.
The best at first: what a sweep of {_SWEEP_S:g} s finds beforehand if it finds the best, its \
time counted. So are the {PADDLES_BATCHES} batches that Paddle's tuner loads with each number of \
workers."""
    return text.splitlines()


def main() -> None:
    """Run all of it."""
    options = parser(__doc__)
    options.add_argument("--runs", type=int, help="replays of each kind and phase")
    options.add_argument("--no-live", action="store_true", help="replay only")
    asked = options.parse_args()
    before = surroundings()
    runs = asked.runs or (QUICK_RUNS if asked.quick else RUNS)
    found = replay_all(runs)
    us = cost_us(_CALLS // 20 if asked.quick else _CALLS)
    keep(report(found, [], us), before, quick=asked.quick)
    lived = [] if asked.no_live else live_all(quick=asked.quick)
    publish(report(found, lived, us), before, quick=asked.quick)


if __name__ == "__main__":
    main()
