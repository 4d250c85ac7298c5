"""The parts of torch's DataLoader that have no public name: asked for, and never assumed.

No other module names one. Where a torch has moved what tracing needs, :func:`untraceable` says so
in a sentence, and loaders are measured by the clock around ``next()`` alone. torch is imported by
no name here: whoever asks has loaded it.
"""

# ruff: noqa: SLF001 - names of torch's own are this module's subject

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import io
import itertools
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

LOADING_MODULES = ("torch.utils.data._utils", "torch.utils.data.dataloader")
"""Modules that ask in which worker they run whatever the dataset does."""

TRYING_MODULES = (LOADING_MODULES[1], "torchdata.stateful_dataloader.stateful_dataloader")
"""Modules that try whether files can be made, by ten without a use, once a worker is lost."""

WORKER_LOOPS = (
    "_worker_loop",
    # pytorch#161044 splits it, for workers that are threads:
    "_base_worker_loop",
    "_process_worker_loop",
    "_thread_worker_loop",
)
"""Functions in which a worker waits for indices, as a stack names them."""

WORKER = "pt_data_worker"
"""A worker's first thread, and with it the process, as the kernel shows it."""

PIN_THREAD = "pt_data_pin"
"""The thread that pins, as the kernel shows it. Workers that are threads pin by themselves."""

IN_WORKER = {
    "a worker process": "in DataLoader worker process",
    "a worker thread": "in DataLoader worker thread",
}
"""How an exception says that a worker raised it."""

OF_ITERABLES = "_InfiniteConstantSampler"
"""The class that torch puts in a sampler's place for an iterable dataset."""

ITERATOR_MAKER = "_get_iterator"
"""The method by which a loader makes an iterator."""

LOADER_STATE = ("_DataLoader__multiprocessing_context", "_iterator")
"""Attributes of a loader beside those with public names, as of torch 2.6 and later."""

STEPS = {"index": "_next_index", "data": "_next_data"}
"""Methods of an iterator: draw the next indices; wait for the next batch."""

_TRACED = (
    ("torch.utils.data", "_DatasetKind.create_fetcher"),
    ("torch.utils.data._utils.worker", "_IterableDatasetStopIteration"),
    ("torch._utils", "ExceptionWrapper"),
    ("torch.utils.data.dataloader", "DataLoader._get_iterator"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_index"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_data"),
)
"""What tracing needs: modules, and names in them."""

_NO_TRACING = (
    "torch {version} has no {name}, by which stages are traced, so only the wait in next() is timed"
)
_IN_THREADS = (
    "its workers are threads, whose stages can't be traced, so only the wait in next() is timed"
)


def untraceable(loader: Any = None) -> str:
    """Why the stages of a loader, or without one any, can't be traced; empty where they can."""
    for module, name in _TRACED:
        if _find(module, name) is None:
            version = getattr(sys.modules.get("torch"), "__version__", "")
            return _NO_TRACING.format(version=version, name=f"{module}.{name}")
    return _IN_THREADS if works_in_threads(loader) else ""


def _find(module: str, name: str) -> Any:
    """What a dotted name in a module stands for; ``None`` where it is not there."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def works_in_threads(loader: Any) -> bool:
    """Whether the workers of a loader are threads of this process, by torch or as MONAI's."""
    method = getattr(loader, "worker_method", None)
    worker = getattr(getattr(loader, "multiprocessing_context", None), "Process", None)
    threads = isinstance(worker, type) and issubclass(worker, threading.Thread)
    return (threads or method == "thread") and bool(getattr(loader, "num_workers", 0))


def set_create_fetcher(create: Callable[..., Any]) -> Callable[..., Any]:
    """Have this process make its workers' fetchers otherwise; returns what made them before."""
    kinds: Any = _find("torch.utils.data", "_DatasetKind")
    before: Callable[..., Any] = kinds.create_fetcher
    kinds.create_fetcher = staticmethod(create)
    return before


def words_of_workers() -> tuple[Any, Any]:
    """The classes of what a worker sends instead of a batch: of an exception, of its data's end."""
    return (
        _find("torch._utils", "ExceptionWrapper"),
        _find("torch.utils.data._utils.worker", "_IterableDatasetStopIteration"),
    )


def holders(name: str) -> list[ModuleType]:
    """The modules of torch's loading that have this name, such as ``get_worker_info``."""
    modules = map(
        sys.modules.get,
        ("torch.utils.data", "torch.utils.data.dataloader", "torch.utils.data._utils.worker"),
    )
    return [module for module in modules if module is not None and hasattr(module, name)]


