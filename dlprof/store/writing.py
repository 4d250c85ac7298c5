"""Writing run files: append-only, each record safe on disk before the next trial starts."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Self

from dlprof.errors import FileError
from dlprof.files import check_plain, lock, replace_file, sync_folder, unlock, write_fault
from dlprof.records import RunHeader
from dlprof.store.format import encode_line
from dlprof.store.reading import read_content

# O_BINARY exists on Windows only, where line ends would be changed without it.
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)

_EXISTS_HINT = (
    "Go on with a sweep by --resume, replace the file with --force, or give another path with -o."
)
_BUSY_HINT = "Wait until that sweep has ended, or give another path with -o."


def check_output(path: Path, *, force: bool = False) -> None:
    """Refuse early, before anything is imported or measured, a path that can't be created.

    An empty file is as good as none: a sweep that was ended as it began it leaves one.

    Raises:
        FileError: As ``RunWriter.create`` would, as far as can be known without writing.
    """
    try:
        there = path.stat()
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise write_fault(path, error) from None
    if there is not None:
        check_plain(path, there.st_mode, hint="Give another path with -o.")
        if there.st_size and not force:
            raise FileError(f"{path} already exists", hint=_EXISTS_HINT)
    elif not path.parent.exists():
        raise FileError(
            f"There is no folder {path.parent}", hint="Create it, or give another path."
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileError(
            f"There is no permission to write into {path.parent.absolute()}",
            hint="Give another path with -o.",
        )


def is_being_written(path: Path) -> bool:
    """Whether a living process has the file open as ``RunWriter``.

    False as well where there is no such file, or where locks can't show it.
    """
    try:
        if not path.stat().st_size:  # whoever begins it is about to take the lock
            return False
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


class RunWriter:
    """An open run file; ``create`` or ``resume`` makes one, and ``with`` closes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, header: RunHeader, *, force: bool = False) -> Self:
        """Begin a run file; its header is on disk when this returns.

        Args:
            path: Where; its folder must exist.
            header: The first record.
            force: Whether to replace a file that is there, if it isn't empty. It is replaced in one
                step once the new header is on disk, and never while a sweep is writing to it.

        Raises:
            FileError: If the file holds something without ``force``, or can't be created or
                written.
        """
        check_output(path, force=force)
        line = encode_line(header)
        # Through a symbolic link to the file that it names.
        path = Path(os.path.realpath(path))
        if path.exists() and (force or not path.stat().st_size):
            with cls(path, _open_locked(path, _APPEND)) as replaced:
                check_output(path, force=force)  # again: it may have been written until now
                if sys.platform == "win32":  # an open file can't be replaced; it has no locks
                    replaced.close()
                replace_file(path, line)
            return cls(path, _open_locked(path, _APPEND))
        writer = cls(path, _open_locked(path, _APPEND | os.O_CREAT | os.O_EXCL))
        try:
            writer._write(line)
        except BaseException:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
        return writer

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Continue a run file: a torn last record is cut off, and new ones follow the others.

        Raises:
            FileError: If it is no run file, can't be written, or another sweep is writing it.
        """
        read_content(path)
        writer = cls(path, _open_locked(path, _APPEND))
        try:
            # Read again: another sweep may have written until the lock was ours.
            content = read_content(path)
            os.ftruncate(writer._descriptor, content.end)
            if not content.ended:
                writer._write(b"\n")
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError):
                raise write_fault(path, error) from None
            raise
        return writer

    def append(self, record: object) -> None:
        """Write one record; it is on disk when this returns.

        Raises:
            FileError: If it can't be written, as on a full disk; the records before it are kept.
            TypeError: For an object that is no record of a run file.
            ValueError: For a figure that is not finite.
        """
        self._write(encode_line(record))

    def try_append(self, *records: object | None) -> FileError | None:
        """Write records as far as they can be written.

        Their figures are in memory, so a full disk costs the file its end, and the user no result.

        Returns:
            Why the rest isn't in the file.
        """
        try:
            for record in records:
                if record is not None:
                    self.append(record)
        except FileError as error:
            return error
        return None

    def _write(self, line: bytes) -> None:
        """One write and one sync; a line that could be written only in part is taken back."""
        before, written = os.fstat(self._descriptor).st_size, 0
        try:
            # The system takes a line whole unless the disk is full, which the next write says.
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            raise write_fault(self.path, error) from None
        finally:
            if written < len(line):
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)

    def close(self) -> None:
        """Let the file and its lock go; a second call does nothing."""
        if self._descriptor >= 0:
            unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _open_locked(path: Path, flags: int) -> int:
    """A descriptor of the file with its lock held, so that two sweeps never mix their records."""
    while True:
        try:
            # The user's umask decides
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise write_fault(path, error) from None
        if not lock(descriptor, wait=False):
            os.close(descriptor)
            raise FileError(f"Another sweep is writing {path}", hint=_BUSY_HINT)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the path still names the open file, which another sweep may have replaced."""
    try:
        return sys.platform == "win32" or os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
