"""The gate that ends an epoch on demand and changes nothing else."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dlprof.internals import index_source
from dlprof.records import Config
from dlprof.targets.build import build_from_object, describe_loader
from dlprof.targets.loader import EpochGate, GatedIndices, make_loader


class Squares(Dataset[int]):
    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index * index


class Numbers(Squares):
    def __getitem__(self, index: int) -> int:
        return index


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class EagerSampler(Sampler[int]):
    """Draws its order when iter() is called, as DistributedSampler does."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.randperm(20).tolist()
        return iter(order)

    def set_epoch(self, epoch: int) -> int:
        return epoch


class OwnBatches:
    """Batches of two sizes, by chance."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(20).tolist()
        for at in range(0, 20, 4):
            yield order[at : at + 3]
            yield order[at + 3 : at + 4]


class RepeatingLoader(DataLoader[int]):
    """Keeps one iterator for ever, as timm's and ultralytics' loaders do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = super().__iter__()

    def __iter__(self) -> Any:
        return self.kept


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_has_as_many_batches_of_another_size_as_torch_makes(drop_last: bool) -> None:
    def made(batch_size: int) -> DataLoader[int]:
        return DataLoader(Squares(), batch_size=batch_size, drop_last=drop_last)

    target = describe_loader(made(3), text="data.py:make", arguments={})
    sizes = range(1, 21)
    assert [*map(target.epoch_batches, sizes)] == [len(made(size)) for size in sizes]


def gated(found: object, config: Config | None = None) -> tuple[DataLoader[Any], EpochGate]:
    gate = EpochGate()
    loader = make_loader(build_from_object(found, batch_size=3), config or Config(), gate=gate)
    assert isinstance(loader, DataLoader)
    return loader, gate


def test_an_open_gate_passes_the_user_s_batches_in_the_user_s_order() -> None:
    plain = DataLoader(Squares(), batch_size=3, sampler=EagerSampler())
    torch.manual_seed(3)
    expected = [batch.tolist() for batch in plain]
    loader, gate = gated(plain)
    torch.manual_seed(3)
    assert [batch.tolist() for batch in loader] == expected
    assert gate.attached
    assert gate.batches == 7
    assert list(gate.sizes or ()) == [3, 3, 3, 3, 3, 3, 2]
    assert gate.exact


@pytest.mark.parametrize("sampler", [None, DistributedSampler(Squares(), 2, 1, shuffle=False)])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 10])
def test_a_spread_epoch_has_the_same_batches_from_all_over_it(
    sampler: Sampler[int] | None, batch_size: int | None
) -> None:
    plain: DataLoader[Any] = DataLoader(Numbers(), batch_size=batch_size, sampler=sampler)
    expected = [torch.as_tensor(batch).tolist() for batch in plain]
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(), gate=gate)
    found = [torch.as_tensor(batch).tolist() for batch in loader]
    assert sorted(found) == sorted(expected)
    assert gate.batches == len(expected)


def test_every_few_batches_are_spread_over_the_epoch() -> None:
    plain = DataLoader(Numbers(4000), batch_size=8)
    loader = make_loader(build_from_object(plain), Config(), gate=EpochGate(spread=True))
    quarters = [int(batch[0]) // 1000 for batch in loader]
    assert all(set(quarters[at : at + 8]) == {0, 1, 2, 3} for at in range(len(quarters) - 8))


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("sampler", [None, EagerSampler()])
def test_more_workers_than_batches_are_asked_for_no_more_of_them(
    sampler: Sampler[int] | None, length: int
) -> None:
    plain = DataLoader(Numbers(length), batch_size=3, sampler=sampler, num_workers=8)
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(num_workers=8), gate=gate, any_size=True)
    source: Any = index_source(loader)
    batches = [*source]
    assert sorted(index for batch in batches for index in batch) == (
        [*range(20 if sampler else length)]
    )
    assert all(batches)


class Fewer(Sampler[int]):
    """Yields fewer than its length says, and draws random numbers to say that."""

    def __len__(self) -> int:
        return 20 + 0 * int(torch.rand(1))

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(10).tolist()


