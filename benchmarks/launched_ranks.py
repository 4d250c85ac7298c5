"""Is it true of ranks? ``--launch-ranks`` against a script by hand under torchrun, turn by turn."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
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
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.units import format_rate

GOAL = 0.05
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
    """

    targets: Sequence[str]
    ranks: Sequence[int]
    workers: int
    pairs: int
    window_s: float


FULL = Design(
    targets=("synthetic:wait_ms=2", "images"), ranks=(1, 2, 4), workers=1, pairs=10, window_s=2.0
)
QUICK = Design(targets=("synthetic:wait_ms=2",), ranks=(1, 2), workers=1, pairs=2, window_s=0.5)


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


def report_on(cells: Sequence[Cell], design: Design) -> Report:
    """The table of all cells."""
    columns = (
        *("target", "ranks", "slowest, samples/s", "by hand", "ratio, median", "95 % interval"),
        *("together, ratio", "95 % interval", "quartiles", "within 5 %"),
    )
    return Report(
        name="launched_ranks",
        title="Ranks that load at once",
        goal="slowest rank and all together within 5 % of a script by hand under torchrun",
        passed=all(cell.reached for cell in cells),
        tables=[Table("", columns, [_row(cell) for cell in cells])],
        notes=[
            (
                f"{design.pairs} pairs per row, in random order within the pair; num_workers="
                f"{design.workers} for each rank; windows of {design.window_s:g} s. The script "
                "(`benchmarks/launched_ranks_by_hand.py`) shares no measuring code with dlprof: a "
                "DistributedSampler, a warm-up, gloo's barrier, and a window by the clock."
            )
        ],
        data={"cells": [dataclasses.asdict(cell) for cell in cells]},
    )


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
    publish(report_on(cells, design), before, quick=given.quick)


if __name__ == "__main__":
    main()
