"""``dlprof machine``: what this machine offers, and who else is using it."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import UsageError

_DEFAULT_SECONDS = 1.0


def machine(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help=f"How long to watch who uses it. Default: {_DEFAULT_SECONDS:g}.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--machine",
            "--profile",  # its earlier name
            metavar="FILE",
            help="Show the machine that this TOML file describes instead.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Also write what was found as a machine profile (TOML), for --machine elsewhere.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show what this machine offers to a job, what limits it, and who else uses it.

    Of other people's programs it shows sums per user, never names or arguments.
    """
    del quiet  # taken as by every command; there is no progress to hide
    if profile is not None:
        if seconds is not None or save is not None:
            raise UsageError(
                f"--{'seconds' if save is None else 'save'} and --machine don't go together",
                hint="A profile describes a machine that can't be watched from here",
            )
        _show_profile(profile, as_json=as_json, verbose=verbose)
        return
    watched_s = _DEFAULT_SECONDS if seconds is None else seconds
    _show_machine(watched_s, save, as_json=as_json, verbose=verbose)


def _show_profile(path: Path, *, as_json: bool, verbose: bool) -> None:
    from dlprof.machine.profiles import read_profile
    from dlprof.report.machine import profile_document, profile_report

    profile = read_profile(path)
    if as_json:
        streams.write_result(profile_document(profile))
    else:
        streams.print_result(profile_report(profile), verbose=verbose)


def _show_machine(seconds: float, save: Path | None, *, as_json: bool, verbose: bool) -> None:
    from dlprof.machine.overview import survey
    from dlprof.report.machine import machine_document, machine_report

    overview = survey(seconds)
    if save is not None:
        from dlprof.files import replace_file
        from dlprof.machine.profiles import MachineProfile

        replace_file(save, MachineProfile.of(overview.machine).to_toml().encode())
    if as_json:
        streams.write_result(machine_document(overview))
    else:
        streams.print_result(machine_report(overview), verbose=verbose)