def test_a_spread_epoch_is_what_torch_would_draw() -> None:
    plain = DataLoader(Numbers(), batch_size=4, sampler=Fewer(), drop_last=True)
    torch.manual_seed(3)
    expected = [batch.tolist() for batch in plain]
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(), gate=gate)
    torch.manual_seed(3)
    assert sorted(batch.tolist() for batch in loader) == sorted(expected)
    assert len(expected) == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_load_batches_that_are_near_each_other(workers: int) -> None:
    """Else a long one beside short ones would hold them back, as none does in order."""
    plain = DataLoader(Numbers(4000), batch_size=8, num_workers=workers)
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(num_workers=workers), gate=gate)
    source: Any = index_source(loader)
    numbers = [batch[0] // 8 for batch in source]
    assert sorted(numbers) == list(range(500))
    rounds = [numbers[at : at + workers] for at in range(0, 500, workers)]
    assert all(each == list(range(each[0], each[0] + len(each))) for each in rounds)
    quarters = [each[0] // 125 for each in rounds[:-1]]
    assert all(set(quarters[at : at + 8]) == {0, 1, 2, 3} for at in range(len(quarters) - 8))


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3, "sampler": EagerSampler()},
        {"batch_size": None, "sampler": EagerSampler()},
        {"batch_sampler": OwnBatches()},
    ],
)
def test_an_order_of_the_user_s_own_is_spread(arguments: dict[str, Any]) -> None:
    """As of samples that are sorted by what they cost; what it draws by chance, it draws alike."""
    torch.manual_seed(3)
    plain: DataLoader[Any] = DataLoader(Squares(), **arguments)
    expected = [torch.as_tensor(batch).tolist() for batch in plain]
    after = torch.rand(1)
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(), gate=gate)
    torch.manual_seed(3)
    found = [torch.as_tensor(batch).tolist() for batch in loader]
    assert sorted(found) == sorted(expected)
    assert found != expected
    assert torch.rand(1) == after
    assert gate.batches == len(expected)


class Reshuffling(RandomSampler):
    """As accelerate's and many a project's."""


class Wrapping:
    """Shares out batches of another, as accelerate's does."""

    sampler: Any

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler, self.sampler = batch_sampler, None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


class Counting(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(20))


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(Squares(), generator=torch.Generator().manual_seed(3)),
        WeightedRandomSampler([1.0] * 20, 20, generator=torch.Generator().manual_seed(3)),
        DistributedSampler(Squares(), 1, 0, shuffle=True),
        Reshuffling(Squares()),
        Wrapping(BatchSampler(Reshuffling(Squares()), 3, drop_last=False)),
        Counting(),
    ],
)
def test_an_order_of_chance_or_without_end_stays(sampler: Any) -> None:
    batches = {"batch_sampler": sampler} if isinstance(sampler, Wrapping) else {"batch_size": 3}
    one = {} if isinstance(sampler, Wrapping) else {"sampler": sampler}
    plain: DataLoader[Any] = DataLoader(Squares(), **batches, **one)
    gate = EpochGate(spread=True)
    loader = make_loader(build_from_object(plain), Config(), gate=gate)
    next(iter(loader))
    assert not gate.in_order


class AskingLoader(DataLoader[int]):
    """Asks of which class its sampler is, and sets an attribute of it, as each epoch begins."""

    def __iter__(self) -> Any:
        assert isinstance(self.sampler, EagerSampler)
        assert isinstance(self.batch_sampler, BatchSampler)
        vars(self.sampler).setdefault("epochs", 0)
        self.batch_sampler.drop_last = True
        return super().__iter__()


def test_a_loader_finds_its_own_batch_sampler_behind_the_gate() -> None:
    plain = AskingLoader(Squares(), batch_size=3, sampler=EagerSampler())
    loader, gate = gated(plain)
    assert len(list(loader)) == len(list(plain)) == 6  # without the last one, of two samples
    assert gate.attached


def test_the_random_streams_stay_as_they_are() -> None:
    def draws(*, with_gate: bool) -> tuple[float, torch.Tensor]:
        plain = DataLoader(Squares(), batch_size=3, sampler=EagerSampler())
        loader = gated(plain)[0] if with_gate else plain
        torch.manual_seed(5)
        iterator = iter(loader)
        return iterator._base_seed, torch.get_rng_state()

    (seed, state), (plain_seed, plain_state) = draws(with_gate=True), draws(with_gate=False)
    assert seed == plain_seed
    assert torch.equal(state, plain_state)


