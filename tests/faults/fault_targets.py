"""Datasets that go wrong in real ways, one way at a time: the test writes which into a file.

So one process that has the target built serves many faults, and between two of them the very same
target is well. Faults happen in workers only, in the middle of an epoch, unless their name says
otherwise.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from dlprof.trial.processes import STACKS_SIGNAL

SIZE = 8  # samples of a batch
LENGTH = 4096
_LATER = 64  # the first index at which a fault happens
_MEBIBYTE = 1 << 20
_HELD = threading.Lock()


class TwoArgumentsError(Exception):
    """Can't be made from one message, as torch would like to."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class HoldsALockError(Exception):
    """Doesn't pickle."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.lock = threading.Lock()


def _raise(error: Exception) -> None:
    raise error


def _bus_error(_index: int) -> None:
    """Touch a page of a mapped file that has been cut off, as a rewritten memmap does."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        view[mmap.PAGESIZE]


def _interrupt(_index: int) -> None:
    raise KeyboardInterrupt


def _wait_for_the_lock(_index: int) -> None:
    with _HELD:
        pass


def _spin(_index: int) -> None:
    while True:
        pass


def _spend_cpu_time(_index: int) -> None:
    """More than a login node allows, as ``ulimit -t`` there."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1, -1))
    _spin(0)


def _hang_deaf(_index: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(3600)


def _hang_mute(_index: int) -> None:
    signal.signal(STACKS_SIGNAL, signal.SIG_DFL)
    time.sleep(3600)


def _own_queue(index: int) -> None:
    """Lose something in a queue that is not the loader's, and then take long for a sample."""
    if index == _LATER:
        queue: multiprocessing.Queue[object] = multiprocessing.Queue()
        queue.put(lambda: index)
        time.sleep(2.5)


def _print_until_cut_off(_index: int) -> None:
    """Print without end; that somebody takes it away shows in the size of the file."""
    most = 0
    while os.fstat(1).st_size >= most:
        most = os.fstat(1).st_size
        os.write(1, b"and again\n" * 10_000)
    raise LookupError("it was cut off")


class TakesFiles:
    """Takes all file descriptors but a few as it is pickled, after the tensors before it.

    Args:
        spare: How many it leaves: none is too few to accept a connection, one to hand over by it.
    """

    def __init__(self, spare: int) -> None:
        self.spare = spare

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        """It arrives as a number."""
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - self.spare :]:
            os.close(descriptor)
        return int, ()


def _grandchild(index: int) -> None:
    if index == _LATER:
        subprocess.Popen(["sleep", "3600"], start_new_session=True)


def _daemon(index: int) -> None:
    if index == _LATER and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        os._exit(0)


def _shout(index: int) -> None:
    if index == _LATER:
        for _ in range(50):
            sys.stdout.write("x" * 99 + "\n" * _MEBIBYTE)


def _move(_index: int) -> None:
    os.chdir("/")
    os.umask(0o777)


