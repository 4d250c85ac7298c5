"""Loaders drawn at random, written to files as users write them; knows nothing of dlprof.

``draw`` takes any ``random.Random``: a seeded one for the benchmark, hypothesis's for the tests.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["map", "iterable", "endless", "batching"]

_COLLATES: Mapping[str, str] = MappingProxyType(
    {
        "default": "",
        "dict": 'def collate(samples):\n    return {"x": torch.stack(samples), "n": len(samples)}',
        "tuple": "def collate(samples):\n    return torch.stack(samples), tuple(range(8))",
        "list": 'def collate(samples):\n    return [{"x": sample} for sample in samples]',
        "named": (
            'Batch = collections.namedtuple("Batch", "x first")\n\n\n'
            "def collate(samples):\n    return Batch(torch.stack(samples), samples[0])"
        ),
        "padded": (
            "def collate(samples):\n"
            "    cut = [s[: 1 + n % len(s)] for n, s in enumerate(samples)]\n"
            "    padded = torch.nn.utils.rnn.pad_sequence(cut, batch_first=True)\n"
            "    return padded, torch.tensor([len(s) for s in cut])"
        ),
    }
)
_SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "default": "len(batch)",
        "dict": 'len(batch["x"])',
        "tuple": "len(batch[0])",
        "list": "len(batch)",
        "named": "len(batch.x)",
        "padded": "len(batch[0])",
    }
)
_SAMPLERS: Mapping[str, str] = MappingProxyType(
    {
        "order": "",
        "shuffle": "shuffle=True",
        "weighted": "sampler=WeightedRandomSampler([1.0] * LENGTH, LENGTH)",
        "batches": "batch_sampler=Batches()",
    }
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What is drawn of a loader.

    Attributes:
        kind: Of the dataset; ``batching`` is an iterable one that gives batches itself.
        sample_s: Seconds that a sample waits.
        rounds: Rounds of plain Python that a sample computes.
        tail: Every so many samples wait ten times as long; 0 for none.
        batch_size: Samples of a full batch.
        length: Samples of an epoch.
        shards: Of an iterable dataset.
        sizes: Sizes of a batching dataset's batches, in turn; the last of a shard is what is left.
        drop_last: Whether the loader drops what doesn't fill a batch.
        sampler: One of those above.
        collate: Likewise.
        features: Floats in a sample.
        workers: Worker processes that are tried beside none.
        prefetch: Batches sent ahead to each.
        persistent: Whether the loader itself has persistent workers.
        own_workers: Workers that the loader itself has.
    """

    kind: Kind = "map"
    sample_s: float = 0.0
    rounds: int = 0
    tail: int = 0
    batch_size: int = 16
    length: int = 1_000
    shards: int = 8
    sizes: tuple[int, ...] = ()
    drop_last: bool = False
    sampler: str = "order"
    collate: str = "default"
    features: int = 8
    workers: int = 2
    prefetch: int = 2
    persistent: bool = False
    own_workers: int = 0

    @property
    def computes(self) -> bool:
        """Whether its samples compute rather than wait."""
        return self.rounds > 0

    @property
    def epoch_samples(self) -> int | None:
        """Samples that an epoch in the main process gives; ``None`` without an end."""
        if self.kind == "endless":
            return None
        if self.sampler == "batches" or self.kind == "batching" or not self.drop_last:
            return self.length
        return self.length // self.batch_size * self.batch_size


def draw(rng: random.Random, *, kind: Kind | None = None, longest_s: float = 20.0) -> Drawn:
    """Draw a loader.

    Args:
        rng: What draws.
        kind: Of the dataset; drawn, too, if left out.
        longest_s: About how long an epoch in the main process may take at most.
    """
    drawn_kind: Kind = rng.choice(("map", "map", "map", "iterable", "endless", "batching"))
    kind = kind or drawn_kind
    computes = rng.random() < 0.3
    sample_s = 0.0 if computes else rng.choice((0.0005, 0.001, 0.002, 0.005))
    rounds = rng.choice((2_000, 6_000, 20_000)) if computes else 0
    cost_s = sample_s or rounds * 5e-8
    batch_size = rng.choice((1, 3, 8, 16, 32)) if cost_s >= 0.001 else rng.choice((16, 32, 64))
    epoch = rng.choice((rng.randint(3, 50), 100_000))
    shards = rng.choice((4, 8, 12))
    batches = max(3, min(epoch, math.ceil(longest_s / (cost_s * batch_size))))
    length = batches * batch_size - rng.randrange(batch_size)
    workers = rng.choice((1, 2, 2, 3, 4)) if not computes else rng.choice((1, 2))
    sizes: tuple[int, ...] = ()
    if kind == "batching":
        sizes = rng.choice(((batch_size,), (1, 2 * batch_size, 5), (batch_size, 3)))
    if kind != "map":
        length = max(length, shards * 3)
    indexed = kind == "map"
    return Drawn(
        kind=kind,
        sample_s=sample_s,
        rounds=rounds,
        tail=rng.choice((0, 0, 0, 23)) if not computes else 0,
        batch_size=batch_size,
        length=length,
        shards=shards,
        sizes=sizes,
        drop_last=kind != "batching" and rng.random() < 0.3,
        sampler=rng.choice(tuple(_SAMPLERS)) if indexed else "order",
        collate=rng.choice(tuple(_COLLATES)) if kind != "batching" else "default",
        features=rng.choice((1, 8, 64, 4_096)),
        workers=workers,
        prefetch=rng.choice((1, 2, 2, 4)),
        persistent=rng.random() < 0.4,
        own_workers=rng.choice((0, workers)),
    )


