"""Threads that begin to iterate the same loader at once, which is one loader all the same."""

from __future__ import annotations

import itertools
import queue
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from dlprof.integrations.recorder import LoaderRecorder

PATIENCE_S = 0.3


class _Meeting:
    """A setting at which a second thread is waited for, so that both look at the loader at once."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)

    def __bool__(self) -> bool:
        self.inside.release()
        for _ in range(2):
            self.inside.acquire(timeout=PATIENCE_S)
        self.inside.release(2)
        return True


def _torch_like() -> Any:
    module: Any = types.ModuleType("dataloader")

    class _BaseDataLoaderIter:
        def __init__(self, loader: Any) -> None:
            self.source = iter(loader.dataset)

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return next(self.source)

    class DataLoader:
        num_workers, batch_size, prefetch_factor = 0, 1, None
        multiprocessing_context = None
        pin_memory = persistent_workers = False

        def __init__(self, dataset: Any) -> None:
            self.dataset, self.in_order = dataset, _Meeting()

        def __iter__(self) -> Any:
            return _BaseDataLoaderIter(self)

    module._BaseDataLoaderIter, module.DataLoader = _BaseDataLoaderIter, DataLoader
    return module


def test_threads_that_begin_at_once_share_one_loader() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    loader = module.DataLoader([1, 2, 3])
    threads = [threading.Thread(target=iter, args=(loader,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (seen,) = recorder.records()
    assert seen.made == 1
    assert not recorder.faults


class _Ahead(threading.Thread):
    """A BackgroundGenerator: a thread that takes batches ahead of who asks for them."""

    def __init__(self, source: Any) -> None:
        super().__init__(daemon=True)
        self.source, self.queue = source, queue.Queue[Any]()
        self.start()

    def run(self) -> None:
        for each in self.source:
            self.queue.put(each)
        self.queue.put(None)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        found = self.queue.get(timeout=5)
        if found is None:
            raise StopIteration
        return found


def _own(way: str, module: Any, samples: list[int]) -> Any:
    """A loader of the user's own class."""

    class Buffered(module.DataLoader):  # type: ignore[misc]
        """As MONAI's ThreadDataLoader, whose thread begins when a first batch is asked for."""

        def __iter__(self) -> Iterator[Any]:
            yield from _Ahead(super().__iter__())

    class Inline(module.DataLoader):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    return {"buffered": Buffered, "inline": Inline}[way](samples)


@pytest.mark.parametrize("way", ["buffered", "inline"])
def test_the_script_waits_for_a_loader_that_fetches_in_a_thread(way: str) -> None:
    """Not that thread, which waits while the script computes: each batch counts once, as there."""
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    loader = _own(way, module, [1, 2, 3])
    assert [list(loader) for _ in range(2)] == [[1, 2, 3]] * 2
    for batch in loader:  # left half way
        assert batch == 1
        break
    (seen,) = recorder.records()
    assert (seen.batches, seen.epochs, seen.epochs_completed, seen.consumers) == (7, 3, 2, 1)
    assert seen.background_s == 0
    assert seen.nested_s == 0
    assert seen.waited_s > 0
    assert seen.wait is not None
    assert seen.wait.count == 4  # all but the first of each epoch
    assert not recorder.faults


def test_an_empty_epoch_of_a_thread_ends() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    loader = _own("buffered", module, [])
    assert list(loader) == []
    (seen,) = recorder.records()
    assert (seen.batches, seen.background_s) == (0, 0)
    assert seen.waited_s > 0
    assert not recorder.faults


def test_a_thread_may_go_on_with_what_another_began() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    batches = iter(_own("inline", module, [1, 2, 3]))
    assert next(batches) == 1
    thread = threading.Thread(target=list, args=(batches,))
    thread.start()
    thread.join()
    (seen,) = recorder.records()
    assert (seen.batches, seen.epochs_completed) == (3, 1)


def test_a_thread_that_fails_at_once_is_a_failure_of_the_loader() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)

    class Failing(module.DataLoader):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            yield from _Ahead(super().__iter__())
            raise LookupError("no batch")

    with pytest.raises(LookupError, match="no batch"):
        list(Failing([]))
    (seen,) = recorder.records()
    assert (seen.batches, seen.failures) == (0, 1)


def test_a_thread_that_a_loader_gives_stays_what_it_is() -> None:
    """Its class may have methods that the script calls."""
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    LoaderRecorder(clock=lambda: next(ticks), folder="").attach(module)

    class Background(module.DataLoader):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return _Ahead(super().__iter__())

    batches = iter(Background([1, 2, 3]))
    assert isinstance(batches, _Ahead)
    assert list(batches) == [1, 2, 3]


def test_what_takes_a_loader_in_a_thread_of_its_own_is_in_the_background() -> None:
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module)
    assert list(_Ahead(iter(module.DataLoader([1, 2, 3])))) == [1, 2, 3]
    (seen,) = recorder.records()
    assert seen.batches == 3
    assert seen.background_s > 0
