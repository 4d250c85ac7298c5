"""Twenty datasets with one attribute that weighs most, and the name that it goes by.

Everything that could be taken for it is planted beside: large tensors and arrays that cost next to
nothing, and lists that are long but light.
"""

from __future__ import annotations

import array
import collections
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

ENTRIES = 40_000


class Held(Dataset[torch.Tensor]):
    """Holds whatever it is given, beside what looks heavy and isn't."""

    def __init__(self, **held: Any) -> None:
        self.means = torch.zeros(64, 1024)
        self.classes = [f"class {number}" for number in range(100)]
        self.length = 100
        self.__dict__.update(held)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3, 8, 8)


class Tokenizer:
    """A vocabulary with its reverse, as tokenizers keep it."""

    def __init__(self) -> None:
        self.pad = 0
        self.vocabulary = {f"token{number}": number for number in range(ENTRIES)}
        self.special = ["[PAD]", "[CLS]"]


class Record:
    """One annotation."""

    __slots__ = ("box", "label", "path")

    def __init__(self, number: int) -> None:
        self.path, self.label, self.box = f"/data/{number}.jpg", number % 10, (0.5, number, 1, 2)


class Slotted(Dataset[torch.Tensor]):
    """Keeps its attributes in slots."""

    __slots__ = ("index", "note")

    def __init__(self) -> None:
        self.index, self.note = [str(number) for number in range(ENTRIES)], "a note"

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3, 8, 8)


class Stated(Held):
    """Leaves its cache out of what it pickles, as good datasets do."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name != "cache"}


class Slow:
    """Takes its time to be pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {"numbers": [number * number for number in range(2_000_000)][:3]}


class Scale:
    """A transform with a table."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        """Leave it as it is."""
        return sample


def scaled(sample: torch.Tensor, table: Any) -> torch.Tensor:
    """A transform that is given its table."""
    del table
    return sample


def closing(table: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A transform that holds its table where nobody sees it."""

    def transform(sample: torch.Tensor) -> torch.Tensor:
        return sample * len(table)

    return transform


def texts() -> list[str]:
    """Paths."""
    return [f"/data/images/{number:09d}.jpg" for number in range(2 * ENTRIES)]


def records() -> list[dict[str, Any]]:
    """Annotations as people load them from JSON."""
    return [
        {"path": f"{number}.jpg", "label": number % 10, "box": [0.5 * number, 1, 2, 3]}
        for number in range(ENTRIES)
    ]


def pictures() -> list[Any]:
    """Decoded pictures."""
    from PIL import Image

    return [Image.new("RGB", (224, 224)) for _ in range(100)]


def numbers() -> Any:
    """A large array."""
    import numpy as np

    return np.random.default_rng(0).random((4_000, 1_000))


def objects() -> Any:
    """An array of Python objects."""
    import numpy as np

    return np.array(texts(), dtype=object)


def frame() -> Any:
    """A table with a column of texts."""
    pandas = importlib.import_module("pandas")
    return pandas.DataFrame({"path": texts(), "label": range(2 * ENTRIES)}).astype({"path": object})


def shared() -> Held:
    """Two attributes, one list."""
    both = texts()
    return Held(train=both, everything=both, labels=list(range(ENTRIES)))


def indexed() -> dict[str, tuple[int, int]]:
    """A large dict."""
    return {f"key {number}": (number, number + 1) for number in range(ENTRIES)}


PLANTED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "list of dicts": (lambda: Held(records=records()), ("records",)),
    "list of paths": (lambda: Held(paths=texts()), ("paths",)),
    "list of tuples": (
        lambda: Held(samples=[(path, 1) for path in texts()], labels=list(range(1000))),
        ("samples",),
    ),
    "PIL images": (lambda: Held(images=pictures(), names=texts()[:2000]), ("images",)),
    "numpy array": (lambda: Held(pixels=numbers(), names=texts()[:2000]), ("pixels",)),
    "array of objects": (lambda: Held(paths=objects()), ("paths",)),
    "pandas frame": (lambda: Held(frame=frame()), ("frame",)),
    "large dict": (lambda: Held(index=indexed(), paths=texts()[:5000]), ("index",)),
    "dict of lists": (
        lambda: Held(splits={"train": texts(), "val": texts()[:100]}),
        ("splits['train']",),
    ),
    "objects with slots": (
        lambda: Held(records=[Record(number) for number in range(ENTRIES)]),
        ("records",),
    ),
    "slots of the dataset": (Slotted, ("index",)),
    "subset": (lambda: Subset(Held(names=indexed()), list(range(100))), ("dataset.names",)),
    "indices of a subset": (
        lambda: Subset(Held(length=10 * ENTRIES), list(range(10 * ENTRIES))),
        ("indices",),
    ),
    "concatenated": (
        lambda: ConcatDataset([Held(paths=texts()[:100]), Held(paths=records())]),
        ("datasets[1].paths",),
    ),
    "table of a transform": (lambda: Held(transform=Scale(indexed())), ("transform.table",)),
    "argument of a partial": (
        lambda: Held(transform=functools.partial(scaled, table=texts())),
        ("transform['table']",),
    ),
    "closure": (lambda: Held(transform=closing(indexed())), ("transform.table",)),
    "tokenizer": (lambda: Held(tokenizer=Tokenizer()), ("tokenizer.vocabulary",)),
    "shared by two": (shared, ("train", "everything")),
    "left out of the state": (
        lambda: Stated(cache=records() * 2, counts=collections.Counter(texts())),
        ("counts",),
    ),
    "slow to pickle": (
        lambda: Held(model=Slow(), ids=array.array("q", range(ENTRIES)), few=texts()[:2000]),
        ("model.numbers", "model"),
    ),
    "nested lists": (
        lambda: Held(boxes=[[[float(a), 1.0], [2.0, 3.0]] for a in range(ENTRIES)]),
        ("boxes",),
    ),
}
