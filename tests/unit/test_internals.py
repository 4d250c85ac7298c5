"""The one place that names torch's private parts: with this torch, and shapes of coming ones."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data._utils.signal_handling as torch_signals
import torch.utils.data._utils.worker as torch_worker
import torch.utils.data.dataloader as torch_loader
from torch.utils.data import DataLoader

from dlprof import internals
from dlprof.tracing.tracer import Tracer
from dlprof.trial.failures import classify
from dlprof.trial.hangs import awaits_work, parse_stacks

PACKAGE = Path(__file__).parents[2] / "dlprof"
PRIVATE = {
    "_DatasetKind", "_IterableDatasetStopIteration", "_BaseDataLoaderIter", "_worker_loop",
    "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter", "_get_iterator",
    "_index_sampler", "_IterableDataset_len_called", "_dataset_fetcher", "_data_queue",
    "_rcvd_idx", "_shutdown_workers", "_next_index", "_next_data", "_InfiniteConstantSampler",
    "create_fetcher", "pt_data_pin", "pt_data_worker", "_worker_result_queue", "_index_queues",
    "_send_idx", "_task_info", "_try_put_index", "_sampler_iter", "_workers_status",
    "_DataLoader__multiprocessing_context", "_sharding_worker_init_fn",
}  # fmt: skip


def _names(path: Path) -> Iterator[str]:
    """Attributes, imported names and whole texts of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


EIGHT: Any = [*range(8)]  # a list is indexed, as a dataset is


def test_no_other_module_names_a_private_part_of_torch() -> None:
    own = {"create_fetcher", "_next_index"}  # functions of ours may be called as theirs are
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "internals.py" and any(name in text for name in PRIVATE):
            found = PRIVATE.intersection(_names(path)) - own
            assert not found, f"{path.name} names {found}: ask dlprof/internals.py"


def test_this_torch_has_all_that_is_asked_for() -> None:
    loader: Any = DataLoader(EIGHT)
    assert internals.untraceable(loader) == ""
    assert internals.iterator_class(sys.modules["torch.utils.data.dataloader"])
    assert internals.index_source(loader) is loader.batch_sampler
    assert len(internals.holders("get_worker_info")) >= 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch_worker, "_IterableDatasetStopIteration"),
        (torch._utils, "ExceptionWrapper"),
        (torch.utils.data._DatasetKind, "create_fetcher"),
    ],
)
def test_a_torch_that_has_moved_a_part_is_named_and_waits_are_timed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    loader: Any = DataLoader(EIGHT, batch_size=2)
    renamed = vars(owner)[name]
    monkeypatch.delattr(owner, name)
    tracer = Tracer(loader)
    with tracer:
        monkeypatch.setattr(owner, name, renamed, raising=False)  # torch itself goes on
        assert [batch.tolist() for batch in tracer] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    trace = tracer.trace()
    assert len(trace.rows) == 4
    assert trace.hooked is False
    assert trace.unavailable["hooks"].startswith(f"torch {torch.__version__} has no torch.")
    assert f"{name}, by which stages are traced" in trace.unavailable["hooks"]


@pytest.mark.parametrize("loop", internals.WORKER_LOOPS)
@pytest.mark.parametrize("queues", ["multiprocessing/queues.py", "queue.py"])
def test_a_worker_that_waits_for_indices_is_known_by_any_of_its_names(
    loop: str, queues: str
) -> None:
    text = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/lib/threading.py", line 331 in wait\n'
        f'  File "/lib/{queues}", line 180 in get\n'
        f'  File "/lib/torch/utils/data/_utils/worker.py", line 300 in {loop}\n'
        '  File "/lib/threading.py", line 982 in run\n'
    )
    assert awaits_work(parse_stacks(text))
    assert not awaits_work(parse_stacks(text.replace(" in get", " in fetch")))


@pytest.mark.parametrize("where", internals.IN_WORKER)
def test_an_exception_says_which_kind_of_worker_raised_it(where: str) -> None:
    error = ValueError(f"Caught ValueError {internals.IN_WORKER[where]} 0.\nValueError: broken")
    assert classify(error).message.startswith(f"ValueError in {where}")


