"""``dlprof attach``: why does this running training wait?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import UsageError
from dlprof.units import quoted

_SECONDS = 10.0


def attach(
    pid: Annotated[
        str,
        typer.Argument(metavar="PID", help="The training's main process, or one of its workers."),
    ],
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", help=f"How long to watch it. Default: {_SECONDS:g}."
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say why a training that runs waits for its data.

    It is watched from outside: nothing is injected, and it isn't slowed down. Where that can't say
    enough, `dlprof run` follows each batch from the start of a run.
    """
    number = _number(pid)
    watched_s = check_seconds(_SECONDS if seconds is None else seconds)
    from dlprof.attach import attach as watch
    from dlprof.report.attach import attach_document, attach_report

    if not quiet and sys.stderr.isatty():
        sys.stderr.write(f"Watching process {number} for {watched_s:g} s …\n")
    found = watch(number, watched_s)
    if as_json:
        streams.write_result(attach_document(found))
    else:
        streams.print_result(attach_report(found), verbose=verbose)


def check_seconds(seconds: float) -> float:
    """The time to watch for, which has to be one in which something can be seen.

    Raises:
        UsageError: It isn't.
    """
    if not 0.5 <= seconds <= 86_400:
        raise UsageError(
            f"--seconds {seconds:g} is no time to watch for", hint="Give 0.5 to 86400 seconds."
        )
    return seconds


def _number(pid: str) -> int:
    if not (pid.isascii() and pid.isdigit() and 0 < int(pid[:20]) < 1 << 31):
        raise UsageError(
            f"{quoted(pid)} is not the id of a process",
            hint="`dlprof top` lists the trainings on this machine.",
        )
    return int(pid)
