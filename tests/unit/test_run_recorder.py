"""Loaders distinguished and counted, on classes shaped like torch's, so that no torch is needed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlprof import internals
from dlprof.integrations.recorder import LoaderRecorder
from dlprof.internals import OF_ITERABLES
from dlprof.records import WatchedLoader
from dlprof.targets.adapters import ITERATED


class Data(list[int]):
    """A dataset that can be watched going, unlike a bare list."""


@pytest.fixture
def torch_like() -> Any:
    """A module with what ``torch.utils.data.dataloader`` has, as far as it matters here."""
    module: Any = types.ModuleType("dataloader")

    class _BaseDataLoaderIter:
        def __init__(self, loader: Any) -> None:
            self.source = iter(loader.dataset)

        def __iter__(self) -> Any:
            return self

        def _reset(self, loader: Any, first_iter: object = None) -> None:
            self.source = iter(loader.dataset)

        def __next__(self) -> Any:
            return next(self.source)

    class DataLoader:
        def __init__(
            self,
            dataset: Any,
            num_workers: int = 0,
            batch_size: int = 2,
            worker_init_fn: Any = None,
        ) -> None:
            self.dataset, self.num_workers, self.batch_size = dataset, num_workers, batch_size
            self.worker_init_fn = worker_init_fn
            self.prefetch_factor = self.multiprocessing_context = None
            self.pin_memory = self.persistent_workers = False
            self.kept: Any = None

        def __iter__(self) -> Any:
            if not self.persistent_workers:
                return _BaseDataLoaderIter(self)
            if self.kept is None:
                self.kept = _BaseDataLoaderIter(self)
            else:
                self.kept._reset(self)
            return self.kept

    module._BaseDataLoaderIter, module.DataLoader = _BaseDataLoaderIter, DataLoader
    return module


@pytest.fixture
def recorder(torch_like: Any) -> LoaderRecorder:
    ticks = itertools.count(1000, 1000)
    made = LoaderRecorder(clock=lambda: next(ticks), folder=str(Path(__file__).parent))
    made.attach(torch_like)
    assert not made.faults
    return made


def by_name(recorder: LoaderRecorder) -> dict[str, WatchedLoader]:
    return {each.name: each for each in recorder.records()}


def line_of(record: WatchedLoader) -> int:
    return int(record.place.rpartition(":")[2])


def test_loaders_are_named_by_the_line_that_made_them(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    first = torch_like.DataLoader(Data([1, 2]))
    second = torch_like.DataLoader(Data([1, 2, 3]))
    for _ in range(2):
        assert list(first) == [1, 2]
    assert list(second) == [1, 2, 3]
    one, two = recorder.records()
    assert one.place.startswith("test_run_recorder.py:")
    assert line_of(two) == line_of(one) + 1
    assert (one.batches, one.epochs, one.epochs_completed) == (4, 2, 2)
    assert (two.batches, two.epochs) == (3, 1)
    assert one.config is not None
    assert one.config.batch_size == 2


@pytest.mark.parametrize(
    ("of_loader", "of_dataset"),
    [({"next_iter_state": {}}, {}), ({"restore": True}, {}), ({}, {"_resume_shm": object()})],
)
def test_an_epoch_that_goes_on_from_a_state_need_not_be_as_long_as_promised(
    torch_like: Any,
    recorder: LoaderRecorder,
    of_loader: dict[str, Any],
    of_dataset: dict[str, Any],
) -> None:
    """As those of torchdata, litdata and mosaicml-streaming: its data was said to be truncated."""
    loaders = [torch_like.DataLoader(Data([1, 2, 3, 4])) for _ in range(2)]
    for loader in loaders:
        loader._IterableDataset_len_called, loader.drop_last = 8, False
        vars(loader).update(dict.fromkeys(of_loader))
    vars(loaders[1]).update(of_loader)
    vars(loaders[1].dataset).update(of_dataset)
    assert [*map(list, loaders)] == [[1, 2, 3, 4]] * 2
    plain, resumed = recorder.records()
    assert (plain.promised_batches, resumed.promised_batches) == (4, None)


def test_an_iterator_of_a_loader_with_changes_is_the_loaders(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """As tuning makes one that reads an iterable dataset without workers."""
    loader = torch_like.DataLoader(Data([1, 2]))
    assert list(loader) == [1, 2]
    assert [*torch_like._BaseDataLoaderIter(internals._Changed(loader, dataset=[3]))] == [3]
    (seen,) = recorder.records()
    assert seen.epochs == 2
    assert not recorder.faults


class Tuned:
    """What was tried on a loader."""

    def __init__(self, off: str) -> None:
        self.off = off


@pytest.mark.parametrize(("off", "tunes"), [("", True), ("its workers run already", False)])
def test_a_loader_that_tunes_itself_is_not_taken_for_its_settings(
    torch_like: Any, monkeypatch: pytest.MonkeyPatch, off: str, *, tunes: bool
) -> None:
    """Its batches may come from more workers: each ends an iterable with one that isn't full."""
    monkeypatch.setitem(sys.modules, "dlprof.tuning.loader", types.SimpleNamespace(Tuning=Tuned))
    clock = itertools.count(1000, 1000).__next__
    recorder = LoaderRecorder(clock=clock, folder="", headroom=True)
    recorder.attach(torch_like)
    loader = torch_like.DataLoader(Data([1, 2]), num_workers=2)
    loader.sampler, loader.drop_last = type(OF_ITERABLES, (), {})(), False
    loader._IterableDataset_len_called, loader.tuning = 2, Tuned(off)
    assert list(loader) == [1, 2]
    (seen,) = recorder.records()
    assert seen.promised_batches == (None if tunes else 1)
    assert ("it tunes itself" in seen.unavailable["headroom"]) is tunes
    assert bool(recorder.refusals()) is tunes
    assert not recorder.faults


