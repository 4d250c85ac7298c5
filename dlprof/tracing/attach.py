"""Puts hooks on one iterator of a DataLoader, and takes them off again."""

from __future__ import annotations

import functools
import queue
import sys
import weakref
from collections.abc import Callable
from typing import Any

from dlprof.internals import STEPS, fetcher_of, ready_queue
from dlprof.tracing.queues import Hook, stamping_context
from dlprof.tracing.recorder import Recorder
from dlprof.tracing.stamper import Stamper


class Attachment:
    """The hooks of one iterator.

    The iterator's own attributes shadow its class's methods. They hold it by weak references only:
    torch ends the workers as soon as the last reference goes, and must go on doing so.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hook = Hook(recorder)
        self._iterator: Callable[[], Any] = _nothing
        self._undo: list[Callable[[], object]] = []

    def prepare(self, loader: Any) -> Callable[[], None]:
        """Have the loader make an iterator whose workers and queues stamp.

        Returns:
            What gives the loader its own settings back.
        """
        if loader.num_workers == 0:
            return _nothing
        init, context = loader.worker_init_fn, loader.multiprocessing_context
        stamping = stamping_context(context, self._hook)
        loader.worker_init_fn = functools.partial(self._hook.begin_in_worker, init)
        try:
            loader.multiprocessing_context = stamping
        except BaseException:
            loader.worker_init_fn = init
            raise

        def undo() -> None:
            loader.worker_init_fn = init
            loader.multiprocessing_context = context

        return undo

    def adopt(self, iterator: Any) -> None:
        """Follow an iterator that has been made.

        Raises:
            AttributeError: It is none of torch's kind.
        """
        self._iterator = weakref.ref(iterator, self._dropped)
        fetcher = fetcher_of(iterator)
        if fetcher is not None:
            stamper = self._recorder.stamper = Stamper(-1, fetcher.dataset)
            stamper.follow(fetcher)
        self._shadow(iterator, STEPS["index"], self._timed_index)
        self._shadow(iterator, STEPS["data"], self._timed_data)
        ready = ready_queue(iterator)
        if isinstance(ready, queue.Queue):
            self._shadow(ready, "put", self._timed_put)

    def _dropped(self, _dead: object, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let go, for the iterator is gone.

        Not at the interpreter's end: there is nothing left to undo, and modules may be empty by
        then, which is why the function is a default.
        """
        if not finalizing():
            self.let_go()

    @property
    def alive(self) -> bool:
        """Whether its iterator still exists."""
        return self._iterator() is not None

    def follows(self, iterator: object) -> bool:
        """Whether it is this iterator."""
        return self._iterator() is iterator

    def _shadow(self, owner: Any, name: str, timed: Callable[[Any, Any], Any]) -> None:
        """Put a timed method before that of the owner's class."""
        before = vars(owner).get(name)
        method = before if before is not None else getattr(type(owner), name)
        reference = weakref.ref(owner)
        shadow = timed(method, (lambda: ()) if before is not None else (lambda: (reference(),)))
        setattr(owner, name, shadow)

        def undo() -> None:
            alive = reference()
            if alive is None or vars(alive).get(name) is not shadow:
                return
            if before is None:
                delattr(alive, name)
            else:
                setattr(alive, name, before)

        self._undo.append(undo)

    def _timed_index(self, method: Any, first: Callable[[], tuple[Any, ...]]) -> Any:
        recorder = self._recorder

        def next_index() -> Any:
            recorder.drawing()
            index = method(*first())
            recorder.drawn(index)
            return index

        return next_index

    def _timed_data(self, method: Any, first: Callable[[], tuple[Any, ...]]) -> Any:
        recorder = self._recorder

        def next_data() -> Any:
            recorder.asked()
            try:
                batch = method(*first())
            except BaseException:
                recorder.failed()
                raise
            recorder.yielded()
            return batch

        return next_data

    def _timed_put(self, method: Any, first: Callable[[], tuple[Any, ...]]) -> Any:
        recorder = self._recorder

        def put(item: Any, *args: Any, **options: Any) -> None:
            if type(item) is tuple and item and type(item[0]) is int:
                recorder.pinned(item[0])
            method(*first(), item, *args, **options)

        return put

    def let_go(self) -> None:
        """Take the hooks off; workers that still run learn it with their next indices."""
        self._hook.listener = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._recorder.close()
        self._iterator = _nothing  # its callback holds this object


def _nothing() -> None:
    """Nothing to undo; and what a reference to an iterator gives that is gone."""
