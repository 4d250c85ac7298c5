"""What a trial's processes write to standard output and error."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

_MOST_BYTES = 1 << 16


class TrialLog:
    """Reads a log that other processes append to.

    Args:
        file: Open for reading and writing; handed down to the trial's processes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.file.fileno()).st_size

    def text(self, since: int = 0) -> str:
        """The end of what was written after ``since``, at most 64 KiB of it."""
        with contextlib.suppress(OSError), Path(self.file.name).open("rb") as reader:
            # A file of its own, because the position of the other belongs to those who write.
            reader.seek(max(since, self.size() - _MOST_BYTES))
            return reader.read().decode(errors="replace")
        return ""
