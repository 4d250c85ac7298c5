"""What commands that measure have in common: the run file's path, the display, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from dlprof.cli import BEGAN_S
from dlprof.errors import ExitCode, InterruptedSweepError, UsageError

if TYPE_CHECKING:
    from dlprof.cli.options import Asked
    from dlprof.records import Run
    from dlprof.report.live import QuietListener
    from dlprof.settings import SweepSettings

_ENDING = (signal.SIGINT, signal.SIGTERM)


def run_path(output: Path | None, target: str, *, resume: bool = False) -> Path:
    """Where the run is kept: what the user names, or a name with the target and the time."""
    if output is not None:
        if str(output) in {"-", "."}:  # "." is also what an empty path is read as
            raise UsageError(
                "-o needs the path of the run file",
                hint="Results go to stdout by themselves; a run is kept in a file.",
            )
        return output
    if resume:
        raise UsageError(
            "--resume needs to know which run file to continue", hint="Give it with -o FILE."
        )
    from dlprof.store import run_file_name

    return Path(run_file_name(target, datetime.now().astimezone()))


def leave_interrupted(run: Run, message: str, *, as_json: bool, hint: str = "") -> None:
    """End the command where the run was interrupted; a document has said so."""
    if run.end is not None and run.end.reason == "interrupted":
        if as_json:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED)
        raise InterruptedSweepError(message, hint=hint)


def measured(asked: Asked, settings: SweepSettings, measure: Callable[..., Run]) -> Run | None:
    """What a measurement gave, by all ranks that a launcher started; ``None`` but in the first."""
    from dlprof.engine.ranks import gather_ranks

    with gather_ranks(os.environ, sys.argv[1:], settings) as ranks:
        if ranks is None:
            return None
        with listening(asked) as listener:
            return measure(settings, listener=listener, began_s=BEGAN_S.get(), ranks=ranks)


@contextlib.contextmanager
def listening(asked: Asked) -> Iterator[QuietListener]:
    """Show a measurement while it goes on; finish it when asked to end, end at once if asked again.

    A command whose terminal is gone still has its run file to write to, and its budget ends it. Its
    other processes notice its end by themselves.
    """
    from dlprof.report.live import open_listener

    def interrupt(number: int, frame: FrameType | None) -> None:
        _at_next_signal(_end_at_once)
        signal.default_int_handler(number, frame)

    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    if hangup is not None:
        before[hangup] = signal.signal(hangup, signal.SIG_IGN)
    try:
        with open_listener(quiet=asked.quiet, verbose=asked.verbose) as listener:
            yield listener
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_next_signal(handler: Callable[[], object]) -> None:
    for number in _ENDING:
        signal.signal(number, lambda *_: handler())


def _end_at_once() -> None:
    """Leave nothing behind that a moment can undo, and not even that if asked once more."""
    from dlprof.engine.workplace import clean_up_now

    _at_next_signal(lambda: os._exit(ExitCode.INTERRUPTED))
    clean_up_now()
    os._exit(ExitCode.INTERRUPTED)
