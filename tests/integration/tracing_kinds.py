"""Loaders of every kind, whose samples show whatever a tracer could have changed."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

LENGTH = 26


class Chain:
    """As torchvision and albumentations have it."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class SlicedChain(Chain):
    """As MONAI has it: a tuple, of which it goes through a slice."""

    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms[0 : len(self.transforms)]:
            sample = transform(sample)
        return sample


class Jitter:
    """A transform that draws."""

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        return sample + torch.rand(3) + random.random()


def double(sample: torch.Tensor) -> torch.Tensor:
    return sample * 2


def about(dataset: Any) -> list[Any]:
    """What this process knows of itself; the same with a tracer and without."""
    info = get_worker_info()
    name = multiprocessing.current_process().name.partition("-")[0]
    given = [name, getattr(dataset, "mark", None), type(dataset).__name__]
    if info is None:
        return given
    own = getattr(info.dataset, "mark", None), type(info.dataset).__name__
    return [*given, *own, info.id, info.num_workers, info.seed]


class Map(Dataset[Any]):
    """Draws from every generator; the facts come back as text."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        facts = [index, *about(self), info is not None and info.dataset is self]
        return {"x": torch.rand(3), "r": random.random(), "facts": repr(facts)}


class Batched(Map):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Transformed(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.ones(3) * index)


class Stream(IterableDataset[Any]):
    """Shards itself by its own attribute, if its worker has set one, else by its worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(getattr(self, "first", first), LENGTH, step):
            facts = repr([index, *about(self), isinstance(self, IterableDataset)])
            yield {"x": torch.rand(3), "facts": facts}


class StopsEarly(Map):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise StopIteration
        return super().__getitem__(index)


class Nested(Map):
    """Runs a loader of its own for each sample, over itself."""

    def __getitem__(self, index: int) -> Any:
        inner: DataLoader[Any] = DataLoader(Transformed(double), batch_size=13)
        return {"inner": [batch.sum() for batch in inner], **super().__getitem__(index)}


def mark(worker: int) -> None:
    """A user's worker_init_fn: sets attributes on its dataset, and draws."""
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.mark = f"{worker} {torch.rand(1).item()}"
    dataset.first = worker


def collate(samples: Any) -> Any:
    return [torch.rand(2), len(samples), samples]


def collate_one(sample: Any) -> Any:
    return [torch.rand(2), sample]


class OwnCollate(DataLoader[Any]):
    """Makes batches by a method, so that a worker that is spawned gets the loader itself."""

    def __init__(self, dataset: Dataset[Any], batch_size: int, **given: Any) -> None:
        super().__init__(dataset, batch_size, collate_fn=self.collate, **given)

    def collate(self, samples: Any) -> Any:
        return [*collate(samples), type(self).__name__]


Make = Callable[..., DataLoader[Any]]
KINDS: dict[str, Make] = {
    "map": lambda **given: DataLoader(Map(), 4, shuffle=True, **given),
    "drop_last": lambda **given: DataLoader(Map(), 4, drop_last=True, **given),
    "generator": lambda **given: DataLoader(
        Map(), 4, shuffle=True, generator=torch.Generator().manual_seed(5), **given
    ),
    "sampler": lambda **given: DataLoader(
        Map(), 4, sampler=WeightedRandomSampler([1.0] * LENGTH, LENGTH), **given
    ),
    "batch_sampler": lambda **given: DataLoader(
        Map(), batch_sampler=BatchSampler(SequentialSampler(range(LENGTH)), 5, False), **given
    ),
    "batch_size=None": lambda **given: DataLoader(Map(), batch_size=None, **given),
    "batch_size=None, collate": lambda **given: DataLoader(
        Map(), batch_size=None, sampler=[3, 1, 2, 25], collate_fn=collate_one, **given
    ),
    "own collate": lambda **given: OwnCollate(Map(), 4, **given),
    "collate": lambda **given: DataLoader(Map(), 4, collate_fn=collate, **given),
    "__getitems__": lambda **given: DataLoader(Batched(), 4, shuffle=True, **given),
    "Subset": lambda **given: DataLoader(Subset(Map(), range(3, 20)), 4, **given),
    "Subset of __getitems__": lambda **given: DataLoader(
        Subset(Subset(Batched(), range(3, 20)), [5, 1, 2, 7]), 3, **given
    ),
    "ConcatDataset": lambda **given: DataLoader(ConcatDataset([Map(), Map()]), 4, **given),
    "chain": lambda **given: DataLoader(
        Subset(Transformed(Chain([double, Jitter()])), range(20)), 4, **given
    ),
    "sliced chain": lambda **given: DataLoader(
        Transformed(SlicedChain((Jitter(), double))), 4, **given
    ),
    "iterable": lambda **given: DataLoader(Stream(), 4, **given),
    "iterable, drop_last": lambda **given: DataLoader(Stream(), 4, drop_last=True, **given),
    "iterable, batch_size=None": lambda **given: DataLoader(Stream(), batch_size=None, **given),
    "nested": lambda **given: DataLoader(Nested(), 4, **given),
    "truncated": lambda **given: DataLoader(StopsEarly(), 4, **given),
}
