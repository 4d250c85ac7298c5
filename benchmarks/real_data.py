"""Does the model predict what loaders of real datasets do, from a few seconds of measuring?

Each round calibrates every dataset again, as ``dlprof profile`` does, without workers, with one
and with two; then it measures configurations that the calibration has not seen, each of them
twice, some with a consumer that takes its time, and compares. ``--beside-neighbour`` does the same
while another process keeps a core busy. ``--ranks`` compares what two and four ranks that load at
once give each, by the calibration of one: what all of them give together, over their number. How
far below that the slowest is in so short a window is the luck of how the kernel divides the cores,
and not the pace of a synchronized training; that is predicted and measured beside it, with a
barrier each step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from common import Report, Table, parser, publish, surroundings
from crowd import neighbours
from real_loaders import DATA, Loaded, loaded

from dlprof.errors import DlprofError
from dlprof.machine import inspect_machine
from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Calibration, Config, Estimate, Explanation, Machine, Trial

METHOD = "maxplus"
WITHOUT, BESIDE, OF_RANKS = "real_data", "real_data_beside", "real_data_ranks"
GOALS = {WITHOUT: (0.05, 0.12), BESIDE: (0.07, 0.18), OF_RANKS: (0.08, 0.20)}
"""Of each report: the median and the 90th percentile of errors."""
UNSTEADY_GOAL = (0.07, 0.20)
"""Of windows without a neighbor in which the cores changed their speed; others have ``GOALS``."""

RANKS, RANKS_WORKERS = (2, 4), (0, 1, 2, 3)
WORKERS, PREFETCH = (0, 1, 2, 3, 4, 6, 8), (1, 2, 4, 8)
_STEPS = (0.0, 0.0, 0.25, 0.5, 1.0)
"""Of the consumer, as shares of what a batch costs; mostly none."""

_CALIBRATIONS_S = ((0, 0.5), (1, 0.8), (2, 0.8))
_WANTED_ERROR, _MOST_S = 0.03, 6.0
_LEAST_CORES = 0.01
_QUIET, _STEADY = 0.05, 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        rounds: Each with calibrations of its own.
        cells: Configurations of each dataset in a round.
        trial_s: Window of a trial.
    """

    rounds: int
    cells: int
    trial_s: float


FULL = Design(rounds=3, cells=10, trial_s=1.2)
QUICK = Design(rounds=1, cells=1, trial_s=0.3)
_QUICK_DATA = ("Python", "remote storage")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One configuration, predicted and measured.

    Attributes:
        data: Name of the dataset.
        config: What ran.
        step_s: Of the consumer.
        rates: Batches per second, measured twice.
        cores: That were available in those windows, on average.
        alone: Predicted batches per second by method, on all cores that the machine has for us;
            earlier runs know of others than ``METHOD``.
        given: The same on the cores that were available in each window, their geometric mean.
        interval: On the mean of those cores.
        drift: Of the calibration.
        standard_error: Of the calibration.
        ranks: That loaded at once; rates are what all of them gave, over their number.
        slowest: The same of the rank that gave least in each window; empty without several.
        barrier: Whether ranks ended each step together.
        steady: Whether the cores had their usual speed, within 10 %, in both windows. That is the
            median of all windows of this dataset in its round.
    """

    data: str
    config: Config
    step_s: float
    rates: tuple[float, ...]
    cores: float
    alone: dict[str, float]
    given: dict[str, float]
    interval: tuple[float | None, float | None]
    drift: float | None
    standard_error: float | None
    ranks: int = 1
    slowest: tuple[float, ...] = ()
    barrier: bool = False
    steady: bool = False

    @property
    def rate(self) -> float:
        """What was measured."""
        return statistics.geometric_mean(self.rates)

    @property
    def repeat(self) -> float:
        """How far the two measurements are apart: half the logarithm of their ratio."""
        return abs(math.log(self.rates[-1] / self.rates[0])) / 2

    @property
    def is_quiet(self) -> bool:
        """Whether the machine kept its speed, between trials alike and between calibrations."""
        return max(self.repeat, self.drift or 0.0) <= _QUIET

    def error(self, *, given: bool) -> float:
        """Predicted over measured, less 1."""
        return (self.given if given else self.alone)[METHOD] / self.rate - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        low, high = self.interval
        return low is not None and high is not None and low <= self.rate <= high


def calibrate(source: Loaded) -> Calibration | None:
    """Calibrate as long as the spread of costs asks for; ``None`` where nothing was shown."""
    shown: list[Explanation] = []
    trials: list[Trial] = []
    for workers, trial_s in _CALIBRATIONS_S:
        for length_s in (trial_s, longer_s(fit(shown, trials), trial_s)):
            if length_s > 0:
                trial, heard = source.explain(Config(num_workers=workers).canonical(), length_s)
                trials.append(trial)
                shown += [heard] if heard is not None else []
    made = fit(shown, trials)
    return made if made.is_usable else None


def longer_s(known: Calibration, trial_s: float) -> float:
    """How much longer one calibrating trial has to be for an error of 3 %; 0 for not at all.

    The error falls with the root of the time; each of the three trials takes its part.
    """
    error = known.standard_error
    if error is None or error <= _WANTED_ERROR:
        return 0.0
    return min(_MOST_S, trial_s * ((error / _WANTED_ERROR) ** 2 - 1))


class Way(NamedTuple):
    """How one configuration is measured; the fields are those of ``Compared``."""

    config: Config
    step_s: float
    barrier: bool


def cells(
    count: int, rng: random.Random, among: Sequence[int] = WORKERS
) -> list[tuple[Config, float]]:
    """Configurations with the share of a batch's cost that the consumer takes, all different."""
    made: dict[tuple[Config, float], None] = {}
    while len(made) < count:
        workers, prefetch = rng.choice(among), rng.choice(PREFETCH)
        config = Config(num_workers=workers, prefetch_factor=prefetch).canonical()
        made[(config, rng.choice(_STEPS))] = None
    return list(made)


