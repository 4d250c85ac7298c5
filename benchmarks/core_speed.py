"""What does the probe of the cores' speed explain, and what does it cost?

Repeats of one configuration scatter because virtual cores change their speed. Each row measures one
configuration over and over, by dlprof's own trials, and holds the log rate against the speed that
the probe saw in the same window. Then a loop without dlprof runs in short windows, every other one
beside a probe in a process of its own, as a trial has it, and in longer ones in which the CPU time
of that process is read: beside cores that are busy, and that are idle and have to be woken up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from common import Report, Table, parser, publish, surroundings
from real_loaders import DATA, loaded

from dlprof.machine import inspect_machine
from dlprof.machine.core_speed import PERIOD_S, SpeedProbe
from dlprof.records import Config

NAME = "core_speed"
GOAL_SD, GOAL_LOST, GOAL_CORES = 0.06, 0.005, 0.01
LOADS: tuple[tuple[str, int], ...] = (
    ("JPEG", 0),
    ("JPEG", 2),
    ("Python", 0),
    ("Python", 2),
    ("text", 2),
    ("compressed shards", 2),
    ("remote storage", 2),
)
"""Datasets of ``real_loaders.py`` and numbers of workers."""

REPEATS, WINDOW_S = 40, 1.0
PAIRS, PAIR_S = 500, 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """One configuration, measured over and over.

    Attributes:
        load: Its dataset and its workers.
        pairs: Logarithms of the cores' speed and of the rate, window by window.
        probe_cores: Cores that the observer, with the probe, kept busy, by window.
    """

    load: str
    pairs: Sequence[tuple[float, float]]
    probe_cores: Sequence[float]

    @property
    def spread(self) -> float:
        """Standard deviation of the log rate."""
        return statistics.stdev(rate for _, rate in self.pairs)

    @property
    def exponent(self) -> float:
        """How the rate follows the speed."""
        return statistics.linear_regression(*zip(*self.pairs, strict=True)).slope

    @property
    def explained(self) -> float:
        """Share of the variance that the speed explains."""
        return float(statistics.correlation(*zip(*self.pairs, strict=True))) ** 2

    @property
    def left(self) -> float:
        """Standard deviation of what it leaves, the exponent being fitted to the same windows."""
        count = len(self.pairs)
        return self.spread * math.sqrt((1 - self.explained) * (count - 1) / (count - 2))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a probe beside a loop costs it.

    Attributes:
        load: What the loop does.
        log_ratios: Rate with the probe over that without, pair by pair.
        cores: That the probe's process kept busy, its start and its end included, window by window.
    """

    load: str
    log_ratios: Sequence[float]
    cores: Sequence[float]

    @property
    def value(self) -> float:
        """Share of the throughput that is lost; below 0 by chance."""
        return 1 - math.exp(statistics.fmean(self.log_ratios))

    @property
    def error(self) -> float:
        """Its standard error."""
        return statistics.stdev(self.log_ratios) / math.sqrt(len(self.log_ratios))


def repeats(load: str, workers: int, count: int, window_s: float) -> Repeats:
    """Measure one configuration so many times.

    Raises:
        DlprofError: The target can't be built.
    """
    config, pairs, cores = Config(num_workers=workers).canonical(), list[Any](), list[float]()
    with loaded(DATA[load], inspect_machine()) as source:
        for _ in range(count):
            trial = source.measure(config, window_s)
            rate, usage = trial.batches_per_s, trial.usage
            if rate is not None and rate.value > 0 and usage.core_speed:
                pairs.append((math.log(usage.core_speed), math.log(rate.value)))
                cores.append(usage.observer_cpu_cores or 0.0)
    return Repeats(load=f"{load}, {workers} workers", pairs=pairs, probe_cores=cores)


def _probing(orders: Connection) -> None:
    """A process that probes while it is asked to, and says what CPU time it has used by then."""
    probe = SpeedProbe()
    while (order := orders.recv()) is not None:
        probe.start() if order else probe.stop()
        orders.send(time.process_time())


