"""What a tracer has seen: one row of nanoseconds per batch, the latest rows kept."""

from __future__ import annotations

import dataclasses
import operator
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dlprof.tracing.clocks import MISSING
from dlprof.tracing.held import Kept


class Facts(NamedTuple):
    """What a worker looked up about itself, now and then and outside of its batches' stamps.

    Attributes:
        private_bytes: Memory that it shares with nobody; ``MISSING`` if unknown.
        threads: Threads that it has; ``MISSING`` if unknown.
        affinity_cpus: CPUs that it may run on; ``MISSING`` if unknown.
        kept: Containers of its dataset.
    """

    private_bytes: int
    threads: int
    affinity_cpus: int
    kept: tuple[Kept, ...] = ()


class Made(NamedTuple):
    """What the process that made a batch knows of it; travels to main with the batch.

    Attributes:
        worker: The worker's number; -1 in the main process.
        ordinal: Batches that this worker made before.
        picked: Wall clock: the indices were taken up.
        fetched: All samples are there; collating begins.
        collated: The batch is there.
        fetch_cpu: CPU of the thread, from ``picked`` to ``fetched``.
        fetch_run_queue: Its waiting for a core in that time.
        collate_cpu: As ``fetch_cpu``, from ``fetched`` to ``collated``.
        collate_run_queue: As ``fetch_run_queue``.
        others_cpu: CPU of the process's other threads since the batch before.
        between_cpu: CPU of the thread between the batch before and ``picked``: handing that over,
            taking up these indices.
        process_cpu: CPU of the whole process so far.
        samples: Samples timed one by one.
        samples_ns: What they took together.
        worst_ns: What the slowest took.
        kept: Seconds of at most 64 of them, evenly picked, an ``array('d')`` as bytes.
        slowest: The slowest and any far slower than the rest: index as text, nanoseconds.
        chain: Per transform: calls and nanoseconds, one after the other; empty if none ran.
        names: Names of the transforms, the first time; else empty.
        facts: What was looked up since the batch before.
        ended: Whether there is no batch: the worker's iterable dataset has ended.
        failed: Whether there is no batch but an exception.
    """

    worker: int
    ordinal: int
    picked: int
    fetched: int
    collated: int
    fetch_cpu: int
    fetch_run_queue: int
    collate_cpu: int
    collate_run_queue: int
    others_cpu: int
    between_cpu: int
    process_cpu: int
    samples: int = 0
    samples_ns: int = 0
    worst_ns: int = 0
    kept: bytes = b""
    slowest: tuple[tuple[str, int], ...] = ()
    chain: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    facts: Facts | None = None
    ended: bool = False
    failed: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Row:
    """One batch's way; nanoseconds, ``MISSING`` where it has no such stage.

    Attributes:
        epoch: The epoch, from 0, in the order in which they began.
        batch: Its number in the epoch.
        made: What its maker knows; ``None`` if the batch came without stamps.
        drawing: Main began to draw its indices.
        dispatched: Main had sent them.
        serialising: The worker's feeder thread began to pickle it.
        serialised: It was pickled.
        serialise_cpu: CPU of the feeder thread in between.
        serialise_run_queue: Its waiting for a core in between.
        received: Main, or its pin thread, began to take it.
        rebuilt: It was there.
        receive_cpu: CPU of the taking thread, from asking for it until it was there.
        receive_run_queue: Its waiting for a core in that time.
        pinned: It lay in page-locked memory.
        pin_cpu: CPU of the pin thread for that.
        asked: The consumer asked for it.
        asked_cpu: CPU of the consumer's thread so far, at that time.
        asked_process_cpu: CPU of the main process so far, at that time.
        yielded: The consumer had it.
        next_cpu: CPU of the consumer's thread in ``next()``.
        other_cpu: The part of it in taking batches, fetching and collating.
        left: The tracer was done with it; what it took for that belongs to no stage.
        thread_cpu: CPU of the consumer's thread so far, at that time.
        process_cpu: CPU of the main process so far.
    """

    epoch: int
    batch: int
    made: Made | None = None
    drawing: int = MISSING
    dispatched: int = MISSING
    serialising: int = MISSING
    serialised: int = MISSING
    serialise_cpu: int = MISSING
    serialise_run_queue: int = MISSING
    received: int = MISSING
    rebuilt: int = MISSING
    receive_cpu: int = MISSING
    receive_run_queue: int = MISSING
    pinned: int = MISSING
    pin_cpu: int = MISSING
    asked: int = MISSING
    asked_cpu: int = MISSING
    asked_process_cpu: int = MISSING
    yielded: int = MISSING
    next_cpu: int = MISSING
    other_cpu: int = 0
    left: int = MISSING
    thread_cpu: int = MISSING
    process_cpu: int = MISSING


_NUMBERS = tuple(field.name for field in dataclasses.fields(Row) if field.name != "made")
_numbers_of = operator.attrgetter(*_NUMBERS)
_STAMPS = Made._fields.index("samples")
"""How many fields of ``Made`` are one number each."""
_NO_STAMPS = (MISSING,) * _STAMPS


class Ring:
    """The latest rows, packed: a row of ``Row`` objects would take four times the memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._packed: list[tuple[array[int], tuple[object, ...] | None]] = []
        self._epochs = 0
        self.added = 0

    def next_epoch(self) -> int:
        """The number of an epoch that begins now."""
        self._epochs += 1
        return self._epochs - 1

    def add(self, row: Row) -> None:
        """Keep a row; beyond the capacity, the oldest goes."""
        made = row.made
        stamps, rest = (_NO_STAMPS, None) if made is None else (made[:_STAMPS], made[_STAMPS:])
        packed = array("q", _numbers_of(row) + stamps), rest
        place = self.added % self._capacity
        if place == len(self._packed):
            self._packed.append(packed)
        else:
            self._packed[place] = packed
        self.added += 1

    def clear(self) -> None:
        """Keep none of the rows so far."""
        self._packed.clear()
        self.added = 0

    def rows(self) -> Iterator[Row]:
        """The rows kept, oldest first."""
        first = self.added % self._capacity if self.added > self._capacity else 0
        for numbers, rest in self._packed[first:] + self._packed[:first]:
            main = dict(zip(_NUMBERS, numbers, strict=False))
            made = None if rest is None else Made._make((*numbers[len(_NUMBERS) :], *rest))
            yield Row(**main, made=made)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a tracer has seen of its loader.

    Attributes:
        rows: One per batch that was yielded, in the order of yields, the latest ones.
        dropped: Rows that were let go to keep it bounded.
        began_ns: When the tracer was made, by the clock of the rows.
        began_at: The same as seconds since 1970.
        names: Names of the transforms that were timed.
        hooked: Whether the hooks could be put in.
        unavailable: Why something is missing, by field or stage.
    """

    rows: tuple[Row, ...]
    dropped: int
    began_ns: int
    began_at: float
    names: tuple[str, ...] = ()
    hooked: bool = True
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)
