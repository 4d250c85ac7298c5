"""What a thread of another process does just now: it runs, or it is known what it waits for.

``/proc/PID/task/TID/syscall`` names the system call with its arguments, where the kernel lets us
read it (the same user, and no ``ptrace_scope`` of Yama); ``wchan`` the kernel's function that it is
in, which is shown more readily. Both are kept open, cost microseconds and don't disturb the thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from dlprof.machine.procfs import list_names, parse_process_stat, read_stat, read_text
from dlprof.records.stages import FORKED, UNSEEN, child_of

Wait = Literal[
    "running", "queue", "handover", "sleep", "disk", "network", "lock", "gil", "threads", "child",
    "other",
]  # fmt: skip
"""``running``: on a core or in the run queue; ``queue``: for the next message of a queue between
processes, as main does for a batch and a worker for indices; ``handover``: for the other end of a
Unix socket, by which tensors change hands, or of a pipe, by which a process that starts is sent its
dataset; ``sleep``; ``disk``: a file system or a block device;
``network``; ``lock``: one that processes share, or of a file; ``gil``: the interpreter's, where its
place is known; ``threads``: for another thread of the process; ``child``: while a child process
computes, or for one to end where the system doesn't list children; ``other``: all the rest."""

WAITS: tuple[Wait, ...] = get_args(Wait)

_QUEUE_MS = range(4000, 5001)
"""Time-out of a wait for torch's queues: what is left of ``MP_STATUS_CHECK_INTERVAL``, 5 s. Python
waits for a socket by ``poll`` too, with the time-out of that socket."""


_NUMBERS: Mapping[str, tuple[Sequence[int], Sequence[int]]] = {
    "read": ((0, 17, 19, 45, 47), (63, 67, 65, 207, 212)),
    "connect": ((42,), (203,)),
    "write": ((1,), (64,)),
    "poll": ((7,), ()),
    "ppoll": ((271,), (73,)),
    "sleep": ((35, 230), (101, 115)),
    "futex": ((202,), (98,)),
    "child": ((61, 247), (260, 95)),
    "lock": ((73, 72), (32, 25)),
}
"""Numbers of the system calls in which threads wait, on x86_64 and on aarch64 (the kernel's
``syscall_64.tbl`` and ``asm-generic/unistd.h``)."""

_CALLS: Mapping[str, Mapping[int, str]] = {
    machine: {number: name for name, those in _NUMBERS.items() for number in those[place]}
    for place, machine in enumerate(("x86_64", "aarch64"))
}

_CHANNELS: Mapping[Wait, tuple[str, ...]] = {
    "queue": ("poll_schedule_timeout", "do_sys_poll", "pipe_read", "anon_pipe_read", "pipe_wait"),
    "handover": (
        *("unix_", "__skb_wait_for_more_packets", "sock_alloc_send"),
        *("pipe_write", "anon_pipe_write"),
    ),
    "sleep": ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep"),
    "threads": ("futex_",),
    "lock": (
        *("locks_", "flock_", "posix_lock", "fcntl_setlk", "__fcntl", "nlmclnt", "do_semtimedop"),
    ),
    "network": ("sk_", "wait_woken", "tcp_", "inet_", "ep_poll", "do_epoll", "udp_"),
    "child": ("do_wait", "kernel_wait"),
    "disk": (
        *("folio_", "wait_on_page", "io_schedule", "blk_", "blkdev", "submit_bio", "bio_"),
        *("rpc_wait", "nfs", "fuse", "request_wait_answer", "ceph", "cl_", "ll_", "gpfs", "cxi"),
        *("xfs", "ext4", "btrfs", "jbd2", "filemap", "__wait_on_buffer", "wait_on_bit"),
        *("__lock_page", "__filemap", "bit_wait", "swap", "__folio", "get_request", "rq_qos"),
        "balance_dirty",
    ),
}
"""Beginnings of the kernel's functions that threads wait in."""


def parse_wait(syscall: str, channel: str, machine: str, gil: Sequence[range] = ()) -> Wait:
    """What a thread does, from the texts of its ``syscall`` and ``wchan``; empty if not read.

    The first is ``running``, or a number and its arguments; the other the kernel's function, ``0``
    for none. The machine is the architecture, as ``os.uname`` names it; the GIL is in ``gil``.
    """
    call, arguments = _call(syscall, machine)
    if call in _BY_CHANNEL:
        inside = channel.strip()
        begun = (wait for wait, names in _CHANNELS.items() if inside.startswith(names))
        known: Wait = "running" if inside in {"", "0"} else next(begun, "other")
        # A call that waits shows no function for the moment in which it wakes up. And what is
        # printed into a pipe waits for whoever reads that.
        prints = call == "write" and known == "handover" and arguments[:1] in ([1], [2])
        return "other" if prints or (call and known == "running") else known
    if call == "poll" and len(arguments) > 2:
        return "queue" if arguments[1] == 1 and arguments[2] in _QUEUE_MS else "network"
    if call == "ppoll" and len(arguments) > 1:  # its time-out is in the process's memory
        return "queue" if arguments[1] == 1 else "network"
    if call == "futex" and len(arguments) > 1:
        if any(arguments[0] in held for held in gil):
            return "gil"
        # The kernel wakes who joins a thread as if processes shared that one's id, which is what is
        # expected there; of a lock it is a small number, or one with the highest bit set.
        joins = len(arguments) > 2 and 2 < arguments[2] < 1 << 22
        return "threads" if arguments[1] & 128 or joins else "lock"
    return call if call in WAITS else "other"


