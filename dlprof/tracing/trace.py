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
    """What a worker looked up about itself, now and then and outside of its batches' stamps."""

    private_bytes: int  # memory that it shares with nobody; ``MISSING`` if unknown
    threads: int  # threads that it has; ``MISSING`` if unknown
    affinity_cpus: int  # CPUs that it may run on; ``MISSING`` if unknown
    kept: tuple[Kept, ...] = ()  # containers of its dataset


class Made(NamedTuple):
    """What the process that made a batch knows of it; travels to main with the batch."""

    worker: int  # the worker's number; -1 in the main process
    ordinal: int  # batches that this worker made before
    picked: int  # wall clock: the indices were taken up
    fetched: int  # all samples are there; collating begins
    collated: int  # the batch is there
    fetch_cpu: int  # CPU of the thread, from ``picked`` to ``fetched``
    fetch_run_queue: int  # its waiting for a core in that time
    collate_cpu: int  # as ``fetch_cpu``, from ``fetched`` to ``collated``
    collate_run_queue: int  # as ``fetch_run_queue``
    others_cpu: int  # CPU of the process's other threads since the batch before
    # CPU of the thread between the batch before and ``picked``: handing that over, taking up these
    # indices.
    between_cpu: int
    process_cpu: int  # CPU of the whole process so far
    samples: int = 0  # samples timed one by one
    samples_ns: int = 0  # what they took together
    worst_ns: int = 0  # what the slowest took
    kept: bytes = b""  # seconds of at most 64 of them, evenly picked, an ``array('d')`` as bytes
    # The slowest and any far slower than the rest: index as text, nanoseconds.
    slowest: tuple[tuple[str, int], ...] = ()
    # Per transform: calls and nanoseconds, one after the other; empty if none ran.
    chain: tuple[int, ...] = ()
    names: tuple[str, ...] = ()  # names of the transforms, the first time; else empty
    facts: Facts | None = None  # what was looked up since the batch before
    ended: bool = False  # whether there is no batch: the worker's iterable dataset has ended
    failed: bool = False  # whether there is no batch but an exception


@dataclasses.dataclass(slots=True, kw_only=True)
class Row:
    """One batch's way; nanoseconds, ``MISSING`` where it has no such stage."""

    epoch: int  # the epoch, from 0, in the order in which they began
    batch: int  # its number in the epoch
    made: Made | None = None  # what its maker knows; ``None`` if the batch came without stamps
    drawing: int = MISSING  # main began to draw its indices
    dispatched: int = MISSING  # main had sent them
    serialising: int = MISSING  # the worker's feeder thread began to pickle it
    serialised: int = MISSING  # it was pickled
    serialise_cpu: int = MISSING  # CPU of the feeder thread in between
    serialise_run_queue: int = MISSING  # its waiting for a core in between
    received: int = MISSING  # main, or its pin thread, began to take it
    rebuilt: int = MISSING  # it was there
    receive_cpu: int = MISSING  # CPU of the taking thread, from asking for it until it was there
    receive_run_queue: int = MISSING  # its waiting for a core in that time
    pinned: int = MISSING  # it lay in page-locked memory
    pin_cpu: int = MISSING  # CPU of the pin thread for that
    asked: int = MISSING  # the consumer asked for it
    asked_cpu: int = MISSING  # CPU of the consumer's thread so far, at that time
    asked_process_cpu: int = MISSING  # CPU of the main process so far, at that time
    yielded: int = MISSING  # the consumer had it
    next_cpu: int = MISSING  # CPU of the consumer's thread in ``next()``
    other_cpu: int = 0  # the part of it in taking batches, fetching and collating
    left: int = MISSING  # the tracer was done with it; what it took for that belongs to no stage
    thread_cpu: int = MISSING  # CPU of the consumer's thread so far, at that time
    process_cpu: int = MISSING  # CPU of the main process so far


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
    """What a tracer has seen of its loader."""

    rows: tuple[Row, ...]  # one per batch that was yielded, in the order of yields, the latest ones
    dropped: int  # rows that were let go to keep it bounded
    began_ns: int  # when the tracer was made, by the clock of the rows
    began_at: float  # the same as seconds since 1970
    names: tuple[str, ...] = ()  # names of the transforms that were timed
    hooked: bool = True  # whether the hooks could be put in
    # Why something is missing, by field or stage.
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)