def iterator_class(module: ModuleType) -> type[Any]:
    """The base of torch's iterators in ``torch.utils.data.dataloader``, which may be loading."""
    return cast(type[Any], module._BaseDataLoaderIter)


def iterator_maker(kind: Any) -> Callable[[Any], Any] | None:
    """The method by which loaders of a class make an iterator; ``None`` where there is none."""
    return getattr(kind, ITERATOR_MAKER, None)


def set_iterator_maker(owner: Any, make: Callable[..., Any] | None) -> None:
    """Have one loader, or a whole class, make iterators by a method; ``None`` puts its own back."""
    if make is not None:
        setattr(owner, ITERATOR_MAKER, make)
    elif ITERATOR_MAKER in getattr(owner, "__dict__", {}):
        delattr(owner, ITERATOR_MAKER)


def kept_iterator(loader: Any) -> Any:
    """The iterator whose workers outlive an epoch; ``None`` before there is one."""
    return getattr(loader, "_iterator", None)


@contextlib.contextmanager
def without_kept_iterator(loader: Any) -> Iterator[None]:
    """A loader as it is before the iterator that it keeps, which can't be pickled.

    A worker that isn't forked may be sent the loader: with a ``collate_fn`` that is its method.
    """
    kept = kept_iterator(loader)
    if kept is None:
        yield
        return
    loader._iterator = None
    try:
        yield
    finally:
        loader._iterator = kept


def index_source(loader: Any) -> Any:
    """Where a loader takes its indices from; ``None`` where that isn't known."""
    return getattr(loader, "_index_sampler", None)


def promised_length(loader: Any) -> int | None:
    """The samples that an iterable dataset promised when it was asked; ``None`` if it was not."""
    promised = getattr(loader, "_IterableDataset_len_called", None)
    return promised if isinstance(promised, int) else None


def fetcher_of(iterator: Any) -> Any:
    """What fetches in the main process; ``None`` where workers do."""
    return getattr(iterator, "_dataset_fetcher", None)


def ready_queue(iterator: Any) -> Any:
    """The queue from which batches are yielded; ``None`` without workers."""
    return getattr(iterator, "_data_queue", None)


def workers_of(iterator: Any) -> Sequence[Any]:
    """The running workers that are processes, as far as an iterator has any."""
    workers: Sequence[Any] = getattr(iterator, "_workers", ())
    return [each for each in workers if hasattr(each, "sentinel")]


def passed_batches(iterator: Any) -> int:
    """Batches that an iterator has asked for and gone past; -1 where it won't say."""
    passed: int = getattr(iterator, "_rcvd_idx", -1)
    return passed


def ordered_batches(iterator: Any) -> int | None:
    """Batches that workers have made or are to make; ``None`` where that isn't known."""
    tasks = getattr(iterator, "_task_info", None)
    return len(tasks) if isinstance(tasks, dict) else None


def sent_batches(iterator: Any) -> int | None:
    """Of those the ones that workers have sent; ``None`` where that isn't known, as on macOS."""
    try:
        tasks = list(iterator._task_info.values())
        queues = (iterator._worker_result_queue, iterator._data_queue)
        found = {id(each): each.qsize() for each in queues}  # without a pin thread they are one
    except (AttributeError, TypeError, NotImplementedError, OSError):
        return None
    return int(sum(found.values())) + sum(len(task) > 1 for task in tasks)


def shut_down(iterator: Any) -> None:
    """End the workers of an iterator, as torch does when it is collected.

    How they die of it is of no interest any more: a spawned worker that is asked to end while its
    thread still hands a batch to torch aborts now and then, as Python (before 3.14) ends that
    thread inside of C++.
    """
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        try:
            end()
        except RuntimeError as error:
            if not reports_death(error):
                raise


_BATCH_ITERATOR = "torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"
_ITERABLE = "torch.utils.data", "_DatasetKind.Iterable"
_SIGNALS = "torch.utils.data._utils.signal_handling"
_WORKER_LOOP = "torch.utils.data._utils.worker", "_worker_loop"
_TUNED = (
    *(
        (_BATCH_ITERATOR[0], f"{_BATCH_ITERATOR[1]}.{name}")
        for name in ("_try_put_index", "_reset", "_next_index", "_next_data", "__next__")
    ),
    (_BATCH_ITERATOR[0], "_SingleProcessDataLoaderIter._next_index"),
    _WORKER_LOOP,
    (_SIGNALS, "_set_worker_pids"),
    (_SIGNALS, "_remove_worker_pids"),
    (_SIGNALS, "_set_SIGCHLD_handler"),
)
"""What tuning needs of torch's modules."""

