"""The loop that drives a loader under the clock, and what rate the times of its batches give.

What happens to a batch after it was loaded, too: nothing, a step of fixed length, or the user's.

It alone runs inside a measured window: nothing is hooked or wrapped but the clock around
``next()``. What makes a rate of the times is pure, and follows three observations about DataLoader
(each reproduced by ``benchmarks/``): clocking from ``iter()`` counts starting as loading; clocking
from a moment at which the queues are full counts work done before the clock started; and an
in-order loader yields in bursts of ``num_workers``, so that single gaps are no independent sample.
Hence a steady segment leaves out the first ``W*P + W`` yields after an epoch began and the last
``W*P`` before it ended, the window is a whole number of rounds of W, and the interval comes from
means over blocks of rounds.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from dlprof.errors import TargetError
from dlprof.internals import passed_batches, shut_down, workers_of
from dlprof.records import CUT_SHORT_SIGN, WHOLE_EPOCHS, Config, Estimate
from dlprof.stats.intervals import ratio_interval
from dlprof.targets.grammar import parse_target
from dlprof.trial.rank_group import RankGroup
from dlprof.units import format_duration, parse_step

if TYPE_CHECKING:
    from dlprof.targets.loader import EpochGate  # which imports torch

_MIN_BLOCKS = 3
_PATIENCE = 3.0
"""The warm-up, and a window that gathers three rounds, may last this many windows each; so many
windows at most are given to a loader that is still getting faster."""

_ONE_BATCH = -math.inf


@dataclasses.dataclass(slots=True, kw_only=True)
class Epoch:
    """One pass over the loader, as the clock sees it while it lasts."""

    began_s: float  # when ``iter(loader)`` was called
    # When each batch arrived, in order.
    yields_s: MutableSequence[float] = dataclasses.field(default_factory=lambda: array.array("d"))
    warm_up: int = 0  # yields at the beginning that belong to the warm-up
    # Whether the loader came to the end of its epoch by itself; its last batch may then be smaller
    # than the others.
    whole: bool = False
    asked_s: float = 0.0  # when the consumer asked for one more batch than there was
    # Samples in each of these batches; empty where they can't be counted.
    samples: MutableSequence[int] = dataclasses.field(default_factory=lambda: array.array("q"))

    @property
    def counted(self) -> bool:
        """Whether the samples of all its batches are known."""
        return len(self.samples) >= len(self.yields_s)

    @property
    def all_samples(self) -> int | None:
        """Samples in it, if it came to its end and they are known."""
        return sum(self.samples) if self.whole and self.counted else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a trial's clock says, under the names that its record has."""

    batches_per_s: Estimate  # the rate; without an interval where its upper end would have no bound
    # The same in samples, of which batches may hold changing numbers; ``None`` where they can't be
    # counted.
    samples_per_s: Estimate | None
    # Half-width of the interval of the seconds for a sample (for a batch where samples can't be
    # counted), over their mean; ``None`` where too few blocks came to say.
    spread: float | None
    window_batches: int  # batches that it rests on
    window_samples: int | None  # samples in these
    measured_s: float  # seconds that it rests on
    whole_epochs: bool  # whether it covers whole epochs, because no steady state was reached

    @property
    def samples_per_batch(self) -> float | None:
        """Mean samples of a batch."""
        return None if self.window_samples is None else self.window_samples / self.window_batches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some batches in a row: a round of W of them, a block of rounds, or a whole epoch.

    It has 0 samples where they can't be counted.
    """

    seconds: float
    batches: int
    samples: int

    @classmethod
    def joined(cls, parts: Sequence[Stretch]) -> Stretch:
        """Several as one."""
        return cls(
            seconds=math.fsum(part.seconds for part in parts),
            batches=sum(part.batches for part in parts),
            samples=sum(part.samples for part in parts),
        )


def steady_rounds(epoch: Epoch, config: Config) -> list[Stretch]:
    """The rounds of W batches in the epoch's steady segment; empty if there is none."""
    last = len(epoch.yields_s) - 1
    if epoch.whole:
        last -= config.batches_in_flight + 1
    stride = max(config.num_workers, 1)
    marks = range(epoch.warm_up, max(last + 1, 0), stride)
    times, samples = epoch.yields_s, epoch.samples
    return [
        Stretch(
            seconds=times[after] - times[before],
            batches=stride,
            # A batch took the time before it came.
            samples=sum(samples[before + 1 : after + 1]),
        )
        for before, after in itertools.pairwise(marks)
    ]


