"""Loops of many kinds for ``dlprof run --headroom``; prints what each of them was trained on."""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Numbers(Dataset[Any]):
    """Samples that wait."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return torch.full((4,), 1.0), index


class Stream(IterableDataset[Any]):
    """A stream of them."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(800):
            time.sleep(0.001)
            yield torch.full((4,), 1.0), index


class Locked:
    """What is in no other batch, and can't be."""

    def __init__(self, samples: list[Any]) -> None:
        self.seen = torch.tensor([index for _, index in samples])

    def __deepcopy__(self, _memo: Any) -> Any:
        raise TypeError("locked")


def step(features: Any) -> None:
    """As a training step: draws random numbers, changes its batch, needs gradients."""
    weight = torch.ones(4, requires_grad=True)
    features.mul_(torch.rand(1))
    (torch.nn.functional.dropout(features) @ weight).sum().backward()
    time.sleep(0.006)


def show(name: str, seen: list[int], batches: int) -> None:
    """The order in which samples came first, as a number, and how many batches there were."""
    first = list(dict.fromkeys(seen))
    mixed = sum(place * index for place, index in enumerate(first)) % 1_000_003
    print(name, len(first), mixed, batches, flush=True)  # noqa: T201 - a script


def train(name: str, batches: Iterable[Any], *, changes: bool = True) -> None:
    """One loop."""
    seen: list[int] = []
    count = 0
    for batch in batches:
        count += 1
        if isinstance(batch, Locked):
            seen += batch.seen.tolist()
            continue
        features, indices = batch
        seen += indices.tolist()
        if changes:
            step(features)
    show(name, seen, count)


def aside(loader: Any) -> Iterator[Any]:
    """Batches taken by a thread."""
    taken: queue.Queue[Any] = queue.Queue(4)

    def take() -> None:
        for batch in loader:
            taken.put(batch)
        taken.put(None)

    threading.Thread(target=take, daemon=True).start()
    return iter(taken.get, None)


def main() -> None:
    """All of them, or one that ends early."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    plain: dict[str, Any] = {"batch_size": 4, "shuffle": True}
    loader = DataLoader(Numbers(800), num_workers=2, **plain)
    if sys.argv[1:] == ["fail"]:
        for number, (features, _) in enumerate(loader):
            step(features)
            if number == 120:
                raise ValueError("nan")
    if sys.argv[1:] == ["wait"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
        for number, (features, _) in enumerate(loader):
            step(features)
            if number == 150:
                print("begun", flush=True)  # noqa: T201 - as above
                time.sleep(60)
    train("workers", loader)
    train("again", loader)
    train("none", DataLoader(Numbers(800), **plain))
    train("stream", DataLoader(Stream(), batch_size=4, num_workers=1))
    train("persistent", DataLoader(Numbers(800), num_workers=1, persistent_workers=True, **plain))
    short = DataLoader(Numbers(40), num_workers=1, **plain)
    for _ in range(3):
        train("short", short)
    with torch.no_grad():
        train("untrained", DataLoader(Numbers(400), **plain), changes=False)
    train("locked", DataLoader(Numbers(400), batch_size=4, collate_fn=Locked))
    train("aside", aside(DataLoader(Numbers(400), num_workers=1, **plain)))
    two = [DataLoader(Numbers(400), batch_size=4, num_workers=n) for n in (0, 1)]
    train("pairs", (one for one, _ in zip(*two, strict=True)))


if __name__ == "__main__":
    main()
