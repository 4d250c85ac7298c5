"""What a check shows on stderr while it measures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self, TextIO

from dlprof.gate import NextLook
from dlprof.records.gate import Series
from dlprof.report.live import preparing_text
from dlprof.report.text import clean
from dlprof.units import counted, format_duration

_WIPE = "\r\x1b[K"


class CheckProgress:
    """Hears from a check what it does.

    On a terminal one line is written over and over; elsewhere a line comes now and then. A stream
    that takes no more silences it, and never ends the check.
    """

    def __init__(self, stream: TextIO | None, *, rewrites: bool = False) -> None:
        self._stream = stream
        self._rewrites = rewrites
        self._said_s = 0.0
        self._preparing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line back."""
        if self._rewrites:
            self._write(_WIPE)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Say once for each thing that it is made."""
        if self._preparing != what:
            self._preparing = what
            self._say(preparing_text(what, done, total))

    def message(self, text: str) -> None:
        """Pass it on."""
        self._say(clean(text))

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        """Show how far it is."""
        if not self._rewrites and elapsed_s < self._said_s + 10.0:
            return
        self._said_s = elapsed_s
        parts = [counted(done["load"], "ABBA block")]
        if done["start"]:
            parts.append(f"{counted(done['start'], 'start')} of each side")
        if look is not None and look.verdict.quads.get("load"):
            parts.append("still undecided")
        parts.append(f"{format_duration(elapsed_s)} of at most {format_duration(budget_s)}")
        self._say(", ".join(parts), lasting=not self._rewrites)

    def _say(self, line: str, *, lasting: bool = True) -> None:
        before = _WIPE if self._rewrites else ""
        self._write(f"{before}{line}" + ("\n" if lasting else ""))

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def open_check_listener(*, quiet: bool) -> CheckProgress:
    """What suits stderr as it is."""
    if quiet:
        return CheckProgress(None)
    return CheckProgress(sys.stderr, rewrites=sys.stderr.isatty())
