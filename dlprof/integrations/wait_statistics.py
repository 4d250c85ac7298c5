"""What the clock around ``next()`` saw of one loader, kept at little cost and in bounded memory.

The consumer's thread pays for two readings of the clock and an entry in a list of its own; what
the entries mean is worked out every so many batches, which counts as neither waiting nor step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import struct
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from typing import Any, Final, Self

from dlprof.records import Durations, StepTimes, WatchedLoader
from dlprof.units import NS

NEVER_NS: Final = 2**63
MOST_PENDING: Final = 256  # batches after which a thread's entries are worked out

Clock = Callable[[], int]
Take = Callable[[Callable[[Any], Any], Any], Any]
"""Gives ``advance(iterator)``, or raises what that does: ``IterationTimer.take``, or around it."""


@dataclasses.dataclass(slots=True)
class Pace:
    """When entries are to be worked out even though they are few; one for all of a run."""

    due_ns: int = NEVER_NS


@dataclasses.dataclass(slots=True)
class Front:
    """Who waits for batches that a thread of the loader's, or the script's, takes ahead of that.

    As MONAI's ThreadDataLoader has one, and a BackgroundGenerator is one: that thread waits while
    the script computes, and the script waits for the thread.
    """

    asker: int | None = 0  # the thread that asks, if there is one by now; ``None``: it takes, too
    reading: IterationTimer | None = None  # of what another thread takes
    taken_ns: int = 0  # when it asked for the first of these


class IterationTimer:
    """One iteration over a loader: from ``iter()`` to its end, or to where it was left."""

    __slots__ = (
        *("_clock", "_inside", "_pace", "statistics"),
        *("again", "begun", "empty", "ended_ns", "front", "opening_ns", "promised", "times"),
    )

    def __init__(self, statistics: WaitStatistics, opening_ns: int) -> None:
        self.opening_ns = opening_ns
        self.begun = self.empty = False
        self.again = statistics.batches > 0  # its loader gave batches before
        self.promised: int | None = None  # batches, by the loader's own word
        self.front: Front | None = None  # who asks for what another thread may take
        self.ended_ns = 0  # when its last epoch was seen to end
        # By thread: when a batch came, the next was asked for, that came, and so on.
        self.times: dict[int, list[int]] = {}
        self.statistics = statistics
        self._clock, self._inside, self._pace = statistics.clock, statistics.inside, statistics.pace

    def take(self, advance: Callable[[Any], Any], iterator: Any) -> Any:
        """Call ``advance(iterator)``, noting how long it took; its result or its exception."""
        inside, thread = self._inside, get_ident()
        outer = inside.get(thread)
        if outer is self:  # an iterator whose own next() calls that of its base class
            return advance(iterator)
        inside[thread] = self
        asked_ns = self._clock()
        try:
            batch = advance(iterator)
            got_ns = self._clock()
        except BaseException as error:
            inside[thread] = outer
            self.statistics.note_end(self, asked_ns, nested=outer is not None, raised=type(error))
            raise
        inside[thread] = outer
        times = self.times.get(thread)
        if times is None or outer is not None:
            self.statistics.note_batch(self, asked_ns, got_ns, nested=outer is not None)
            return batch
        times += (asked_ns, got_ns)
        if got_ns >= self._pace.due_ns or len(times) > self.statistics.room:
            self.statistics.settle()
            times[-1] = self._clock()
        return batch


class StepLog:
    """When batches came and how long their steps took, over a whole run in bounded memory.

    Which ones are kept follows from their count alone, so that ranks which load as many keep the
    same ones.
    """

    def __init__(self) -> None:
        self._stride, self._count = 1, 0
        self._kept: list[tuple[int, int, int]] = []
        self._waited_ns: int | None = None

    def leave_out(self) -> None:
        """The batch that came last begins an epoch, or was taken within another's wait."""
        self._waited_ns = None

    def add(self, known: Sequence[int]) -> None:
        """Add entries as ``IterationTimer`` has them: when a batch came, the next was asked for."""
        asked, got = known[1::2], known[0::2]
        waits = [self._waited_ns, *map(operator.sub, got[1:], asked)]
        for got_ns, asked_ns, waited_ns in zip(got, asked, waits, strict=False):
            if waited_ns is None:
                continue
            if self._count % self._stride == 0:
                self._kept.append((got_ns, waited_ns, asked_ns - got_ns))
            self._count += 1
            if len(self._kept) > 1024:  # some 35 KB of a run file
                self._kept, self._stride = self._kept[::2], 2 * self._stride
        self._waited_ns = waits[len(got) - 1]

    def record(self) -> StepTimes:
        """What was kept, to the microsecond."""
        columns = zip(*self._kept, strict=True) if self._kept else ((), (), ())
        seconds = (tuple(round(each / NS, 6) for each in column) for column in columns)
        got_s, wait_s, step_s = seconds
        return StepTimes(stride=self._stride, got_s=got_s, wait_s=wait_s, step_s=step_s)