def test_workers_that_are_threads_are_no_processes() -> None:
    process = types.SimpleNamespace(sentinel=3)
    iterator = types.SimpleNamespace(_workers=[object(), process])
    assert internals.workers_of(iterator) == [process]
    threaded = types.SimpleNamespace(worker_method="thread", num_workers=2)
    assert internals.works_in_threads(threaded)
    assert "threads" in internals.untraceable(threaded)
    assert not internals.works_in_threads(
        types.SimpleNamespace(worker_method="thread", num_workers=0)
    )
    assert not internals.works_in_threads(types.SimpleNamespace(num_workers=2))
    context = types.SimpleNamespace(Process=type("Shim", (threading.Thread,), {}))  # MONAI's
    shimmed = types.SimpleNamespace(multiprocessing_context=context, num_workers=2)
    assert internals.works_in_threads(shimmed)
    forked = multiprocessing.get_context("spawn")
    assert not internals.works_in_threads(
        types.SimpleNamespace(multiprocessing_context=forked, num_workers=2)
    )


class Iterator26:
    """What tuning meets of an iterator with workers of torch 2.6; later ones count tasks, too.

    Written by hand, by what pytorch's history shows of these versions.
    """

    def __init__(self, workers: int, length: int) -> None:
        self.handed_out: list[tuple[int, int]] = []
        self._index_queues: list[Any] = [None] * workers
        self._workers: list[Any] = [types.SimpleNamespace(pid=each) for each in range(workers)]
        self._workers_status = [True] * workers
        self._workers_done_event = self._worker_result_queue = None
        self._worker_queue_idx_cycle = itertools.cycle(range(workers))
        self._worker_init_fn = self._collate_fn = self._dataset = None
        self._worker_pids_set = self._auto_collation = True
        self._task_info: dict[int, tuple[int]] = {}
        self._tasks_outstanding = self._send_idx = self._rcvd_idx = self._base_seed = 0
        self._dataset_kind, self._pin_memory, self._pin_memory_device = 0, False, None
        self._prefetch_factor, self._num_workers = 2, workers
        self._drop_last = self._persistent_workers = False
        self._shared_seed = None
        self._index_sampler = range(length)
        self._sampler_iter = iter(self._index_sampler)

    def __next__(self) -> int:
        return self._next_data()

    def _next_data(self) -> int:
        """The batch that was ordered first comes, and its place is filled."""
        number = min(self._task_info)
        del self._task_info[number]
        self._tasks_outstanding -= 1
        self._rcvd_idx += 1
        self._try_put_index()
        return number

    def _next_index(self) -> int:
        return next(self._sampler_iter)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin an epoch."""

    def _try_put_index(self) -> None:
        assert self._tasks_outstanding < self._prefetch_factor * self._num_workers
        worker = next(self._worker_queue_idx_cycle)
        self._task_info[self._send_idx] = (worker,)
        self.handed_out.append((worker, self._next_index()))
        self._tasks_outstanding += 1
        self._send_idx += 1


class Iterator27(Iterator26):
    """From torch 2.7 on."""

    def __init__(self, workers: int, length: int) -> None:
        super().__init__(workers, length)
        self._workers_num_tasks = [0] * workers


class Context:
    """Starts nothing."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def Queue(self) -> Any:  # noqa: N802 - as multiprocessing names it
        return types.SimpleNamespace(cancel_join_thread=lambda: None)

    def Process(self, **given: Any) -> Any:  # noqa: N802 - the same
        self.started.append(given)
        return types.SimpleNamespace(pid=100 + len(self.started), start=lambda: None)


