"""Weighs a dataset attribute by attribute, within a time and a number of bytes that are given.

To be called in a disposable process that nobody else needs: what is pickled runs the user's own
``__getstate__``, once for each object as torch's start of one worker does. Nothing else of the
user's is called: attributes are read past properties and ``__getattr__``, so that lazy ones stay as
they are. Only ``by_order``, behind that, ``by_memory`` and ``along_epoch`` ask the dataset for some
samples.

Nothing that has no end is waited for, and nothing large is copied: bytes are counted and thrown
away, of a large container some entries stand for all, and of arrays and tensors the size is known.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import functools
import gc
import io
import itertools
import math
import mmap
import operator
import pickle
import signal
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # registers how tensors are pickled
from torch.utils.data import IterableDataset

from dlprof.records import AttributeWeight, DatasetWeight
from dlprof.targets.faults import one_line, own_attributes
from dlprof.units import format_duration

_AT_ONCE = 256  # entries that are pickled at once, at most: as one list, as torch would find them

_SAMPLE_S, _SAMPLE_BYTES = 0.25, 8 << 20  # of one attribute; what has fewer is weighed as a whole

_SLOW_STATE_S = 0.02  # time in a ``__getstate__`` of the user's that counts by itself

_OBJECTS = 20_000  # objects of an attribute that are counted, each with its size

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_SUMS = ("pickled_bytes", "pickle_s", "unpickle_s", "object_bytes", "flat_bytes")

_now_s = time.perf_counter


def undelayed_s() -> float:
    """Seconds in which this thread did not wait for a core: that is not the dataset's doing."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:  # as it is faster
            return _now_s() - int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return _now_s()


def _timed(do: Callable[..., object], *given: Any) -> float:
    """Seconds that this takes, of those in which this thread did not wait for a core."""
    began_s = undelayed_s()
    do(*given)
    return undelayed_s() - began_s


def _is(value: Any, kinds: Any) -> bool:
    """As ``isinstance``, which would ask a lazy proxy for its ``__class__``, and so evaluate it."""
    return issubclass(type(value), kinds)


class OutOfTimeError(BaseException):
    """The time for weighing is over; no ``except Exception`` of the user's may catch it."""


class _EnoughError(BaseException):
    """As many bytes as are wanted of one object."""


def weigh(loader: Any, *, limit_s: float = 3.0) -> DatasetWeight:
    """Weigh what a loader sends to its workers: the dataset, ``collate_fn``, ``worker_init_fn``."""
    began_s = _now_s()
    gc.freeze()  # a worker has no such heap, whose collection would cost more than unpickling
    roots = {
        "": getattr(loader, "dataset", None),
        "collate_fn": getattr(loader, "collate_fn", None),
        "worker_init_fn": getattr(loader, "worker_init_fn", None),
    }
    weigher = _Weigher(began_s + limit_s)
    with _alarm(limit_s):
        for name, root in roots.items():
            if root is not None:
                weigher.look(name, root, 0)
    gc.unfreeze()
    found = sorted(
        weigher.weights,
        key=lambda each: (each.cost_s, each.pickled_bytes + each.object_bytes),
        reverse=True,
    )
    notable = (
        each
        for each in found
        if max(each.pickled_bytes, each.object_bytes, each.flat_bytes) >= mmap.PAGESIZE
        or each.failure
        or each.how == "at_least"
        or each.pickle_s >= _SLOW_STATE_S
    )
    sums: Any = {name: math.fsum(getattr(each, name) for each in found) for name in _SUMS}
    hows = ("exact", "sampled", "at_least")
    return DatasetWeight(
        attributes=tuple(itertools.islice(notable, 10)),
        **sums,
        how=max((each.how for each in found), key=hows.index, default="exact"),
        shards=shards_of(roots[""]),
        took_s=_now_s() - began_s,
        unavailable=weigher.unavailable,
    )


