"""``recommendation.apply(loader)``: the user's loader with other settings, and nothing else new."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sample_run import RECOMMENDATION
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dlprof.errors import TargetError, UsageError
from dlprof.records import Config, Recommendation
from dlprof.targets.workers import WorkerSetup

DATA = TensorDataset(torch.arange(12))


def advised(**settings: Any) -> Recommendation:
    return dataclasses.replace(RECOMMENDATION, config=Config(**settings))


def collate(samples: list[Any]) -> Any:
    return torch.stack([sample for (sample,) in samples])


def begin(worker: int) -> None:
    """Nothing to set up."""


class Named(DataLoader[Any]):
    """A loader of the user's own, with an argument that can be read back."""

    def __init__(self, *args: Any, tag: str, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.tag = tag


class Sealed(DataLoader[Any]):
    """One that can't be made again."""

    def __init__(self, secret: str) -> None:
        super().__init__(DATA)


class Doubled(IterableDataset[Any]):
    """A loader around a DataLoader."""

    def __init__(self, inner: DataLoader[Any]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            yield 2 * batch


class Uncopied(Doubled):
    def __copy__(self) -> Doubled:
        raise ValueError("there is only one of me")


def test_all_but_the_settings_stays() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        DATA,
        batch_size=4,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        worker_init_fn=begin,
        generator=generator,
    )
    made = advised(num_workers=2, prefetch_factor=4, persistent_workers=True).apply(loader)
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers) == (2, 4, True)
    assert made.sampler is loader.sampler
    assert (made.batch_size, made.drop_last, made.collate_fn) == (4, True, collate)
    assert (made.worker_init_fn, made.generator) == (begin, generator)
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)


def test_batches_are_the_same() -> None:
    loader = DataLoader(DATA, batch_size=5, collate_fn=collate, num_workers=2)
    made = advised(num_workers=0).apply(loader)
    assert [batch.tolist() for batch in made] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    bigger = advised(num_workers=0, batch_size=12).apply(loader)
    assert [len(batch) for batch in bigger] == [12]


def test_what_is_no_argument_of_a_loader_is_set_too() -> None:
    advice = advised(
        num_workers=1,
        start_method="spawn",
        sharing_strategy="file_system",
        worker_threads=3,
        in_order=False,
    )
    made = advice.apply(DataLoader(DATA))
    context: Any = made.multiprocessing_context
    assert (context.get_start_method(), made.in_order) == ("spawn", False)
    assert made.worker_init_fn == WorkerSetup(None, "file_system", 3)


def test_what_was_applied_before_is_replaced() -> None:
    loader = DataLoader(DATA, worker_init_fn=begin)
    once = advised(num_workers=1, sharing_strategy="file_system").apply(loader)
    assert once.worker_init_fn == WorkerSetup(begin, "file_system", None)
    twice = advised(num_workers=1, worker_threads=2).apply(once)
    assert twice.worker_init_fn == WorkerSetup(begin, None, 2)
    assert advised(num_workers=1).apply(twice).worker_init_fn is begin


def test_a_loader_of_ones_own_class_stays_one() -> None:
    made = advised(num_workers=2).apply(Named(DATA, batch_size=3, tag="train"))
    assert (type(made), made.tag, made.num_workers, made.batch_size) == (Named, "train", 2, 3)


def test_the_loader_inside_of_another_is_set() -> None:
    loader = Doubled(DataLoader(DATA, batch_size=6, collate_fn=collate, num_workers=2))
    made = advised(num_workers=0).apply(loader)
    assert made.inner.num_workers == 0
    assert [batch.tolist() for batch in made] == [[0, 2, 4, 6, 8, 10], [12, 14, 16, 18, 20, 22]]
    assert loader.inner.num_workers == 2


@pytest.mark.parametrize(
    ("make", "settings", "kind", "message"),
    [
        (lambda: DATA, {}, UsageError, "this is torch.utils.data.dataset.TensorDataset. Pass the"),
        (lambda: DataLoader, {}, UsageError, "Settings are applied to a DataLoader"),
        (lambda: None, {}, UsageError, "this is NoneType"),
        (
            lambda: DataLoader(DATA, batch_sampler=[[0], [1, 2]]),
            {"batch_size": 8},
            TargetError,
            "The batch size can't be set to 8",
        ),
        (lambda: Sealed("x"), {}, TargetError, "Sealed can't be built again"),
        (lambda: Uncopied(DataLoader(DATA)), {}, TargetError, "ValueError: there is only one of"),
    ],
)
def test_what_can_not_be_set_is_refused_in_a_sentence(
    make: Callable[[], Any], settings: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        advised(**settings).apply(make())
    assert message in str(caught.value)
    assert "recommendation.dataloader_kwargs" in str(caught.value)


def test_a_loader_that_goes_on_from_a_state_is_not_begun_again() -> None:
    loader: Any = DataLoader(DATA, batch_size=4)
    loader.next_iter_state = {"_num_workers": 2}  # as torchdata's keeps it
    with pytest.raises(TargetError, match="goes on from a state") as caught:
        advised(num_workers=2).apply(loader)
    assert "load the state" in caught.value.hint
    loader.next_iter_state = None
    assert advised(num_workers=2).apply(loader).num_workers == 2