_TUNED_PARTS = (
    *("_index_queues", "_workers", "_workers_status", "_workers_done_event"),
    *("_worker_result_queue", "_worker_queue_idx_cycle", "_worker_init_fn", "_worker_pids_set"),
    *("_task_info", "_tasks_outstanding", "_send_idx", "_rcvd_idx", "_prefetch_factor"),
    *("_num_workers", "_pin_memory", "_pin_memory_device"),
    *("_dataset_kind", "_dataset", "_auto_collation", "_collate_fn", "_drop_last", "_base_seed"),
    *("_persistent_workers", "_shared_seed", "_sampler_iter", "_index_sampler"),
)
"""And of what the methods of an iterator with workers name."""

_WORKER_ARGUMENTS = (
    *("dataset_kind", "dataset", "index_queue", "data_queue", "done_event", "auto_collation"),
    *("collate_fn", "drop_last", "base_seed", "init_fn", "worker_id", "num_workers"),
    *("persistent_workers", "shared_seed"),
)
_WITH_HOLDER = (_WORKER_ARGUMENTS[0], "dataset_holder", *_WORKER_ARGUMENTS[2:])
"""From torch 2.14 on the dataset comes in a list, and the worker takes it out."""

_NO_TUNING = "torch {version} has no {name}, by which workers are added and parked"
_HELD_S = 5.0  # as long as torch waits for a worker's end; else its locks are held for microseconds
_LIVE, _TAP, _EPOCH, _DRAWN = "_dlprof_live", "_dlprof_tap", "_dlprof_epoch", "_dlprof_drawn"
_SEEDED, _ASKED_ONCE = "_dlprof_seeded", "_dlprof_asked_once"
LATEST = 16
"""Batches that can be made again, at most."""


def untunable(loader: Any) -> str:
    """Why the workers of a DataLoader can't be changed while it is iterated; empty if they can."""
    version = getattr(sys.modules.get("torch"), "__version__", "")
    for module, name in _TUNED:
        if _find(module, name) is None:
            return _NO_TUNING.format(version=version, name=f"{module}.{name}")
    # What its methods name, also those that it inherits or that ``dlprof run`` wraps.
    kinds: tuple[Any, ...] = _find(*_BATCH_ITERATOR).__mro__
    methods = [inspect.unwrap(each) for kind in kinds for each in vars(kind).values()]
    known = {n for each in filter(inspect.isfunction, methods) for n in each.__code__.co_names}
    for name in _TUNED_PARTS:
        if name not in known:
            return _NO_TUNING.format(version=version, name=name)
    if _worker_arguments() not in {_WORKER_ARGUMENTS, _WITH_HOLDER}:
        return f"torch {version} starts workers with other arguments than those that are known"
    if works_in_threads(loader):
        return "its workers are threads"
    plain = _find("torch.utils.data.dataloader", f"DataLoader.{ITERATOR_MAKER}")
    if iterator_maker(type(loader)) is not plain:
        return f"{type(loader).__name__} makes iterators of its own"
    return ""


def _worker_arguments() -> tuple[str, ...]:
    return tuple(inspect.signature(_find(*_WORKER_LOOP)).parameters)


class _Live:
    """How an iterator hands out indices: to which workers, and how many batches at once.

    After the first ``freely`` batches of an epoch the sampler is asked for one no sooner than
    without tuning, with ``own`` batches in flight: what it draws at its end comes when it came.
    Where queues are shallower than the loader's own it comes as many batches later.

    To no workers none are handed out. As soon as those have come that were, batches are made here
    by the ``fetcher``, from indices that are ``held`` until then. ``latest`` are those of the
    batches that were drawn last. Where the iterator has a thread that pins, ``pins`` says whether
    it does, and is ``None`` where that can't be changed. While it is ``unasked`` none are drawn:
    the loader has no workers of its own, and draws with the first batch that is asked for.
    """

    __slots__ = (
        *("cycle", "fetcher", "freely", "held", "in_flight", "latest", "own", "pins", "unasked"),
        "workers",
    )

    def __init__(
        self, workers: int, in_flight: int, *, own: int = 1, freely: float = math.inf
    ) -> None:
        self.workers, self.in_flight = workers, in_flight
        self.own, self.freely, self.unasked = max(1, own), freely, not own
        self.fetcher: Any = None
        self.pins: bool | None = None
        self.held: list[Any] = []
        self.latest: deque[Any] = deque(maxlen=LATEST)
        self.restart()

    def restart(self) -> None:
        self.cycle = itertools.cycle(range(self.workers))


