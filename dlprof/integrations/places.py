"""Which line of the user's made an object: the nearest caller outside of libraries."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_OWN = str(Path(__file__).parents[1]) + os.sep
_RUNNER = str(Path(__file__).with_name("script.py"))
_STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where something was made.

    Attributes:
        callers: ``(file, line)`` of the user's frames, innermost first, at most eight.
    """

    callers: tuple[tuple[str, int], ...]

    def line(self, which: int, folder: str) -> str:
        """``file:line`` of one of the callers; empty where there is none.

        Args:
            which: From 0, the innermost.
            folder: Files below it are named from there on, others in full.
        """
        if which >= len(self.callers):
            return ""
        path, number = self.callers[which]
        return f"{_short(path, folder)}:{number}"


def place_of(frame: FrameType | None) -> Place:
    """The user's frames from this one outwards.

    Where all are of installed packages, as with ``python -m package``, those outside of torch
    count.
    """
    frames = [(each.f_code.co_filename, each.f_lineno) for each in _outwards(frame)]
    own = [each for each in frames if not is_library(each[0])]
    if not own:
        own = [each for each in frames if not _is_torch(each[0])]
    return Place(tuple(own[:8]))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(200):
        if frame is None or frame.f_code.co_filename == _RUNNER:
            return  # further out is what started the script
        if not frame.f_code.co_filename.startswith((_OWN, "<frozen ")):
            yield frame
        frame = frame.f_back


def is_library(path: str) -> bool:
    """Whether a file is of Python's own or of an installed package."""
    return path.startswith(_STANDARD) or bool(_installed_under(path))


def _is_torch(path: str) -> bool:
    folder = _installed_under(path)
    return path.startswith(_STANDARD) or (bool(folder) and f"{folder}torch{os.sep}" in path)


def _installed_under(path: str) -> str:
    """The folder that a file was installed into, with its separator; empty for the user's own.

    Such a folder has a name that Python gives it, or is one for ``pip install --target``: where
    modules are found beside what pip knows of them. Where the script lies, or is run from, is never
    one.
    """
    named = next((part for part in _INSTALLED if part in path), "")
    if named:
        return named
    entries = [f"{entry}".rstrip(os.sep) + os.sep for entry in sys.path]
    nearest = max((entry for entry in entries if path.startswith(entry)), key=len, default="")
    if not nearest or nearest in (*entries[:1], _here()) or not _has_packages(nearest):
        return ""
    return nearest


def _here() -> str:
    try:
        return f"{Path.cwd()}{os.sep}"
    except OSError:  # it is gone
        return ""


@functools.cache
def _has_packages(folder: str) -> bool:
    try:
        return any(entry.name.endswith(".dist-info") for entry in os.scandir(folder))
    except OSError:
        return False


def _short(path: str, folder: str) -> str:
    """A path below a folder from there on."""
    if path.startswith("<"):
        return path
    inside = os.path.relpath(path, folder) if Path(path).is_absolute() else path
    return path if inside.startswith(os.pardir) else inside
