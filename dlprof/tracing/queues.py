"""Queues and a ``worker_init_fn`` that stamp what passes between main and its workers.

A batch leaves its worker stamped: the batch between two stamps, in one pickle. The feeder
thread reads the clock when it comes to the first and to the last, so pickling and moving to shared
memory are timed by the pickle itself. In main the queue unpacks it and torch gets what it always
gets.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import multiprocessing
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from dlprof.internals import set_create_fetcher, words_of_workers
from dlprof.targets.faults import without_own_lines
from dlprof.tracing.clocks import Reading, ThreadClock
from dlprof.tracing.stamper import Stamper
from dlprof.tracing.trace import Made

if TYPE_CHECKING:
    from dlprof.tracing.recorder import Recorder

_WORDS = functools.cache(words_of_workers)
_new = tuple.__new__  # several times as fast as a NamedTuple's own, and this runs for each batch


class Hook:
    """What all queues of one iterator and its workers' set-up share.

    It is pickled together with them, so that in a worker too all of them hold the same one.
    """

    def __init__(self, listener: Recorder | None) -> None:
        self.listener = listener  # in main, while it listens
        self.stamper: Stamper | None = None  # in a worker, while it stamps
        self.feeder: ThreadClock | None = None  # of the worker's feeder thread, made by that
        self._create_fetcher: Any = None

    def __reduce__(self) -> Any:
        return Hook, (None,)

    def begin_in_worker(self, user_init: Callable[[int], Any] | None, worker: int) -> None:
        """Have the fetchers that torch makes after a worker's ``worker_init_fn`` timed."""
        info = get_worker_info()
        # Not as the user's code would: whether that asks is noticed by whoever watches the class.
        dataset = None if info is None else object.__getattribute__(info, "dataset")
        stamper = Stamper(worker, dataset)

        def create_fetcher(kind: Any, data: Any, *rest: Any) -> Any:
            fetcher = original(kind, data, *rest)
            if data is dataset:  # not one of a loader that the user's dataset runs itself
                stamper.follow(fetcher)
            return fetcher

        self._create_fetcher = original = set_create_fetcher(create_fetcher)
        self.listener, self.stamper = None, stamper
        if user_init is not None:
            user_init(worker)

    def end_in_worker(self) -> None:
        """Stop stamping, and make everything as torch and the user had it."""
        stamper, self.stamper = self.stamper, None
        if stamper is not None:
            set_create_fetcher(self._create_fetcher)
            stamper.let_go()


@dataclasses.dataclass(slots=True, eq=False)
class StampedBatch:
    """A batch on its way to main, between the stamps of its maker and of the feeder thread."""

    item: Any  # what torch put into the queue: a number and a batch
    made: Made  # the maker's stamps
    hook: Hook | None  # of the worker; ``None`` in main
    began: Reading | None = None  # when the feeder thread began to pickle it
    ended: Reading | None = None  # when it had done so

    def __reduce__(self) -> Any:
        hook = self.hook
        if hook is None:
            raise TypeError("a stamped batch travels once")
        if hook.feeder is None:
            hook.feeder = ThreadClock()
        clock = hook.feeder
        # The last part is an iterator of what is to be appended: the pickler comes to it once all
        # that stands before has been pickled.
        later = (tuple(clock.read()) for _ in range(1))
        return _unpack, (tuple(self.made), tuple(clock.read()), self.item), None, later

    def append(self, ended: tuple[int, int, int]) -> None:
        """Take the last stamp, as the pickle's end brings it."""
        self.ended = _new(Reading, ended)


def _unpack(made: tuple[Any, ...], began: tuple[int, ...], item: Any) -> StampedBatch:
    return StampedBatch(item, _new(Made, made), None, _new(Reading, began))


@dataclasses.dataclass(frozen=True, slots=True)
class _Last:
    """Indices with which a worker is asked to stop stamping."""

    item: Any


class _Queue:
    """A queue of torch's; all but ``put`` and ``get`` goes to it."""

    def __init__(self, inner: Any, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_hook") or name.startswith("__"):  # unpickling asks before they are
            raise AttributeError(name)
        return getattr(self._inner, name)


class IndexQueue(_Queue):
    """Takes indices from main to one worker."""

    _word = False

    def put(self, item: Any, *args: Any, **options: Any) -> None:
        """Send indices, from main."""
        listener, number = self._hook.listener, _number(item)
        if listener is not None and number is not None:
            listener.dispatching(number)
            self._inner.put(item, *args, **options)
            listener.dispatched(number)
            return
        if listener is None and number is not None and not self._word:
            self._word, item = True, _Last(item)
        self._inner.put(item, *args, **options)

    def get(self, *args: Any, **options: Any) -> Any:
        """Take indices, in a worker."""
        item = self._inner.get(*args, **options)
        if type(item) is _Last:
            item = item.item
            self._hook.end_in_worker()
        elif (stamper := self._hook.stamper) is not None and _number(item) is not None:
            stamper.picked(item[1])
        return item


class DataQueue(_Queue):
    """Takes batches from workers to main."""

    def put(self, item: Any, *args: Any, **options: Any) -> None:
        """Send a batch, from a worker."""
        hook = self._hook
        stamper = hook.stamper
        if stamper is None:
            self._inner.put(item, *args, **options)
            return
        if _number(item) is not None:
            of_error, of_end = _WORDS()
            error = _word(item[1], of_error)
            if error is not None:
                error.exc_msg = without_own_lines(error.exc_msg)
            ended = _word(item[1], of_end) is not None
            made = stamper.handed(ended=ended, failed=error is not None)
            item = item if made is None else StampedBatch(item, made, hook)
        self._inner.put(item, *args, **options)
        del item  # the batch is the feeder thread's alone now
        stamper.look()

    def get(self, *args: Any, **options: Any) -> Any:
        """Take a batch, in main."""
        listener = self._hook.listener
        if listener is None:
            item = self._inner.get(*args, **options)
            return item.item if type(item) is StampedBatch else item
        began = listener.read()
        item = self._inner.get(*args, **options)
        stamped = item if type(item) is StampedBatch else None
        item = item if stamped is None else stamped.item
        number = _number(item)
        if number is not None:
            listener.taken(began, number, stamped)
        return item


def _word(data: Any, kind: Any) -> Any:
    """The word that a worker sends instead of a batch; torchdata's puts it first in a tuple."""
    word = data[0] if type(data) is tuple and data else data
    return word if isinstance(word, kind) else None


def _number(item: Any) -> int | None:
    """The number of a batch, of what torch sends about one; ``None`` of other messages."""
    if type(item) is tuple and len(item) == 2 and type(item[0]) is int:
        return item[0]
    return None


def stamping_context(base: BaseContext | None, hook: Hook) -> BaseContext:
    """A copy of a loader's multiprocessing context whose queues stamp, for one iterator.

    Its first queue takes batches, the others indices. It can be pickled, as a worker may be sent
    the loader itself: with a ``collate_fn`` that is a method of the loader's class.
    """
    own, base = base, multiprocessing.get_context() if base is None else base
    context = copy.copy(base)
    if own is None:  # what torch makes workers of then, by which they are named
        vars(context)["Process"] = multiprocessing.Process
    vars(context)["Queue"] = functools.partial(_stamping_queue, base, hook, [DataQueue])
    return context


def _stamping_queue(
    base: BaseContext, hook: Hook, first: list[type[_Queue]], *args: Any, **options: Any
) -> _Queue:
    inner = base.Queue(*args, **options)
    return first.pop()(inner, hook) if first else IndexQueue(inner, hook)
