"""Is the figure true? dlprof's ``samples_per_s`` against a loop timed by hand, turn by turn."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import (
    TINY,
    Report,
    Table,
    median_interval,
    parser,
    publish,
    quartiles,
    spread,
    surroundings,
)
from hand_timed import PREFETCH_FACTOR, PlainLoop

from dlprof.machine import inspect_machine
from dlprof.records import Config, Trial
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.units import format_rate

GOAL = 0.05
_TIMEOUT_S = 120.0
_MANY = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        targets: TARGETs by the name that the table gives them.
        workers: Values of ``num_workers``.
        waiting: Names of targets that are measured with many more workers than cores, too.
        pairs: How often both sides take turns at least.
        most_pairs: How often at most, where so many leave open on which side of the goal a cell is.
        window_s: Length of dlprof's window; the plain loop takes as many batches.
        fresh: Whether each plain loop starts an interpreter of its own.
    """

    targets: dict[str, str]
    workers: Sequence[int]
    pairs: int
    most_pairs: int
    window_s: float
    waiting: tuple[str, ...] = ()
    fresh: bool = False

    def workers_of(self, name: str) -> tuple[int, ...]:
        """Values of ``num_workers`` for one target."""
        return (*self.workers, _MANY) if name in self.waiting else tuple(self.workers)


