"""A git worktree for the base of a check, as far down the file system as the checkout.

The checkout itself is never touched: git only notes the worktree in its own directory, and forgets
it again at the end. A worktree whose check was ended by force is removed by the next check of
whatever kind: its lock names the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from dlprof.engine.checking.git import Git
from dlprof.engine.undoing import undone_at_last
from dlprof.errors import FileError, UsageError

_LOCK = "dlprof check, process {pid} since {since} on {host}"
_LOCKED = re.compile(r"^locked dlprof check, process (\d+) since (\d+) on (.*)$")
_SHORTEST, _LONGEST = 6, 200
"""Characters of the last part of a path: to be like no other, and as many as file systems take."""


@contextlib.contextmanager
def worktree(git: Git, commit: str, places: tuple[Path, ...] = ()) -> Iterator[Path]:
    """A worktree of a commit, removed at the end.

    Args:
        git: The repository.
        commit: What to check out.
        places: Directories that may hold it; the one for temporary files, and where the
            checkout's path is too short for that, the directory beside the checkout.

    Raises:
        FileError: git can't make it.
    """
    path = _path_like(git.root, places or (Path(tempfile.gettempdir()), git.root.parent))
    since = int(psutil.Process().create_time())
    reason = _LOCK.format(pid=os.getpid(), since=since, host=platform.node())
    try:
        made = git.run(
            "worktree", "add", "--detach", "--lock", "--reason", reason, str(path), commit
        )
        if made.returncode != 0:
            told = made.stderr.strip().splitlines()
            raise FileError(
                f"git can't make a worktree of {commit[:12]}: {told[-1] if told else 'no reason'}",
                hint="Give a directory that holds the base with --against DIRECTORY.",
            )
        with undone_at_last(lambda: _remove(git, path)):
            yield path
    finally:
        _remove(git, path)


def remove_abandoned(directory: Path) -> None:
    """Remove worktrees whose check doesn't run any more.

    Args:
        directory: In their repository; one that is in none has none.
    """
    with contextlib.suppress(UsageError):
        _remove_abandoned(Git(directory))


def _remove_abandoned(git: Git) -> None:
    listed = git.ask("worktree", "list", "--porcelain") or ""
    for entry in listed.split("\n\n"):
        lines = entry.splitlines()
        found = next(filter(None, map(_LOCKED.match, lines)), None)
        here = found is not None and found[3] == platform.node()
        if found is not None and here and not _lives(int(found[1]), int(found[2])):
            _remove(git, Path(lines[0].removeprefix("worktree ")))


def _lives(pid: int, since: int) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - since) < 2
    except psutil.Error:
        return False


def _remove(git: Git, path: Path) -> None:
    """Remove a worktree and what git has noted of it, as much of either as there is."""
    for _ in range(2):
        # Twice by force: a lock doesn't keep its own check from removing it.
        if git.run("worktree", "remove", "--force", "--force", str(path)).returncode == 0:
            return
        shutil.rmtree(path, ignore_errors=True)


def _path_like(checkout: Path, places: tuple[Path, ...]) -> Path:
    """A path that doesn't exist, as long as the checkout's where that can be had.

    Paths of different length have shown differences of speed by themselves.
    """
    for place in places:
        room = len(str(checkout)) - len(str(place.resolve())) - 1
        if _SHORTEST <= room <= _LONGEST and os.access(place, os.W_OK):
            return _unused(place.resolve(), room)
    return _unused(places[0].resolve(), _SHORTEST)


def _unused(place: Path, length: int) -> Path:
    while (path := place / secrets.token_hex(length)[:length]).exists():
        continue
    return path
