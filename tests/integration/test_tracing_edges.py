"""Tracers and loaders that fail, stop, run already, pin, or go their own way."""

from __future__ import annotations

import gc
import itertools
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, dataloader

from dlprof.integrations import copies, first_batches
from dlprof.records import Config
from dlprof.tracing.explain import explain, timeline
from dlprof.tracing.tracer import Tracer
from dlprof.trial.measure import Loop

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        "fork" not in torch.multiprocessing.get_all_start_methods(), reason="no fork here"
    ),
]


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Numbers(Dataset[Any]):
    def __init__(self, broken: type[Exception] | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == 9 and self.broken is not None:
            self.fail()
        return torch.tensor(index)

    def fail(self) -> None:
        if self.broken is TwoArgumentsError:
            raise TwoArgumentsError("a", "b")
        assert self.broken is not None
        raise self.broken("nine")


class Fails(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise OSError("gone")


def outcome(loader: Any) -> list[Any]:
    """Batches and errors, as far as one epoch goes on after them."""
    seen: list[Any] = []
    iterator = iter(loader)
    for _ in range(30):
        try:
            seen.append(next(iterator).tolist())
        except StopIteration:
            break
        except Exception as error:  # whatever comes is compared
            text = "".join(traceback.format_exception(error))
            # A worker's traceback is the message here, and is to be as it is without a tracer.
            seen.append((type(error), str(error), "in fail" in text or "in __iter__" in text))
    return seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(Numbers(ValueError), id="ValueError", marks=pytest.mark.slow),
        pytest.param(Numbers(KeyError), id="KeyError"),
        pytest.param(Numbers(TwoArgumentsError), id="two arguments", marks=pytest.mark.slow),
        pytest.param(Fails(), id="iterable"),
    ],
)
def test_errors_stay(dataset: Any, workers: int) -> None:
    expected = outcome(DataLoader(dataset, 2, num_workers=workers))
    with Tracer(DataLoader(dataset, 2, num_workers=workers)) as tracer:
        assert outcome(tracer) == expected
    assert any(isinstance(each, tuple) and each[2] for each in expected)
    batches = [each for each in expected if isinstance(each, list)]
    assert len(tracer.trace().rows) == len(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_it_stops_by_itself(workers: int, *, persistent: bool) -> None:
    loader = DataLoader(
        Numbers(), 2, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    tracer = Tracer(loader, stop_after_batches=5)
    with tracer:
        iterator: Any = iter(loader)
        seen = [batch.tolist() for batch in iterator]
        assert tracer.stopped
        assert "_next_data" not in vars(iterator)
        assert "_get_iterator" not in vars(loader)
        again = [batch.tolist() for batch in loader]
    assert again == seen == [[index, index + 1] for index in range(0, 40, 2)]
    assert len(tracer.trace().rows) == 5


def test_it_stops_after_its_time() -> None:
    loader = DataLoader(Numbers(), 2)
    with Tracer(loader, stop_after_s=0.0) as tracer:
        list(loader)
    assert len(tracer.trace().rows) == 1


def test_slow_batches_are_followed_for_longer() -> None:
    loader = DataLoader(Numbers(), 2)
    with Tracer(loader, stop_after_s=0.0, least_batches=10) as tracer:
        list(loader)
    assert len(tracer.trace().rows) == 10


def test_slow_batches_of_a_script_are_followed_until_they_may_show_a_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "FOLLOWED_S", 0.0)
    loader = DataLoader(Numbers(), 2)
    follower = first_batches.Follower("train.py:3", Config(batch_size=2).canonical())
    iterator = loader._get_iterator()

    follower.make(loader, iterator, lambda: type(iterator).__init__(iterator, loader))
    list(iterator)

    found = follower.summary()
    assert found is not None
    assert found[0].batches == first_batches.LEAST_BATCHES


def test_without_workers_the_very_first_batch_is_of_a_start() -> None:
    """It has the imports that one of a worker has: what batches cost is that of the others."""
    loader = DataLoader(Numbers(), 2)
    follower = first_batches.Follower("train.py:3", Config(batch_size=2).canonical())
    iterator = loader._get_iterator()
    follower.make(loader, iterator, lambda: type(iterator).__init__(iterator, loader))
    batches = len(list(iterator))
    found = follower.summary()
    assert found is not None
    assert batches > first_batches.LEAST_BATCHES
    assert found[0].batches == len(found[0].costs.cpu_s) == batches - 1


def test_a_fork_of_another_thread_disturbs_no_iterator_that_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before each the looking rests: a thread that wasn't started yet can't be waited for."""
    loader = DataLoader(Numbers(), 2, num_workers=1)
    follower = first_batches.Follower("train.py:3", Config(batch_size=2, num_workers=1).canonical())
    start = threading.Thread.start

    def forking(thread: threading.Thread) -> None:
        if thread.name == "dlprof":
            follower.rest()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", forking)
    iterator: Any = object.__new__(dataloader._MultiProcessingDataLoaderIter)
    follower.make(loader, iterator, lambda: iterator.__init__(loader))
    assert len(list(iterator)) == len(loader)
    follower.rest()


def test_where_there_is_room_for_no_more_threads_nobody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = DataLoader(Numbers(), 2, num_workers=1)
    follower = first_batches.Follower("train.py:3", Config(batch_size=2, num_workers=1).canonical())
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "dlprof":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    iterator: Any = object.__new__(dataloader._MultiProcessingDataLoaderIter)
    follower.make(loader, iterator, lambda: iterator.__init__(loader))
    assert len(list(iterator)) == len(loader)
    follower.rest()


def test_only_torchs_own_samplers_are_asked_how_many_batches_there_are() -> None:
    """One of the user's may have no length, also where a batch sampler of torch's asks it."""

    class Own:
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    own: Any = BatchSampler(Own(), 2, drop_last=False)
    assert first_batches.promised_batches(DataLoader(Numbers(), batch_sampler=own)) is None
    ordered: Any = BatchSampler(range(4), 2, drop_last=False)
    for plain in (DataLoader(Numbers(), 2), DataLoader(Numbers(), batch_sampler=ordered)):
        assert first_batches.promised_batches(plain) == len(plain)


class TellsHooks(Dataset[Any]):
    """Samples show whether their worker's fetchers are timed."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, _index: int) -> int:
        from torch.utils.data import _DatasetKind

        return int("torch" not in _DatasetKind.create_fetcher.__module__)


def test_workers_are_as_they_were_once_it_has_stopped() -> None:
    loader = DataLoader(TellsHooks(), 2, num_workers=2, persistent_workers=True)
    with Tracer(loader):
        assert all(batch.tolist() == [1, 1] for batch in loader)
    batches = [batch.tolist() for batch in loader]
    # The first indices say to a worker to stop, so already its first batch is made without hooks.
    assert batches == [[0, 0]] * 20


@pytest.mark.parametrize("removed", [False, True])
def test_persistent_workers_end_as_soon_as_their_loader_is_dropped(*, removed: bool) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True)
    gc.collect()
    gc.disable()
    try:
        tracer = Tracer(loader)
        tracer.install()
        iterator: Any = iter(loader)
        list(iterator)
        workers = iterator._workers
        if removed:
            tracer.remove()
        del iterator, tracer, loader
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_of_many_batches_the_latest_are_kept() -> None:
    loader = DataLoader(Numbers(), 1)
    with Tracer(loader, capacity=7) as tracer:
        list(loader)
    trace = tracer.trace()
    assert [row.batch for row in trace.rows] == list(range(33, 40))
    assert trace.dropped == 33
    assert timeline(trace, trial_id="t", most=3).dropped == 37