def _filling(put: Callable[[Any], None]) -> Callable[[Any], None]:
    """Torch's method that hands out one batch's indices, as one that fills the queues."""

    def _try_put_index(self: Any) -> None:
        live = getattr(self, _LIVE)
        if live.unasked:
            return
        if self._worker_queue_idx_cycle is not live.cycle:  # changed, or new with the epoch
            live.restart()
            self._worker_queue_idx_cycle = live.cycle
        tasks = self._task_info
        # Where batches come in any order torch loses one for which no worker has room.
        own = min(live.own, live.in_flight)
        while len(tasks) < (live.in_flight if self._send_idx < live.freely else own):
            # Torch counts for ever what a worker was sent that had come to its data's end by then:
            # shallower queues would never be filled again, and the epoch end early.
            self._tasks_outstanding = min(self._tasks_outstanding, len(tasks))
            if self._tasks_outstanding >= self._prefetch_factor * self._num_workers:
                return
            sent = self._send_idx
            put(self)
            if self._send_idx == sent:
                return

    return _try_put_index


def _fetching(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that waits for a batch, as one that makes it here while there are no workers.

    As torch does without workers, but for one thing: indices of a batch that Ctrl-C, or the news of
    a worker's death, kept from being made stay the next ones.
    """

    def _next_data(self: Any) -> Any:
        live = getattr(self, _LIVE)
        live.unasked = False
        if not live.held:
            if live.workers and not self._task_info:
                self._try_put_index()
            if live.workers or self._task_info:
                return get(self)
            self._rcvd_idx = self._send_idx  # batches that came in any order are behind
            try:
                live.held.append(self._next_index())
            except StopIteration:
                return get(self)  # which ends the workers
            self._send_idx = self._rcvd_idx = self._send_idx + 1
        return _made_here(self, live)

    return _next_data


def _fetching_alone(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's method that makes a batch, as one of an iterator that may be given workers.

    Whoever follows the iterator may have kept it from before it had any.
    """

    def _next_data(self: Any) -> Any:
        live = getattr(self, _LIVE)
        if live.fetcher is None:
            return get(self)
        if started_workers(self):
            return type(self)._next_data(self)
        if not live.held:
            live.held.append(self._next_index())
        return _made_here(self, live)

    return _next_data


def _made_here(it: Any, live: _Live) -> Any:
    """The batch of the indices that are held."""
    try:
        data = live.fetcher.fetch(live.held[0])
        if it._pin_memory and live.pins is not False:
            pin: Any = _find("torch.utils.data._utils.pin_memory", "pin_memory")
            data = pin(data, it._pin_memory_device)
    except Exception as error:
        if not came_by_signal(error):
            live.held.clear()
        raise
    live.held.clear()
    return data


def _freeing(end: Callable[..., None]) -> Callable[..., None]:
    """Torch's method that asks workers to end, as one that waits for no lock which nobody frees.

    Ctrl-C ends a worker without a word, and a signal kills it, at any place: also where it has the
    lock by which all of them look whether they are to end. The others and torch would wait for it
    for ever. So would torch where Ctrl-C came as it put something into a queue. As Python
    exits torch asks nobody, and this module may be empty by now.
    """
    loading: Any = _find("torch.utils.data", "_utils")

    def freeing(self: Any, *given: Any, **options: Any) -> None:
        try:
            exits = getattr(loading, "python_exit_status", False) is not False
            if not (exits or getattr(self, "_shutdown", True)):
                with contextlib.suppress(AttributeError):  # a context may make queues of its own
                    _free_locks(self)
        finally:
            end(self, *given, **options)

    return freeing


def _free_locks(it: Any) -> None:
    """Looks at locks and takes none: Ctrl-C could come before it is given back."""
    for queue in it._index_queues:
        if _stays_locked(queue._notempty):  # by Ctrl-C, as nobody else has it so long
            queue._notempty.release()
    if _stays_locked(it._workers_done_event._cond):
        it._workers_done_event = threading.Event()  # torch sets and reads it
        # They wait for the other's, and can't be asked. Who is dead is reaped: no more news of it.
        for worker in [each for each in it._workers if each.is_alive()]:
            worker.terminate()


def _stays_locked(condition: Any) -> bool:
    lock = condition._lock
    # Those of processes have no such method before Python 3.14.
    is_locked = getattr(lock, "locked", None) or lock._semlock._is_zero
    until_s = time.monotonic() + _HELD_S
    while is_locked() and time.monotonic() < until_s:
        time.sleep(0.01)
    return bool(is_locked())


@functools.cache
def _tuned_class(kind: Any) -> Any:
    """A class derived from an iterator's, with a tap in ``next()`` and a valve at its queues.

    Results are keyed by the batch's number, so which worker gets a batch can't change the order.
    """
    advance, draw, reset = kind.__next__, kind._next_index, kind._reset
    put = getattr(kind, "_try_put_index", None)

    def __next__(self: Any) -> Any:
        return getattr(self, _TAP)(advance, self)

    def _next_index(self: Any) -> Any:
        index = draw(self)
        number = getattr(self, _DRAWN)  # torch counts only what it sent, or what it yielded
        setattr(self, _DRAWN, number + 1)
        live = getattr(self, _LIVE)
        live.latest.append(index)
        if getattr(self, _SEEDED) or not (live.workers or live.fetcher is None):
            return ((self._base_seed, getattr(self, _EPOCH), number), index)
        return index

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's
        setattr(self, _EPOCH, getattr(self, _EPOCH) + 1)
        setattr(self, _DRAWN, 0)
        getattr(self, _TAP).renew()
        sampler = self._index_sampler
        if first_iter and getattr(self, _ASKED_ONCE):
            self._index_sampler = self._sampler_iter
        try:
            reset(self, loader, first_iter)
        finally:
            self._index_sampler = sampler

    methods: dict[str, Any] = {"__next__": __next__, "_next_index": _next_index, "_reset": _reset}
    if put is not None:
        methods["_try_put_index"] = _filling(put)
    fetching = _fetching_alone if put is None else _fetching
    methods["_next_data"] = fetching(kind._next_data)
    for name in ("_shutdown_workers", "_mark_worker_as_unavailable"):
        if hasattr(kind, name):
            methods[name] = _freeing(getattr(kind, name))
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, **methods})


