"""The process that trials are forked from: torch imported, the target built, nothing else done.

A fork of it costs milliseconds where a fresh interpreter costs seconds of importing and building,
and every trial still gets a process that no other trial has touched. It runs no loader itself, and
what the user's own constructor asks of torch is computed on one thread, so that no thread pool
exists that a fork would break.

Run as ``python -m dlprof.trial.fork_server DIRECTORY FD``: DIRECTORY is that of the sweep, and FD
its end of a socket to the supervisor.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import psutil

from dlprof.machine.procfs import list_names
from dlprof.records.codec import from_json
from dlprof.trial.processes import (
    Parting,
    adopt_orphans,
    answer_with_stacks,
    die_with_parent,
    dying_with_parent,
    end_group,
    end_tracker,
    keep_sockets_in,
    leave_forkserver,
)
from dlprof.trial.protocol import BuildRequest, Channel, Message, Orders, TrialRequest, obey
from dlprof.trial.runtime import GRACE_S

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget


_DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
"""What a process has open once it has started a GPU's driver: NVIDIA's, AMD's, Intel's."""


class ForkServer:
    """Answers the supervisor's orders, which come over a socket, until it goes away."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        link.set_inheritable(False)  # a server that the target starts would hide this one's end
        self._channel = Channel.of_socket(link)
        self._orders: Orders = {
            "build": self._build,
            "preload": self._preload,
            "trial": self._fork,
            "kill": self._end_child,
        }
        self._descriptors: list[int] = []  # that came with the orders
        self._built: BuiltTarget | None = None
        self._later: BuildRequest | None = None
        self._parting = Parting()
        self._child: int | None = None
        self._status: int | None = None
        self._own: frozenset[int] = frozenset()
        self._users_handler: Any = signal.SIG_DFL
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        self._wake = wake

    def serve(self) -> None:
        """Answer orders; at the end of the stream, end the trial that runs and return."""
        self._listen_for_children()
        link = self._link.fileno()
        while True:
            ready = connection.wait([link, self._woken])  # select would know no number above 1,023
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
                self._finish_child(linger_s=1.0)
            if link in ready and not self._answer():
                self._end_child()
                return

    def _listen_for_children(self) -> None:
        """Hear of children that end, whatever the target made of that signal."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # An alarm of the target's would be this process's end, and reaches no trial anyway.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _answer(self) -> bool:
        """Take what has been ordered; false when the supervisor has gone."""
        try:
            # Two descriptors: a trial's channel, and the file for what it prints.
            text, descriptors, _, _ = socket.recv_fds(self._link, 1 << 20, 2)
        except OSError:
            return False
        while text and not text.endswith(b"\n"):
            more = self._link.recv(1 << 20)
            text = text + more if more else b""
        if not text:
            return False
        # Orders that came together are read together; the kernel reads no further than the one
        # that brings descriptors, so that these belong to the only trial among them.
        for line in text.splitlines():
            self._descriptors = descriptors
            obey(json.loads(line), self._orders)
        return True

    def _build(self, request: Message) -> None:
        from dlprof.trial import child  # imports torch with the target

        wanted = from_json(BuildRequest, request)
        # A target may never end being built, and nobody listens meanwhile.
        with dying_with_parent():
            with contextlib.suppress(BlockingIOError):  # as long as the supervisor is there
                if not self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return
            self._built, answer = child.answer_build(wanted, _without_pool())
        if self._built is not None:
            self._users_handler = signal.getsignal(signal.SIGCHLD)
            self._listen_for_children()
            answer["fork_hazard"] = fork_hazard()
        self._channel.send(answer)

    def _preload(self, request: Message) -> None:
        self._later = from_json(BuildRequest, request)
        # What every target needs, so that trials that build for themselves start sooner.
        from dlprof.targets import build, loader  # noqa: F401 - torch comes with them
        from dlprof.trial import child  # noqa: F401 - likewise

    def _fork(self, request: Message) -> None:
        descriptors, wanted = self._descriptors, from_json(TrialRequest, request)
        state = random.getstate()
        self._own = children()  # what the target itself has started lives on
        self._status = None
        server_pid = os.getpid()
        pid, refused = -1, errno.EMFILE  # the kernel drops descriptors for which there is no room
        if len(descriptors) == 2:
            try:
                pid = os.fork()
            except OSError as error:
                refused = error.errno or errno.EAGAIN
        if pid == 0:
            self._live(wanted, server_pid, descriptors, state)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self._child = pid
            return
        message = {"event": "not_started", "errno": refused, "error": os.strerror(refused)}
        self._channel.send(message)

    def _reap(self) -> None:
        """Collect every child that has ended, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    self._status = os.waitstatus_to_exitcode(status)

    def _finish_child(self, *, linger_s: float) -> None:
        """Once the trial's own process has ended: end the rest of its group, then say so."""
        if self._child is None or self._status is None:
            return
        end_group(self._child, linger_s=linger_s, grace_s=GRACE_S, reap=self._reap)
        self._end_orphans()
        self._child = None
        self._channel.send({"event": "exited", "status": self._status})

    def _end_orphans(self) -> None:
        """End what left the trial's group and was adopted here when its parent died.

        Torch's manager of shared files is among them: it ends by itself and clears up. Round after
        round, because the children of those that are ended come here in their turn.
        """
        began_s = time.monotonic()
        while (orphans := children() - self._own) and time.monotonic() < began_s + GRACE_S:
            if time.monotonic() > began_s + 0.3:
                for pid in orphans:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
            self._reap()

    def end_all(self) -> None:
        """At the end: end what the target itself has started too, and part from what it made."""
        self._own = frozenset()
        end_tracker()  # while it lives: it is a child, too
        self._end_orphans()
        self._parting.take()

    def _end_child(self) -> None:
        if self._child is None:
            return
        end_group(self._child, linger_s=0.0, grace_s=GRACE_S, reap=self._reap)
        if self._status is None:  # it was not yet the leader of a group of its own
            os.kill(self._child, signal.SIGKILL)
            _, status = os.waitpid(self._child, 0)
            self._status = os.waitstatus_to_exitcode(status)
        self._finish_child(linger_s=0.0)

    def _live(
        self, request: TrialRequest, parent: int, descriptors: list[int], state: tuple[Any, ...]
    ) -> NoReturn:
        """In a forked process: become a trial, run it, and never return."""
        status = 70
        try:
            os.setsid()
            die_with_parent(parent)
            # Let go of everything that is the fork server's, what it is to finalize above all.
            self._parting = Parting()
            leave_forkserver()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, self._users_handler)
            self._channel.close()
            self._link.close()
            os.close(self._woken)
            os.close(self._wake)
            os.dup2(descriptors[1], 1)
            os.dup2(descriptors[1], 2)
            os.close(descriptors[1])
            from dlprof.trial import child  # loaded by the fork server already

            channel = Channel.of_descriptors(os.dup(descriptors[0]), descriptors[0])
            # Python seeds ``random`` afresh in a fork; trials are to draw the same numbers, so that
            # all load the same samples in one order: what these cost is no difference between
            # configurations, and after the first the page cache holds most of them. The price is
            # that repeats don't average out of a rate which samples these were: of 300 whose costs
            # have a coefficient of variation of 50 %, that is a standard error of 3 %.
            random.setstate(state)
            child.run_trial(request, self._target, channel)
            self._parting.take()
            status = 0
        except BaseException:  # nothing may unwind into the fork server's frames
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _target(self) -> BuiltTarget:
        """In a forked trial: the target, as it was built before the fork or else built now."""
        from dlprof.trial import child

        return self._built or child.build(cast(BuildRequest, self._later))