@pytest.mark.parametrize("found", [Squares(), Endless()])
def test_a_closed_gate_ends_the_epoch_and_reopens(found: object) -> None:
    loader, gate = gated(found)
    for _ in range(2):
        gate.reopen(limit=2)
        assert len(list(loader)) == 2
        assert gate.closed
        assert gate.batches == 2
    assert list(loader) == []  # still closed


def test_a_closed_gate_draws_no_further_index() -> None:
    drawn = []

    def indices() -> Iterator[list[int]]:
        for index in range(5):
            drawn.append(index)
            yield [index]

    class Batches:
        def __iter__(self) -> Iterator[list[int]]:
            return indices()

    gate = EpochGate()
    gate.reopen(limit=1)
    assert list(GatedIndices(Batches(), gate, list)) == [[0]]
    assert drawn == [0]


def test_sizes_without_batching() -> None:
    loader, gate = gated(DataLoader(Squares(), batch_size=None, sampler=[4, 2]))
    assert list(loader) == [16, 4]
    assert gate.exact
    assert gate.sizes is None  # a dataset may give a whole batch for an index
    _, gate = gated(DataLoader(Endless(), batch_size=None))
    assert gate.attached
    assert not gate.exact


def test_an_iterable_may_give_less_than_was_asked_for() -> None:
    loader, gate = gated(Endless())
    next(iter(loader))
    assert gate.sizes is None
    assert not gate.exact


def test_index_batches_without_a_length_are_not_counted() -> None:
    class Lazy:
        def __iter__(self) -> Iterator[Iterator[int]]:
            yield iter([1, 2])

    lazy: Any = Lazy()
    loader, gate = gated(DataLoader(Squares(), batch_sampler=lazy))
    assert [batch.tolist() for batch in loader] == [[1, 4]]
    assert (gate.batches, gate.sizes, gate.exact) == (1, None, True)


def test_the_loader_looks_as_before() -> None:
    own = DataLoader(Squares(), batch_size=3, sampler=EagerSampler(), drop_last=True)
    loader, _ = gated(own)
    assert len(loader) == len(own)
    assert (loader.batch_size, loader.drop_last) == (3, True)
    assert loader.sampler is own.sampler
    indices: Any = loader.batch_sampler
    assert indices.batch_size == 3
    unbatched, _ = gated(DataLoader(Squares(), batch_size=None, sampler=own.sampler))
    sampler: Any = unbatched.sampler
    assert sampler.set_epoch(4) == 4
    with pytest.raises(AttributeError):
        _ = sampler.nothing


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))]
)
def test_a_loader_is_copied_and_pickled_with_its_gate(copied: Callable[[Any], Any]) -> None:
    """As each worker that is spawned gets it, of a class that collates by its own method."""
    sampler = EagerSampler()
    loader, _ = gated(DataLoader(Squares(), batch_size=3, sampler=sampler))
    vars(sampler)["loader"] = loader  # which refers to the sampler
    indices = copied(loader).batch_sampler
    assert type(indices) is GatedIndices
    assert isinstance(indices, BatchSampler)
    assert (len(indices), indices.batch_size) == (7, 3)
    assert [len(batch) for batch in indices] == [3, 3, 3, 3, 3, 3, 2]


def test_what_cannot_be_gated_says_why() -> None:
    gate = EpochGate()
    assert not gate.attached
    assert gate.reason
    gate.attach([1, 2])
    assert "list is not a torch.utils.data.DataLoader" in gate.reason


def test_a_loader_with_an_iterator_of_its_own_is_found_out() -> None:
    loader, gate = gated(RepeatingLoader(Squares(), batch_size=3))
    next(iter(loader))
    assert gate.attached
    assert not gate.confirm()
    assert "its own iterator" in gate.reason


def test_a_gate_in_use_is_confirmed() -> None:
    loader, gate = gated(Squares())
    next(iter(loader))
    assert gate.confirm()
    assert not gate.reason
