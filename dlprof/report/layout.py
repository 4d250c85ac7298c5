"""Paragraphs that hang behind a label: what the texts of a screen are set with.

Rich's grids and paddings can do the same at several times the cost, and fill lines up with blanks
that get in the way of copying.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

INDENT = "  "
_NARROWEST = 20


class Hanging:
    """Rich renderable: a label, and a paragraph whose further lines stand under its first."""

    def __init__(self, label: str, text: Text) -> None:
        """Set a paragraph.

        Args:
            label: What stands before the first line, blanks included.
            text: The paragraph.
        """
        self._label = label
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(_NARROWEST, options.max_width - len(self._label))
        lead = self._label
        for line in self._text.split():
            for wrapped in line.wrap(console, room):
                wrapped.rstrip()
                yield Text(lead, no_wrap=True, overflow="ignore").append_text(wrapped)
                lead = " " * len(lead)


def bullet(text: Text) -> Hanging:
    """One item of a list."""
    return Hanging(f"{INDENT}- ", text)