def batch_s(known: Calibration) -> float:
    """What fetching a batch costs, CPU and waiting."""
    costs = known.in_main or known.in_workers
    if costs is None:
        return 0.0
    io = math.fsum(costs.io_s)
    return (math.fsum(costs.cpu_s) + io) / len(costs.cpu_s)


def compare(
    name: str,
    source: Loaded,
    known: Calibration,
    design: Design,
    rng: random.Random,
    ranks: int = 1,
) -> list[Compared]:
    """Predict and measure some configurations of one dataset, loaded by so many ranks at once."""
    among = WORKERS if ranks == 1 else RANKS_WORKERS
    asked = [(config, share * batch_s(known)) for config, share in cells(design.cells, rng, among)]
    ways = [Way(*cell, barrier) for cell in asked for barrier in (False, True)[: min(2, ranks)]]
    trials: dict[Way, list[Trial]] = {way: [] for way in ways}
    for _ in range(2):
        for way in rng.sample(ways, len(ways)):
            trial = source.measure(way.config, design.trial_s, way.step_s, barrier=way.barrier)
            trials[way].append(trial)
    most = source.usable_cores
    speeds = [t.usage.core_speed for some in trials.values() for t in some if t.usage.core_speed]
    usual = statistics.median(speeds) if speeds else math.nan
    found = (_compared(name, way, some, known, most, ranks, usual) for way, some in trials.items())
    return [each for each in found if each is not None]


def _compared(
    data: str,
    way: Way,
    trials: Sequence[Trial],
    known: Calibration,
    most: float,
    ranks: int,
    usual_speed: float,
) -> Compared | None:
    """One configuration; ``None`` where it could not be measured."""
    rates = [_rates(trial) for trial in trials if trial.batches_per_s is not None]
    free = [t.node_usage.available_cpu_cores for t in trials]
    cores = tuple(max(each, _LEAST_CORES) for each in free if each is not None)
    if min(len(rates), len(cores)) < len(trials):
        return None
    mean = statistics.fmean(cores)
    speeds = [t.usage.core_speed or math.nan for t in trials]
    *each, interval, alone = (_predicted(known, way, had, ranks) for had in (*cores, mean, most))
    return Compared(
        data=data,
        config=way.config,
        step_s=way.step_s,
        rates=tuple(map(statistics.fmean, rates)),
        cores=mean,
        alone={METHOD: alone.value},
        given={METHOD: statistics.geometric_mean(one.value for one in each)},
        interval=(interval.low, interval.high),
        drift=known.drift,
        standard_error=known.standard_error,
        ranks=ranks,
        slowest=tuple(map(min, rates)) if ranks > 1 else (),
        barrier=way.barrier,
        steady=all(abs(speed / usual_speed - 1) <= _STEADY for speed in speeds),
    )


