"""Keeping a check alone on the machine while tests run in several processes.

Every other test holds a lock that many may hold; a check waits until nobody does, and holds it
alone. Whoever wants it first goes through a gate, where a waiting check stops all that come later:
else tests that overlap could keep it waiting for ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class Turns:
    """Takes turns with other processes that name the same folder.

    Where files can't be locked nobody waits.

    Args:
        folder: Exists, and holds nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"
        self._room = folder / "room"

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Hold off checks, not tests."""
        with contextlib.ExitStack() as stack:
            with _held(self._gate, alone=True):
                stack.enter_context(_held(self._room, alone=False))
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold off everybody."""
        with _held(self._gate, alone=True), _held(self._room, alone=True):
            yield


@contextlib.contextmanager
def _held(path: Path, *, alone: bool) -> Iterator[None]:
    """The lock of a file, which is created where it doesn't exist."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
