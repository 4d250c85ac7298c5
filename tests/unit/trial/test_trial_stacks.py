"""Asking real processes where they stand."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlprof.trial.runtime import TrialLog
from dlprof.trial.stacks import collect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_STANDS = (
    "import faulthandler, signal, time\n"
    "faulthandler.register(signal.SIGUSR1)\n"
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


def _started(log: object) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, "-c", _STANDS],
        stdout=subprocess.PIPE,
        stderr=log,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process