def python_data(maps: str) -> tuple[range, ...]:
    """Where a process has the static data of its interpreter, the GIL among it, by its ``maps``.

    What a library leaves empty follows it. Locks of Python's are elsewhere: what a program makes is
    on its heap.
    """
    found: list[range] = []
    name = ""
    for line in maps.splitlines():
        span, rights, *rest = (*line.split(maxsplit=5), "", "")
        path = "" if len(rest) < 6 else rest[3]
        began, _, ended = span.partition("-")
        try:
            first, last = int(began, 16), int(ended, 16)
        except ValueError:
            continue
        follows = bool(found) and first == found[-1].stop and not path and name == "python"
        is_interpreter = path.rpartition("/")[2].startswith(("python", "libpython"))
        name = "python" if is_interpreter or follows else path
        if name == "python" and rights.startswith("rw"):
            if found and first == found[-1].stop:
                found[-1] = range(found[-1].start, last)
            else:
                found.append(range(first, last))
    return tuple(found)


_BY_CHANNEL = frozenset({"", "read", "write", "connect"})
"""Calls of which only ``wchan`` says what a thread waits for."""


def _call(syscall: str, machine: str) -> tuple[str, list[int]]:
    """Which call, and its arguments; an empty name for one that isn't known."""
    words = syscall.split()
    if not words or words[0] == "running":
        return "".join(words[:1]), []
    return _CALLS.get(machine, {}).get(_number(words[0]), ""), [_number(w) for w in words[1:]]


def _number(word: str) -> int:
    """A number of the kernel's, decimal or with ``0x``; -1 for what isn't one."""
    try:
        return int(word, 0) if len(word) <= 20 else -1
    except ValueError:
        return -1


_ENDED = "-1 0x0 0x0"
"""What ``syscall`` says of a thread without a stack, as of a process that nobody has waited for."""


def gil_of(folder: str) -> tuple[range, ...]:
    """Where the interpreter of a process, by its folder, keeps its GIL; empty where unknown."""
    return python_data(read_text(f"{folder}/maps"))


class ProcFile:
    """A file of ``/proc`` that is kept open and read again and again."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """Its text now; empty where it can't be read, as of a process that has ended."""
        with contextlib.suppress(OSError):
            return os.pread(self._descriptor, 4096, 0).decode("ascii", "replace")
        return ""

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def named_waits(waits: Mapping[Wait, int], children: Mapping[str, int]) -> dict[str, int]:
    """The waits, those for a child by the name of the one that computed, where it has one."""
    found: dict[str, int] = {f"child {name}": count for name, count in children.items()}
    unnamed = waits.get("child", 0) - sum(found.values())
    found |= {wait: unnamed if wait == "child" else count for wait, count in waits.items()}
    return {wait: count for wait, count in found.items() if count > 0}


def computing(proc: str, listed: str, *, leave_out: str = "", depth: int = 3) -> str | None:
    """The name of one that computes, or could, among some processes and what they have started.

    ``listed`` is text of a ``children`` file; those of one name are left out, with all that they
    have started. A shell waits for what it runs, as its parent does.
    """
    folders = (f"{proc}/{pid}" for pid in listed.split())
    stats = ((each, read_stat(each)) for each in folders)
    kept = ((each, stat) for each, stat in stats if stat is not None and stat.name != leave_out)
    for folder, stat in itertools.islice(kept, 16):
        tasks = list_names(f"{folder}/task")[:64] if stat.threads > 1 else []
        states = (read_stat(f"{folder}/task/{n}") for n in tasks)
        if stat.state == "R" or any(each is not None and each.state == "R" for each in states):
            return stat.name
        leader = folder.rpartition("/")[2]
        below = read_text(f"{folder}/task/{leader}/children") if depth > 1 else ""
        name = computing(proc, below, leave_out=leave_out, depth=depth - 1) if below else None
        if name is not None:
            return name
    return None


