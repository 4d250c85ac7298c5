"""Locks and replaced files, where the system does not play along."""

from __future__ import annotations

import errno
import fcntl
import functools
import multiprocessing
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from dlprof.errors import FileError
from dlprof.files import (
    folder_lock,
    lock,
    read_text,
    replace_file,
    replaceable,
    unlock,
    write_fault,
)


def test_a_lock_keeps_another_holder_out_until_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert lock(first, wait=False)
        assert not lock(second, wait=False)
        unlock(first)
        assert lock(second, wait=False)
    finally:
        os.close(first)
        os.close(second)


def test_a_writer_that_was_stopped_keeps_others_waiting_for_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlprof.files._LOCK_S", 0.1)
    with folder_lock(tmp_path), folder_lock(tmp_path):
        pass  # the second one never gets it


def test_what_was_forked_meanwhile_keeps_no_folder_locked(tmp_path: Path) -> None:
    sleeps = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60.0])
    with folder_lock(tmp_path):
        sleeps.start()
    later = os.open(tmp_path, os.O_RDONLY)
    try:
        assert lock(later, wait=False)
    finally:
        os.close(later)
        sleeps.kill()
        sleeps.join()


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "a").open("w") as file:
        assert lock(file.fileno(), wait=True)
        unlock(file.fileno())


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    replace_file(path, b"first")
    replace_file(path, b"second")
    assert path.read_bytes() == b"second"

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(FileError, match="no permission"):
        replace_file(path, b"third")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"fourth")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_path_with_braces_is_named_as_it_is() -> None:
    fault = write_fault(Path("{path}"), OSError(errno.EIO, "{parent} error"))
    assert fault.message == "{path} can't be written: {parent} error"


def test_a_folder_that_takes_no_files_is_not_called_missing(tmp_path: Path) -> None:
    refused = OSError(errno.ENOENT, "No such file or directory")  # as /proc says
    assert write_fault(tmp_path / "a", refused).message == f"No file can be written to {tmp_path}"
    missing = tmp_path / "nowhere"
    assert write_fault(missing / "a", refused).message == f"There is no folder {missing}"


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    link, named = tmp_path / "link", tmp_path / "named"
    named.write_text("before")
    link.symlink_to(named)
    replace_file(link, b"after")
    assert link.is_symlink()
    assert named.read_text() == "after"


def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="is not a plain file"):
        replace_file(pipe, b"text")
    assert pipe.is_fifo()
    with pytest.raises(FileError, match="is a folder"):
        replaceable(tmp_path)
    with pytest.raises(FileError, match="There is no folder"):
        replaceable(tmp_path / "nowhere" / "file")


def test_a_text_is_read_as_editors_write_it_and_what_is_none_is_said(tmp_path: Path) -> None:
    path, read = tmp_path / "a", functools.partial(read_text, most=8, hint="Give a list.")
    with pytest.raises(FileError, match="There is no file"):
        read(path, "a list")
    assert read(path, "a list", missing="") == ""
    path.write_bytes("\ufeff1 µs".encode())
    assert read(path, "a list") == "1 µs"
    path.write_bytes(b"123456789")
    with pytest.raises(FileError, match="a is too long for a list: over 8 bytes"):
        read(path, "a list")
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match="a is not a list: it isn't text"):
        read(path, "a list")
    with pytest.raises(FileError, match="is a folder"):
        read(tmp_path, "a list")


def test_a_short_text_takes_no_more_memory_than_it_needs(tmp_path: Path) -> None:
    """Else a limit of memory (ulimit -v) refused it, as there was no room for the longest."""
    (tmp_path / "a").write_text("a")
    tracemalloc.start()
    try:
        assert read_text(tmp_path / "a", "a list", hint="Give a list.") == "a"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_limit_of_the_shell_is_not_cured_by_free_space() -> None:
    fault = write_fault(Path("a"), OSError(errno.EFBIG, "File too large"))
    assert "ulimit -f" in fault.hint