def _rates(trial: Trial) -> list[float]:
    """Batches per second of each rank; a trial's own are those of the slowest."""
    rates = [each.batches_per_s for each in trial.ranks] or [trial.batches_per_s]
    return [rate.value for rate in rates if rate is not None]


def _predicted(known: Calibration, way: Way, cores: float, ranks: int) -> Estimate:
    where = Conditions(cores=cores, step_s=way.step_s, ranks=ranks, barrier_nodes=int(way.barrier))
    return predict_all(known, [way.config], where)[0].batches_per_s


def measure(
    names: Iterable[str], design: Design, machine: Machine, ranks: Sequence[int] = (1,)
) -> list[Compared]:
    """All rounds of all datasets."""
    rng = random.Random(5)
    found: list[Compared] = []
    for number in range(design.rounds):
        for name in names:
            try:
                with loaded(DATA[name], machine) as source:
                    known = calibrate(source)
                    if known is not None and 1 in ranks:
                        found += compare(name, source, known, design, rng)
                for count in {*ranks} - {1}:
                    if known is not None:
                        with loaded(DATA[name], machine, count) as source:
                            found += compare(name, source, known, design, rng, count)
            except DlprofError as error:
                print(f"{name}: left out, {error.message}", file=sys.stderr, flush=True)
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
    return found


def quantile(values: Iterable[float], share: float) -> float:
    """The value that so large a share lies at or below; ``nan`` of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def errors(found: Iterable[Compared], *, given: bool) -> list[float]:
    """How far off, without sign."""
    return [abs(each.error(given=given)) for each in found]


def reached(found: Sequence[Compared], report: str) -> bool | None:
    """Whether predictions meet their goal: for all cores, and of free ranks in quiet windows."""
    if report == OF_RANKS:
        found = [each for each in found if each.is_quiet and not each.barrier]
    if not found:
        return None
    groups = [(found, GOALS[report])]
    if report == WITHOUT:
        groups = [
            ([each for each in found if each.steady is steady], goal)
            for steady, goal in ((True, GOALS[WITHOUT]), (False, UNSTEADY_GOAL))
        ]
    offs = ((errors(some, given=report == BESIDE), goal) for some, goal in groups if some)
    return all(
        statistics.median(off) <= goal[0] and quantile(off, 0.9) <= goal[1] for off, goal in offs
    )


def _percent(values: Sequence[float]) -> list[str]:
    return [f"{100 * value:.1f}" for value in (statistics.median(values), quantile(values, 0.9))]


def _row(name: str, some: Sequence[Compared]) -> list[str]:
    """A row of the table."""
    bias = statistics.median(each.error(given=True) for each in some)
    held = statistics.fmean(each.covered for each in some)
    return [
        name,
        str(len(some)),
        *_percent(errors(some, given=False)),
        *_percent(errors(some, given=True)),
        f"{100 * bias:+.1f}",
        f"{100 * held:.0f}",
        *_percent([each.repeat for each in some]),
    ]


def _groups(found: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The table's groups, those without members left out."""
    tests: dict[str, Callable[[Compared], bool]] = {
        "all": lambda _: True,
        "no step": lambda each: not each.step_s,
        "a step": lambda each: each.step_s > 0,
        "quiet": lambda each: each.is_quiet,
        "cores of usual speed": lambda each: each.steady,
        "cores that changed their speed": lambda each: not each.steady,
    }
    free = [each for each in found if not each.barrier]
    groups = {name: [each for each in free if test(each)] for name, test in tests.items()}
    for count in RANKS:
        some = [each for each in free if each.ranks == count]
        groups[f"{count} ranks"] = some
        groups[f"the slowest of {count}, by itself"] = [
            dataclasses.replace(each, rates=each.slowest) for each in some
        ]
        groups[f"{count} ranks, a barrier each step"] = [
            each for each in found if each.barrier and each.ranks == count
        ]
    return {name: some for name, some in groups.items() if some}


