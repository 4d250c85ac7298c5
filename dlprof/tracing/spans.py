"""What each stage of a batch's way took: from stamps to lengths of time."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping, Sequence

from dlprof.records.stages import StageName
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Row


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One batch in one stage, in nanoseconds."""

    wall_ns: int  # from its beginning to its end
    cpu_ns: int | None = None  # CPU of the thread that did it; ``None`` if it isn't known apart
    run_queue_ns: int | None = None  # that thread's waiting for a core

    @property
    def io_ns(self) -> int | None:
        """True waiting: neither on a core nor waiting for one; ``None`` if that isn't known."""
        return None if self.run_queue_ns is None else self.waited_ns

    @property
    def waited_ns(self) -> int:
        """As ``io_ns``, waiting for a core included where that isn't known."""
        return max(0, self.wall_ns - (self.cpu_ns or 0) - (self.run_queue_ns or 0))


_STAMPS: Mapping[str, tuple[str, ...]] = {
    "dispatch": ("drawing", "dispatched"),
    "queue": ("serialised", "received"),
    "pin": ("rebuilt", "pinned", "pin_cpu"),
    "wait": ("asked", "yielded", "next_cpu"),
    "pick_up": ("dispatched", "made.picked"),
    "fetch": ("made.picked", "made.fetched", "made.fetch_cpu", "made.fetch_run_queue"),
    "collate": ("made.fetched", "made.collated", "made.collate_cpu", "made.collate_run_queue"),
    # From the worker's handing it over: the feeder thread's waiting for the GIL belongs to it.
    "serialise": ("made.collated", "serialised", "serialise_cpu", "serialise_run_queue"),
    "rebuild": ("received", "rebuilt", "receive_cpu", "receive_run_queue"),
}
"""Where a stage begins and ends in a row; CPU and run-queue delay of the thread, where known."""

_WITHOUT_MADE = ("dispatch", "queue", "pin", "wait")
"""Stages that a batch has without stamps of its making, too."""


def spans(name: StageName, rows: Sequence[Row]) -> list[Span]:
    """What a stage took, for each row that has it; ``step`` needs them in the order of yields."""
    if name == "step":
        return [
            Span(max(0, after.asked - row.left), after.asked_cpu - row.thread_cpu)
            for row, after in itertools.pairwise(rows)
            if after.epoch == row.epoch
        ]
    if name not in _WITHOUT_MADE:
        in_main = 0 if name == "pick_up" else -1  # which takes up the indices that it draws
        rows = [row for row in rows if row.made is not None and row.made.worker >= in_main]
    if name == "hold_up":
        ready = [(row.pinned, row.rebuilt, row.made.collated) for row in rows if row.made]
        begins = [next(each for each in stamps if each != MISSING) for stamps in ready]
        return [Span(max(0, row.yielded - at)) for row, at in zip(rows, begins, strict=True)]
    found = map(operator.attrgetter(*_STAMPS[name]), rows) if name in _STAMPS else ()
    return [
        Span(max(0, ended - began), *(None if each == MISSING else each for each in used))
        for began, ended, *used in found
        if MISSING not in (began, ended)
    ]
