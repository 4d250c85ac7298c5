"""Loaders whose settings a script changes as they load, and what they load, for tests of tuning."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    get_worker_info,
)

from dlprof.tuning import loader as tuned
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window

LENGTH = 96


class Numbers(Dataset[torch.Tensor]):
    """Each sample is its number and three random ones."""

    def __init__(self, length: int = LENGTH, *, draws: bool = True) -> None:
        self.length, self.draws = length, draws

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.draws:
            return torch.tensor([float(index)])
        drawn = [random.random(), float(torch.rand(())), float(np.random.rand())]  # noqa: NPY002 - as users draw
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


SINCE_IMPORT = 0.0


class Changed(Numbers):
    """Its samples are what this module has by now, in the process that asks."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(SINCE_IMPORT)


class Streams(IterableDataset[int]):
    """Shares its samples out among workers, unevenly."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, LENGTH - 20 * number, count))


class Scripted(Control):
    """Has another setting in every window, whatever it sees."""

    settings: tuple[Setting, ...] = tuple(
        Setting(*each) for each in [(3, 2), (1, 1), (2, 4), (4, 1), (1, 3), (4, 4), (2, 1)]
    )

    def begin(self) -> Ask:
        self._following = itertools.cycle(self.settings)
        return Ask(self.kept, 0, 2, 0.0)

    def look(self, window: Window) -> Ask:
        self.batches += window.batches
        following = next(self._following)
        if not self._changes_workers:
            following = Setting(self.kept.workers, following.ahead)
        return Ask(following, 1, 2, 0.0)


class Refused(Scripted):
    """Notes why it got no setting, and stays with what it has then."""

    refusals: ClassVar[list[str]]

    def look(self, window: Window) -> Ask:
        self.refusals.extend([window.refused] if window.refused else [])
        return Ask(self.kept, 0, 2, 0.0) if window.refused else super().look(window)


def refusals_of(monkeypatch: pytest.MonkeyPatch, *wanted: Setting) -> list[str]:
    """Have loaders tuned by a control that wants these settings; why it didn't get them."""
    said = list[str]()
    monkeypatch.setattr(Refused, "refusals", said, raising=False)
    monkeypatch.setattr(Refused, "settings", wanted)
    monkeypatch.setattr(tuned, "Control", Refused)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    return said


def loader(dataset: Any = None, **options: Any) -> Any:
    options = {"batch_size": 4, "num_workers": 2, **options}
    if dataset is None:
        options.setdefault("generator", torch.Generator().manual_seed(5))
        options.setdefault("shuffle", True)
    return DataLoader(Numbers() if dataset is None else dataset, **options)


def numbers(batches: Any) -> list[list[float]]:
    return [batch[:, 0].tolist() for batch in batches]


class Sparing(Scripted):
    """Spares all workers, and the second epoch starts none."""

    settings = (NO_WORKERS,)

    def look(self, window: Window) -> Ask:
        self.kept = NO_WORKERS
        return super().look(window)


class Returning(Scripted):
    """Has no workers as each epoch begins, soon some, and then none again."""

    settings = (Setting(3, 1), NO_WORKERS, Setting(2, 2))

    def begin(self) -> Ask:
        self.kept = NO_WORKERS
        return super().begin()


class Hiring(Scripted):
    """Has some workers from the second epoch on."""

    settings = (Setting(3, 2),)


class Failing(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 41:
            raise KeyError("no such picture")
        return torch.tensor([float(index)])


class Waiting(Dataset[int]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        return index


class Eager(Sampler[list[int]]):
    """Draws all of an epoch when it is asked for it, and counts how often that is."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.asked += 1
        order: list[int] = torch.randperm(LENGTH).tolist()
        return iter([order[at : at + 4] for at in range(0, LENGTH, 4)])

    def __len__(self) -> int:
        return LENGTH // 4
