"""What ranks load in tests: it waits, so that no figure depends on how fast the machine is."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

RANK = int(os.environ.get("RANK", "0"))
PROBED = 40
"""Samples that a probe and the first batches of a trial take."""


class Waits(Dataset[Tensor]):
    """Samples that take a time of waiting each, longer on rank 1 if that is asked for."""

    def __init__(self, length: int = 4096, slower: float = 1.0) -> None:
        self.length = length
        self.wait_s = 0.002 * (slower if RANK == 1 else 1.0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.wait_s)
        return torch.full((4,), index)


class Signalled(Waits):
    """Rank 1 gets a signal in the midst of a trial without workers, and is well with one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.taken = number, 0

    def __getitem__(self, index: int) -> Tensor:
        self.taken += 1
        if RANK == 1 and self.taken > PROBED and get_worker_info() is None:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class Noted(Waits):
    """Writes down which samples its rank took."""

    def __init__(self, place: str) -> None:
        super().__init__(length=200)
        self.path = Path(place) / f"rank{RANK}"

    def __getitem__(self, index: int) -> Tensor:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


class Placed(Waits):
    """Writes down which CPUs its process may use; it waits 15 times as long on one, or on more.

    As if memory were near or far from there, by more than other processes may hide.
    """

    def __init__(self, place: str, slow_where_bound: bool) -> None:
        super().__init__()
        self.wait_s *= 3
        self.place, self.slow_where_bound = Path(place), slow_where_bound
        self.known: list[int] = []

    def __getitem__(self, index: int) -> Tensor:
        cpus, worker = sorted(os.sched_getaffinity(0)), get_worker_info()
        if cpus != self.known:
            self.known = cpus
            process = "main" if worker is None else f"worker{worker.id}"
            with (self.place / f"rank{RANK}-{process}").open("a") as file:
                file.write(f"{','.join(map(str, cpus))}\n")
        if (len(cpus) == 1) == self.slow_where_bound:
            time.sleep(14 * self.wait_s)
        return super().__getitem__(index)


class OfOneThread(Waits):
    """Can be loaded by a process whose torch computes in one thread only."""

    def __getitem__(self, index: int) -> Tensor:
        assert torch.get_num_threads() == 1
        return super().__getitem__(index)


def of_one_thread() -> DataLoader[Tensor]:
    return DataLoader(OfOneThread(), batch_size=4)


def even() -> DataLoader[Tensor]:
    return DataLoader(Waits(), batch_size=4)


def straggling() -> DataLoader[Tensor]:
    return DataLoader(Waits(slower=3.0), batch_size=4)


def killed() -> DataLoader[Tensor]:
    return DataLoader(Signalled(signal.SIGKILL), batch_size=4)


def stopped() -> DataLoader[Tensor]:
    return DataLoader(Signalled(signal.SIGSTOP), batch_size=4)


def noted(folder: str) -> DataLoader[Tensor]:
    return DataLoader(Noted(folder), batch_size=4, shuffle=True)


def placed(folder: str, slow: str = "free") -> DataLoader[Tensor]:
    return DataLoader(Placed(folder, slow == "bound"), batch_size=1)


def asking() -> DataLoader[Tensor]:
    """As training code has it, where a process group knows the rank."""
    dataset = Waits()
    return DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))


def meeting() -> DataLoader[Tensor]:
    """The same where each trial builds the target, since a thread doesn't survive a fork."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return asking()


def uneven() -> DataLoader[Tensor]:
    dataset = Waits(length=40 + 40 * RANK)
    return DataLoader(dataset, batch_size=4, sampler=list(range(len(dataset))))


def other() -> DataLoader[Tensor]:
    return DataLoader(Noted("/") if RANK else Waits(), batch_size=4)