def blocks_of_rounds(rounds: Sequence[Stretch], config: Config) -> list[Stretch]:
    """Equal blocks of rounds, as independent of each other as possible.

    A block holds at least ``max(W*P, 10)`` batches where there are enough for three such
    blocks, and at most 20 blocks are made; rounds beyond the last whole block join none.
    """
    stride = max(config.num_workers, 1)
    wanted = math.ceil(max(config.batches_in_flight, 10) / stride)
    if len(rounds) < wanted * _MIN_BLOCKS:
        wanted = max(1, len(rounds) // _MIN_BLOCKS)
    size = max(wanted, math.ceil(len(rounds) / 20))
    starts = range(0, len(rounds) - size + 1, size)
    return [Stretch.joined(rounds[start : start + size]) for start in starts]


def is_rising(rounds: Sequence[Stretch]) -> bool:
    """Whether the first quarter of some rounds was the slowest, by a quarter and more.

    Then the loader was not steady yet: its queues touched their memory for the first time, say,
    or files were read into the page cache.
    """
    size = len(rounds) // 4
    if size * min((each.batches for each in rounds), default=0) < 4:
        return False
    first, *rest, third, fourth = (
        math.fsum(each.seconds for each in rounds[part * size : (part + 1) * size])
        for part in range(4)
    )
    return first > max(*rest, third, fourth) and first > 1.25 * (third + fourth) / 2


def _rate(mean_s: Estimate) -> Estimate:
    """One over so many seconds. Where these may be none, up to as far as ``Estimate.log_sd`` looks.

    Without an upper end it would count like a trial that is too short for an interval: as known
    better than one whose seconds are almost as uncertain.
    """
    value = 1 / mean_s.value
    if mean_s.low is None or not mean_s.high:
        return Estimate(value=value)
    low = 1 / mean_s.high
    high = 1 / mean_s.low if mean_s.low > 0 else math.inf
    return Estimate(value=value, low=low, high=min(high, value * max(4.0, value / low)))


def _seconds_each(
    parts: Sequence[Stretch], whole: Stretch, count: Callable[[Stretch], int]
) -> tuple[Estimate, float | None] | None:
    """Mean seconds for one of what is counted, and the half-width of its interval over that mean.

    The mean is that of the whole, a ratio of two sums; its interval is that of the linearized
    ratio over the parts (Cochran, Sampling Techniques, 1977, section 2.11), which where all parts
    count the same is that of their means. The half-width is ``None`` for two parts: 12.7 standard
    errors to each side, as two ask for, are no sign of anything.
    """
    total, counts = count(whole), [*map(count, parts)]
    if not total or not any(counts):
        return None
    mean, seen = whole.seconds / total, ratio_interval([each.seconds for each in parts], counts)
    if seen.low is None or seen.high is None:
        return Estimate(value=mean), None
    half = (seen.high - seen.low) / 2
    estimate = Estimate(value=mean, low=mean - half, high=mean + half)
    return estimate, half / mean if len(parts) >= _MIN_BLOCKS else None


def _throughput(
    parts: Sequence[Stretch], whole: Stretch, *, counted: bool, whole_epochs: bool
) -> Throughput | None:
    """What some independent parts, and all that was seen, say of the rate."""
    in_batches = _seconds_each(parts, whole, lambda part: part.batches)
    if whole.seconds <= 0 or in_batches is None:
        return None
    in_samples = _seconds_each(parts, whole, lambda part: part.samples) if counted else None
    return Throughput(
        batches_per_s=_rate(in_batches[0]),
        samples_per_s=_rate(in_samples[0]) if in_samples else None,
        spread=(in_samples or in_batches)[1],
        window_batches=whole.batches,
        window_samples=whole.samples if counted else None,
        measured_s=whole.seconds,
        whole_epochs=whole_epochs,
    )


def throughput(epochs: Sequence[Epoch], config: Config, *, enough_s: float) -> Throughput | None:
    """The rate over all epochs of a trial; ``None`` if too few batches came to say anything.

    The last epoch may be unfinished. With less than ``enough_s`` seconds of steady time, and at
    least one epoch that ended by itself, the epochs are too short to have a steady state: the rate
    is then that of whole epochs, epoch restarts included; the first start of the workers only where
    one epoch was all.
    """
    counted = all(epoch.counted for epoch in epochs)
    rounds = [each for epoch in epochs for each in steady_rounds(epoch, config)]
    blocks, whole = blocks_of_rounds(rounds, config), Stretch.joined(rounds)
    steady = _throughput(blocks, whole, counted=counted, whole_epochs=False)
    if not epochs[0].whole or (steady is not None and steady.measured_s >= enough_s):
        return steady
    # From an epoch's first batch to that of the next, so that starting a loader whose workers
    # persist, and what its dataset does when first asked, is no part of it.
    first = epochs[0]
    spans = [
        Stretch(
            seconds=after.yields_s[0] - epoch.yields_s[0],
            batches=len(epoch.yields_s),
            samples=sum(epoch.samples[1:]) + sum(after.samples[:1]),
        )
        for epoch, after in itertools.pairwise(epochs)
    ] or [
        Stretch(
            seconds=first.yields_s[-1] - first.began_s,
            batches=len(first.yields_s),
            samples=sum(first.samples),
        )
    ]
    spans = spans[1:] or spans  # the first epoch also pays for what is paid once a training
    return _throughput(spans, Stretch.joined(spans), counted=counted, whole_epochs=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """What the clock saw."""

    startup_s: float  # ``iter(loader)`` plus the first ``next()``
    rate: Throughput | None  # of the window; ``None`` if too few batches came
    # Samples in a whole epoch; ``None`` where none was seen from end to end.
    epoch_samples: int | None
    fed_workers: int | None  # workers that gave a batch; ``None`` where that was not seen
    # Seconds that the batches before the window took beyond what they take at the steady rate;
    # ``None`` without one.
    transient_s: float | None
    wait_fraction: float  # share of the window spent in ``next()``
    # Last batch of an epoch to the first of the next; ``None`` if not timed.
    epoch_turnover_s: float | None
    warnings: tuple[str, ...] = ()  # what people should know of the way it was measured
    # Share of the window in which it waited for other ranks to end their step; ``None`` without
    # any.
    barrier_fraction: float | None = None


class EmptyLoaderError(Exception):
    """The loader ended before its first batch, or after so many epochs that gave some."""

    def __init__(self, epochs: int = 0) -> None:
        super().__init__(epochs)
        self.epochs = epochs


class WrongDataError(Exception):
    """The loader gave other data than it should, without an error."""

    def __init__(
        self, kind: Literal["duplicated", "truncated"], message: str, *, hint: str
    ) -> None:
        super().__init__(message)
        self.kind: Literal["duplicated", "truncated"] = kind
        self.hint = hint


def ended_early(came: int, wanted: int) -> WrongDataError:
    """The error of an epoch of which fewer batches came than indices were handed out."""
    return WrongDataError(
        "truncated",
        f"An epoch ended early without an error: {came} of {wanted} batches came.",
        hint=WHOLE_EPOCHS,
    )


@dataclasses.dataclass(slots=True, eq=False)
class Loop:
    """Drives a loader through epochs, writing down when each batch came."""

    loader: Any  # what ``iter`` is called on, once an epoch
    config: Config  # what it was built with
    _: dataclasses.KW_ONLY
    clock: Callable[[], float]  # monotonic seconds
    consume: Callable[[Any], object] = lambda _batch: None  # called with each batch
    # Called now and then, with the time at which the last batch came.
    beat: Callable[[float], object] = lambda _now_s: None
    confirm: Callable[[], object] = lambda: None  # called once, after the very first batch
    # Called with each batch that comes before the window, and its position in its epoch.
    inspect: Callable[[int, Any], object] = lambda _position, _batch: None
    # Samples in a batch; called for each one, unless that is known otherwise. What its attribute
    # ``earlier`` says from some batch on, if it has one, is in each before that.
    count: Callable[[Any], int | None] | None = None
    batch: Any = dataclasses.field(default=None, init=False)  # the last one
    # Seconds spent in ``next()``, since whoever asks has set it to 0.
    wait_s: float = dataclasses.field(default=0.0, init=False)
    logs: list[Epoch] = dataclasses.field(default_factory=list, init=False)  # the epochs so far
    # From the last batch of an epoch to the first of the next, of each.
    turnovers_s: list[float] = dataclasses.field(default_factory=list, init=False)
    # Workers that gave a batch; ``None`` where that was not seen.
    fed_workers: int | None = dataclasses.field(default=None, init=False)
    _iterator: Iterator[Any] = dataclasses.field(default_factory=lambda: iter(()), init=False)
    _recounted: bool = dataclasses.field(default=False, init=False)
    _from_each: int = dataclasses.field(default=0, init=False)

    @property
    def now(self) -> Epoch:
        """The epoch that is running."""
        return self.logs[-1]

    @property
    def workers(self) -> Sequence[Any]:
        """The running loader's worker processes, as far as it has any."""
        return workers_of(self._iterator)

    def promised(self) -> int | None:
        """The batches of an epoch, by the loader's own word."""
        try:
            return len(self.loader)
        except Exception:  # the user's __len__; few iterable datasets have one
            return None

    def begin_epoch(self) -> None:
        """Start an epoch and take its first batch.

        Raises:
            EmptyLoaderError: The epoch has no batch.
        """
        log = Epoch(began_s=self.clock(), warm_up=self.config.warm_up_batches)
        self.logs.append(log)  # first, as what raises here has come after none of its batches
        self._iterator, self._from_each = iter(self.loader), 0
        try:
            self.batch = next(self._iterator)
        except StopIteration:
            raise EmptyLoaderError(len(self.logs) - 1) from None
        log.yields_s.append(self.clock())
        if len(self.logs) > 1:
            self.turnovers_s.append(log.yields_s[0] - self.logs[-2].asked_s)
            self.wait_s += self.turnovers_s[-1]
        else:
            self.confirm()
        self._note(self.batch)
        self._look()
        self.consume(self.batch)
        self.beat(log.yields_s[0])

    def _note(self, batch: Any) -> None:
        """Count the samples of a batch, where that is done by looking at it."""
        if self.count is not None:
            samples = self.count(batch)
            if not self._recounted and (earlier := getattr(self.count, "earlier", None)):
                self._recounted = True
                for log in self.logs:
                    log.samples = array.array("q", [earlier] * len(log.samples))
            if samples is not None:  # else fewer are counted than came, which says so
                self.now.samples.append(samples)

    def _look(self) -> None:
        """Look at the batch that came, and at whether each worker has given one.

        torch asks the workers in turns for the first batches, and goes past those that have none.
        """
        came = len(self.now.yields_s)
        self.inspect(self._place(came), self.batch)
        if self._passed <= self.config.num_workers:
            self._from_each = came
        if self._passed >= self.config.num_workers > 0:
            self.fed_workers = self._from_each

    def _look_at_end(self) -> None:
        """The same of an epoch that ended before torch had asked each worker.

        Not of one whose batches were not all looked at, as in the window.
        """
        few = self._from_each == len(self.now.yields_s)
        if few and self._passed >= self.config.num_workers > 0:
            self.fed_workers = self._from_each

    def _place(self, came: int) -> int:
        """The index of the last batch, which says whose it is; beyond all that are looked at else.

        Until torch has gone past a worker that had no more it is that of the batches that came.
        Those that were asked for at first still come in turns then, later ones don't.
        """
        index = self._passed - 1
        if index < came:
            return came - 1
        return index if index < self.config.batches_in_flight else sys.maxsize

    @property
    def _passed(self) -> int:
        """Batches that torch has asked for and gone past in this epoch; -1 where it won't say."""
        return passed_batches(self._iterator) if self.config.in_order else -1

    def warm_up(self) -> bool:
        """Take, inspect and consume one batch; False if the epoch ended instead."""
        if not self.run(_ONE_BATCH):
            return False
        self._look()
        return True

    def run(self, until_s: float) -> bool:
        """Take and consume batches until one comes at ``until_s`` or later; at least one.

        False if the epoch ended before that.
        """
        log, clock, consume = self.logs[-1], self.clock, self.consume
        write, advance = log.yields_s.append, self._iterator.__next__
        note = self._note if self.count is not None else None
        wait_s = 0.0
        while True:
            asked_s = clock()
            try:
                self.batch = batch = advance()
            except StopIteration:
                log.whole, log.asked_s = True, asked_s
                self._look_at_end()
                break
            came_s = clock()
            wait_s += came_s - asked_s
            write(came_s)
            if note is not None:
                note(batch)
            consume(batch)
            if came_s >= until_s:
                break
        self.wait_s += wait_s
        self.beat(log.yields_s[-1])
        return not log.whole

    def drain(self) -> float:
        """Take the rest of the epoch as fast as it comes; returns the seconds of its end."""
        log = self.logs[-1]
        log.asked_s = self.clock()
        for batch in self._iterator:
            self.batch = batch
            log.yields_s.append(self.clock())
            self.beat(log.yields_s[-1])
            self._note(batch)
            self._look()
            log.asked_s = self.clock()
        ended_s = self.clock()
        log.whole = True
        self._look_at_end()
        return ended_s - log.asked_s

    def seen(self) -> tuple[list[Epoch], list[float], float]:
        """What was written down so far, as ``forget`` takes it."""
        log = self.now
        now = dataclasses.replace(log, yields_s=log.yields_s[:], samples=log.samples[:])
        return [*self.logs[:-1], now], [*self.turnovers_s], self.wait_s

    def forget(self, seen: tuple[list[Epoch], list[float], float]) -> None:
        """Forget what came since, which was loaded only to keep other ranks company."""
        self.logs, self.turnovers_s, self.wait_s = seen

    def begin_window(self) -> None:
        """Count all that came so far as warm-up."""
        del self.logs[:-1]
        self.now.warm_up = max(self.now.warm_up, len(self.now.yields_s) - 1)

    def take(self, count: int) -> bool:
        """Take some batches of this epoch and let them go; False where it has no more."""
        return sum(1 for _ in itertools.islice(self._iterator, count)) == count

    def shut_down(self) -> None:
        """End the workers, as torch does when its iterator is collected."""
        iterator, self._iterator = self._iterator, iter(())
        shut_down(iterator)


def fill_s(rate: float, config: Config) -> float:
    """Seconds to wait for the queues to fill once nothing is consumed any more."""
    if config.num_workers == 0 or rate <= 0:
        return 0.0
    return min(0.25, 1.2 * config.queued_batches / rate)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How one configuration is measured."""

    loop: Loop  # the loader under the clock, not begun
    gate: EpochGate  # ends the first epoch soon, to time the turnover
    # Length of the measured window in seconds; longer where a round of W batches takes long, up to
    # three times.
    window_s: float
    turnover: bool = True  # whether to time an epoch's end if none comes by itself
    one_epoch: bool = False  # whether what comes after an epoch is no figure of what loading takes
    # Batches of an epoch that are inspected: queues fill meanwhile, so that the warm-up goes on for
    # as many as they hold.
    inspected: int = 0
    # Others that load at once: the window begins when all are past their warm-up.
    ranks: RankGroup | None = None

    def run(self, window: Callable[[str, float], object]) -> WindowFigures:
        """Measure it.

        ``window`` is called with ``"start"`` and ``"end"`` at the window's ends; the second value
        is how long to wait for the queues to fill before memory is read. It may block.

        Raises:
            EmptyLoaderError: The loader gave nothing.
            WrongDataError: An epoch ended early, or what was inspected is wrong.
        """
        loop, config = self.loop, self.loop.config
        self._begin()
        startup_s = loop.logs[0].yields_s[0] - loop.logs[0].began_s
        del loop.logs[:-1]
        warning = self._pass_warm_up()
        if self.ranks is not None:
            if self._ended:  # in its warm-up: what others are waited for in is another epoch
                self._take_sizes()
            self._meet(self.ranks)
            if self._ended:
                late = "the epoch ended before all ranks were ready: its rate is of all of it"
                warning = "; ".join(filter(None, [warning, late]))
            else:
                loop.begin_window()
        wait_fraction, barrier_fraction = self._settle(window)
        if self.ranks is None:
            self._take_sizes()
        rate = throughput(loop.logs, config, enough_s=0.0 if self.one_epoch else self.window_s / 2)
        if rate is not None and self.one_epoch:  # which is no epoch as those to come
            rate = dataclasses.replace(rate, whole_epochs=False)
        window("end", fill_s(rate.batches_per_s.value if rate else 0.0, config))
        warnings = [warning] if warning else []
        if rate is not None and rate.whole_epochs:
            warnings.append(
                f"an epoch has only {len(loop.logs[0].yields_s)} batches: the rate is over whole "
                "epochs, restarts included"
            )
        warned, transient_s = self._transient(rate)
        if self.ranks is None:  # else the warm-up lasts as long as that of the slowest rank
            warnings += warned
        wholes = [count for log in loop.logs if (count := log.all_samples) is not None]
        return WindowFigures(
            startup_s=startup_s,
            rate=rate,
            epoch_samples=statistics.median_low(wholes) if wholes else None,
            fed_workers=loop.fed_workers,
            transient_s=transient_s,
            wait_fraction=wait_fraction,
            epoch_turnover_s=statistics.median_low(loop.turnovers_s) if loop.turnovers_s else None,
            warnings=tuple(warnings),
            barrier_fraction=barrier_fraction,
        )

    @property
    def _ended(self) -> bool:
        """Whether the only epoch that counts is over."""
        return self.one_epoch and self.loop.now.whole

    @property
    def _warm_up(self) -> int:
        config = self.loop.config
        after = self.inspected + config.batches_in_flight if self.inspected else 0
        return max(config.warm_up_batches, after)

    def _begin(self) -> None:
        """Start the loader; first through an epoch of one batch per worker, to time an epoch's end.

        Its end is the real one, by torch's own path, and with one batch per worker it comes soon
        however slow the batches are.
        """
        loop, gate = self.loop, self.gate
        stays = loop.config.persistent_workers or not loop.config.num_workers
        # Who stays has the samples of that epoch in the next.
        limited = self.turnover and gate.attached and not (self.one_epoch and stays)
        if limited:
            gate.reopen(limit=max(1, loop.config.num_workers))
        loop.begin_epoch()
        if gate.sizes is not None:
            loop.count = None  # what hands the samples out counts them
        if limited and gate.attached:
            ended_s = loop.drain()
            self._check_whole()
            gate.reopen()
            loop.begin_epoch()
            # For 5 s torch waits for a worker that doesn't end, before it is killed: threads of the
            # dataset's own still prefetch.
            if ended_s >= 5.0 and not gate.exact:
                loop.turnovers_s.clear()
                gate.detach("its workers don't end where an epoch is ended early")

    def _pass_warm_up(self) -> str:
        """Pass the warm-up; returns a warning if it had to be cut short."""
        loop = self.loop
        wanted = loop.now.warm_up = self._warm_up
        least = loop.config.num_workers + 1
        deadline = loop.clock() + _PATIENCE * self.window_s
        while len(loop.now.yields_s) <= wanted:
            if loop.clock() > deadline and len(loop.now.yields_s) > least:
                loop.now.warm_up = len(loop.now.yields_s) - 1
                return (
                    f"{CUT_SHORT_SIGN} at {loop.now.warm_up} of {wanted} batches, "
                    "because they are slow; a longer --trial-time measures better"
                )
            if not loop.warm_up():
                if not self.one_epoch:
                    self._next_epoch()
                break
        return ""

    def _meet(self, ranks: RankGroup, *, again: bool = False) -> bool:
        """Load on until all ranks are ready; returns whether one of them wants another window.

        Of what comes after the only epoch that counts nothing is written down.
        """
        loop = self.loop
        ranks.arrive(again=again)
        counts = loop.seen() if self._ended else None
        while (wanted := ranks.answer()) is None:
            if not loop.run(_ONE_BATCH):
                if self.one_epoch and counts is None:
                    self._take_sizes()
                    counts = loop.seen()
                self._next_epoch()
        if counts is not None:
            loop.forget(counts)
        return wanted

    def _settle(self, window: Callable[[str, float], object]) -> tuple[float, float | None]:
        """Measure windows until the loader is steady: one in which it still got faster was warm-up.

        Where several ranks load, all of them measure another window if one of them has to, and
        those that are done load on until the last one is.

        Returns:
            Shares of the window that counts: spent in ``next()``, and at the barrier, if any.
        """
        loop, ranks, waits = self.loop, self.ranks, list[float]()
        for left in range(round(_PATIENCE), -1, -1):
            window("start", 0.0)
            ended, before_s = self._ended, 0.0 if ranks is None else ranks.waited_s
            loop.wait_s = loop.wait_s if ended else 0.0
            began_s = loop.now.yields_s[0] if ended else loop.clock()
            self._window()
            lasted_s = (loop.now.yields_s[-1] if self._ended else loop.clock()) - began_s
            waited_s = 0.0 if ranks is None else ranks.waited_s - before_s
            if not (ended and waits):
                waits = [
                    min(1.0, each_s / lasted_s) if lasted_s > 0 else 1.0
                    for each_s in (loop.wait_s, waited_s)
                ]
            again = left > 0 and len(loop.logs) == 1 and not loop.now.whole
            again = again and is_rising(steady_rounds(loop.now, loop.config))
            if ranks is not None:
                if not ended:
                    self._take_sizes()
                seen = loop.seen()
                again = self._meet(ranks, again=again)
                if not again:
                    loop.forget(seen)
            if not again:
                break
            if not self._ended:
                loop.begin_window()
        return waits[0], None if ranks is None else waits[1]

    def _window(self) -> None:
        """Run until the window is over, through as many epochs as that takes."""
        loop = self.loop
        if self._ended:
            if self.ranks is None:  # else it was looked at before the next began
                self._check_whole()
            return
        began_s = loop.now.yields_s[-1]
        ends_s = began_s + self.window_s
        while not self._is_over(began_s):
            # In stretches of a second, between which the supervisor hears that batches still come.
            if loop.run(min(loop.now.yields_s[-1] + 1.0, ends_s)):
                continue
            if self.one_epoch:
                self._check_whole()
                return
            if loop.now.yields_s[-1] - began_s >= self.window_s and len(loop.logs) > 1:
                return
            self._next_epoch()

    def _is_over(self, began_s: float) -> bool:
        """Whether the window is long enough, at the end of a round of W batches."""
        log = self.loop.now
        now = log.yields_s[-1]
        if now - began_s < self.window_s:
            return False
        if len(self.loop.logs) > 1:
            steady = log.yields_s[log.warm_up :]
            return bool(steady) and now - steady[0] > self.window_s / 2
        workers = max(self.loop.config.num_workers, 1)
        rounds, rest = divmod(len(log.yields_s) - 1 - log.warm_up, workers)
        late = now - began_s >= _PATIENCE * self.window_s
        return rest == 0 and (rounds >= 3 or (late and rounds >= 1))

    def _next_epoch(self) -> None:
        """Go on after an epoch that ended by itself."""
        self._check_whole()
        self._take_sizes()
        self.gate.reopen()
        self.loop.begin_epoch()

    def _take_sizes(self) -> None:
        """The samples of this epoch's batches, where the indices say it."""
        sizes, log = self.gate.sizes, self.loop.now
        if sizes is not None:
            log.samples = array.array("q", sizes[: len(log.yields_s)])

    def _check_whole(self) -> None:
        """Notice an epoch that was cut short: torch takes a ``StopIteration`` for its end."""
        gate, came = self.gate, len(self.loop.now.yields_s)
        if not (gate.exact and came < gate.batches):
            return
        promised = self.loop.promised()  # one's own class may ask for more than it passes on
        if promised is None or came < promised:
            raise ended_early(came, gate.batches)

    def _transient(self, rate: Throughput | None) -> tuple[list[str], float | None]:
        """What the batches before the steady segment took beyond the steady rate: paid once."""
        log = self.loop.logs[0]
        if rate is None or rate.whole_epochs or not 0 < log.warm_up < len(log.yields_s):
            return [], None
        took_s = log.yields_s[log.warm_up] - log.yields_s[0]
        transient_s = max(0.0, took_s - log.warm_up / rate.batches_per_s.value)
        # Share of the time until a loader is steady that it must lose there to be worth a word.
        if log.warm_up <= self._warm_up or transient_s < 0.1 * took_s:
            return [], transient_s
        text = (
            f"the loader got faster for {format_duration(took_s)} before its rate was steady, "
            f"which cost {format_duration(transient_s)} once"
        )
        if is_rising(steady_rounds(log, self.loop.config)):
            text += "; it was still getting faster: a longer --trial-time measures better"
        return [text], transient_s


Consumer = Callable[[Any], object]


def make_consumer(
    step_s: float,
    step_callable: str | None,
    step_spread: str = "",
    directory: Path | None = None,
) -> Consumer:
    """The consumer that the user stated.

    A fixed step sleeps, as a training loop does while the device computes; a step that keeps a
    core busy instead has to be given as ``step_callable``. The kernel wakes a sleeper late, by
    about 0.1 ms, which is taken off each step: one that is shorter lasts as long as that.

    ``step_callable`` is ``module:function`` or ``file.py:function``, and wins over ``step_s``. It
    is looked for in the ``directory``, as the target may have changed to another. ``step_spread``
    is how steps differ, the same in every trial, with ``step_s`` as their mean.
    """
    if step_callable is not None:
        from dlprof.targets.build import import_object  # torch with it, which has the target by now

        found = import_object(parse_target(step_callable), directory=directory)
        if not callable(found):
            raise TargetError(
                f"The step {step_callable!r} is not a function.",
                hint="Give the step as module:function or path/to/file.py:function.",
            )
        return cast(Consumer, found)
    if step_s <= 0:
        return lambda _batch: None  # at no cost: the rate is then the loader's own
    sleep, late_s = time.sleep, lateness_s(min(step_s, 1e-3))
    nap_s = max(1e-9, step_s - late_s)
    if not step_spread:
        return lambda _batch: sleep(nap_s)
    steps = steps_of(step_s, step_spread)
    return lambda _batch: sleep(max(1e-9, next(steps) - late_s))


def steps_of(step_s: float, step_spread: str) -> Iterator[float]:
    """The lengths of one step after the other, without end."""
    step = parse_step(step_spread) if step_spread else step_s
    return itertools.cycle(step_s * of for of in getattr(step, "shape", (1.0,)))


def lateness_s(
    nap_s: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds by which a sleep of ``nap_s`` lasts longer, where a core is idle; 0 or more.

    Of a few sleeps the second shortest counts, since a crowd makes some later.
    """
    found = []
    for _ in range(5):
        began_s = clock()
        sleep(nap_s)
        found.append(clock() - began_s - nap_s)
    # An idle core's timer slack and waking stay below this; what is more is a crowd's doing.
    return min(max(0.0, sorted(found)[1]), 2.5e-4)
