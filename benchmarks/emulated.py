"""Does the model predict what real DataLoaders do? On emulated cores, one to eight of them.

Each block calibrates every kind of load again, on two emulated cores and one rank, without workers,
with one and with two; then it measures configurations that the calibration has not seen, on those
cores and on others, and compares.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, Report, Table, parser, publish, surroundings
from emulated_cores import EPOCH, Load, Ran, Setup, explanation, run

from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Calibration, Config

METHOD = "maxplus"
GOALS = {"same": (0.03, 0.07), "extrapolated": (0.04, 0.10)}
COVERAGE = (0.90, 0.98)
_CORES, _RANKS = 2, 1
_MOST_BATCHES_PER_S = 300.0
"""Of all ranks: more would keep the real cores busy with real receiving."""

_LATE_S = 0.0003
_TRIES = 3

_SAMPLE_S = 0.02
_TAIL_S = 0.008
KINDS: dict[str, Load] = {
    "CPU": Load(cpu_s=_SAMPLE_S),
    "waiting": Load(cpu_s=0.0005, io_s=_SAMPLE_S),
    "mixed": Load(cpu_s=_SAMPLE_S / 2, io_s=_SAMPLE_S / 2),
    "waiting tail": Load(cpu_s=0.0005, io_s=_TAIL_S, slow=3, slow_factor=10.0),
    "CPU tail": Load(cpu_s=_TAIL_S, slow=3, slow_factor=10.0),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        blocks: Each with calibrations of its own.
        cells: Configurations of each kind of load in a block.
        window_s: Of a run, at least.
        batches: Of a run, at least.
        tail_batches: The same for loads with a tail, whose rate depends on luck for longer.
    """

    blocks: int
    cells: int
    window_s: float
    batches: int
    tail_batches: int

    def least(self, load: Load) -> int:
        """Batches of a run."""
        return self.tail_batches if load.slow else self.batches


