"""``dlprof top``: which trainings load data on this machine, and which of them wait?"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from dlprof.cli import options
from dlprof.units import watching_s

if TYPE_CHECKING:
    from rich.console import Console

    from dlprof.attach import Board


@options.command(
    kind="Measure", short="--seconds --json", examples=("dlprof top", "dlprof top --json")
)
def top(
    asked: options.Asked,
    *,
    seconds: float = options.option(
        "How long to watch for a snapshot, or between updates. Default: 3.", "S", default=3.0
    ),
) -> None:
    """List the trainings that load data here.

    Says what each waits for. On a terminal the list is live until Ctrl-C; elsewhere, and with
    --json, it is one snapshot.
    """
    watched_s = watching_s(seconds, 0.5)
    from rich.console import Console

    from dlprof.attach import Board
    from dlprof.report.attach import figures_of, top_report
    from dlprof.report.documents import json_document

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.width:  # as where COLUMNS is 0, at which Rich shows nothing
        console.width = 80
    # On one that can only print, as Emacs's shell, nothing would be seen until Ctrl-C.
    is_live = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    board = Board()
    try:
        if is_live and not asked.as_json:
            _live(board, watched_s, console)
        else:
            found = board.watch(watched_s)
            asked.show(
                lambda: json_document(trainings=list(map(figures_of, found))),
                lambda: top_report(found, unseen=board.unseen),
            )
    finally:
        board.close()


def _live(board: Board, seconds: float, console: Console) -> None:
    """Show the list again until Ctrl-C, which is how a live list ends, or SIGTERM."""
    from rich.live import Live

    from dlprof.report.attach import top_report
    from dlprof.report.terminal import Screen

    # What ends it otherwise, as timeout does, would leave the cursor hidden.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            found = board.watch(seconds)
            live.update(Screen(top_report(found, unseen=board.unseen)), refresh=True)
    signal.signal(signal.SIGTERM, before)