def by_order(dataset: Any, *, limit_s: float) -> tuple[float, float] | None:
    """Seconds of a sample far from the one before, and of one that follows it.

    The least of the first, and the most of the second, of three places: before these, one takes the
    imports and the files that are opened once. One of those that follow may be disturbed, or of the
    next block. ``None`` where all that takes longer than the limit, or the dataset doesn't give
    single samples by their numbers.
    """
    far, following = list[float](), list[float]()
    # A sampler may leave some out, and a dataset may end its process outside of workers.
    with _alarm(max(0.0, limit_s)), contextlib.suppress(Exception, SystemExit):
        count = len(dataset) if limit_s > 0 else 0
        for place in (count * each // 8 for each in (1, 3, 5, 7) if count >= 64):
            took = [_timed(operator.getitem, dataset, index) for index in range(place, place + 6)]
            far.append(took[0])
            following.append(sorted(took[1:])[-2])
    return (min(far[1:]), max(following[1:])) if len(following) == 4 else None


def along_epoch(
    ask: Callable[[Any], object], order: Sequence[Any], batch: int, *, limit_s: float
) -> tuple[float, float, str | None] | str | None:
    """Seconds of a sample at the beginning of an epoch in some order, and of one anywhere in it.

    Means over places, 8 and 24 at most, by turns; the beginning's follow two batches of so many.
    Each place counts with the lesser of two samples that follow one: that opens what they lie in,
    and one of them may be disturbed. Then why batches that leave others out would take far longer
    than in order: what the first sample takes more is a tenth of a batch and more.

    ``None`` where samples are alike, two places at least not being as far beyond all of the
    beginning's as those are from their middle; or where the epoch is hardly longer than what is
    asked for. Why that isn't known, in words, where the limit leaves fewer than 2 and 6 places (a
    single sample is ended only after twice as long: it may be writing a file); or where asking
    raises for some.
    """
    first, all_over, opening = list[float](), list[float](), list[float]()
    count, ends_s = len(order), _now_s() + limit_s
    if count < max(192, 2 * batch + 24):
        return None
    asked: Any = None

    def look() -> None:
        nonlocal asked
        for each in range(32):
            into = all_over if each % 4 else first
            place = 2 * batch + 3 * len(first)
            if into is all_over:  # whenever time is up, they are spread
                place = (7 * len(all_over) % 24) * count // 24
            took = list[float]()
            for asked in order[place : place + 3]:
                if _now_s() >= ends_s:
                    return
                took.append(_timed(ask, asked))
            into.append(max(1e-6, min(took[1:])))  # no clock's doing is a rate
            opening.append(took[0] - into[-1])

    with _alarm(max(0.0, 2 * limit_s)):
        try:
            look()
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            which = f"sample {asked}" if isinstance(asked, int) else "a sample"
            return f"{which} raised {one_line(error)}"
    if len(first) < 2 or len(all_over) < 6:
        return "trying some samples from all over it takes too long"
    means = statistics.fmean(first), statistics.fmean(all_over)
    middle_s, opened_s = statistics.median(first), statistics.median(opening)
    # What takes next to no time may take several times that for no reason of the dataset's.
    ratio = max(1e-4, means[1]) / max(1e-4, means[0])
    more = sum(took_s > max(first) ** 2 / middle_s for took_s in all_over)
    less = sum(took_s < min(first) ** 2 / middle_s for took_s in all_over)
    # By less than a quarter samples may differ by chance, and rates by the cores.
    if not ((ratio > 1.25 and more >= 2) or (ratio < 0.8 and less >= 2)):
        return None
    if opened_s <= max(1e-4, 0.1 * batch * means[1]):
        return *means, None
    return *means, f"elsewhere a batch takes {format_duration(opened_s)} more for its first sample"


def by_memory(
    dataset: Any,
    *,
    limit_s: float,
    came: float = 0,
    collate: Callable[[list[Any]], object] | None = None,
    own_bytes: Callable[[], int] = int,
) -> tuple[float, float, int | None] | None:
    """Seconds of a sample that is asked for the first time, and of the same one asked for again.

    The middle of the first, and the third quarter of the other, of three samples to 32 that lie
    apart, each with its part of collating them. Then the memory that one takes, by what a process
    has (``own_bytes``); ``None`` where that isn't seen. Of few samples most may have come before,
    in this process, by a sampler (``came``). ``None`` for all where none is kept, as two
    that are asked for twice show at once; where what comes first takes so long only as it opens or
    reads what the sample beside it is in, too; or where the cache has lost it when many others were
    asked for. Also where that takes longer than the limit (a single sample is ended only after
    twice as long: it may be writing a file), or the dataset doesn't give single samples by their
    numbers.
    """
    if limit_s <= 0 or issubclass(type(dataset), IterableDataset):
        return None
    ends_s, count = _now_s() + limit_s, 0
    first, again, batch = list[float](), list[float](), list[Any]()
    bytes_each = 0

    def asked(places: Iterable[int], into: list[Any] | None = None) -> list[float]:
        took = list[float]()
        for place in places:
            if _now_s() < ends_s:
                before_s = undelayed_s()
                sample = dataset[place]
                took.append(undelayed_s() - before_s)
                if into is not None:
                    into.append(sample)
        return took

    # A sampler may leave some out, and a dataset may end its process outside of workers.
    with _alarm(2 * limit_s), contextlib.suppress(Exception, SystemExit):
        count = len(dataset)
        asked((0,))  # pays for imports and for what is opened once
        # From the end: of those at the beginning a sampler may have asked for some.
        places = range(count - 2, -1, -max(2, count // 32))
        for place in places[:2]:
            began_s = _now_s()  # as the limit has it: others may have the core for most of it
            tried = asked((place, place))
            if _is_kept(tried[:1], tried[1:]):
                break
        else:
            return None
        fits = int((ends_s - _now_s()) / (_now_s() - began_s))
        places = places[: min(32, max(3, fits // 3))]
        asked(places)  # pays for what is opened or read for several that lie together
        had = own_bytes()
        first = asked(place + 1 for place in places)
        # Others may take the cores meanwhile.
        more = max(1, min(1024, int(0.8 * (fits - 3 * len(places)))))
        others = range(0, count, max(1, count // more))[:more]
        asked(others)
        new = {place + 1 for place in places}.union(others).difference(places)
        bytes_each = (own_bytes() - had) // len(new)
        again = asked((place + 1 for place in places), batch)
    enough = len(again) >= max(3, len(first))
    # As many of them came before as of all samples.
    first = sorted(first)[math.ceil(len(first) * came / max(1, count)) :]
    if not enough or not first or not _is_kept(first, again):
        return None
    collating_s = _collating_s(batch, collate, limit_s)
    known = bytes_each if bytes_each > 0 else None
    return statistics.median_high(first) + collating_s, _third_quarter(again) + collating_s, known


def _collating_s(
    batch: list[Any], collate: Callable[[list[Any]], object] | None, limit_s: float
) -> float:
    """Seconds of a sample's part of collating a batch."""
    took_s = 0.0
    with _alarm(limit_s), contextlib.suppress(Exception):
        for make in (collate, collate) if collate else ():  # the first imports what it needs
            took_s = _timed(make, batch)
    return took_s / len(batch)


def _is_kept(first: Sequence[float], again: Sequence[float]) -> bool:
    """Whether samples that came before come so much sooner that a training feels it."""
    if not again:
        return False
    first_s, again_s = statistics.median_high(first), _third_quarter(again)
    # Of less than 0.2 ms a core's own caches make as much, and workers take longer to send it.
    return again_s <= first_s / 2 and first_s - again_s >= 2e-4


def _third_quarter(values: Sequence[float]) -> float:
    """Of the middle chance alone makes too much, where samples take a random time."""
    return sorted(values)[3 * len(values) // 4]


def is_bounded(dataset: Any) -> bool:
    """Whether a ``functools.lru_cache`` of the dataset's holds fewer samples than an epoch has.

    Samples that were drawn at random are gone then before they come again.
    """
    held = own_attributes(dataset).values()
    methods = (each for kind in type(dataset).__mro__ for each in vars(kind).values())
    sizes = [
        each.cache_info().maxsize
        for each in (*held, *methods)
        if _is(each, functools._lru_cache_wrapper)  # noqa: SLF001 - it has no other name
    ]
    with contextlib.suppress(Exception):  # the user's __len__
        return any(size is not None and size < len(dataset) for size in sizes)
    return False


@contextlib.contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    """Raises ``OutOfTimeError`` within Python code that takes too long, where there are alarms."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except OutOfTimeError:  # between two attributes
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Sink:
    """Counts what is written, keeps it, and raises where it is more than is wanted."""

    def __init__(self, most: float = math.inf, until_s: float = math.inf) -> None:
        self.size, self.most, self.until_s = 0, most, until_s
        self.kept = io.BytesIO()

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.size += length
        if self.size > self.most or _now_s() > self.until_s:
            raise _EnoughError
        self.kept.write(data)
        return length


class _Pickler(ForkingPickler):
    """As torch pickles, but that tensors' data stays where it is."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__(sink)
        self.dispatch_table[torch.UntypedStorage] = lambda _: (bytes, ())


class _Sample(NamedTuple):
    """What some entries of a container came to."""

    entries: int
    pickled_bytes: float
    pickle_s: float
    unpickle_s: float


def _usual_rate(parts: Sequence[tuple[float, float]]) -> float:
    """Seconds a byte: the middle of all bytes, so that a moment's disturbance doesn't count."""
    rates = sorted((seconds / size, size) for seconds, size in parts if size > 0)
    half, passed = sum(size for _, size in rates) / 2, 0.0
    for rate, size in rates:
        passed += size
        if passed >= half:
            return rate
    return 0.0


class _Weigher:
    """Goes through what is pickled, and shares one memo over all of it, as one pickle has."""

    def __init__(self, until_s: float) -> None:
        self.weights: list[AttributeWeight] = []  # of the attributes so far
        self.unavailable: dict[str, str] = {}  # what was not weighed, and why
        self._until_s = until_s
        self._seen: set[int] = set()
        self._counted: set[int] = set()
        self._alive: list[Any] = []  # so that no id comes again
        self._last_s = 0.0
        self._sink = _Sink()
        self._begin()

    def _begin(self) -> None:
        """With an empty memo: what could not be pickled may have left half of itself in it."""
        left = self._sink
        self._sink = _Sink(left.most - left.size, left.until_s)
        self._pickler = _Pickler(self._sink)
        self._unpickler: Any = None

    def look(self, name: str, value: Any, depth: int) -> None:
        too_long = {"attributes": "weighing all of them takes too long"}
        if len(self.weights) >= 2_000 or _now_s() > self._until_s:
            self.unavailable |= too_long
            return
        if id(value) in self._seen:
            return  # what two attributes share is sent once
        self._seen.add(id(value))
        self._alive.append(value)
        weight = AttributeWeight(name=name or "dataset", type=_type_of(value))
        self._last_s = undelayed_s()
        try:
            inside, fault = _inside(value) if depth < 8 else (None, "")
        except Exception as error:  # whatever the user's __getstate__ raises
            inside, fault = (), one_line(error)
        except OutOfTimeError:
            spent_s = self._lasted_s()
            self.weights.append(dataclasses.replace(weight, how="at_least", pickle_s=spent_s))
            self.unavailable |= too_long
            raise
        if inside is None:
            self._weigh(weight, value)
            return
        asked_s = self._lasted_s()
        if fault or asked_s >= _SLOW_STATE_S:
            self.weights.append(dataclasses.replace(weight, failure=fault, pickle_s=asked_s))
        for key, each in inside:
            below = f".{key}" if name and not key.startswith(("[", "(")) else key
            self.look(name + below, each, depth + 1)

    def _lasted_s(self) -> float:
        return max(0.0, undelayed_s() - self._last_s)

    def _weigh(self, weight: AttributeWeight, value: Any) -> None:
        """Weigh one attribute that isn't looked into any further."""
        self._last_s = undelayed_s()
        flat = flat_bytes(value)
        weight = dataclasses.replace(weight, flat_bytes=flat or 0)
        try:
            if flat is not None and flat >= 1 << 20:  # so much is not pickled as a whole
                weight = self._flat(weight, value)
            else:
                weight = self._pickled(weight, value)
            if flat is None:
                weight = self._counted_objects(weight, value)
        except OutOfTimeError:
            spent_s = max(self._lasted_s(), weight.pickle_s)
            self.weights.append(dataclasses.replace(weight, how="at_least", pickle_s=spent_s))
            raise
        self.weights.append(weight)

    def _flat(self, weight: AttributeWeight, value: Any) -> AttributeWeight:
        """Of something flat and large a part is copied, which stands for all of it."""
        if _is(value, torch.Tensor):
            return dataclasses.replace(weight, pickled_bytes=0.0)  # its data is shared
        part = bytes(range(256)) * (1 << 16)
        times, text = weight.flat_bytes / len(part), ForkingPickler.dumps(part)
        return dataclasses.replace(
            weight,
            pickled_bytes=weight.flat_bytes,
            pickle_s=times * _timed(ForkingPickler.dumps, part),
            unpickle_s=times * _timed(pickle.loads, text),  # of the line above
            how="sampled",
        )

    def _pickled(self, weight: AttributeWeight, value: Any) -> AttributeWeight:
        entries = _entries(value)
        most = 8 * _SAMPLE_BYTES
        self._sink.most = self._sink.size + most
        self._sink.until_s = min(self._until_s, _now_s() + 8 * _SAMPLE_S)
        try:
            found = self._sent([value]) if entries is None else self._sampled(entries[1])
        except _EnoughError:
            lasted_s, size = self._lasted_s(), most - (self._sink.most - self._sink.size)
            self._begin()
            return dataclasses.replace(
                weight, pickled_bytes=size, pickle_s=lasted_s, unpickle_s=lasted_s, how="at_least"
            )
        except Exception as error:  # whatever the user's __reduce__ raises
            self._begin()
            return dataclasses.replace(weight, failure=one_line(error))
        times = entries[0] / found.entries if entries is not None and found.entries else 1.0
        return dataclasses.replace(
            weight,
            pickled_bytes=times * found.pickled_bytes,
            pickle_s=times * found.pickle_s,
            unpickle_s=times * found.unpickle_s,
            how="exact" if times <= 1 else "sampled",
        )

    def _sampled(self, some: Iterator[Any]) -> _Sample:
        """Entries from all over a container, until there are enough or none is left."""
        began_s, chunk, size, parts = _now_s(), 1, 0.0, list[_Sample]()
        while taken := list(itertools.islice(some, chunk)):
            parts.append(found := self._sent(taken))
            size += found.pickled_bytes
            if found.pickle_s + found.unpickle_s < 0.02:
                chunk = min(2 * chunk, _AT_ONCE)
            if size >= _SAMPLE_BYTES or _now_s() - began_s >= _SAMPLE_S:
                break
        return _Sample(
            sum(each.entries for each in parts),
            size,
            size * _usual_rate([(each.pickle_s, each.pickled_bytes) for each in parts]),
            size * _usual_rate([(each.unpickle_s, each.pickled_bytes) for each in parts]),
        )

    def _sent(self, entries: list[Any]) -> _Sample:
        """Pickle and unpickle some entries as one worker's start does."""
        # The memo of the pickler grows with each, and so has to the unpickler's.
        sink = self._sink
        before, packed_s = sink.size, _timed(self._pickler.dump, entries)
        size = sink.size - before
        sink.kept.seek(0)
        if self._unpickler is None:
            self._unpickler = pickle.Unpickler(sink.kept)  # written above
        try:
            unpacked_s = _timed(self._unpickler.load)
        except Exception:  # that it can't be unpickled is for ``try_start`` to say
            self._begin()
            return _Sample(len(entries), size, packed_s, packed_s)
        sink.kept.seek(0)
        sink.kept.truncate()
        return _Sample(len(entries), size, packed_s, unpacked_s)

    def _counted_objects(self, weight: AttributeWeight, value: Any) -> AttributeWeight:
        """Count the Python objects of an attribute, and what of their memory is copied."""
        count, some = _entries(value) or (0, iter(()))
        if not count:
            objects, copied, flat = self._objects([value])
            return dataclasses.replace(
                weight, object_bytes=copied, objects=objects, flat_bytes=weight.flat_bytes + flat
            )
        own, large = _size_of(value)
        objects, copied, flat, done = 0.0, 0.0, 0.0, 0
        self._counted.add(id(value))
        while objects < _OBJECTS and (taken := list(itertools.islice(some, _AT_ONCE))):
            more, bytes_, shared = self._objects(taken)
            objects, copied, flat = objects + more, copied + bytes_, flat + shared
            done += len(taken)
        times = count / done
        return dataclasses.replace(
            weight,
            objects=1 + times * objects,
            object_bytes=own + times * copied,
            flat_bytes=weight.flat_bytes + large + times * flat,
        )

    def _objects(self, roots: list[Any]) -> tuple[float, float, float]:
        """Objects that are reached, bytes of them that are copied, and bytes that stay shared."""
        waiting, count, copied, flat = collections.deque(roots), 0.0, 0.0, 0.0
        while waiting and count < _OBJECTS:
            each = waiting.popleft()
            if id(each) in self._counted or _is(each, _PARTED):
                continue
            self._counted.add(id(each))
            self._alive.append(each)
            own, large = _size_of(each)
            count, copied, flat = count + 1, copied + own, flat + large
            if (known := flat_bytes(each)) is not None:
                flat += known
                continue
            entries, some = _entries(each) or (0, iter(()))
            if entries > 1_000 or (entries and _is_object_array(each)):
                part = list(itertools.islice(some, 1_000))  # which stand for all of them
                times = entries / len(part)
                more, bytes_, shared = (times * found for found in self._objects(part))
                count, copied, flat = count + more, copied + bytes_, flat + shared
            else:
                waiting.extend(gc.get_referents(each))
        return count, copied, flat


_PARTED = (
    *(type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, type(None), bool),
    *(torch.dtype, torch.device, types.GetSetDescriptorType, types.MemberDescriptorType),
)
"""What all processes have anyway, and what no dataset holds by itself."""


def _size_of(value: Any) -> tuple[float, float]:
    """Bytes of an object that are copied when its references are counted, and those that aren't."""
    if flat_bytes(value) is not None:
        return 64.0, 0.0  # its header; its data is counted elsewhere
    try:
        size = sys.getsizeof(value)
    except Exception:  # a __sizeof__ of the user's
        return 64.0, 0.0
    return float(min(size, mmap.PAGESIZE)), float(max(0, size - mmap.PAGESIZE))


def _type_of(value: Any) -> str:
    """A class, and how many entries of which class it has."""
    kind, name = type(value), type(value).__qualname__
    of_numpy = kind.__module__.startswith("numpy") and hasattr(kind, "shape")
    if _is(value, torch.Tensor) or (of_numpy and hasattr(kind, "dtype")):
        return f"{name} of {'x'.join(map(str, value.shape)) or 'one'} {value.dtype}"
    if _is(value, bytes | bytearray | str):
        return f"{name} of {len(value):,}"
    count, some = _entries(value) or (0, iter(()))
    for each in some:
        entry = each[1] if _is(value, Mapping) else each
        return f"{name} of {count:,} {type(entry).__qualname__}"
    return name


def _entries(value: Any) -> tuple[int, Iterator[Any]] | None:
    """How many entries a container has, and entries that stand for all of them.

    The first few of these come from all over it, and none comes twice. As pickle takes them: a list
    of the user's own class that loads what it is asked for is not asked.
    """
    kind: Any = next((kind for kind in _CONTAINERS if _is(value, kind)), None)
    is_array = _is_object_array(value)
    if kind is None and not is_array:
        return None
    size = count = int(value.size) if is_array else kind.__len__(value)
    if is_array:
        entry: Callable[[int], Any] = value.reshape(-1).__getitem__
    elif kind in (list, tuple):
        entry = functools.partial(kind.__getitem__, value)
    else:
        size = min(count, 200_000)  # listing more of a dict or set would copy their pages, too
        source = dict.items(value) if kind is dict else kind.__iter__(value)
        entry = list(itertools.islice(source, size)).__getitem__
    step = max(1, round(0.618 * size))
    while math.gcd(step, max(1, size)) != 1:
        step += 1
    return count, (entry(place * step % size) for place in range(size))


def _is_object_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith("numpy") and str(getattr(value, "dtype", "")) == "object"


def flat_bytes(value: Any) -> int | None:  # noqa: PLR0911 - a line for each kind
    """Bytes of what holds data without a Python object for each; ``None`` of anything else."""
    kind = type(value)
    if _is(value, torch.Tensor):
        try:
            return int(value.untyped_storage().nbytes())
        except (RuntimeError, NotImplementedError):  # sparse ones have none
            return int(value.element_size() * value.nelement())
    if _is(value, torch.UntypedStorage):
        return int(value.nbytes())
    if _is(value, bytearray | array.array | memoryview | mmap.mmap):
        return memoryview(value).nbytes
    if _is(value, bytes | str) and len(value) >= mmap.PAGESIZE:
        return len(value)
    module = kind.__module__.partition(".")[0]
    if module == "numpy" and hasattr(kind, "nbytes") and hasattr(kind, "strides"):
        return None if str(value.dtype) == "object" else int(value.nbytes)
    if module == "pyarrow" and hasattr(kind, "nbytes"):
        return int(value.nbytes)
    if module == "PIL" and hasattr(kind, "getbands"):
        loaded = vars(value).get("_im", vars(value).get("im"))
        return 0 if loaded is None else int(value.width * value.height * len(value.getbands()))
    return None


def _inside(value: Any) -> tuple[Sequence[tuple[str, Any]] | None, str]:
    """What an object's pickle holds, part by part; ``None`` for what is to be weighed as a whole.

    And why it can't be pickled, if that is known.
    """
    kind = type(value)
    if flat_bytes(value) is not None:
        return None, ""
    if kind in (list, tuple, dict) and len(value) <= 64:  # else it is weighed as a whole
        entries = list(value.items() if kind is dict else enumerate(value))
        small = (str, bytes, int, float, complex, type(None), torch.dtype)
        if any(not _is(each, small) for _, each in entries):
            return [(f"[{key!r}]"[:40], each) for key, each in entries], ""
    if kind is functools.partial:
        given = [(f"[{name!r}]", each) for name, each in value.keywords.items()]
        placed = [(f"args[{place}]", each) for place, each in enumerate(value.args)]
        return [("func", value.func), *placed, *given], ""
    if kind is types.MethodType:
        return [("__self__", value.__self__)], ""
    if kind is types.FunctionType or _is(value, type):
        return _named(value)
    return _state(value)


def _named(value: Any) -> tuple[Sequence[tuple[str, Any]] | None, str]:
    """A function or class goes by its name; what a local function closes over shows its weight."""
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is value or value is type(None):
        return (), ""
    if _is(value, type):
        return (), f"{value.__qualname__} is a local class, which can't be pickled"
    inside = []
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # it is empty so far
            inside.append((name, cell.cell_contents))
    inside += [(f"__defaults__[{n}]", each) for n, each in enumerate(value.__defaults__ or ())]
    return inside, f"{value.__qualname__} is a local function, which can't be pickled"


def _state(value: Any) -> tuple[Sequence[tuple[str, Any]] | None, str]:
    """The attributes of an object that is pickled by them; ``None`` if it is by other means."""
    kind: Any = type(value)
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    by_hand = kind in ForkingPickler(io.BytesIO()).dispatch_table
    # Objects of these libraries are named as wholes, not by what they hold.
    whole = kind.__module__.partition(".")[0] in {"pandas", "polars", "pyarrow", "PIL"}
    as_one = (list, dict, tuple, set, str, bytes, types.ModuleType)
    if not plain or by_hand or whole or _is(value, as_one):
        return None, ""
    if kind.__getstate__ is not object.__getstate__:
        state = value.__getstate__()
        if type(state) is not dict:
            return [("__getstate__()", state)], ""
        return [(str(name), each) for name, each in state.items()], ""
    held = own_attributes(value)
    with contextlib.suppress(AttributeError):
        object.__getattribute__(value, "__dict__")
        return list(held.items()), ""
    return list(held.items()) or None, ""  # a class written in C may hold more


def split_by(dataset: Any) -> int | None:
    """``shards_of`` where it is sure that more workers than these get nothing.

    An attribute of another class may count what its ranks share.
    """
    known = type(dataset).__module__.partition(".")[0] in ("datasets", "webdataset")
    return shards_of(dataset) if known else None


def repeats_shards(dataset: Any) -> bool:
    """Whether an epoch ends before its shards do: each worker begins its own again.

    As webdataset's with ``with_epoch`` or ``repeat``, and those of Hugging Face with ``repeat``.
    """
    held = own_attributes(dataset)
    part = held.get("_ex_iterable")
    while part is not None:
        if type(part).__name__.startswith("Repeat"):
            return True
        part = own_attributes(part).get("ex_iterable")
    times = held.get("repetitions")
    return type(times) is int and times != 1


def shards_of(dataset: Any) -> int | None:
    """Files or shards that an iterable dataset is split by; ``None`` where it doesn't say.

    Of Hugging Face's datasets ``num_shards``, of webdataset's pipelines the length of the list of
    urls; of others an attribute ``num_shards`` or ``n_shards`` that is a number.
    """
    if not _is(dataset, IterableDataset):
        return None
    if type(dataset).__module__.partition(".")[0] == "datasets":
        found = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
        return found if type(found) is int else None
    held = own_attributes(dataset)
    for name in ("num_shards", "n_shards"):
        if type(held.get(name)) is int and held[name] > 0:
            return int(held[name])
    stages = held.get("pipeline")
    if _is(stages, list) and stages and type(dataset).__module__.startswith("webdataset"):
        source = stages[0]
        urls = own_attributes(source).get("urls")
        resampled = "Resampled" in type(source).__name__
        return len(urls) if isinstance(urls, list | tuple) and not resampled else None
    return None