@contextlib.contextmanager
def _probe() -> Iterator[Callable[..., float]]:
    """Starts and ends the probe in a process of its own; returns the CPU time of that."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_probing, args=(theirs,))
    process.start()

    def order(*, probe: bool) -> float:
        ours.send(probe)
        return float(ours.recv())

    try:
        yield order
    finally:
        ours.send(None)
        process.join()


def computing() -> Iterator[None]:
    """Fixed pieces of work of some 50 us."""
    while True:
        sorted((n * n) % 1009 for n in range(500))
        yield


def sleeping() -> Iterator[None]:
    """Waits of 1 ms."""
    while True:
        time.sleep(0.001)
        yield


def _rate(work: Iterator[None], window_s: float) -> float:
    """Pieces a second."""
    began_s = time.perf_counter()
    for done in itertools.count(1):
        next(work)
        taken_s = time.perf_counter() - began_s
        if taken_s >= window_s:
            return done / taken_s
    raise AssertionError


def lost(
    load: str,
    work: Callable[[], Iterator[None]],
    pairs: int,
    pair_s: float,
    windows: int,
    window_s: float,
) -> Lost:
    """Windows with and without a probe, in the order ABBA so that drift of the machine cancels.

    Then longer ones, as trials have, for what the probe itself takes.
    """
    ratios, cores, running = list[float](), list[float](), work()
    with _probe() as order:
        for pair in range(pairs):
            rates = {}
            for probed in (True, False) if pair % 2 else (False, True):
                order(probe=probed)
                rates[probed] = _rate(running, pair_s)
            ratios.append(math.log(rates[True] / rates[False]))
        for _ in range(windows):
            before_s, began_s = order(probe=False), time.perf_counter()
            order(probe=True)
            _rate(running, window_s)
            cores.append((order(probe=False) - before_s) / (time.perf_counter() - began_s))
    return Lost(load=load, log_ratios=ratios, cores=cores)


def report_on(seen: Sequence[Repeats], costs: Sequence[Lost]) -> Report:
    """The tables."""
    computed = [each for each in seen if not each.load.startswith("remote")]
    busy = [cores for each in seen for cores in each.probe_cores]
    passed = (
        all(each.left <= GOAL_SD for each in computed)
        and all(each.value - 2 * each.error <= GOAL_LOST for each in costs)
        and all(statistics.median(each.cores) <= GOAL_CORES for each in costs)
        and bool(seen)
    )
    return Report(
        name=NAME,
        title="What the speed of the cores explains, and what it costs to see it",
        goal=f"repeats of what computes scatter by at most {GOAL_SD:.0%} at equal speed; the probe "
        f"takes at most {GOAL_CORES:.0%} of one core, and {GOAL_LOST:.1%} of the throughput",
        passed=passed,
        tables=[
            Table(
                "Repeats of one configuration",
                (
                    *("", "windows", "SD of the log rate, %", "R² on the probe", "exponent"),
                    *("SD left, %", "observer with the probe, cores"),
                ),
                [
                    (
                        each.load,
                        str(len(each.pairs)),
                        f"{100 * each.spread:.1f}",
                        f"{each.explained:.2f}",
                        f"{each.exponent:.2f}",
                        f"{100 * each.left:.1f}",
                        f"{statistics.median(each.probe_cores):.4f}",
                    )
                    for each in seen
                ],
            ),
            Table(
                "Throughput beside the probe",
                ("", "pairs", "lost, %", "its standard error, %", "probe alone, % of one core"),
                [
                    (
                        each.load,
                        str(len(each.log_ratios)),
                        f"{100 * each.value:.2f}",
                        f"{100 * each.error:.2f}",
                        f"{100 * statistics.median(each.cores):.2f}",
                    )
                    for each in costs
                ],
            ),
        ],
        notes=[
            (
                f"Windows of {WINDOW_S:g} s, each in a trial of its own; pairs of {PAIR_S:g} s; "
                f"the probe alone by windows of {WINDOW_S:g} s, with its start and its end."
            ),
            (
                f"The probe does 30 to 50 us of fixed work every {1000 * PERIOD_S:g} ms, on the "
                "cores in turn. The observer's other work is in its figure: "
                f"{statistics.median(busy):.4f} cores in the median."
            ),
        ],
        data={
            "repeats": [dataclasses.asdict(each) for each in seen],
            "lost": [dataclasses.asdict(each) for each in costs],
        },
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    pairs, count, window_s = (6, 4, 0.3) if given.quick else (PAIRS, REPEATS, WINDOW_S)
    seen = []
    for load, workers in LOADS[:2] if given.quick else LOADS:
        seen.append(repeats(load, workers, count, window_s))
        shown = seen[-1]
        print(f"{shown.load}: {shown.spread:.3f} -> {shown.left:.3f}", file=sys.stderr, flush=True)
    costs = [
        lost(work.__name__, work, pairs, PAIR_S, count, window_s) for work in (computing, sleeping)
    ]
    publish(report_on(seen, costs), before, quick=given.quick)


if __name__ == "__main__":
    main()
