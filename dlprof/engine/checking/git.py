"""What git says of the working directory: refs, merge bases, changes that are not committed."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from dlprof.engine.workplace import cleanup_at_exit
from dlprof.errors import FileError, UsageError, did_you_mean
from dlprof.files import folder_lock, is_locked, make_folder
from dlprof.records.gate import Compared

_FETCH = (
    "In CI, fetch more of the history (fetch-depth: 0 of actions/checkout, GIT_DEPTH: 0 in GitLab)."
)
_OF_HOOKS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""Set where git runs a check, as in a hook: a new worktree would write to the user's index."""


class Git:
    """Asks git about the repository that a directory is in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        top = self.run("rev-parse", "--show-toplevel")
        if "dubious ownership" in top.stderr:
            raise UsageError(
                f"git refuses the repository of {directory}, which belongs to another user",
                hint="Trust it: git config --global --add safe.directory DIRECTORY.",
            )
        if top.returncode != 0:
            raise UsageError(
                f"{directory} is in no git repository, so there is no base to check against",
                hint="Give a directory with --against, or a stored history with --baseline FILE.",
            )
        self.root = Path(top.stdout.removesuffix("\n")).resolve()  # the top of the working tree

    def ask(self, *words: str) -> str | None:
        """What a command of git prints; ``None`` if it fails."""
        done = self.run(*words)
        return done.stdout.strip() if done.returncode == 0 else None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of git, without the user's hooks and without questions."""
        command = ["git", "-C", str(self._directory), "-c", f"core.hooksPath={os.devnull}", *words]
        quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
        outer = {key: value for key, value in os.environ.items() if key not in _OF_HOOKS}
        try:
            return subprocess.run(
                command,
                capture_output=True,
                check=False,
                text=True,
                errors="surrogateescape",  # names of files need be no text
                stdin=subprocess.DEVNULL,
                env=outer | quiet,
            )
        except FileNotFoundError:
            raise UsageError(
                "git is not installed, so no other version can be checked against",
                hint="Install git, or give a directory with --against.",
            ) from None

    def commit(self, ref: str) -> str | None:
        """The full id of the commit that a ref names; ``None`` if it names none."""
        if not ref or ref.startswith("-"):
            return None
        return self.ask("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")

    def is_dirty(self) -> bool:
        """Whether there are changes that are not committed; of new files only Python's count.

        A job writes others, and dlprof its run files and baselines. What Python itself compiles
        while a target is imported is no change.
        """
        tracked = self.ask("status", "--porcelain", "--untracked-files=no") or ""
        new = self.ask("ls-files", "--others", "--exclude-standard", ":/*.py") or ""
        return any("__pycache__" not in line for line in f"{tracked}\n{new}".split("\n") if line)

    def more_history(self) -> str:
        """What to do where the history was fetched only in part; empty where all of it is here."""
        if self.ask("rev-parse", "--is-shallow-repository") != "true":
            return ""
        return f"This clone holds only a part of the history. {_FETCH}"

    def no_such_ref(self, ref: str) -> UsageError:
        """The error of a ref that doesn't exist."""
        known = (self.ask("for-each-ref", "--format=%(refname:short)") or "").splitlines()
        hint = did_you_mean(ref, known, most=3)
        if not hint and self.commit("HEAD") is None:
            hint = "The repository has no commit yet; give a directory."
        elif not hint and not self.ask("remote"):
            hint = "Name a branch, a tag or a commit of this repository; it has no remote."
        hint = hint or self.more_history() or f"Fetch it first: git fetch origin {ref}."
        return UsageError(
            f"--against {ref}: there is no such git ref, and no such directory", hint=hint
        )


def find_git(directory: Path) -> Git | None:
    """The repository that a directory is in; ``None`` where it is in none."""
    try:
        return Git(directory)
    except UsageError:
        return None


_LOCKED = re.compile(r"^locked dlprof check, process (\d+) since (\d+) on (.*)$")
_SHORTEST = 6  # characters of the last part of a path: to be like no other


@contextlib.contextmanager
def worktree(git: Git, commit: str) -> Iterator[Path]:
    """A worktree of a commit, removed at the end.

    It lies in the directory for temporary files; where the checkout's path is too short for that or
    on another disk, beside the checkout.
    """
    path = _path_like(git.root)
    make_folder(path)  # before git does, for its lock, which says in every container that this runs
    since = int(psutil.Process().create_time())
    reason = f"dlprof check, process {os.getpid()} since {since} on {platform.node()}"
    try:
        with folder_lock(path), cleanup_at_exit(lambda: _remove(git, path)):
            add = ("worktree", "add", "--detach")
            made = git.run(*add, "--lock", "--reason", reason, str(path), commit)
            if made.returncode == 129:  # an older git knows no reason, and no next check removes it
                made = git.run(*add, str(path), commit)
            if made.returncode != 0:
                why = (made.stderr.strip().splitlines() or ["no reason"])[-1]
                raise FileError(
                    f"git can't make a worktree of {commit[:12]}: {why}",
                    hint="Give a directory that holds the base with --against DIRECTORY.",
                )
            yield path
    finally:
        _remove(git, path)


