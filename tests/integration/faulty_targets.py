"""Datasets that go wrong in real ways, and small ones that go right; imported by trials."""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Plain(Dataset[Tensor]):
    """Samples that cost nothing."""

    def __init__(self, length: int = 4096) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), index, dtype=torch.int64)


class KeepsFiles(Plain):
    """Makes a directory for its files when it is first asked for a sample."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def __getitem__(self, index: int) -> Tensor:
        self.folder = self.folder or tempfile.TemporaryDirectory(prefix="keeps-files-")
        return super().__getitem__(index)


def keeps_files() -> DataLoader[Tensor]:
    return DataLoader(KeepsFiles(), batch_size=32)


class Raises(Plain):
    """Raises in a worker, for one sample."""

    def __getitem__(self, index: int) -> Tensor:
        if index >= 100:
            raise LookupError(f"sample {index} is not there")
        return super().__getitem__(index)


class DiesInWorkers(Plain):
    """Is well in the main process and dies in a worker."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, index: int) -> Tensor:
        if get_worker_info() is not None:
            if self.how == "segfault":
                ctypes.string_at(0)
            elif self.how == "exit":
                os._exit(3)
            else:
                time.sleep(3600)
        return super().__getitem__(index)


class Endless(IterableDataset[Tensor]):
    """Never ends."""

    def __iter__(self) -> Iterator[Tensor]:
        number = 0
        while True:
            yield torch.full((4,), number)
            number += 1


plain = Plain()


def reads_command_line() -> Plain:
    """As a file does that is a script, too; all of its options have defaults."""
    argparse.ArgumentParser().parse_args()
    return Plain()


huge = Plain(10_000_000)
few = Plain(10)
endless = Endless()


def as_loader() -> DataLoader[Tensor]:
    """A loader that its user has set up already."""
    return DataLoader(Plain(), batch_size=8, num_workers=1, prefetch_factor=3, in_order=False)


def raises() -> Plain:
    return Raises()


def dies(how: str) -> Plain:
    return DiesInWorkers(how)


def starts_a_thread() -> Plain:
    threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
    return Plain()


class Multiplies(Plain):
    """Uses torch's own thread pool."""

    def __getitem__(self, index: int) -> Tensor:
        return (torch.ones(300, 300) @ torch.ones(300, 300))[0, :4] + index


def computes_while_building() -> Plain:
    """Would start torch's thread pool before any trial is forked: a fork of it hangs."""
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    torch.ones(10_000_000).exp()
    return Multiplies()


def computes_with_threads_while_building() -> Plain:
    """Starts the pool all the same: it says itself how many threads there are."""
    torch.set_num_threads(2)
    return computes_while_building()


class HangsInForks(Plain):
    """As where a lock was held at the fork: in main only who built it gets anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = os.getpid()

    def __getitem__(self, index: int) -> Tensor:
        if get_worker_info() is None and os.getpid() != self.builder:
            time.sleep(3600)
        return super().__getitem__(index)


def cannot_be_built() -> Plain:
    raise ValueError("the disk is not mounted")


class Remembers(Plain):
    """Shared memory with a name, in which one trial could leave something to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SharedMemory(create=True, size=1)
        self.is_mine = False

    def __getitem__(self, index: int) -> Tensor:
        memory = self.shared.buf
        assert memory is not None
        if not self.is_mine and memory[0]:
            raise RuntimeError("another trial was here")
        memory[0], self.is_mine = 1, True
        return super().__getitem__(index)


def remembers() -> Plain:
    return Remembers()


def ordered_once() -> DataLoader[Tensor]:
    """Its sampler is a generator, and has nothing left after the first epoch."""
    return DataLoader(Plain(), batch_size=32, sampler=(number for number in range(256)))


class NeedsAWorker(Plain):
    """Takes for granted that it runs in a worker."""

    def __getitem__(self, index: int) -> Tensor:
        worker: Any = get_worker_info()
        return torch.add(super().__getitem__(index), worker.id)


def needs_a_worker() -> Plain:
    return NeedsAWorker()


class BreaksAtASample(Plain):
    def __getitem__(self, index: int) -> Tensor:
        if index == 35:
            raise ValueError("sample 35 is broken")
        return super().__getitem__(index)


def breaks_at_a_sample(shuffle: bool = False) -> DataLoader[Tensor]:
    return DataLoader(BreaksAtASample(), batch_size=8, shuffle=shuffle)
