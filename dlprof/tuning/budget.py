"""What a loader may take: workers, memory, shared memory and files, beside other ranks."""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import json
import math
import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from dlprof.files import lock, unlock
from dlprof.machine.cgroups import cpu_quota, read_cgroups
from dlprof.machine.inspection import available_memory, open_files_limit, read_shared_memory
from dlprof.machine.launchers import job_name, launched_as
from dlprof.machine.procfs import list_names, parse_pss, read_text
from dlprof.machine.tree import allowed_cpus
from dlprof.records import Config
from dlprof.tuning.control import Setting
from dlprof.units import counted, format_bytes

_SPARE = 0.8  # of what is free: others need some


class Budget:
    """The limits of one loader, as the user says them or as the machine has them.

    Memory is that of workers and of the batches in flight.

    Attributes:
        node: Of the other ranks; ``None`` where there are none, or none is known yet.
        worker_bytes: What one worker takes, as far as that was seen.
    """

    def __init__(
        self, max_workers: int | None, max_ram_bytes: int | None, root: Path = Path("/")
    ) -> None:
        self.node: Node | None = None
        self._ram, self._root = max_ram_bytes, root
        self.worker_bytes = 45_000_000  # of a forked one, measured with torch 2.13
        self.most_workers = _most_of(usable_cores()) if max_workers is None else max_workers

    def refusal(
        self,
        before: Setting,
        after: Setting,
        *,
        pids: Sequence[int],
        batch_bytes: int,
        batch_tensors: int = 0,
    ) -> str:
        """Why a larger setting isn't allowed; empty if it is.

        ``pids`` are the running workers; each of ``batch_tensors`` is shared by a file descriptor.
        Without any, as between two epochs, what the setting before took is free by now.
        """
        before_bytes = before.in_flight * batch_bytes if pids else 0
        more_files = _files(after, batch_tensors)
        more_files -= _files(before, batch_tensors) if pids else 0
        limit, opened = open_files_limit(), list_names(self._root / "proc" / "self" / "fd")
        free_files = math.inf if limit is None or not opened else max(0, limit - len(opened))
        if more_files > _SPARE * free_files:
            return f"it would open {more_files} more files of {free_files} that are allowed"
        if self.node is not None and after.workers > before.workers:
            most = _most_of(usable_cores(self.node.cores()))
            if self.node.others() + after.workers > most:
                return f"the ranks of this machine would have more than {counted(most, 'worker')}"
        self.weigh(pids)
        more_workers = max(0, after.workers - len(pids))
        # What is forked beside batches keeps those mapped that there are.
        kept_bytes = before_bytes if more_workers else 0
        fresh_bytes = kept_bytes + max(0, after.in_flight * batch_bytes - before_bytes)
        more_bytes = more_workers * self.worker_bytes + fresh_bytes
        in_flight_bytes = kept_bytes + after.in_flight * batch_bytes
        whole_bytes = max(after.workers, len(pids)) * self.worker_bytes + in_flight_bytes
        if self._ram is not None and whole_bytes > self._ram:
            return f"it would take {format_bytes(whole_bytes)}, above max_ram"
        free_bytes = available_memory(read_cgroups(None, self._root), self._root)
        if free_bytes is not None and more_bytes > _SPARE * free_bytes:
            return (
                f"it would take {format_bytes(more_bytes)} more of {format_bytes(free_bytes)} free"
            )
        shm = read_shared_memory(self._root)
        if shm is not None and fresh_bytes > _SPARE * shm.free_bytes:
            sizes = f"{format_bytes(fresh_bytes)} more of {format_bytes(shm.free_bytes)} free"
            return f"it would take {sizes} shared memory"
        return ""

    def weigh(self, pids: Sequence[int]) -> None:
        """Look how large running workers are: those of later epochs are taken to be, too."""
        texts = (read_text(self._root / f"proc/{pid}/smaps_rollup") for pid in pids[:2])
        self.worker_bytes = max((parse_pss(each) or 0 for each in texts), default=0) or (
            self.worker_bytes
        )


def _files(setting: Setting, batch_tensors: int) -> int:
    """Files that main has open with full queues."""
    config = Config(num_workers=setting.workers, prefetch_factor=setting.ahead or None)
    return config.open_files(batch_tensors)


def usable_cores(beside: Iterable[int] = ()) -> int:
    """Whole cores that this process, and ranks ``beside`` it, may use: affinity, and its quota."""
    quota, cores = cpu_quota(read_cgroups()), len({*_own_cores(), *beside})
    return max(1, cores if quota is None else min(cores, int(quota.amount)))


def _own_cores() -> list[int]:
    """The numbers of the cores in this process's affinity mask; of all where there is none."""
    return sorted(allowed_cpus()) or [*range(os.cpu_count() or 1)]


def _most_of(cores: int) -> int:
    """Loaders that wait for storage gain from more workers than there are cores."""
    return max(16, 2 * cores)


