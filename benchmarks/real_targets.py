"""Datasets that do what real ones do, in pure Python: what ``real_data.py`` and ``picks.py`` load.

Costs are those of real work on real cores and of real sleeping: nothing here burns a set time. No
numpy: where people compute with it, plain Python stands in. JPEG files and text are dlprof's own
``images`` and ``text``.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

LENGTH = 400_000
"""Samples: more than any trial takes, and not too many to be shuffled."""

LANES = 4
_MEGABYTE = 1 << 20


class Sized(Dataset[Any]):
    """A map-style dataset that doesn't end while it is measured."""

    def __len__(self) -> int:
        return LENGTH


class Computed(Sized):
    """Samples that are computed in Python, each a little cheaper or costlier than the next."""

    def __getitem__(self, index: int) -> torch.Tensor:
        values = [(index * 2654435761 + n * n) % 1009 for n in range(8000 + index % 7 * 500)]
        values.sort()
        return torch.tensor(values[:1024], dtype=torch.float32)


class Remote(Sized):
    """Samples that wait for storage far away: 3 ms at least, 5 ms on average."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.003 + random.Random(index).expovariate(1 / 0.002))
        return torch.full((3, 32, 32), float(index % 251))


class Laned(Sized):
    """Storage that serves a few requests at once, each in 5 ms, and lets the others wait.

    Its lanes are locks of the files beside this one: the kernel lets them go with a process that
    is ended while it holds one, and nothing is left behind.
    """

    def __init__(self) -> None:
        self._owner = 0
        self._lanes: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._owner != os.getpid():  # a lock belongs to what was opened, which forks share
            self._owner, self._lanes = os.getpid(), _opened()
        lane = next(filter(_is_free, self._lanes), None)
        if lane is None:
            lane = self._lanes[index % LANES]
            fcntl.flock(lane, fcntl.LOCK_EX)
        time.sleep(0.005)
        fcntl.flock(lane, fcntl.LOCK_UN)
        return torch.full((3, 32, 32), float(index % 251))


def _opened() -> list[int]:
    files = sorted(Path(__file__).parent.glob("*.py"))[:LANES]
    return [os.open(file, os.O_RDONLY) for file in files]


def _is_free(lane: int) -> bool:
    """Take a lane, if nobody has it."""
    try:
        fcntl.flock(lane, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Tiny(Sized):
    """Samples that cost next to nothing."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index % 251)), index


class Large(Sized):
    """Samples of 8 MB, copied from a few that lie in memory."""

    def __init__(self) -> None:
        self._kept = [torch.full((2 * _MEGABYTE,), float(n)) for n in range(4)]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._kept[index % len(self._kept)].clone()


class Tailed(Sized):
    """Of a hundred samples, three wait and compute fifteen times as long as the others."""

    def __getitem__(self, index: int) -> torch.Tensor:
        times = 15 if random.Random(index).random() < 0.03 else 1
        time.sleep(0.001 * times)
        values = [(index + n) % 1009 for n in range(4000 * times)]
        return torch.tensor(values[:1024], dtype=torch.float32)


class Shards(IterableDataset[torch.Tensor]):
    """Compressed shards of 32 samples each, in memory; workers share them out."""

    _COUNT, _SAMPLES, _SIZE = 24, 32, 16384

    def __init__(self) -> None:
        noise = (random.Random(n).randbytes(self._SIZE // 4) for n in range(self._COUNT))
        self._shards = [zlib.compress(part * 4 * self._SAMPLES, 6) for part in noise]

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, LENGTH // self._SAMPLES, step):
            data = bytearray(zlib.decompress(self._shards[number % self._COUNT]))
            samples = torch.frombuffer(data, dtype=torch.uint8).view(self._SAMPLES, self._SIZE)
            yield from (samples[place].float() for place in range(self._SAMPLES))


def computed() -> DataLoader[Any]:
    """CPU, by plain Python."""
    return DataLoader(Computed(), batch_size=8)


def remote() -> DataLoader[Any]:
    """Waiting for storage."""
    return DataLoader(Remote(), batch_size=8)


def laned() -> DataLoader[Any]:
    """Waiting for storage that serves only so many at once."""
    return DataLoader(Laned(), batch_size=8)


def tiny() -> DataLoader[Any]:
    """Next to nothing."""
    return DataLoader(Tiny(), batch_size=64)


def large() -> DataLoader[Any]:
    """Many bytes."""
    return DataLoader(Large(), batch_size=2)


def tailed() -> DataLoader[Any]:
    """A heavy tail."""
    return DataLoader(Tailed(), batch_size=8)


def shards() -> DataLoader[Any]:
    """Decompressing."""
    return DataLoader(Shards(), batch_size=32)