@pytest.mark.parametrize(
    ("shape", "takes"),
    [
        (Iterator26, internals._WORKER_ARGUMENTS),
        (Iterator27, internals._WORKER_ARGUMENTS),
        (Iterator27, internals._WITH_HOLDER),  # from torch 2.14 on: the dataset comes in a list
    ],
)
def test_iterators_of_each_torch_are_steered_and_given_workers(
    monkeypatch: pytest.MonkeyPatch, shape: type[Iterator26], takes: tuple[str, ...]
) -> None:
    kinds = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in takes]
    loop: Any = lambda *_: None  # noqa: E731 - it needs a signature
    loop.__signature__ = inspect.Signature(kinds)
    monkeypatch.setattr(torch_worker, "_worker_loop", loop)
    pids: list[Any] = []
    monkeypatch.setattr(
        torch_signals, "_set_worker_pids", lambda _, known: pids.append(tuple(known))
    )
    monkeypatch.setattr(torch_signals, "_remove_worker_pids", lambda _: None)
    monkeypatch.setattr(torch_loader, "_MultiProcessingDataLoaderIter", shape)
    kind: Any = shape
    iterator: Any = object.__new__(internals._tuned_class(kind))
    vars(iterator).update(_dlprof_live=internals._Live(2, 4), _dlprof_epoch=0, _dlprof_seeded=False)
    vars(iterator)["_dlprof_drawn"] = 0
    vars(iterator)["_dlprof_tap"] = lambda advance, this: advance(this)
    shape.__init__(iterator, 2, 40)
    loader: Any = DataLoader(EIGHT, num_workers=1)
    assert internals.untunable(loader) == ""
    iterator._try_put_index()
    assert [worker for worker, _ in iterator.handed_out] == [0, 1, 0, 1]
    came = [next(iterator) for _ in range(4)]
    context = Context()
    for _ in range(2):
        internals.start_worker(iterator, context)
    assert internals.started_workers(iterator) == 4
    assert pids[-1] == (0, 1, 101, 102)
    arguments = [each["args"][10:12] for each in context.started]  # its number, and of how many
    assert arguments == [(2, 3), (3, 4)]
    dataset = iterator._dataset
    assert context.started[0]["args"][1] == (
        dataset if takes == internals._WORKER_ARGUMENTS else [dataset]
    )
    internals.steer(iterator, 4, 2)
    came += [next(iterator) for _ in range(8)]
    assert {worker for worker, _ in iterator.handed_out[-4:]} == {0, 1, 2, 3}
    internals.steer(iterator, 1, 1)
    handed_out = len(iterator.handed_out)
    came += [next(iterator) for _ in range(12)]
    assert {worker for worker, _ in iterator.handed_out[handed_out:]} == {0}
    assert came == list(range(24))
    assert [index for _, index in iterator.handed_out] == list(range(len(iterator.handed_out)))
    handed_out = len(iterator.handed_out)
    fetcher = types.SimpleNamespace(fetch=lambda seeded: seeded[1])
    internals.steer(iterator, 0, 0, lambda _: fetcher)
    came += [next(iterator) for _ in range(6)]
    assert len(iterator.handed_out) == handed_out
    internals.steer(iterator, 2, 1)
    came += [next(iterator) for _ in range(6)]
    assert {worker for worker, _ in iterator.handed_out[handed_out:]} == {0, 1}
    assert came == list(range(36))


class Renamed:
    """An iterator that has the methods of those that are known, and keeps its batches otherwise."""

    def __next__(self) -> int:
        return 0

    _next_index = _try_put_index = _next_data = __next__

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._index_queues: list[Any] = []


def test_an_iterator_of_another_shape_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = DataLoader(EIGHT, num_workers=1)
    monkeypatch.setattr(torch_loader, "_MultiProcessingDataLoaderIter", Renamed)
    assert "has no _workers, by which workers are added" in internals.untunable(loader)
    monkeypatch.setattr(torch_loader, "_SingleProcessDataLoaderIter", Iterator)
    assert "has no torch.utils.data.dataloader._Single" in internals.untunable(loader)


def test_workers_that_are_started_otherwise_are_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = DataLoader(EIGHT, num_workers=1)
    assert internals.untunable(loader) == ""
    monkeypatch.setattr(torch_worker, "_worker_loop", lambda *_: None)
    assert "starts workers with other arguments" in internals.untunable(loader)