FULL = Design(blocks=6, cells=14, window_s=2.0, batches=100, tail_batches=600)
QUICK = Design(blocks=1, cells=1, window_s=0.5, batches=50, tail_batches=50)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """Batches per second of a rank, predicted, with the 95 % interval and what bounds them."""

    value: float
    low: float | None
    high: float | None
    bound: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One configuration, predicted and measured.

    Attributes:
        kind: Of load.
        config: What ran.
        cores: Emulated ones.
        ranks: That shared them.
        step_s: Of the consumer, asleep.
        step_cpu_s: The same, computing.
        rate: Batches per second of a rank, the mean over ranks.
        late_s: By how much the real machine ended batches late.
        predicted: By method; earlier runs know of others than ``METHOD``.
    """

    kind: str
    config: str
    cores: int
    ranks: int
    step_s: float
    step_cpu_s: float
    rate: float
    late_s: float
    predicted: Mapping[str, ModelAnswer]

    @property
    def where(self) -> str:
        """``same`` or ``extrapolated``: whether cores and ranks are those of the calibration."""
        return "same" if (self.cores, self.ranks) == (_CORES, _RANKS) else "extrapolated"

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted[METHOD].value / self.rate - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        found = self.predicted[METHOD]
        if found.low is None or found.high is None:
            return False
        return found.low <= self.rate <= found.high


def setups(load: Load, design: Design, rng: random.Random) -> Iterator[Setup]:
    """Configurations at random, half of them on the cores of the calibration; without end."""
    while True:
        same = rng.random() < 0.5
        workers = rng.choice((0, 1, 2, 3, 4, 4, 6, 8, 12))
        setup = Setup(
            load=load,
            config=Config(
                num_workers=workers,
                prefetch_factor=rng.choice((1, 2, 2, 3, 4, 8)),
                in_order=rng.random() < 0.75,
            ).canonical(),
            cores=_CORES if same else rng.choice((1, 2, 3, 4, 6, 8)),
            ranks=_RANKS if same else rng.choice((1, 2, 2, 4)),
            **_step(load, rng),
            window_s=design.window_s,
            batches=design.least(load),
            seed=rng.randrange(1 << 30),
        )
        if _is_bearable(setup):
            yield setup


def _step(load: Load, rng: random.Random) -> dict[str, float]:
    """Mostly none; else a share of what a batch costs, slept or computed."""
    kind = rng.choice(("", "", "step_s", "step_cpu_s"))
    return {kind: rng.choice((0.1, 0.25, 0.5)) * _batch_s(load)} if kind else {}


def _batch_s(load: Load) -> float:
    factor = 1 + load.slow / EPOCH * (load.slow_factor - 1)
    return (load.cpu_s + load.io_s) * factor * load.batch_size


def _is_bearable(setup: Setup) -> bool:
    """Whether the real cores bear it."""
    alone = max(1, setup.config.num_workers) / _batch_s(setup.load)
    return setup.ranks * alone <= _MOST_BATCHES_PER_S


def calibrate(load: Load, design: Design, seed: int, *, cores: int = _CORES) -> Calibration:
    """Calibrate as dlprof does: without workers, with one, with two."""
    shown = []
    for workers in (0, 1, 2):
        setup = Setup(
            load=load,
            config=Config(num_workers=workers).canonical(),
            cores=cores,
            window_s=design.window_s,
            batches=design.least(load) // 2,
            seed=seed + workers,
        )
        shown.append(explanation(setup, _undisturbed(setup)[0], f"t{workers}"))
    made = fit(shown, [])
    return dataclasses.replace(made, available_cores=float(cores))


def _undisturbed(setup: Setup) -> list[Ran]:
    """A run; again, up to three times in all, where the real machine was late."""
    tries = []
    for _ in range(_TRIES):
        tries.append(run(setup))
        if _late_s(tries[-1]) <= _LATE_S:
            break
    return min(tries, key=_late_s)


def _late_s(ran: Sequence[Ran]) -> float:
    return max(each.late_s for each in ran)


def conditions(setup: Setup) -> Conditions:
    """A run's surroundings as the model takes them."""
    return Conditions(
        cores=float(setup.cores),
        ranks=setup.ranks,
        step_s=setup.step_s,
        step_cpu_s=setup.step_cpu_s,
        speed_error=0.0,
    )


def compare(kind: str, setup: Setup, calibration: Calibration) -> Compared:
    """Predict, then measure."""
    predicted = {METHOD: _model_answer(calibration, setup)}
    ran = _undisturbed(setup)
    return Compared(
        kind=kind,
        config=setup.config.key,
        cores=setup.cores,
        ranks=setup.ranks,
        step_s=setup.step_s,
        step_cpu_s=setup.step_cpu_s,
        rate=statistics.fmean(each.rate for each in ran),
        late_s=_late_s(ran),
        predicted=predicted,
    )


def _model_answer(calibration: Calibration, setup: Setup) -> ModelAnswer:
    (found,) = predict_all(calibration, [setup.config], conditions(setup))
    rate = found.batches_per_s
    return ModelAnswer(value=rate.value, low=rate.low, high=rate.high, bound=found.bound)


def measured(design: Design, minutes: float, seed: int) -> Iterator[Compared]:
    """The runs of all blocks, or of those that were begun within so many minutes."""
    rng = random.Random(seed)
    until_s = time.monotonic() + 60 * minutes
    for block in range(design.blocks):
        if time.monotonic() > until_s:
            break
        made = {
            kind: calibrate(load, design, rng.randrange(1 << 29)) for kind, load in KINDS.items()
        }
        cells = [
            (kind, setup)
            for kind, load in KINDS.items()
            for setup, _ in zip(setups(load, design, rng), range(design.cells), strict=False)
        ]
        rng.shuffle(cells)
        for kind, setup in cells:
            yield compare(kind, setup, made[kind])
        print(f"block {block + 1} of {design.blocks}", file=sys.stderr, flush=True)