def children() -> frozenset[int]:
    """This process's children."""
    me = os.getpid()
    try:
        text = Path(f"/proc/{me}/task/{me}/children").read_text()
    except OSError:  # the kernel was built without it
        return frozenset(child.pid for child in psutil.Process().children())
    return frozenset(map(int, text.split()))


def fork_hazard(descriptors: Path = Path("/proc/self/fd")) -> str:
    """Why trials can't be forked from this process, or nothing.

    Threads of native pools are no hazard by themselves (OpenBLAS starts some at import and survives
    a fork); whether torch's own pool does is tried out. A GPU's driver that is started doesn't
    survive it: torch would find no device in the trials, or refuse to use it. What trials would
    share, one of them would leave to the next as it was when it ended: the barrier of
    mosaicml-streaming half passed, a cache of a ``Manager`` full.
    """
    from dlprof.device.runtime import is_in_use  # torch is imported already, with the target

    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
    ]
    if others:
        return f"building the target started the thread {others[0]!r}"
    if shared := next(_shared(), ""):
        return f"building the target {shared}, which trials would share"
    if is_in_use():
        return "building the target used the GPU"
    for name in list_names(descriptors):  # none where ``/proc`` is missing
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            if str((descriptors / name).readlink()).startswith(_DRIVERS):
                return (
                    "building the target asked the GPU's driver, such as by "
                    "torch.cuda.is_available()"
                )
    if len(list_names("/proc/self/task")) > 1 and not _computes_in_fork():
        return "building the target used torch's pool of threads, which doesn't survive a fork"
    return ""


@contextlib.contextmanager
def _without_pool() -> Iterator[None]:
    """Have torch compute on one thread, so that no pool of threads is started.

    libgomp's pool doesn't survive a fork: whoever is forked later waits forever in the first
    operation that is large enough to be shared, as when a dataset's tensors are sent to workers
    that are spawned. What the block itself sets is kept.
    """
    import torch  # loaded with the target in any case

    before, set_threads = torch.get_num_threads(), torch.set_num_threads
    users: list[int] = []

    def set_num_threads(nthreads: int) -> None:
        users.append(nthreads)
        set_threads(nthreads)

    set_threads(1)
    torch.set_num_threads = set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        if not users:
            set_threads(before)


def _computes_in_fork() -> bool:
    """Whether a fork of this process comes back from an operation that torch shares out."""
    import torch  # imported already, with the target

    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)  # it may hang for ever
            # Torch shares an operation out among threads from 32,768 elements on.
            torch.zeros(1 << 18).add_(1)
        finally:
            os._exit(0)
    # For an operation of 0.1 ms; where it takes longer, each trial builds the target for itself.
    ends_s = time.monotonic() + 3.0
    while time.monotonic() < ends_s:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _shared() -> Iterator[str]:
    """Processes that multiprocessing started, and shared memory that others open by its name."""
    yield from (f"started the process {each.name!r}" for each in multiprocessing.active_children())
    module: Any = sys.modules.get("multiprocessing.shared_memory")
    for each in gc.get_objects() if module is not None else ():
        if issubclass(type(each), module.SharedMemory) and each.buf is not None:
            yield f"made the shared memory {each.name!r}"


def main() -> None:
    """Serve on the socket that was passed down."""
    adopt_orphans()
    # Finding the directory writes a file there: now, and not in a worker that is about to be ended.
    tempfile.gettempdir()
    keep_sockets_in(sys.argv[1])
    answer_with_stacks()
    server = ForkServer(socket.socket(fileno=int(sys.argv[2])))
    server.serve()
    server.end_all()
    with contextlib.suppress(OSError, ValueError):  # the target may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # tearing torch down takes half a second and frees what the kernel frees anyway


if __name__ == "__main__":
    main()