def batch_seed(base_seed: int, epoch: int, number: int) -> int:
    """A seed for one batch, as unlike that of the next as can be (splitmix64)."""
    mask = 0xFFFFFFFFFFFFFFFF
    mixed = (base_seed + 0x9E3779B97F4A7C15 * (1 + number) + 0xD1B54A32D192ED03 * epoch) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


def tapped_iterator(
    loader: Any, tap: Any, wrap: Callable[[Any], Any] | None, own_in_flight: int
) -> Any:
    """An iterator as a DataLoader makes it, each ``next()`` of which goes through a tap.

    ``tap(advance, iterator)`` gives the next batch, which is what ``advance(iterator)`` gives, and
    ``tap.renew()`` hears that all workers are there and an epoch begins. The iterator keeps the
    tap, which must not keep the iterator: torch ends its workers as soon as the last reference
    goes.

    Where each batch is sent with a seed, ``wrap`` makes a fetcher that takes it off of the one that
    fetches in the main process. Workers have to do the same.

    An iterator with workers asks the sampler twice as it begins, and uses the second answer; one
    without asks once. A sampler may draw random numbers then, or count epochs: it is asked as often
    as with the ``own_in_flight`` batches of the loader's own workers; 0 for none. And as early:
    with workers as the iterator is made, without with its first batch. Between these a loop may
    begin another loader, as ``zip`` does, that draws from the same random numbers.

    Where the loader has workers of its own, and the iterator none, an iterable dataset begins with
    the first batch, as in a worker, and by the random numbers that ``wrap`` has for it. What it
    sets of itself is gone with the iterator, as in a worker.
    """
    workers = loader.num_workers
    name = _BATCH_ITERATOR[1] if workers else "_SingleProcessDataLoaderIter"
    iterator = object.__new__(_tuned_class(_find(_BATCH_ITERATOR[0], name)))
    in_flight = workers * (loader.prefetch_factor or 0)
    live = _Live(workers, in_flight, own=own_in_flight, freely=_asked_freely(loader))
    first = -1 if workers else 0  # with workers an iterator is reset as it is made
    vars(iterator).update({_LIVE: live, _TAP: tap, _EPOCH: first, _DRAWN: 0})
    vars(iterator).update({_SEEDED: wrap is not None, _ASKED_ONCE: not own_in_flight})
    late = own_in_flight and not workers and loader._dataset_kind == _find(*_ITERABLE)
    _initialize(iterator, _Changed(loader, dataset=()) if late else loader)
    if late:
        iterator._dataset = as_forked(loader.dataset)
        iterator._dataset_fetcher = _LateFetcher(_fetcher_maker(iterator))
    if wrap is not None and not workers:
        iterator._dataset_fetcher = wrap(iterator._dataset_fetcher)
    if own_in_flight and not (workers or late):
        iterator._sampler_iter = iter(iterator._index_sampler)
        live.fetcher = iterator._dataset_fetcher
        with contextlib.suppress(StopIteration):
            live.held.append(iterator._next_index())
    return iterator


