"""What git tells of the working directory: refs, merge bases, changes that are not committed."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

from dlprof.errors import UsageError

_FETCH = (
    "In CI, fetch more of the history (fetch-depth: 0 of actions/checkout, GIT_DEPTH: 0 in GitLab)."
)
_OF_HOOKS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""Set where git runs a check, as in a hook: a new worktree would write to the user's index."""


class Git:
    """Asks git about the repository that a directory is in.

    Args:
        directory: In the repository.

    Attributes:
        root: The top of the working tree.

    Raises:
        UsageError: git is missing, or the directory is in no working tree.
    """

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
        self.root = Path(top.stdout.removesuffix("\n")).resolve()

    def ask(self, *words: str) -> str | None:
        """What a command of git prints; ``None`` if it fails."""
        done = self.run(*words)
        return done.stdout.strip() if done.returncode == 0 else None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of git, without the user's hooks and without questions.

        Raises:
            UsageError: git is missing.
        """
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
        """Whether there are changes, new files among them, that are not committed.

        What Python itself compiles while a target is imported is none.
        """
        changed = (self.ask("status", "--porcelain") or "").splitlines()
        return any("__pycache__" not in line for line in changed)

    def is_shallow(self) -> bool:
        """Whether the history was fetched only in part."""
        return self.ask("rev-parse", "--is-shallow-repository") == "true"

    def more_history(self) -> str:
        """What to do where the history was fetched only in part; empty where all of it is here."""
        if not self.is_shallow():
            return ""
        return f"This clone holds only a part of the history. {_FETCH}"

    def merge_base(self, ref: str) -> str | None:
        """The commit at which the working tree's branch left another; ``None`` if unknown."""
        return self.ask("merge-base", ref, "HEAD")

    def no_such_ref(self, ref: str) -> UsageError:
        """The error of a ref that doesn't exist."""
        known = (self.ask("for-each-ref", "--format=%(refname:short)") or "").splitlines()
        close = difflib.get_close_matches(ref, known, n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else self._where_from(ref)
        return UsageError(
            f"--against {ref}: there is no such git ref, and no such directory", hint=hint
        )

    def _where_from(self, ref: str) -> str:
        """Where to get a ref from that isn't here."""
        if self.commit("HEAD") is None:
            return "The repository has no commit yet; give a directory."
        if not self.ask("remote"):
            return "Name a branch, a tag or a commit of this repository; it has no remote."
        return self.more_history() or f"Fetch it first: git fetch origin {ref}."

    def no_such_commit(self, commit: str) -> UsageError:
        """The error of a commit that the CI system names and this clone doesn't have."""
        return UsageError(
            f"The commit {commit}, at which this branch began, can't be found in this clone",
            hint=_FETCH,
        )

    def not_fetched(self, branch: str) -> UsageError:
        """The error of a branch that the CI system names and this clone doesn't have."""
        return UsageError(
            f"The branch {branch}, which this change goes to, is not in this clone", hint=_FETCH
        )

    def no_merge_base(self, ref: str) -> UsageError:
        """The error of two histories that don't meet in this clone."""
        return UsageError(f"The commit at which this branch left {ref} can't be found", hint=_FETCH)
