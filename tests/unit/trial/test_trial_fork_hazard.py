"""When trials may not be forked from the process that built the target."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from dlprof.trial import fork_server
from dlprof.trial.fork_server import fork_hazard

COMPUTING = """
import torch
from dlprof.trial import fork_server
{before}
torch.ones(1 << 20).add_(1)
print(repr(fork_server.fork_hazard()))
"""


@pytest.fixture
def _no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fork server: other tests have had torch compute in this process."""
    monkeypatch.setattr(fork_server, "_computes_in_fork", lambda: True)


def _opened(directory: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (directory / str(number)).symlink_to(name)
    return directory


@pytest.mark.usefixtures("_no_pool")
@pytest.mark.parametrize("driver", ["/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128"])
def test_a_driver_that_was_started_does_not_survive_a_fork(tmp_path: Path, driver: str) -> None:
    hazard = fork_hazard(_opened(tmp_path, "/dev/null", "socket:[12]", driver))
    assert "torch.cuda.is_available()" in hazard


@pytest.mark.usefixtures("_no_pool")
def test_other_files_are_no_hazard(tmp_path: Path) -> None:
    opened = _opened(tmp_path, "/dev/null", "pipe:[7]", "/home/me/nvidia.txt")
    assert fork_hazard(opened) == ""
    assert fork_hazard(tmp_path / "missing") == ""


@pytest.mark.usefixtures("_no_pool")
def test_shared_memory_with_a_name_is_left_by_one_trial_as_the_next_finds_it(
    tmp_path: Path,
) -> None:
    """As the barrier of mosaicml-streaming, in which a worker may be ended half way."""
    shared = SharedMemory(create=True, size=8)
    try:
        assert f"made the shared memory {shared.name!r}" in fork_hazard(tmp_path)
    finally:
        shared.close()
        shared.unlink()
    assert fork_hazard(tmp_path) == ""


@pytest.mark.usefixtures("_no_pool")
def test_a_process_that_the_target_started_is_shared_by_all_trials(tmp_path: Path) -> None:
    """As that of a ``Manager`` whose dictionary is a dataset's cache."""
    process = multiprocessing.get_context("spawn").Process(target=print, name="cache")
    process.start()
    try:
        assert "started the process 'cache'" in fork_hazard(tmp_path)
    finally:
        process.join()
    assert fork_hazard(tmp_path) == ""


def test_what_the_target_starts_does_not_inherit_the_way_to_the_supervisor() -> None:
    """Who holds it open, as a server that ``os.system`` starts, hides that the fork server died."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.set_inheritable(True)  # as it is passed down
        fork_server.ForkServer(theirs)
        assert not theirs.get_inheritable()


def _after_computing(before: str) -> str:
    """What hazard a fresh process finds once torch has computed in it."""
    code = COMPUTING.format(before=before)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return ended.stdout.strip()


@pytest.mark.slow
def test_a_pool_of_threads_that_was_used_does_not_survive_a_fork() -> None:
    assert "pool of threads" in _after_computing("torch.set_num_threads(2)")


@pytest.mark.slow
def test_on_one_thread_there_is_no_pool() -> None:
    assert _after_computing("torch.set_num_threads(1)") == "''"


@pytest.mark.parametrize(
    ("users", "kept"),
    [
        ("pass", 3),
        pytest.param("torch.set_num_threads(1)", 1, marks=pytest.mark.slow),
        pytest.param("torch.set_num_threads(4)", 4, marks=pytest.mark.slow),
    ],
)
def test_targets_are_built_on_one_thread_unless_they_say_otherwise(users: str, kept: int) -> None:
    block = f"""
torch.set_num_threads(3)
with fork_server._without_pool():
    print(torch.get_num_threads())
    {users}
print(torch.get_num_threads())
"""
    assert _after_computing(block).split()[:2] == ["1", str(kept)]
