"""Trainings on the CPU that time themselves: ``python headroom_scripts.py NAME OUT.json [apart]``.

Epochs from the loader and stretches from memory, at once and after the waits that the loader's had
before, take turns in one process, so that what changes the machine's speed changes all; with
``apart``, so do epochs in which the workers and the step are kept on cores of their own. Nothing
here knows dlprof.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from training_scripts import Samples, Stream, Validation, model, stepper

EPOCHS = 8
BATCHES = 80
FROM_MEMORY = 30
"""Steps of each stretch from memory."""

_LEFT_OUT = 2
_RARE = 5.0
"""Steps that take so many times as long as usual are left out, as dlprof leaves them out."""

_SIZE = 16
Step = Callable[[Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One kind.

    Attributes:
        data: Makes its dataset.
        step: Makes its step.
        loader: Arguments of its DataLoader.
        around: What its loop iterates instead of the loader.
        between: Called after each epoch.
        threads: Of torch.
    """

    data: Callable[[], Any]
    step: Callable[[], Step]
    loader: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    around: Callable[[Iterable[Any]], Iterable[Any]] = iter
    between: Callable[[], None] = lambda: None
    threads: int = 1


class Tailed(Samples):
    """One sample in a hundred takes 15 times as long as the others."""

    def __getitem__(self, index: int) -> Any:
        if index % 100 == 0:
            time.sleep(14 * self.wait_s)
        return super().__getitem__(index)


class Packed(Dataset[Any]):
    """Samples that are decompressed, as images are decoded."""

    def __init__(self, length: int, side: int) -> None:
        self.length = length
        numbers = random.Random(0)
        pixels = bytes(numbers.randrange(40) for _ in range(3 * side * side))
        self.side, self.packed = side, zlib.compress(pixels)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.packed)), dtype=torch.uint8)
        return pixels.view(3, self.side, self.side).float().div_(40), index % 10


class Shaped(Dataset[Any]):
    """Samples of any shape that wait."""

    def __init__(
        self, length: int, shape: Sequence[int], *, tensors: int = 1, wait_s: float
    ) -> None:
        self.length, self.shape, self.tensors, self.wait_s = length, shape, tensors, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        return {f"field{n}": torch.full(tuple(self.shape), 0.5) for n in range(self.tensors)}


class Ragged(Samples):
    """Sequences whose length differs from batch to batch, and with it the step."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        return torch.full((1 + index // _SIZE * 7 % 24, 64), 0.5), index % 10


def padded(samples: Sequence[Any]) -> Any:
    """A batch of sequences."""
    longest = nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True)
    return longest, torch.tensor([label for _, label in samples])


class Endless(IterableDataset[Any]):
    """A stream without an end, split between workers."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __iter__(self) -> Iterator[Any]:
        mine = get_worker_info()
        first, stride = (0, 1) if mine is None else (mine.id, mine.num_workers)
        for number in itertools.count(first, stride):
            time.sleep(self.wait_s)
            yield torch.full((64,), 0.5), number % 10