def count_ranks(environ: Mapping[str, str], world: int) -> int:
    """The processes of a job, as its launcher says or torch knows: a ``world`` of so many."""
    said = launched_as(environ)
    return max(world, *(said[name] or 1 for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")))


class Node:
    """What the ranks of one machine know of each other's loaders: a file, and no collective call.

    Each loader has its own. One of them tries something at a time, first the one that waits the
    longest. ``clock`` gives seconds, the same for all processes of a machine.
    """

    def __init__(self, path: Path, clock: Any = time.time) -> None:
        self._path, self._clock = path, clock
        self._turn: int | None = None
        self.number = str(next(_NUMBERS))
        _NODES.add(self)

    @classmethod
    def of(cls, environ: Mapping[str, str], world: int = 1) -> Node | None:
        """The machine of a job with several ranks; ``None`` for a single process.

        Not all launchers say how many of them are on this machine.
        """
        if count_ranks(environ, world) < 2:
            return None
        job = job_name(environ, os.getppid())
        name = "".join(each if each.isalnum() else "-" for each in job)[:60]
        user = os.getuid() if hasattr(os, "getuid") else 0
        path = Path(tempfile.gettempdir()) / f"dlprof-tune-{user}-{name}.json"
        _FILES.add(path)
        return cls(path)

    def others(self) -> int:
        """Workers of the other ranks, and of this one's other loaders."""
        with self._entries() as entries:
            return sum(each["workers"] for name, each in entries.items() if name != self._name)

    def cores(self) -> set[int]:
        """Those of all ranks: srun and mpirun may pin each to cores of its own."""
        with self._entries() as entries:
            return {core for each in entries.values() for core in each["cores"]}

    def take_turn(self, workers: int, wait_share: float) -> bool:
        """Whether this rank may try something now; it then keeps the others from it."""
        if self._turn is not None:
            return True
        with self._entries() as entries:
            entries[self._name] = self._entry(workers, wait_share, waits=True)
            longest = max(each["wait"] for each in entries.values() if each["waits"])
        if longest > wait_share:
            return False
        turn = _opened(self._path.with_suffix(".turn"))
        try:
            if lock(turn, wait=False):
                self._turn = turn
        finally:  # also where Ctrl-C comes before it is this rank's
            if self._turn is None:
                os.close(turn)
        return self._turn is not None

    def end_turn(self, workers: int, wait_share: float) -> None:
        """Let the others try; says what this rank has now."""
        try:
            with self._entries() as entries:
                entries[self._name] = self._entry(workers, wait_share, waits=False)
        finally:
            self.drop_turn()

    def drop_turn(self) -> None:
        """Let the others try, without waiting for their file."""
        if self._turn is not None:
            unlock(self._turn)
            os.close(self._turn)
            self._turn = None

    @property
    def _name(self) -> str:
        return f"{os.getpid()}.{self.number}"

    def _entry(self, workers: int, wait_share: float, *, waits: bool) -> dict[str, Any]:
        said = {"workers": workers, "wait": wait_share, "waits": waits, "at": self._clock()}
        return {**said, "cores": _own_cores()}

    @contextlib.contextmanager
    def _entries(self) -> Iterator[dict[str, Any]]:
        """What each living rank has said, to be changed; the file is locked as long.

        Raises:
            TimeoutError: Another process has it locked, and doesn't let go: it may be stopped.
            OSError: It can't be opened, or is damaged.
        """
        descriptor = _locked(self._path)
        try:
            try:
                said = json.loads(os.read(descriptor, 1 << 20) or b"{}")
            except ValueError:
                said = {}
            try:
                alive = {name: _checked(each) for name, each in said.items() if _lives(name)}
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise OSError(errno.EIO, "it is damaged", str(self._path)) from error
            for each in alive.values():  # one that was cut off, or goes on without tuning
                each["waits"] = each["waits"] and self._clock() - each["at"] < 60
            yield alive
            content = json.dumps(alive).encode()
            os.lseek(descriptor, 0, os.SEEK_SET)  # Windows has no pwrite
            os.write(descriptor, content)
            os.truncate(descriptor, len(content))
        finally:
            unlock(descriptor)  # a worker that another thread forks has a copy of it
            os.close(descriptor)


def _locked(path: Path) -> int:
    """The ranks' file, for this process alone until it is unlocked.

    Raises:
        TimeoutError: Another process has it locked, and doesn't let go: it may be stopped.
        OSError: It can't be opened.
    """
    until_s = time.monotonic() + 1
    while True:
        descriptor = _opened(path)
        is_there = False
        try:
            while not lock(descriptor, wait=False):
                if time.monotonic() > until_s:
                    raise TimeoutError(f"another process keeps {path} locked")
                time.sleep(0.002)
            # Else whoever had it was the last one, and took it away.
            is_there = os.fstat(descriptor).st_nlink > 0
        finally:
            if not is_there:
                unlock(descriptor)
                os.close(descriptor)
        if is_there:
            return descriptor
        if time.monotonic() > until_s:  # a file system that knows of no links
            raise TimeoutError(f"{path} is taken away whenever it is made")


@atexit.register
def remove_files() -> None:
    """The last process of a job takes the ranks' files away."""
    for path in _FILES:
        with contextlib.suppress(OSError), Node(path)._entries() as entries:  # noqa: SLF001 - of this module
            for name in [each for each in entries if each.startswith(f"{os.getpid()}.")]:
                del entries[name]
            if not entries:
                path.with_suffix(".turn").unlink(missing_ok=True)
                path.unlink()
    _FILES.clear()


def _opened(path: Path) -> int:
    """A file of this user's own, in a folder where others may have put another of its name.

    Raises:
        OSError: It is a symbolic link, or somebody else's.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    if hasattr(os, "getuid") and os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(errno.EACCES, "it is somebody else's", str(path))
    return descriptor


_NUMBERS = itertools.count()
_NODES: weakref.WeakSet[Node] = weakref.WeakSet()
_FILES: set[Path] = set()  # of the jobs that this process is, or was, a rank of


def _checked(said: Any) -> dict[str, Any]:
    """What a rank has said, with all that it says."""
    times = {name: float(said[name]) for name in ("wait", "at")}
    cores = [int(each) for each in said["cores"]]
    return {**times, "workers": int(said["workers"]), "waits": bool(said["waits"]), "cores": cores}


def _lives(name: str) -> bool:
    """Whether a loader may still load, as far as that is known of another process."""
    pid, _, number = name.partition(".")
    if int(pid) == os.getpid():
        return any(each.number == number for each in _NODES)
    return psutil.pid_exists(int(pid))