def _ring(_index: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(60)


def _close_output(index: int) -> None:
    if index == _LATER:
        os.closerange(1, 3)


def _talk(index: int) -> None:
    """Write to every socket there is, the trial's own too.

    But for those that have a name: through them torch hands batches over, whenever it likes to,
    and what is written there is a fault of the worker's.
    """
    for descriptor in range(3, 64) if index == _LATER else ():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and not _is_named(descriptor):
                os.write(descriptor, b"\nnot for you\n[1]\n{}\n")


def _is_named(descriptor: int) -> bool:
    """Whether a socket was bound, or taken up by one that was; a pair has no name."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        return bool(found.getsockname())


def _handlers(_index: int) -> None:
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _thread(index: int) -> None:
    if index == _LATER:
        threading.Thread(target=time.sleep, args=[3600]).start()


def _settings(index: int) -> None:
    if index == _LATER:
        multiprocessing.set_start_method("spawn", force=True)
        share_by: Callable[[str], None] = torch.multiprocessing.set_sharing_strategy
        share_by("file_system")


_KEPT: list[Tensor] = []


def _grow(_index: int) -> None:
    _KEPT.append(torch.ones(_MEBIBYTE))  # 4 MiB


FAULTS: dict[str, Callable[[int], object]] = {
    "raise": lambda index: _raise(LookupError(f"sample {index} is not there")),
    "raise_two_arguments": lambda _index: _raise(TwoArgumentsError(7, "no sample")),
    "raise_unpicklable": lambda _index: _raise(HoldsALockError("no sample")),
    "raise_stop": lambda _index: next(iter(())),
    "raise_index": lambda index: [0][index],
    "exit_system": lambda _index: sys.exit(2),
    "interrupt": _interrupt,
    "segfault": lambda _index: ctypes.string_at(0),
    "kill": lambda _index: os.kill(os.getpid(), signal.SIGKILL),
    "abort": lambda _index: os.abort(),
    "terminate": lambda _index: os.kill(os.getpid(), signal.SIGTERM),
    "cpu_limit": _spend_cpu_time,
    "bus": _bus_error,
    "alarm": _ring,
    "exit_3": lambda _index: os._exit(3),
    "exit_0": lambda _index: os._exit(0),
    "lock": _wait_for_the_lock,
    "sleep": lambda _index: time.sleep(3600),
    "spin": _spin,
    "hang_deaf": _hang_deaf,
    "hang_mute": _hang_mute,
    "stop": lambda _index: os.kill(os.getpid(), signal.SIGSTOP),
    "close_all": lambda _index: os.closerange(0, 256),
    "close_output": _close_output,
    "own_queue": _own_queue,
    "talk": _talk,
    "print_endlessly": _print_until_cut_off,
    "grandchild": _grandchild,
    "daemon": _daemon,
    "shout": _shout,
    "move": _move,
    "handlers": _handlers,
    "settings": _settings,
    "thread": _thread,
    "atexit": lambda index: index == _LATER and atexit.register(time.sleep, 3600),
    "grow": _grow,
    "parent": lambda _index: os.kill(os.getppid(), signal.SIGKILL),
}


ODD: dict[str, Callable[[int], object]] = {
    "ragged": lambda index: torch.zeros(index % 7),
    "ragged_lists": lambda index: [0] * (1 + index % 7),
    "other_keys": lambda index: {f"key {index % 2}": index},
    "some_missing": lambda index: torch.zeros(4) if index % 2 == 0 else None,
    "huge": lambda _index: torch.ones(32 * _MEBIBYTE),  # 128 MiB; a batch is a gibibyte
}
"""Samples that don't go together, or are too much."""


class Switch:
    """Which fault is on; read again in each process.

    Args:
        path: A file that holds its name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: tuple[int, str] | None = None

    def on(self) -> str:
        """The fault's name."""
        if self._known is None or self._known[0] != os.getpid():
            self._known = (os.getpid(), Path(self._path).read_text())
        return self._known[1]


def in_worker() -> bool:
    return get_worker_info() is not None


def has_workers() -> bool:
    return bool(multiprocessing.active_children())


class Samples(Dataset[Any]):
    """Four numbers a sample, and whatever the switch says."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.seen: set[int] = set()

    def __len__(self) -> int:
        if self.switch.on() == "raise_in_len" and has_workers():
            raise LookupError("how many there are is not known")
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        sample = torch.full((4,), index, dtype=torch.int64)
        fault = self.switch.on()
        if fault == "slow_first" and in_worker() and index == 0 and not self.seen:
            time.sleep(2.0)
        if fault == "raise_second" and index in self.seen:
            raise LookupError("each sample comes only once")
        self.seen.add(index)
        if not in_worker() or index < _LATER:
            return sample
        if fault in ODD:
            return ODD[fault](index)
        if fault in FAULTS:
            FAULTS[fault](index)
        return sample


class Order:
    """Indices in order."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for index in range(LENGTH):
            fault = self.switch.on() if index == _LATER and has_workers() else ""
            if fault == "raise_in_sampler":
                raise LookupError("no more order")
            if fault == "sleep_in_sampler":
                time.sleep(3600)
            yield index


class Batches:
    """Index batches in order."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __len__(self) -> int:
        return LENGTH // SIZE

    def __iter__(self) -> Iterator[list[int]]:
        fault = self.order.switch.on()
        batch: list[int] = []
        for index in self.order:
            batch.append(index)
            if len(batch) == SIZE:
                yield batch
                batch = []
            if index == _LATER and fault == "raise_in_batch_sampler" and has_workers():
                raise LookupError("no more batches")


def _kept(batch: Any) -> Any:
    """A batch whose descriptors don't come free."""
    _KEPT.append(batch)
    return batch


def _unsendable(fault: str, batch: Any) -> Any:
    made: dict[str, Callable[[], object]] = {
        "batch_file": lambda: (batch, Path(__file__).open()),  # left open: that is the fault
        "batch_lambda": lambda: (batch, lambda: batch),
        "batch_lock": lambda: (batch, threading.Lock()),
        "batch_generator": lambda: (batch, (number for number in range(3))),
        "batch_grad": lambda: torch.ones(3, requires_grad=True) * 2,
        "takes_all_files": lambda: (_kept(batch), TakesFiles(0)),
        "leaves_a_file": lambda: (_kept(batch), TakesFiles(1)),
        "batch_local_class": lambda: (batch, type("Local", (), {})()),
    }
    return made[fault]() if fault in made else batch


class Collate:
    """torch's own collating, and whatever the switch says."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    def __call__(self, samples: list[Any]) -> Any:
        fault = self.switch.on()
        if fault == "raise_in_collate" and in_worker():
            raise LookupError("these do not go together")
        batch = default_collate(samples)
        return _unsendable(fault, batch) if in_worker() else batch


class Prepare:
    """Runs first in a worker."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    def __call__(self, worker_id: int) -> None:
        match self.switch.on():
            case "raise_in_init":
                raise LookupError("this worker is not prepared")
            case "exit_in_init":
                os._exit(4)
            case "sleep_in_init":
                time.sleep(3600)


def loader(switch: str) -> DataLoader[Any]:
    """The loader of most cases; its builder holds a lock, as a server's client might."""
    _HELD.acquire()
    shared = Switch(switch)
    return DataLoader(
        Samples(shared),
        batch_sampler=Batches(Order(shared)),
        collate_fn=Collate(shared),
        worker_init_fn=Prepare(shared),
    )


class Stream(IterableDataset[Tensor]):
    """Shares its samples among workers, unless the switch says otherwise."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch

    def __len__(self) -> int:
        return 40 if self.switch.on() == "says_too_few" else LENGTH

    def __iter__(self) -> Iterator[Tensor]:
        fault, worker = self.switch.on(), get_worker_info()
        first, step = 0, 1
        if worker is not None and fault != "unsharded":  # which doesn't ask
            first, step = worker.id, worker.num_workers
        if fault == "asks_in_vain":
            first, step = 0, 1
        if fault == "empty" and worker is not None:
            return
        for index in range(first, LENGTH, step):
            if fault == "raise" and worker is not None and index >= _LATER:
                raise LookupError(f"sample {index} is not there")
            if fault == "ends_early" and worker is not None and index >= _LATER:
                return
            yield torch.full((4,), index, dtype=torch.int64)


def stream(switch: str) -> DataLoader[Any]:
    return DataLoader(Stream(Switch(switch)), batch_size=SIZE)


class HoldsALock(Samples):
    """Doesn't pickle."""

    def __init__(self, switch: Switch) -> None:
        super().__init__(switch)
        self.lock = threading.Lock()


def unpicklable(switch: str) -> DataLoader[Any]:
    return DataLoader(HoldsALock(Switch(switch)), batch_size=SIZE)


def unpicklable_collate(switch: str) -> DataLoader[Any]:
    return DataLoader(
        Samples(Switch(switch)),
        batch_size=SIZE,
        collate_fn=lambda batch: stack_in_memory(batch),  # noqa: PLW0108 - it must be a lambda
    )


class PickledInAnHour(Samples):
    """Sends itself, but by nobody who waits a minute for it."""

    def __getstate__(self) -> object:
        time.sleep(3600.0)
        return self.__dict__


def pickled_in_an_hour(switch: str) -> DataLoader[Any]:
    return DataLoader(PickledInAnHour(Switch(switch)), batch_size=SIZE)


class CannotBeUnpickled(Samples):
    """Pickles, and is lost on the way."""

    def __setstate__(self, state: object) -> None:
        raise LookupError("the index is not there")


def cannot_be_unpickled(switch: str) -> DataLoader[Any]:
    return DataLoader(CannotBeUnpickled(Switch(switch)), batch_size=SIZE)


def with_open_file(samples: list[Any]) -> object:
    """A batch that no worker can send, whoever makes it."""
    return default_collate(samples), Path(__file__).open()


def unsendable(switch: str) -> DataLoader[Any]:
    return DataLoader(Samples(Switch(switch)), batch_size=SIZE, collate_fn=with_open_file)


def impatient(switch: str) -> DataLoader[Any]:
    return DataLoader(Samples(Switch(switch)), batch_size=SIZE, num_workers=1, timeout=1.0)


class Slow(Samples):
    """Takes its time, and much more of it for the first sample in a worker."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        if in_worker() and index == 0:
            time.sleep(4.0)
        return torch.full((4,), index)


def slow(switch: str) -> DataLoader[Any]:
    return DataLoader(Slow(Switch(switch)), batch_size=SIZE)


class Large(Dataset[Tensor]):
    """Samples of a mebibyte."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(_MEBIBYTE // 4)


def stack_in_memory(samples: list[Tensor]) -> Tensor:
    """Stacks in the worker's memory: what is sent is moved to /dev/shm by the feeder thread."""
    return torch.stack(samples)


def large(switch: str) -> DataLoader[Any]:
    del switch
    return DataLoader(Large(), batch_size=SIZE)


def large_own_collate(switch: str) -> DataLoader[Any]:
    del switch
    return DataLoader(Large(), batch_size=SIZE, collate_fn=stack_in_memory)


def as_many(samples: list[Tensor]) -> list[Tensor]:
    """A tensor a sample."""
    return samples


def many_tensors(switch: str) -> DataLoader[Any]:
    return DataLoader(Samples(Switch(switch)), batch_size=256, collate_fn=as_many)


class Multiplies(Samples):
    """Uses torch's own thread pool."""

    def __getitem__(self, index: int) -> Any:
        return (torch.ones(300, 300) @ torch.ones(300, 300))[0, :4] + index


def computes_while_building(switch: str) -> Dataset[Any]:
    """Would start torch's thread pool before any trial is forked: a fork of it hangs."""
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    torch.ones(10_000_000).exp()
    return Multiplies(Switch(switch))


def meddles(switch: str) -> DataLoader[Any]:
    """Leaves the process that builds it changed in every way it can."""
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 3.0)
    os.chdir("/")
    os.umask(0o777)
    os.closerange(0, 3)
    multiprocessing.set_start_method("fork", force=True)
    atexit.register(time.sleep, 3600)
    return DataLoader(Samples(Switch(switch)), batch_size=SIZE)


