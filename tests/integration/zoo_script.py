"""A training script with loaders of many kinds; it prints what it got from each of them."""
# ruff: noqa: T201 - what it prints is what the test compares

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Numbers(Dataset[torch.Tensor]):
    """Pickled by spawned workers, which import this very script again for it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), torch.rand(1).item()])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class DataLoaderShard(DataLoader[Any]):
    """As accelerate's: one batch ahead of its consumer."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        current = next(batches)
        for following in batches:
            yield current
            current = following
        yield current


def show(name: str, loader: Any) -> None:
    total = [round(float(torch.as_tensor(batch).double().sum()), 5) for batch in loader]
    print(name, len(total), total)


def make(length: int, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(length), batch_size=4, **settings)


def main() -> None:
    torch.manual_seed(0)
    show("plain", make(40, shuffle=True))
    workers = make(40, num_workers=2, persistent_workers=True)
    for _ in range(3):
        show("workers", workers)
    show("spawned", make(8, num_workers=1, multiprocessing_context="spawn"))
    show("stream", DataLoader(Stream(), batch_size=None))
    show("shard", DataLoaderShard(Numbers(20), batch_size=4, num_workers=1))
    half = make(40, num_workers=1)
    for number, batch in enumerate(half):
        if number == 2:
            print("half", float(batch.sum()))
            break
    outer, inner = make(8), make(12)
    print("nested", sum(len(a) * len(b) for a in outer for b in inner))
    for number in range(100):
        listed: Any = [number]
        next(iter(DataLoader(listed)))
    thread = threading.Thread(target=show, args=("thread", make(16)))
    thread.start()
    thread.join()
    print(torch.rand(2).tolist())
    if sys.argv[1:] == ["fail"]:
        raise RuntimeError("after all that")


if __name__ == "__main__":
    main()
