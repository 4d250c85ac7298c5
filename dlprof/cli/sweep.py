"""``dlprof sweep``: measure which settings are fast here."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from dlprof.cli import BEGAN_S, options, streams
from dlprof.cli.measuring import resolve, run_path, signals_while_measuring
from dlprof.errors import ExitCode, InterruptedSweepError, UsageError

if TYPE_CHECKING:
    from dlprof.records import Run


@options.takes(
    *options.LOADED,
    *options.STEP,
    *options.SWEPT,
    *("budget", "trial_time", "repeats", "search", "seed", "timeout", "cold_cache"),
    *("max_workers", "max_ram", "max_shm", "ranks"),
)
def sweep(  # noqa: PLR0913 - a command has as many parameters as it has options
    given: options.Given,
    *,
    output: options.Output = None,
    resume: options.Resume = False,
    force: options.Force = False,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    as_json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure which DataLoader settings are fast here, and say which to use.

    Writes a run file that dlprof recommend reads later, on any machine.
    """
    streams.check_brief(brief=brief, as_json=as_json)
    if print_config and as_json:
        raise UsageError(
            "--print-config writes TOML, and --json asks for JSON",
            hint="Leave one of the two out.",
        )
    settings, origins = resolve(given, config)
    if print_config:
        from dlprof.settings.written import print_config as settings_as_toml

        streams.write_result(settings_as_toml(settings, origins))
        return
    path = run_path(output, settings.target, resume=resume)
    from dlprof.engine import resume_command, run_sweep
    from dlprof.report.live import open_listener
    from dlprof.units import counted

    with signals_while_measuring(), open_listener(quiet=quiet, verbose=verbose) as listener:
        run = run_sweep(
            settings,
            output=path,
            listener=listener,
            resume=resume,
            force=force,
            given=_fields_named(given),
            began_s=BEGAN_S.get(),
        )
    # The file by the name that the user knows it by; the engine has made it absolute.
    _show(
        run if as_json else dataclasses.replace(run, path=str(path)),
        as_json=as_json,
        brief=brief,
        verbose=verbose,
    )
    if run.end is not None and run.end.reason == "interrupted":
        if as_json:  # the document says it
            raise typer.Exit(ExitCode.INTERRUPTED)
        raise InterruptedSweepError(
            f"The sweep was interrupted; it has kept {counted(len(run.trials), 'trial')} in {path}",
            hint=f"Continue it with: {resume_command(settings, path)}",
        )


def _fields_named(given: Mapping[str, object]) -> frozenset[str]:
    """The fields of the settings that were given, which a resumed run can't silently ignore."""
    from dlprof.settings import OPTIONS

    return frozenset(option.field for option in OPTIONS if option.key in given)


def _show(run: Run, *, as_json: bool, brief: bool = False, verbose: bool = False) -> None:
    if as_json:
        from dlprof.report.documents import sweep_document

        streams.write_document(sweep_document(run), brief=brief)
        return
    from dlprof.report.sweep import sweep_report

    streams.print_result(sweep_report(run), verbose=verbose)
