"""Temporary files that torch and multiprocessing make for themselves."""

from __future__ import annotations

import _thread
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from multiprocessing import process, util
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from dlprof.internals import TRYING_MODULES
from dlprof.trial.processes import (
    ManagerWatch,
    Parting,
    SharedMemoryWatch,
    keep_sockets_in,
    leave_no_names,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files, and nothing that this process goes on to remember."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "_name_sequence", None)
    current: Any = process.current_process()
    config = current._config
    before = dict(config)
    yield tmp_path
    config.clear()
    config.update(before)


def burst(*_arguments: object, **_keywords: object) -> None:
    raise RuntimeError("a worker has died")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it has one for a moment")
@pytest.mark.parametrize("module", TRYING_MODULES)
def test_what_torch_tries_for_a_lost_worker_has_no_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """It may be told of another one's death in the midst of that, which would leave a file."""
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    leave_no_names()
    code = "import tempfile\nfile = tempfile.NamedTemporaryFile()"
    torchs: dict[str, Any] = {"__name__": module}
    exec(code, torchs)
    assert not list(folder.iterdir())
    users: dict[str, Any] = {"__name__": "users"}
    exec(code, users)
    assert [*folder.iterdir()] == [Path(users["file"].name)]


def test_who_has_no_caller_gets_a_file_with_a_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread's first function has none."""
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    leave_no_names()
    _thread.start_new_thread(tempfile.NamedTemporaryFile, (), {"delete": False})
    assert until(lambda: [*folder.iterdir()])


def test_sockets_go_where_they_are_sent(folder: Path) -> None:
    keep_sockets_in(str(folder))
    assert util.get_temp_dir() == str(folder)


@pytest.mark.parametrize(("platform", "most"), [("linux", 88), ("darwin", 84)])
def test_a_path_too_long_for_a_socket_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, platform: str, most: int
) -> None:
    """Below the folder that macOS has for a user's temporary files it is too long."""
    current: Any = process.current_process()
    before = dict(current._config)
    monkeypatch.setattr(sys, "platform", platform)

    keep_sockets_in("/" + "x" * (most + 1))
    assert current._config == before
    keep_sockets_in("/" + "x" * most)
    assert current._config == {**before, "tempdir": "/" + "x" * most}


def test_what_was_made_later_is_finalized(folder: Path) -> None:
    earlier = tempfile.TemporaryDirectory()
    parting = Parting()
    later = tempfile.TemporaryDirectory()
    order: list[str] = []
    weakref.finalize(Holder(), order.append, "gone before")
    kept = [Holder() for _ in range(3)]
    weakref.finalize(kept[0], order.append, "first")
    weakref.finalize(kept[1], burst)
    weakref.finalize(kept[2], order.append, "last").atexit = False
    parting.take()

    assert Path(earlier.name).exists()
    assert not Path(later.name).exists()
    assert order == ["gone before", "first"]
    earlier.cleanup()


class Holder:
    """Something that can be referred to weakly."""


def test_what_the_trials_own_processes_left_is_removed(tmp_path: Path) -> None:
    memory, marks = tmp_path / "shm", tmp_path / "trial"
    for folder in (memory, marks, tmp_path / "proc" / "8"):
        folder.mkdir(parents=True)
    (memory / "torch_7_1_0").touch()
    watch = SharedMemoryWatch(memory, proc=tmp_path / "proc")
    for pid in (7, 8):
        (marks / f"process-{pid}").touch()
    others = {"psm_0a1b2c3d", "sem.mp-abcdefgh", "torch_9_1_0", "torch_77_1_0", "somebody-elses"}
    kept = {"torch_7_1_0", "torch_8_1_0"}  # older than the trial; of one that lives
    for name in {"torch_7_2_1", *others, *kept}:
        (memory / name).touch()

    watch.clear(marks)
    assert {path.name for path in memory.iterdir()} == {*others, *kept}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    SharedMemoryWatch(tmp_path / "nowhere").clear(tmp_path)


