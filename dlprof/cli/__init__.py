"""The command line: one module per command, each parse, one call, render.

Importing it loads no torch; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextvars import ContextVar

BEGAN_S: ContextVar[float | None] = ContextVar("BEGAN_S", default=None)
"""When the program began, by ``time.monotonic``; ``None`` where other code calls its commands."""


def main() -> None:
    """Run the program with the process's own arguments and end the process with its exit code."""
    BEGAN_S.set(time.monotonic())
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _leave)
    from dlprof.cli.entry import main as enter  # with the signal taken care of

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        enter()
    except SystemExit as request:
        if not isinstance(request.__cause__, KeyboardInterrupt):
            raise
        # Of a script that Ctrl-C ended, and that has shown it: so ends this process as well.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None


def _leave(_number: int, _frame: object) -> None:
    """End at once: nothing has been begun, and an import would answer with a traceback."""
    os.write(2, b"dlprof: Interrupted.\n")
    # ``ExitCode.INTERRUPTED``, which is not imported yet where this is needed
    os._exit(130)
