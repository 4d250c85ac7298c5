"""How soon do commands that measure nothing answer, beside what any such program imports?"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path

from common import DLPROF, Report, Table, parser, publish, run_command, spread, surroundings
from made_runs import made_header, made_trials, write_run

GOAL = 3.0
ROUNDS, QUICK_ROUNDS = 30, 3
TRIALS = 60
"""In the run file: what a sweep of the default budget leaves behind."""

REFERENCE = 'python -c "import typer, rich"'
# Ends like the program itself, and then says whether torch came in on the way.
_ASK_FOR_TORCH = """
import runpy, sys
sys.argv[0] = "dlprof"
try:
    runpy.run_module("dlprof", run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:
        raise
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def commands(run_file: Path) -> dict[str, tuple[str, ...]]:
    """What is timed: the reference first."""
    installed = Path(sys.executable).with_name("dlprof")
    program = (str(installed),) if installed.exists() else DLPROF
    return {
        REFERENCE: (sys.executable, "-c", "import typer, rich"),
        "dlprof --help": (*program, "--help"),
        "dlprof recommend RUN": (*program, "recommend", str(run_file)),
    }


def check_for_torch(run_file: Path) -> None:
    """Fail if a command imports torch.

    Raises:
        CommandError: It does.
    """
    for arguments in (["--help"], ["recommend", str(run_file)]):
        run_command([sys.executable, "-c", _ASK_FOR_TORCH, *arguments])


def measure(rounds: int, run_file: Path) -> dict[str, list[float]]:
    """Wall time of each command in each round, in random order within a round."""
    timed = commands(run_file)
    order = random.Random(0)
    walls: dict[str, list[float]] = {name: [] for name in timed}
    for command in timed.values():  # once untimed, so that all files are in the page cache
        run_command(command)
    for _ in range(rounds):
        for name in order.sample(list(timed), len(timed)):
            walls[name].append(run_command(timed[name]).wall_s)
    return walls


def report_on(walls: dict[str, list[float]]) -> Report:
    """The table of all commands."""
    reference = walls[REFERENCE]
    ratios = {
        name: [own / base for own, base in zip(taken, reference, strict=True)]
        for name, taken in walls.items()
    }
    rows = [
        (
            f"`{name}`",
            f"{1e3 * statistics.median(taken):.0f}",
            f"{statistics.median(ratios[name]):.2f}",
            spread(ratios[name], 2),
        )
        for name, taken in walls.items()
    ]
    return Report(
        name="startup",
        title="Commands that measure nothing answer at once",
        goal=f"at most {GOAL:g}x the time of `{REFERENCE}`, without importing torch",
        passed=all(statistics.median(each) <= GOAL for each in ratios.values()),
        tables=[Table("", ("command", "median, ms", "ratio, median", "ratio, quartiles"), rows)],
        notes=[
            (
                f"{len(reference)} rounds, the commands in random order within each; ratios are "
                "within rounds."
            ),
            "Neither command had imported torch when it ended.",
            f"RUN holds {TRIALS} trials.",
        ],
        data={"wall_s": walls},
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
        run_file = Path(directory) / "run.dlprof.jsonl"
        write_run(run_file, made_header(), made_trials(TRIALS))
        check_for_torch(run_file)
        walls = measure(QUICK_ROUNDS if given.quick else ROUNDS, run_file)
    publish(report_on(walls), before, quick=given.quick)


if __name__ == "__main__":
    main()
