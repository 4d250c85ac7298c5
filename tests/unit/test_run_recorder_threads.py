"""Threads that begin to iterate the same loader at once, which is one loader all the same."""

from __future__ import annotations

import contextlib
import gc
import itertools
import queue
import threading
import types
import weakref
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


def test_of_threads_that_begin_at_once_one_after_the_other_is_followed() -> None:
    """Following changes the loader while an iterator is made, and then makes it what it was."""
    recorder, module, _ = _watched()
    loader = module.DataLoader([1, 2, 3])
    loader.in_order = True
    assert list(loader) == [1, 2, 3]
    both, inside, most = threading.Barrier(2), list[Any](), list[int]()

    def make_followed(_loader: Any, iterator: Any, make: Any) -> None:
        inside.append(iterator)
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one waits
            both.wait(PATIENCE_S)
        most.append(len(inside))
        make()
        inside.pop()

    copies = types.SimpleNamespace(noticed=lambda take: take, fill=lambda record: record)
    follower: Any = types.SimpleNamespace(over=False, make=make_followed, copies=copies)
    recorder._seen[0].follower = follower
    threads = [threading.Thread(target=list, args=(loader,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]
    assert recorder.records()[0].batches == 9
    assert not recorder.faults


def _ahead(threads: type[threading.Thread], source: Any) -> Any:
    """A BackgroundGenerator: a thread that takes batches ahead of who asks for them."""

    class Ahead(threads):  # type: ignore[valid-type, misc] # a class that is found late
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

        def next(self, timeout: float = 5) -> Any:
            found = self.queue.get(timeout=timeout)
            if found is None:
                raise StopIteration
            return found

        def __next__(self) -> Any:
            return self.next()

    return Ahead(source)


def _watched() -> tuple[LoaderRecorder, Any, type[threading.Thread]]:
    """A recorder, the module that it watches, and a base class of threads that it watches."""
    module, ticks = _torch_like(), itertools.count(1000, 1000)
    threads = type("Threads", (threading.Thread,), {})
    recorder = LoaderRecorder(clock=lambda: next(ticks), folder="")
    recorder.attach(module, threads=threads)
    return recorder, module, threads


def _own(way: str, module: Any, threads: type[threading.Thread], samples: list[int]) -> Any:
    """A loader of the user's own class."""

    class Background(module.DataLoader):  # type: ignore[misc] # a class that is found late
        def __iter__(self) -> Any:
            return _ahead(threads, super().__iter__())

    class Preloading(module.DataLoader):  # type: ignore[misc] # a class that is found late
        """As insightface's, which has the next batch while the step computes."""

        def __iter__(self) -> Any:
            self.source = _ahead(threads, super().__iter__())
            self.batch = next(self.source, None)
            return self

        def __next__(self) -> Any:
            batch, self.batch = self.batch, None
            if batch is None:
                raise StopIteration
            self.batch = next(self.source, None)
            return batch

    class Buffered(module.DataLoader):  # type: ignore[misc] # a class that is found late
        """As MONAI's ThreadDataLoader, whose thread begins when a first batch is asked for."""

        def __iter__(self) -> Iterator[Any]:
            yield from _ahead(threading.Thread, super().__iter__())

    class Inline(module.DataLoader):  # type: ignore[misc] # a class that is found late
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    kinds = {"background": Background, "preloading": Preloading, "buffered": Buffered}
    return {**kinds, "inline": Inline}[way](samples)


@pytest.mark.parametrize("way", ["background", "preloading", "buffered", "inline"])
def test_the_script_waits_for_a_loader_that_fetches_in_a_thread(way: str) -> None:
    """Not that thread, which waits while the script computes: each batch counts once, as there."""
    recorder, module, threads = _watched()
    loader = _own(way, module, threads, [1, 2, 3])
    assert [list(loader) for _ in range(2)] == [[1, 2, 3]] * 2
    for batch in loader:  # left half way
        assert batch == 1
        break
    (seen,) = recorder.records()
    ahead = way == "preloading"  # of the loop, by one
    assert (seen.batches, seen.epochs, seen.epochs_completed, seen.consumers) == (
        7 + ahead,
        3,
        2,
        1,
    )
    assert seen.background_s == 0
    assert seen.nested_s == 0
    assert seen.waited_s > 0
    assert seen.wait is not None
    assert seen.wait.count == 4 + ahead  # all but the first of each epoch
    assert not recorder.faults


@pytest.mark.parametrize("way", ["background", "buffered"])
def test_an_empty_epoch_of_a_thread_ends(way: str) -> None:
    recorder, module, threads = _watched()
    assert list(_own(way, module, threads, [])) == []
    (seen,) = recorder.records()
    assert (seen.batches, seen.background_s) == (0, 0)
    assert seen.waited_s > 0
    assert not recorder.faults


def test_a_thread_may_go_on_with_what_another_began() -> None:
    recorder, module, threads = _watched()
    batches = iter(_own("inline", module, threads, [1, 2, 3]))
    assert next(batches) == 1
    thread = threading.Thread(target=list, args=(batches,))
    thread.start()
    thread.join()
    (seen,) = recorder.records()
    assert (seen.batches, seen.epochs_completed) == (3, 1)


def test_a_loader_that_fails_at_once_is_counted_as_failing() -> None:
    recorder, module, _ = _watched()
    base: Any = module.DataLoader

    class Failing(base):  # type: ignore[misc] # a class that is found late
        def __iter__(self) -> Iterator[Any]:
            yield from _ahead(threading.Thread, super().__iter__())
            raise LookupError("no batch")

    with pytest.raises(LookupError, match="no batch"):
        list(Failing([]))
    (seen,) = recorder.records()
    assert (seen.batches, seen.failures) == (0, 1)


def test_a_first_batch_that_fails_keeps_no_iterator() -> None:
    """Whose workers a script waits for that tries again, as without dlprof."""
    _, module, _ = _watched()
    base: Any = module.DataLoader
    kept = list[weakref.ref[Any]]()

    class Own(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            batches = super().__iter__()
            kept.append(weakref.ref(batches))
            yield 1 / len(list(batches))

    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            next(iter(Own([])))
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_thread_that_takes_batches_for_the_script_is_asked_where_the_script_asks() -> None:
    recorder, module, threads = _watched()
    batches = _ahead(threads, module.DataLoader([1, 2, 3]))
    assert list(batches) == [1, 2, 3]
    (seen,) = recorder.records()
    assert (seen.batches, seen.epochs_completed, seen.consumers) == (3, 1, 1)
    assert seen.wait is not None
    assert seen.wait.count == 2


def test_a_thread_may_be_asked_by_a_method_that_is_called_next() -> None:
    """As prefetch_generator's has one: its loader was said to give no batch."""
    recorder, module, threads = _watched()
    batches = _ahead(threads, module.DataLoader([1, 2]))
    assert [batches.next(), batches.next(timeout=9)] == [1, 2]
    with pytest.raises(StopIteration):
        batches.next()
    (seen,) = recorder.records()
    assert (seen.batches, seen.epochs_completed, seen.failures) == (2, 1, 0)


def test_a_thread_s_static_method_or_class_is_no_way_to_ask_it() -> None:
    _, _, threads = _watched()

    class Named(threads):  # type: ignore[misc, valid-type] # a class that is found late
        next = staticmethod(abs)

    class Linked(threads):  # type: ignore[misc, valid-type] # likewise
        next = dict

    assert Named().next(-2) == 2
    assert Linked().next(a=1) == {"a": 1}


def test_a_forked_process_waits_for_no_lock_that_another_thread_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, _, threads = _watched()
    batches, had = _ahead(threads, [1]), threading.Thread(target=recorder._finding.acquire)
    had.start()
    had.join()
    monkeypatch.setattr(recorder, "_process", 0)  # as it is seen in another one
    came = list[int]()
    asking = threading.Thread(target=lambda: came.extend(batches), daemon=True)
    asking.start()
    asking.join(5)
    assert came == [1]


def test_what_takes_a_loader_in_a_thread_of_its_own_is_in_the_background() -> None:
    recorder, module, _ = _watched()
    thread = threading.Thread(target=list, args=(module.DataLoader([1, 2, 3]),))
    thread.start()
    thread.join()
    (seen,) = recorder.records()
    assert seen.batches == 3
    assert seen.background_s > 0
