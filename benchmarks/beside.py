"""Are rates and ratios right that were measured beside other processes?

Loaders that compute are swept beside a process that never rests, and beside two that come and go.
Two or three blocks of a sweep at a time are judged by its other blocks: what the belief makes of
them, without a model's prediction, against the mean logarithm of the rest, whose own standard
error is allowed for. Ten minutes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import DLPROF, Report, Table, parser, publish, run_command, surroundings
from crowd import neighbours

from dlprof.api import load_run
from dlprof.records import Estimate, Trial
from dlprof.stats.belief import believe, observe

TARGETS = ("cpu_jpeg", "cpu_words", "cpu_python", "many_tiny")
"""Of ``planted_targets.py``."""

LOADS = (("one that never rests", 1, False), ("two that come and go", 2, True))
BLOCKS = (2, 3)
BUDGET_S, QUICK_S = 64, 8
WORKERS = "0,1,2,4,8"
COLUMNS = (
    *("beside", "blocks", "of", "estimates", "off, median", "90th percentile"),
    *("95% interval, ±", "holds"),
)
COVERED = 0.8
"""At least, of 95 % intervals: the rest that judges them is of few windows, close in time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One estimate and what the other blocks say.

    Attributes:
        off: Natural logarithm of the estimate over them.
        half: Half the width of its 95 % interval, as a logarithm.
        error: Their standard error.
    """

    off: float
    half: float
    error: float

    @property
    def holds(self) -> bool:
        """Whether the interval holds what the others say, as far as these are known."""
        return abs(self.off) <= math.hypot(self.half, 1.96 * self.error)


def sweep(target: str, count: int, *, bursts: bool, budget_s: float) -> list[Trial]:
    """Measure all numbers of workers, block after block, beside so many processes."""
    spec = f"{Path(__file__).with_name('planted_targets.py')}:{target}"
    with tempfile.TemporaryDirectory() as folder, neighbours(count, bursts=bursts):
        file = Path(folder) / "beside.dlprof.jsonl"
        plan = ("--search", "grid", "--num-workers", WORKERS, "--repeats", "8")
        times = ("--budget", f"{budget_s}s", "--trial-time", "600ms")
        run_command([*DLPROF, "sweep", spec, *plan, *times, "-q", "-o", str(file)])
        return [t for t in load_run(file).completed if t.samples_per_s and t.purpose == "measure"]


def judge(trials: Sequence[Trial], blocks: int) -> Iterator[tuple[str, Judged]]:
    """So many blocks at a time against the others: each rate, and each ratio of two."""
    numbers = sorted({trial.repetition for trial in trials})
    for first in range(len(numbers) - blocks + 1):
        some = {*numbers[first : first + blocks]}
        seen = [observe(trial) for trial in trials if trial.repetition in some]
        known = [each for each in seen if each is not None]
        if not known:
            continue
        belief, rest = believe(known), _rest(trials, some)
        keys = [key for key in rest if belief.blocks.get(key)]
        for key in keys:
            yield "rate", _judged(belief.rate(key), *rest[key])
        for one, other in itertools.combinations(keys, 2):
            (a, a_error), (b, b_error) = rest[one], rest[other]
            yield "ratio", _judged(belief.ratio(one, other), a - b, math.hypot(a_error, b_error))


def _rest(trials: Sequence[Trial], some: set[int]) -> dict[str, tuple[float, float]]:
    """Mean logarithm of each configuration's rates in the other blocks, and its standard error."""
    logs: dict[str, list[float]] = {}
    for trial in trials:
        if trial.repetition not in some and trial.samples_per_s is not None:
            logs.setdefault(trial.config.key, []).append(math.log(trial.samples_per_s.value))
    return {
        key: (statistics.fmean(each), statistics.stdev(each) / math.sqrt(len(each)))
        for key, each in logs.items()
        if len(each) > 1
    }


def _judged(found: Estimate, truth: float, error: float) -> Judged:
    low, high = found.ends
    return Judged(off=math.log(found.value) - truth, half=math.log(high / low) / 2, error=error)


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before, rows, shares = surroundings(), list[tuple[str, ...]](), list[float]()
    budget_s = QUICK_S if given.quick else BUDGET_S
    for name, count, bursts in LOADS:
        sweeps = [sweep(each, count, bursts=bursts, budget_s=budget_s) for each in TARGETS]
        for blocks in BLOCKS:
            found = [each for trials in sweeps for each in judge(trials, blocks)]
            for what in ("rate", "ratio"):
                some = [each for kind, each in found if kind == what]
                if not some:
                    continue
                off = sorted(abs(each.off) for each in some)
                share = statistics.fmean(each.holds for each in some)
                shares.append(share)
                half = statistics.median(each.half for each in some)
                middle, most = statistics.median(off), off[int(0.9 * len(off))]
                figures = (f"{each:.0%}" for each in (middle, most, half, share))
                rows.append((name, str(blocks), what, str(len(some)), *figures))
    report = Report(
        name="beside",
        title="Rates and ratios beside other processes",
        goal=f"95% intervals hold in {COVERED:.0%} or more, judged by other windows",
        passed=None if given.quick else min(shares) >= COVERED,
        tables=(
            Table(
                title="",
                columns=COLUMNS,
                rows=tuple(rows),
            ),
        ),
        notes=(
            f"Sweeps of {', '.join(TARGETS)} with num_workers={WORKERS}.",
            "Estimates share windows, as do their judges: shares are less sure than they seem.",
        ),
    )
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
