"""From the times at which batches arrived to a rate with its interval. Pure.

The estimator follows three observations about DataLoader (each reproduced by ``benchmarks/``):
clocking from ``iter()`` counts starting as loading; clocking from a moment at which the queues are
full counts work done before the clock started; and an in-order loader yields in bursts of
``num_workers``, so that single gaps are no independent sample. Hence a steady segment leaves out
the first ``W*P + W`` yields after an epoch began and the last ``W*P`` before it ended, the window
is a whole number of rounds of W, and the interval comes from means over blocks of rounds.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
from collections.abc import Callable, MutableSequence, Sequence

from dlprof.records import Config, Estimate
from dlprof.stats.intervals import mean_interval

_MIN_BLOCKS = 3


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
    """What a trial's clock says."""

    batches_per_s: Estimate  # the rate; without an interval where its upper end would have no bound
    # The same in samples, of which batches may hold changing numbers; ``None`` where they can't be
    # counted.
    samples_per_s: Estimate | None
    # Half-width of the interval of the seconds for a sample (for a batch where samples can't be
    # counted), over their mean; ``None`` where too few blocks came to say.
    spread: float | None
    batches: int  # batches that it rests on
    samples: int | None  # samples in these
    measured_s: float  # seconds that it rests on
    whole_epochs: bool  # whether it covers whole epochs, because no steady state was reached


def warm_up_batches(config: Config) -> int:
    """Yields to discard after an epoch begins: ``W*P`` primed at once, and one round more."""
    return config.batches_in_flight + config.num_workers


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
    low = 1 / mean_s.high if mean_s.high else None
    high = 1 / mean_s.low if mean_s.low is not None and mean_s.low > 0 else None
    if low is None or high is None:
        low = high = None
    return Estimate(value=1 / mean_s.value, low=low, high=high)


def _seconds_each(
    parts: Sequence[Stretch], whole: Stretch, count: Callable[[Stretch], int]
) -> tuple[Estimate, float | None] | None:
    """Mean seconds for one of what is counted, and the half-width of its interval over that mean.

    The mean is that of the whole, a ratio of two sums; its interval is that of the linearized
    ratio over the parts (Cochran, Sampling Techniques, 1977, section 2.11), which where all parts
    count the same is that of their means. The half-width is ``None`` for two parts: 12.7 standard
    errors to each side, as two ask for, are no sign of anything.
    """
    total, average = count(whole), math.fsum(map(count, parts)) / max(1, len(parts))
    if not total or average <= 0:
        return None
    mean = whole.seconds / total
    center = math.fsum(part.seconds for part in parts) / math.fsum(map(count, parts))
    seen = mean_interval(
        [center + (part.seconds - center * count(part)) / average for part in parts]
    )
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
        batches=whole.batches,
        samples=whole.samples if counted else None,
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