@pytest.mark.parametrize("name", [name for name, (_, given, *_) in ITERATED.items() if given])
def test_loaders_that_have_no_dataloader_are_watched(name: str, recorder: LoaderRecorder) -> None:
    """As SPDL's pipelines, each epoch of which has an iterator, and torchdata's nodes."""
    of_loaders, of_iterators, begins, gives = ITERATED[name]

    class Iterator_:  # noqa: N801 - it gets another name
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return vars(type(self))[gives](self)

    def begin(self: Any, loader: Any = None) -> None:
        self.source = iter([1, 2, 3])

    names = {begins: begin, gives: lambda self: next(self.source)}
    iterators: Any = type(of_iterators, (Iterator_,), names)

    class Loader:
        def __init__(self) -> None:
            self.kept = None if begins == "__init__" else iterators()

        def __iter__(self) -> Any:
            if self.kept is None:
                return iterators(self)
            self.kept.loader = self
            self.kept.reset(None)
            return self.kept

    Loader.__module__ = name
    Loader.__qualname__ = of_loaders
    module: Any = types.ModuleType(name)
    vars(module).update({of_loaders: Loader, of_iterators: iterators})
    recorder.attach_iterators(module)
    loader = Loader()
    assert [list(loader) for _ in range(2)] == [[1, 2, 3]] * 2
    assert not recorder.faults
    (record,) = recorder.records()
    assert record.place.startswith("test_run_recorder.py:")
    assert (record.batches, record.epochs, record.epochs_completed) == (6, 2, 2)
    (why,) = recorder.refusals().values()
    assert why.startswith(f"{name.partition('.')[0]}'s {of_loaders} has no stages")