def earlier(path: Path) -> list[Compared]:
    """What earlier runs found; nothing where there is no result yet."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text())["data"]["runs"]
    return [
        Compared(
            **{**each, "predicted": {m: ModelAnswer(**f) for m, f in each["predicted"].items()}}
        )
        for each in kept
    ]


def quantile(values: Iterable[float], share: float) -> float:
    """The value that so large a share lies at or below; ``nan`` of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def row(name: str, some: Sequence[Compared]) -> list[str]:
    """A row of the table: how far off, and how often the interval held."""
    errors = [abs(each.error) for each in some]
    bias = statistics.median(each.error for each in some)
    held = statistics.fmean(each.covered for each in some)
    middle, far = statistics.median(errors), quantile(errors, 0.9)
    figures = (middle, far, max(errors), bias)
    return [name, str(len(some)), *(f"{100 * x:.1f}" for x in figures), f"{100 * held:.0f}"]


def reached(found: Sequence[Compared]) -> bool:
    """Whether predictions meet all goals."""
    for where, (middle, far) in GOALS.items():
        errors = [abs(each.error) for each in found if each.where == where]
        if not errors or statistics.median(errors) > middle or quantile(errors, 0.9) > far:
            return False
    held = statistics.fmean(each.covered for each in found)
    return COVERAGE[0] <= held <= COVERAGE[1]


_HOW = (
    "Each block calibrates again on two emulated cores and one rank; errors are of the predicted "
    "rate over the measured one, without sign but for the bias (the median)."
)


def _left_out(count: int, of: int) -> str:
    return (
        f"{count} of {of} runs are left out: the real machine ended their batches more than "
        f"{1e6 * _LATE_S:.0f} µs late on average, {_TRIES} times over."
    )


def report(found: Sequence[Compared]) -> Report:
    """The tables, over the runs that the real machine did not disturb."""
    kept = [each for each in found if each.late_s <= _LATE_S]
    columns = ("", "runs", "median, %", "p90, %", "max, %", "bias, %", "covered, %")
    groups = {where: [each for each in kept if each.where == where] for where in GOALS}
    kinds = {kind: [each for each in kept if each.kind == kind] for kind in KINDS}
    return Report(
        name="emulated",
        title="Predictions against real loaders on emulated cores",
        goal=(
            "off by at most 3 % in the median and 7 % at the 90th percentile, 4 % and "
            "10 % on other cores and ranks than those calibrated; 95 % intervals hold in 90-98 %"
        ),
        passed=reached(kept) if kept else None,
        tables=[
            Table(title, columns, [row(name, some) for name, some in by.items() if some])
            for title, by in (("By cores and ranks", groups), ("By kind of load", kinds))
        ],
        notes=[_left_out(len(found) - len(kept), len(found)), _HOW],
        data={"runs": [dataclasses.asdict(each) for each in found]},
    )


def main() -> None:
    """Run it."""
    given = parser(__doc__)
    given.add_argument("--blocks", type=int, help="fewer or more than the usual number")
    given.add_argument("--minutes", type=float, default=math.inf, help="begin no block after them")
    given.add_argument("--more", action="store_true", help="add to what earlier runs found")
    given.add_argument("--seed", type=int, help="of what is drawn; else that of the next run")
    options = given.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)  # more workers than real cores
    design = QUICK if options.quick else FULL
    if options.blocks:
        design = dataclasses.replace(design, blocks=options.blocks)
    before = surroundings()
    more = options.more and not options.quick
    found = earlier(RESULTS / "emulated.json") if more else []
    try:
        for each in measured(design, options.minutes, options.seed or 1 + len(found)):
            found.append(each)
    except (RuntimeError, KeyboardInterrupt) as error:  # what was measured is kept
        print(f"ended early: {error}", file=sys.stderr)
    publish(report(found), before, quick=options.quick)


if __name__ == "__main__":
    main()
