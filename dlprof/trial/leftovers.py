"""Files that a trial's processes left behind when they were ended by force."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by definition
_OURS = ("torch_", "sem.mp-", "psm_")
_MANAGER = "torch-shm-dir-*/manager.sock"
_OF_PROCESS = re.compile(r"torch_(\d+)_")


class SharedMemoryWatch:
    """Knows what /dev/shm held before a trial, and removes what the trial left there.

    A file goes only if it appeared during the trial, has a name that torch or multiprocessing
    gives, belongs to this user, and no process has it mapped or open any more; nor does the process
    live that its name tells of (a batch that is under way by ``file_system`` is open nowhere).

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
            if name not in in_use and self._is_own(name) and not self._maker_lives(name):
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

    def _maker_lives(self, name: str) -> bool:
        named = _OF_PROCESS.match(name)
        return named is not None and (self._proc / named[1]).exists()

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


class ManagerWatch:
    """Removes what torch's managers of shared files leave in the temporary directory.

    One is started where ``file_system`` is the sharing strategy; its directory stays when it is
    killed. A directory goes only if it appeared during the trial, belongs to this user, and nobody
    listens at its socket any more.

    Args:
        folder: Where temporary files are; ``None`` for the system's place.
        proc: Where the kernel lists sockets.
    """

    def __init__(self, folder: Path | None = None, proc: Path = Path("/proc")) -> None:
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._proc = proc
        self._before = set(self._sockets())

    def clear(self) -> list[str]:
        """Remove what was left; returns the names of the directories."""
        new = [path for path in self._sockets() if path not in self._before]
        removed = []
        for path in new:
            with contextlib.suppress(OSError):
                listed = (self._proc / "net/unix").read_text(errors="replace")
                if str(path) not in listed and path.stat().st_uid == os.getuid():
                    shutil.rmtree(path.parent)
                    removed.append(path.parent.name)
        return removed

    def _sockets(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return list(self._folder.glob(_MANAGER))
        return []
