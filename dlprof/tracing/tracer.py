"""Times the stages of one loader's batches."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self

from torch.utils.data import DataLoader

from dlprof.internals import (
    ITERATOR_MAKER,
    iterator_maker,
    kept_iterator,
    set_iterator_maker,
    untraceable,
)
from dlprof.tracing.clocks import now_ns
from dlprof.tracing.recorder import Recorder
from dlprof.tracing.trace import Made, Ring, Row, Trace

_WAIT_ONLY = "so only the wait in next() is timed"


def _weakly(method: Callable[[Any], object]) -> Callable[[Any], None]:
    """Call a method while its object exists.

    An iterator's hooks must not keep the tracer, and with it the loader and its workers, alive.
    """
    reference = weakref.WeakMethod(method)

    def call(given: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(given)

    return call


class Tracer:
    """Follows every batch of one loader without changing it or them.

    Between ``install`` and ``remove`` each iterator that the loader makes is followed, wherever
    ``iter(loader)`` is called. Iterate over the tracer itself instead to have at least the waits of
    a loader that can't be hooked. Where iterators are made by a script that is not to be touched,
    put ``making`` around that, and give no ``loader``.

    The latest batches are kept; 16,384 are about 20 MB. It stops by itself after so many batches,
    or so many seconds after the first, but not before ``least_batches``.
    """

    def __init__(
        self,
        loader: Any = None,
        *,
        capacity: int = 16_384,
        stop_after_batches: int | None = None,
        stop_after_s: float | None = None,
        least_batches: int = 1,
    ) -> None:
        self._loader = loader
        self._ring = Ring(capacity)
        self._stop_after_batches = stop_after_batches
        self._stop_after_s = stop_after_s
        self._least_batches = least_batches
        self._stops_ns: float | None = None
        self._began_ns, self._began_at = now_ns(), time.time()
        self._attached: list[Recorder] = []
        self._names: tuple[str, ...] = ()
        self._reason = ""
        self._hooked = False
        self.stopped = False
        if loader is not None:
            foreign = f"{type(loader).__name__} is not a torch.utils.data.DataLoader, {_WAIT_ONLY}"
            is_known = isinstance(loader, DataLoader)
            self._reason = untraceable(loader) if is_known else foreign

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch; the same as ``iter(loader)`` where that can be hooked."""
        iterator: Iterator[Any] = iter(self._loader)
        if any(each.follows(iterator) for each in self._attached):
            return iterator
        recorder = Recorder(self._ring, in_order=True, finished=self._finished)
        return WaitingIterator(iterator, recorder, hooked=lambda: self._hooked or self.stopped)

    def install(self) -> None:
        """Follow every iterator that the loader makes from now on."""
        loader, make = self._loader, iterator_maker(type(self._loader))
        if self._reason or make is None or self.stopped:
            return
        if kept_iterator(loader) is not None:
            self._reason = f"the loader's persistent workers were running before, {_WAIT_ONLY}"
            return
        try:
            set_iterator_maker(loader, _Maker(self, loader, make))
        except Exception as error:  # a class of the user's own may refuse
            self._refused(loader, error)

    def remove(self) -> None:
        """Leave the loader and its iterators as they were; what was seen is kept."""
        set_iterator_maker(self._loader, None)
        for each in self._attached:
            each.let_go()
        self._attached.clear()

    @contextlib.contextmanager
    def making(self, loader: Any) -> Iterator[Callable[[Any], None]]:
        """Prepare for an iterator of this loader to be made within, to be called with it after."""
        self._reason = self._reason or untraceable(loader)
        if self.stopped or self._reason:
            yield lambda _iterator: None
            return
        recorder = Recorder(
            self._ring,
            in_order=getattr(loader, "in_order", True),
            seen=_weakly(self._seen),
            finished=_weakly(self._finished),
        )
        try:
            undo = recorder.prepare(loader)
        except Exception as error:  # a class of the user's own may refuse
            self._refused(loader, error)
            yield lambda _iterator: None
            return
        try:
            yield lambda iterator: self._adopt(loader, recorder, iterator)
        finally:
            undo()

    def _adopt(self, loader: Any, recorder: Recorder, iterator: Any) -> None:
        try:
            recorder.adopt(iterator)
        except Exception as error:  # never break the script that is looked at
            recorder.let_go()
            self._refused(loader, error)
            return
        self._hooked = True
        self._attached = [*(each for each in self._attached if each.alive), recorder]

    def _refused(self, loader: Any, error: Exception) -> None:
        self._reason = f"{type(loader).__name__} refused the hooks ({error}), {_WAIT_ONLY}"

    def _seen(self, made: Made) -> None:
        self._names = made.names or self._names

    def _finished(self, row: Row) -> None:
        """After each row: stop if it is time to."""
        if self._stops_ns is None:
            left_s = self._stop_after_s
            self._stops_ns = float("inf") if left_s is None else row.yielded + 1e9 * left_s
        added, enough = self._ring.added, self._stop_after_batches
        in_time = row.yielded < self._stops_ns or added < self._least_batches
        if not in_time or (enough is not None and added >= enough):
            self.stop()

    def stop(self) -> None:
        """Stop for good; workers stop stamping with the next indices that they get."""
        self.stopped = True
        self.remove()

    def forget(self) -> None:
        """Begin again: the rows so far are no part of what has been seen."""
        self._ring.clear()

    def trace(self) -> Trace:
        """What has been seen so far."""
        rows = tuple(self._ring.rows())
        reason = self._reason
        if not self._hooked and not reason and rows:
            name = type(self._loader).__name__
            reason = f"{name} makes its iterator in a way of its own, {_WAIT_ONLY}"
        unavailable = {"hooks": reason} if reason else {}
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            no_gil = "this Python runs without a GIL, so no thread waits for it"
            unavailable["fetch_threads_cpu_s"] = no_gil
        return Trace(
            rows=rows,
            dropped=self._ring.added - len(rows),
            began_ns=self._began_ns,
            began_at=self._began_at,
            names=self._names,
            hooked=self._hooked,
            unavailable=unavailable,
        )


class WaitingIterator:
    """One epoch of a loader, the wait for each batch timed until somebody sees more than that.

    ``hooked`` says whether the loader's own iterator has been hooked by now: a class whose
    ``__iter__`` is a generator makes it at the first ``next()``.
    """

    def __init__(
        self, iterator: Iterator[Any], recorder: Recorder, *, hooked: Callable[[], bool]
    ) -> None:
        self._iterator, self._recorder, self._hooked = iterator, recorder, hooked

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._recorder.asked()
        batch = next(self._iterator)
        if not self._hooked():
            self._recorder.expect()
            self._recorder.yielded()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


class _Maker:
    """Makes the iterators of one loader, which a tracer follows.

    A copy of the loader, as a worker is sent it with a ``collate_fn`` that is its own method, makes
    its iterators by its class.
    """

    def __init__(self, tracer: Tracer, loader: Any, make: Callable[[Any], Any]) -> None:
        self._tracer, self._loader = weakref.ref(tracer), weakref.ref(loader)
        self._make = make

    def __call__(self) -> Any:
        tracer, loader = self._tracer(), self._loader()
        if tracer is None:
            return self._make(loader)
        with tracer.making(loader) as adopt:
            iterator = self._make(loader)
        adopt(iterator)
        return iterator

    def __reduce__(self) -> Any:
        # Of the copy this is asked before it has attributes of its own.
        return getattr, (self._loader(), ITERATOR_MAKER)
