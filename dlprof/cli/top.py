"""``dlprof top``: which trainings load data on this machine, and which of them wait?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import options, streams
from dlprof.cli.attach import check_seconds

if TYPE_CHECKING:
    from dlprof.attach import Board

_SECONDS = 3.0


def top(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help=f"How long to watch for a snapshot, or between updates. Default: {_SECONDS:g}.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List the trainings that load data on this machine, and say what each waits for.

    On a terminal the list is live until Ctrl-C; elsewhere, and with --json, it is one snapshot.
    """
    del quiet, verbose  # taken as by every command; there is no progress to hide or lengthen
    watched_s = check_seconds(_SECONDS if seconds is None else seconds)
    from dlprof.attach import Board
    from dlprof.report.attach import top_document, top_report

    board = Board()
    try:
        if as_json:
            streams.write_result(top_document(board.watch(watched_s)))
        elif sys.stdout.isatty():
            _live(board, watched_s)
        else:
            found = board.watch(watched_s)
            streams.print_result(top_report(found, unseen=board.unseen))
    finally:
        board.close()


def _live(board: Board, seconds: float) -> None:
    """Show the list anew until Ctrl-C, which is how a live list ends."""
    from rich.console import Console
    from rich.live import Live

    from dlprof.report.attach import top_report
    from dlprof.report.terminal import Screen

    console = Console(markup=False, highlight=False, emoji=False)
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False) as live,
    ):
        while True:
            found = board.watch(seconds)
            live.update(Screen(top_report(found, unseen=board.unseen)), refresh=True)
