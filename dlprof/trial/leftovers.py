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
_File = tuple[int, int]  # device and inode
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

    def left(self) -> set[str]:
        """The names of what was left."""
        new = [name for name in self._names() if name not in self._before]
        in_use = self._in_use() if new else set()
        return {name for name in new if self._is_left(name, in_use)}

    def clear(self) -> list[str]:
        """Remove what was left; returns its names."""
        removed = []
        for name in self.left():
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
                removed.append(name)
        return removed

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith(_OURS):
                    yield entry.name

    def _is_left(self, name: str, in_use: set[_File]) -> bool:
        """Whether a file is this user's and nobody's any more."""
        try:
            status = (self._folder / name).stat()
        except OSError:
            return False
        file = (status.st_dev, status.st_ino)
        return status.st_uid == os.getuid() and file not in in_use and not self._maker_lives(name)

    def _maker_lives(self, name: str) -> bool:
        named = _OF_PROCESS.match(name)
        return named is not None and (self._proc / named[1]).exists()

    def _in_use(self) -> set[_File]:
        """Files that any process still has mapped or open.

        By device and inode and not by name: glibc makes a semaphore under a temporary name, under
        which the kernel goes on listing it.
        """
        files: set[_File] = set()
        for process in self._proc.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                files.update(_mapped(process / "maps", f"{self._folder}/"))
                for link in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):  # closed meanwhile; the others count
                        if str(link.readlink()).startswith(f"{self._folder}/"):
                            status = link.stat()
                            files.add((status.st_dev, status.st_ino))
        return files


def _mapped(maps: Path, prefix: str) -> Iterator[_File]:
    """The files below a folder that one process has mapped, from its ``/proc/PID/maps``."""
    for line in maps.read_text(errors="replace").splitlines():
        if prefix in line:
            _, _, _, device, inode, _ = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in device.split(":"))
            yield os.makedev(major, minor), int(inode)


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
