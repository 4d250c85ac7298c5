"""Screens compared with recorded ones; ``DLPROF_UPDATE_GOLDEN=1`` records them again."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

from dlprof.cli.commands import IN_ASCII
from dlprof.report.document import Document
from dlprof.report.terminal import Screen

_DATA = Path(__file__).parents[1] / "data"


def check_golden(name: str, text: str, *, folder: str = "report") -> None:
    """Compare a text with the recorded one of that name."""
    path = _DATA / folder / name
    if os.environ.get("DLPROF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode(), f"DLPROF_UPDATE_GOLDEN=1 records {name} again"


def drawn(
    shown: Document | RenderableType, width: int, encoding: str = "utf-8", *, verbose: bool = False
) -> str:
    """What a file of that encoding gets, blanks at the ends of lines taken off."""
    renderable = Screen(shown, verbose=verbose) if isinstance(shown, Document) else shown
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors=IN_ASCII)
    console = Console(
        file=stream,
        width=width,
        height=50,
        force_terminal=False,
        no_color=True,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(renderable, crop=False)
    stream.flush()
    lines = raw.getvalue().decode(encoding).splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)