def as_forked(dataset: Any) -> Any:
    """A dataset whose attributes are set apart from those of another; shallow, where it can be.

    Its random numbers and iterators go on apart as well, and those of iterable datasets in it.
    """
    with contextlib.suppress(Exception):  # whatever the user's code raises
        return _apart(dataset)
    return dataset


def _apart(dataset: Any) -> Any:
    if hasattr(type(dataset), "__del__"):
        raise TypeError("its end may close what both have")
    found, kind = copy.copy(dataset), _find("torch.utils.data", "IterableDataset")
    for name, value in [*vars(found).items()]:
        if isinstance(value, random.Random) or type(value).__name__ in {"Generator", "RandomState"}:
            vars(found)[name] = copy.deepcopy(value)
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            vars(found)[name] = copy.copy(value)
        elif isinstance(value, kind):
            vars(found)[name] = _apart(value)
    return found


class _LateFetcher:
    """A fetcher that is made with its first batch."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._fetcher = make, cast(Any, None)

    def fetch(self, indices: Any) -> Any:
        if self._fetcher is None:
            self._fetcher = self._make()
        return self._fetcher.fetch(indices)


def _fetcher_maker(iterator: Any) -> Callable[[], Any]:
    """What makes a fetcher for this process; it keeps no iterator."""
    parts = ("dataset_kind", "dataset", "auto_collation", "collate_fn", "drop_last")
    create: Any = _find("torch.utils.data", "_DatasetKind.create_fetcher")
    return functools.partial(create, *(getattr(iterator, f"_{part}") for part in parts))


def made_again(iterator: Any) -> Callable[[], None]:
    """What makes one of the batches that were drawn last in the process that calls it.

    Each call makes another, and the first calls those that workers make last, of which nothing is
    cached yet; after all of them comes ``StopIteration``. Of an iterable dataset these are its
    first ones. It keeps no iterator.
    """
    live, fetcher = getattr(iterator, _LIVE), _LateFetcher(_fetcher_maker(iterator))

    def again() -> None:
        if not live.latest:
            raise StopIteration
        fetcher.fetch(live.latest.pop())

    return again


def made_first(loader: Any) -> Callable[[], Any] | None:
    """What makes one batch after another of a loader's first samples in the process that calls it.

    It asks no sampler, which may count epochs, or speak to other processes. ``None`` where one that
    isn't torch's own says what samples there are.
    """
    iterable, batches = loader._dataset_kind == _find(*_ITERABLE), loader._index_sampler
    order = [batches, getattr(batches, "sampler", batches)]
    if not iterable and not all(type(e).__module__.startswith("torch.utils.data") for e in order):
        return None
    create: Any = _find("torch.utils.data", "_DatasetKind.create_fetcher")
    parts = loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn
    fetcher = _LateFetcher(functools.partial(create, *parts, loader.drop_last))
    size = getattr(batches, "batch_size", None)
    starts = itertools.count(0, size or 1)

    def again() -> Any:
        start = next(starts)
        end = start + (size or 1)
        indices = range(start, end if iterable else min(end, len(loader.dataset)))
        if not indices:
            raise StopIteration
        return fetcher.fetch(start if size is None else [*indices])

    return again


def become_worker(loader: Any) -> Any:
    """Have this process be a loader's first worker to whoever asks; returns what they are given."""
    module: Any = sys.modules["torch.utils.data._utils.worker"]
    given = {"id": 0, "num_workers": loader.num_workers, "seed": 0, "dataset": loader.dataset}
    module._worker_info = module.WorkerInfo(**given)
    return module._worker_info


def _initialize(iterator: Any, loader: Any) -> None:
    """Have torch make an iterator, and start its workers."""
    try:
        iterator.__init__(loader)
    except BaseException:
        # Torch makes it last, and can't end the workers that it started without it.
        vars(iterator).setdefault("_workers_status", [True] * loader.num_workers)
        raise
    finally:
        # Collected with an error that holds it, its queues would go before it, and its workers not
        # hear that they are to end: torch waits 5 s for each. So all of these are there until then.
        held = [getattr(iterator, name, None) for name in ("_index_queues", "_workers")]
        weakref.finalize(iterator, list, held).atexit = False


