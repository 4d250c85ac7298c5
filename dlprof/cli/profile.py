"""``dlprof profile``: where the time of one configuration goes, and what the cause is."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlprof.cli import options
from dlprof.errors import NothingMeasuredError
from dlprof.settings.options import SWEPT

if TYPE_CHECKING:
    from dlprof.records import Run


@options.command(
    *options.LOADED,
    *options.STEP,
    *SWEPT,
    options.varied("budget", text="How long the whole profile may take.", default="30s"),
    *("trial_time", "seed", "timeout", "cold_cache", "max_workers", "max_ram"),
    options.varied("launch_ranks", text="So many ranks load at once, each its share."),
    "step_barrier",
    once=True,
    screen=("as_json", "brief", "quiet", "verbose"),
    kind="Measure",
    short="--num-workers --batch-size --step-time --cold-cache --arg --budget --output --json "
    "--verbose",
    examples=(
        "dlprof profile my_data.py:make_loader --step-time 12ms",
        "dlprof profile images --num-workers 4",
    ),
)
def profile(
    asked: options.Asked,
    *,
    output: Path | None = options.OUTPUT,
    force: bool = options.FORCE,
    config: Path | None = options.CONFIG,
) -> None:
    """Find the bottleneck of one configuration.

    Traces the target's present settings, or those that the options name. Writes a run file.
    """
    from dlprof.engine import run_profile
    from dlprof.engine.profile import for_one

    settings, origins = options.resolve(asked.given, config)
    settings = for_one(settings, origins)
    path = options.run_path(output, settings.target)
    profiling = functools.partial(run_profile, origins=origins, output=path, force=force)
    run = options.measured(asked, settings, profiling)
    if run is not None:
        show(asked, run, path)


def show(asked: options.Asked, run: Run, path: Path) -> None:
    """Show a profile, and end as it ended."""
    from dlprof.report.documents import profile_document
    from dlprof.report.profile import profile_report

    failure = run.trials[0].failure if run.trials else None
    fault = None
    if failure is not None:
        fault = NothingMeasuredError(
            failure.message,
            hint=failure.hint,
            traceback=failure.stderr_tail,
            failures=[
                (trial.failure.kind, trial.failure.message) for trial in run.trials if trial.failure
            ],
        )
    asked.show(
        lambda: profile_document(run, fault),
        lambda: profile_report(dataclasses.replace(run, path=str(path))),
    )
    options.leave_interrupted(run, path, as_json=asked.as_json)
    if fault is not None:
        raise click.exceptions.Exit(fault.exit_code) if asked.as_json else fault
