"""What is cleared from /dev/shm, and what is not."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from dlprof.trial.temporary import SharedMemoryWatch

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where it is, by definition
linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/shm")


def test_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    (tmp_path / "torch_1_old").touch()
    watch = SharedMemoryWatch(tmp_path, proc=tmp_path / "no-processes")
    (tmp_path / "torch_999999999_new").touch()
    (tmp_path / "sem.mp-abcdefgh").touch()
    (tmp_path / "somebody-elses").touch()

    assert sorted(watch.clear()) == ["sem.mp-abcdefgh", "torch_999999999_new"]
    assert {path.name for path in tmp_path.iterdir()} == {"torch_1_old", "somebody-elses"}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert SharedMemoryWatch(tmp_path / "nowhere").clear() == []


@linux
def test_an_open_file_is_let_be(tmp_path: Path) -> None:
    watch = SharedMemoryWatch(tmp_path)  # what is in /dev/shm, a trial beside might clear
    path = tmp_path / "torch_999999999_new"
    with path.open("w"):
        assert path.name not in watch.clear()
    assert path.name in watch.clear()


@linux
def test_a_semaphore_of_a_living_program_is_let_be() -> None:
    """The kernel lists it under a name that it had for a moment only."""
    watch = SharedMemoryWatch()
    lock = multiprocessing.get_context("spawn").Lock()
    name = str(lock._semlock.name).removeprefix("/")  # type: ignore[attr-defined]
    path = SHARED_MEMORY / f"sem.{name}"

    assert path.exists()
    assert path.name not in watch.clear()
    assert path.exists()