class Thread:
    """One thread, by its folder below ``/proc``, and what it does just now.

    Without ``gil`` (``gil_of``) a wait for that is one for another thread. It waits for no child
    of the name that is left out.
    """

    def __init__(
        self, folder: str, machine: str, gil: Sequence[range] = (), *, leave_out: str = ""
    ) -> None:
        self._machine, self._gil, self._leave_out = machine, gil, leave_out
        self._syscall, self._channel = ProcFile(f"{folder}/syscall"), ProcFile(f"{folder}/wchan")
        self._stat = ProcFile(f"{folder}/stat")
        # Those that it has started; the system lists none where the kernel was built without that.
        self._started = ProcFile(f"{folder}/children")
        self._proc = folder.rsplit("/", 3)[0]  # of PROC/PID/task/TID
        self.children = Counter[str]()  # how many looks found it waiting for one of this name
        # Whether the kernel keeps from us which calls it waits in.
        self.unreadable = not self._syscall.read()
        self._is_clear = bool(gil) and not self.unreadable
        self.waits: Counter[Wait] = Counter()  # how many looks found it so

    def look(self) -> Wait | None:
        """What it does; ``None`` where it has ended."""
        call, state = "" if self.unreadable else self._syscall.read(), ""
        if not call or call.startswith(_ENDED):
            stat = parse_process_stat(self._stat.read())
            if stat is None or stat.state in ("Z", "X"):
                return None
            state = stat.state
        wait: Wait = "running"
        if state != "R":
            name = _call(call, self._machine)[0]
            channel = self._channel.read() if name in _BY_CHANNEL else ""
            wait = parse_wait(call, channel, self._machine, self._gil)
            if not call and wait == "running":  # it sleeps, and the kernel hides in what
                wait = "disk" if state == "D" else "other"
            # A worker waits for indices so, whatever its children do then.
            wait = self._for_child(wait, name or ("poll" if "poll" in channel else ""))
        self.waits[wait] += 1
        return wait

    def _for_child(self, wait: Wait, call: str) -> Wait:
        """What it waits for, where that may be a child: for its end, or at a pipe from it.

        What a child waits for that doesn't compute isn't known.
        """
        known = wait in ("running", "gil") or (wait == "queue" and call == "poll")
        listed = "" if known else self._started.read()
        if not listed:
            return wait
        name = computing(self._proc, listed, leave_out=self._leave_out)
        if name is not None:
            own = parse_process_stat(self._stat.read())
            self.children[FORKED if own is not None and name == own.name else name] += 1
            return "child"
        return "other" if wait == "child" or (wait == "queue" and call == "read") else wait

    @property
    def seen(self) -> Counter[str]:
        """How many looks found it so, as in ``named_waits``.

        Where a wait for the GIL would look like another, of all but children nothing is said.
        """
        seen = Counter(named_waits(self.waits, self.children))
        if not self._is_clear:
            named = Counter({wait: count for wait, count in seen.items() if child_of(wait)})
            seen = named + Counter({UNSEEN: seen.total() - named.total()})
        return seen

    def close(self) -> None:
        """Let go of its files."""
        for each in (self._syscall, self._channel, self._stat, self._started):
            each.close()


class Glances:
    """What the first threads of some processes do, looked at again and again.

    Only that shows whether a thread that is blocked waits for the GIL. Processes of which it can't
    be seen show children that compute, and nothing else, as where Yama shows system calls to
    ancestors alone: a wait for the GIL would count as one for another thread.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc, self._machine = proc, platform.machine()
        self._known: set[int] = set()
        self._threads: dict[int, Thread] = {}
        self._ended = Counter[str]()

    def add(self, *pids: int, name: str = "", leave_out: str = "") -> None:
        """Take in processes, each once; those that have another name may get this one later.

        None waits for children of the name that is left out.
        """
        for pid in set(pids) - self._known:
            folder = f"{self._proc}/{pid}"
            stat = read_stat(folder)
            if stat is None or (name and stat.name != name):
                continue
            self._known.add(pid)
            self._threads[pid] = Thread(
                f"{folder}/task/{pid}", self._machine, gil_of(folder), leave_out=leave_out
            )

    def look(self) -> None:
        """Look at each of them once."""
        for pid, thread in list(self._threads.items()):
            if thread.look() is None:
                self._end(pid)

    def _end(self, pid: int) -> None:
        thread = self._threads.pop(pid)
        self._ended += thread.seen
        thread.close()

    def close(self) -> None:
        """Let go of all files."""
        for pid in list(self._threads):
            self._end(pid)

    def shares(self, *, least: int = 1) -> dict[str, float]:
        """Shares of the looks that found them so, as in ``records.Usage``; none of fewer looks."""
        waits = sum((each.seen for each in self._threads.values()), self._ended.copy())
        if not any(map(child_of, waits)):
            del waits[UNSEEN]
        looks = waits.total()
        return {wait: count / looks for wait, count in waits.items() if looks >= least}
