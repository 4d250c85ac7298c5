"""What a tracer has seen: one row of nanoseconds per batch, the latest rows kept.

And what a worker's dataset keeps: how many entries its containers have, now and then. Of that only
attributes, the globals of the dataset's module and its caches (``functools.lru_cache``) are looked
at, past all properties, and of each container no more than its length and its last entry, of a list
also whether some of its places are empty. And how much freed memory glibc's malloc keeps, which no
container shows.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import functools
import operator
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dlprof.records.stages import CACHE, FREED
from dlprof.tracing.chains import parts_of
from dlprof.tracing.clocks import MISSING


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
    # CPU of its child processes since the batch before, in main since ``picked``; ``MISSING`` if
    # unknown.
    children_cpu: int = MISSING
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
_STAMPS = Made._fields.index("samples")  # how many fields of ``Made`` are one number each
_NO_STAMPS = (MISSING,) * _STAMPS


class Ring:
    """The latest rows, packed: a row of ``Row`` objects would take four times the memory."""

    def __init__(self, capacity: int) -> None:
        self._packed: collections.deque[tuple[array[int], tuple[object, ...] | None]]
        self._packed = collections.deque(maxlen=capacity)
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
        self._packed.append((array("q", _numbers_of(row) + stamps), rest))
        self.added += 1

    def clear(self) -> None:
        """Keep none of the rows so far."""
        self._packed.clear()
        self.added = 0

    def rows(self) -> Iterator[Row]:
        """The rows kept, oldest first."""
        for numbers, rest in self._packed.copy():  # another thread may add to it
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


_CONTAINERS = (list, dict, set, collections.deque, bytearray)
_SIMPLE = (str, bytes, int, float, complex, bool, type(None))


class Kept(NamedTuple):
    """One container."""

    # The way to it from the dataset, of globals with the module's name before it; where it may be
    # a cache, which ends to grow with the last sample, of which kind it is as well.
    name: str
    entries: int  # how many it has
    entry_bytes: int  # size of the last one, and of what that one holds itself


def kept(dataset: object) -> tuple[Kept, ...]:
    """The containers that a dataset keeps, as far as a few hundred looks go; what malloc keeps."""
    found: list[Kept] = [Kept(FREED, freed, 1)] if (freed := _freed_bytes()) else []
    seen: set[int] = set()
    waiting = collections.deque([("", dataset, 0), *_around(dataset)])
    looks = 0
    while waiting and looks < 300 and len(found) < 48:
        name, value, depth = waiting.popleft()
        if isinstance(value, _SIMPLE) or id(value) in seen:
            continue
        seen.add(id(value))
        looks += 1
        if isinstance(value, _CONTAINERS):
            if name:
                found.append(_measured(name, value))
        elif type(value).__name__ == "_lru_cache_wrapper" and depth < 4:
            found.append(Kept(f"{name} {CACHE}", value.cache_info().currsize, 64))
            continue
        if depth < 4:
            inside = parts_of(value)
            waiting.extend((_joined(name, value, key), each, depth + 1) for key, each in inside)
            waiting.extend((*each, 3) for each in _caches_of(type(value)))
    return tuple(found)


def _caches_of(kind: type) -> Iterator[tuple[str, Any]]:
    """What ``functools.lru_cache`` made of a class's methods, by their names."""
    for base in kind.__mro__ if kind.__module__ != "builtins" else ():
        for key, each in vars(base).items():
            if type(each).__name__ == "_lru_cache_wrapper":
                yield f"{base.__name__}.{key}", each


class _MallInfo(ctypes.Structure):
    """What ``mallinfo2`` gives: ten sizes in bytes, of all arenas."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


@functools.cache
def _mallinfo() -> Any:
    """Of glibc since 2.33; ``None`` where there is no such function."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        function = ctypes.CDLL(None).mallinfo2
        function.restype = _MallInfo
        return function
    return None


def _freed_bytes() -> int:
    """Bytes that were freed, and that glibc's malloc keeps; 0 where nothing says."""
    function = _mallinfo()
    return 0 if function is None else int(function().sizes[8])  # ``fordblks``


def _joined(name: str, holder: object, key: Any) -> str:
    if isinstance(holder, dict | list | tuple):
        return name + f"[{key!r}]"[:40]
    return f"{name}.{key}" if name else str(key)


def _around(dataset: object) -> Iterator[tuple[str, Any, int]]:
    """What a dataset's methods may fill beside it: its class's attributes, its module's globals."""
    for base in type(dataset).__mro__:
        module = sys.modules.get(base.__module__)
        if module is None or base.__module__.partition(".")[0] in ("torch", "builtins", "typing"):
            continue
        of_class = ((f"{base.__name__}.{key}", each) for key, each in vars(base).items())
        of_module = ((f"{base.__module__}.{key}", each) for key, each in vars(module).items())
        for name, each in [*of_class, *of_module]:
            cached = type(each).__name__ == "_lru_cache_wrapper"
            if cached or (isinstance(each, _CONTAINERS) and "__" not in name):
                yield name, each, 3  # one level of what it holds, and no more


def _measured(name: str, value: Any) -> Kept:
    if isinstance(value, bytearray):
        return Kept(name, len(value), 1)
    size = type(value).__len__(value) if type(value) in _CONTAINERS else len(value)
    kind = next((each.__name__ for each in (dict, set) if isinstance(value, each)), "")
    entry_bytes = 0
    # It may change at this moment.
    with contextlib.suppress(RuntimeError, IndexError, KeyError, StopIteration):
        last = _last(value)
        some = value[:: max(1, size // 256)] if type(value) is list else []
        there = [each for each in some if each is not None]
        if len(there) < len(some):  # places that are yet to be filled
            kind, size = "list", size * len(there) // len(some)
            last = there[-1] if there else None
        entry_bytes = _bytes_of(last)
    return Kept(f"{name} ({kind})" if kind else name, size, entry_bytes)


def _last(value: Any) -> Any:
    if isinstance(value, list | collections.deque):
        return value[-1]
    if isinstance(value, dict):
        key = next(reversed(value))
        return key, dict.__getitem__(value, key)
    return next(iter(value))


def _bytes_of(value: Any, depth: int = 2) -> int:
    """Size of an object and of what it holds, as far as that is plain."""
    storage = getattr(type(value), "untyped_storage", None)
    try:
        if storage is not None:
            return int(value.untyped_storage().nbytes()) + 64
        size = sys.getsizeof(value)
    except Exception:  # whatever a class of the user's makes of its size
        return 64
    inside = parts_of(value) if depth and not isinstance(value, _SIMPLE) else ()
    return size + sum(_bytes_of(each, depth - 1) for _, each in inside)