def build_exits(switch: str) -> object:
    os._exit(0)


def build_sys_exits(switch: str) -> object:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    return parser.parse_args([])


def build_is_killed(switch: str) -> object:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def build_is_killed_once(switch: str) -> object:
    """Goes well the second time."""
    tried = Path(switch).with_name("tried")
    if tried.exists():
        tried.unlink()
        return Samples(Switch(switch))
    tried.touch()
    return build_is_killed(switch)


def build_segfaults(switch: str) -> object:
    return ctypes.string_at(0)


def build_hangs(switch: str) -> object:
    subprocess.Popen(["sleep", "3600"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
    return None


def build_raises(switch: str) -> object:
    raise TwoArgumentsError(3, "the disk is not mounted")


class NoLength(Samples):
    """Doesn't know how many samples it has."""

    def __len__(self) -> int:
        raise LookupError("how many there are is not known")


def length_raises(switch: str) -> object:
    return NoLength(Switch(switch))


class TooLong(Samples):
    """Claims more samples than it has."""

    def __getitem__(self, index: int) -> Any:
        return [super(TooLong, self).__getitem__(kept) for kept in range(_LATER)][index]


def too_long(switch: str) -> object:
    return DataLoader(TooLong(Switch(switch)), batch_size=SIZE)


class Few(Samples):
    """Fewer samples than a batch."""

    def __len__(self) -> int:
        return SIZE - 1


def drops_all(switch: str) -> object:
    return DataLoader(Few(Switch(switch)), batch_size=SIZE, drop_last=True)


class UsesFiles(Samples):
    """Keeps files while it lives."""

    manager: Any = None

    def __init__(self, switch: Switch) -> None:
        super().__init__(switch)
        self.folder = tempfile.TemporaryDirectory()
        (Path(self.folder.name) / "index").write_text("7")
        self.shared: Any = {"index": 7}

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return sample + int((Path(self.folder.name) / "index").read_text()) - self.shared["index"]


def uses_files(switch: str) -> object:
    return DataLoader(UsesFiles(Switch(switch)), batch_size=SIZE)


def uses_files_and_a_process(switch: str) -> object:
    """The process keeps numbers, which one trial could change for the next: each has its own."""
    dataset = UsesFiles(Switch(switch))
    dataset.manager = multiprocessing.Manager()
    dataset.shared = dataset.manager.dict(dataset.shared)
    return DataLoader(dataset, batch_size=SIZE)


def uses_files_and_a_thread(switch: str) -> object:
    """So that each trial builds it for itself."""
    threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
    return uses_files(switch)
