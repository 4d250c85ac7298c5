"""The file of a baseline: read, extended and put back whole, whoever else writes to it."""

from __future__ import annotations

import errno
from pathlib import Path

from dlprof.errors import FileError
from dlprof.files import check_plain, folder_lock, replace_file, write_fault
from dlprof.gate import add_entry, comparable, parse_baseline
from dlprof.gate.baseline_file import MOST_CHARACTERS
from dlprof.records.gate import BaselineEntry

_HINT = "Give the path of a baseline that dlprof baseline update wrote."


def read_baseline(path: Path) -> list[BaselineEntry]:
    """The entries of a baseline; none of a file that isn't there yet.

    Args:
        path: The file; a link is followed.

    Raises:
        FileError: If it can't be read or understood.
    """
    return parse_baseline(_text(path), str(path))


def record_entry(path: Path, entry: BaselineEntry) -> int:
    """Add a run to a baseline, which is created where it doesn't exist.

    Two that record at the same time wait for each other, so that neither loses its run.

    Args:
        path: The file; a link is followed, and stays.
        entry: The run.

    Returns:
        How many runs of the file, this one among them, later runs like it are compared with.

    Raises:
        FileError: If the file can't be read, understood or written; it is left as it was.
    """
    path = path.resolve()
    try:
        with folder_lock(path.parent):
            text = add_entry(_text(path), entry, str(path))
            replace_file(path, text.encode())
    except OSError as error:
        raise write_fault(path, error) from None
    return len(comparable(parse_baseline(text, str(path)), entry.key))


def _text(path: Path) -> str:
    """What the file holds; nothing where there is none."""
    try:
        check_plain(path, path.stat().st_mode, hint=_HINT)
        with path.open("rb") as file:
            return file.read(MOST_CHARACTERS + 1).decode()
    except UnicodeDecodeError:
        raise FileError(f"{path} is not a baseline: it isn't text", hint=_HINT) from None
    except OSError as error:
        if error.errno == errno.ENOENT:
            return ""
        raise FileError(f"{path} can't be read: {error.strerror}", hint=_HINT) from None
