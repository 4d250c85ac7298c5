"""What is in /dev/shm, and what of it was left there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_SHM = Path("/dev/shm")


def shared_memory() -> set[str]:
    """The names of what is there now; none on systems that have no such folder."""
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def shared_memory_left(before: set[str]) -> list[str]:
    """What is new in /dev/shm and stays there, used by no process.

    Other programs' files come and go meanwhile, so that what counts was there at every look.
    """
    deadline = time.monotonic() + 5.0
    left: set[str] | None = None
    while left is None or (left and time.monotonic() < deadline):
        new = shared_memory() - before
        used = _in_use() if new else set()
        unused = {name for name in new if not _maker_lives(name) and _file(name) not in used}
        left = unused if left is None else left & unused
        time.sleep(0.1 if left else 0.0)
    return sorted(left)


def _maker_lives(name: str) -> bool:
    """Whether the process still runs that the name of one of torch's files names."""
    parts = name.split("_")
    return parts[0] == "torch" and len(parts) > 1 and Path(f"/proc/{parts[1]}").exists()


def _file(name: str) -> int | None:
    """The inode of a file in /dev/shm; ``None`` if it has gone."""
    try:
        return (_SHM / name).stat().st_ino
    except OSError:
        return None


def _in_use() -> set[int | None]:
    """Inodes: the kernel lists a semaphore under the name that it was made under, long gone."""
    found: set[int | None] = {None}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if f"{_SHM}/" in line:
                    found.add(int(line.split(maxsplit=5)[4]))
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()).startswith(f"{_SHM}/"):
                        found.add(link.stat().st_ino)
    return found
