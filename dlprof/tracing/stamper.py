"""Stamps of the process that makes batches: a worker, or main where there are no workers.

Of torch's fetcher only its own attributes are replaced: they are torch's, made again in each worker
and for each iterator. The user's code sees its own dataset, as ``self`` and in
``get_worker_info()``.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from dlprof.internals import WORKER
from dlprof.tracing.chains import Chains
from dlprof.tracing.clocks import (
    MISSING,
    ChildrenClock,
    Reading,
    ThreadClock,
    cpu_ns,
    now_ns,
    now_s,
    process_cpu_ns,
    waited_between,
)
from dlprof.tracing.trace import Facts, Made, kept

_new = tuple.__new__  # several times as fast as a NamedTuple's own, and this runs for each batch


class Stamper:
    """Follows the one batch that this process works on.

    ``worker`` is its number; -1 in the main process. Chains of transforms are looked for in the
    ``dataset``.
    """

    def __init__(self, worker: int, dataset: object) -> None:
        self.worker = worker
        # When the batch was begun, then when each sample was there; seconds.
        self.ends: list[float] = []
        self._clock = ThreadClock()
        # Workers of another loader in main are no matter of this one's batches.
        self._children = ChildrenClock(leave_out=WORKER if worker < 0 else "")
        self._children_ns = self._children.read()
        self._dataset = dataset
        self._chains = Chains(dataset)
        self._undo: Callable[[], None] | None = None
        self._index: Any = None
        self._picked: Reading | None = None
        self._fetched: Reading | None = None
        self._collated: Reading | None = None
        self._streamed: int | None = None
        self._batched = True
        self._ordinal = 0
        self._left_cpu = cpu_ns()
        self._others_ns = process_cpu_ns() - self._left_cpu
        self._facts: Facts | None = None
        self._next_look_ns = self._next_memory_ns = 0

    def follow(self, fetcher: Any) -> None:
        """Time a fetcher, instead of the one before."""
        self._streamed = 0 if hasattr(fetcher, "dataset_iter") else None
        self._batched = fetcher.auto_collation
        collate = fetcher.collate_fn
        before: dict[str, Any] = {"collate_fn": collate}
        if hasattr(fetcher, "dataset_iter"):
            before["dataset_iter"] = fetcher.dataset_iter
            fetcher.dataset_iter = timed_stream(fetcher.dataset_iter, self.ends)
        elif not fetcher.auto_collation or asked_one_by_one(fetcher.dataset):
            before["dataset"] = fetcher.dataset
            fetcher.dataset = timed_samples(fetcher.dataset, self.ends)

        def timed(samples: Any) -> Any:
            self._fetched = self._clock.read()
            batch = collate(samples)
            self._collated = self._clock.read()
            return batch

        def undo() -> None:
            for name, value in before.items():
                setattr(fetcher, name, value)

        fetcher.collate_fn, self._undo = timed, undo
        self._left_cpu = cpu_ns()  # what came before was starting
        self._children_ns = self._children.read()

    def picked(self, index: Any) -> None:
        """Indices were taken up."""
        self._index = index
        self._fetched = self._collated = None
        if self.worker < 0:  # whose children may have more to do than this loader's batches
            self._children_ns = self._children.read()
        self._picked = reading = self._clock.read()
        self.ends[:] = (reading.wall * 1e-9,)

    def handed(self, *, ended: bool = False, failed: bool = False) -> Made | None:
        """What is known of the batch that is done; ``None`` if its beginning was not seen."""
        picked = self._picked
        if picked is None:
            return None
        collated = self._collated or self._clock.read()
        fetched = self._fetched or collated
        samples = self._samples()
        made: Made = _new(
            Made,
            (
                self.worker,
                self._ordinal,
                picked.wall,
                fetched.wall,
                collated.wall,
                fetched.cpu - picked.cpu,
                waited_between(picked, fetched),
                collated.cpu - fetched.cpu,
                waited_between(fetched, collated),
                *self._process(picked),
                *samples,
                self._chains.take(),
                () if self._ordinal else self._chains.names,
                self._facts,
                ended,
                failed,
            ),
        )
        self._ordinal += 1
        self._picked = self._index = self._facts = None
        return made

    def _process(self, picked: Reading) -> tuple[int, int, int, int]:
        """CPU since the batch before, and of the whole process so far.

        Returns:
            Of the process's other threads; of this one, until it took up this batch's indices;
            of all of them so far; of child processes.
        """
        began_ns, self._children_ns = self._children_ns, self._children.read()
        children_ns = MISSING if sys.platform == "win32" else self._children_ns - began_ns
        if self.worker < 0:  # main's threads have more to do than this loader's batches
            return MISSING, MISSING, MISSING, children_ns
        process_ns, before_ns, left_cpu = process_cpu_ns(), self._others_ns, self._left_cpu
        self._left_cpu = cpu_ns()
        self._others_ns = process_ns - self._left_cpu
        others_ns, between_ns = self._others_ns - before_ns, picked.cpu - left_cpu
        return max(0, others_ns), max(0, between_ns), process_ns, children_ns

    def _samples(self) -> tuple[int, int, int, bytes, tuple[tuple[str, int], ...]]:
        """Times of single samples: each lasts from the end of the one before to its own."""
        ends = self.ends
        if len(ends) < 2:
            return 0, 0, 0, b"", ()
        took = list(map(operator.sub, ends[1:], ends))
        count, total_s, worst_s = len(took), ends[-1] - ends[0], max(took)
        keys = self._keys(count)
        places = [took.index(worst_s)]
        if worst_s > 200e-6 and worst_s * count > 4.0 * total_s:
            places = sorted(range(count), key=took.__getitem__, reverse=True)[:4]
        kept = array("d", took if count <= 64 else took[:: -(-count // 64)])
        slowest = tuple([(_name(keys[each]), round(took[each] * 1e9)) for each in places])
        return count, round(total_s * 1e9), round(worst_s * 1e9), kept.tobytes(), slowest

    def _keys(self, count: int) -> Sequence[Any]:
        """What so many samples were asked by: their indices, or their positions in the stream."""
        if self._streamed is not None:
            first = self._streamed
            self._streamed += count
            return range(first, first + count)
        if not self._batched:
            return (self._index,)
        index = self._index
        return index if type(index) in (list, tuple) and len(index) == count else range(count)

    def look(self) -> None:
        """Look up memory, threads and affinity, if that is due; never within a batch's stamps."""
        if now_ns() < self._next_look_ns:
            return
        began_ns = cpu_ns()  # what it waits for a core meanwhile costs nobody anything
        self._facts = Facts(MISSING, MISSING, MISSING)
        with contextlib.suppress(Exception):  # as of a key of the user's that has no repr
            self._facts = self._facts._replace(kept=kept(self._dataset))
        took_ns = cpu_ns() - began_ns
        # Each kind of look takes at most one part in 200 of a worker's time. The kernel goes
        # through all pages for memory, 4 ms of CPU where torch is loaded and little else; in an
        # epoch that ends before that is due again, containers show what grows.
        each_ns = took_ns if self._next_look_ns else 0  # the first finds what is found once
        self._next_look_ns = now_ns() + max(20_000_000, 200 * each_ns)
        if now_ns() >= self._next_memory_ns:
            self._facts = look_up()._replace(kept=self._facts.kept)
            whole_ns = cpu_ns() - began_ns
            self._next_memory_ns = now_ns() + max(100_000_000, 200 * (whole_ns - took_ns))
            took_ns = whole_ns
        self._left_cpu += took_ns  # it belongs to no batch

    def let_go(self) -> None:
        """Make everything as it was before."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._chains.let_go()
        self._clock.close()
        self._children.close()
        self._dataset = None
        self._picked = self._index = None


def _name(key: Any) -> str:
    """A sample's key as text, if that is cheap and safe: a key may be any object of the user's."""
    is_plain = type(key) is tuple and all(type(each) in (int, str) for each in key)
    if type(key) is str or is_plain:
        return str(key)[:60]
    try:
        return str(operator.index(key))
    except Exception:
        return type(key).__name__


def look_up(proc: Path = Path("/proc/self")) -> Facts:
    """Memory, threads and affinity of this process."""
    try:
        threads = len(os.listdir(proc / "task"))
    except OSError:
        threads = MISSING
    ask = getattr(os, "sched_getaffinity", None)
    try:  # what is private grows as shared pages are copied, where RSS doesn't
        with open(proc / "smaps_rollup", "rb") as file:  # faster than Path.open
            lines = [line.split() for line in file if line.startswith(b"Private_")]
        private_bytes = 1024 * sum(int(words[1]) for words in lines)
    except (OSError, IndexError, ValueError):
        private_bytes = MISSING
    return Facts(private_bytes, threads, MISSING if ask is None else len(ask(0)))


# Closures and no attributes: this runs for every single sample.


def timed_samples(dataset: Any, ends: list[float]) -> Any:
    """A map-style dataset as its fetcher sees it; all else goes to the dataset itself."""
    stamp, clock = ends.append, now_s

    class TimedSamples:
        def __getitem__(self, index: Any) -> Any:
            sample = dataset[index]
            stamp(clock())
            return sample

        def __getattr__(self, name: str) -> Any:
            if name == "__getitems__":
                raise AttributeError(name)
            return getattr(dataset, name)

    return TimedSamples()


def timed_stream(stream: Iterator[Any], ends: list[float]) -> Any:
    """An iterable dataset's iterator as its fetcher sees it."""
    advance, stamp, clock = stream.__next__, ends.append, now_s

    class TimedStream:
        def __iter__(self) -> TimedStream:
            return self

        def __next__(self) -> Any:
            sample = advance()
            stamp(clock())
            return sample

        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

    return TimedStream()


def asked_one_by_one(dataset: Any) -> bool:
    """Whether the fetcher of a map-style dataset asks for single samples.

    A ``Subset`` offers whole batches whatever it holds, and asks its dataset for single samples if
    that has no ``__getitems__``: then nothing changes if it is asked for them itself.
    """
    if type(dataset) is Subset:
        inner = dataset.dataset
        return not callable(getattr(inner, "__getitems__", None)) or (
            type(inner) is Subset and asked_one_by_one(inner)
        )
    return not getattr(dataset, "__getitems__", None)