FULL = Design(
    targets={
        "images": "images",
        "synthetic:cpu_ms=2": "synthetic:cpu_ms=2",
        "synthetic:wait_ms=8": "synthetic:wait_ms=8",
        "tiny tensors": TINY,
    },
    workers=(0, 1, 2, 4),
    waiting=("synthetic:wait_ms=8",),
    pairs=10,
    most_pairs=40,
    window_s=1.2,
)
QUICK = Design(
    targets={"synthetic:cpu_ms=2": "synthetic:cpu_ms=2", "tiny tensors": TINY},
    workers=(0, 2),
    pairs=2,
    most_pairs=3,
    window_s=0.4,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Both sides' samples per second, taken one after the other."""

    dlprof: float
    plain: float

    @property
    def ratio(self) -> float:
        """The figure of dlprof over that of the plain loop."""
        return self.dlprof / self.plain


@dataclasses.dataclass(slots=True)
class Cell:
    """One configuration of one target.

    Attributes:
        target: Its name.
        num_workers: Worker processes.
        batches: Batches that the plain loop times.
        pairs: What came of it.
        noisy: How many of dlprof's trials called themselves noisy.
    """

    target: str
    num_workers: int
    batches: int
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    noisy: int = 0

    def add(self, trial: Trial, plain: float) -> None:
        """Keep one pair."""
        if trial.samples_per_s is not None:
            self.pairs.append(Pair(trial.samples_per_s.value, plain))
            self.noisy += trial.noisy

    @property
    def ratios(self) -> list[float]:
        """One for each pair."""
        return [pair.ratio for pair in self.pairs]

    @property
    def interval(self) -> tuple[float, float]:
        """Where the median ratio lies with 95 %, whatever the distribution."""
        return median_interval(self.ratios)

    @property
    def is_decided(self) -> bool:
        """Whether that interval lies on one side of the goal's edges."""
        low, high = self.interval
        return not any(low <= edge <= high for edge in (1 - GOAL, 1 + GOAL))

    @property
    def reached(self) -> bool:
        """Whether the median ratio is within the goal."""
        return abs(statistics.median(self.ratios) - 1) <= GOAL


@contextlib.contextmanager
def open_bench(target: str) -> Iterator[TrialRunner]:
    """A bench with the target built and probed, as a sweep has it."""
    spec = parse_target(target)
    if spec.kind == "builtin":
        prepare(spec, lambda *_: None)
    with (
        tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory,
        contextlib.closing(
            TrialRunner(BuildRequest(target=spec), directory=Path(directory))
        ) as bench,
    ):
        cores = inspect_machine().usable_cores
        bench.build(TrialLimits(wall_s=_TIMEOUT_S, stall_s=_TIMEOUT_S, usable_cores=cores))
        bench.probe(TrialRequest(config=Config(), probe=True))
        yield bench


class Dlprof:
    """One side: trials as a sweep runs them."""

    def __init__(self, bench: TrialRunner, window_s: float) -> None:
        self._bench = bench
        self._window_s = window_s

    def trial(self, num_workers: int, repetition: int = 0) -> Trial:
        """Measure one configuration once.

        Raises:
            RuntimeError: The trial gave no figure.
        """
        config = Config(num_workers=num_workers, prefetch_factor=PREFETCH_FACTOR).canonical()
        trial = self._bench.explain(
            TrialRequest(config=config, trial_s=self._window_s),
            trial_id=config.key,
            repetition=repetition,
        )[0]
        if trial.samples_per_s is None:
            raise RuntimeError(f"a trial of {config.text} gave no figure: {trial}")
        return trial


def measure_target(name: str, design: Design) -> list[Cell]:
    """All pairs of one target, the configurations shuffled again in each round."""
    order = random.Random(name)
    target = design.targets[name]
    with (
        open_bench(target) as bench,
        contextlib.closing(PlainLoop(target, fresh=design.fresh)) as plain,
    ):
        dlprof = Dlprof(bench, design.window_s)
        # A first trial of each shows how many batches the window holds; its rate is not used.
        cells = [
            Cell(name, workers, dlprof.trial(workers).window_batches)
            for workers in design.workers_of(name)
        ]
        for repetition in range(1, design.most_pairs + 1):
            open_cells = [c for c in cells if repetition <= design.pairs or not c.is_decided]
            for cell in order.sample(open_cells, len(open_cells)):
                first = order.random() < 0.5
                rate = plain.samples_per_s(cell.num_workers, cell.batches) if first else 0.0
                trial = dlprof.trial(cell.num_workers, repetition)
                rate = rate if first else plain.samples_per_s(cell.num_workers, cell.batches)
                cell.add(trial, rate)
    return cells


def report_on(cells: Sequence[Cell], design: Design) -> Report:
    """The table of all cells."""
    columns = (
        "target",
        "num_workers",
        "dlprof, samples/s",
        "plain loop, samples/s",
        "ratio, median",
        "its 95 % interval",
        "ratio, quartiles",
        "plain loop, quartiles/median",
        "noisy trials",
        "within 5 %",
    )
    loops = "each in a new interpreter" if design.fresh else "each in a fork of its own"
    return Report(
        name="truth",
        title="The figure is true",
        goal="median of dlprof's samples_per_s over that of a loop timed by hand within 5 % of 1",
        passed=all(cell.reached for cell in cells),
        tables=[Table("", columns, [_row(cell) for cell in cells])],
        notes=[
            (
                f"{design.pairs} pairs per row, and up to {design.most_pairs} where the interval "
                "of the median (by order statistics) holds an edge of the goal; in random order "
                f"within the pair and between rows; windows of {design.window_s:g} s; "
                f"prefetch_factor={PREFETCH_FACTOR}."
            ),
            (
                f"The plain loop (`benchmarks/plain_loop.py`, {loops}) skips a warm-up and times "
                "as many batches as dlprof's window held, in the same order from the same one on."
            ),
            f'"tiny tensors" is `{TINY}`.',
        ],
        data={"cells": [dataclasses.asdict(cell) for cell in cells]},
    )


def _row(cell: Cell) -> tuple[str, ...]:
    plain = [pair.plain for pair in cell.pairs]
    low, high = quartiles(plain)
    middle = statistics.median(plain)
    return (
        cell.target,
        str(cell.num_workers),
        format_rate(statistics.median(pair.dlprof for pair in cell.pairs)),
        format_rate(middle),
        f"{statistics.median(cell.ratios):.3f}",
        "{:.3f}-{:.3f}".format(*cell.interval),
        spread(cell.ratios),
        f"{low / middle:.3f}-{high / middle:.3f}",
        f"{cell.noisy}/{len(cell.pairs)}",
        "yes" if cell.reached else "**no**",
    )


def main() -> None:
    """Measure and publish."""
    options = parser(__doc__)
    options.add_argument(
        "--fresh", action="store_true", help="start a new interpreter for each plain loop"
    )
    given = options.parse_args()
    design = dataclasses.replace(QUICK if given.quick else FULL, fresh=given.fresh)
    before = surroundings()
    cells = [cell for name in design.targets for cell in measure_target(name, design)]
    publish(report_on(cells, design), before, quick=given.quick)


if __name__ == "__main__":
    main()
