"""Writing run files: nothing is overwritten unasked, nothing that was written is lost."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_run import (
    END,
    HEADER,
    RUN,
    TRIALS,
    pathless,
    write,
)

from dlprof.errors import FileError
from dlprof.store import RunWriter, check_output, read_run, to_json


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "a.dlprof.jsonl")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    trial = dataclasses.replace(TRIALS[0], startup_s=value)
    with pytest.raises(ValueError, match="only finite"):
        to_json(trial)
    path = tmp_path / "a.dlprof.jsonl"
    with RunWriter.create(path, HEADER) as writer, pytest.raises(ValueError, match="only finite"):
        writer.append(trial)
    assert read_run(path).trials == ()


# Creating


def test_an_existing_file_is_kept_without_force(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(FileError, match="already exists") as caught:
        RunWriter.create(saved, HEADER)
    assert "--resume" in caught.value.hint
    assert "--force" in caught.value.hint
    assert saved.read_bytes() == before


def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    """It is what a sweep leaves that was killed between making its file and writing to it."""
    path = tmp_path / "a.dlprof.jsonl"
    path.touch()
    with RunWriter.create(path, HEADER) as writer:
        writer.append(TRIALS[0])
    assert read_run(path).trials == TRIALS[:1]


def test_force_replaces_an_existing_file(saved: Path) -> None:
    with RunWriter.create(saved, HEADER, force=True) as writer:
        writer.append(TRIALS[1])
    assert read_run(saved).trials == TRIALS[1:]
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_force_keeps_the_old_file_if_the_new_one_cannot_be_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(FileError, match="disk is full"):
        RunWriter.create(saved, HEADER, force=True)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_force_writes_through_a_link(saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to(saved)
    RunWriter.create(link, HEADER, force=True).close()
    assert link.is_symlink()
    assert read_run(saved).trials == ()


def test_force_creates_what_is_not_there(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "new", HEADER, force=True).close()
    assert read_run(tmp_path / "new").header == HEADER


@pytest.mark.parametrize("force", [False, True])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, *, force: bool) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for path, fault in (
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "is not a plain file"),
        (tmp_path / "missing" / "a", "There is no folder"),
        (tmp_path / "file" / "a", "is not a folder"),
        (tmp_path / ("x" * 300), "is too long"),
    ):
        with pytest.raises(FileError, match=fault):
            RunWriter.create(path, HEADER, force=force)


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileError, match="no permission to write into"):
        check_output(tmp_path / "a")


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "can't be written: "),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: str
) -> None:
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(FileError, match=fault):
        RunWriter.create(tmp_path / "a", HEADER)


def test_a_file_whose_header_cannot_be_written_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(FileError, match="disk is full"):
        RunWriter.create(tmp_path / "a", HEADER)
    assert list(tmp_path.iterdir()) == []


# Appending


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_loses_nothing_that_was_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    write_really, calls = os.write, iter(range(100))

    def write_half(descriptor: int, content: bytes) -> int:
        if next(calls) > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_really(descriptor, content[: len(content) // 2])

    with RunWriter.resume(saved) as writer:
        monkeypatch.setattr(os, "write", write_half)
        with pytest.raises(FileError, match="disk is full") as caught:
            writer.append(TRIALS[0])
        assert str(saved) in caught.value.message
        assert saved.read_bytes() == before
        monkeypatch.setattr(os, "write", write_really)
        writer.append(TRIALS[0])
    assert read_run(saved).trials == (*TRIALS, TRIALS[0])


def test_a_record_is_one_write_and_one_sync(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    write_really, sync_really = os.write, os.fsync

    def note_write(descriptor: int, content: bytes) -> int:
        calls.append("write")
        return write_really(descriptor, content)

    def note_sync(descriptor: int) -> None:
        calls.append("fsync")
        sync_really(descriptor)

    with RunWriter.resume(saved) as writer:
        monkeypatch.setattr(os, "write", note_write)
        monkeypatch.setattr(os, "fsync", note_sync)
        writer.append(TRIALS[0])
    assert calls == ["write", "fsync"]


def test_closing_twice_does_nothing(saved: Path) -> None:
    writer = RunWriter.resume(saved)
    writer.close()
    writer.close()


# Resuming


def test_resuming_at_any_cut_keeps_what_was_complete(saved: Path) -> None:
    whole = saved.read_bytes()
    first = whole.index(b"\n")
    for size in range(len(whole), first - 1, -97):
        saved.write_bytes(whole[:size])
        before = read_run(saved)
        with RunWriter.resume(saved) as writer:
            assert not read_run(saved).truncated
            writer.append(TRIALS[0])
        after = read_run(saved)
        assert after.trials == (*before.trials, TRIALS[0])
        assert after.end is None
        assert not after.truncated


def test_resuming_adds_a_missing_line_end(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().rstrip(b"\n"))
    with RunWriter.resume(saved) as writer:
        writer.append(END)
    assert read_run(saved).end == END


def test_a_file_that_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(FileError, match="is not a run file"):
        RunWriter.resume(path)
    assert path.read_text() == "mine\n"
    with pytest.raises(FileError, match="There is no file"):
        RunWriter.resume(tmp_path / "missing")


def test_a_run_that_cannot_be_cut_is_a_sentence(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "ftruncate", failing(errno.EROFS))
    with pytest.raises(FileError, match="read-only file system"):
        RunWriter.resume(saved)
    monkeypatch.undo()
    RunWriter.resume(saved).close()


def test_two_sweeps_cannot_write_one_file(saved: Path) -> None:
    with RunWriter.resume(saved):
        with pytest.raises(FileError, match="Another sweep is writing"):
            RunWriter.resume(saved)
        with pytest.raises(FileError, match="Another sweep is writing"):
            RunWriter.create(saved, HEADER, force=True)
    RunWriter.resume(saved).close()
    assert pathless(read_run(saved)) == RUN
