from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from dlprof import files
from dlprof.engine import workplace
from dlprof.engine.workplace import work_directory
from dlprof.errors import FileError

PREFIX = workplace._PREFIX
posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no locks on folders")


def test_it_is_removed_with_what_it_holds(tmp_path: Path) -> None:
    with work_directory(tmp_path) as directory:
        (directory / "log").write_text("text")
        assert directory.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@posix
def test_those_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    dies = (
        "import os, pathlib, sys\n"
        "from dlprof.engine.workplace import work_directory\n"
        "with work_directory(pathlib.Path(sys.argv[1])) as directory:\n"
        "    (directory / 'log').write_text('text')\n"
        "    os._exit(0)\n"
    )
    with work_directory(tmp_path) as first:
        subprocess.run([sys.executable, "-c", dies, str(tmp_path)], check=True)
        assert len(list(tmp_path.iterdir())) == 2
        with work_directory(tmp_path) as second:
            assert set(tmp_path.iterdir()) == {first, second}


@posix
def test_one_that_another_sweep_takes_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def taken_at_once(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            other = os.open(made[0], os.O_RDONLY)
            assert files.lock(other, wait=False)
            threading.Timer(0.2, remove, [other]).start()
        return made[-1]

    def remove(other: int) -> None:
        Path(made[0]).rmdir()
        os.close(other)

    monkeypatch.setattr(tempfile, "mkdtemp", taken_at_once)
    with work_directory(tmp_path) as directory:
        assert directory == Path(made[1])
        assert list(tmp_path.iterdir()) == [directory]


def test_one_that_cannot_be_made_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_options: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(FileError, match="disk is full"), work_directory(tmp_path):
        pass


@posix
def test_what_is_not_a_sweeps_is_kept(tmp_path: Path) -> None:
    elsewhere = tmp_path / "data"
    elsewhere.mkdir()
    others = tmp_path / "tmp"
    (others / "dlprof-notes").mkdir(parents=True)
    (others / f"{PREFIX}link").symlink_to(elsewhere)
    (others / f"{PREFIX}file").write_text("text")
    with work_directory(others):
        pass
    assert elsewhere.exists()
    assert {path.name for path in others.iterdir()} == {
        "dlprof-notes",
        f"{PREFIX}link",
        f"{PREFIX}file",
    }


@posix
def test_other_users_directories_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{PREFIX}theirs").mkdir()
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with work_directory(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}theirs"]


@posix
def test_other_machines_directories_are_not_touched(tmp_path: Path) -> None:
    """On storage that both use, where each knows its own locks alone (Lustre, NFS)."""
    other = tmp_path / "dlprof-sweep-another-machine"
    other.mkdir()
    with work_directory(tmp_path) as directory:
        assert directory.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == [other]


@posix
def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}whose").mkdir()
    monkeypatch.setattr(workplace, "lock", lambda _descriptor, **_: True)
    with work_directory(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}whose"]


@posix
def test_a_place_too_long_for_the_sockets_of_workers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader with workers would wait for its first batch for ever."""
    monkeypatch.delattr("multiprocessing.util._get_base_temp_dir", raising=False)
    place = tmp_path / ("x" * 80)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(FileError, match="too long for the sockets") as raised, work_directory():
        pass
    assert raised.value.hint == "Set TMPDIR to a shorter path."
    assert list(place.iterdir()) == []
