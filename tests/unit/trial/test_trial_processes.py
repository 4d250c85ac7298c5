"""Ending process groups, for real."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from waiting import has_ended, until

from dlprof.trial import processes, runtime
from dlprof.trial.processes import end_group, group_exists
from dlprof.trial.runtime import Inbox, ModuleProcess

posix = pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here")

STUBBORN = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.fork()\n"  # now, as either of them may be the first to say that it is ready
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
POLITE = "print('ready', flush=True); import time; time.sleep(60)"


@posix
def test_a_fork_has_multiprocessing_start_another_fork_server() -> None:
    """As a trial where the target started workers while it was built."""
    method = multiprocessing.get_context("forkserver")

    def exit_code() -> int | None:
        process = method.Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        return process.exitcode

    assert exit_code() == 0
    if not (pid := os.fork()):
        with contextlib.suppress(BaseException):
            processes.leave_forkserver()
            os._exit(exit_code() or 0)
        os._exit(70)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert exit_code() == 0  # by its own, as before


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
    assert until(lambda: not group_exists(process.pid), 20.0)  # whoever adopts an orphan reaps it


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere shared memory has no folder")
def test_what_a_forced_group_has_in_shared_memory_is_removed(tmp_path: Path) -> None:
    """By multiprocessing's tracker, which outlives the others of the group."""
    printed = tmp_path / "name"
    making = (
        "from multiprocessing import resource_tracker\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "held = SharedMemory(create=True, size=64)\n"
        "pathlib.Path({path!r}).write_text(held.name)\n"
        # Until then it is a fork of this one by its command line as well.
        "command = pathlib.Path('/proc', str(resource_tracker._resource_tracker._pid), 'cmdline')\n"
        "while b'import main;main' not in command.read_bytes():\n"
        "    time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with start(making.format(path=str(printed))) as process:
        path = Path("/dev/shm", printed.read_text())
        assert path.is_file()
        # It is given no time to end when it is asked, and all that the tracker needs.
        ticks = itertools.chain([0.0] * 3, itertools.repeat(100.0, 5000), itertools.repeat(1e9))
        end_group(
            process.pid,
            linger_s=0.0,
            grace_s=4.0,
            reap=process.poll,
            clock=lambda: next(ticks) if path.exists() else 1e9,
        )
    assert not path.exists()


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports a parent's death")
def test_what_a_trial_forks_dies_with_it() -> None:
    """A worker in a long __getitem__ looks for its parent only after it."""
    with start(TIED) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)

        assert until(lambda: not group_exists(process.pid), 20.0)


def test_a_process_that_is_gone_is_signalled_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's, of which nothing must be ended."""
    ended: list[int] = []
    monkeypatch.setattr(runtime, "end_group", lambda pid, **_details: ended.append(pid))
    process = ModuleProcess([sys.executable, "-c", ""], what="it", inbox=Inbox(), source="it")
    for _ in range(2):
        process.end(30.0)
        process.kill()

    assert ended == [process.pid]


def test_who_waits_for_an_answer_is_called_now_and_then() -> None:
    pulses: list[int] = []
    inbox = Inbox(lambda: pulses.append(1))
    code = "import time; time.sleep(60)"
    process = ModuleProcess([sys.executable, "-c", code], what="it", inbox=inbox, source="it")
    assert process.answer(0.5) is None
    process.end()
    assert len(pulses) >= 2


@pytest.mark.parametrize("lives", [True, False])
def test_a_worker_whose_loader_has_died_before_it_was_there_ends(
    monkeypatch: pytest.MonkeyPatch,
    lives: bool,
) -> None:
    ended: list[int] = []
    parent = types.SimpleNamespace(is_alive=lambda: lives)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: parent)
    monkeypatch.setattr(processes, "die_with_parent", lambda: None)
    monkeypatch.setattr(processes, "answer_with_stacks", lambda: None)
    monkeypatch.setattr("os._exit", ended.append)
    processes.guard_worker()

    assert ended == ([] if lives else [1])


@pytest.mark.parametrize(
    ("platform", "ends"), [("linux", True), ("darwin", True), ("win32", False)]
)
def test_a_process_without_its_parent_ends_but_on_windows(
    monkeypatch: pytest.MonkeyPatch, platform: str, *, ends: bool
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(processes, "_prctl", lambda *_: None)
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr(sys, "platform", platform)
    processes.die_with_parent(-1)
    assert ended == ([1] if ends else [])


TRIES_A_FORK = """
import os, sys, time, types

def hang(count):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

sys.modules["torch"] = types.SimpleNamespace(zeros=hang)
from dlprof.trial import fork_server
fork_server._computes_in_fork()
"""

BUILDS_FOR_EVER = """
import json, os, socket, sys, time, types

def hang(*_):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

sys.modules["dlprof.trial.child"] = types.SimpleNamespace(answer_build=hang)
from dlprof.targets.grammar import parse_target
from dlprof.trial.fork_server import ForkServer
from dlprof.trial.protocol import BuildRequest, line_of

asked = line_of({"request": BuildRequest(target=parse_target("a:b"))})
ours, theirs = socket.socketpair()
if len(sys.argv) < 2 and os.fork():
    time.sleep(60)
if len(sys.argv) > 1:
    ours.close()  # as it is when the supervisor has died before
ForkServer(theirs)._build(**json.loads(asked))
"""


HANGS_WITHOUT_THE_KERNELS_HELP = """
import os, sys, time
from dlprof.trial import processes

if os.fork():
    time.sleep(60)
os.setsid()
sys.platform = "darwin"
with processes.dying_with_parent():
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel ends it")
@pytest.mark.parametrize("code", [TRIES_A_FORK, BUILDS_FOR_EVER, HANGS_WITHOUT_THE_KERNELS_HELP])
def test_what_hangs_in_the_users_code_does_not_outlive_its_parent(code: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None:
            raise AssertionError
        fork = int(process.stdout.readline())
        assert not has_ended(fork)
        process.kill()
    assert until(lambda: has_ended(fork), 20.0)


@pytest.mark.skipif(sys.platform != "linux", reason="a fork server needs Linux")
def test_for_a_supervisor_that_is_gone_nothing_is_built() -> None:
    command = [sys.executable, "-c", BUILDS_FOR_EVER, "alone"]
    assert subprocess.check_output(command, text=True) == ""


ASKS_ITS_TIE = """
import ctypes, os
from dlprof.trial.processes import dying_with_parent

def tie():
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
    return number.value

with dying_with_parent():
    within = tie()
print(within, tie())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel ends it")
def test_who_has_built_a_target_clears_up_after_its_parent() -> None:
    said = subprocess.check_output([sys.executable, "-c", ASKS_ITS_TIE], text=True)
    assert said.split() == [str(int(signal.SIGKILL)), "0"]
