"""Main's side of one iterator: follows its batches from drawing their indices to their yield."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dlprof.internals import STEPS, fetcher_of, ready_queue
from dlprof.tracing.clocks import (
    MISSING,
    Reading,
    ThreadClock,
    cpu_ns,
    now_ns,
    process_cpu_ns,
    waited_between,
)
from dlprof.tracing.queues import Hook, StampedBatch, stamping_context
from dlprof.tracing.stamper import Stamper
from dlprof.tracing.trace import Made, Ring, Row


class Recorder:
    """Puts hooks on one iterator, and fills the rows of its batches.

    The iterator's own attributes shadow its class's methods. They hold it by weak references only:
    torch ends the workers as soon as the last reference goes, and must go on doing so.

    ``seen`` is called with what a worker knows of a batch, once it is there, and ``finished`` with
    each row, once it is in the ``ring``. ``in_order`` says whether batches are yielded by number.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        in_order: bool,
        seen: Callable[[Made], object] = lambda _made: None,
        finished: Callable[[Row], object] = lambda _row: None,
    ) -> None:
        self._ring = ring
        self._in_order = in_order
        self._seen = seen
        self._finished = finished
        self._clocks: dict[int, ThreadClock] = {}
        self._rows: dict[int, Row] = {}
        self._ready: list[int] = []
        self._epoch = MISSING
        self._drawing = MISSING
        self._asked = (MISSING,) * 3
        self._asked_by = MISSING
        self._other_cpu = 0
        self._rebuilt: Reading | None = None
        self._rebuilt_batch = MISSING
        self._next = 0
        self.stamper: Stamper | None = None  # where main makes the batches itself
        self._hook = Hook(self)
        self._iterator: Callable[[], Any] = _nothing
        self._undo: list[Callable[[], object]] = []

    def read(self) -> Reading:
        """All clocks of the calling thread, such as one that begins to wait for a batch."""
        thread = threading.get_ident()
        clock = self._clocks.get(thread)
        if clock is None:
            clock = self._clocks[thread] = ThreadClock()
        return clock.read()

    def let_go(self) -> None:
        """Take the hooks off; workers that still run learn it with their next indices."""
        self._hook.listener = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        for clock in self._clocks.values():
            clock.close()
        self._rows.clear()
        if self.stamper is not None:
            self.stamper.let_go()
        self._iterator = _nothing  # its callback holds this object

    def _begin_epoch(self) -> None:
        self._epoch = self._ring.next_epoch()
        self._rows.clear()
        self._ready.clear()
        self._next = 0

    def expect(self, drawing_ns: int = MISSING, dispatched_ns: int = MISSING) -> None:
        """The batch that comes next is the only one on its way."""
        if self._epoch == MISSING:
            self._begin_epoch()
        number = self._next
        row = Row(epoch=self._epoch, batch=number, drawing=drawing_ns, dispatched=dispatched_ns)
        self._rows = {number: row}
        self._ready = [number]
        self._next += 1

    def dispatching(self, batch: int) -> None:
        """Indices are about to be sent; torch counts from 0 in each epoch."""
        if batch == 0:
            self._begin_epoch()
        self._rows[batch] = Row(epoch=self._epoch, batch=batch, drawing=self._drawing)
        self._drawing = MISSING

    def dispatched(self, batch: int) -> None:
        """They have been sent."""
        row = self._rows.get(batch)
        if row is not None:
            row.dispatched = now_ns()

    def taken(self, began: Reading, batch: int, stamped: StampedBatch | None) -> None:
        """It has one: from this process's waiting, or from the worker's putting it, if later."""
        ended = self.read()
        if threading.get_ident() == self._asked_by:
            self._other_cpu += ended.cpu - began.cpu
        else:
            self._rebuilt, self._rebuilt_batch = ended, batch
        row = self._rows.get(batch)
        if row is None:
            return
        row.rebuilt, row.received = ended.wall, began.wall
        row.receive_cpu = ended.cpu - began.cpu
        row.receive_run_queue = waited_between(began, ended)
        if stamped is not None:
            row.made, put, done = stamped.made, stamped.began, stamped.ended
            self._seen(stamped.made)
            if put is not None and done is not None:
                row.serialising, row.serialised = put.wall, done.wall
                row.serialise_cpu = done.cpu - put.cpu
                row.serialise_run_queue = waited_between(put, done)
                row.received = min(max(row.received, done.wall), row.rebuilt)
        if row.made is None or not row.made.ended:
            self._ready.append(batch)

    def asked(self) -> None:
        """The consumer asks for a batch."""
        self._other_cpu = 0
        self._asked_by = threading.get_ident()
        self._asked = process_cpu_ns(), cpu_ns(), now_ns()

    def _take_next(self, *, failed: bool = False) -> Row | None:
        """The row of the batch that is yielded now, or of the one that ``failed``, if one did.

        In order it is the least of those that are there, else the one that came first.
        """
        if not self._ready:
            return None
        batch = min(self._ready) if self._in_order else self._ready[0]
        row = self._rows.get(batch)
        made = None if row is None else row.made
        if failed and self.stamper is None and (made is None or not made.failed):
            return None
        self._ready.remove(batch)
        return self._rows.pop(batch, None)

    def yielded(self) -> None:
        """The consumer gets its batch."""
        yielded_ns, spent_ns = now_ns(), cpu_ns()
        self._asked_by = MISSING
        row = self._take_next()
        if row is None:
            return
        if self.stamper is not None:
            # Without workers: the batch was made in this very ``next()``.
            made = row.made = self.stamper.handed()
            if made is not None:
                self._other_cpu += made.fetch_cpu + made.collate_cpu
                self._seen(made)
        row.asked_process_cpu, row.asked_cpu, row.asked = self._asked
        row.yielded, row.next_cpu = yielded_ns, spent_ns - row.asked_cpu
        row.other_cpu = self._other_cpu
        row.process_cpu, row.thread_cpu = process_cpu_ns(), cpu_ns()
        row.left = now_ns()
        self._ring.add(row)
        self._finished(row)

    def failed(self) -> None:
        """``next()`` raised."""
        self._asked_by = MISSING
        self._take_next(failed=True)

    # The hooks, which call all that stands above.

    def prepare(self, loader: Any) -> Callable[[], None]:
        """Have the loader make an iterator whose workers and queues stamp; returns its undo."""
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
            self.stamper = Stamper(-1, fetcher.dataset)
            self.stamper.follow(fetcher)
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
        def next_index() -> Any:
            self._drawing = now_ns()
            index = method(*first())
            if self.stamper is not None:  # without workers, main takes them up itself
                self.expect(self._drawing, now_ns())
                self.stamper.picked(index)
            return index

        return next_index

    def _timed_data(self, method: Any, first: Callable[[], tuple[Any, ...]]) -> Any:
        def next_data() -> Any:
            self.asked()
            try:
                batch = method(*first())
            except BaseException:
                self.failed()
                raise
            self.yielded()
            return batch

        return next_data

    def _timed_put(self, method: Any, first: Callable[[], tuple[Any, ...]]) -> Any:
        def put(item: Any, *args: Any, **options: Any) -> None:
            number, rebuilt = item[0] if type(item) is tuple and item else None, self._rebuilt
            row = self._rows.get(number) if type(number) is int else None
            if row is not None and rebuilt is not None and self._rebuilt_batch == number:
                row.pinned = now_ns()
                row.pin_cpu = cpu_ns() - rebuilt.cpu
            method(*first(), item, *args, **options)

        return put


def _nothing() -> None:
    """Nothing to undo; and what a reference to an iterator gives that is gone."""
