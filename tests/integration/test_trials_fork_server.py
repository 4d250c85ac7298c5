"""The fork server dies: the trial that ran is tried again, from a new one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dlprof.records import Config, Trial
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.runtime import Inbox, ModuleProcess
from dlprof.trial.state import TrialLimits

TARGETS = Path(__file__).parent / "faulty_targets.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork server needs Linux")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialRunner]:
    request = BuildRequest(target=parse_target(f"{TARGETS}:plain"), arguments={})
    made = TrialRunner(request, directory=tmp_path_factory.mktemp("bench"))
    try:
        made.build(TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
        yield made
    finally:
        made.close()


def run(bench: TrialRunner, number: int) -> Trial:
    request = TrialRequest(config=Config(num_workers=1).canonical(), trial_s=0.3)
    return bench.explain(request, trial_id=f"t{number:04d}", repetition=0)[0]


def has_trial(server: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "dlprof.trial.fork_server" in server.cmdline() and bool(server.children())
    return False


def kill_when_a_trial_runs(times: int) -> threading.Thread:
    """Kill as many fork servers as said, each as soon as it has a trial running."""

    def kill() -> None:
        deadline, left = time.monotonic() + 60.0, times
        while left and time.monotonic() < deadline:
            for server in filter(has_trial, psutil.Process().children()):
                server.kill()
                server.wait()
                left -= 1
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_trial_is_tried_again_from_a_new_fork_server(bench: TrialRunner) -> None:
    bench.probe(TrialRequest(config=Config(), probe=True))
    killer = kill_when_a_trial_runs(1)
    trials = [run(bench, 1), run(bench, 2)]
    killer.join()
    assert [trial.outcome for trial in trials] == ["completed", "completed"]
    assert [trial.id for trial in trials] == ["t0001", "t0002"]


@pytest.mark.slow
def test_a_second_death_costs_that_trial_only(bench: TrialRunner) -> None:
    killer = kill_when_a_trial_runs(2)
    failed = run(bench, 1)
    killer.join()
    assert failed.outcome == "crashed"
    assert failed.failure is not None
    assert failed.failure.kind == "start_failed"
    assert run(bench, 2).outcome == "completed"


@pytest.mark.slow
def test_the_probe_is_tried_again_too(bench: TrialRunner) -> None:
    (server,) = (
        child
        for child in psutil.Process().children()
        if "dlprof.trial.fork_server" in child.cmdline()
    )
    server.kill()
    assert bench.probe(TrialRequest(config=Config(), probe=True))["samples_per_batch"] == 32


@pytest.mark.parametrize("above", [0, 1100])
def test_a_trial_whose_descriptors_find_no_room_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    """The kernel drops what a process may not open, as where the target keeps too many files.

    Who calls dlprof may have many open, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("so many files may not be open here")
    plain = socket.socketpair

    def socketpair() -> list[socket.socket]:
        ends = [each.detach() for each in plain()]
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in ends]
        for each in ends:
            os.close(each)
        return [socket.socket(fileno=each) for each in moved]

    monkeypatch.setattr(socket, "socketpair", socketpair)
    command = [sys.executable, "-m", "dlprof.trial.fork_server", str(tmp_path)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        server = ModuleProcess(command, what="it", inbox=Inbox(), source="it", over_socket=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        server.order("trial", request=dataclasses.asdict(TrialRequest(config=Config())))
        answer = server.answer(60.0)
    finally:
        server.end(5.0)
    assert answer is not None
    assert answer.message is not None
    assert (answer.message["event"], answer.message["errno"]) == ("not_started", errno.EMFILE)


@pytest.mark.slow
def test_what_a_target_makes_in_a_trial_is_finalized(tmp_path: Path) -> None:
    made = TrialRunner(
        BuildRequest(target=parse_target(f"{TARGETS}:keeps_files")), directory=tmp_path
    )
    try:
        made.build(TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
        request = TrialRequest(config=Config(), trial_s=0.1)
        trial, _ = made.explain(request, trial_id="t0001", repetition=0)
        assert trial.outcome == "completed"
    finally:
        made.close()
    assert not list(Path(tempfile.gettempdir()).glob("keeps-files-*"))
