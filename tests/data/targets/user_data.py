"""A user's file: datasets and loaders that workers must be able to import by this file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset[tuple[int, int]]):
    """Eight samples; ``offset`` is set in each worker by the loader's own ``worker_init_fn``."""

    def __init__(self) -> None:
        self.offset = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index + self.offset


class Endless(IterableDataset[torch.Tensor]):
    """Samples without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(2)


class Probe(Dataset[tuple[int, str]]):
    """Reports how the process that loads it was set up."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[int, str]:
        strategy: Callable[[], str] = torch.multiprocessing.get_sharing_strategy
        return torch.get_num_threads(), strategy()


def set_offset(worker_id: int) -> None:
    """Mark the worker's own copy of the dataset."""
    info: Any = get_worker_info()
    info.dataset.offset = 10 * (worker_id + 1)


class OwnLoader(DataLoader[tuple[int, int]]):
    """Makes batches by a method, so that each worker gets the loader itself."""

    def __init__(self, dataset: Dataset[tuple[int, int]], **settings: Any) -> None:
        settings["collate_fn"] = self.rows
        super().__init__(dataset, **settings)

    def rows(self, samples: list[tuple[int, int]]) -> list[list[int]]:
        """Collate by taking each sample as a row."""
        return [[*sample] for sample in samples]


def make_own_loader() -> OwnLoader:
    """A loader of the user's own class."""
    return OwnLoader(Numbers(), batch_size=2)


def make_loader() -> DataLoader[tuple[int, int]]:
    """A loader as a training script has it."""
    return DataLoader(Numbers(), batch_size=2, worker_init_fn=set_offset)


def first(samples: list[tuple[int, str]]) -> tuple[int, str]:
    """Collate by taking the only sample."""
    return samples[0]


def probe_loader() -> DataLoader[tuple[int, str]]:
    """A loader whose batches show what the workers are like."""
    return DataLoader(Probe(), collate_fn=first)
