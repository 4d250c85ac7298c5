"""Does a sweep keep its budget?"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from common import DLPROF, Report, Table, parser, publish, run_command, surroundings
from made_targets import slow_target

from dlprof.store import read_run
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target

GOAL = 0.10
BUDGETS_S, QUICK_BUDGETS_S = (20, 60), (15,)
TARGETS = {
    "images": "images",
    "synthetic:wait_ms=8": "synthetic:wait_ms=8",
    "synthetic:tail=0.01x50": "synthetic:cpu_ms=1,tail=0.01x50",
}
QUICK_TARGETS = {"synthetic:cpu_ms=2": "synthetic:cpu_ms=2"}
SLOW = "3 s to import, 3 s to build"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one sweep took.

    Attributes:
        target: Name of the target.
        budget_s: What it was given.
        wall_s: What the command took.
        reason: Why it stopped measuring.
        trials: How many it ran.
        configs: Configurations measured.
    """

    target: str
    budget_s: float
    wall_s: float
    reason: str
    trials: int
    configs: int

    @property
    def over(self) -> float:
        """How far the budget was overdrawn, as a share of it; negative where time was left."""
        return self.wall_s / self.budget_s - 1


def spend(name: str, target: str, budget_s: float, directory: Path) -> Spent:
    """Run one sweep with everything but the budget at its default."""
    path = directory / "run.dlprof.jsonl"
    flags = ("--budget", f"{budget_s}s", "-q", "--force", "-o", str(path))
    finished = run_command([*DLPROF, "sweep", target, *flags])
    run = read_run(path)
    return Spent(
        target=name,
        budget_s=budget_s,
        wall_s=finished.wall_s,
        reason=run.end.reason if run.end else "cut off",
        trials=len(run.trials),
        configs=len({trial.config for trial in run.trials}),
    )


def report_on(spent: list[Spent]) -> Report:
    """The table of all sweeps."""
    columns = ("target", "budget, s", "wall, s", "over, %", "stopped", "trials", "configurations")
    rows = [
        (
            each.target,
            f"{each.budget_s:g}",
            f"{each.wall_s:.1f}",
            f"{100 * each.over:+.1f}",
            each.reason,
            str(each.trials),
            str(each.configs),
        )
        for each in spent
    ]
    return Report(
        name="budget",
        title="A sweep keeps its budget",
        goal=f"the command's wall time at most {GOAL:.0%} over --budget",
        passed=all(each.over <= GOAL for each in spent),
        tables=[Table("", columns, rows)],
        notes=[
            (
                "Wall time is that of the command `dlprof sweep`, interpreter and torch included; "
                "the files of built-in datasets were made before."
            ),
            "`decided`: it ended early because more trials would not have changed the answer.",
        ],
        data={"sweeps": [dataclasses.asdict(each) for each in spent]},
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    spent = []
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as name:
        directory = Path(name)
        targets = dict(QUICK_TARGETS if given.quick else TARGETS)
        if not given.quick:
            targets[SLOW] = slow_target(directory, "sleep")
        for label, target in targets.items():
            spec = parse_target(target)
            if spec.kind == "builtin":
                prepare(spec, lambda *_: None)
            budgets = QUICK_BUDGETS_S if given.quick else BUDGETS_S
            spent += [spend(label, target, budget_s, directory) for budget_s in budgets]
    publish(report_on(spent), before, quick=given.quick)


if __name__ == "__main__":
    main()
