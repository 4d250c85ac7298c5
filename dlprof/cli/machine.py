"""``dlprof machine``: what this machine offers, and who else is using it."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import datetime as dt
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
            metavar="NAME|FILE",
            help="Show a machine that dlprof knows, or that a TOML file describes, not this one.",
        ),
    ] = None,
    names: Annotated[
        bool,
        typer.Option("--list", help="List the machines that dlprof knows by name."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Also write what was found as a machine profile (TOML), for --machine elsewhere. "
            "Comments in the file stay.",
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
    here = {"--seconds": seconds, "--save": save}
    shown = {"--list": names or None, "--machine": profile, **here}
    given = [name for name, value in shown.items() if value is not None]
    if len(given) > 1 and given[0] not in here:
        raise UsageError(
            f"{given[1]} and {given[0]} don't go together",
            hint="A profile describes a machine that can't be watched from here"
            if given[0] == "--machine"
            else "Leave one of the two out",
        )
    if names:
        _list_profiles(as_json=as_json)
        return
    if profile is not None:
        _show_profile(profile, as_json=as_json, verbose=verbose)
        return
    watched_s = _DEFAULT_SECONDS if seconds is None else seconds
    _show_machine(watched_s, save, as_json=as_json, verbose=verbose)


def _list_profiles(*, as_json: bool) -> None:
    from dlprof.machine.profiles import known_profiles
    from dlprof.report.machine import profiles_document, profiles_report

    profiles = tuple(known_profiles())
    if as_json:
        streams.write_result(profiles_document(profiles))
    else:
        streams.print_result(profiles_report(profiles))


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
        from dlprof.machine.profiles import MachineProfile, save_profile

        today = dt.datetime.now(dt.UTC).date()
        save_profile(save, MachineProfile.of(overview.machine, today))
    if as_json:
        streams.write_result(machine_document(overview))
    else:
        streams.print_result(machine_report(overview), verbose=verbose)
