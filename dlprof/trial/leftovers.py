"""Files that a trial's processes left in /dev/shm when they were ended by force."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by definition
_OURS = ("torch_", "sem.mp-", "psm_")


class SharedMemoryWatch:
    """Knows what /dev/shm held before a trial, and removes what the trial left there.

    A file goes only if it appeared during the trial, has a name that torch or multiprocessing
    gives, belongs to this user, and no process has it mapped or open any more.

    Args:
        folder: Where shared memory is.
        proc: Where the processes are.
    """

    def __init__(self, folder: Path = _SHARED_MEMORY, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._before = set(self._names())

    def clear(self) -> list[str]:
        """Remove what was left; returns its names."""
        new = [name for name in self._names() if name not in self._before]
        if not new:
            return []
        in_use = self._in_use()
        removed = []
        for name in new:
            if name not in in_use and self._is_own(name):
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()
                    removed.append(name)
        return removed

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith(_OURS):
                    yield entry.name

    def _is_own(self, name: str) -> bool:
        try:
            return (self._folder / name).stat().st_uid == os.getuid()
        except OSError:
            return False

    def _in_use(self) -> set[str]:
        """Names that any process of this user still has mapped or open."""
        prefix = f"{self._folder}/"
        names: set[str] = set()
        for process in self._proc.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                maps = (process / "maps").read_text(errors="replace")
                names.update(
                    line.partition(prefix)[2].removesuffix(" (deleted)")
                    for line in maps.splitlines()
                    if prefix in line
                )
                for link in (process / "fd").iterdir():
                    target = str(link.readlink())
                    if target.startswith(prefix):
                        names.add(target.removeprefix(prefix).removesuffix(" (deleted)"))
        return names
