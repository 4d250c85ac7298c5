"""``dlprof machine``: what this machine offers, and who else is using it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from dlprof.cli import options


@options.command(
    kind="Machine",
    short="--seconds --machine --list --save --json --verbose",
    examples=("dlprof machine", "dlprof machine --save this-machine.toml"),
)
def machine(
    asked: options.Asked,
    *,
    seconds: float | None = options.option("How long to watch who uses it. Default: 1.", "S"),
    profile: Path | None = options.option(
        "Show a machine that dlprof knows, or that a TOML file describes, not this one.",
        "NAME|FILE",
        "--machine",
        aliases=["--profile"],
    ),
    names: bool = options.option("List the machines that dlprof knows by name.", "", "--list"),
    save: Path | None = options.option(
        "Also write what was found as a machine profile (TOML), for --machine elsewhere. "
        "Comments in the file stay."
    ),
) -> None:
    """Show what this machine offers and who uses it.

    Of other people's programs it shows sums per user, never names or arguments.
    """
    for flag, value in (("--seconds", seconds), ("--save", save)):
        options.refuse_two({"--list": names, "--machine": profile, flag: value})
    from dlprof import api
    from dlprof.report import machine as views
    from dlprof.report.documents import json_document

    if names:
        from dlprof.machine.profiles import known_profiles

        profiles = tuple(known_profiles())
        asked.show(
            lambda: json_document(profiles=profiles), lambda: views.profiles_report(profiles)
        )
    elif profile is not None:
        known = api.machine(machine=profile)
        asked.show(
            lambda: json_document(profile=known, machine=known.to_machine()),
            lambda: views.profile_report(known),
        )
    else:
        overview = api.machine(seconds=1.0 if seconds is None else seconds, save=save)
        if save is not None and not asked.quiet:
            use = f"dlprof recommend RUN --machine {shlex.quote(str(save))}"
            sys.stderr.write(f"Written: {save}, for {use}\n")
        asked.show(lambda: json_document(overview), lambda: views.machine_report(overview))
