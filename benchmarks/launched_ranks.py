"""Is it true of ranks? ``--launch-ranks`` against a script by hand under torchrun, turn by turn.

And what it costs them that they are watched and meet at a barrier each step (``--step-barrier``).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import Report, Table, median_interval, parser, publish, spread, surroundings

from dlprof.engine.ranks import launched
from dlprof.machine import inspect_machine
from dlprof.records import Config, Trial
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.rank_group import RankGroup
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.units import format_rate

GOAL = 0.05
MOST_COST = 0.01
"""Of what all cores have in a window of a second: what meeting and watching take."""

_STEP_S = 0.001
_TIMEOUT_S = 120.0
_BY_HAND = Path(__file__).parent / "launched_ranks_by_hand.py"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        targets: TARGETs.
        ranks: How many load at once.
        workers: Of each rank.
        pairs: How often both sides take turns.
        window_s: Length of both sides' windows.
        steps: In a row, with and without a barrier, to see what one costs.
        watched_s: Two lengths of windows, between which only watching takes CPU time.
    """

    targets: Sequence[str]
    ranks: Sequence[int]
    workers: int
    pairs: int
    window_s: float
    steps: int
    watched_s: tuple[float, float]


FULL = Design(
    targets=("synthetic:wait_ms=2", "images"),
    ranks=(1, 2, 4),
    workers=1,
    pairs=10,
    window_s=2.0,
    steps=2000,
    watched_s=(1.0, 3.0),
)
QUICK = Design(
    targets=("synthetic:wait_ms=2",),
    ranks=(1, 2),
    workers=1,
    pairs=2,
    window_s=0.5,
    steps=100,
    watched_s=(0.3, 0.6),
)


@dataclasses.dataclass(slots=True)
class Cell:
    """One number of ranks on one target; ``(dlprof, by hand)`` for each pair.

    Attributes:
        target: TARGET.
        ranks: How many.
        slowest: Samples per second of the slowest rank.
        together: Samples per second of all, as each loads by itself.
    """

    target: str
    ranks: int
    slowest: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    together: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    @property
    def reached(self) -> bool:
        """Whether both medians are within the goal."""
        pairs = (self.slowest, self.together)
        return all(abs(statistics.median(_ratios(each)) - 1) <= GOAL for each in pairs)


