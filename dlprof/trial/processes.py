"""Processes of a trial: tied to who started them, asked where they stand, ended in whole groups."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dlprof.trial.temporary import mark_processes

_OWN: Any = getattr(signal, "SIGRTMAX", None)
STACKS_SIGNAL: Any = getattr(signal, "SIGUSR1", None) if _OWN is None else _OWN - 3
"""Asks a process of a trial to write down the stacks of its threads; ``None`` on Windows. A
real-time signal where there are some: trainings have handlers for SIGUSR1, which batch systems send
before they end a job, and to ask a trial of such a one would put the job into the queue again."""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel end this process when its parent dies. Linux only; elsewhere nothing.

    Of a known parent that has died already this process ends now. On Windows the parent is the
    launcher of a virtual environment, and not who has started that.
    """
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, linux/prctl.h
    if sys.platform != "win32" and parent is not None and os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def dying_with_parent() -> Iterator[None]:
    """Be ended as by ``die_with_parent`` within the block, and clear up by oneself after it.

    Where no kernel does it, a thread looks each second, and ends all of this process's group.
    """
    die_with_parent()
    parent, over = os.getppid(), threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            if os.getppid() != parent:
                os.killpg(0, signal.SIGKILL)

    if sys.platform not in ("linux", "win32"):
        threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _prctl(1, 0)


def tie_forked() -> None:
    """Have the kernel end what this thread forks from now on when this process dies. Linux only.

    Only what this thread forks, since the kernel takes the end of the thread that forked for the
    parent's. What is forked from those in their turn, and other programs, are left alone.
    """
    if sys.platform != "linux":
        return
    parent, thread = os.getpid(), threading.get_ident()

    def tie() -> None:
        if os.getppid() == parent and threading.get_ident() == thread:
            die_with_parent(parent)

    os.register_at_fork(after_in_child=tie)


def leave_forkserver() -> None:
    """In a forked process: have multiprocessing start a fork server of its own when it needs one.

    That of the parent runs where a target started workers while it was built, as they are by
    default from Python 3.14 on. Before each use it is waited for, which only its parent can.
    """
    # It has no public name, and only who has used one has the module.
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if getattr(server, "_forkserver_pid", None) is not None:
        with contextlib.suppress(OSError):  # by which that of the parent learns who still needs it
            os.close(server._forkserver_alive_fd)  # noqa: SLF001
        server._forkserver_pid = server._forkserver_alive_fd = None  # noqa: SLF001


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can be reaped."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def guard_worker() -> None:
    """Tie this worker's life to its parent's, and have it say where it stands when it is asked.

    Its parent is who started it: the loader's process, or multiprocessing's fork server. Where the
    loader's has died while this one was importing torch, nothing would ever end it.
    """
    die_with_parent()
    loads = multiprocessing.parent_process()
    if loads is not None and not loads.is_alive():
        os._exit(1)
    mark_processes()
    answer_with_stacks()


def answer_with_stacks() -> None:
    """Have this process, and those forked from it, write their stacks when they are asked."""
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)  # stderr


def group_exists(group: int) -> bool:
    """Whether any process of the group is left (zombies count until they are reaped)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


STOPPED_S = 3.0
"""Seconds that a process may be stopped: what stops and resumes all of a job takes less."""


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, so that it does nothing until another comes."""
    import psutil  # asked only of what hangs

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def end_group(
    group: int,
    *,
    linger_s: float,
    grace_s: float,
    reap: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """End every process of a group: wait, then ask, then force.

    Only then are multiprocessing's trackers forced, which ask for no end: once the others of the
    group are gone they remove from /dev/shm what these have left, and end by themselves.

    They have ``linger_s`` to end before they are asked, and ``grace_s`` more before they are
    forced. ``reap`` is called at each look, to collect children that have ended.
    """
    if not hasattr(os, "killpg"):  # Windows: there are no groups
        import psutil  # where it is needed, there is nothing else

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(group)
            for member in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
        return
    for step, patience_s in (
        (reap, linger_s),
        (functools.partial(_signal_group, group, signal.SIGTERM), grace_s),
        (functools.partial(_force_but_trackers, group), grace_s / 4),
        (functools.partial(_signal_group, group, signal.SIGKILL), grace_s),
    ):
        step()
        deadline = clock() + patience_s
        reap()
        while group_exists(group):
            if clock() >= deadline:
                break
            sleep(0.002)
            reap()
        else:
            return


def _signal_group(group: int, number: int) -> None:
    for each in (number, signal.SIGCONT):  # one that is stopped hears of nothing
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, each)


def _force_but_trackers(group: int) -> None:
    """End by force what isn't one of multiprocessing's trackers, nor of joblib's, in a group."""
    import psutil  # of the few groups that have to be forced

    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(pid) != group:
                continue
            words = psutil.Process(pid).cmdline()
            # One that is just becoming another program has none, and may be a tracker.
            if words and not any("resource_tracker import main" in word for word in words):
                os.kill(pid, signal.SIGKILL)
