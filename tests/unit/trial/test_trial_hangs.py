"""What a trial without progress is called, from where its processes stand."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlprof.trial.hangs import (
    Frame,
    Standstill,
    all_wait,
    find_hang,
    hang_of,
    parse_stacks,
    without_room,
)
from dlprof.trial.runtime import TrialLog, open_log
from dlprof.trial.state import TrialState

PYTHON = "/usr/lib/python3.11"
DROPPED = f"""Traceback (most recent call last):
  File "{PYTHON}/multiprocessing/queues.py", line 244, in _feed
    obj = _ForkingPickler.dumps(obj)
TypeError: cannot pickle 'generator' object
"""
LOOP = """  File "/site-packages/torch/utils/data/_utils/worker.py", line 283 in _worker_loop
  File "{python}/multiprocessing/process.py", line 108 in run
"""
IDLE_FEEDER = f"""Thread 0x01 (most recent call first):
  File "{PYTHON}/threading.py", line 327 in wait
  File "{PYTHON}/multiprocessing/queues.py", line 231 in _feed

"""
BUSY_FEEDER = f"""Thread 0x01 (most recent call first):
  File "{PYTHON}/multiprocessing/reduction.py", line 51 in dumps
  File "{PYTHON}/multiprocessing/queues.py", line 244 in _feed

"""
WAITING = f"""Current thread 0x02 (most recent call first):
  File "{PYTHON}/selectors.py", line 415 in select
  File "{PYTHON}/multiprocessing/queues.py", line 113 in get
{LOOP}"""
LOADING = f"""Current thread 0x02 (most recent call first):
  File "/home/user/data.py", line 7 in __getitem__
  File "/site-packages/torch/utils/data/_utils/fetch.py", line 54 in fetch
{LOOP}"""
MAIN = f"""Current thread 0x02 (most recent call first):
  File "{PYTHON}/multiprocessing/queues.py", line 113 in get
  File "/site-packages/torch/utils/data/dataloader.py", line 1275 in _try_get_data
"""
STILL = Standstill(waited_s=20.0, log="", stacks={}, idle=True)


def stuck(*texts: str, **details: Any) -> Standstill:
    stacks = {number: parse_stacks(text) for number, text in enumerate(texts)}
    return dataclasses.replace(STILL, stacks=stacks, **details)


SAMPLER = """Current thread 0x02 (most recent call first):
  File "/home/user/data.py", line 9 in __iter__
  File "/site-packages/torch/utils/data/sampler.py", line 345 in __iter__
  File "/site-packages/torch/utils/data/dataloader.py", line 622 in _next_index
  File "/site-packages/dlprof/trial/measure.py", line 190 in run
"""
PREPARING = """Current thread 0x02 (most recent call first):
  File "/home/user/data.py", line 9 in prepare
  File "/site-packages/torch/utils/data/_utils/worker.py", line 250 in _worker_loop
"""
STEP = """Current thread 0x02 (most recent call first):
  File "/home/user/data.py", line 9 in step
  File "/site-packages/dlprof/trial/measure.py", line 30 in consume
  File "/site-packages/dlprof/trial/measure.py", line 190 in run
"""
OWN_LOADER = """Current thread 0x02 (most recent call first):
  File "/site-packages/torch/utils/data/dataloader.py", line 1275 in _try_get_data
  File "/home/user/data.py", line 9 in __iter__
  File "/site-packages/dlprof/trial/measure.py", line 190 in run
"""
OWN_THREAD = """Thread 0x03 (most recent call first):
  File "/home/user/data.py", line 9 in heartbeat
"""


@pytest.mark.parametrize(
    ("text", "there"),
    [
        *((LOADING, True), (SAMPLER, True), (PREPARING, True), (STEP, True)),
        *((WAITING, False), (MAIN, False), (OWN_LOADER, False), (OWN_THREAD, False)),
    ],
)
def test_where_the_users_code_stands(text: str, *, there: bool) -> None:
    """A line of it that torch's loading, or the loop, has called and waits for."""
    message = hang_of(stuck(text)).message

    assert ("/home/user/data.py" in message) is there


@pytest.mark.parametrize(
    ("texts", "workers", "wait"),
    [
        ((MAIN, IDLE_FEEDER + WAITING), 1, True),
        ((MAIN, WAITING, IDLE_FEEDER + WAITING), 2, True),
        ((MAIN, WAITING), 2, False),  # one does not answer, and may be loading
        ((MAIN, WAITING, LOADING), 2, False),
        ((MAIN, BUSY_FEEDER + WAITING), 1, False),
        ((MAIN,), 0, False),
        ((), 1, False),
    ],
)
def test_all_workers_wait_for_work(texts: tuple[str, ...], workers: int, *, wait: bool) -> None:
    assert all_wait(stuck(*texts).stacks, workers) is wait


def test_what_a_queue_of_the_users_own_dropped_is_no_batch() -> None:
    """While a worker stands in the user's code, the loader's own queue may be well."""
    failure = hang_of(stuck(MAIN, LOADING, log=DROPPED))

    assert failure.kind == "deadlock"
    assert "/home/user/data.py:7" in failure.message


