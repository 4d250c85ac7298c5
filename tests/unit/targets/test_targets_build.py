"""What a target may be, and how a loader of it is built again for a configuration."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dlprof.errors import TargetError
from dlprof.integrations.loaders import describe
from dlprof.records import Config
from dlprof.targets.adapters import CHANGED_BY_TRAINING
from dlprof.targets.build import BuiltTarget, build_from_object, build_target
from dlprof.targets.grammar import TargetSpec, parse_target
from dlprof.targets.loader import make_loader
from dlprof.targets.parts import is_default


class Numbers(Dataset[int]):
    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Collator:
    def __call__(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples)


class Batched(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


class Curriculum(Numbers):
    def set_epoch(self, epoch: int) -> None:
        self.n = epoch


class Around(Numbers):
    """Holds others as its attributes."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        vars(self).update(held)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class ArrowDataset:
    """As Hugging Face's, which is none of torch's."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class PrefetchLoader:
    """As timm's, which is no DataLoader and holds one."""

    def __init__(self) -> None:
        self.loader = DataLoader(Numbers())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Halves(Numbers):
    def __len__(self) -> int:
        return self.n / 2  # type: ignore[return-value] # as users write


class OwnLoader(DataLoader[int]):
    """A subclass that takes what DataLoader takes, and one thing more."""

    def __init__(self, *args: Any, tag: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tag = tag


class ClosedLoader(DataLoader[int]):
    """A subclass whose argument is kept nowhere."""

    def __init__(self, folder: str, num_workers: int = 0) -> None:
        super().__init__(Numbers(len(folder)), batch_size=2, num_workers=num_workers)


def keep(samples: list[int]) -> list[int]:
    return samples


def start(worker_id: int) -> None: ...


def rebuilt(found: object, config: Config | None = None, **options: Any) -> DataLoader[Any]:
    loader = make_loader(build_from_object(found, **options), config or Config())
    assert isinstance(loader, DataLoader)
    return loader


def fault(build: Callable[[], object]) -> TargetError:
    with pytest.raises(TargetError) as caught:
        build()
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("found", [Numbers(), Numbers, list(range(10)), torch.arange(10)])
def test_datasets_of_all_kinds_are_taken_in_sequence(found: object) -> None:
    loader = rebuilt(found, batch_size=4)
    assert [len(batch) for batch in loader] == [4, 4, 2]
    assert isinstance(loader.sampler, SequentialSampler)


def test_an_iterable_dataset_and_an_endless_one() -> None:
    assert [len(batch) for batch in rebuilt(Stream(), batch_size=4)] == [4, 4, 2]
    built = build_from_object(Endless())
    assert (built.target.kind, built.target.length, built.target.batches_per_epoch) == (
        "iterable",
        None,
        None,
    )
    assert len(next(iter(make_loader(built, Config())))) == 32


def test_ten_million_indices_cost_nothing() -> None:
    built = build_from_object(range(10_000_000), batch_size=100)
    assert built.target.batches_per_epoch == 100_000
    assert next(iter(make_loader(built, Config()))).tolist()[:3] == [0, 1, 2]


def test_everything_of_a_loader_is_kept() -> None:
    generator = torch.Generator().manual_seed(1)
    own = DataLoader(
        Numbers(),
        batch_size=3,
        sampler=WeightedRandomSampler([1.0] * 10, 7, generator=generator),
        collate_fn=keep,
        drop_last=True,
        timeout=5,
        num_workers=1,
        worker_init_fn=start,
        generator=generator,
        multiprocessing_context="spawn",
        in_order=False,
    )
    loader = rebuilt(own, Config(num_workers=2, prefetch_factor=3, in_order=False))
    for name in ("dataset", "sampler", "collate_fn", "worker_init_fn", "generator"):
        assert getattr(loader, name) is getattr(own, name)
    assert (loader.batch_size, loader.drop_last, loader.timeout) == (3, True, 5)
    assert (loader.num_workers, loader.prefetch_factor, loader.in_order) == (2, 3, False)
    assert loader.multiprocessing_context is own.multiprocessing_context


def test_what_is_illegal_without_workers_is_dropped() -> None:
    own = DataLoader(
        Numbers(), num_workers=1, timeout=5, multiprocessing_context="spawn", prefetch_factor=4
    )
    loader = rebuilt(own)
    assert list(loader)  # torch checks the timeout when the iterator is made
    assert loader.multiprocessing_context is None


def test_a_custom_batch_sampler_is_kept() -> None:
    batches = [[1, 2], [3]]
    own = DataLoader(Numbers(), batch_sampler=batches)
    loader = rebuilt(own)
    assert loader.batch_sampler is batches
    assert [batch.tolist() for batch in loader] == batches
    target = build_from_object(own).target
    assert (target.batch_size, target.batches_per_epoch, target.sampler) == (None, 2, "list")


def test_what_a_batch_sampler_draws_is_the_length_of_an_epoch() -> None:
    """As of one of eight ranks, or of the part that is trained on."""
    sampler = BatchSampler(SubsetRandomSampler(range(6)), 2, drop_last=False)
    ways: list[dict[str, Any]] = [
        {"batch_sampler": sampler},
        {"sampler": sampler, "batch_size": None},
    ]
    for options in ways:
        target = build_from_object(DataLoader(Numbers(), **options)).target
        assert (target.length, target.batches_per_epoch) == (6, 3)
        assert target.epoch_batches(4) == 2


def test_batch_size_none_is_kept() -> None:
    own = DataLoader(Numbers(), batch_size=None, sampler=[3, 1])
    assert list(rebuilt(own)) == [3, 1]
    assert list(rebuilt(DataLoader(Stream(), batch_size=None))) == list(range(10))


def test_getitems_is_used() -> None:
    assert next(iter(rebuilt(Batched(), batch_size=3))).tolist() == [0, -1, -2]


def test_the_batch_size_is_set_where_it_can_be() -> None:
    config = Config(batch_size=5)
    assert rebuilt(DataLoader(Numbers(), batch_size=2), config).batch_size == 5
    sampler = BatchSampler(RandomSampler(range(10)), 2, drop_last=True)
    resized = rebuilt(DataLoader(Numbers(), batch_sampler=sampler), config).batch_sampler
    assert isinstance(resized, BatchSampler)
    assert (resized.batch_size, resized.drop_last, resized.sampler) == (5, True, sampler.sampler)
    inner = rebuilt(DataLoader(Numbers(), batch_size=None, sampler=sampler), config)
    assert [len(batch) for batch in inner.sampler] == [5, 5]


def test_a_batch_size_that_cannot_be_set() -> None:
    own = DataLoader(Numbers(), batch_sampler=[[1, 2]])
    assert "batch_sampler list" in fault(lambda: rebuilt(own, Config(batch_size=5))).message


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_order_is_shared_out_to_ranks(*, shuffle: bool) -> None:
    def share(rank: int) -> list[int]:
        loader = DataLoader(Numbers(10), batch_size=2, shuffle=shuffle)
        built = build_from_object(loader, share=(rank, 2))
        assert built.target.batches_per_epoch == 3
        assert built.target.length == 5
        return [int(n) for batch in make_loader(built, Config()) for n in batch]

    first, second = share(0), share(1)
    assert sorted([*first, *second]) == list(range(10))
    assert (first == [0, 2, 4, 6, 8]) is not shuffle


def test_a_sampler_of_ones_own_decides_what_a_rank_gets() -> None:
    own = WeightedRandomSampler([1.0] * 10, 7)
    built = build_from_object(DataLoader(Numbers(10), batch_size=2, sampler=own), share=(1, 2))
    assert built.target.length == 7
    assert built.target.notes == (
        "The target's own WeightedRandomSampler decides what each rank gets.",
    )
    ranked: DistributedSampler[int] = DistributedSampler(Numbers(10), num_replicas=2, rank=1)
    built = build_from_object(DataLoader(Numbers(10), sampler=ranked), share=(1, 2))
    assert built.target.notes == ()


def test_a_dataset_that_only_its_sampler_knows_the_length_of_is_shared_by_that() -> None:
    loader = DataLoader(Unsized(), batch_size=2, sampler=WeightedRandomSampler([1.0] * 4, 4))
    built = build_from_object(loader, share=(1, 2))
    assert built.target.notes == (
        "The target's own WeightedRandomSampler decides what each rank gets.",
    )


class _Own(DistributedSampler[int]):
    """One of the user's own."""


@pytest.mark.parametrize(("replicas", "each"), [(2, 5), (5, 2)])
def test_a_sampler_that_is_of_one_rank_on_all_of_them_gives_each_its_own_share(
    replicas: int, each: int
) -> None:
    """As that of a live loader, which is rank 0's, or of a target that names one rank."""

    def share(rank: int, kind: type[DistributedSampler[int]]) -> tuple[list[int], tuple[str, ...]]:
        sampler = kind(Numbers(10), num_replicas=replicas, rank=0, shuffle=True, seed=3)
        built = build_from_object(DataLoader(Numbers(10), sampler=sampler), share=(rank, 2))
        return [int(n) for n in make_loader(built, Config())], built.target.notes

    (first, _), (second, notes) = (share(rank, DistributedSampler) for rank in range(2))
    assert len(first) == len(second) == each
    assert not {*first} & {*second}
    of_one = "that of rank 0 on other ranks, too"
    assert notes == (f"The target's DistributedSampler is {of_one}: each loads its own share.",)
    own, notes = share(1, _Own)
    assert own == share(0, _Own)[0]
    assert notes == (f"The target's _Own is {of_one}: they load the same share.",)


@pytest.mark.parametrize("kind", [DistributedSampler, _Own])
def test_a_sampler_of_fewer_replicas_than_ranks_decides_what_each_gets(
    kind: type[DistributedSampler[int]],
) -> None:
    """Of four ranks in groups of two for tensor parallelism, those of a group load the same."""

    def share(rank: int) -> list[int]:
        sampler = kind(Numbers(10), num_replicas=2, rank=rank // 2, shuffle=False)
        built = build_from_object(DataLoader(Numbers(10), sampler=sampler), share=(rank, 4))
        said = f"The target's own {kind.__name__} decides what each rank gets."
        assert built.target.notes == (said,)
        return [int(n) for n in make_loader(built, Config())]

    assert share(0) == share(1) == [0, 2, 4, 6, 8]
    assert share(2) == share(3) == [1, 3, 5, 7, 9]


def test_shuffle_replaces_the_sampler_by_a_seeded_one() -> None:
    def order(seed: int) -> list[int]:
        batches = rebuilt(Numbers(100), shuffle=True, seed=seed, batch_size=100)
        drawn: list[int] = next(iter(batches)).tolist()
        return drawn

    assert order(1) == order(1) != order(2)
    own = DataLoader(Numbers(), shuffle=True)
    assert isinstance(rebuilt(own, shuffle=False).sampler, SequentialSampler)
    assert isinstance(rebuilt(own).sampler, RandomSampler)


@pytest.mark.parametrize(
    ("own", "note"),
    [
        (DataLoader(Stream()), "iterable dataset orders itself"),
        (DataLoader(Numbers(), batch_sampler=[[1]]), "own batch_sampler"),
        (
            DataLoader(Numbers(), batch_size=None, sampler=BatchSampler(range(4), 2, True)),
            "own batch_sampler",
        ),
        (DataLoader(Numbers(), sampler=WeightedRandomSampler([1.0], 3)), "WeightedRandomSampler"),
    ],
)
def test_a_shuffle_that_is_left_out_or_takes_something_away_is_noted(
    own: DataLoader[int], note: str
) -> None:
    target = build_from_object(own, shuffle=True).target
    assert note in target.notes[0]
    assert "--shuffle" in target.notes[0]


def test_building_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    rebuilt(DataLoader(Numbers(), shuffle=True))
    rebuilt(Numbers(), shuffle=True, batch_size=2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_subclass_is_built_again_with_its_own_arguments() -> None:
    loader = rebuilt(OwnLoader(Numbers(), batch_size=2, tag="x"), Config(num_workers=1))
    assert type(loader) is OwnLoader
    assert (loader.tag, loader.batch_size, loader.num_workers) == ("x", 2, 1)


def test_a_subclass_that_keeps_no_argument_is_copied_with_what_it_takes() -> None:
    built = build_from_object(ClosedLoader("abcd"))
    loader = make_loader(built, Config(num_workers=1))
    assert isinstance(loader, ClosedLoader)
    assert loader.num_workers == 1
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert built.target.fixed["pin_memory"] == "ClosedLoader takes no pin_memory"
    assert "num_workers" not in built.target.fixed


def test_a_subclass_that_makes_its_dataset_of_another_argument_is_copied() -> None:
    class Nodes(DataLoader[int]):
        """As PyG's RandomNodeLoader and ClusterLoader do."""

        def __init__(self, data: str, parts: int, **kwargs: Any) -> None:
            self.data, self.parts = data, parts
            rows: Any = range(parts)
            super().__init__(rows, **kwargs)

    loader = rebuilt(Nodes("abcd", 4, batch_size=2), Config(num_workers=1))
    assert (loader.num_workers, [batch.tolist() for batch in loader]) == (1, [[0, 1], [2, 3]])


def test_a_subclass_that_keeps_an_iterator_is_not_copied() -> None:
    """The copy would load by the settings of the iterator, whatever it was given."""

    class Endless(DataLoader[int]):
        def __init__(self, folder: str, num_workers: int = 0) -> None:
            super().__init__(Numbers(len(folder)), batch_size=2, num_workers=num_workers)
            self.kept = super().__iter__()

        def __iter__(self) -> Any:
            return (next(self.kept) for _ in range(len(self)))

    built = build_from_object(Endless("abcd"))
    assert built.parts is None
    assert "can't be built again" in built.target.fixed["num_workers"]
    assert built.target.notes == ("Endless is measured as it is.",)


def test_a_subclass_that_takes_no_workers_is_taken_as_it_is() -> None:
    class Fixed(DataLoader[int]):
        def __init__(self) -> None:
            super().__init__(Numbers(4), batch_size=2)

    built = build_from_object(Fixed())
    assert [batch.tolist() for batch in make_loader(built, Config())] == [[0, 1], [2, 3]]
    assert "can't be built again" in built.target.fixed["num_workers"]
    assert built.target.notes == ("Fixed is measured as it is.",)


def test_a_callable_that_makes_loaders_of_its_own_class() -> None:
    def make(folder: str, num_workers: int = 4) -> ClosedLoader:
        return ClosedLoader(folder, num_workers)

    built = build_from_object(make, {"folder": "abcd"})
    assert built.parts is None
    assert built.target.length == 4
    assert "make()" in built.target.notes[0]
    assert built.target.call.assigned({"num_workers": 2}) == "loader = make(num_workers=2)"
    loader = make_loader(built, Config(num_workers=1))
    assert isinstance(loader, ClosedLoader)
    assert loader.num_workers == 1
    error = fault(lambda: make_loader(built, Config(num_workers=1, prefetch_factor=8)))
    assert "takes no prefetch_factor" in error.message


def test_a_callable_gets_legal_settings_without_workers() -> None:
    seen: list[tuple[object, ...]] = []

    def make(*, num_workers: int, prefetch_factor: int = 4, batch_size: int = 3) -> OwnLoader:
        seen.append((num_workers, prefetch_factor, batch_size))
        return OwnLoader(
            Numbers(), batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor
        )

    built = build_from_object(make)
    make_loader(built, Config(batch_size=8))
    make_loader(built, Config(num_workers=1))
    assert seen == [(1, 4, 3), (0, None, 3), (0, None, 8), (1, 2, 3)]


@pytest.mark.parametrize("kind", [DataLoader, OwnLoader])
def test_what_a_callable_sets_with_workers_alone_is_the_users(kind: type[DataLoader[int]]) -> None:
    """Without workers torch refuses most of it, so the call that was made had none of it.

    Trials of a loader that spawns its workers forked them, and its workers that persist were
    recommended to it.
    """
    made: list[int] = []

    def make(num_workers: int = 2) -> DataLoader[int]:
        made.append(num_workers)
        some: dict[str, Any] = {"prefetch_factor": 4, "multiprocessing_context": "spawn"}
        some |= {"timeout": 60, "persistent_workers": True}
        return kind(Numbers(), 4, num_workers=num_workers, **(some if num_workers else {}))

    built = build_from_object(make)
    assert built.target.own_config == Config(
        num_workers=2, prefetch_factor=4, persistent_workers=True, start_method="spawn"
    )
    if kind is DataLoader:
        assert made == [2]
        assert built.parts is not None
        rebuilt = built.parts.build({"num_workers": 1})
        assert isinstance(rebuilt, DataLoader)
        assert rebuilt.multiprocessing_context.get_start_method() == "spawn"
        assert rebuilt.timeout == 60


def test_a_callable_that_is_not_to_be_asked_for_workers_is_asked_without() -> None:
    def make(num_workers: int = 2) -> DataLoader[int]:
        if num_workers:
            raise RuntimeError("not here")
        return DataLoader(Numbers(), 4)

    assert build_from_object(make).target.own_config == Config(num_workers=2, prefetch_factor=2)


def test_a_callable_that_ignores_num_workers() -> None:
    def make(num_workers: int) -> ClosedLoader:
        return ClosedLoader("abcd")

    built = build_from_object(make)
    assert (
        "asked for num_workers=2"
        in fault(lambda: make_loader(built, Config(num_workers=2))).message
    )


@pytest.mark.parametrize(
    "setting", [{"prefetch_factor": 8}, {"persistent_workers": True}, {"in_order": False}]
)
def test_a_callable_that_swallows_a_setting(setting: dict[str, Any]) -> None:
    def make(num_workers: int, **_rest: Any) -> OwnLoader:
        return OwnLoader(Numbers(), batch_size=2, num_workers=num_workers)

    built = build_from_object(make)
    assert [len(batch) for batch in make_loader(built, Config())] == [2] * 5
    error = fault(lambda: make_loader(built, Config(num_workers=2, **setting)))
    ((name, value),) = setting.items()
    assert f"make() was asked for {name}={value} and returned" in error.message


def test_a_callable_may_return_an_iterable_of_its_own() -> None:
    class Reader:
        def __init__(self, num_workers: int) -> None:
            self.num_workers = num_workers

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    def make(num_workers: int = 0) -> Reader:
        return Reader(num_workers)

    built = build_from_object(make)
    assert (built.target.kind, built.target.length) == ("iterable", None)
    assert list(make_loader(built, Config(num_workers=2))) == [1, 2]
    assert (
        "worker_threads"
        in fault(lambda: make_loader(built, Config(num_workers=2, worker_threads=1))).message
    )


def test_a_plain_loader_from_a_callable_is_taken_apart() -> None:
    calls: list[dict[str, Any]] = []

    def make(**settings: Any) -> DataLoader[int]:
        calls.append(settings)
        return DataLoader(Numbers(), **settings)

    built = build_from_object(make)
    make_loader(built, Config(num_workers=2, prefetch_factor=4, persistent_workers=True))
    assert calls == [{}]


def test_a_batch_size_that_only_the_callable_can_set() -> None:
    def make(batch_size: int = 2) -> DataLoader[int]:
        return DataLoader(Numbers(), batch_sampler=[list(range(batch_size))])

    def make_with_workers(num_workers: int = 0, batch_size: int = 2) -> DataLoader[int]:
        return make(batch_size)

    sized = rebuilt(make_with_workers, Config(batch_size=6))
    assert len(next(iter(sized))) == 6
    fault(lambda: rebuilt(make, Config(batch_size=6)))


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (3, "neither a Dataset nor a DataLoader: int"),
        ("text", "neither a Dataset nor a DataLoader: str"),
        (lambda: None, "returned neither a Dataset nor a DataLoader: NoneType"),
        (lambda: Numbers, "neither a Dataset nor a DataLoader"),
        (lambda: (n for n in range(3)), "an iterator, which gives one epoch only: generator"),
        (lambda: (Numbers(), Numbers()), "a tuple of 2"),
        (lambda: (5, DataLoader(Numbers())), "neither a Dataset nor a DataLoader: a tuple of 2"),
        (lambda: (ArrowDataset(), ArrowDataset()), "a tuple of 2"),
        (lambda: [PrefetchLoader(), PrefetchLoader()], "a list of 2"),
        (lambda: {"train": Numbers()}, "neither a Dataset nor a DataLoader: dict"),
        (Unsized(), "has no __len__"),
        (Halves(), "Halves raised TypeError: 'float' object"),
        (Numbers(0), "empty dataset"),
        ([], "empty dataset"),
        (DataLoader(Numbers(3), batch_size=4, drop_last=True), "has no batch"),
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (lambda x: x, "needs the argument 'x'"),
    ],
)
def test_what_is_no_target_is_named(found: object, part: str) -> None:
    assert part in fault(lambda: build_from_object(found)).message


class Data:
    def setup(self, stage: str) -> None:
        self.numbers = Numbers(10 if stage == "fit" else 0)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(self.numbers)


def test_loaders_by_their_names_are_no_batches_where_workers_can_be_set() -> None:
    """Its keys were: two batches an epoch, in microseconds."""

    def make(num_workers: int = 0) -> dict[str, DataLoader[int]]:
        names = ("train", "val")
        return {name: DataLoader(Numbers(), num_workers=num_workers) for name in names}

    error = fault(lambda: build_from_object(make, text="data:make"))
    assert "neither a Dataset nor a DataLoader: dict" in error.message
    assert "return make()['train']" in error.hint


def test_where_several_are_made_the_function_to_write_is_shown() -> None:
    """What the hint shows is code: it gives a loader that can be measured."""
    both = DataLoader(Numbers()), DataLoader(Numbers(20))
    makes: dict[str, Callable[..., object]] = {
        "a_pair": lambda: both,
        "a_pair_of_datasets": lambda: (ArrowDataset(), ArrowDataset()),
        "datasets_by_name": lambda: {"train": ArrowDataset(), "test": ArrowDataset()},
        "a_loader_and_a_number": lambda: (5, both[0]),
        "by_name": lambda: {"classes": 5, "train": both[0]},
        "as_attributes": lambda: SimpleNamespace(batch_size=4, train=both[0]),
        "Data": Data,
    }
    for name, make in makes.items():
        hint = fault(functools.partial(build_from_object, make, text=f"data:{name}")).hint
        wanted, _, code = hint.partition(": ")
        assert wanted == "Name a function that returns one"
        names = dict(makes)
        exec(code, names)  # what the user is to paste
        assert build_from_object(names["train_loader"]).target.length == 10, name


def test_a_method_that_needs_its_setup_says_so() -> None:
    module = Data()
    text = "data:module.train_dataloader"
    hint = fault(lambda: build_from_object(module.train_dataloader, text=text)).hint
    names: dict[str, Any] = {"module": module}
    exec(hint.partition("function: ")[2], names)  # what the user is to paste
    assert build_from_object(names["train_loader"]).target.length == 10


def test_a_property_of_a_class_is_that_of_an_instance() -> None:
    assert "an instance" in fault(lambda: build_from_object(property(lambda _: Numbers()))).hint


def test_a_main_that_trains_is_shown_dlprof_run() -> None:
    assert "dlprof run" in fault(lambda: build_from_object(lambda: None)).hint


def test_a_callable_that_raises_shows_only_the_user_s_frames() -> None:
    def make() -> None:
        raise SystemExit(3)

    error = fault(lambda: build_from_object(make))
    assert "make() raised SystemExit: 3" in error.message
    assert "dlprof run" in error.hint
    assert "in make" in error.traceback
    assert "dlprof/targets" not in error.traceback.replace("\\", "/").replace("tests/unit", "")


def test_arguments_for_what_is_no_callable() -> None:
    assert "is not callable" in fault(lambda: build_from_object(Numbers(), {"n": "3"})).message


def test_options_that_torch_refuses() -> None:
    refused = "DataLoader can't be built again with .*multiprocessing_context"
    with pytest.raises(TargetError, match=refused):
        rebuilt(Numbers(), Config(num_workers=1, start_method="x"))


def test_the_description_shows_the_user_s_own_settings() -> None:
    own = DataLoader(
        Numbers(), 4, num_workers=2, prefetch_factor=8, in_order=False, persistent_workers=True
    )
    built = build_from_object(own, text="data:loader")
    target = built.target
    assert target.own_config == Config(
        num_workers=2, prefetch_factor=8, in_order=False, persistent_workers=True
    )
    assert target.spec == "data:loader"
    assert (target.kind, target.length, target.batches_per_epoch) == ("map", 10, 3)
    assert target.dataset == f"{__name__}.Numbers"
    assert target.sampler == "SequentialSampler"
    assert target.collate_fn == "torch.utils.data._utils.collate.default_collate"
    assert build_from_object(Numbers()).target.own_config is None


def test_settings_may_be_numbers_of_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    own = build_from_object(DataLoader(Numbers(), num_workers=numpy.int64(2))).target.own_config
    assert own == Config(num_workers=2, prefetch_factor=2)


def test_a_dataset_that_is_changed_for_each_epoch_is_noted() -> None:
    both: Dataset[int] = ConcatDataset([Numbers(), Subset(Curriculum(), [1, 2])])
    note = "Curriculum has set_epoch: workers that outlive an epoch don't see what that changes."
    for found in (Curriculum(), DataLoader(both)):
        target = build_from_object(found).target
        assert target.notes == (note,)
        assert target.against_persisting == note
    assert describe(DataLoader(both), name="train.py:3").against_persisting == note
    assert not describe(DataLoader(Numbers()), name="train.py:3").against_persisting
    for inner in (
        Around(datasets=(Numbers(), Curriculum())),
        Around(datasets=[Numbers()], dataset=Curriculum()),
        Around(base=Subset(Curriculum(), [1])),
    ):
        vars(inner)["itself"] = inner
        assert build_from_object(inner).target.against_persisting == note
    target = build_from_object(Around(set_epoch=print)).target
    assert target.notes == (note.replace("Curriculum", "Around"),)
    of_a_package = Around(set_epoch=pytest.fail, base=Numbers(), datasets=[1, None])
    for plain in (Numbers(), of_a_package):
        assert build_from_object(plain).target.against_persisting is None
    chosen = DataLoader(Curriculum(), num_workers=1, persistent_workers=True)
    assert build_from_object(chosen).target.against_persisting is None


def test_a_dataset_of_a_package_whose_workers_miss_what_a_training_changes_is_noted() -> None:
    """Workers of lhotse's would repeat an order, MONAI's would train on a part of the data."""
    for name, (method, by_workers) in CHANGED_BY_TRAINING.items():
        module, _, kind = name.rpartition(".")
        theirs = type(kind, (Numbers,), {"__module__": module})
        mine: Any = type("Mine", (theirs,), {})()
        note = f"{kind} has {method}: workers that outlive an epoch don't see what that changes."
        for each in (mine, Around(dataset=mine)):
            assert build_from_object(each).target.against_persisting == note
        if by_workers:
            setattr(mine, by_workers, True)
            assert build_from_object(mine).target.against_persisting is None


def test_the_description_names_what_makes_batches() -> None:
    own = DataLoader(Numbers(), 4, collate_fn=functools.partial(max, key=len))
    assert build_from_object(own).target.collate_fn == "builtins.max"
    assert build_from_object(DataLoader(Numbers(), collate_fn=Collator())).target.collate_fn == (
        f"{__name__}.Collator"
    )


def test_the_user_s_own_settings_are_those_of_a_callable_s_defaults() -> None:
    def make(num_workers: int = 4, prefetch_factor: int | None = 3) -> DataLoader[int]:
        return DataLoader(
            Numbers(),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            in_order=False,
        )

    def make_open(num_workers: int) -> DataLoader[int]:
        return DataLoader(Numbers(), num_workers=num_workers)

    def make_half_open(num_workers: int = 4, *, prefetch_factor: int | None) -> DataLoader[int]:
        return make(num_workers, prefetch_factor)

    own = build_from_object(make).target.own_config
    assert own == Config(num_workers=4, prefetch_factor=3, in_order=False)
    assert build_from_object(make_open).target.own_config is None
    assert build_from_object(make_half_open).target.own_config is None


def test_a_callable_that_refuses_to_be_without_workers_is_called_as_it_is() -> None:
    """As Ray's map_batches(concurrency=num_workers) does."""

    class Batches:
        def __init__(self, count: int) -> None:
            self.count = count

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.count))

    def make(num_workers: int = 2) -> Batches:
        if not num_workers:
            raise ValueError("size must be >= 1")
        return Batches(num_workers)

    def never(num_workers: int = 2) -> DataLoader[int]:
        raise ValueError(f"no folder for {num_workers}")

    built = build_from_object(make)
    assert built.target.own_config == Config(num_workers=2).canonical()
    assert [*make_loader(built, Config(num_workers=3))] == [0, 1, 2]
    with pytest.raises(TargetError, match="size must be"):
        make_loader(built, Config())
    assert "no folder for 0" in fault(lambda: build_from_object(never)).message