def test_loaders_whose_iterators_are_generators_are_watched(recorder: LoaderRecorder) -> None:
    """As Ray Data's; what Ray itself iterates, as ``take()`` does, is no loader of the script's."""
    name, (of_loaders, _, begins, _) = "ray.data.iterator", ITERATED["ray.data.iterator"]
    module: Any = types.ModuleType(name)
    closed = []

    def batches() -> Iterator[int]:
        try:
            yield from [1, 2, 3]
        finally:
            closed.append(True)

    def iterate(loader: Any) -> Any:
        return loader.iterator_gen()

    def make(loader: Any, iterator_gen: Any) -> None:
        loader.iterator_gen = iterator_gen

    iterate.__module__ = name
    loaders = type(of_loaders, (), {"__init__": make, begins: iterate, "__module__": name})
    vars(module)[of_loaders] = loaders
    exec("def take(loader): return [each for each in loader]", vars(module))
    recorder.attach_iterators(module)
    loader = loaders(batches)
    assert module.take(loader) == [1, 2, 3]
    assert recorder.records() == ()
    assert [list(loader) for _ in range(2)] == [[1, 2, 3]] * 2
    begun = iter(loader)
    assert next(begun) == 1
    begun.close()
    assert len(closed) == 4
    assert not recorder.faults
    (record,) = recorder.records()
    assert record.place.startswith("test_run_recorder.py:")
    assert (record.batches, record.epochs, record.epochs_completed) == (7, 3, 2)
    assert recorder.refusals()[record.name].startswith(f"ray's {of_loaders} has no stages")


