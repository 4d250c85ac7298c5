"""Loaders that are made around a DataLoader: taken as loaders, and rebuilt without a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dlprof.errors import TargetError
from dlprof.records import Config
from dlprof.targets.build import build_from_object
from dlprof.targets.loader import EpochGate, make_loader
from dlprof.targets.parts import dataloader_of, inner_loaders


class Stream(IterableDataset[int]):
    """Ten numbers, shared among workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 10, step))


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Chain(IterableDataset[Any]):
    """What ``webdataset.WebLoader`` is: stages in a list, the first of them a DataLoader."""

    def __init__(self, *stages: Any) -> None:
        self.pipeline = [*stages]

    def __iter__(self) -> Iterator[Any]:
        source = iter(self.pipeline[0])
        for stage in self.pipeline[1:]:
            source = stage(source)
        yield from source


class Wrapper:
    """No dataset of torch's, as a prefetcher to a device is."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Unused(IterableDataset[int]):
    """Holds a DataLoader that its batches don't come from."""

    def __init__(self) -> None:
        self.validation = DataLoader(Numbers())

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Closed(DataLoader[int]):
    """Can't be built again: its argument is kept nowhere."""

    def __init__(self, folder: str) -> None:
        super().__init__(Numbers(), batch_size=len(folder), num_workers=2, prefetch_factor=3)


def pairs(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from batch


def chain(**settings: Any) -> Chain:
    return Chain(DataLoader(Stream(), batch_size=2, **settings), pairs)


def taken(found: object, **settings: Any) -> list[int]:
    return [int(each) for each in make_loader(build_from_object(found), Config(**settings))]


def test_a_chain_is_no_dataset_to_be_batched_again() -> None:
    own = chain(num_workers=4, prefetch_factor=3)
    built = build_from_object(own)
    assert built.target.kind == "iterable"
    assert built.target.dataset.endswith("Stream")
    assert built.target.own_config == Config(num_workers=4, prefetch_factor=3)
    assert (built.target.batch_size, built.target.length) == (None, None)
    assert taken(own) == list(range(10))


def test_the_inner_loader_is_set_in_a_copy() -> None:
    own = chain(num_workers=4)
    inner = own.pipeline[0]
    made = make_loader(build_from_object(own), Config(num_workers=2, worker_threads=1))
    rebuilt = dataloader_of(made)
    assert isinstance(made, Chain)
    assert rebuilt is not None
    assert (rebuilt.num_workers, rebuilt.batch_size) == (2, 2)
    assert rebuilt.worker_init_fn is not None
    assert own.pipeline[0] is inner
    assert (inner.num_workers, inner.worker_init_fn) == (4, None)
    assert sorted(int(each) for each in made) == list(range(10))


@pytest.mark.parametrize(
    "found",
    [
        Chain(Chain(DataLoader(Stream(), batch_size=2)), pairs),
        Wrapper(DataLoader(Numbers(), batch_size=None)),
        chain,
    ],
    ids=["nested", "wrapper", "function"],
)
def test_what_holds_one_further_in_is_a_loader_too(found: object) -> None:
    assert taken(found) == list(range(10))


def test_what_holds_none_stays_a_dataset() -> None:
    assert inner_loaders(Stream()) == ()
    assert inner_loaders([DataLoader(Numbers())]) == ()
    assert build_from_object(Chain(Stream())).target.own_config is None


def test_a_chain_that_holds_itself_is_searched_once() -> None:
    own = chain()
    own.pipeline.append(own)
    assert inner_loaders(own) == (own.pipeline[0],)


def test_several_loaders_in_one_are_refused() -> None:
    with pytest.raises(TargetError, match="holds 2 DataLoaders"):
        build_from_object(Chain(DataLoader(Numbers()), [DataLoader(Numbers())]))


def test_a_batch_size_is_that_of_the_chain() -> None:
    built = build_from_object(chain())
    assert "batch_size" in built.target.fixed
    with pytest.raises(TargetError, match="makes its batches itself"):
        make_loader(built, Config(batch_size=4))


def test_one_that_cannot_be_built_again_is_taken_as_it_is() -> None:
    own = Wrapper(Closed("ab"))
    built = build_from_object(own, shuffle=True)
    gate = EpochGate()
    assert make_loader(built, Config(num_workers=2, prefetch_factor=3), gate=gate) is own
    assert not gate.attached
    assert "can't be built again" in gate.reason
    assert built.target.own_config == Config(num_workers=2, prefetch_factor=3)
    assert built.target.attainable(Config(), has_accelerator=False) == built.target.own_config
    assert set(built.target.fixed) == set(Config.__dataclass_fields__)
    assert "--shuffle is left out" in built.target.notes[1]


def test_a_settings_function_makes_each_loader_itself() -> None:
    asked: list[int] = []

    def make(num_workers: int = 2) -> Chain:
        asked.append(num_workers)
        return chain(num_workers=num_workers)

    built = build_from_object(make)
    made = make_loader(built, Config(num_workers=1))
    assert sorted(int(each) for each in made) == list(range(10))
    assert asked == [2, 0, 1]  # it may start what it is asked for, and is looked at alone
    assert built.target.own_config == Config(num_workers=2, prefetch_factor=2)
    assert built.target.fixed["prefetch_factor"].endswith("make() takes no prefetch_factor")
    assert "num_workers" not in built.target.fixed
    assert "worker_threads" not in built.target.fixed


def test_a_settings_function_that_ignores_num_workers_is_found_out_in_a_chain() -> None:
    def make(num_workers: int = 0) -> Chain:
        return chain(num_workers=0 * num_workers)

    with pytest.raises(TargetError, match="asked for num_workers=2"):
        make_loader(build_from_object(make), Config(num_workers=2))


def test_epochs_of_a_chain_are_never_ended() -> None:
    gate = EpochGate()
    made = make_loader(build_from_object(chain()), Config(), gate=gate)
    gate.reopen(limit=1)
    assert len(list(made)) == 10
    assert not gate.confirm()
    assert "Chain" in gate.reason


def test_what_a_chain_holds_is_spread_over_its_epoch() -> None:
    def found(dataset: Dataset[int], *, spread: bool) -> tuple[list[int], bool]:
        own = Chain(DataLoader(dataset, batch_size=2), pairs)
        gate = EpochGate(spread=spread)
        batches = [int(each) for each in make_loader(build_from_object(own), Config(), gate=gate)]
        return batches, gate.in_order

    plain, spread = found(Numbers(), spread=False), found(Numbers(), spread=True)
    assert plain[1]
    assert spread[1]
    assert plain[0] == sorted(spread[0]) != spread[0]
    assert not found(Stream(), spread=True)[1]


def test_a_loader_that_does_not_load_from_what_it_holds_is_refused() -> None:
    gate = EpochGate()
    next(iter(make_loader(build_from_object(Unused()), Config(), gate=gate)))
    with pytest.raises(TargetError, match="don't come from that one"):
        gate.confirm()
