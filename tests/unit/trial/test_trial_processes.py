"""Ending process groups, for real."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from dlprof.trial.processes import end_group, group_exists

posix = pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here")

STUBBORN = (
    "import os, signal, time\n"
    "os.fork()\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
POLITE = "print('ready', flush=True); import time; time.sleep(60)"


def start(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if process.stdout is None:
        raise AssertionError
    process.stdout.readline()
    return process


@posix
@pytest.mark.parametrize(("code", "status"), [(POLITE, -15), (STUBBORN, -9)])
def test_a_group_is_asked_and_then_forced(code: str, status: int) -> None:
    with start(code) as process:
        end_group(process.pid, linger_s=0.0, grace_s=0.2, reap=process.poll)

        assert process.wait(10) == status
    deadline = time.monotonic() + 10.0  # an orphan is reaped by whoever adopts it
    while group_exists(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not group_exists(process.pid)


@posix
def test_a_group_that_is_stopped_hears_of_its_end() -> None:
    """And so it can clear up after itself; not only by force."""
    with start(POLITE) as process:
        process.send_signal(signal.SIGSTOP)
        end_group(process.pid, linger_s=0.0, grace_s=30.0, reap=process.poll)

        assert process.wait(10) == -signal.SIGTERM


@posix
def test_a_group_that_ends_by_itself_is_let_be() -> None:
    with start("print('ready', flush=True)") as process:
        end_group(process.pid, linger_s=30.0, grace_s=0.0, reap=process.poll)

        assert process.returncode == 0


@posix
def test_a_group_that_is_gone_costs_nothing() -> None:
    ticks = itertools.count()
    with start("print('ready', flush=True)") as process:
        process.wait(10)
    end_group(
        process.pid,
        linger_s=5.0,
        grace_s=5.0,
        clock=lambda: float(next(ticks)),
        sleep=lambda _seconds: None,
    )

    assert next(ticks) <= 1


TIED = (
    "import os, sys, time\n"
    "from dlprof.trial.processes import tie_forked\n"
    "tie_forked()\n"
    "pid = os.fork()\n"
    "if pid == 0:\n"
    "    print('ready', flush=True)\n"
    "    time.sleep(600)\n"
    "os.waitpid(pid, 0)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's death")
def test_what_a_trial_forks_dies_with_it() -> None:
    """A worker in a long __getitem__ looks for its parent only after it."""
    with start(TIED) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)

        deadline = time.monotonic() + 10.0
        while group_exists(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not group_exists(process.pid)