def of_sequences() -> Step:
    """A step whose time grows with the length of its sequences."""
    net = model(96)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        sequences, labels = batch
        for place in range(sequences.shape[1]):
            loss = nn.functional.cross_entropy(net(sequences[:, place]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def of_images() -> Step:
    """A small convolutional network."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        images, labels = batch
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def in_place(width: int) -> Step:
    """A step that changes its batch."""
    plain = stepper(width)

    def step(batch: Any) -> None:
        batch[0].sub_(0.5).mul_(2.0)
        batch[1].sub_(0)
        plain(batch)

    return step


def reading(sleep_s: float) -> Step:
    """A step that reads all of its batch, and a device that takes its time."""

    def step(batch: Any) -> None:
        weight = torch.ones(1, requires_grad=True)
        for each in batch.values():
            (each.sum() * weight).sum().backward()
        time.sleep(sleep_s)

    return step


def one_ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """As Accelerate takes batches: one ahead, to know which is the last."""
    batches = iter(loader)
    now = next(batches)
    for coming in batches:
        yield now
        now = coming
    yield now


def validating() -> Callable[[], None]:
    """A validation over a loader of its own."""
    loader = DataLoader(Validation(160, wait_s=0.0005), batch_size=_SIZE, num_workers=1)
    net = model(64)

    def validate() -> None:
        with torch.no_grad():
            for features, _ in loader:
                net(features)

    return validate


N = BATCHES * _SIZE
TRAININGS: Mapping[str, Training] = {
    # name: what loading does, workers; what the step does
    "waits_2": Training(
        data=lambda: Samples(N, wait_s=0.002), loader={"num_workers": 2},
        step=lambda: stepper(32, 0.006),
    ),
    "waits_0": Training(
        data=lambda: Samples(N, wait_s=0.0005), step=lambda: stepper(32, 0.010),
    ),
    "waits_1_computing": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 1},
        step=lambda: stepper(900),
    ),
    "waits_4_deep": Training(
        data=lambda: Samples(N, wait_s=0.003), loader={"num_workers": 4, "prefetch_factor": 4},
        step=lambda: stepper(32, 0.008),
    ),
    "computes_0": Training(
        data=lambda: Samples(N, cpu_s=0.0005), step=lambda: stepper(32, 0.008),
    ),
    "computes_2": Training(
        data=lambda: Samples(N, cpu_s=0.001), loader={"num_workers": 2},
        step=lambda: stepper(32, 0.006),
    ),
    "computes_1_computing": Training(
        data=lambda: Samples(N, cpu_s=0.0005), loader={"num_workers": 1},
        step=lambda: stepper(900),
    ),
    "computes_2_computing": Training(
        data=lambda: Samples(N, cpu_s=0.001), loader={"num_workers": 2},
        step=lambda: stepper(900),
    ),
    "computes_4_computing": Training(
        data=lambda: Samples(N, cpu_s=0.0005), loader={"num_workers": 4},
        step=lambda: stepper(1200),
    ),
    "computes_2_threads": Training(
        data=lambda: Samples(N, cpu_s=0.0005), loader={"num_workers": 2},
        step=lambda: stepper(1500), threads=2,
    ),
    "fed_sleeping": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 2},
        step=lambda: stepper(32, 0.014),
    ),
    "fed_computing": Training(
        data=lambda: Samples(N, cpu_s=0.0003), loader={"num_workers": 2},
        step=lambda: stepper(1200),
    ),
    "nearly_fed": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 2},
        step=lambda: stepper(32, 0.0075),
    ),
    "stream_2": Training(
        data=lambda: Stream(4, of_each=N // 4, wait_s=0.001), loader={"num_workers": 2},
        step=lambda: stepper(64, 0.004),
    ),
    "endless_1": Training(
        data=lambda: Endless(0.0005), loader={"num_workers": 1},
        around=lambda loader: itertools.islice(loader, BATCHES), step=lambda: stepper(64, 0.006),
    ),
    "tailed": Training(
        data=lambda: Tailed(N, wait_s=0.0008),
        loader={"num_workers": 2, "shuffle": True, "prefetch_factor": 4},
        step=lambda: stepper(32, 0.006),
    ),
    "ragged": Training(
        data=lambda: Ragged(N, wait_s=0.001), loader={"num_workers": 1, "collate_fn": padded},
        step=of_sequences,
    ),
    "images": Training(
        data=lambda: Packed(N, 96), loader={"num_workers": 2, "persistent_workers": True},
        step=of_images,
    ),
    "large": Training(
        data=lambda: Shaped(N, (64, 1024), wait_s=0.0005), loader={"num_workers": 2},
        step=lambda: reading(0.005),
    ),
    "many_tensors": Training(
        data=lambda: Shaped(N, (8,), tensors=30, wait_s=0.0002), loader={"num_workers": 1},
        step=lambda: reading(0.004),
    ),
    "changes_its_batches": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 2, "shuffle": True},
        step=lambda: in_place(400),
    ),
    "validated": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 1},
        step=lambda: stepper(64, 0.004), between=validating(),
    ),
    "one_ahead": Training(
        data=lambda: Samples(N, wait_s=0.001), loader={"num_workers": 2}, around=one_ahead,
        step=lambda: stepper(64, 0.005),
    ),
}  # fmt: skip


def _apart(others: set[int], _worker: int) -> None:
    os.sched_setaffinity(0, others)


def _timed(batches: Iterable[Any], step: Step) -> list[tuple[float, float]]:
    """Wait and step of each batch."""
    found, asked_s = [], time.perf_counter()
    for batch in batches:
        came_s = time.perf_counter()
        step(batch)
        done_s = time.perf_counter()
        found.append((came_s - asked_s, done_s - came_s))
        asked_s = done_s
    return found


def _waited_for(batches: Sequence[Any], waits_s: Sequence[float]) -> Iterator[Any]:
    for batch, wait_s in zip(batches, itertools.cycle(waits_s)):
        time.sleep(wait_s)
        yield batch


def _copy(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: each.clone() for name, each in batch.items()}
    return [each.clone() for each in batch]


def _means(times: Sequence[tuple[float, float]]) -> list[float]:
    """Mean wait and mean step, without steps that do something else as well."""
    most = _RARE * statistics.median(step for _, step in times)
    usual = [each for each in times if each[1] <= most]
    return [statistics.fmean(part) for part in zip(*usual, strict=True)]


def main() -> None:
    """Train, and write what it took."""
    name, out, *words = sys.argv[1:]
    training = TRAININGS[name]
    torch.manual_seed(0)
    torch.set_num_threads(training.threads)
    data, step = training.data(), training.step()
    options: dict[str, Any] = {"num_workers": 0, **training.loader}
    loader = DataLoader(data, batch_size=_SIZE, **options)
    all_cores = os.sched_getaffinity(0)
    own = {min(all_cores)}  # of the step; workers inherit it, and leave it
    others = all_cores - own
    keep_apart = functools.partial(_apart, others)
    aside = DataLoader(data, batch_size=_SIZE, worker_init_fn=keep_apart, **options)
    workers = options["num_workers"]
    first = 2 * workers * options.get("prefetch_factor", 2) + workers + _LEFT_OUT
    last = -workers * options.get("prefetch_factor", 2) or None
    kinds = ("live", "fed", "rested", "apart")
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with torch.no_grad():  # so that it counts for nothing but what is kept
        kept = [_copy(each) for each in itertools.islice(loader, FROM_MEMORY)]
    for number in range(EPOCHS):
        live = _timed(training.around(loader), step)[first:last]
        times["live"] += live
        time.sleep(0.05)
        again = [_copy(each) for each in kept]
        times["fed"] += _timed(again, step)[_LEFT_OUT:]
        if workers:  # without any the loader computes in its waits
            again = [_copy(each) for each in kept]
            waits_s = [wait for wait, _ in live]
            times["rested"] += _timed(_waited_for(again, waits_s), step)[_LEFT_OUT:]
        if words and others and number % 2 and training.threads == 1:  # more would leave their core
            os.sched_setaffinity(0, own)
            batches = training.around(aside)
            times["apart"] += _timed(batches, step)[first:last]
            os.sched_setaffinity(0, all_cores)
        training.between()
    means = {kind: _means(each) for kind, each in times.items() if each}
    Path(out).write_text(json.dumps(means))


if __name__ == "__main__":
    main()
