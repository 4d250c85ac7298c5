"""Processes of a trial: tied to who started them, asked where they stand, ended in whole groups.

And where they put temporary files, so that what they can't remove is found. The directory for these
stays the user's (``TMPDIR``, ``tempfile.gettempdir()``), because datasets look there for what a job
has put there. What torch and multiprocessing make for themselves goes elsewhere, or is known by its
name. What is left of it all when processes were ended by force, the supervisor removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import process, resource_tracker, synchronize, util
from pathlib import Path
from typing import Any

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


def keep_sockets_in(directory: str) -> None:
    """Have multiprocessing put its sockets into a directory that somebody else removes.

    It is inherited by all processes that multiprocessing starts from this one. Without this, each
    trial would have a directory of its own among the user's temporary files, and leave it there
    when it is ended by force. So it is where the path would be too long for a socket.
    """
    # A Unix socket's path on Linux, and elsewhere; its structure has one byte more, for the end.
    most = 107 if sys.platform == "linux" else 103
    if len(os.fsencode(f"{directory}/listener-12345678")) <= most:
        _inherited()["tempdir"] = directory


def _inherited() -> dict[str, str]:
    """What multiprocessing passes on to each process that it starts, and only so."""
    own: Any = process.current_process()
    config: dict[str, str] = own._config  # noqa: SLF001 - it has no public name
    return config


def leave_no_names() -> None:
    """Have torch try whether it could make files, once it has lost a worker, without names.

    It makes ten then, and raises that worker's death whenever it hears of it: in the midst of
    making or of removing one, which would stay, and no exception need report it. So does torchdata.
    """
    from dlprof.internals import TRYING_MODULES  # no started worker's business

    module: Any = tempfile
    named = module.NamedTemporaryFile

    @functools.wraps(named)
    def made(*args: Any, **options: Any) -> Any:
        caller = sys._getframe().f_back  # none where a thread begins with it
        by_torch = caller is not None and caller.f_globals.get("__name__") in TRYING_MODULES
        return tempfile.TemporaryFile() if by_torch else named(*args, **options)

    module.NamedTemporaryFile = made


class Parting:
    """What an ordinary program does when it ends, and one that is ended by ``os._exit`` does not.

    Objects that were made after this one and want to be finalized at the end, are: above all
    ``tempfile.TemporaryDirectory``, in which a dataset may keep gigabytes. Semaphores that workers
    which aren't forked know by their names are unlinked: their tracker may have been killed.
    Functions registered with ``atexit`` are not called, because there may be some that wait for
    what has ended already.
    """

    def __init__(self) -> None:
        self._before = frozenset(_finalizers())

    def take(self) -> None:
        """Finalize them, the youngest first; whatever goes wrong, the others are too."""
        for finalizer in reversed(_finalizers()):
            if finalizer not in self._before and finalizer.atexit:
                with contextlib.suppress(BaseException):
                    finalizer()
        _unlink_semaphores()


def _unlink_semaphores() -> None:
    named: Any = synchronize  # without public names for what is asked of it, as of the other two
    tracker: Any = getattr(resource_tracker, "_resource_tracker", None)
    for finalizer in list[Any](getattr(util, "_finalizer_registry", {}).values()):
        with contextlib.suppress(BaseException):
            if finalizer._callback == named.SemLock._cleanup:  # noqa: SLF001
                if tracker._fd is not None and tracker._check_alive():  # noqa: SLF001 - asked, it would be started again
                    finalizer()
                elif finalizer._pid == os.getpid():  # noqa: SLF001 - no fork unlinks its parent's
                    named.sem_unlink(*finalizer._args)  # noqa: SLF001


def end_tracker() -> None:
    """Let multiprocessing's own tracker remove shared memory that this process has not unlinked.

    A dataset that keeps some unlinks it at exit, which is never reached here, and a tracker that is
    killed removes nothing. One that other processes keep running is left after a moment.
    """
    tracker: Any = getattr(resource_tracker, "_resource_tracker", None)
    pid, pipe = getattr(tracker, "_pid", None), getattr(tracker, "_fd", None)
    if pid is None or pipe is None:
        return
    with contextlib.suppress(OSError):  # in a fork it is the child of another process
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return
        os.close(pipe)
        tracker._fd = tracker._pid = None  # noqa: SLF001 - so that it isn't asked any more
        ends_s = time.monotonic() + 0.5
        while os.waitpid(pid, os.WNOHANG)[0] != pid and time.monotonic() < ends_s:
            time.sleep(0.005)


def _finalizers() -> list[weakref.finalize[..., Any]]:
    """All of this process, in the order in which they were made."""
    return list(getattr(weakref.finalize, "_registry", ()))


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by definition
_MANAGER = "torch-shm-dir-*/manager.sock"


def mark_processes(directory: str | None = None) -> None:
    """Leave the number of this process, and of each that it forks, in the trial's directory.

    By these ``SharedMemoryWatch`` knows what a trial has made. Processes that multiprocessing
    starts from this one know the directory, however long its path is.
    """
    config = _inherited()
    if directory is not None:
        config["dlprof_marks"] = directory
    marks = config.get("dlprof_marks")
    if marks is None:
        return

    def mark() -> None:
        with contextlib.suppress(OSError):
            Path(marks, f"process-{os.getpid()}").touch()

    mark()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=mark)


class SharedMemoryWatch:
    """Knows what torch had in /dev/shm before a trial, and removes what the trial left there.

    A worker opens such a file, gives it its size, maps it and unlinks it: who is killed in between
    leaves one. Of 300 workers of a plain loader, killed at random, one did.

    A file goes only if it appeared during the trial, and is named after a process that left its
    mark (``mark_processes``) and lives no more. Programs that a dataset starts leave none, so that
    theirs stay. What multiprocessing makes has no such name: its own tracker removes that, which
    ``end_group`` lets do so; what is kept from that (``track=False``) is meant to outlive all.

    None goes in a container that has the host's /dev/shm and not its processes (``--ipc=host``):
    their numbers may be those of other containers' processes.
    """

    def __init__(self, folder: Path = _SHARED_MEMORY, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._before = frozenset(self._files())

    def clear(self, marks: Path) -> None:
        """Remove what was left by the processes marked in a directory."""
        new = set() if self._is_shared_unseen() else self._files() - self._before
        for name, pid in new:
            if (marks / f"process-{pid}").exists() and not (self._proc / pid).exists():
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()

    def _files(self) -> set[tuple[str, str]]:
        """Names of torch's files, each with the number of the process that made it."""
        from dlprof.machine.procfs import list_names  # no started worker's business

        names = list_names(self._folder)
        return {(name, found[1]) for name in names if (found := re.match(r"torch_(\d+)_", name))}

    def _is_shared_unseen(self) -> bool:
        try:
            ipc, pids = ((self._proc / "self/ns" / name).readlink() for name in ("ipc", "pid"))
        except OSError:
            return False
        # The namespaces that the host starts with (proc_ns.h)
        return str(ipc) == "ipc:[4026531839]" and str(pids) != "pid:[4026531836]"


class ManagerWatch:
    """Removes what torch's managers of shared files leave in the temporary directory.

    One is started where ``file_system`` is the sharing strategy; its directory stays when it is
    killed. A directory goes only if it appeared during the trial, belongs to this user, and nobody
    listens at its socket any more, in another container with the same directory neither.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._folder, self._listed = Path(tempfile.gettempdir()), proc / "net/unix"
        self._before = set(self._folder.glob(_MANAGER))

    def clear(self) -> None:
        """Remove what was left."""
        for path in set(self._folder.glob(_MANAGER)) - self._before:
            with contextlib.suppress(OSError):
                listed = self._listed.read_text(errors="replace")  # of this container
                others = str(path) in listed or path.stat().st_uid != os.getuid()
                if not others and _is_deserted(path):
                    shutil.rmtree(path.parent)


def _is_deserted(path: Path) -> bool:
    """Whether nobody listens at a socket, whichever network namespace that were in."""
    with socket.socket(socket.AF_UNIX) as link:
        link.setblocking(False)
        try:
            link.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # among them that it has no room for one more
            return False
    return False
