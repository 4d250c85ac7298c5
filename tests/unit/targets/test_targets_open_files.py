"""Which open files count, and whether they have moved."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

from dlprof.targets.files import (
    OpenFile,
    have_own_positions,
    holders,
    moved,
    open_files,
    positions,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are seen by /proc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "samples.bin"
    found.write_bytes(bytes(100))
    return found


def of(path: Path) -> tuple[OpenFile, ...]:
    return tuple(each for each in open_files() if each.path == str(path))


def test_files_to_read_have_a_place(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(7)
        (found,) = of(path)
        assert (found.descriptor, found.position) == (file.fileno(), 7)
    assert of(path) == ()


@pytest.mark.parametrize("mode", ["wb", "ab", "a+b"])
def test_files_that_are_only_written_or_added_to_do_not_count(mode: str, path: Path) -> None:
    with path.open(mode):
        assert of(path) == ()


def test_devices_and_files_of_the_kernel_do_not_count() -> None:
    with Path("/dev/urandom").open("rb") as device, Path("/proc/self/stat").open("rb") as file:
        numbers = {each.descriptor for each in open_files()}
        assert numbers.isdisjoint({device.fileno(), file.fileno()})


def test_what_was_read_has_moved_and_what_was_written_or_closed_has_not(path: Path) -> None:
    with path.open("rb", buffering=0) as one, path.open("rb", buffering=0) as other:
        files = of(path)
        before = positions(files)
        one.read(1)
        assert [each.descriptor for each in moved(files, before)] == [one.fileno()]
        other.close()
        assert len(moved(files, before)) == 1
    assert moved(files, before) == ()


def test_a_file_that_is_written_to_is_not_read_wrongly() -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        files = [each for each in open_files() if each.descriptor == file.fileno()]
        before = positions(files)
        os.utime(file.fileno(), ns=(0, 0))  # as of long ago: clocks of file systems are coarse
        file.write(b"x")
        assert moved(files, before) == ()


def test_a_position_of_ones_own_starts_where_it_was_and_moves_no_other(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(7)
        other = os.dup(file.fileno())
        try:
            have_own_positions([each for each in of(path) if each.descriptor == file.fileno()])
            assert file.read(3) == bytes(3)
            assert (file.tell(), os.lseek(other, 0, os.SEEK_CUR)) == (10, 7)
        finally:
            os.close(other)


@pytest.mark.parametrize("flags", [os.O_TMPFILE | os.O_RDWR, os.O_NOFOLLOW])
def test_what_can_not_be_opened_by_its_flags_gets_a_position_too(flags: int, path: Path) -> None:
    """As ``tempfile`` opens what it makes."""
    where = path.parent if flags & os.O_TMPFILE == os.O_TMPFILE else path
    descriptor = os.open(where, flags)
    other = os.dup(descriptor)
    try:
        have_own_positions([each for each in open_files() if each.descriptor == descriptor])
        os.lseek(descriptor, 5, os.SEEK_SET)
        assert os.lseek(other, 0, os.SEEK_CUR) == 0
    finally:
        os.close(descriptor)
        os.close(other)


def test_descriptors_of_one_position_keep_one(path: Path) -> None:
    with path.open("rb", buffering=0) as file, path.open("rb", buffering=0) as another:
        copy = os.dup(file.fileno())
        try:
            have_own_positions(of(path))
            file.read(3)
            assert os.lseek(copy, 0, os.SEEK_CUR) == 3
            assert another.tell() == 0
        finally:
            os.close(copy)


def test_positions_that_are_known_to_differ_are_not_tried_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As several workers would move them at once to see which are one."""
    monkeypatch.setattr("dlprof.targets.files._is_one", lambda *_: True)
    with path.open("rb", buffering=0) as file, path.open("rb", buffering=0) as another:
        have_own_positions(of(path), [[0], [1]])
        file.read(3)
        assert another.tell() == 0


def test_a_file_in_memory_stays_there() -> None:
    with tempfile.SpooledTemporaryFile(max_size=100) as file:
        file.write(b"x")
        dataset = types.SimpleNamespace(file=file)
        assert holders(types.SimpleNamespace(dataset=dataset)) == {}
        assert not getattr(file, "_rolled")  # noqa: B009 - unknown to its stubs


def test_files_that_partials_and_methods_hold_are_named(path: Path) -> None:
    def read(file: object, index: int) -> object:
        return file, index

    class Reader:
        def __init__(self, file: object) -> None:
            self.file = file

        def get(self, index: int) -> object:
            return self.file, index

    with path.open("rb") as one, path.open("rb") as other:
        dataset: Any = types.SimpleNamespace(read=functools.partial(read, one))
        loader: Any = types.SimpleNamespace(dataset=dataset, collate_fn=Reader(other).get)
        names = holders(loader)
        assert "read.args[0]" in names[one.fileno()]
        assert "collate_fn.__self__.file" in names[other.fileno()]


def test_who_watches_sees_a_place_though_its_first_number_is_taken(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        (found,) = of(path)
        have_own_positions([found], watched_from=900)
        file.read(5)
        try:
            assert os.lseek(900, 0, os.SEEK_CUR) == 5
        finally:
            os.close(900)
