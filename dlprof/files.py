"""Files that users name: reading, replacing and locking them, a sentence for each fault."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dlprof.errors import FileError, read_fault

if sys.platform != "win32":
    import fcntl

_LOCK_S = 5.0
"""So long another writer may take, seconds: a file of settings is written in milliseconds, and a
training waits for it."""

_FREE_SPACE = "Free some space; what was written before is kept."
_RAISE_LIMIT = "Raise the limit (ulimit -f); what was written before is kept."
_OTHER_FAULT = ("{path} can't be written: {reason}", "Give another path.")
_FAULTS = {
    errno.EEXIST: ("{path} already exists", "Give another path."),
    errno.EISDIR: ("{path} is a folder", "Give the path of a file."),
    errno.ENOENT: ("There is no folder {parent}", "Create it, or give another path."),
    errno.ENOTDIR: ("{parent} is not a folder", "Give another path."),
    errno.EACCES: ("There is no permission to write {path}", "Give another path."),
    errno.EPERM: ("There is no permission to write {path}", "Give another path."),
    errno.EROFS: ("{path} is on a read-only file system", "Give another path."),
    errno.ENAMETOOLONG: ("The name of {path} is too long", "Give a shorter path."),
    errno.ENOSPC: ("The disk is full: {path} can't be written", _FREE_SPACE),
    errno.EFBIG: ("{path} has reached the size limit for files", _RAISE_LIMIT),
}
if sys.platform != "win32":
    _FAULTS[errno.EDQUOT] = ("The disk quota is used up: {path} can't be written", _FREE_SPACE)


def write_fault(path: Path, error: OSError) -> FileError:
    """The sentence for what the system said when the path was opened for writing or written."""
    template, hint = _FAULTS.get(error.errno or 0, _OTHER_FAULT)
    if error.errno == errno.ENOENT and path.parent.is_dir():  # such as /proc
        template, hint = "No file can be written to {parent}", "Give another path."
    message = template.format(path=path, parent=path.parent, reason=error.strerror)
    return FileError(message, hint=hint)


def is_there(path: Path | str) -> bool:
    """Whether there is anything of this name, as far as may be seen.

    ``Path.exists`` and its kin raise where a folder on the way is closed.
    """
    return os.path.exists(path)


def make_folder(path: Path) -> None:
    """Make a folder and those that it lies in, where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_fault(path, error) from None


def check_plain(path: Path, mode: int, *, hint: str) -> None:
    """Refuse what is no plain file: a pipe would be waited for, a device might never end."""
    if not stat.S_ISREG(mode):
        what = "is a folder" if stat.S_ISDIR(mode) else "is not a plain file"
        raise FileError(f"{path} {what}", hint=hint)


def read_text(
    path: Path, what: str, *, hint: str, most: int = 1 << 30, missing: str | None = None
) -> str:
    """The text of a file that users name.

    Args:
        path: The file.
        what: What it should be, as messages say it.
        hint: What to do where it is another file, or none.
        most: Bytes that no such file exceeds; a data file given by mistake does.
        missing: The text of a file that isn't there, where that is no fault.
    """
    try:
        found = path.stat()
        check_plain(path, found.st_mode, hint=hint)
        if found.st_size > most:
            raise FileError(f"{path} is too long for {what}: over {most:,} bytes", hint=hint)
        content = path.read_bytes()
    except FileNotFoundError:
        if missing is None:
            raise FileError(f"There is no file {path}", hint=hint) from None
        return missing
    except OSError as error:
        raise read_fault(path, error) from None
    try:
        return content.decode("utf-8-sig")  # editors may have put a byte order mark in front
    except UnicodeDecodeError:
        raise FileError(f"{path} is not {what}: it isn't text", hint=hint) from None


def lock(descriptor: int, *, wait: bool) -> bool:
    """Take the advisory lock of an open file; it ends when the descriptor is closed.

    Returns:
        False only if another process holds the lock and is not waited for. File systems and
        platforms without locks give True: there the user keeps two writers apart.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of a file or folder, in whatever container it lives.

    False as well where there is no such file, or where locks can't show it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Let the lock go now, also where a forked child still holds a copy of the descriptor."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def replaceable(path: Path) -> Path:
    """The file that a path names, links followed, if a plain file may be put there.

    No device: the file would take its place for every program.
    """
    named = Path(os.path.realpath(path))
    try:
        there = named.stat()
    except FileNotFoundError:
        if not named.parent.is_dir():
            raise write_fault(path, FileNotFoundError(errno.ENOENT, "")) from None
    except OSError as error:
        raise write_fault(path, error) from None
    else:
        check_plain(path, there.st_mode, hint="Give the path of a file.")
    return named


def replace_file(path: Path, content: bytes) -> None:
    """Put a file of this content in place of what is there, whole or not at all."""
    path = replaceable(path)
    draft = path.with_name(f".{path.name[:50]}.{os.urandom(4).hex()}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            draft.chmod(stat.S_IMODE(path.stat().st_mode))
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_fault(path, error) from None
    finally:  # also where Ctrl-C comes
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a new name in the folder outlive a power cut, where the platform knows how."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same lock out while a file is read and replaced.

    The folder itself is locked, since the file's own lock would go with the file that is replaced.
    Where folders can't be locked nothing is, and the later of two writers wins; so it does where
    one holds the lock for more than ``_LOCK_S``, as a stopped process would.

    Raises:
        OSError: If there is no such folder.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until_s = time.monotonic() + _LOCK_S
        while not lock(descriptor, wait=False) and time.monotonic() < until_s:
            time.sleep(0.02)
        yield
    finally:
        unlock(descriptor)
        os.close(descriptor)


def too_long_for_sockets(folder: str) -> FileError | None:
    """What to say where sockets of multiprocessing have no room for their names in a folder.

    By these, workers hand over their batches: without them a loader fails, or waits for ever.
    """
    from multiprocessing import util  # which most commands have no use for

    falls_back = hasattr(util, "_get_base_temp_dir")  # later Pythons make them in /tmp then
    name = f"{folder}/pymp-12345678/listener-12345678"
    most = 107 if sys.platform == "linux" else 103  # bytes of a socket's name, unix(7) and unix(4)
    if falls_back or len(os.fsencode(name)) <= most:
        return None
    return FileError(
        f"The name of {folder} is too long for the sockets by which workers hand over batches",
        hint="Set TMPDIR to a shorter path.",
    )
