"""Where a trial's processes put temporary files, so that what they can't remove is found.

The directory for temporary files stays the user's (``TMPDIR``, ``tempfile.gettempdir()``), because
datasets look there for what a job has put there. What torch and multiprocessing make for
themselves goes elsewhere, or is known by its name. What is left of it all when processes were
ended by force, the supervisor removes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable
from multiprocessing import process, resource_tracker, synchronize, util
from pathlib import Path
from typing import Any


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


def remember_names() -> collections.deque[str]:
    """Remember the last names of this process's temporary files; none where that can't be done.

    When torch has lost a worker, it makes ten temporary files to see whether it could, and raises
    that worker's death whenever it hears of it: in the midst of making or of removing one, which
    then stays, and no exception need report it.
    """
    given: collections.deque[str] = collections.deque(maxlen=64)

    def note(name: str) -> str:
        given.append(name)
        return name

    if hasattr(tempfile, "_name_sequence"):  # else a later Python's business
        names = tempfile._get_candidate_names()  # type: ignore[attr-defined]  # noqa: SLF001 - the only place at which they all come by
        tempfile._name_sequence = map(note, names)  # noqa: SLF001 - as above
    return given


def remove_empty(names: Iterable[str], folder: Path) -> None:
    """Remove temporary files of these names, without the prefix, that nothing was written to.

    What torch makes stays empty, and has tempfile's own prefix.
    """
    for name in names:
        path = folder / f"{tempfile.gettempprefix()}{name}"
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                path.unlink()


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