def test_so_they_are_of_what_is_no_dataloader() -> None:
    def make(num_workers: int = 2) -> Iterator[int]:
        return iter(range(num_workers))

    def make_open(num_workers: int) -> Iterator[int]:
        return make(num_workers)

    assert build_from_object(make).target.own_config == Config(num_workers=2).canonical()
    assert build_from_object(make_open).target.own_config is None


def test_a_dataset_smaller_than_one_batch() -> None:
    built = build_from_object(Numbers(10))
    error = fault(lambda: make_loader(built, Config()))
    assert "has 10 samples, batch_size is 32" in error.message
    assert "10 or less" in error.hint
    error = fault(lambda: make_loader(build_from_object(Numbers(1)), Config()))
    assert "has 1 sample, batch_size is 32" in error.message
    error = fault(lambda: build_from_object(DataLoader(Numbers(1), 2, drop_last=True)))
    assert "has no batch: " in error.message
    assert error.message.endswith("Numbers has 1 sample.")
    assert len(next(iter(make_loader(built, Config(batch_size=10))))) == 10


def test_a_built_in_is_built_with_its_parameters() -> None:
    built: BuiltTarget = build_target(
        parse_target("synthetic:shape=2x3,length=70"), {"tensors": "2"}
    )
    assert built.target.arguments == {"shape": "2x3", "length": "70", "tensors": "2"}
    assert (built.target.length, built.target.batch_size) == (70, 32)
    assert built.target.own_config is None
    batches: Iterable[Any] = make_loader(built, Config())
    first, second, index = next(iter(batches))
    assert first.shape == second.shape == (32, 2, 3)
    assert index.tolist() == list(range(32))


