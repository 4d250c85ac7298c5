"""``dlprof profile``: where the time of one configuration goes, and what the cause is."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlprof.cli import BEGAN_S, options, streams
from dlprof.cli.measuring import resolve, run_path, signals_while_measuring
from dlprof.errors import ExitCode, InterruptedSweepError, NothingMeasuredError

if TYPE_CHECKING:
    from dlprof.records import Run


@options.takes(
    *options.LOADED,
    *options.STEP,
    *options.SWEPT,
    options.varied("budget", text="How long the whole profile may take.", default="30s"),
    *("trial_time", "seed", "timeout", "cold_cache", "max_workers", "max_ram"),
    once=True,
)
def profile(
    given: options.Given,
    *,
    output: options.Output = None,
    force: options.Force = False,
    config: options.ConfigFile = None,
    as_json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show where the time of one configuration goes, the bottleneck, and the fix.

    Traces the target's present settings, or those that the options name. Writes a run file.
    """
    streams.check_brief(brief=brief, as_json=as_json)
    from dlprof.engine import run_profile
    from dlprof.engine.profile import for_one
    from dlprof.report.live import open_listener

    settings = for_one(*resolve(given, config))
    path = run_path(output, settings.target)
    with signals_while_measuring(), open_listener(quiet=quiet, verbose=verbose) as listener:
        run = run_profile(
            settings, output=path, listener=listener, force=force, began_s=BEGAN_S.get()
        )
    _show(
        run if as_json else dataclasses.replace(run, path=str(path)),
        as_json=as_json,
        brief=brief,
        verbose=verbose,
    )
    _exit(run, path, as_json=as_json)


def _show(run: Run, *, as_json: bool, brief: bool = False, verbose: bool = False) -> None:
    if as_json:
        from dlprof.report.documents import profile_document

        streams.write_document(profile_document(run, _fault(run)), brief=brief)
        return
    from dlprof.report.profile import profile_report

    streams.print_result(profile_report(run), verbose=verbose)


def _exit(run: Run, path: Path, *, as_json: bool) -> None:
    """Say by the exit code that a profile was interrupted, or that nothing could be measured."""
    if run.end is not None and run.end.reason == "interrupted":
        if as_json:  # the document says it
            raise typer.Exit(ExitCode.INTERRUPTED)
        raise InterruptedSweepError(
            f"The profile was interrupted; {len(run.trials)} trials are kept in {path}",
            hint="Run it again for a diagnosis that rests on more.",
        )
    fault = _fault(run)
    if fault is not None:
        raise typer.Exit(fault.exit_code) if as_json else fault


def _fault(run: Run) -> NothingMeasuredError | None:
    """Why nothing could be measured; ``None`` where something was."""
    failure = run.trials[0].failure if run.trials else None
    if failure is None:
        return None
    return NothingMeasuredError(
        failure.message,
        hint=failure.hint,
        traceback=failure.stderr_tail,
        failures=[
            (trial.failure.kind, trial.failure.message) for trial in run.trials if trial.failure
        ],
    )