class WaitStatistics:
    """What all iterations over one loader add up to, in a run that began at ``began_ns``.

    ``inside`` has who waits for which reading, by thread, in all of the run. ``settled`` is called
    after each settling, in the consumer's thread. ``log`` keeps when batches came. ``is_ahead``
    says of a reading, and when its batch was asked for, whether this thread takes it for another
    that is timed instead.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        began_ns: int,
        inside: dict[int, IterationTimer | None] | None = None,
        pace: Pace | None = None,
        settled: Callable[[], None] = lambda: None,
        log: StepLog | None = None,
        is_ahead: Callable[[IterationTimer, int], bool] = lambda *_: False,
    ) -> None:
        self.clock = clock
        self.inside = {} if inside is None else inside
        self.pace = Pace() if pace is None else pace
        self.waits, self.steps, self.turnovers = Histogram(), Histogram(), Histogram()
        self.batches = self.epochs = self.completed = self.empty = self.failures = 0
        self.promised: int | None = None  # batches of all epochs that were begun
        self.waited_ns = self.nested_ns = self.background_ns = 0
        self.allow_pending(MOST_PENDING)
        self._began_ns = began_ns
        self._settled, self._log, self._is_ahead = settled, log, is_ahead
        self._main = threading.main_thread().ident
        self._lock = threading.RLock()
        self._readings: list[IterationTimer] = []
        self._threads: set[int] = set()
        self.startup_ns: int | None = None
        self._ending_ns = 0
        self._first_ns = self._last_ns = 0
        self._failure = ""

    def allow_pending(self, batches: int) -> None:
        """Settle when a thread has taken so many batches, at the latest."""
        self.room = 2 * max(1, min(batches, MOST_PENDING))

    def open(self, make: Callable[[], Any]) -> tuple[IterationTimer, Any]:
        """Begin an iteration: the reading to take its batches by, and what ``make`` returned."""
        began_ns, thread = self.clock(), get_ident()
        raised: type[BaseException] | None = None
        try:
            iterator = make()
        except BaseException as error:
            raised = type(error)
            raise
        finally:
            took_ns = self.clock() - began_ns
            with self.held():
                self._first_ns = self._first_ns or began_ns
                self._add_waiting(took_ns, thread, nested=self.inside.get(thread) is not None)
                if raised is not None:
                    self._fail(raised)
        return IterationTimer(self, took_ns), iterator

    def note_batch(
        self, reading: IterationTimer, asked_ns: int, got_ns: int, *, nested: bool
    ) -> None:
        """Note a batch that is the first of its reading or thread, or was taken inside another.

        ``nested``: the thread was waiting for another loader already.
        """
        if self._is_ahead(reading, asked_ns):
            return
        thread = get_ident()
        with self.held():
            times = reading.times.get(thread)
            if times is None:
                self._register(reading)
            else:
                self._end_step(times, asked_ns, thread)
            self._add_waiting(got_ns - asked_ns, thread, nested=nested)
            self._count(1, got_ns, thread)
            # Of threads that share it, one may see the end before another has counted its batch.
            if reading.begun or asked_ns < reading.ended_ns:
                self.waits.add([got_ns - asked_ns])
            else:
                self._begin(reading, got_ns - asked_ns)
            if self._log is not None:
                self._log.leave_out()
        self._settled()
        reading.times[thread] = [self.clock()]

    def note_end(
        self, reading: IterationTimer, asked_ns: int, *, nested: bool, raised: type[BaseException]
    ) -> None:
        """Note a ``next()`` that raised just now: an epoch's end, or a failure."""
        if self._is_ahead(reading, asked_ns):
            return
        took_ns, thread = self.clock() - asked_ns, get_ident()
        with self.held():
            times = reading.times.pop(thread, None)
            if times is not None:
                self._end_step(times, asked_ns, thread)
            self._add_waiting(took_ns, thread, nested=nested)
            if not issubclass(raised, StopIteration):
                self._fail(raised)
            elif reading.begun:
                self.completed += 1
                self._ending_ns = took_ns
                # Whoever asks once more, as a second thread does, ends nothing.
                reading.begun, reading.ended_ns = False, self.clock()
            elif reading.again and not (reading.ended_ns or reading.empty):
                reading.empty = True
                self.empty += 1
        self._settled()

    def note_skip(self, reading: IterationTimer, passed_ns: int) -> None:
        """Note what passed since this thread's last batch and is no part of its step."""
        thread = get_ident()
        times = reading.times.get(thread)
        if times:
            with self.held():  # the entry that moves ends the wait for that batch as well
                self._work_out(times, thread)
            times[-1] += passed_ns

    def note_ready(self, reading: IterationTimer) -> None:
        """Note that this thread's last batch came out of queues that had been filled in a pause.

        It counts, but its wait is none of those that are usual.
        """
        thread = get_ident()
        times = reading.times.get(thread, [])
        with self.held():
            if len(times) < 3:  # it begins an epoch, or was worked out just now
                return
            asked_ns, got_ns = times[-2:]
            del times[-2:]
            self._end_step(times, asked_ns, thread)
            self._add_waiting(got_ns - asked_ns, thread, nested=False)
            self._count(1, got_ns, thread)
            if self._log is not None:
                self._log.leave_out()
            times[0] = got_ns

    def settle(self) -> None:
        """Work out what is pending; called in the consumer's thread, and never in its way."""
        if not self._lock.acquire(blocking=False):
            return  # somebody reads the figures just now: it stays pending
        try:
            self._work_out_all()
        finally:
            self._lock.release()
        self._settled()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from changing the figures."""
        # In a process forked while another thread held the lock, nobody would let it go.
        held = self._lock.acquire(timeout=1.0)
        try:
            yield
        finally:
            if held:
                self._lock.release()

    def _work_out_all(self) -> None:
        for reading in self._readings:
            for thread, times in list(reading.times.items()):
                self._work_out(times, thread)

    def _work_out(self, times: list[int], thread: int) -> None:
        # The owner adds two entries at once, and to the end only, while others may read.
        known = times[: len(times) | 1]
        del times[: len(known) - 1]
        asked, got = known[1::2], known[2::2]
        if not got:
            return
        waits = list(map(operator.sub, got, asked))
        self.waits.add(waits)
        self.steps.add(map(operator.sub, asked, known[0::2]))
        self._add_waiting(sum(waits), thread, nested=False)
        self._count(len(got), got[-1], thread)
        if self._log is not None and thread == self._main:
            self._log.add(known)

    def _end_step(self, times: list[int], asked_ns: int, thread: int) -> None:
        """Count all entries, and a step behind them whose next ``next()`` is none of them."""
        self._work_out(times, thread)
        got_ns = times[-1]
        self.steps.add([asked_ns - got_ns])
        if self._log is not None and thread == self._main:
            self._log.add([got_ns, asked_ns])

    def _register(self, reading: IterationTimer) -> None:
        """Keep a reading until it has ended; of those that were left half way, the last ones."""
        self._readings = [each for each in self._readings if each.times]
        if reading not in self._readings:
            self._readings.append(reading)
        for old in self._readings[:-64]:
            for thread, times in list(old.times.items()):
                self._work_out(times, thread)
            old.times.clear()

    def _begin(self, reading: IterationTimer, waited_ns: int) -> None:
        if reading.empty:  # by the word of a thread that was ahead of this one
            reading.empty = False
            self.empty -= 1
        reading.begun = True
        known = reading.promised is not None and (self.promised is not None or not self.epochs)
        self.promised = (self.promised or 0) + (reading.promised or 0) if known else None
        self.epochs += 1
        boundary_ns = reading.opening_ns + waited_ns
        if self.startup_ns is None:
            self.startup_ns = boundary_ns
        else:
            self.turnovers.add([self._ending_ns + boundary_ns])
        self._ending_ns = 0

    def _count(self, batches: int, got_ns: int, thread: int) -> None:
        self.batches += batches
        self._last_ns = max(self._last_ns, got_ns)
        if len(self._threads) < 64:
            self._threads.add(thread)

    def _fail(self, raised: type[BaseException]) -> None:
        if issubclass(raised, Exception):  # and not Ctrl-C or sys.exit: no fault of the loader's
            self.failures += 1
            self._failure = raised.__qualname__

    def _add_waiting(self, waited_ns: int, thread: int, *, nested: bool) -> None:
        self.waited_ns += waited_ns
        if nested:
            self.nested_ns += waited_ns
        elif thread != self._main:
            self.background_ns += waited_ns

    def fill(self, known: WatchedLoader) -> WatchedLoader:
        """The record of what was seen, with what is known of the loader beside that."""
        with self.held():
            self._work_out_all()
            passed_ns = self.waited_ns + self.steps.total_ns
            rate = self.batches * NS / passed_ns if passed_ns and self.batches else None
            size = known.config.batch_size if known.config else None
            filled = dataclasses.replace(
                known,
                epochs=self.epochs,
                epochs_completed=self.completed,
                epochs_empty=self.empty,
                batches=self.batches,
                waited_s=self.waited_ns / NS,
                stepped_s=self.steps.total_ns / NS,
                wait_fraction=self.waited_ns / passed_ns if passed_ns else None,
                nested_s=self.nested_ns / NS,
                background_s=self.background_ns / NS,
                consumers=len(self._threads),
                batches_per_s=rate,
                samples_per_s=None if rate is None or size is None else rate * size,
                startup_s=None if self.startup_ns is None else self.startup_ns / NS,
                turnover=self.turnovers.durations(),
                wait=self.waits.durations(),
                step=self.steps.durations(),
                step_times=None if self._log is None else self._log.record(),
                promised_batches=self.promised,
                failures=self.failures,
                failure=self._failure,
                first_s=(self._first_ns - self._began_ns) / NS if self._first_ns else None,
                last_s=(self._last_ns - self._began_ns) / NS if self._last_ns else None,
            )
        none = "it gave no batch"
        reasons = {
            "wait_fraction": "it was not iterated",
            "batches_per_s": none,
            "samples_per_s": "its batch size is not known" if filled.batches else none,
            "startup_s": none,
            "turnover": "it was iterated once at most",
            "wait": "it gave one batch an epoch at most",
            "step": "no second batch was asked for",
            "first_s": "it was not iterated",
            "last_s": none,
        }
        missing = {name: why for name, why in reasons.items() if getattr(filled, name) is None}
        return dataclasses.replace(filled, unavailable={**known.unavailable, **missing})


# Of the four 16-bit words of a double, the one with its exponent and the highest bits below it.
_TOP_WORD = 3 if sys.byteorder == "little" else 0


class Histogram:
    """Counts of nanoseconds in bins that grow with what they hold: 16 for each power of two.

    A bin is the first 16 bits of a duration written as a double: they are there for the taking,
    where working out a bin in Python would cost more than all else that is done for a batch. The
    middle of a bin is within 3.1 % of all that fell into it. There are 1,000 bins up to 292 years.
    """

    __slots__ = ("bins", "count", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()
        self.count = 0
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, durations_ns: Iterable[int]) -> None:
        """Count durations, none of them negative."""
        durations = list(durations_ns)
        if not durations:
            return
        self.count += len(durations)
        self.total_ns += sum(durations)
        self.longest_ns = max(self.longest_ns, *durations)
        words = memoryview(array("d", durations)).cast("B").cast("H")
        self.bins.update(words[_TOP_WORD::4].tolist())

    def copy(self) -> Self:
        """The same counts, which later additions don't change."""
        made = type(self)()
        made.bins = self.bins.copy()
        made.count, made.total_ns = self.count, self.total_ns
        made.longest_ns = self.longest_ns
        return made

    def since(self, earlier: Histogram) -> Self:
        """What was added after ``earlier`` was copied; its longest is the top of a bin."""
        made = type(self)()
        made.bins = self.bins - earlier.bins
        made.count = self.count - earlier.count
        made.total_ns = self.total_ns - earlier.total_ns
        if made.count:
            made.longest_ns = min(self.longest_ns, int(_bottom(max(made.bins) + 1)))
        return made

    def quantile_s(self, share: float) -> float:
        """The duration that this share of all does not exceed, in seconds; 0 without any."""
        wanted, seen = share * self.count, 0
        for word in sorted(self.bins):
            seen += self.bins[word]
            if seen >= wanted:
                middle = (_bottom(word) + _bottom(word + 1)) / 2
                return min(middle, self.longest_ns) / NS
        return 0.0

    def durations(self) -> Durations | None:
        """The figures for a record; ``None`` where nothing was counted."""
        if not self.count:
            return None
        return Durations(
            count=self.count,
            total_s=self.total_ns / NS,
            mean_s=self.total_ns / self.count / NS,
            median_s=self.quantile_s(0.5),
            p95_s=self.quantile_s(0.95),
            p99_s=self.quantile_s(0.99),
            max_s=self.longest_ns / NS,
        )


def _bottom(word: int) -> float:
    """The shortest duration of a bin, in nanoseconds."""
    (bottom,) = struct.unpack(">d", struct.pack(">Hxxxxxx", word))
    return float(bottom)