def test_a_package_that_has_moved_its_iterators_is_named(
    recorder: LoaderRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchdata", types.SimpleNamespace(__version__="99.1"))
    recorder.attach_iterators(types.ModuleType("torchdata.nodes.loader"))
    (fault,) = recorder.faults
    assert fault == (
        "torchdata.nodes.loader could not be watched: "
        "AttributeError: torchdata 99.1 has no torchdata.nodes.loader.Loader"
    )


def test_two_callers_of_one_line_are_two_loaders(torch_like: Any, recorder: LoaderRecorder) -> None:
    def make(numbers: list[int]) -> Any:
        return torch_like.DataLoader(Data(numbers))

    train = make([1])
    test = make([2])
    assert list(train) + list(test) == [1, 2]
    one, two = recorder.records()
    assert one.place == two.place
    assert (one.name, two.name) == (one.place, f"{one.place} #2")
    assert one.called_from != two.called_from


def test_two_datasets_at_one_place_are_two_loaders(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    loaders = [torch_like.DataLoader(Data([number])) for number in range(2)]
    assert [list(each) for each in loaders] == [[0], [1]]
    assert [each.made for each in recorder.records()] == [1, 1]


def test_a_loader_made_again_for_each_epoch_is_one(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    data = Data([1, 2])
    for _ in range(5):
        assert list(torch_like.DataLoader(data)) == [1, 2]
    (seen,) = recorder.records()
    assert (seen.made, seen.epochs, seen.batches) == (5, 5, 10)
    assert seen.turnover is not None
    assert seen.turnover.count == 4


def test_a_loader_that_is_looked_at_without_its_workers_is_two(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """As fastai takes a batch in the main process, before a training and within it."""
    loader = torch_like.DataLoader(Data([1, 2]))
    for workers in (0, 2, 0, 2):
        loader.num_workers = workers
        assert list(loader) == [1, 2]
    seen = recorder.records()
    assert [each.config and each.config.num_workers for each in seen] == [0, 2]
    assert [(each.batches, each.made) for each in seen] == [(4, 1), (4, 1)]
    assert seen[1].name == f"{seen[0].name} #2"


def test_so_is_one_whose_dataset_is_made_again_too(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    for _ in range(5):
        assert list(torch_like.DataLoader(Data([1]))) == [1]
    (seen,) = recorder.records()
    assert (seen.made, seen.batches) == (5, 5)


def test_epochs_that_have_nothing_left_are_counted(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """As of a sampler, or a dataset, that is a generator."""
    loader = torch_like.DataLoader(number for number in range(3))
    assert [list(loader) for _ in range(3)] == [[0, 1, 2], [], []]
    (seen,) = recorder.records()
    assert (seen.epochs, seen.epochs_completed, seen.epochs_empty) == (1, 1, 2)


def test_a_loader_without_any_data_has_no_empty_epochs(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """Nor one that is asked for more behind its end, nor an iterator that nobody takes from."""
    full, empty = (torch_like.DataLoader(Data(each)) for each in ([1], []))
    for _ in range(2):
        iter(full)
        iterator = iter(full)
        assert [next(iterator, None) for _ in range(4)] == [1, None, None, None]
        assert list(empty) == []
    assert [each.epochs_empty for each in recorder.records()] == [0, 0]


@pytest.mark.slow
def test_a_thousand_loaders_stay_bounded(torch_like: Any, recorder: LoaderRecorder) -> None:
    kept = []
    for number in range(1000):
        kept.append(torch_like.DataLoader(Data([number])))
        assert list(kept[-1]) == [number]
    records = recorder.records()
    assert len(records) == 4
    assert sum(each.made for each in records) == 1000
    assert sum(each.batches for each in records) == 1000


def test_so_do_a_thousand_places(torch_like: Any, recorder: LoaderRecorder) -> None:
    for number in range(200):
        code = compile("loader = make([1, 2])", f"/project/part{number}.py", "exec")
        names: dict[str, Any] = {"make": lambda rows: torch_like.DataLoader(Data(rows))}
        exec(code, names)  # code of many files is what the test needs
        assert list(names["loader"]) == [1, 2]
    records = recorder.records()
    assert len(records) == 65
    assert records[-1].name == "other loaders"
    assert sum(each.batches for each in records) == 400
    assert len(recorder._groups) == 64


def test_a_persistent_iterator_that_is_reset_begins_an_epoch(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    loader = torch_like.DataLoader(Data([1, 2]))
    loader.persistent_workers = True
    for _ in range(3):
        assert list(loader) == [1, 2]
    (seen,) = recorder.records()
    assert (seen.epochs, seen.epochs_completed, seen.batches) == (3, 3, 6)


def test_iterators_of_their_own_count_once(torch_like: Any, recorder: LoaderRecorder) -> None:
    """As torchdata's StatefulDataLoader: derived iterators, and no super().__init__ in the loader.

    Written to its public behaviour; the library itself is not installed here.
    """

    class _StatefulIter(torch_like._BaseDataLoaderIter):
        def __init__(self, loader: Any, state: int | None) -> None:
            super().__init__(loader)
            self.finished = False
            for _ in range(state or 0):
                next(self)  # fast-forwards to where it was saved

        def _reset(self, loader: Any, first_iter: object = None) -> None:
            super()._reset(loader, first_iter)
            self.finished = False

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except StopIteration:
                self.finished = True
                raise

    class StatefulDataLoader(torch_like.DataLoader):
        def __init__(self, dataset: Any, state: int | None) -> None:
            self.dataset, self.num_workers, self.batch_size = dataset, 0, 1
            self.prefetch_factor = self.multiprocessing_context = None
            self.pin_memory = self.persistent_workers = False
            self.state = state
            self.iterator: Any = None

        def __iter__(self) -> Any:
            if self.iterator is None or not self.persistent_workers:
                self.iterator = _StatefulIter(self, self.state)
            else:
                self.iterator._reset(self)
            return self.iterator

    loader = StatefulDataLoader(Data([1, 2, 3, 4]), state=1)
    assert list(loader) == [2, 3, 4]
    loader.state, loader.persistent_workers = None, True
    assert list(loader) == [1, 2, 3, 4]
    (seen,) = recorder.records()
    assert seen.place.startswith("test_run_recorder.py:")
    assert (seen.batches, seen.epochs, seen.epochs_completed) == (7, 2, 2)
    assert seen.kind.endswith("StatefulDataLoader")


def test_wrapping_loaders_count_once(torch_like: Any, recorder: LoaderRecorder) -> None:
    """As accelerate's DataLoaderShard, a batch ahead, and its later adapter around a loader.

    Written to their public behaviour; the library itself is not installed here.
    """

    class DataLoaderShard(torch_like.DataLoader):
        def __iter__(self) -> Iterator[Any]:
            batches = super().__iter__()
            current = next(batches)
            for following in batches:
                yield current
                current = following
            yield current

    class Adapter:
        def __init__(self, loader: Any) -> None:
            self.base_dataloader = loader

        def __iter__(self) -> Iterator[Any]:
            yield from self.base_dataloader

    assert list(DataLoaderShard(Data([1, 2, 3]))) == [1, 2, 3]
    assert list(Adapter(torch_like.DataLoader(Data([4, 5])))) == [4, 5]
    assert [each.batches for each in recorder.records()] == [3, 2]


def test_waits_inside_the_waits_of_another_loader_are_reported(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    inner = torch_like.DataLoader(Data([1, 2]))

    class Sums(Data):
        def __iter__(self) -> Iterator[int]:
            for _ in range(3):
                yield sum(inner)

    assert list(torch_like.DataLoader(Sums([0]))) == [3, 3, 3]
    outer, nested = recorder.records()
    assert (outer.batches, nested.batches) == (3, 6)
    assert outer.nested_s == 0
    assert nested.nested_s == pytest.approx(nested.waited_s)
    assert recorder.waited_s() == pytest.approx(outer.waited_s)


def test_what_a_loader_raises_comes_through(torch_like: Any, recorder: LoaderRecorder) -> None:
    class Broken(Data):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyError("sample 2")

    with pytest.raises(KeyError, match="sample 2"):
        list(torch_like.DataLoader(Broken([0])))
    (seen,) = recorder.records()
    assert (seen.failures, seen.failure, seen.epochs_completed) == (1, "KeyError", 0)


def test_a_loader_that_refuses_everything_still_works(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    class Odd(torch_like.DataLoader):
        @property
        def multiprocessing_context(self) -> Any:
            raise RuntimeError("no")

        @multiprocessing_context.setter
        def multiprocessing_context(self, value: Any) -> None:
            pass

    assert list(Odd(Data([1]))) == [1]
    (seen,) = recorder.records()
    assert seen.config is None
    assert seen.unavailable["config"]


def test_another_process_is_none_of_its_business(
    torch_like: Any, recorder: LoaderRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: pid + 1)
    assert list(torch_like.DataLoader(Data([1, 2]))) == [1, 2]
    assert recorder.records() == ()


def test_a_recorder_that_is_sent_to_another_process_watches_nothing(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """As cloudpickle sends it with a class of the script's, around whose methods it is."""

    class Own(torch_like.DataLoader):
        def __init__(self) -> None:
            super().__init__(Data([1, 2]))

        def __iter__(self) -> Iterator[int]:
            yield from super().__iter__()

    held = [cell.cell_contents for cell in Own.__init__.__closure__ or ()]
    assert recorder in held
    sent = pickle.loads(pickle.dumps(recorder))
    sent.attach(torch_like)
    assert list(Own()) == [1, 2]
    assert sent.records() == ()
    assert not sent.faults


@pytest.mark.parametrize(("module", "own"), [("train", False), ("monai.data.utils", True)])
def test_a_call_is_by_what_the_loader_was_given(
    torch_like: Any, recorder: LoaderRecorder, module: str, *, own: bool
) -> None:
    """It had no attributes yet: a script's function was taken for MONAI's, which seeds workers."""

    def begins(worker_id: int) -> None:
        raise NotImplementedError

    begins.__module__ = module

    class DataLoader(torch_like.DataLoader):
        def __init__(self, dataset: Any, **settings: Any) -> None:
            super().__init__(dataset, **settings)

    DataLoader.__module__ = "monai.data.dataloader"
    assert list(DataLoader(Data([1, 2]), worker_init_fn=begins)) == [1, 2]
    (seen,) = recorder.records()
    assert ("worker_init_fn" in seen.call.fixed) is own
    assert not recorder.faults


def test_a_torch_without_these_classes_is_said_and_not_raised() -> None:
    recorder = LoaderRecorder(clock=lambda: 0, folder="/")
    recorder.attach(types.ModuleType("dataloader"))
    (fault,) = recorder.faults
    assert "could not be watched" in fault


def test_what_the_handler_of_a_signal_raises_is_the_scripts(recorder: LoaderRecorder) -> None:
    def end(*_: object) -> None:
        raise TimeoutError("an hour is over")

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(TimeoutError), recorder.guarded("what was seen could not be kept"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not recorder.faults


def test_signatures_and_subclass_hooks_stay(torch_like: Any, recorder: LoaderRecorder) -> None:
    import inspect

    names: list[str] = []

    class Mixin:
        def __init_subclass__(cls, **kwargs: Any) -> None:
            names.append(cls.__name__)

    class Mixed(torch_like.DataLoader, Mixin):
        pass

    assert names == ["Mixed"]
    parameters = inspect.signature(Mixed.__init__).parameters
    assert list(parameters) == ["self", "dataset", "num_workers", "batch_size", "worker_init_fn"]


def test_what_was_reported_is_not_explained_again(
    torch_like: Any, recorder: LoaderRecorder
) -> None:
    """Each time that takes as long, and the script's loop waits."""
    assert list(torch_like.DataLoader(Data([1, 2]))) == [1, 2]
    (seen,) = recorder._seen
    explained: Any = types.SimpleNamespace(over=True, summary=lambda: ("explanation", "timeline"))
    seen.follower, name = explained, seen.known.name
    assert [*recorder.followed(over=True, but=())] == [name]
    assert not recorder.followed(over=True, but={name})


@pytest.mark.parametrize(("method", "asks"), [("fork", False), ("spawn", None)])
def test_who_asks_is_seen_in_forked_workers_alone(
    torch_like: Any, method: str, *, asks: bool | None
) -> None:
    torch_like.get_worker_info = lambda: "nobody"
    recorder = LoaderRecorder(clock=itertools.count(1000, 1000).__next__, folder="")
    recorder.attach(torch_like)
    iterable = torch_like.DataLoader(Data([1, 2]), num_workers=2)
    iterable.multiprocessing_context = multiprocessing.get_context(method)
    iterable.sampler = type(OF_ITERABLES, (), {})()
    assert list(iterable) == [1, 2]
    assert [each.asks_worker for each in recorder.records()] == [asks]
    assert not recorder.faults


def asking_by(torch_like: Any, name: str) -> types.FunctionType:
    """A function of a module of that name, which asks for its worker as that module knows how."""
    scope = {"__name__": name, "module": torch_like}
    exec("def ask():\n    return module.get_worker_info()", scope)  # a module of any name
    asked = scope["ask"]
    assert isinstance(asked, types.FunctionType)
    return asked


@pytest.mark.parametrize(
    ("asker", "init_fn", "asks"),
    [
        (None, None, False),
        ("my.data", None, True),
        ("torch.utils.data._utils.collate", None, False),
        ("dlprof.tracing.queues", None, False),
        (None, print, None),
    ],
)
def test_who_asks_for_its_worker_is_noticed_of_iterables(
    torch_like: Any, asker: str | None, init_fn: object, *, asks: bool | None
) -> None:
    """Torch's own modules ask whatever the dataset does; an init function knows its worker."""
    torch_like.get_worker_info = lambda: "nobody"
    recorder = LoaderRecorder(clock=itertools.count(1000, 1000).__next__, folder="")
    recorder.attach(torch_like)
    iterable = torch_like.DataLoader(Data([1, 2]))
    iterable.sampler, iterable.worker_init_fn = type(OF_ITERABLES, (), {})(), init_fn
    of_a_map = torch_like.DataLoader(Data([1, 2]))
    for _ in zip(iterable, of_a_map, strict=True):
        if asker is not None:
            assert asking_by(torch_like, asker)() == "nobody"
    assert [each.asks_worker for each in recorder.records()] == [asks, None]
    assert not recorder.faults