def module_text(drawn: Drawn) -> str:
    """The module of a drawn loader: ``make_loader()`` and ``by_hand_make_loader(**settings)``."""
    parts = [
        _HEAD.format(drawn=drawn),
        _dataset(drawn),
        _BATCHES if drawn.sampler == "batches" else "",
        _COLLATES[drawn.collate],
        f"def samples_of(batch):\n    return {_SAMPLES[drawn.collate]}",
        _loader(drawn),
    ]
    return "\n\n\n".join(filter(None, parts)) + "\n"


_HEAD = """\
import collections
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data import WeightedRandomSampler, get_worker_info

LENGTH = {drawn.length}
SHARDS = {drawn.shards}


def sample(index):
    if {drawn.sample_s}:
        tailed = {drawn.tail} and index % {drawn.tail} == 1 if {drawn.tail} else False
        time.sleep({drawn.sample_s} * (10 if tailed else 1))
    if {drawn.rounds}:
        sum(number * number % 7 for number in range({drawn.rounds}))
    return torch.full(({drawn.features},), float(index))"""

_MAP = """\
class Data(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return sample(index)"""

_ITERABLE = """\
class Data(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in range(first, SHARDS, stride):
            yield from map(sample, range(shard, LENGTH, SHARDS))"""

_ENDLESS = """\
class Data(Once):
    def __iter__(self):
        while True:
            yield from super().__iter__()"""

_BATCHING = """\
class Data(Once):
    def __iter__(self):
        batch, turn = [], 0
        for each in super().__iter__():
            batch.append(each)
            if len(batch) == {sizes}[turn % {count}]:
                yield torch.stack(batch)
                batch, turn = [], turn + 1
        if batch:
            yield torch.stack(batch)"""

_BATCHES = """\
class Batches(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        first, turn = 0, 0
        while first < LENGTH:
            size = SIZES[turn % len(SIZES)]
            yield list(range(first, min(first + size, LENGTH)))
            first, turn = first + size, turn + 1"""


def _dataset(drawn: Drawn) -> str:
    if drawn.kind == "map":
        return _MAP
    if drawn.kind == "iterable":
        return _ITERABLE
    once = _ITERABLE.replace("class Data", "class Once")
    if drawn.kind == "endless":
        return f"{once}\n\n\n{_ENDLESS}"
    batching = _BATCHING.format(sizes=drawn.sizes, count=len(drawn.sizes))
    return f"{once}\n\n\n{batching}"


def _loader(drawn: Drawn) -> str:
    arguments = []
    if drawn.sampler == "batches":
        half = max(1, drawn.batch_size // 2)
        sizes = f"SIZES = ({half}, {drawn.batch_size + half})\n\n\n"
    else:
        sizes = ""
        size = None if drawn.kind == "batching" else drawn.batch_size
        arguments.append(f"batch_size={size}")
    arguments += filter(None, [_SAMPLERS[drawn.sampler]])
    if drawn.drop_last and drawn.sampler != "batches":
        arguments.append("drop_last=True")
    if drawn.collate != "default":
        arguments.append("collate_fn=collate")
    own: dict[str, Any] = {"num_workers": drawn.own_workers}
    if drawn.own_workers:
        own |= {"prefetch_factor": drawn.prefetch, "persistent_workers": drawn.persistent}
    return (
        f"{sizes}def by_hand_make_loader(**settings):\n"
        f"    return DataLoader(Data(), {', '.join(arguments)}, **settings)\n\n\n"
        f"def make_loader():\n    return by_hand_make_loader(**{own!r})"
    )
