"""``synthetic``: samples that cost what the user says, in CPU time, waiting, and bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dlprof.internals import batch_seed
from dlprof.targets.builtin.options import SyntheticOptions

# Hashed in one go; below 2048 bytes hashlib keeps the GIL, as most Python code does.
_CHUNK = bytes(2047)

Sample = tuple[Any, ...]


class SyntheticDataset(Dataset[Sample]):
    """A map-style set of samples that cost what ``options`` say."""

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options

    def __len__(self) -> int:
        return self.options.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.options.length:
            raise IndexError(index)
        return make_sample(self.options, index)


class SyntheticStream(IterableDataset[Sample]):
    """The same samples, iterable-style: each worker yields every n-th of them."""

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, self.options.length, step):
            yield make_sample(self.options, index)


def make_loader(options: SyntheticOptions, *, seed: int) -> DataLoader[Sample]:
    """The loader of the workload; its order is the index order, so ``seed`` changes nothing."""
    del seed
    dataset = SyntheticStream(options) if options.iterable else SyntheticDataset(options)
    return DataLoader(dataset, batch_size=32)


def make_sample(options: SyntheticOptions, index: int) -> Sample:
    """Pay the cost of one sample and return its tensors and its index."""
    factor = cost_factor(index, *options.tail)
    burn(options.cpu_ms * factor / 1e3)
    if options.wait_ms > 0:
        time.sleep(options.wait_ms * factor / 1e3)
    dtype = getattr(torch, options.dtype)
    tensors = [torch.full(options.shape, index % 251, dtype=dtype) for _ in range(options.tensors)]
    return (*tensors, index)


def burn(seconds: float) -> None:
    """Use a core until this thread's own CPU clock has advanced so far.

    Measured by CPU time and not by the wall clock, so that neighbours don't make it less work.
    """
    if seconds <= 0:
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(_CHUNK)


def cost_factor(index: int, share: float, factor: float) -> float:
    """What a sample costs relative to others: ``factor`` for a fixed ``share`` of the indices."""
    if share <= 0:
        return 1.0
    # Looks random over the indices, and is the same in every run.
    return factor if batch_seed(0, 0, index) / 2**64 < share else 1.0
