"""Asking real processes where they stand."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlprof.trial.hangs import collect
from dlprof.trial.processes import STACKS_SIGNAL
from dlprof.trial.runtime import TrialLog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_STANDS = (
    "import faulthandler, time\n"
    f"faulthandler.register({STACKS_SIGNAL:d})\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
_MANY = 8


def test_many_that_do_not_answer_cost_little_time(tmp_path: Path) -> None:
    """They are stopped; each alone is waited for, and all together not for long."""
    with (tmp_path / "log").open("w+b") as file:
        processes = [_started(file) for _ in range(_MANY)]
        try:
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            found = collect([process.pid for process in processes], TrialLog(file))
        finally:
            for process in processes:
                process.kill()
                process.communicate()

    assert 0 < len(found) < _MANY
    assert not any(found.values())


def test_all_that_answer_are_heard(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as file:
        process = _started(file)
        try:
            found = collect([process.pid], TrialLog(file))
        finally:
            process.kill()
            process.communicate()

    assert [stack[0].function for stack in found[process.pid]] == ["<module>"]


_PAUSES = (
    "import os, signal, time\n"
    f"asks = {STACKS_SIGNAL:d}\n"
    "signal.signal(asks, lambda *_: None)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [asks])\n"
    "print('ready', flush=True)\n"
    "while not signal.sigpending():\n"
    "    time.sleep(0.001)\n"
    "for name in ('f', 'g'):\n"
    "    time.sleep(0.1)\n"
    "    stack = f'Thread 0x1 (most recent call first):\\n  File \"a.py\", line 1 in {name}\\n'\n"
    "    os.write(2, stack.encode())\n"
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [asks])\n"
    "time.sleep(60)\n"
)
"""As one that is kept from its core in the midst of writing."""


def test_one_that_pauses_is_heard_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as file:
        process = _started(file, _PAUSES)
        try:
            found = collect([process.pid], TrialLog(file))
        finally:
            process.kill()
            process.communicate()

    assert [stack[0].function for stack in found[process.pid]] == ["f", "g"]


_REQUEUES = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: os.write(2, b'into the queue again'))\n"
    "from dlprof.trial.processes import answer_with_stacks\n"
    "answer_with_stacks()\n"
    "signal.signal(signal.SIGUSR1, lambda *_: os.write(2, b'into the queue again'))\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
"""As trainings do under Slurm, before or after dlprof has its own handler."""


def test_the_users_own_handler_of_sigusr1_is_not_called(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as file:
        process = _started(file, _REQUEUES)
        try:
            log = TrialLog(file)
            found, written = collect([process.pid], log), log.text()
        finally:
            process.kill()
            process.communicate()

    assert "queue" not in written
    assert [stack[0].function for stack in found[process.pid]] == ["<module>"]


def _started(log: Any, code: str = _STANDS) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=log,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process
