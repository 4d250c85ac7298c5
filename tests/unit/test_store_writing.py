"""Writing run files: nothing is overwritten unasked, nothing that was written is lost."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import subprocess
import sys
import tempfile
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

from dlprof import store
from dlprof.errors import FileError
from dlprof.files import lock, replace_file
from dlprof.records.codec import to_json
from dlprof.store import RunWriter, check_output, read_run


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


def test_nobody_goes_on_with_a_file_that_is_being_replaced(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_while_another_resumes(path: Path, content: bytes) -> None:
        with pytest.raises(FileError, match="Another sweep is writing"):
            RunWriter.resume(path)
        replace_file(path, content)

    monkeypatch.setattr(store, "replace_file", replace_while_another_resumes)
    with RunWriter.create(saved, HEADER, force=True) as writer:
        writer.append(TRIALS[1])
    assert read_run(saved).trials == TRIALS[1:]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file can't be replaced there")
def test_what_is_written_goes_into_the_file_of_that_name(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced between being opened and being locked, it is opened again."""
    lock_really, new = lock, [True]

    def replaced_first(descriptor: int, *, wait: bool) -> bool:
        if new and new.pop():
            RunWriter.create(saved, HEADER, force=True).close()
        return lock_really(descriptor, wait=wait)

    monkeypatch.setattr(store, "lock", replaced_first)
    with RunWriter.resume(saved) as writer:
        writer.append(TRIALS[1])
    assert not new
    assert read_run(saved).trials == TRIALS[1:]


def test_an_empty_file_that_another_sweep_has_written_by_now_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.dlprof.jsonl"
    path.touch()
    lock_really, empty = lock, [True]

    def written_first(descriptor: int, *, wait: bool) -> bool:
        if empty and empty.pop():
            write(path)
        return lock_really(descriptor, wait=wait)

    monkeypatch.setattr(store, "lock", written_first)
    with pytest.raises(FileError, match="already exists"):
        RunWriter.create(path, HEADER)
    assert read_run(path).trials == TRIALS


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_two_processes_that_replace_and_go_on_never_write_into_a_file_without_a_name(
    saved: Path,
) -> None:
    """Each holds the lock of the very file that has the name, as long as it writes."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from dlprof.errors import FileError\n"
        "from dlprof.store import RunWriter, read_run\n"
        "path = Path(sys.argv[1])\n"
        "header, done = read_run(path).header, 0\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for turn in range(200):\n"
        "    try:\n"
        "        with (RunWriter.resume(path) if turn % 2 else\n"
        "              RunWriter.create(path, header, force=True)) as writer:\n"
        "            here = os.fstat(writer._descriptor)\n"
        "            assert os.path.samestat(here, os.stat(path)), turn\n"
        "            done += 1\n"
        "    except FileError as error:\n"
        "        assert 'Another sweep' in error.message, error.message\n"
        "print(done)\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(saved)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    shown = [int(process.communicate(timeout=60)[0]) for process in both]
    assert sum(shown) > 0


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
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(FileError, match="no permission to write"):
        check_output(tmp_path / "a")


def test_a_folder_that_takes_files_is_left_empty(tmp_path: Path) -> None:
    check_output(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_a_folder_that_takes_no_files_is_named_by_its_path(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(FileError, match=folder) as caught:
        check_output(Path("a"))
    assert caught.value.hint


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
