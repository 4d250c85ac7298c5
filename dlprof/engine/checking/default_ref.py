"""What a check compares with where the user names nothing: the commit at which the branch began."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from dlprof.engine.checking.git import Git
from dlprof.errors import UsageError

_COMMITS = ("CI_MERGE_REQUEST_DIFF_BASE_SHA",)
"""Variables of CI systems that hold the commit itself (GitLab)."""

_BRANCHES = (
    "GITHUB_BASE_REF",
    "CI_MERGE_REQUEST_TARGET_BRANCH_NAME",
    "BITBUCKET_PR_DESTINATION_BRANCH",
    "SYSTEM_PULLREQUEST_TARGETBRANCH",
    "CHANGE_TARGET",
    "BUILDKITE_PULL_REQUEST_BASE_BRANCH",
)
"""Variables that hold the branch that a pull or merge request goes to."""

_REMOTE = "origin"
_USUAL = ("main", "master")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BaseRef:
    """A commit to compare with.

    Attributes:
        name: How it was found, for people.
        commit: Full id.
    """

    name: str
    commit: str


def default_ref(git: Git, environ: Mapping[str, str]) -> BaseRef:
    """The merge base with the branch that this change goes to.

    Where nothing has changed since, as on that branch itself, the commit before is taken.

    Args:
        git: The repository.
        environ: Where CI systems tell what a change is to be merged into.

    Raises:
        UsageError: There is none to be found.
    """
    for name in _COMMITS:
        if environ.get(name):
            commit = git.commit(environ[name])
            if commit is None:
                raise git.no_such_commit(environ[name])
            return _or_before(git, BaseRef(name="merge base", commit=commit))
    for branch, needed in _branches(git, environ):
        if git.commit(branch) is None:
            continue
        base = git.merge_base(branch)
        if base is None:
            raise git.no_merge_base(branch)
        return _or_before(git, BaseRef(name=f"merge base with {needed}", commit=base))
    named = _named(environ)
    if named:
        raise git.not_fetched(named[0])
    raise UsageError(
        "There is no upstream branch that this change could be checked against",
        hint="Name a git ref or a directory with --against REF, or give --baseline FILE.",
    )


def _named(environ: Mapping[str, str]) -> list[str]:
    """The branches that CI systems name, as one that runs inside another may name two."""
    asked = (environ.get(name, "").removeprefix("refs/heads/") for name in _BRANCHES)
    return list(filter(None, asked))


def _branches(git: Git, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Refs to try, each with its name for people."""
    named = _named(environ)
    if named:
        for branch in named:
            yield f"{_REMOTE}/{branch}", f"{_REMOTE}/{branch}"
            yield branch, branch
        return
    head = git.ask("symbolic-ref", "--quiet", "--short", f"refs/remotes/{_REMOTE}/HEAD")
    for branch in (*filter(None, [head]), *(f"{_REMOTE}/{name}" for name in _USUAL)):
        yield branch, branch
    current = git.ask("symbolic-ref", "--quiet", "--short", "HEAD")
    for branch in _USUAL:
        if branch != current:
            yield branch, branch


def _or_before(git: Git, base: BaseRef) -> BaseRef:
    """The same, or the commit before, where the working tree is that very commit."""
    if base.commit != git.commit("HEAD") or git.is_dirty():
        return base
    before = git.commit("HEAD^")
    if before is None:
        raise UsageError(
            "The base would be the working tree itself, and there is no earlier commit",
            hint=git.more_history() or "Name a git ref or a directory with --against REF.",
        )
    return BaseRef(name="the commit before", commit=before)
