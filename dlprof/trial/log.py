"""What a trial's processes write to standard output and error."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

_SHOWN_BYTES = 1 << 16
_HEAD_BYTES = 1 << 14
"""Of what is shown, from the beginning: what went wrong first stands there."""

MOST_BYTES = 1 << 20
"""A log is cut where it is found to be longer."""

_LEFT_OUT = "\n[... {count:,} bytes are left out here ...]\n"


def open_log(path: Path) -> IO[bytes]:
    """A new file for a log, to which each process appends, whatever another has cut off.

    Raises:
        OSError: It can't be created.
    """
    return path.open("a+b")


class TrialLog:
    """Reads a log that other processes append to, and keeps it from filling the disk.

    Args:
        file: From ``open_log``; handed down to the trial's processes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._head = b""
        self._cut_bytes = 0  # cut off since, of which the end is in ``_last``
        self._last = b""

    def size(self) -> int:
        """Bytes written so far, those included that were cut off."""
        return self._cut_bytes + self._kept_bytes()

    def trim(self) -> bool:
        """Cut the log off where it has become too long; its beginning and its end are remembered.

        Returns:
            Whether it had: somebody writes a lot.
        """
        kept = self._kept_bytes()
        if kept <= MOST_BYTES:
            return False
        if not self._cut_bytes:
            self._head = self._read(0, _HEAD_BYTES)
        self._last = self._read(kept - _SHOWN_BYTES, _SHOWN_BYTES)
        with contextlib.suppress(OSError):
            os.ftruncate(self.file.fileno(), 0)
            self._cut_bytes += kept
        return True

    def text(self, since: int = 0) -> str:
        """What was written after ``since``: at most 64 KiB of it, the beginning and the end."""
        kept = self._kept_bytes()
        size = self._cut_bytes + kept
        ends = self._ends(kept)
        wanted = max(0, size - since)
        if wanted <= min(_SHOWN_BYTES, len(ends)):
            return ends[len(ends) - wanted :].decode(errors="replace")
        head = b"" if since else self._head or self._read(0, _HEAD_BYTES)
        tail = ends[len(head) - _SHOWN_BYTES :]
        note = _LEFT_OUT.format(count=wanted - len(head) - len(tail))
        return head.decode(errors="replace") + note + tail.decode(errors="replace")

    def _ends(self, kept: int) -> bytes:
        """The last bytes that are still to be had."""
        written = self._read(max(0, kept - _SHOWN_BYTES), _SHOWN_BYTES)
        return (self._last + written)[-_SHOWN_BYTES:]

    def _kept_bytes(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def _read(self, start: int, count: int) -> bytes:
        with contextlib.suppress(OSError), Path(self.file.name).open("rb") as reader:
            # A file of its own, because the position of the other belongs to those who write.
            reader.seek(start)
            return reader.read(count)
        return b""
