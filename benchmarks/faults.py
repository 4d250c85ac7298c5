"""What does a fault in a dataset cost a sweep, beyond the limit that it runs into?"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from common import Report, Table, parser, publish, surroundings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
os.environ.setdefault("DLPROF_FAULTS_MARK", "benchmark")

from fault_bench import STALL_S, FaultBench, config  # the path above comes first
from test_faults_workers import CASES

GOAL_S = 3.0
_LONG_ENOUGH_S = 10.0  # of a trial that is to run out of memory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one fault took.

    Attributes:
        fault: Its name in ``tests/faults``.
        kind: What it was called.
        expected: What it should have been called.
        limit_s: The limit that it runs into; 1 s where it shows at once.
        wall_s: The whole trial, workers started twice and all cleared away.
    """

    fault: str
    kind: str
    expected: str
    limit_s: float
    wall_s: float

    @property
    def beyond_s(self) -> float:
        """What it took beyond its limit."""
        return self.wall_s - self.limit_s


def measure(bench: FaultBench, *, quick: bool, persistent: bool) -> list[Cost]:
    """Every fault once, each beside what it was expected to be called."""
    costs = []
    for fault, kind, _, _, limit_s in CASES[:3] if quick else CASES:
        trial_s = _LONG_ENOUGH_S if kind == "out_of_memory" else 0.1
        trial = bench.run(fault, config(2, "fork", persistent=persistent), trial_s=trial_s)
        named = "none" if trial.failure is None else trial.failure.kind
        costs.append(
            Cost(fault=fault, kind=named, expected=kind, limit_s=limit_s, wall_s=trial.wall_s)
        )
        print(costs[-1], file=sys.stderr, flush=True)
    return costs


def report_on(costs: Sequence[Cost], plain_s: float) -> Report:
    """The table: by kind, how many faults, and the most expensive beyond its limit."""
    rows = []
    for kind in sorted({each.expected for each in costs}):
        members = [each for each in costs if each.expected == kind]
        worst = max(members, key=lambda each: each.beyond_s)
        rows.append(
            (
                kind,
                str(len(members)),
                str(sum(each.kind == kind for each in members)),
                f"{worst.beyond_s:.1f}",
                f"{worst.fault} ({worst.wall_s:.1f} of {worst.limit_s:g} s)",
            )
        )
    return Report(
        name="faults",
        title="What a fault costs a sweep beyond its limit",
        goal=f"at most {GOAL_S:g} s",
        passed=all(each.beyond_s <= GOAL_S and each.kind == each.expected for each in costs),
        tables=[Table("", ("kind", "trials", "named so", "beyond, s", "the worst"), rows)],
        notes=[
            (
                "Two forked workers, persistent ones and others; each fault is a real one of "
                "`tests/faults`. The limit is 1 s where a fault shows at once, 5 s for a worker "
                "that ends without an error (torch looks that often), and the limit without "
                "progress for one that hangs."
            ),
            f"A trial without a fault took {plain_s:.1f} s here.",
        ],
        data={"costs": [dataclasses.asdict(each) for each in costs]},
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    bench = FaultBench("loader", stall_s=STALL_S)
    try:
        plain_s = bench.run("none", config(2, "fork")).wall_s
        costs = [
            cost
            for persistent in (False, True)
            for cost in measure(bench, quick=given.quick, persistent=persistent)
        ]
    finally:
        bench.close()
    publish(report_on(costs, plain_s), before, quick=given.quick)


if __name__ == "__main__":
    main()
