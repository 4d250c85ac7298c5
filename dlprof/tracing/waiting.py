"""The wait in ``next()`` alone, for loaders that can't be hooked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from dlprof.tracing.clocks import cpu_ns, now_ns, process_cpu_ns
from dlprof.tracing.trace import Ring, Row


class WaitingIterator:
    """One epoch of a loader, the wait for each batch timed until somebody sees more than that.

    Args:
        iterator: Of the loader.
        ring: Where rows go.
        hooked: Whether the loader's own iterator has been hooked meanwhile: a class whose
            ``__iter__`` is a generator makes it at the first ``next()``.
        finished: Called after each row.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        ring: Ring,
        *,
        hooked: Callable[[], bool],
        finished: Callable[[Row], object],
    ) -> None:
        self._iterator = iterator
        self._ring = ring
        self._hooked = hooked
        self._finished = finished
        self._epoch: int | None = None
        self._batch = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        asked_ns, asked_cpu_ns = now_ns(), cpu_ns()
        batch = next(self._iterator)
        if not self._hooked():
            self._add(asked_ns, asked_cpu_ns)
        return batch

    def _add(self, asked_ns: int, asked_cpu_ns: int) -> None:
        yielded_ns, spent_ns = now_ns(), cpu_ns()
        if self._epoch is None:
            self._epoch = self._ring.next_epoch()
        row = Row(
            epoch=self._epoch,
            batch=self._batch,
            asked=asked_ns,
            asked_cpu=asked_cpu_ns,
            yielded=yielded_ns,
            next_cpu=spent_ns - asked_cpu_ns,
            left=yielded_ns,
            thread_cpu=spent_ns,
            process_cpu=process_cpu_ns(),
        )
        self._batch += 1
        self._ring.add(row)
        self._finished(row)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)
