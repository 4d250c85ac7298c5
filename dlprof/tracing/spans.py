"""What each stage of a batch's way took: from stamps to lengths of time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from dlprof.records.stages import StageName
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Row


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One batch in one stage, in nanoseconds.

    Attributes:
        wall_ns: From its beginning to its end.
        cpu_ns: CPU of the thread that did it; ``None`` if it isn't known apart.
        run_queue_ns: That thread's waiting for a core.
    """

    wall_ns: int
    cpu_ns: int | None = None
    run_queue_ns: int | None = None

    @property
    def io_ns(self) -> int | None:
        """True waiting: neither on a core nor waiting for one; ``None`` if that isn't known."""
        return None if self.run_queue_ns is None else self.waited_ns

    @property
    def waited_ns(self) -> int:
        """As ``io_ns``, waiting for a core included where that isn't known."""
        return max(0, self.wall_ns - (self.cpu_ns or 0) - (self.run_queue_ns or 0))


def _known(value: int) -> int | None:
    return None if value == MISSING else value


def _plain(
    began: int, ended: int, cpu_ns: int = MISSING, run_queue_ns: int = MISSING
) -> Span | None:
    """``None`` unless both ends are known."""
    if MISSING in (began, ended):
        return None
    return Span(max(0, ended - began), _known(cpu_ns), _known(run_queue_ns))


def _pick_up(row: Row) -> Span | None:
    if row.made is None or row.made.worker < 0:
        return None
    return _plain(row.dispatched, row.made.picked)


def _fetch(row: Row) -> Span | None:
    made = row.made
    if made is None:
        return None
    run_queue = _known(made.fetch_run_queue)
    return Span(made.fetched - made.picked, made.fetch_cpu, run_queue)


def _collate(row: Row) -> Span | None:
    made = row.made
    if made is None:
        return None
    run_queue = _known(made.collate_run_queue)
    return Span(made.collated - made.fetched, made.collate_cpu, run_queue)


def _serialise(row: Row) -> Span | None:
    """From the worker's handing it over: the feeder thread's waiting for the GIL belongs to it."""
    if row.made is None:
        return None
    cpu, run_queue = row.serialise_cpu, row.serialise_run_queue
    return _plain(row.made.collated, row.serialised, cpu, run_queue)


def _rebuild(row: Row) -> Span | None:
    if row.made is None:
        return None
    return _plain(row.received, row.rebuilt, row.receive_cpu, row.receive_run_queue)


def _hold_up(row: Row) -> Span | None:
    if row.made is None:
        return None
    known = (row.made.collated, row.rebuilt, row.pinned)
    return _plain(next(each for each in reversed(known) if each != MISSING), row.yielded)


_OF_ROW: Mapping[str, Callable[[Row], Span | None]] = {
    "dispatch": lambda row: _plain(row.drawing, row.dispatched),
    "pick_up": _pick_up,
    "fetch": _fetch,
    "collate": _collate,
    "serialise": _serialise,
    "queue": lambda row: _plain(row.serialised, row.received),
    "rebuild": _rebuild,
    "pin": lambda row: _plain(row.rebuilt, row.pinned, row.pin_cpu),
    "hold_up": _hold_up,
    "wait": lambda row: _plain(row.asked, row.yielded, row.next_cpu),
}


def spans(name: StageName, rows: Sequence[Row]) -> list[Span]:
    """What a stage took, for each row that has it, in the order of the rows.

    Args:
        name: Of the stage.
        rows: In the order of their yields, where the stage is ``step``.
    """
    if name == "step":
        return [
            Span(max(0, after.asked - row.left), after.asked_cpu - row.thread_cpu)
            for row, after in itertools.pairwise(rows)
            if after.epoch == row.epoch
        ]
    of_row = _OF_ROW.get(name)
    found = () if of_row is None else map(of_row, rows)
    return [span for span in found if span is not None]
