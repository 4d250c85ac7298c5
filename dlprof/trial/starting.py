"""How a worker comes to its first batch: real starts of one worker, with stamps on the way.

Runs in a disposable process. The worker is torch's own, of the loader that is asked about; what is
added are marks among the arguments of its process, each of which says when it was pickled in main
and when it was unpickled in the worker. This module is loaded by workers before torch is.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from dlprof.internals import shut_down
from dlprof.records import StartPhase, WorkerStart


class _Moment(NamedTuple):
    """Seconds: of the clock, of CPU of this process, and of run-queue delay of its first thread."""

    at: float
    cpu: float
    delay: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.perf_counter(), time.process_time(), _delay_s())


def _delay_s() -> float:
    try:
        with open("/proc/self/schedstat", "rb") as file:  # as it is faster
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


_moments: dict[str, _Moment] = {}
"""Of this process: those of marks that were pickled or unpickled in it."""


class _Mark:
    """Notes when it is pickled, and when it is unpickled: once some modules are imported there."""

    def __init__(self, name: str, modules: tuple[str, ...] = ()) -> None:
        self.name, self.modules = name, modules

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, ...]]:
        _note(self.name)
        return _note, (self.name, *self.modules)


def _note(name: str, *modules: str) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    _moments[name] = _Moment.now()


def _work(
    _started: object,
    _imported: object,
    target: Callable[..., object],
    arguments: tuple[Any, ...],
    _unpickled: object,
    answer: Connection,
) -> None:
    """In the worker: what torch would run, with the first batch's stamps sent beside."""
    for name in ("started", "imported", "unpickled"):
        _moments.setdefault(name, _Moment.now())  # forked: nothing was unpickled
    from dlprof.internals import set_create_fetcher  # torch comes before it

    def create(*given: Any) -> Any:
        fetcher = plain(*given)
        fetch = fetcher.fetch
        _note("ready")

        def first(index: Any) -> Any:
            fetcher.fetch = fetch
            _note("fetching")
            batch = fetch(index)
            _note("fetched")
            answer.send({name: tuple(each) for name, each in _moments.items()})
            answer.close()
            return batch

        fetcher.fetch = first
        set_create_fetcher(plain)
        return fetcher

    plain = set_create_fetcher(create)
    target(*arguments)


def marking_context(method: str, modules: tuple[str, ...], answer: Connection) -> Any:
    """A multiprocessing context whose processes are marked on their way.

    A worker imports modules for the loader, and sends its moments to ``answer``.
    """
    base: Any = multiprocessing.get_context(method)
    context = copy.copy(base)

    def process(*, target: Callable[..., object], args: tuple[Any, ...], **options: Any) -> Any:
        marks = (_Mark("started"), _Mark("imported", modules))
        goods = (*marks, target, args, _Mark("unpickled"), answer)
        return base.Process(target=_work, args=goods, **options)

    context.Process = process
    return context


def measure_start(loader: Any, method: str) -> WorkerStart | None:
    """Start the one worker of a loader and take its first batch; its context is changed.

    ``None`` where the loader's workers don't go by torch's loop, or there is no batch.

    Raises:
        Exception: Whatever starting, pickling or loading raises.
    """
    server_s = _server_s(method)
    ours, theirs = multiprocessing.get_context(method).Pipe(duplex=False)
    # Those in which the classes are that a worker is sent.
    parts = (loader.dataset, getattr(loader, "collate_fn", None))
    names = (getattr(type(each), "__module__", "") for each in parts if each is not None)
    own = dict.fromkeys(each for each in names if each and each != "builtins")
    modules = ("torch.utils.data", *own)
    loader.multiprocessing_context = marking_context(method, modules, theirs)
    _moments.clear()
    began = _Moment.now()
    thread_s = time.thread_time()
    iterator = iter(loader)
    created_s = time.thread_time() - thread_s
    try:
        batch = next(iterator, None)
        ended = _Moment.now()
        theirs.close()
        if batch is None or not ours.poll(60.0):
            return None
        moments = {name: _Moment(*each) for name, each in ours.recv().items()}
    except EOFError:
        return None
    finally:
        with contextlib.suppress(Exception):
            shut_down(iterator)
    started, packed = moments["started"], _moments.get("unpickled")  # when the last was pickled
    since = packed.at if packed is not None else started.at - started.cpu
    born = _Moment(min(since, started.at), 0.0, 0.0)
    fetch = _phase("fetch", moments["fetching"], moments["fetched"])
    received_s = max(0.0, ended.at - moments["fetched"].at)
    server = StartPhase(name="server", wall_s=server_s, cpu_s=server_s)
    phases = (
        *([server] if server_s > 0 else []),
        StartPhase(name="create", wall_s=created_s, cpu_s=created_s),
        _phase("process", born, started),
        _phase("imports", started, moments["imported"]),
        _phase("unpickle", moments["imported"], moments["unpickled"]),
        _phase("init", moments["unpickled"], moments["ready"]),
        dataclasses.replace(fetch, wall_s=fetch.wall_s + received_s),
    )
    return WorkerStart(method=method, phases=phases, first_batch_s=ended.at - began.at)


def _phase(name: Any, began: _Moment, ended: _Moment) -> StartPhase:
    """What a worker did between two moments, without what others kept it waiting for a core."""
    cpu_s = max(0.0, ended.cpu - began.cpu)
    wall_s = max(0.0, ended.at - began.at - max(0.0, ended.delay - began.delay))
    return StartPhase(name=name, wall_s=max(wall_s, cpu_s), cpu_s=cpu_s)


def _server_s(method: str) -> float:
    """Start the fork server, if there is to be one; seconds by which its first process is later."""
    took_s = [0.0, 0.0]
    for turn in range(2 if method == "forkserver" else 0):
        began_s = time.perf_counter()
        context: Any = multiprocessing.get_context(method)
        process = context.Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        took_s[turn] = time.perf_counter() - began_s
    return max(0.0, took_s[0] - took_s[1])