@pytest.mark.parametrize(("text", "what"), [(LOADING, "that line"), (MAIN, "loading it")])
def test_a_hint_speaks_of_a_line_only_where_one_is_named(text: str, what: str) -> None:
    hint = hang_of(stuck(text, idle=False)).hint

    assert hint.endswith(f"otherwise {what} doesn't end.")


def test_a_dropped_batch_is_named_where_nobody_loads() -> None:
    assert hang_of(stuck(MAIN, log=DROPPED)).kind == "batch_not_picklable"


def test_workers_that_gave_no_answer_are_soon_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy machine, on which they start and answer late, has a trial wait for its limit."""
    answers: list[dict[int, list[list[Frame]]]] = [{}, {}, {1: parse_stacks(WAITING)}]
    monkeypatch.setattr("dlprof.trial.hangs.collect", lambda *_: answers.pop(0))
    state = TrialState(heard_s=0.0, began_s=0.0, deadline_s=1e3, workers=1)
    with open_log(tmp_path / "log") as file:
        file.write(DROPPED.encode())
        file.flush()
        log, now_s = TrialLog(file), 30.0  # as long as it took to start
        while (failure := find_hang(state, log, now_s, stall_s=100.0)) is None:
            now_s += 0.25

    assert failure.kind == "batch_not_picklable"
    assert now_s < 30.0 + 2 * 10.0 + 1.0


@pytest.mark.parametrize(
    ("stack", "free", "kind"),
    [(WAITING, 0, "file_descriptors"), (WAITING, 10, None), (LOADING, 0, None)],
)
def test_a_hand_over_for_which_there_is_no_descriptor_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str, free: int, kind: str | None
) -> None:
    """Where nobody is at work who may close a file."""
    full = [] if free else [(64, 64)]
    monkeypatch.setattr("dlprof.trial.hangs.collect", lambda *_: {1: parse_stacks(stack)})
    monkeypatch.setattr("dlprof.trial.hangs.without_room", lambda _: full)
    state = TrialState(heard_s=0.0, began_s=0.0, deadline_s=1e3, workers=1)
    with open_log(tmp_path / "log") as file:
        file.write(b"OSError: [Errno 24] Zu viele offene Dateien\n")
        file.flush()
        failure = find_hang(state, TrialLog(file), 1.5, stall_s=100.0)

    assert (None if failure is None else failure.kind) == kind


def test_a_process_without_descriptors_is_named() -> None:
    """It may hang in ``accept`` or ``recv_handle`` without a word."""
    failure = hang_of(stuck(MAIN, full=[(1024, 1024)]))

    assert failure.kind == "file_descriptors"
    assert "1,024" in failure.message
    assert "ulimit -n" in failure.hint


def test_a_process_that_could_not_accept_is_named() -> None:
    log = "OSError: [Errno 24] Zu viele offene Dateien"
    failure = hang_of(stuck(MAIN, log=log, idle=False))

    assert failure.kind == "file_descriptors"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped by signals")
@pytest.mark.parametrize("alone", [False, True])
def test_a_stopped_process_is_named_soon(tmp_path: Path, *, alone: bool) -> None:
    state = TrialState(heard_s=0.0, began_s=0.0, deadline_s=60.0)
    with (
        subprocess.Popen(["sleep", "60"]) as process,
        open_log(tmp_path / "log") as file,
    ):
        state.pid = process.pid
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        found = [
            find_hang(state, TrialLog(file), now_s, stall_s=20.0, alone=alone)
            for now_s in (2.0, 5.0)
        ]
        process.kill()
    assert found[0] is None
    assert found[1] is not None
    assert "is stopped" in found[1].message


def test_a_stopped_process_explains_a_hang_better() -> None:
    full = [(64, 64)]

    assert hang_of(stuck(MAIN, stopped=[7], full=full)).kind == "deadlock"


def test_nothing_known_is_a_hang_by_the_clock() -> None:
    busy, idle = hang_of(stuck(MAIN, idle=False)), hang_of(stuck(MAIN))
    assert (busy.kind, idle.kind) == ("timeout", "deadlock")
    for each in (busy, idle):  # twice the 20 s that it was waited for would change nothing
        assert "--timeout (a sixth of it may pass without a batch)" in each.hint


@pytest.mark.skipif(sys.platform != "linux", reason="only there limits of others are known")
@pytest.mark.parametrize("limit", [2, 3, resource.RLIM_INFINITY])
def test_room_for_descriptors_is_counted(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    count = psutil.Process().num_fds()
    limit += count if limit >= 0 else 0
    monkeypatch.setattr(psutil.Process, "rlimit", lambda *_: (limit, 4096))

    found = without_room([os.getpid(), 2**22 + 1])  # there is no such process
    assert found == ([(count, limit)] if limit == count + 2 else [])


@pytest.mark.skipif(sys.platform != "linux", reason="only there limits of others are known")
def test_this_processs_own_limit() -> None:
    assert not without_room([os.getpid()])
    assert psutil.Process().rlimit(psutil.RLIMIT_NOFILE) == resource.getrlimit(
        resource.RLIMIT_NOFILE
    )
