"""``dlprof attach`` and ``dlprof top`` on trainings that really run beside the tests."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import python
from schemas import conforms

from dlprof.attach.trainings import training_of
from dlprof.errors import UsageError
from dlprof.machine.neighbours import name_of_user

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 10**7
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(3, 8, 8)

def main():
    loader = DataLoader(Slow(), batch_size=8, num_workers=int(sys.argv[1]))
    for number, batch in enumerate(loader):
        if number == 3: print("begun", flush=True)
        if number == int(sys.argv[2]): return

if __name__ == "__main__":
    main()
    print("done", flush=True)
"""
IDLE = "import sys; print('begun', flush=True); sys.stdin.read()"
ENDLESS = "1000000000"
OTHER = 65534
"""The id of nobody."""


@contextlib.contextmanager
def _running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it has begun."""
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def _dlprof(*words: str) -> tuple[int, dict[str, Any]]:
    done = python(Path.cwd(), "-m", "dlprof", *words, "--json")
    document = json.loads(done.stdout)
    conforms("error" if done.returncode else words[0], document)
    return done.returncode, document


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN, encoding="utf-8")
    return str(path)


def test_a_training_that_waits_for_storage_is_warned_and_goes_on(script: str) -> None:
    with _running(sys.executable, script, "2", "2000") as training:
        code, found = _dlprof("attach", str(training.pid), "--seconds", "4")
        assert code == 0
        assert found["config"]["num_workers"] == 2
        assert found["wait_fraction"]["value"] > 0.3
        assert "fetch.io" in [each["code"] for each in found["findings"]]
        assert found["batches_per_s"] > 0
        assert sum(each["batches"] for each in found["workers"]) > 0
        assert all(each["waits"].get("sleep", 0) > 0.5 for each in found["workers"])
        assert training.poll() is None
        listed_code, listed = _dlprof("top", "--seconds", "1")
        assert listed_code == 0
        assert training.pid in [each["pid"] for each in listed["trainings"]]
        # A worker leads to its training.
        worker = str(found["workers"][0]["pid"])
        assert _dlprof("attach", worker, "--seconds", "1")[1]["pid"] == training.pid


@pytest.mark.slow
def test_a_training_without_workers_is_seen_as_far_as_that_goes(script: str) -> None:
    with _running(sys.executable, script, "0", ENDLESS) as training:
        code, found = _dlprof("attach", str(training.pid), "--seconds", "2")
    assert code == 0
    assert found["config"]["num_workers"] == 0
    assert found["wait_fraction"] is None
    assert "from outside" in found["unavailable"]["wait_fraction"]
    assert found["findings"] == []  # it sleeps, as a step may that waits for its device
    assert "can't be seen from outside" in found["notes"][0]
    assert found["confidence"] == "low"


@pytest.mark.slow
def test_a_training_that_ends_is_reported_as_ended(script: str) -> None:
    with _running(sys.executable, script, "2", "400") as training:
        code, found = _dlprof("attach", str(training.pid), "--seconds", "60")
    assert code == 6
    assert "ended" in found["error"]["message"]
    assert "dlprof run" in found["error"]["hint"]


@pytest.mark.slow
def test_what_loads_no_data_is_refused() -> None:
    with _running(sys.executable, "-c", IDLE) as idle:
        code, found = _dlprof("attach", str(idle.pid), "--seconds", "0.5")
        assert code == 6
        assert "has loaded no torch" in found["error"]["message"]
    with _running("sh", "-c", "echo begun; read line") as shell:
        code, found = _dlprof("attach", str(shell.pid))
        assert code == 2
        assert "runs no Python" in found["error"]["message"]
    code, found = _dlprof("attach", str(shell.pid))
    assert code == 2
    assert "There is no process" in found["error"]["message"]


def test_a_zombie_is_named_as_one() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        code, found = _dlprof("attach", str(pid))
    finally:
        os.waitpid(pid, 0)
    assert code == 2
    assert "has ended" in found["error"]["message"]


def test_a_stopped_training_is_named_as_one() -> None:
    with _running(sys.executable, "-c", IDLE) as idle:
        os.kill(idle.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, idle.pid, os.WSTOPPED | os.WNOWAIT)
        code, found = _dlprof("attach", str(idle.pid))
    assert code == 2
    assert "is stopped" in found["error"]["message"]
    assert found["error"]["hint"].endswith(f"kill -CONT {idle.pid}")


@pytest.mark.parametrize(
    "words",
    [
        ("-5",),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (("x",), ("0",))),
        ("1", "--seconds", "0"),
    ],
)
def test_what_is_no_process_or_no_time_is_refused(words: tuple[str, ...]) -> None:
    code, found = _dlprof("attach", *words)
    assert code == 2
    assert found["error"]["kind"] == "usage"


@pytest.mark.root
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_a_process_of_another_user_is_refused_with_the_way_out() -> None:
    with _running(sys.executable, "-c", IDLE) as idle:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # as nobody, who may not even read this interpreter's files
            try:
                os.setgroups([])
                os.setgid(OTHER)
                os.setuid(OTHER)
                training_of(idle.pid)
                os.write(writer, b"looked at it")
            except UsageError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as said:
            text = said.read()
        os.waitpid(child, 0)
    assert "belongs to" in text
    assert "sudo -u" in text


@contextlib.contextmanager
def _training_of_another() -> Iterator[int]:
    """The id of a process of nobody's with a child that is named as torch names its workers."""
    main = os.fork()
    if main == 0:
        try:
            os.setsid()
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)  # PR_SET_NAME
            signal.pause()
        finally:
            os._exit(0)
    try:
        yield main
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(main, signal.SIGKILL)
        os.waitpid(main, 0)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_of_another_users_training_root_is_shown_whose_it_is() -> None:
    with _training_of_another() as pid:
        code, found = _dlprof("attach", str(pid), "--seconds", "1")
        assert (code, found["pid"]) == (0, pid)
        assert found["user"] == name_of_user(OTHER)
        assert found["config"]["num_workers"] == 1
        code, listed = _dlprof("top", "--seconds", "1")
        users = {each["pid"]: each["user"] for each in listed["trainings"]}
        assert (code, users[pid]) == (0, name_of_user(OTHER))