def _asked_freely(loader: Any) -> float:
    """Batches that an epoch's sampler may be asked for early; infinite where that is all.

    As torch's shuffle ends it draws once more, from a generator that the next epoch goes on with.
    """
    data: Any = sys.modules["torch.utils.data"]
    batches = loader._index_sampler
    samples = getattr(batches, "sampler", batches)
    known = type(samples) is data.RandomSampler and type(batches) in {
        data.BatchSampler,
        data.RandomSampler,
    }
    if not known or samples.generator is None:
        return math.inf
    return len(samples) // int(getattr(batches, "batch_size", 1))


class _AsItIs:
    """A batch that torch's pin thread hands on as it is."""

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def may_unpin(iterator: Any, *, pins: bool) -> None:
    """Have the pin thread of a tapped iterator, if it has one, pin only while it is to."""
    if not (iterator._pin_memory and started_workers(iterator)):
        return
    live = getattr(iterator, _LIVE)
    live.pins = pins

    def passed(data: Any) -> Any:
        return data if live.pins else _AsItIs(data)

    def given(data: Any) -> Any:
        return data.batch if type(data) is _AsItIs else data

    for queue, change in (iterator._worker_result_queue, passed), (iterator._data_queue, given):
        queue.get = functools.partial(_got, type(queue).get, weakref.ref(queue), change)


def _got(get: Any, queue: Any, change: Callable[[Any], Any], *given: Any, **options: Any) -> Any:
    number, data = get(queue(), *given, **options)
    return number, change(data)


def pins_tuples() -> bool:
    """Whether a tuple of which torch pins the tensors stays one: some versions make it a list."""
    pin: Any = _find("torch.utils.data._utils.pin_memory", "pin_memory")
    return pin is not None and type(pin(())) is tuple


def pinning(iterator: Any) -> bool | None:
    """Whether a tapped iterator pins batches; ``None`` where that stays for its epoch."""
    pins: bool | None = getattr(iterator, _LIVE).pins
    return pins


def persists(iterator: Any) -> bool:
    """Whether the workers of an iterator outlive an epoch."""
    return bool(getattr(iterator, "_persistent_workers", False))


def steer(
    iterator: Any,
    workers: int,
    ahead: int,
    wrap: Callable[[Any], Any] | None = None,
    *,
    pins: bool = False,
) -> None:
    """Hand out indices to the first so many workers only, and so many batches ahead for each.

    Others finish what they have and stay: they are parked. Never marked as dead, which would make
    torch drop their batches. Called in the consumer's thread, between two batches; the next one
    fills the queues, so that what a sampler raises comes in ``next()``, as ever.

    With no workers ``next()`` makes batches of a map-style dataset, by what ``wrap`` makes of a
    fetcher: it takes a seed with the indices. ``pins`` is for a thread that can be
    had to pin or not.
    """
    live = getattr(iterator, _LIVE)
    live.pins = None if live.pins is None else pins
    if not workers and live.fetcher is None and wrap is not None:
        live.fetcher = wrap(_fetcher_maker(iterator)())
    if workers != live.workers:  # workers of an iterable dataset keep their turn
        live.workers, live.cycle = workers, None
    live.in_flight = workers * ahead
    iterator._prefetch_factor = ahead


def reports_death(error: Exception) -> bool:
    """Whether torch raised this because a worker died: it may do so at any line of anybody's."""
    return isinstance(error, RuntimeError) and "DataLoader worker" in str(error)


def came_by_signal(error: Exception) -> bool:
    """Whether a signal's handler raised this: it may do so at any line of anybody's.

    So torch reports a worker's death, and a scheduler's warning may end a training. A handler may
    also be a ``functools.partial``, or an object that is called.
    """
    found = [*filter(callable, map(signal.getsignal, signal.valid_signals()))]
    handlers: list[Any] = [*found, *(getattr(each, "func", each) for each in found)]
    called = [*handlers, *(each.__call__ for each in handlers)]
    codes = {getattr(each, "__code__", None) for each in called}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def init_of(iterator: Any) -> Any:
    """What each worker of an iterator calls first."""
    return iterator._worker_init_fn


def started_workers(iterator: Any) -> int:
    """Workers of an iterator, those that are parked too."""
    return int(iterator._num_workers)


class _Changed:
    """An object with some attributes of its own, and all others of another."""

    def __init__(self, other: Any, **own: Any) -> None:
        vars(self).update(own, _dlprof_other=other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dlprof_other, name)


def loader_of(given: Any) -> Any:
    """The loader that an iterator is made of, also where it is made of one with some changes."""
    return given._dlprof_other if type(given) is _Changed else given


