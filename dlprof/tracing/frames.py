"""Tracebacks without the frames of dlprof's own: what a script's user sees is the script's."""

from __future__ import annotations

import os
from pathlib import Path

OWN = str(Path(__file__).parents[1]) + os.sep
"""What the file names of dlprof's own frames begin with."""


def without_own_lines(text: str) -> str:
    """A text without the frames of dlprof's, where it is a traceback, as a worker sends it."""
    if f'  File "{OWN}' not in text:
        return text
    kept, inside = [], False
    for line in text.split("\n"):
        if not line.startswith("    "):  # what stands further in belongs to the frame above
            inside = line.startswith(f'  File "{OWN}')
        if not inside:
            kept.append(line)
    return "\n".join(kept)
