"""A load beside a sweep: it is made, bounded, and gone whatever ends who started it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from programs import python
from waiting import has_ended, until

from dlprof.errors import FileError
from dlprof.store import read_run
from dlprof.trial.load import made_load

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")
_PATIENCE_S = 60.0  # a hang; not how long it takes


def _loads(parent: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(parent).children(recursive=True)
        return [each for each in children if "dlprof.trial.load" in each.cmdline()]
    return []


@linux
def test_a_load_keeps_cores_memory_and_storage_busy_and_ends(tmp_path: Path) -> None:
    asked, said = {"cores": 0.3, "memory": 2e7, "reads": 1e6}, list[str]()
    with made_load(asked, folder=tmp_path, limit_s=_PATIENCE_S, say=said.append):
        (load,) = _loads(os.getpid())
        assert os.getsid(load.pid) == load.pid
        before = sum(load.cpu_times()[:2])
        assert until(lambda: sum(load.cpu_times()[:2]) > before + 0.05)
        assert list(tmp_path.iterdir()) == []  # the file that is read has no name
    assert has_ended(load.pid)
    assert all(each.startswith("the load of --make-load was smaller") for each in said)


def test_a_load_that_is_not_reached_is_reported(tmp_path: Path) -> None:
    said = list[str]()
    with made_load({"memory": 1e15}, folder=tmp_path, limit_s=_PATIENCE_S, say=said.append):
        time.sleep(0.2)
    (line,) = said
    assert "memory reached 0% of what was asked for" in line


def test_without_a_load_nothing_is_started(tmp_path: Path) -> None:
    with made_load(None, folder=tmp_path, limit_s=1.0, say=print):
        assert _loads(os.getpid()) == []


def test_reads_that_find_no_place_are_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    with (
        pytest.raises(FileError, match="--make-load can't be made"),
        made_load({"reads": 1e6}, folder=nowhere, limit_s=_PATIENCE_S, say=print),
    ):
        pytest.fail("it began")
    assert _loads(os.getpid()) == []


@linux
def test_a_load_ends_by_itself_after_its_limit(tmp_path: Path) -> None:
    with made_load({"cores": 0.1}, folder=tmp_path, limit_s=0.3, say=lambda _text: None):
        for load in _loads(os.getpid()):  # none, where it has ended already
            assert until(functools.partial(has_ended, load.pid))


_HOLDS = """
import signal, time
from pathlib import Path
from dlprof.trial.load import made_load
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
with made_load({"cores": 0.2}, folder=Path("."), limit_s=600, say=print):
    print("on", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def _holder() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOLDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "on\n"
            yield holder
        finally:
            holder.kill()


@linux
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_load_ends_with_who_started_it(number: int) -> None:
    with _holder() as holder:
        (load,) = _loads(holder.pid)
        holder.send_signal(number)
        assert until(lambda: has_ended(load.pid))


@linux
def test_a_load_that_is_stopped_is_ended_all_the_same(tmp_path: Path) -> None:
    with made_load({"cores": 0.1}, folder=tmp_path, limit_s=600, say=lambda _text: None):
        (load,) = _loads(os.getpid())
        load.suspend()
    assert has_ended(load.pid)


@pytest.mark.slow
@linux
def test_a_sweep_beside_a_load_records_it(tmp_path: Path) -> None:
    command = ["sweep", "synthetic:wait_ms=1", "-o", "run.dlprof.jsonl"]
    command += ["--num-workers", "0,1", "--repeats", "1", "--trial-time", "300ms"]
    command += ["--budget", "2min", "--make-load", "cores=0.5"]
    done = python(tmp_path, "-m", "dlprof", *command, "--json")
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run.dlprof.jsonl")
    assert found.header.settings["make_load"] == {"cores": 0.5}
    answer = json.loads(done.stdout)["recommendation"]
    assert any("load of dlprof's own" in each["claim"] for each in answer["reasons"])