def start_first_worker(it: Any, loader: Any, *, seeded: bool) -> None:
    """Have a tapped iterator without workers go on as one that has one, which is parked.

    It stays in the midst of its epoch, with the order that its sampler has begun. The dataset is
    map-style, and the loader as it is to be for an iterator with a single worker, which is sent a
    seed with the indices of each batch if ``seeded``. If that can't be, the iterator is as before.

    Raises:
        OSError: There are no more processes, or files.
    """
    _find(_SIGNALS, "_set_SIGCHLD_handler")()  # once for all, or what follows would put it back
    kind, before = type(it), dict(vars(it))
    drawn = before[_DRAWN]
    # A seed as unlike others as can be; the training's random numbers are left alone.
    generator = _find("torch", "Generator")()
    generator.manual_seed(batch_seed(it._base_seed, -1, drawn))
    changed = _Changed(loader, _index_sampler=it._sampler_iter, generator=generator)
    with undisturbed():
        try:
            it.__class__ = _tuned_class(_find(*_BATCH_ITERATOR))
            it._reset = functools.partial(_find(*_BATCH_ITERATOR)._reset, it)  # no epoch begins
            _initialize(it, changed)
        except BaseException:
            if "_workers" in vars(it):
                shut_down(it)
            vars(it).clear()
            vars(it).update(before)
            it.__class__ = kind
            raise
        for name in ("_index_sampler", "_base_seed", "_num_yielded"):
            setattr(it, name, before[name])
        it._send_idx = it._rcvd_idx = drawn
        vars(it).update({_SEEDED: seeded})
        del it._reset


def start_worker(it: Any, context: Any) -> None:
    """Start one more worker of a tapped iterator of a map-style dataset, as torch started others.

    The context is the loader's ``multiprocessing_context``, or ``torch.multiprocessing``.
    """
    with undisturbed():
        index_queue = context.Queue()
        index_queue.cancel_join_thread()
        number = len(it._workers)
        given = {
            **{name: getattr(it, f"_{name}", None) for name in _WORKER_ARGUMENTS},
            "dataset": it._dataset if _worker_arguments() == _WORKER_ARGUMENTS else [it._dataset],
            "index_queue": index_queue,
            "data_queue": it._worker_result_queue,
            "done_event": it._workers_done_event,
            "init_fn": it._worker_init_fn,
            "worker_id": number,
            "num_workers": number + 1,
        }
        worker = context.Process(target=_find(*_WORKER_LOOP), args=tuple(given.values()))
        worker.daemon = True
        worker.start()
        it._index_queues.append(index_queue)
        it._workers.append(worker)
        it._workers_status.append(True)
        if hasattr(it, "_workers_num_tasks"):  # torch 2.6 has none
            it._workers_num_tasks.append(0)
        it._num_workers += 1
        # The C side takes one registration per iterator, by which it notices that a worker died.
        if it._worker_pids_set:
            _find(_SIGNALS, "_remove_worker_pids")(id(it))
        it._worker_pids_set = False
        _find(_SIGNALS, "_set_worker_pids")(id(it), tuple(each.pid for each in it._workers))
        it._worker_pids_set = True


_PUT_OFF: list[int] = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGHUP", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD")
    if hasattr(signal, name)  # Windows has two of them
]
"""Signals by which trainings, launchers and schedulers end what they have begun."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Ctrl-C, the news of a worker's death and the like until what is begun is whole.

    Each may raise at any bytecode of the main thread, also a TimeoutError, which is an OSError: who
    suppresses those would suppress it. A process that is forked within gives a signal its own
    handler again when it comes, and that one alone: torch's workers have others for some of them,
    of which Python knows nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process, kept, begun = os.getpid(), set[int](), True
    found = {each: signal.getsignal(each) for each in _PUT_OFF}
    before = {each: handler for each, handler in found.items() if callable(handler)}

    def keep(number: int, frame: Any) -> None:
        if begun and os.getpid() == process:
            kept.add(number)
            return
        if signal.getsignal(number) is keep:  # else it has one of its own by now
            signal.signal(number, before[number])
        before[number](number, frame)

    try:
        for each in before:
            signal.signal(each, keep)
        yield
    finally:
        begun = False  # from here on each may raise once more, and leave the others to themselves
        for each, handler in before.items():
            signal.signal(each, handler)
        with contextlib.ExitStack() as stack:  # all come, whatever others raise, and Ctrl-C last
            for number in filter(kept.__contains__, _PUT_OFF):
                stack.callback(signal.raise_signal, number)