def remove_abandoned(directory: Path) -> None:
    """Remove worktrees of the directory's repository whose check doesn't run any more."""
    git = find_git(directory)
    listed = (git and git.ask("worktree", "list", "--porcelain")) or ""
    for entry in listed.split("\n\n"):
        lines = entry.splitlines()
        found = next(filter(None, map(_LOCKED.match, lines)), None)
        if git is not None and found is not None and found[3] == platform.node():
            path = Path(lines[0].removeprefix("worktree "))
            lives = is_locked(path)  # also of another container, whose processes aren't seen here
            with contextlib.suppress(psutil.Error):  # where there are no locks
                since_s = psutil.Process(int(found[1])).create_time()
                lives = lives or abs(since_s - int(found[2])) < 2
            if not lives:
                _remove(git, path)


def _remove(git: Git, path: Path) -> None:
    """Remove a worktree and what git has noted of it, as much of either as there is."""
    for _ in range(2):
        # Twice by force: a lock doesn't keep its own check from removing it.
        if git.run("worktree", "remove", "--force", "--force", str(path)).returncode == 0:
            return
        shutil.rmtree(path, ignore_errors=True)


def _path_like(checkout: Path) -> Path:
    """A path that doesn't exist, as long as the checkout's and on its disk where that is possible.

    Paths of different length have shown differences of speed by themselves, and data that git
    tracks would be read from another file system.
    """
    places, device = [Path(tempfile.gettempdir()), checkout.parent], checkout.stat().st_dev
    for place in sorted(places, key=lambda place: place.stat().st_dev != device):
        room = len(str(checkout)) - len(str(place.resolve() / "_")) + 1
        if _SHORTEST <= room <= 200 and os.access(place, os.W_OK):
            return _unused(place.resolve(), room)
    return _unused(places[0].resolve(), _SHORTEST)


def _unused(place: Path, length: int) -> Path:
    while (path := place / secrets.token_hex(length)[:length]).exists():
        continue
    return path


_BRANCHES = (
    "GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "BITBUCKET_PR_DESTINATION_BRANCH",
    "SYSTEM_PULLREQUEST_TARGETBRANCH", "CHANGE_TARGET", "BUILDKITE_PULL_REQUEST_BASE_BRANCH",
)  # fmt: skip
"""Variables that hold the branch that a pull or merge request goes to."""

_REMOTE = "origin"
_USUAL = ("main", "master")


def default_ref(git: Git, environ: Mapping[str, str]) -> Compared:
    """The merge base with the branch that this change goes to.

    Where nothing has changed since, as on that branch itself, the commit before is taken.
    """
    if began := environ.get("CI_MERGE_REQUEST_DIFF_BASE_SHA"):  # of GitLab's
        commit = git.commit(began)
        if commit is None:
            raise UsageError(
                f"The commit {began}, at which this branch began, can't be found in this clone",
                hint=_FETCH,
            )
        return _or_before(git, Compared(name="merge base", commit=commit))
    for branch in _branches(git, environ):
        if git.commit(branch) is None:
            continue
        base = git.ask("merge-base", branch, "HEAD")
        if base is None:
            raise UsageError(
                f"The commit at which this branch left {branch} can't be found", hint=_FETCH
            )
        return _or_before(git, Compared(name=branch, commit=base, note="merge base"))
    named = _named(environ)
    if named:
        raise UsageError(
            f"The branch {named[0]}, which this change goes to, is not in this clone", hint=_FETCH
        )
    earlier = " (HEAD~1 is the commit before)" if git.commit("HEAD~1") else ""
    raise UsageError(
        "There is no upstream branch that this change could be checked against",
        hint=f"Name a git ref{earlier} or a directory with --against REF, or give --baseline FILE.",
    )


def _named(environ: Mapping[str, str]) -> list[str]:
    """The branches that CI systems name, as one that runs inside another may name two."""
    asked = (environ.get(name, "").removeprefix("refs/heads/") for name in _BRANCHES)
    return list(filter(None, asked))


def _branches(git: Git, environ: Mapping[str, str]) -> Iterator[str]:
    """Refs to try."""
    named = _named(environ)
    if named:
        for branch in named:
            yield f"{_REMOTE}/{branch}"
            yield branch
        return
    head = git.ask("symbolic-ref", "--quiet", "--short", f"refs/remotes/{_REMOTE}/HEAD")
    yield from filter(None, [head])
    yield from (f"{_REMOTE}/{name}" for name in _USUAL)
    current = git.ask("symbolic-ref", "--quiet", "--short", "HEAD")
    yield from (name for name in _USUAL if name != current)


def _or_before(git: Git, base: Compared) -> Compared:
    """The same, or the commit before, where the working tree is that very commit."""
    if base.commit != git.commit("HEAD") or git.is_dirty():
        return base
    before = git.commit("HEAD^")
    if before is None:
        raise UsageError(
            "The base would be the working tree itself, and there is no earlier commit",
            hint=git.more_history() or "Name a git ref or a directory with --against REF.",
        )
    return Compared(name="the commit before", commit=before)
