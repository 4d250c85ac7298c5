"""What each stage of a batch's way took: from stamps to lengths of time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from dlprof.records.stages import StageName
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Made, Row


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


_OF_ROW: Mapping[str, Callable[[Row], Span | None]] = {
    "dispatch": lambda row: _plain(row.drawing, row.dispatched),
    "queue": lambda row: _plain(row.serialised, row.received),
    "pin": lambda row: _plain(row.rebuilt, row.pinned, row.pin_cpu),
    "wait": lambda row: _plain(row.asked, row.yielded, row.next_cpu),
}

_OF_MADE: Mapping[str, Callable[[Row, Made], Span | None]] = {
    "pick_up": lambda row, made: None if made.worker < 0 else _plain(row.dispatched, made.picked),
    "fetch": lambda _row, made: _plain(
        made.picked, made.fetched, made.fetch_cpu, made.fetch_run_queue
    ),
    "collate": lambda _row, made: _plain(
        made.fetched, made.collated, made.collate_cpu, made.collate_run_queue
    ),
    # From the worker's handing it over: the feeder thread's waiting for the GIL belongs to it.
    "serialise": lambda row, made: _plain(
        made.collated, row.serialised, row.serialise_cpu, row.serialise_run_queue
    ),
    "rebuild": lambda row, _made: _plain(
        row.received, row.rebuilt, row.receive_cpu, row.receive_run_queue
    ),
    "hold_up": lambda row, made: _plain(
        next(each for each in (row.pinned, row.rebuilt, made.collated) if each != MISSING),
        row.yielded,
    ),
}
"""Stages that only a batch with stamps of its making has."""


def spans(name: StageName, rows: Sequence[Row]) -> list[Span]:
    """What a stage took, for each row that has it; ``step`` needs them in the order of yields."""
    if name == "step":
        return [
            Span(max(0, after.asked - row.left), after.asked_cpu - row.thread_cpu)
            for row, after in itertools.pairwise(rows)
            if after.epoch == row.epoch
        ]
    of_row, of_made = _OF_ROW.get(name), _OF_MADE.get(name)
    found = [of_row(row) for row in rows] if of_row is not None else []
    if of_made is not None:
        found = [of_made(row, row.made) for row in rows if row.made is not None]
    return [span for span in found if span is not None]