def test_two_iterators_of_a_loader_at_once() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=1)
    with Tracer(loader) as tracer:
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert all(a == b for a, b in pairs)
    assert sorted((row.epoch, row.batch) for row in tracer.trace().rows) == list(
        itertools.product(range(2), range(10))
    )


class Moving(DataLoader[Any]):
    """Makes its iterator at the first next(), as many wrappers of loaders do."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch + 1


class Repeating(DataLoader[Any]):
    """Makes its iterator once, in its constructor, as timm's MultiEpochsDataLoader does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.once = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.once)


class Plain:
    """No loader of torch's at all."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_loader_that_wraps_its_iterator_is_hooked() -> None:
    with Tracer(Moving(Numbers(), 4, num_workers=2)) as tracer:
        assert len(list(tracer)) == 10
    trace = tracer.trace()
    assert trace.hooked
    assert len(trace.rows) == 10
    assert all(row.made is not None for row in trace.rows)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (Repeating(Numbers(), 4, num_workers=0), "way of its own"),
        (Plain(), "not a torch.utils.data.DataLoader"),
    ],
)
def test_a_loader_of_its_own_way_has_its_waits_timed(loader: Any, reason: str) -> None:
    with Tracer(loader) as tracer:
        seen = list(tracer)
    assert len(seen) == len(loader)
    found = explain(tracer.trace(), trial_id="t", config=Config())
    assert not found.hooked
    assert reason in found.unavailable["hooks"]
    assert [stage.name for stage in found.stages] == ["wait", "step"]
    assert found.age_s is None
    assert found.wait_fraction is not None


def test_persistent_workers_that_run_already_are_left_alone() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    expected = [batch.tolist() for batch in loader]
    with Tracer(loader) as tracer:
        assert [batch.tolist() for batch in tracer] == expected
    found = explain(tracer.trace(), trial_id="t", config=Config())
    assert "persistent workers" in found.unavailable["hooks"]
    assert found.stage("wait") is not None


def test_an_iterator_that_a_script_makes() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2)
    tracer = Tracer()
    with tracer.making(loader) as adopt:
        iterator = iter(loader)
    adopt(iterator)
    assert len(list(iterator)) == 10
    assert all(row.made is not None for row in tracer.trace().rows)


def test_a_class_that_is_none_of_torchs_is_said_to_be() -> None:
    tracer = Tracer()
    loader = DataLoader(Numbers(), 4)
    with tracer.making(loader) as adopt:
        pass
    adopt(object())
    assert "refused the hooks" in tracer.trace().unavailable["hooks"]


class Refusing(DataLoader[Any]):
    """Lets nobody set its worker_init_fn, once it is made."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "worker_init_fn" and name in vars(self):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_loader_that_refuses_runs_as_ever() -> None:
    loader = Refusing(Numbers(), 4, num_workers=1)
    with Tracer(loader) as tracer:
        assert len(list(tracer)) == 10
    assert loader.multiprocessing_context is None
    trace = tracer.trace()
    assert not trace.hooked
    assert "refused the hooks" in trace.unavailable["hooks"]
    assert len(trace.rows) == 10


