"""Refs, merge bases and worktrees of real repositories in temporary folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from check_fakes import run_git

from dlprof.engine.checking.compared import CheckSettings, both_sides, working_tree
from dlprof.engine.checking.git import (
    Git,
    _path_like,
    default_ref,
    remove_abandoned,
    worktree,
)
from dlprof.engine.checking.history import lone_side
from dlprof.errors import BaseTargetError, DlprofError, FileError, UsageError
from dlprof.settings import SweepSettings


def commit(folder: Path, text: str) -> str:
    (folder / "data.py").write_text(text)
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", text)
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit on ``main``, at a path that is longer than temporary ones."""
    folder = tmp_path / "a-checkout-with-a-long-name"
    folder.mkdir()
    run_git(folder, "init", "-qb", "main")
    commit(folder, "one")
    return folder.resolve()


def settings(target: str = "data.py:make", **rest: Any) -> CheckSettings:
    return CheckSettings(sweep=SweepSettings(target=target), **rest)


def test_a_worktree_is_on_the_disk_of_the_checkout(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Path("/dev/shm")  # a file system of its own
    if not memory.is_dir() or memory.stat().st_dev == repository.stat().st_dev:
        pytest.skip("there is no other file system for temporary files here")
    monkeypatch.setattr(tempfile, "tempdir", str(memory))
    with worktree(Git(repository), "HEAD") as path:
        assert path.parent == repository.parent
        assert len(str(path)) == len(str(repository))


def test_a_worktree_at_the_top_of_all_folders_has_a_path_as_long(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the checkout is at /workspace; "/" needs no other slash behind it."""
    monkeypatch.setattr(tempfile, "tempdir", "/")
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert len(str(_path_like(repository))) == len(str(repository))


def test_a_worktree_is_as_far_down_as_the_checkout_and_gone_afterwards(repository: Path) -> None:
    first = run_git(repository, "rev-parse", "HEAD")
    commit(repository, "two")
    (repository / "data.py").write_text("not committed")
    git = Git(repository)

    with worktree(git, first) as path:
        assert (path / "data.py").read_text() == "one"
        assert len(str(path)) == len(str(repository))
        assert "dlprof check, process" in run_git(repository, "worktree", "list", "--porcelain")

    assert not path.exists()
    assert run_git(repository, "worktree", "list").count("\n") == 0
    assert (repository / "data.py").read_text() == "not committed"


@pytest.mark.skipif(sys.platform == "win32", reason="git is replaced by a shell script")
def test_a_git_that_takes_no_reason_makes_worktrees_too(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of Debian 11: what it says of an option that it doesn't know is how it is used."""
    older = tmp_path / "older" / "git"
    older.parent.mkdir()
    refuses = 'case "$*" in *--reason*) echo usage >&2; exit 129;; esac'
    older.write_text(f'#!/bin/sh\n{refuses}\nexec {shutil.which("git")} "$@"\n')
    older.chmod(0o755)
    monkeypatch.setenv("PATH", str(older.parent), prepend=os.pathsep)
    with worktree(Git(repository), "HEAD") as path:
        assert (path / "data.py").read_text() == "one"
    assert not path.exists()
    assert run_git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_worktree_goes_whatever_happens(repository: Path, error: type[BaseException]) -> None:
    git = Git(repository)
    with pytest.raises(error), worktree(git, "HEAD") as path:
        raise error

    assert not path.exists()
    assert run_git(repository, "worktree", "list").count("\n") == 0


def next_check(repository: Path, **named: str) -> None:
    with both_sides(settings(**named), {}, repository):
        pass


@pytest.mark.parametrize("folder_is_there", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "begin",
    [
        remove_abandoned,
        lambda repository: next_check(repository, against="main"),
        lambda repository: next_check(repository, against=".."),
        lambda repository: next_check(repository, against_python=sys.executable),
        lambda repository: lone_side(settings(), repository),
    ],
)
def test_worktrees_of_checks_that_were_killed_go_with_the_next(
    repository: Path, tmp_path: Path, begin: Callable[[Path], None], *, folder_is_there: bool
) -> None:
    import platform  # its name for this machine, only here

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, kept = tmp_path / "left", tmp_path / "kept"
    lock = f"dlprof check, process {dead.pid} since 12 on {platform.node()}"
    run_git(repository, "worktree", "add", "-q", "--detach", "--lock", "--reason", lock, str(left))
    run_git(repository, "worktree", "add", "-q", "--detach", str(kept))
    if not folder_is_there:
        left.rename(tmp_path / "elsewhere")

    begin(repository)

    listed = run_git(repository, "worktree", "list")
    assert str(left) not in listed
    assert str(kept) in listed
    assert not left.exists()
    assert kept.exists()


def test_a_worktree_of_a_check_that_runs_stays(repository: Path) -> None:
    git = Git(repository)
    with worktree(git, "HEAD") as path:
        remove_abandoned(repository)
        assert path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks")
def test_a_worktree_of_a_check_in_another_container_of_that_name_stays(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose processes aren't seen here."""

    def unseen(number: int) -> NoReturn:
        raise psutil.NoSuchProcess(number)

    with worktree(Git(repository), "HEAD") as path:
        monkeypatch.setattr(psutil, "Process", unseen)
        remove_abandoned(repository)
        assert path.exists()


def test_hooks_of_the_repository_do_not_run(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    hook.chmod(0o755)

    with worktree(Git(repository), "HEAD"):
        pass

    assert not (tmp_path / "ran").exists()


def test_within_a_hook_the_users_index_is_left_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "staged.py").touch()
    run_git(repository, "add", "staged.py")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    with worktree(Git(repository), "HEAD") as path:
        assert (path / "data.py").exists()
    monkeypatch.undo()
    assert run_git(repository, "diff", "--cached", "--name-only") == "staged.py"


def test_submodules_are_not_fetched_and_that_is_said(repository: Path) -> None:
    (repository / ".gitmodules").touch()
    commit(repository, "two")
    with both_sides(settings(against="main"), {}, repository) as (base, _):
        assert "without its submodules" in base.compared.note


def test_a_commit_that_git_can_not_check_out_says_what_git_says(repository: Path) -> None:
    with (
        pytest.raises(FileError, match="git can't make a worktree of deadbeef"),
        worktree(Git(repository), "deadbeef"),
    ):
        pass


def test_a_folder_in_no_repository_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in no git repository"):
        Git(tmp_path)


def test_without_git_that_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="git is not installed"):
        Git(repository)


def test_compiled_files_are_no_change(repository: Path) -> None:
    git = Git(repository)
    (repository / "__pycache__").mkdir()
    (repository / "__pycache__" / "data.cpython-311.pyc").touch()
    assert not git.is_dirty()
    (repository / "new.py").touch()
    assert git.is_dirty()


def branch_off(repository: Path) -> tuple[str, str]:
    """One commit on ``main`` since ``work`` left it, and one on ``work``; the merge base."""
    base = run_git(repository, "rev-parse", "HEAD")
    run_git(repository, "checkout", "-qb", "work")
    run_git(repository, "checkout", "-q", "main")
    tip = commit(repository, "later on main")
    run_git(repository, "checkout", "-q", "work")
    commit(repository, "work")
    return base, tip


def test_the_default_is_the_merge_base_with_the_upstream_branch(repository: Path) -> None:
    base, tip = branch_off(repository)
    git = Git(repository)
    assert default_ref(git, {}).commit == base  # a local main, without a remote

    run_git(repository, "update-ref", "refs/remotes/origin/trunk", tip)
    run_git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    found = default_ref(git, {})
    assert (found.commit, found.name, found.note) == (base, "origin/trunk", "merge base")


@pytest.mark.parametrize("variable", ["GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME"])
def test_ci_names_the_branch(repository: Path, variable: str) -> None:
    base, tip = branch_off(repository)
    run_git(repository, "update-ref", "refs/remotes/origin/release", tip)
    assert default_ref(Git(repository), {variable: "release"}).commit == base


def test_gitlab_names_the_commit(repository: Path) -> None:
    base, _ = branch_off(repository)
    assert default_ref(Git(repository), {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base}).commit == base


def test_a_merge_base_that_was_not_fetched_says_what_to_fetch(repository: Path) -> None:
    variable = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": "0123456789" * 4}
    with pytest.raises(UsageError, match=r"The commit 01\w+, at which .* can't be found") as caught:
        default_ref(Git(repository), variable)
    assert "fetch-depth: 0" in caught.value.hint

    run_git(repository, "checkout", "-q", "--orphan", "other")
    commit(repository, "unrelated")
    with pytest.raises(UsageError, match="left main can't be found"):
        default_ref(Git(repository), {})


def test_a_ref_that_is_not_here_says_where_it_may_be_had(repository: Path, tmp_path: Path) -> None:
    assert "it has no remote" in Git(repository).no_such_ref("nowhere").hint
    run_git(repository, "remote", "add", "origin", str(tmp_path))
    assert "git fetch origin nowhere" in Git(repository).no_such_ref("nowhere").hint
    empty = tmp_path / "empty"
    empty.mkdir()
    run_git(empty, "init", "-q")
    assert "no commit yet" in Git(empty).no_such_ref("HEAD").hint


def test_a_branch_named_by_ci_that_was_not_fetched_says_what_to_fetch(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"The branch release, .* is not in this clone") as caught:
        default_ref(Git(repository), {"GITHUB_BASE_REF": "release"})
    assert "fetch-depth: 0" in caught.value.hint


def test_a_shallow_clone_without_an_earlier_commit_says_what_to_fetch(
    repository: Path, tmp_path: Path
) -> None:
    commit(repository, "two")
    clone = tmp_path / "clone"
    run_git(repository, "clone", "-q", "--depth", "1", repository.as_uri(), str(clone))
    with pytest.raises(UsageError, match="there is no earlier commit") as caught:
        default_ref(Git(clone), {})
    assert "fetch-depth: 0" in caught.value.hint


def test_on_the_upstream_branch_itself_the_commit_before_is_taken(repository: Path) -> None:
    with pytest.raises(UsageError, match="no upstream branch") as caught:
        default_ref(Git(repository), {})
    assert "HEAD~1" not in caught.value.hint
    first = run_git(repository, "rev-parse", "HEAD")
    second = commit(repository, "two")
    with pytest.raises(UsageError, match="no upstream branch") as caught:
        default_ref(Git(repository), {})
    assert "HEAD~1 is the commit before" in caught.value.hint
    run_git(repository, "update-ref", "refs/remotes/origin/main", second)

    found = default_ref(Git(repository), {})
    assert (found.commit, found.name) == (first, "the commit before")


@pytest.mark.parametrize(
    ("new", "base"),
    [
        ("data.py", "origin/main"),
        ("sub/new.py", "origin/main"),
        ("images-20261130-221500-0a1b.dlprof.jsonl", "the commit before"),
    ],
)
def test_files_that_hold_no_code_are_no_change_to_check(
    repository: Path, new: str, base: str
) -> None:
    """Else a check on the branch itself compared the code with itself, and passed.

    And what is measured beside a baseline that CI has brought was of no commit.
    """
    run_git(repository, "update-ref", "refs/remotes/origin/main", commit(repository, "two"))
    within = repository / "sub"
    within.mkdir()
    (repository / new).write_text("changed")
    for folder in (repository, within):
        assert default_ref(Git(folder), {}).name == base
        change = working_tree(SweepSettings(), folder, Git(folder))
        assert bool(change.compared.note) is (base == "origin/main")


def test_the_sides_of_a_ref(repository: Path) -> None:
    within = repository / "sub"
    within.mkdir()
    (within / "keep").touch()
    first = commit(repository, "one again")
    (repository / "data.py").write_text("changed")
    target = f"{repository / 'data.py'}:make"

    with both_sides(settings(target, against="HEAD"), {}, within) as (base, change):
        assert base.directory == base.root / "sub"
        assert base.directory.is_dir()
        assert base.request.target.text == f"{base.root / 'data.py'}:make"
        assert base.moved == ((str(repository), str(base.root)),)
        assert base.compared.commit == change.compared.commit == first
        assert base.compared.note == ""
        assert change.compared.note == "with uncommitted changes"
        assert change.directory == within

    assert not base.root.exists()


def test_comparing_a_commit_with_itself_is_said(repository: Path) -> None:
    (repository / "images.dlprof.jsonl").touch()  # in which there is no code
    with both_sides(settings(against="main"), {}, repository) as (base, _):
        assert base.compared.note == "the same commit"


def test_a_directory_that_the_base_lacks_is_said(repository: Path) -> None:
    (repository / "new").mkdir()
    with (
        pytest.raises(BaseTargetError, match=r"has no directory 'new'"),
        both_sides(settings(against="main"), {}, repository / "new"),
    ):
        pass


@pytest.mark.parametrize("name", ["ends in a blank ", "no\udcfftext"])
def test_a_checkout_may_have_an_odd_name(repository: Path, name: str) -> None:
    odd = repository.rename(repository.with_name(name))
    with both_sides(settings(against="main"), {}, odd) as (base, change):
        assert change.root == odd
        assert (base.directory / "data.py").exists()


def test_the_sides_of_directories(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with both_sides(settings(against="../old"), {}, new) as (base, change):
        assert (base.directory, change.directory) == (old.resolve(), new.resolve())
        assert base.compared.note == ""

    with both_sides(settings(against=str(tmp_path)), {}, new) as (base, _):
        assert "path of different length" in base.compared.note


@pytest.mark.parametrize("against", ["main", "../old"])
def test_a_target_outside_is_the_same_on_both_sides(repository: Path, against: str) -> None:
    (repository.parent / "old").mkdir()
    outside, inside = (f"{place / 'data.py'}:make" for place in (repository.parent, repository))
    for named in (outside, "../data.py:make"):
        with both_sides(settings(named, against=against), {}, repository) as (base, _):
            assert base.request.target.text == outside
    with both_sides(settings(inside, against=against), {}, repository) as (base, _):
        assert base.request.target.text == f"{base.root / 'data.py'}:make"


def test_the_sides_of_environments(tmp_path: Path) -> None:
    with both_sides(settings(against_python=sys.executable), {}, tmp_path) as (base, change):
        assert base.directory == change.directory == tmp_path.resolve()
        assert base.python == str(Path(sys.executable).absolute())


def test_a_git_ref_comes_before_a_directory_of_its_name(repository: Path) -> None:
    (repository / "main").mkdir()
    with both_sides(settings(against="main"), {}, repository) as (base, _):
        assert base.compared.commit


def test_a_git_ref_comes_before_a_file_of_its_name(repository: Path) -> None:
    (repository / "main").write_text("a program that was built")
    with both_sides(settings(against="main"), {}, repository) as (base, _):
        assert base.compared.commit


BAD: dict[str, tuple[Callable[[Path], CheckSettings], str]] = {
    "no such ref": (lambda _: settings(against="mian"), "no such git ref"),
    "an option of git's": (lambda _: settings(against="--help"), "no such git ref"),
    "no such directory": (lambda _: settings(against="./nowhere"), "no such directory"),
    "no such user": (lambda _: settings(against="~nosuch/x"), "no such directory"),
    "too long a name": (lambda _: settings(against=300 * "a"), "no such git ref"),
    "a file": (lambda _: settings(against="data.py"), "is a file"),
    "no such python": (lambda _: settings(against_python="./nowhere/python"), "no such program"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_names_are_refused_and_leave_nothing(repository: Path, case: str) -> None:
    make, expected = BAD[case]
    with (
        pytest.raises(DlprofError, match=expected) as caught,
        both_sides(make(repository), {}, repository),
    ):
        pass
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert run_git(repository, "worktree", "list").count("\n") == 0


def test_a_ref_that_is_nearly_right_is_suggested(repository: Path) -> None:
    with pytest.raises(UsageError) as caught, both_sides(settings(against="mian"), {}, repository):
        pass
    assert caught.value.hint == "Did you mean main?"


def test_the_working_tree_of_no_repository_has_no_commit(tmp_path: Path) -> None:
    assert working_tree(SweepSettings(), tmp_path).compared.commit == ""


@pytest.mark.parametrize(("against", "fault"), [("", "is empty"), (".", "directory itself")])
def test_the_working_directory_is_not_checked_against_itself(
    repository: Path, against: str, fault: str
) -> None:
    with (
        pytest.raises(UsageError, match=fault),
        both_sides(settings(against=against), {}, repository),
    ):
        pass


def test_another_python_may_check_the_same_directory(repository: Path) -> None:
    given = settings(against=".", against_python=sys.executable)
    with both_sides(given, {}, repository) as (base, change):
        assert base.directory == change.directory