def test_the_end_of_workers_with_other_queues_is_torchs_own() -> None:
    ended: list[int] = []
    end = internals._freeing(lambda _, worker: ended.append(worker))
    end(types.SimpleNamespace(_shutdown=False, _index_queues=[object()]), 7)
    assert ended == [7]


def test_ctrl_c_is_not_lost_in_the_news_of_a_death() -> None:
    def died(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    def both() -> None:
        signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGCHLD, died)
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), internals.undisturbed():
            both()
        assert signal.getsignal(signal.SIGCHLD) is died
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.signal(signal.SIGINT, ctrl_c)


class _Ends:
    def __call__(self, *_: object) -> None:
        raise RuntimeError("it is preempted")

    def end(self, *_: object) -> None:
        self()


class _Decorated(_Ends):
    func = print  # what decorators leave, as partial does


@pytest.mark.parametrize(
    "handler",
    [_Ends(), _Ends().end, functools.partial(_Ends.end, _Ends()), _Decorated()],
)
def test_what_a_handler_of_any_kind_raises_came_by_a_signal(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError, match="preempted") as raised:
            signal.raise_signal(signal.SIGUSR1)
        assert internals.came_by_signal(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not internals.came_by_signal(raised.value)


def test_all_signals_that_were_put_off_come_whatever_one_raises() -> None:
    def died(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    def both() -> None:
        for each in handlers:
            signal.raise_signal(each)
        assert not came

    came = list[int]()
    handlers = {signal.SIGUSR1: lambda number, _: came.append(number), signal.SIGCHLD: died}
    before = {each: signal.signal(each, handlers[each]) for each in handlers}
    try:
        with pytest.raises(RuntimeError, match="is killed") as raised, internals.undisturbed():
            both()
        assert came == [signal.SIGUSR1]
        assert internals.came_by_signal(raised.value)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    with pytest.raises(RuntimeError, match="is killed") as raised:
        died()
    assert not internals.came_by_signal(raised.value)


def _warned_and_ended() -> None:
    torch._C._set_worker_signal_handlers()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)


def test_a_worker_that_is_forked_as_signals_are_put_off_ends_as_torch_has_it_end() -> None:
    """Also once one of them has come to it, as a scheduler sends them to all processes."""

    def ended(*_: object) -> None:
        os._exit(7)

    handlers = {signal.SIGUSR1: lambda *_: None, signal.SIGTERM: ended}
    before = {each: signal.signal(each, handlers[each]) for each in handlers}
    try:
        with internals.undisturbed():
            worker = multiprocessing.get_context("fork").Process(target=_warned_and_ended)
            worker.start()
        worker.join()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert worker.exitcode == -signal.SIGTERM


def test_a_worker_that_dies_as_signals_are_put_off_leaves_ctrl_c_to_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's handler of its death raises at any place, so between two that are replaced, too."""
    ctrl_c, death = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD)
    replace, calls = signal.signal, itertools.count()

    def dying(number: int, handler: Any) -> Any:
        if next(calls) == 1:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
        return replace(number, handler)

    replace(signal.SIGCHLD, lambda *_: None)
    monkeypatch.setattr(signal, "signal", dying)
    try:
        with pytest.raises(RuntimeError, match="is killed"), internals.undisturbed():
            raise AssertionError
        assert signal.getsignal(signal.SIGINT) is ctrl_c
    finally:
        replace(signal.SIGINT, ctrl_c)
        replace(signal.SIGCHLD, death)


class Ending:
    def __init__(self, message: str) -> None:
        self._message = message

    def _shutdown_workers(self) -> None:
        raise RuntimeError(self._message)


def test_workers_that_die_as_they_are_asked_to_end_disturb_nobody() -> None:
    internals.shut_down(Ending("DataLoader worker (pid 7) is killed by signal: Aborted. "))
    with pytest.raises(RuntimeError, match="can't join"):
        internals.shut_down(Ending("can't join"))
