"""Processes of the bench that somebody else ends or stops in the middle of a trial."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fault_bench import MARGIN_S, STALL_S, FaultBench, config
from waiting import until

from dlprof.records import Config, Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only"),
]

_INTO_IT_S = 0.5  # after the trial's process is there: in the middle of its window
Pick = Callable[[], psutil.Process | None]


def module(name: str) -> psutil.Process | None:
    """The bench's own process that runs a module of dlprof's; of the bench that began last."""
    for process in reversed(psutil.Process().children()):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", f"dlprof.trial.{name}"]:
                return process
    return None


def observer() -> psutil.Process | None:
    return module("observer")


def fork_server() -> psutil.Process | None:
    return module("fork_server")


def child() -> psutil.Process | None:
    above = fork_server()
    return next(iter(above.children()), None) if above is not None else None


def worker() -> psutil.Process | None:
    above = child()
    return next(iter(above.children()), None) if above is not None else None


class Sender(threading.Thread):
    """Sends a signal to a process once it and a worker of the trial are there."""

    def __init__(self, pick: Pick, number: signal.Signals) -> None:
        super().__init__()
        self.pick = pick
        self.number = number
        self.sent = False

    def run(self) -> None:
        deadline = time.monotonic() + 20.0
        while worker() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(_INTO_IT_S)
        process = self.pick()
        while process is None and time.monotonic() < deadline:  # between two epochs, say
            time.sleep(0.01)
            process = self.pick()
        if process is not None:
            os.kill(process.pid, self.number)
            self.sent = True


def disturbed(
    bench: FaultBench, pick: Pick, number: signal.Signals, tried: Config | None = None
) -> Trial:
    sender = Sender(pick, number)
    sender.start()
    trial = bench.run("none", tried or config(1, "fork"), trial_s=2.0)
    sender.join()
    assert sender.sent
    return trial


@pytest.mark.usefixtures("clean")
def test_a_worker_is_killed(bench: FaultBench) -> None:
    trial = disturbed(bench, worker, signal.SIGKILL)

    assert trial.failure is not None
    assert trial.failure.kind == "worker_signal"
    bench.check_healthy()


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.usefixtures("clean")
def test_the_trials_process_is_killed(bench: FaultBench, start: str, *, persistent: bool) -> None:
    """Its workers notice the death of their parent, however they were started."""
    trial = disturbed(bench, child, signal.SIGKILL, config(1, start, persistent=persistent))

    assert trial.failure is not None
    assert trial.failure.kind == "worker_signal"
    assert "SIGKILL" in trial.failure.message
    bench.check_healthy()


@pytest.mark.usefixtures("clean")
def test_the_trials_process_is_stopped() -> None:
    with contextlib.closing(FaultBench("loader", stall_s=STALL_S)) as bench:
        trial = disturbed(bench, child, signal.SIGSTOP)

        assert trial.failure is not None
        assert trial.failure.kind == "deadlock"
        assert "stopped" in trial.failure.message
        assert trial.wall_s < 2.0 + STALL_S + MARGIN_S
        bench.check_healthy()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.usefixtures("clean")
def test_the_observer_is_lost(bench: FaultBench, number: signal.Signals) -> None:
    """Only what it would have shown is missing, and the next trial has one again."""
    trial = disturbed(bench, observer, number)
    after = bench.run("none", config(1, "fork"))

    assert trial.outcome == "completed", trial.failure
    assert trial.usage.own_cpu_cores is None
    assert trial.unavailable["usage.own_cpu_cores"]
    assert after.usage.own_cpu_cores is not None
    bench.check_healthy()


@pytest.mark.usefixtures("clean")
def test_the_fork_server_is_killed(bench: FaultBench) -> None:
    """The trial is run again from a new one."""
    trial = disturbed(bench, fork_server, signal.SIGKILL)

    assert trial.outcome == "completed", trial.failure
    bench.check_healthy()


@pytest.mark.usefixtures("clean")
def test_the_fork_server_is_stopped(bench: FaultBench) -> None:
    """The trial's result counts, and the next one is started from a new fork server."""
    trial = disturbed(bench, fork_server, signal.SIGSTOP)

    assert trial.outcome == "completed", trial.failure
    assert trial.wall_s < 2.0 + MARGIN_S
    bench.check_healthy()


@pytest.fixture
def other_bench() -> Iterator[subprocess.Popen[str]]:
    """A bench in a process of its own, in the midst of a trial; it prints what became of it."""
    trial = ["none", dataclasses.asdict(config(1, "fork")), 3.0]
    order = {"attr": "loader", "trials": [trial], "bench": {"stall_s": STALL_S}}
    process = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "run_in_place.py", json.dumps(order)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert until(lambda: has_worker(process.pid))
        time.sleep(_INTO_IT_S)
        yield process
        process.kill()


def has_worker(pid: int) -> bool:
    """Whether the bench of a process has a trial, and that a worker."""
    with contextlib.suppress(psutil.Error):
        for server in psutil.Process(pid).children():
            for trial in server.children():
                if trial.children():
                    return True
    return False


@pytest.mark.parametrize("whole", [False, True], ids=["ctrl-z", "batch system"])
@pytest.mark.usefixtures("clean")
def test_the_bench_itself_is_stopped(other_bench: subprocess.Popen[str], *, whole: bool) -> None:
    """Time does not count in which it is, alone or with all that it has started."""
    stopped = [psutil.Process(other_bench.pid)]
    if whole:
        stopped += stopped[0].children(recursive=True)
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):  # an epoch ended, and its workers with it
            process.suspend()
    time.sleep(STALL_S + 2.0)
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended as the others went on
            process.resume()
    answer, _ = other_bench.communicate(timeout=100.0)
    (trial,) = json.loads(answer)["trials"]

    assert trial["outcome"] == "completed", trial["failure"]
    assert trial["measured_s"] < STALL_S
    assert not any("was stopped" in warning for warning in trial["warnings"])