def test_a_setting_that_is_not_torchs_is_never_dropped() -> None:
    assert is_default("in_order", True)
    assert not is_default("in_order", False)
    assert is_default("prefetch_factor", 2)
    assert not is_default("prefetch_factor", 4)
    assert is_default("timeout", 0.0)


def test_a_live_object_is_built_from_its_pickle(tmp_path: Path) -> None:
    path = tmp_path / "target.pickle"
    path.write_bytes(pickle.dumps(DataLoader(Numbers(), batch_size=5)))
    built = build_target(TargetSpec(text="<Numbers>", kind="object", source=str(path)))

    assert built.target.spec == "<Numbers>"
    assert [batch.tolist() for batch in make_loader(built, Config())] == [
        [*range(5)],
        [*range(5, 10)],
    ]


def make_numbers(n: int = 10, num_workers: int = 0) -> OwnLoader:
    return OwnLoader(Numbers(n), num_workers=num_workers)


def test_a_live_function_gets_its_arguments_and_is_shown_by_its_name(tmp_path: Path) -> None:
    """They were left out, and what the default of each gives was measured."""
    path = tmp_path / "target.pickle"
    path.write_bytes(pickle.dumps(make_numbers))
    spec = TargetSpec(text="<make_numbers>", kind="object", source=str(path))
    target = build_target(spec, {"n": "4"}).target
    assert (target.length, target.arguments) == (4, {"n": "4"})
    assert target.call.assigned({"num_workers": 2}) == "loader = make_numbers(num_workers=2)"
    path.write_bytes(pickle.dumps(Numbers()))
    assert "is not callable" in fault(lambda: build_target(spec, {"n": "4"})).message