def test_the_loop_of_a_trial_runs_a_tracer() -> None:
    config = Config(num_workers=2).canonical()
    with Tracer(DataLoader(Numbers(), 4, num_workers=2)) as tracer:
        loop = Loop(
            tracer,
            config,
            consume=lambda _batch: None,
            clock=lambda: 0.0,
            beat=lambda _now: None,
        )
        loop.begin_epoch()
        assert len(loop.workers) == 2
        assert loop.promised() == 10
        loop.drain()
        loop.shut_down()
    assert len(tracer.trace().rows) == 10


def test_the_pin_thread_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own pin thread, where there is no device: pinning is made a copy."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _index: None)
    if torch.__version__ < "2.7":  # whose loader asks CUDA
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # Torch names the device up to 2.9.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_device: tensor.clone())
    loader = DataLoader(Numbers(), 4, num_workers=2, pin_memory=True)
    with Tracer(loader) as tracer:
        assert [batch[0].item() for batch in loader] == list(range(0, 40, 4))
    rows = [row for row in tracer.trace().rows if row.pinned >= 0]
    assert len(rows) >= 6  # the first may be pinned before the iterator is there to be hooked
    assert all(row.rebuilt <= row.pinned <= row.yielded for row in rows)
    found = explain(tracer.trace(), trial_id="t", config=Config())
    pin = found.stage("pin")
    assert pin is not None
    assert pin.cpu_s is not None
