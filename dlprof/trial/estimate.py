"""From the times at which batches arrived to a rate with its interval. Pure.

The estimator follows three observations about DataLoader (each reproduced by ``benchmarks/``):
clocking from ``iter()`` counts start-up as loading; clocking from a moment at which the queues are
full counts work done before the clock started; and an in-order loader yields in bursts of
``num_workers``, so that single gaps are no independent sample. Hence a steady segment leaves out
the first ``W*P + W`` yields after an epoch began and the last ``W*P`` before it ended, the window
is a whole number of rounds of W, and the interval comes from means over blocks of rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from dlprof.records import Config, Estimate
from dlprof.stats import mean_interval

_MIN_BLOCK_BATCHES = 10
_MAX_BLOCKS = 20
_MIN_BLOCKS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass over the loader, as the clock saw it.

    Attributes:
        began_s: When ``iter(loader)`` was called.
        yields_s: When each batch arrived, in order.
        warm_up: Yields at the beginning that belong to the warm-up.
        whole: Whether the loader came to the end of its epoch by itself.
        last_partial: Whether the last batch may be smaller than the others.
    """

    began_s: float
    yields_s: Sequence[float]
    warm_up: int = 0
    whole: bool = False
    last_partial: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a trial's clock says.

    Attributes:
        batches_per_s: The rate; without an interval where its upper end would have no bound.
        spread: Half-width of the interval of the seconds for a batch, over their mean; ``None``
            where too few blocks came to say.
        batches: Batches that it rests on.
        measured_s: Seconds that it rests on.
        whole_epochs: Whether it covers whole epochs, because no steady state was reached.
    """

    batches_per_s: Estimate
    spread: float | None
    batches: int
    measured_s: float
    whole_epochs: bool


def warm_up_batches(config: Config) -> int:
    """Yields to discard after an epoch begins: ``W*P`` primed at once, and one round more."""
    return config.batches_in_flight + config.num_workers


def steady_gaps(epoch: Epoch, config: Config) -> list[float]:
    """Seconds per round of W batches in the epoch's steady segment; empty if there is none."""
    last = len(epoch.yields_s) - 1
    if epoch.whole:
        last -= config.batches_in_flight + epoch.last_partial
    stride = max(config.num_workers, 1)
    marks = epoch.yields_s[epoch.warm_up : max(last + 1, 0) : stride]
    return [after - before for before, after in itertools.pairwise(marks)]


def blocks_of_rounds(gaps: Sequence[float], config: Config) -> list[float]:
    """Mean seconds per round over equal blocks of rounds, as independent as can be had.

    A block holds at least ``max(W*P, 10)`` batches where there are enough for three such
    blocks, and at most 20 blocks are made; rounds beyond the last whole block join none.
    """
    stride = max(config.num_workers, 1)
    wanted = math.ceil(max(config.batches_in_flight, _MIN_BLOCK_BATCHES) / stride)
    if len(gaps) < wanted * _MIN_BLOCKS:
        wanted = max(1, len(gaps) // _MIN_BLOCKS)
    size = max(wanted, math.ceil(len(gaps) / _MAX_BLOCKS))
    starts = range(0, len(gaps) - size + 1, size)
    return [math.fsum(gaps[start : start + size]) / size for start in starts]


def _rate(mean_s: Estimate, batches: int) -> Estimate:
    """Batches per second from the mean seconds for ``batches`` batches."""
    low = batches / mean_s.high if mean_s.high else None
    high = batches / mean_s.low if mean_s.low is not None and mean_s.low > 0 else None
    if low is None or high is None:
        low = high = None
    return Estimate(value=batches / mean_s.value, low=low, high=high)


def _spread(blocks: Sequence[float]) -> float | None:
    """Half-width of the mean's interval over the mean.

    Not of two blocks: 12.7 standard errors to each side, as two ask for, are no sign of anything.
    """
    mean = mean_interval(blocks)
    if len(blocks) < _MIN_BLOCKS or mean.low is None or mean.high is None or mean.value <= 0:
        return None
    return (mean.high - mean.low) / 2 / mean.value


def _steady(epochs: Sequence[Epoch], config: Config) -> Throughput | None:
    segments = [steady_gaps(epoch, config) for epoch in epochs]
    gaps = [gap for segment in segments for gap in segment]
    total_s = math.fsum(gaps)
    if not gaps or total_s <= 0:
        return None
    stride = max(config.num_workers, 1)
    blocks = blocks_of_rounds(gaps, config)
    interval = mean_interval(blocks)
    mean_s = Estimate(value=total_s / len(gaps))
    if interval.low is not None and interval.high is not None:
        half = (interval.high - interval.low) / 2
        mean_s = Estimate(value=mean_s.value, low=mean_s.value - half, high=mean_s.value + half)
    return Throughput(
        batches_per_s=_rate(mean_s, stride),
        spread=_spread(blocks),
        batches=len(gaps) * stride,
        measured_s=total_s,
        whole_epochs=False,
    )


def _over_epochs(epochs: Sequence[Epoch]) -> Throughput | None:
    """The rate from the beginning of one epoch to that of the next."""
    spans = [
        (after.began_s - epoch.began_s, len(epoch.yields_s))
        for epoch, after in itertools.pairwise(epochs)
    ]
    if len(spans) > 1:
        spans = spans[1:]  # the first epoch also pays for what is paid once a training
    if not spans:
        spans = [(epochs[0].yields_s[-1] - epochs[0].began_s, len(epochs[0].yields_s))]
    batches = sum(count for _, count in spans)
    total_s = math.fsum(span for span, _ in spans)
    if total_s <= 0:
        return None
    per_batch = [span / count for span, count in spans]
    interval = mean_interval(per_batch)
    mean_s = total_s / batches
    low = high = None
    if interval.low is not None and interval.high is not None and interval.value > 0:
        low, high = (mean_s * end / interval.value for end in (interval.low, interval.high))
    return Throughput(
        batches_per_s=_rate(Estimate(value=mean_s, low=low, high=high), 1),
        spread=_spread(per_batch),
        batches=batches,
        measured_s=total_s,
        whole_epochs=True,
    )


def throughput(epochs: Sequence[Epoch], config: Config, *, enough_s: float) -> Throughput | None:
    """The rate over all epochs of a trial.

    Args:
        epochs: What the clock saw; the last may be unfinished.
        config: What ran.
        enough_s: Steady time to be content with, in seconds. With less than that, and at least
            one epoch that ended by itself, the epochs are too short to have a steady state: the
            rate is then that of whole epochs, start-up of workers and turnover included.

    Returns:
        The rate, or ``None`` if too few batches came to say anything.
    """
    steady = _steady(epochs, config)
    if epochs[0].whole and (steady is None or steady.measured_s < enough_s):
        return _over_epochs(epochs)
    return steady
