"""The directory in which a sweep keeps its logs and temporary files, and what others left behind.

A sweep that is ended by force can't remove its own, so the next one does. A lock on the directory
shows whether the owner still lives: the kernel lets it go with the owner. Unlike a process id it is
never used again by another process, and it means the same in every container.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from dlprof.files import lock, too_long_for_sockets, write_fault

_cleanups: list[Callable[[], object]] = []


@contextlib.contextmanager
def cleanup_at_exit(cleanup: Callable[[], object]) -> Iterator[None]:
    """Have something undone if the process is ended before the block is."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        if cleanup in _cleanups:
            _cleanups.remove(cleanup)


def clean_up_now() -> None:
    """Undo what is to be undone, the latest first, whatever goes wrong."""
    while _cleanups:
        with contextlib.suppress(BaseException):
            _cleanups.pop()()


_PREFIX = f"dlprof-sweep-{zlib.crc32(platform.node().encode()):08x}-"
"""Of this machine alone: of a folder that several share, each may know no locks but its own."""


@contextlib.contextmanager
def work_directory(parent: Path | None = None) -> Iterator[Path]:
    """A new directory of this sweep's own, removed at the end.

    Those of sweeps that have died are removed first.

    Raises:
        FileError: None can be made there, or workers could have no sockets beside it.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    if parent is None and (fault := too_long_for_sockets(str(place))):
        raise fault
    try:
        directory, held = _create(place)
    except OSError as error:
        raise write_fault(place / _PREFIX, error) from None
    try:
        # Those of this user's sweeps that no longer run, where locks say which these are.
        for abandoned in place.glob(f"{_PREFIX}*") if held is not None else ():
            with contextlib.suppress(OSError):
                is_own = abandoned.lstat().st_uid == os.getuid()
                unheld = _locked(abandoned) if is_own else None
                if unheld is not None:
                    shutil.rmtree(abandoned, ignore_errors=True)
                    os.close(unheld)
        with cleanup_at_exit(lambda: shutil.rmtree(directory, ignore_errors=True)):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if held is not None:
            os.close(held)


def _create(place: Path) -> tuple[Path, int | None]:
    """A new directory and the descriptor that holds its lock, where locks can be relied on."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        held = _locked(directory, wait=True)
        # Another sweep may have taken it for abandoned, and held the lock to remove it.
        if directory.exists() and (held is None or _locked(directory) is None):
            return directory, held
        if held is not None:
            os.close(held)
        if directory.exists():
            # The lock was given twice: the file system has none, and nothing follows from it.
            return directory, None


def _locked(directory: Path, *, wait: bool = False) -> int | None:
    """A descriptor that holds the directory's lock; ``None`` where it can't be had."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    if lock(descriptor, wait=wait):
        return descriptor
    os.close(descriptor)
    return None