@dataclasses.dataclass(slots=True)
class Cost:
    """What meeting and watching take, each figure once for each pair.

    Attributes:
        ranks: How many load.
        cores: What they share.
        step_s: CPU time that the barrier adds to a step of one rank.
        watching_s: CPU time of the supervisor in a second of a window.
        steps_per_s: Of each rank, where the supervisor was looked at.
    """

    ranks: int
    cores: float
    step_s: list[float] = dataclasses.field(default_factory=list)
    watching_s: list[float] = dataclasses.field(default_factory=list)
    steps_per_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the CPU time that all cores have."""
        step_s, watching_s = statistics.median(self.step_s), statistics.median(self.watching_s)
        meeting_s = self.ranks * statistics.median(self.steps_per_s) * step_s
        return (meeting_s + watching_s) / self.cores

    @property
    def most_steps_per_s(self) -> float:
        """Up to how many steps per second of each rank it stays within the goal."""
        left_s = MOST_COST * self.cores - statistics.median(self.watching_s)
        return left_s / (self.ranks * statistics.median(self.step_s))


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [one / other for one, other in pairs]


@contextlib.contextmanager
def open_bench(target: str, ranks: int) -> Iterator[TrialRunner]:
    """A bench of launched ranks with the target built and probed, as a sweep has it."""
    with (
        tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory,
        contextlib.closing(
            TrialRunner(
                BuildRequest(target=parse_target(target), shuffle=True),
                directory=Path(directory),
                together=Ranks(local=launched(ranks, os.environ)),
            )
        ) as bench,
    ):
        cores = inspect_machine().usable_cores
        bench.build(TrialLimits(wall_s=_TIMEOUT_S, stall_s=_TIMEOUT_S, usable_cores=cores))
        bench.probe(TrialRequest(config=Config(), probe=True))
        yield bench


def by_dlprof(bench: TrialRunner, design: Design, repetition: int) -> tuple[float, float]:
    """The slowest rank's samples per second, and those of all.

    Raises:
        RuntimeError: The trial gave no figure.
    """
    config = Config(num_workers=design.workers).canonical()
    request = TrialRequest(config=config, trial_s=design.window_s, turnover=False)
    trial: Trial = bench.explain(request, trial_id=config.key, repetition=repetition)[0]
    if trial.samples_per_s is None:
        raise RuntimeError(f"a trial gave no figure: {trial.failure}")
    each = [rank.samples_per_s for rank in trial.ranks] or [trial.samples_per_s]
    rates = [rate.value for rate in each if rate is not None]
    return min(rates), sum(rates)


def by_hand(target: str, ranks: int, design: Design) -> tuple[float, float]:
    """The same by the script under torchrun."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    script = (str(_BY_HAND), target, str(design.workers), str(design.window_s))
    done = subprocess.run(
        [sys.executable, *launcher, *script],
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    rates = [json.loads(line)["samples_per_s"] for line in done.stdout.splitlines()]
    if len(rates) != ranks:
        raise RuntimeError(f"{ranks} ranks gave {len(rates)} figures: {done.stderr}")
    return min(rates), sum(rates)


def measure(target: str, ranks: int, design: Design) -> Cell:
    """All pairs of one cell, which side comes first by chance."""
    cell, order = Cell(target, ranks), random.Random(f"{target} {ranks}")
    with open_bench(target, ranks) as bench:
        for repetition in range(design.pairs):
            first = order.random() < 0.5
            other = by_hand(target, ranks, design) if first else None
            mine = by_dlprof(bench, design, repetition)
            theirs = other or by_hand(target, ranks, design)
            cell.slowest.append((mine[0], theirs[0]))
            cell.together.append((mine[1], theirs[1]))
            print(target, ranks, repetition, mine, theirs, file=sys.stderr, flush=True)
    return cell


def _stepping(place: Path, rank: int, ranks: int, steps: int, *, barrier: bool) -> float:
    """CPU time of a rank's steps, in each of which it waits as one does that gets its batches."""
    group = RankGroup(place, rank, ranks, barrier=barrier)
    group.step()  # all are there
    began_s = time.process_time()
    for _ in range(steps):
        time.sleep(_STEP_S)
        group.step()
    return time.process_time() - began_s


def step_cost(ranks: int, steps: int, *, barrier: bool) -> float:
    """CPU seconds of one step of one rank, of so many that step at once."""
    forks = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
        place = Path(directory)
        RankGroup.create(place, ranks, ranks)
        with concurrent.futures.ProcessPoolExecutor(ranks, forks) as pool:
            each = [
                pool.submit(_stepping, place, rank, ranks, steps, barrier=barrier)
                for rank in range(ranks)
            ]
            took = [one.result(_TIMEOUT_S) for one in each]
    return statistics.fmean(took) / steps


def measure_cost(target: str, ranks: int, design: Design) -> Cost:
    """What meeting each step and being watched take of so many ranks."""
    cost = Cost(ranks, inspect_machine().usable_cores)
    config = Config(num_workers=design.workers, batch_size=1).canonical()
    for _ in range(design.pairs):
        without_s, with_s = (step_cost(ranks, design.steps, barrier=each) for each in (False, True))
        cost.step_s.append(with_s - without_s)
        print(ranks, with_s, without_s, file=sys.stderr, flush=True)
    with open_bench(target, ranks) as bench:
        for repetition in range(design.pairs):
            spent, steps_per_s = [], 0.0
            for window_s in design.watched_s:
                request = TrialRequest(
                    config=config, trial_s=window_s, turnover=False, step_barrier=True
                )
                began_s = time.process_time()
                trial, _ = bench.explain(request, trial_id=config.key, repetition=repetition)
                spent.append(time.process_time() - began_s)
                if trial.samples_per_s is None:
                    raise RuntimeError(f"a trial gave no figure: {trial.failure}")
                steps_per_s = trial.samples_per_s.value  # of one sample each
            short_s, long_s = design.watched_s
            cost.watching_s.append((spent[1] - spent[0]) / (long_s - short_s))
            cost.steps_per_s.append(steps_per_s)
            print(target, ranks, spent, file=sys.stderr, flush=True)
    return cost


def report_on(cells: Sequence[Cell], cost: Cost, design: Design) -> Report:
    """The tables."""
    columns = (
        *("target", "ranks", "slowest, samples/s", "by hand", "ratio, median", "95 % interval"),
        *("together, ratio", "95 % interval", "quartiles", "within 5 %"),
    )
    return Report(
        name="launched_ranks",
        title="Ranks that load at once",
        goal=(
            "slowest rank and all together within 5 % of a script by hand under torchrun; meeting "
            "and watching take 1 % of the cores in a window"
        ),
        passed=all(cell.reached for cell in cells) and cost.share <= MOST_COST,
        tables=[Table("", columns, [_row(cell) for cell in cells]), _cost_table(cost)],
        notes=[
            (
                f"{design.pairs} pairs per row, in random order within the pair; num_workers="
                f"{design.workers} for each rank; windows of {design.window_s:g} s. The script "
                "(`benchmarks/launched_ranks_by_hand.py`) shares no measuring code with dlprof: a "
                "DistributedSampler, a warm-up, gloo's barrier, and a window by the clock."
            ),
            (
                "The barrier's CPU time is that of a rank that waits 1 ms and meets the others, "
                f"less that of one that only waits ({design.steps:,} steps). The supervisor's is "
                f"what a window of {design.watched_s[1]:g} s takes more of its process than one of "
                f"{design.watched_s[0]:g} s does. What ranks found is gathered after the window."
            ),
        ],
        data={
            "cells": [dataclasses.asdict(cell) for cell in cells],
            "cost": dataclasses.asdict(cost),
        },
    )


def _cost_table(cost: Cost) -> Table:
    step_us, watching_ms = (
        [each * scale for each in (statistics.median(found), *median_interval(found))]
        for found, scale in ((cost.step_s, 1e6), (cost.watching_s, 1e3))
    )
    columns = (
        *("ranks", "steps/s of each", "barrier, µs of CPU a step", "95 % interval"),
        *("supervisor, ms of CPU a second", "95 % interval", "of the cores, %", "1 % at steps/s"),
    )
    row = [
        str(cost.ranks),
        format_rate(statistics.median(cost.steps_per_s)),
        *"{:.1f}|{:.1f}-{:.1f}".format(*step_us).split("|"),
        *"{:.1f}|{:.1f}-{:.1f}".format(*watching_ms).split("|"),
        f"{100 * cost.share:.2f}",
        format_rate(cost.most_steps_per_s),
    ]
    return Table("What meeting at each step and being watched cost", columns, [row])


def _row(cell: Cell) -> tuple[str, ...]:
    slowest, together = _ratios(cell.slowest), _ratios(cell.together)
    return (
        cell.target,
        str(cell.ranks),
        format_rate(statistics.median(mine for mine, _ in cell.slowest)),
        format_rate(statistics.median(theirs for _, theirs in cell.slowest)),
        f"{statistics.median(slowest):.3f}",
        "{:.3f}-{:.3f}".format(*median_interval(slowest)),
        f"{statistics.median(together):.3f}",
        "{:.3f}-{:.3f}".format(*median_interval(together)),
        spread(together),
        "yes" if cell.reached else "**no**",
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    design = QUICK if given.quick else FULL
    before = surroundings()
    for target in design.targets:
        prepare(parse_target(target), lambda *_: None)
    cells = [measure(target, ranks, design) for target in design.targets for ranks in design.ranks]
    cost = measure_cost(design.targets[0], max(design.ranks), design)
    publish(report_on(cells, cost, design), before, quick=given.quick)


if __name__ == "__main__":
    main()
