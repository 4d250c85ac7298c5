"""What does a sweep spend outside its measured windows? 32 trials of 1 s on a trivial dataset."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from common import DLPROF, TINY, Report, Table, parser, publish, run_command, surroundings
from made_targets import SLOW_S, slow_target

from dlprof.records import Run, Trial
from dlprof.store import read_run

GOAL = 0.25
TRIALS = 32
SETTINGS = {
    "--num-workers": "0,1,2,4",
    "--prefetch-factor": "1,2,3,4,6",
    "--persistent-workers": "off",
    "--batch-size": "16,32",
    "--trial-time": "1s",
    "--repeats": "1",
    "--budget": "10m",
}
"""32 configurations, once each: with repeats, fewer trials would come, as losers are dropped."""
QUICK_SETTINGS = SETTINGS | {
    "--num-workers": "0,2",
    "--prefetch-factor": "2",
    "--batch-size": "32",
    "--trial-time": "0.3s",
}

Writer = Callable[[Path], str]
CASES: dict[str, Writer] = {
    "tiny tensors": lambda _directory: TINY,
    f"{SLOW_S:g} s to import, {SLOW_S:g} s to build, sleeping": lambda directory: slow_target(
        directory, "sleep"
    ),
    f"{SLOW_S:g} s to import, {SLOW_S:g} s to build, on the CPU": lambda directory: slow_target(
        directory, "burn"
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where a sweep's wall time went, in seconds; the parts add up to ``wall_s``.

    Attributes:
        wall_s: Of the whole command.
        windows_s: Measured windows.
        before_s: Until the first trial: interpreter, torch, target, probe, plan.
        target_s: The part of ``before_s`` in which torch and the target were imported and built.
        startup_s: Starting workers and the first batch, each trial's first time.
        turnover_s: The end of an epoch that trials time on purpose.
        rest_s: Else in trials: forking, warm-up, a window's unused batches, memory, shutting down.
        between_s: Between trials: writing, choosing the next.
        after_s: After the last: the recommendation, the tables, ending processes.
        trials: How many.
    """

    wall_s: float
    windows_s: float
    before_s: float
    target_s: float
    startup_s: float
    turnover_s: float
    rest_s: float
    between_s: float
    after_s: float
    trials: int

    @property
    def outside(self) -> float:
        """Share of the wall time outside the measured windows."""
        return 1 - self.windows_s / self.wall_s


def break_down(run: Run, *, began_at: float, wall_s: float) -> Breakdown:
    """Take a sweep's time apart.

    Args:
        run: What it wrote.
        began_at: When its command was started, seconds since 1970.
        wall_s: What the command took.
    """
    started = [datetime.fromisoformat(trial.started_at).timestamp() for trial in run.trials]
    in_trials_s = math.fsum(trial.wall_s for trial in run.trials)
    windows_s = math.fsum(trial.measured_s for trial in run.trials)
    startup_s = math.fsum(trial.startup_s or 0.0 for trial in run.trials)
    turnover_s = math.fsum(trial.epoch_turnover_s or 0.0 for trial in run.trials)
    ended = started[-1] + run.trials[-1].wall_s
    return Breakdown(
        wall_s=wall_s,
        windows_s=windows_s,
        before_s=started[0] - began_at,
        target_s=run.header.target.import_s or 0.0,
        startup_s=startup_s,
        turnover_s=turnover_s,
        rest_s=in_trials_s - windows_s - startup_s - turnover_s,
        between_s=ended - started[0] - in_trials_s,
        after_s=began_at + wall_s - ended,
        trials=len(run.trials),
    )


def sweep(case: str, settings: dict[str, str], directory: Path) -> tuple[Breakdown, Run]:
    """Run one sweep by the command that users run."""
    path = directory / "run.dlprof.jsonl"
    flags = [text for pair in settings.items() for text in pair]
    target = CASES[case](directory)
    command = [*DLPROF, "sweep", target, *flags, "-q", "--force", "-o", str(path)]
    finished = run_command(command)
    run = read_run(path)
    return break_down(run, began_at=finished.began_at, wall_s=finished.wall_s), run


def import_torch_s() -> float:
    """What importing torch takes in an interpreter of its own, the interpreter included."""
    return min(run_command([sys.executable, "-c", "import torch"]).wall_s for _ in range(3))


def report_on(found: dict[str, tuple[Breakdown, Run]], torch_s: float) -> Report:
    """The tables of all sweeps."""
    parts = {case: parts for case, (parts, _) in found.items()}
    columns = ("sweep", "trials", "wall, s", "windows, s", "outside, %")
    rows = [
        (
            case,
            str(each.trials),
            f"{each.wall_s:.1f}",
            f"{each.windows_s:.1f}",
            f"{100 * each.outside:.1f}",
        )
        for case, each in parts.items()
    ]
    fields = ("before_s", "target_s", "startup_s", "turnover_s", "rest_s", "between_s", "after_s")
    where = Table(
        "Where the rest went, s",
        ("sweep", "before", "(target)", "start-up", "turnover", "trials' rest", "between", "after"),
        [
            (case, *(f"{getattr(each, name):.2f}" for name in fields))
            for case, each in parts.items()
        ],
    )
    per_trial = Table(
        "Per trial outside its window, ms: mean over its configurations",
        ("sweep", *(f"num_workers={workers}" for workers in _workers(found))),
        [(case, *_per_trial(run)) for case, (_, run) in found.items()],
    )
    return Report(
        name="overhead",
        title="A sweep mostly measures",
        goal=f"at most {GOAL:.0%} of the wall time of {TRIALS} trials of 1 s outside their windows",
        passed=all(each.outside <= GOAL and each.trials == TRIALS for each in parts.values()),
        tables=[Table("", columns, rows), where, per_trial],
        notes=[
            (
                "Wall time is that of the command `dlprof sweep`; only windows count as "
                "measuring, as the run file states them."
            ),
            (
                '"before" is interpreter, torch, target, probe and plan; "(target)", a part of it, '
                f"is building the target with torch; torch alone takes {torch_s:.2f} s here."
            ),
            "The slow targets import torch too.",
        ],
        data={case: dataclasses.asdict(each) for case, each in parts.items()},
    )


def _workers(found: dict[str, tuple[Breakdown, Run]]) -> list[int]:
    return sorted({trial.config.num_workers for _, run in found.values() for trial in run.trials})


def _per_trial(run: Run) -> list[str]:
    """The mean overhead of a trial for each number of workers."""
    by_workers: dict[int, list[Trial]] = {}
    for trial in run.trials:
        by_workers.setdefault(trial.config.num_workers, []).append(trial)
    return [
        f"{1e3 * math.fsum(each.wall_s - each.measured_s for each in trials) / len(trials):.0f}"
        for _, trials in sorted(by_workers.items())
    ]


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    settings = QUICK_SETTINGS if given.quick else SETTINGS
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
            found[case] = sweep(case, settings, Path(directory))
    publish(report_on(found, import_torch_s()), before, quick=given.quick)


if __name__ == "__main__":
    main()