_COLUMNS = (
    *("", "cells", "all cores: median, %", "p90, %"),
    *("available cores: median, %", "p90, %", "bias, %", "covered, %"),
    *("repeat: median, %", "p90, %"),
)


_OF_RANKS = (
    "Of ranks, measured is what all give together over their number. Rows that name no barrier "
    "are of ranks without one."
)


def report(found: Sequence[Compared], name: str) -> Report:
    """The tables."""
    middle, far = GOALS[name]
    free = [each for each in found if not each.barrier]
    kinds = {name: [each for each in free if each.data == name] for name in DATA}
    rows = [_row(name, some) for name, some in _groups(found).items()]
    by_data = [_row(name, some) for name, some in kinds.items() if some]
    title, where = {
        WITHOUT: ("without a neighbor", "on all cores of usual speed"),
        BESIDE: ("beside a neighbor", "beside a neighbor, given the cores that were available"),
        OF_RANKS: ("of 2 and 4 ranks at once", "of 2 and 4 ranks at once, in quiet windows"),
    }[name]
    others = ""
    if name == WITHOUT:
        others = ", {:.0%} and {:.0%} where cores changed their speed".format(*UNSTEADY_GOAL)
    return Report(
        name=name,
        title=f"Predictions against loaders of real datasets, {title}",
        goal=f"{where} off by at most {middle:.0%} in the median and {far:.0%} at the "
        f"90th percentile{others}",
        passed=reached(found, name),
        tables=[Table("All", _COLUMNS, rows), Table("By dataset", _COLUMNS, by_data)],
        notes=[
            (
                "Errors are of the predicted rate over the measured one, without sign but for the "
                "bias (the median); it and the intervals are those on the available cores."
            ),
            (
                "`repeat` is half the distance of a configuration's two measurements: what no "
                "prediction can be better than."
            ),
            (
                f"`quiet`: both measurements within {2 * _QUIET:.0%} of each other, and calibrated "
                f"by trials that drifted by at most {_QUIET:.0%} where they should cost the same "
                "(standard deviation)."
            ),
            (
                f"Cores of usual speed: within {_STEADY:.0%} of the median of the dataset's round "
                "in both windows, by the probe that each trial has."
            ),
            *([_OF_RANKS] if name == OF_RANKS else []),
            (
                "Datasets are `benchmarks/real_targets.py`, `images` and `text`; plain Python "
                "stands in for numpy."
            ),
        ],
        data={"cells": [_plain(each) for each in found]},
    )


def _plain(each: Compared) -> dict[str, Any]:
    return dataclasses.asdict(each) | {"config": each.config.key}


def main(name: str = WITHOUT) -> None:
    """Run it.

    Args:
        name: Of the report that is made where none is asked for.
    """
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="datasets, by name")
    options.add_argument("--beside-neighbour", action="store_true", help="keep a core busy")
    options.add_argument("--ranks", action="store_true", help="load by 2 and 4 ranks at once")
    options.add_argument("--rounds", type=int, help="fewer or more than the usual number")
    given = options.parse_args()
    name = BESIDE if given.beside_neighbour else OF_RANKS if given.ranks else name
    unknown = sorted(set(given.names) - set(DATA))
    if unknown:
        options.error(f"there is no dataset {unknown[0]!r}: {', '.join(DATA)}")
    design = QUICK if given.quick else FULL
    if given.rounds:
        design = dataclasses.replace(design, rounds=given.rounds)
    if name == OF_RANKS:
        design = dataclasses.replace(design, cells=max(1, design.cells // 3))
        # What torchrun gives each of several ranks, so that the one that is calibrated computes in
        # main as they do: torch's own two threads spin where a core is taken.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = given.names or (_QUICK_DATA if given.quick else tuple(DATA))
    before = surroundings()
    with neighbours(1) if name == BESIDE else contextlib.nullcontext():
        found = measure(names, design, inspect_machine(), RANKS if name == OF_RANKS else (1,))
    quick = given.quick or bool(given.names)
    publish(report(found, name), before, quick=quick)


if __name__ == "__main__":
    main()
