"""A sweep that is asked to end, loses its terminal, its disk or its sense of time."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fault_bench import can_mount
from waiting import has_trials, until

from dlprof.store import read_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only")

_ROOT = os.geteuid() == 0
_TARGET = "synthetic:tensors=1,shape=4,length=100000"
_FLAGS = (
    *("--num-workers", "0,1", "--prefetch-factor", "2", "--persistent-workers", "off"),
    *("--trial-time", "0.3s", "--repeats", "3", "--budget", "10m"),
)
_PATIENCE_S = 300.0


def command(run_file: Path | str, *arguments: str) -> list[str]:
    words = (*_FLAGS, "-o", str(run_file), *arguments)
    return [sys.executable, "-m", "dlprof", "sweep", _TARGET, *words]


def started(run_file: Path, **details: Any) -> subprocess.Popen[bytes]:
    """A sweep in the midst of its trials."""
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command(run_file),
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **details},
    )
    wait_for_a_trial(run_file)
    return process


def wait_for_a_trial(run_file: Path) -> None:
    assert until(lambda: has_trials(run_file), _PATIENCE_S)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, errors.decode()


def reason(run_file: Path) -> str | None:
    end = read_run(run_file).end
    return None if end is None else end.reason


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
@pytest.mark.usefixtures("clean")
def test_asked_to_end(tmp_path: Path, number: signal.Signals) -> None:
    run_file = tmp_path / "run.dlprof.jsonl"
    process = started(run_file)
    process.send_signal(number)
    screen, errors = process.communicate(timeout=_PATIENCE_S)

    assert process.returncode == 130, errors
    assert b"--resume" in screen
    assert b"Traceback" not in errors
    assert reason(run_file) == "interrupted"


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_asked_twice(tmp_path: Path) -> None:
    """It ends at once, and the next sweep clears up what it had no time for."""
    run_file = tmp_path / "run.dlprof.jsonl"
    process = started(run_file)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)

    assert code == 130, errors
    assert "Traceback" not in errors
    kept = read_run(run_file).trials
    resumed = subprocess.run(command(run_file, "--resume"), capture_output=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert read_run(run_file).trials[: len(kept)] == kept


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_hang_up(tmp_path: Path) -> None:
    run_file = tmp_path / "run.dlprof.jsonl"
    process = started(run_file)
    process.send_signal(signal.SIGHUP)
    code, errors = ended(process)

    assert code == 0, errors
    assert reason(run_file) in {"decided", "complete"}


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    """A real one: its closing sends SIGHUP, and what is written to it fails from then on."""
    run_file = tmp_path / "run.dlprof.jsonl"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command(run_file))  # noqa: S606 - of the terminal
    reader = threading.Thread(target=_read_all, args=[terminal], daemon=True)
    reader.start()
    wait_for_a_trial(run_file)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)

    assert reason(run_file) in {"decided", "complete"}
    assert os.waitstatus_to_exitcode(status) in {0, 2}  # 2: the result could not be shown


def _read_all(descriptor: int) -> None:
    """Keep the terminal from filling up."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 4096):
            pass


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_reader_of_both_outputs_that_goes_away(tmp_path: Path) -> None:
    run_file = tmp_path / "run.dlprof.jsonl"
    process = started(run_file)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()

    assert process.wait(_PATIENCE_S) == 0
    assert reason(run_file) in {"decided", "complete"}


def _on_a_disk_of(size: int, place: Path, words: Sequence[str]) -> list[str]:
    """The command on a disk of its own, whose files are copied to ``place`` at the end."""
    script = (
        f'mount -t tmpfs -o size={size} tmpfs /mnt && cd /mnt && "$@"; code=$?; '
        f'cp /mnt/* "{place}"; exit $code'
    )
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *words]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(not (_ROOT and can_mount()), reason="needs root and a mount namespace")
@pytest.mark.usefixtures("clean")
def test_a_full_disk_under_the_run_file(tmp_path: Path) -> None:
    """What was written before is whole, and can be gone on with elsewhere."""
    words = command("/mnt/run.dlprof.jsonl")
    done = subprocess.run(
        _on_a_disk_of(8 << 10, tmp_path, words),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )

    assert done.returncode in {0, 2}, done.stderr
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    kept = read_run(tmp_path / "run.dlprof.jsonl")
    resumed = subprocess.run(
        [*command("run.dlprof.jsonl")[:4], _TARGET, "--resume", "-o", "run.dlprof.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    whole = read_run(tmp_path / "run.dlprof.jsonl")
    assert whole.trials[: len(kept.trials)] == kept.trials
    assert whole.end is not None


_JUMPS = """
import itertools, time

_true, _day = time.time, itertools.cycle((-86400.0, 0.0, 86400.0))
time.time = lambda: _true() + next(_day)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """By a day, forwards and back, at each look, in every process: durations don't see it."""
    (tmp_path / "sitecustomize.py").write_text(_JUMPS)
    run_file = tmp_path / "run.dlprof.jsonl"
    done = subprocess.run(
        command(run_file),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    run = read_run(run_file)
    assert {trial.outcome for trial in run.trials} == {"completed"}
    assert all(0 < trial.wall_s < _PATIENCE_S for trial in run.trials)
    assert run.end is not None
    assert 0 < run.end.cost_s.total < _PATIENCE_S