@pytest.mark.parametrize(("pids", "left"), [("pid:[4026531836]", 1), ("pid:[4026532765]", 0)])
def test_in_a_container_with_the_hosts_shared_memory_nothing_is_left_to_remove(
    tmp_path: Path, pids: str, left: int
) -> None:
    """Whose number it is there can't be seen."""
    spaces, memory = tmp_path / "proc/self/ns", tmp_path / "shm"
    for folder in (spaces, memory):
        folder.mkdir(parents=True)
    (spaces / "ipc").symlink_to("ipc:[4026531839]")
    (spaces / "pid").symlink_to(pids)
    watch = SharedMemoryWatch(memory, proc=tmp_path / "proc")
    (memory / "torch_71_1_0").write_bytes(b"x")
    (tmp_path / "process-71").touch()
    watch.clear(tmp_path)
    assert (memory / "torch_71_1_0").exists() == (not left)


@pytest.mark.skipif(sys.platform != "linux", reason="who listens is in Linux's /proc")
def test_a_manager_that_listens_in_another_container_keeps_its_directory(folder: Path) -> None:
    """Its socket is listed in that one's network namespace alone."""
    proc = folder / "proc"
    (proc / "net").mkdir(parents=True)
    (proc / "net/unix").write_text("")
    watch = ManagerWatch(proc)
    places = {name: folder / f"torch-shm-dir-{name}" for name in ("dead", "lives")}
    sockets = {name: socket.socket(socket.AF_UNIX) for name in places}
    for name, place in places.items():
        place.mkdir()
        sockets[name].bind(str(place / "manager.sock"))
    sockets["dead"].close()
    with sockets["lives"] as listening:
        listening.listen()
        watch.clear()
    assert [name for name, place in places.items() if place.exists()] == ["lives"]


@pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only")
@pytest.mark.parametrize("name", ["a", "a" * 108])
def test_a_trials_process_and_those_that_it_starts_leave_their_numbers(
    tmp_path: Path, name: str
) -> None:
    """Also in a directory whose path is too long for a socket."""
    place = tmp_path / name
    place.mkdir()
    code = (
        "import multiprocessing, os, sys\n"
        "from dlprof.trial.processes import guard_worker\n"
        "from dlprof.trial.processes import keep_sockets_in, mark_processes\n"
        "keep_sockets_in(sys.argv[1])\n"
        "mark_processes(sys.argv[1])\n"
        "spawned = multiprocessing.get_context('spawn').Process(target=guard_worker)\n"
        "spawned.start()\n"
        "spawned.join()\n"
        "print(spawned.pid)\n"
        "print(os.getpid(), flush=True)\n"
        "for _ in range(2):\n"  # a fork of a fork, too
        "    pid = os.fork()\n"
        "    if pid:\n"
        "        os.waitpid(pid, 0)\n"
        "        os._exit(0)\n"
        "    print(os.getpid(), flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(place)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(printed.split()) == 4
    assert {path.name for path in place.iterdir()} == {f"process-{n}" for n in printed.split()}


def test_a_worker_that_is_started_imports_nothing_of_the_machine() -> None:
    """That would be part of its start, which is measured; nor does a check's side before torch."""
    code = (
        "import sys, dlprof.targets.workers, dlprof.trial.processes, dlprof.trial.warm\n"
        "print([name for name in ('psutil', 'dlprof.machine') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


SEMAPHORES = """
import multiprocessing, os, pathlib, signal
from multiprocessing import resource_tracker
from dlprof.trial.processes import Parting

parting = Parting()
lock = multiprocessing.get_context("spawn").Lock()
path = pathlib.Path("/dev/shm") / f"sem.{lock._semlock.name.lstrip('/')}"
assert path.exists()
if KILLED:
    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
    os.waitpid(resource_tracker._resource_tracker._pid, 0)
if not (pid := os.fork()):  # as each trial is of the fork server
    parting.take()
    os._exit(0)
os.waitpid(pid, 0)
assert path.exists()
parting.take()
print(path.exists())
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="where semaphores lie in /dev/shm")
@pytest.mark.parametrize("killed", [True, False], ids=["tracker killed", "tracker alive"])
def test_no_semaphore_stays_whatever_became_of_its_tracker(*, killed: bool) -> None:
    script = SEMAPHORES.replace("KILLED", str(killed))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
    assert done.stderr == ""
