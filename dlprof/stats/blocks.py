"""Configurations compared in interleaved blocks.

The comparison is the randomised complete block design: every configuration is measured once in
each block, blocks follow each other in time, and what drifts between blocks (neighbours, clock
rate, page cache) cancels in the differences within a block. The logarithm of the rate of
configuration ``i`` in block ``j`` is taken as ``mu_i + b_j + e_ij``.

Rates are not divided by the cores that were to be had, although that steadies the rate of one
CPU-bound configuration on a shared machine (its CV fell from 34 % to 9 % in our measurements): a
configuration that can't use more cores, or that takes them from neighbours by having more
processes, would be credited with speed that it does not have. Trials marked noisy count less
instead, and widen the intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from dlprof.records import Config, Estimate, Trial
from dlprof.stats.equations import (
    Row,
    block_equations,
    inverted,
    paired_squares,
    weighted_mean,
)
from dlprof.stats.student import t_quantile

QUIET_LOG_SD = 0.10
"""Expected standard deviation of the log rate between two runs of one configuration.

Measured on a quiet machine, 8 data sets and 50 configurations each: two clean runs differed by a
CV of 4 % in the median and 18 % at the 90th percentile; this figure, with the heavy tails that
``PRIOR_DF`` gives it, covers both."""

NOISY_LOG_SD = 0.30
"""The same for trials marked noisy: beside a busy neighbour we measured a CV of 34 %."""

PRIOR_DF = 4.0
"""What a prior variance is worth, in degrees of freedom: it rules where there are no repeats and
fades when there are; 3 to 5 is what moderated variances commonly estimate (Smyth 2004, limma)."""

_LARGEST_LOG_SD = 3.0
"""Nothing is known of a rate beyond this; it keeps weights above 0 for any figures in a file."""

_LARGEST_LOG = 50.0
"""No rate is further from 1 per second than ``exp`` of this: whatever a file says, sums of such
logarithms stay finite, and so do their exponentials."""

_MAX_BLOCKS = 64
"""Neighbouring blocks are merged beyond this many, so that long runs stay quick to judge."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One rate, measured once.

    Attributes:
        key: What was measured (``Config.key``).
        block: Number of the interleaved block.
        log_rate: Natural logarithm of the rate.
        log_sd: How far off the figure may be expected to lie, before any repeat is seen.
        group: Configurations of one group have the same rate by construction; empty for one
            that stands alone.
        whole_epochs: Whether the rate covers whole epochs, turnovers included.
    """

    key: str
    block: int
    log_rate: float
    log_sd: float = QUIET_LOG_SD
    group: str = ""
    whole_epochs: bool = False

    @property
    def weight(self) -> float:
        """Precision relative to a quiet trial of a long window."""
        return (QUIET_LOG_SD / self.log_sd) ** 2


def observe(trial: Trial, rate: float | None = None) -> Observation | None:
    """A trial as the block model sees it.

    The spread is that between runs plus what the trial's own interval says of its window. A trial
    without an interval was too short for one and counts like a noisy trial. Configurations that
    differ only in ``persistent_workers`` are of one group, as torch looks at it between epochs
    only; not so where the rates cover whole epochs.

    Args:
        trial: Any trial.
        rate: What to compare instead of ``trial.samples_per_s``.

    Returns:
        ``None`` for a trial without a positive rate.
    """
    steady = trial.samples_per_s
    if trial.outcome != "completed" or steady is None or steady.value <= 0:
        return None
    rate = steady.value if rate is None else rate
    if steady.low is None or steady.high is None:
        between, within = NOISY_LOG_SD, 0.0
    else:
        between = NOISY_LOG_SD if trial.noisy else QUIET_LOG_SD
        within = (steady.high - steady.low) / (4 * steady.value)  # about two errors to each side
    return Observation(
        key=trial.config.key,
        block=trial.repetition,
        log_rate=max(-_LARGEST_LOG, min(_LARGEST_LOG, math.log(rate))),
        log_sd=min(math.hypot(between, within), _LARGEST_LOG_SD),
        group="" if trial.whole_epochs else f"{_within_epochs(trial.config).key} steady",
        whole_epochs=trial.whole_epochs,
    )


def _within_epochs(config: Config) -> Config:
    """What of a configuration matters within an epoch."""
    return dataclasses.replace(config, persistent_workers=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """A variance and how well it is known.

    Attributes:
        value: Of an observation of weight 1.
        df: Degrees of freedom.
    """

    value: float
    df: float

    def updated(self, squares: float, df: float) -> Variance:
        """Shrunk towards this one: ``(df0 * s0² + squares) / (df0 + df)`` (Smyth 2004)."""
        return Variance(
            value=(self.df * self.value + squares) / (self.df + df),
            df=self.df + df,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """Configurations compared, block effects taken out. Made by ``fit_blocks``.

    Attributes:
        log_rates: Log rate of each configuration in an average block.
        groups: The group of each configuration; the rates of a group are the same.
        cells: Per configuration and block, total weight and mean log rate, of its whole group.
        inverse: Covariance of the block effects, in units of the residual variance.
        residual: Variance about the model, pooled over all configurations.
        between: Variance between the runs of one configuration, drift included.
    """

    log_rates: Mapping[str, float]
    groups: Mapping[str, str]
    cells: Mapping[str, Row]
    inverse: Sequence[Sequence[float]]
    residual: Variance
    between: Variance

    def best(self, among: Iterable[str] | None = None) -> str:
        """The configuration of the highest rate, among all or those given."""
        return max(self.log_rates if among is None else among, key=self.log_rates.__getitem__)

    def blocks(self, key: str) -> int:
        """In how many blocks the configuration, or one of its group, was measured."""
        return len(self.cells[key])

    def rate(self, key: str, confidence: float = 0.95) -> Estimate:
        """What the configuration gives in an average block, drift between blocks included."""
        cells = self.cells[key]
        weight = sum(w for w, _ in cells.values())
        mean = sum(w * y for w, y in cells.values()) / weight
        squares = sum(w * (y - mean) ** 2 for w, y in cells.values())
        spread = _prior(self.between).updated(squares, len(cells) - 1)
        return _exponential(self.log_rates[key], spread, 1 / weight, confidence)

    def ratio(self, key: str, other: str, confidence: float = 0.95) -> Estimate:
        """Rate of one configuration over that of another, with a t interval.

        The variance is that of the pair's own differences in the blocks that both were in, shrunk
        towards the pooled one: pairs differ in how steady they are, and few repeats can't say how
        much.
        """
        if self.groups[key] == self.groups[other]:
            return Estimate(value=1.0, low=1.0, high=1.0)
        factor = self._difference_factor(key, other)
        log_ratio = self.log_rates[key] - self.log_rates[other]
        return _exponential(log_ratio, self._pair_variance(key, other), factor, confidence)

    def would_tell(self, key: str, other: str, blocks: int) -> bool:
        """Whether so many blocks would show that two differ, if they do as much as they seem to.

        That is where the difference is two of the standard errors that it would have then; these
        fall with the root of the number of blocks.
        """
        now = min(self.blocks(key), self.blocks(other))
        variance = self._pair_variance(key, other).value * self._difference_factor(key, other)
        gap = self.log_rates[key] - self.log_rates[other]
        return gap**2 * blocks >= 4 * variance * now

    def _pair_variance(self, key: str, other: str) -> Variance:
        squares, df = paired_squares(self.cells[key], self.cells[other])
        return _prior(self.residual).updated(squares, df)

    def _difference_factor(self, key: str, other: str) -> float:
        """Variance of the difference of two levels, in units of the residual variance."""
        size = len(self.inverse)
        apart = [0.0] * size
        factor = 0.0
        for sign, cells in ((1, self.cells[key]), (-1, self.cells[other])):
            total = sum(w for w, _ in cells.values())
            factor += 1 / total
            for block, (w, _) in cells.items():
                apart[block] += sign * w / total
        return factor + sum(
            apart[i] * self.inverse[i][j] * apart[j] for i in range(size) for j in range(size)
        )


def fit_blocks(observations: Sequence[Observation]) -> BlockFit:
    """Fit ``mu_i + b_j`` to log rates by weighted least squares; cells may be missing.

    Levels of groups are eliminated from the normal equations, which leaves one equation per
    block. The pooled variance starts from the prior ``QUIET_LOG_SD`` with ``PRIOR_DF`` degrees of
    freedom, so that one block alone is judged by the prior and repeats soon outweigh it.

    Raises:
        ValueError: If there is no observation.
    """
    if not observations:
        raise ValueError("a fit to no observations")
    index = _block_index(observations)
    groups = _groups(observations)
    cells = _cells(observations, groups, index)
    size = max(index.values()) + 1
    matrix, right = block_equations(cells, size)
    inverse = inverted(matrix)
    effects = [sum(g * r for g, r in zip(row, right, strict=True)) for row in inverse]
    means = {group: weighted_mean(row) for group, row in cells.items()}
    levels = {
        group: means[group] - weighted_mean({j: (w, effects[j]) for j, (w, _) in row.items()})
        for group, row in cells.items()
    }
    free = len(observations) - len(cells)
    prior = Variance(value=QUIET_LOG_SD**2, df=PRIOR_DF)
    about_model = sum(
        o.weight * (o.log_rate - levels[groups[o.key]] - effects[index[o.block]]) ** 2
        for o in observations
    )
    about_mean = sum(o.weight * (o.log_rate - means[groups[o.key]]) ** 2 for o in observations)
    return BlockFit(
        log_rates={key: levels[group] for key, group in groups.items()},
        groups=groups,
        cells={key: cells[group] for key, group in groups.items()},
        inverse=inverse,
        residual=prior.updated(about_model, max(0, free - (size - 1))),
        between=prior.updated(about_mean, free),
    )


def _groups(observations: Iterable[Observation]) -> dict[str, str]:
    """The group of each configuration; one that is in two stands alone."""
    groups: dict[str, str] = {}
    for o in observations:
        group = o.group or o.key
        groups[o.key] = group if groups.get(o.key, group) == group else o.key
    return groups


def _block_index(observations: Iterable[Observation]) -> dict[int, int]:
    """Blocks numbered from 0 without gaps, neighbours merged where there are too many."""
    blocks = sorted({o.block for o in observations})
    merged = max(1, math.ceil(len(blocks) / _MAX_BLOCKS))
    return {block: place // merged for place, block in enumerate(blocks)}


def _cells(
    observations: Iterable[Observation], groups: Mapping[str, str], index: Mapping[int, int]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Weight and weighted mean log rate per group and block."""
    cells: dict[str, dict[int, tuple[float, float]]] = {}
    for o in observations:
        row, block = cells.setdefault(groups[o.key], {}), index[o.block]
        weight, mean = row.get(block, (0.0, 0.0))
        total = weight + o.weight
        row[block] = (total, mean + (o.log_rate - mean) * o.weight / total)
    return cells


def _prior(pooled: Variance) -> Variance:
    """The pooled variance as the prior of one configuration's or one pair's own."""
    return Variance(value=pooled.value, df=PRIOR_DF)


def _exponential(log: float, variance: Variance, factor: float, confidence: float) -> Estimate:
    """An estimate on the log scale as a factor."""
    half = t_quantile((1 + confidence) / 2, variance.df) * math.sqrt(variance.value * factor)
    half = min(half, 10 * _LARGEST_LOG)
    return Estimate(value=math.exp(log), low=math.exp(log - half), high=math.exp(log + half))
