"""One belief about the rates of all configurations: what was predicted, and what was measured.

The log rate of trial ``t`` of configuration ``i`` in the interleaved block ``j`` is taken as

    m_i + c + g a_i + d_i + b_j + beta x_t + n y_t + e_t

``m_i`` is what a model predicted; ``c`` how far off it is altogether, ``g`` how far those apart
that rest on figures of their own (loading without workers), ``d_i`` how far this one: a part that
changes slowly with ``num_workers`` (a Brownian motion over its logarithm, held at those that the
model was fitted with), and a small one of its own. ``b_j`` is what drifts between blocks, ``x_t``
the speed of the cores in that very window, times the share of them that the loader computes on,
``y_t`` how many others wanted cores, against the usual, times the same. All errors have
heavy tails (Student's t), so that one disturbed trial, or one wrong prediction, is outvoted by the
others; how far off predictions are is learned from those that were measured, as far as their trials
show it (MacKay 1992), so that a model which proves wrong, altogether or of some, claims less of the
rest. What was not predicted has a ``d_i`` without bounds. All of it is one weighted least squares,
the ``d_i`` eliminated, weights by iteration (Lange, Little & Taylor 1989). Where more workers gave
less than the model predicts, they may have met a limit: it is done once more with the ``m_i``
bounded by what was measured, and what is believed is a mixture of the two, each as likely as it is.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import operator
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dlprof.records import Config, Estimate, PredictedCell, Run, Trial, Usage
from dlprof.records.record import record
from dlprof.stats.intervals import t_quantile, t_tail

PROBABILITY = 0.95  # with which a certificate holds (``shortfall``)

NEAR = 0.97
"""A configuration that has this share of the best one's rate is as good: fewer workers are worth
more than the rest, and no training run shows it."""

RISK = 1 / 4
"""Probability that a recommended configuration is slower than ``NEAR`` of the best, at most: a
costlier one is taken until then. Where two are equal and each is known to 3 %, it is 0.24.

With a third, 6.8 % of 2,157 replayed sweeps (``benchmarks/certificate.py``) end over 3 % from the
best, with a quarter 5.2 %, for 4 % more workers."""

FAR_TOO_MANY = 4
"""Times the workers that are needed, or that may do, from which they are worth a word, or a doubt.

Of four configurations that are all as fast, beside others (30 %), 36 % of the choices had seven
times the workers needed; now 4 %. Replays on a quiet machine choose as before."""

NEAR_LOG = -math.log(NEAR)  # the same as a gap between logarithms


WAITING_LOG_SD = 0.01
"""Standard deviation of the log rate between two quiet trials of a loader that waits: 0.3 to 1.4 %
on eight datasets (benchmarks, picks)."""

COMPUTING_LOG_SD = 0.12
"""The same of one that computes, on virtual cores that change their speed: 10 to 14.5 %. What a
core gives is as unsure."""

ADJUSTED_LOG_SD = 0.05
"""What is left of that where the cores' speed in the window is known: 2.4 to 7 %."""

NOISY_LOG_SD = 0.30
"""For trials marked noisy: beside a neighbor that took half of the cores the CV was 34 %."""

_UNSEEN = 0.05
"""Of a disturbed trial: others that took less than 5 % of the cores are not what disturbed it."""

_MODEL_TAIL_DF = 2.0
"""Degrees of freedom of predictions' errors: 8 % in the median and 27 % at the 90th percentile on
real data (``benchmarks/real_data.py``) are about as far apart as those of Student's t with 2 (0.82
and 2.9)."""


TAIL_DF = 4.0
"""Degrees of freedom of the errors, and of what is known beforehand of their spread: 3 to 5 is what
moderated variances commonly estimate (Smyth 2004, limma)."""

SPEED_EXPONENT, SPEED_EXPONENT_SD = 0.85, 0.25
"""How a computing loader's rate follows its cores' speed: 0.67 to 1.13 measured, 0.2 of zlib."""


_LEVEL_LOG_SD = 0.15
"""How far off all predictions are together, and beside that those that rest on figures of their own
(loading without workers): 10 % was measured, from one calibration to the next."""

_OWN_SHARE = 0.2
"""Of the variance of predictions' errors, what those of the same ``num_workers`` don't share."""

_PER_DOUBLING = 0.8
"""Of the same variance, by what errors change from ``num_workers`` to twice as many: on real data
(``benchmarks/real_data.py``) they change steadily from 1 worker to 8, and don't come back."""

CALIBRATED = frozenset({1, 2})
"""Workers that the model's costs are measured with, where they are of interest; else the fewest."""


_PLATEAU_ODDS = 8.0
"""To one, against a bound that the workers of a calibration are too few to show, as that of storage
which serves a few at once: one of nine real datasets has such (``benchmarks/worlds.py``)."""


LARGEST_LOG = 50.0
"""No rate is further from 1 per second than ``exp`` of this: whatever a file says, sums of such
logarithms stay finite, and so do their exponentials."""

_UNKNOWN_LOG_SD = LARGEST_LOG / 2
"""Of what nothing was predicted of: two to each side are all that there is."""

_LEAST_LOG_SD, _MOST_LOG_SD = 0.002, 3.0
"""Nothing is surer than this, and none says less, whatever a file claims."""


_DRAWS, _JOINT = 1000, 200
"""From a belief, for a certificate: by their luck the 5 % that are left are 4.3 to 5.7 %. And of
how many configurations, the likeliest, at most, so that thousands are judged within a second."""

_LEVEL, _APART, _SPEED, _NOISE, _BLOCKS = range(5)


@record(frozen=True, slots=True, kw_only=True)
class ObservedRate:
    """One rate, measured once."""

    key: str  # what was measured (``Config.key``)
    block: int  # number of the interleaved block
    log_rate: float  # natural logarithm of the rate
    # How far off the figure may be expected to lie, before any repeat is seen.
    log_sd: float = COMPUTING_LOG_SD
    noisy: bool = False  # whether others disturbed it
    # ``log_sd`` of one that others disturb alike all the time.
    steady_log_sd: float = COMPUTING_LOG_SD
    # Natural logarithm of the share of the cores that others left it; ``None`` where unknown.
    log_left: float | None = None
    log_wanted: float = 0.0  # the same of those that it would use if others left it all
    # Threads of others that wanted one of these cores, for each; ``None`` where nobody counted.
    others_wanted: float | None = None
    # Configurations of one group have the same rate by construction; empty for one that stands
    # alone.
    group: str = ""
    whole_epochs: bool = False  # whether the rate covers whole epochs, turnovers included
    cpu_share: float = 1.0  # share of the cores it ran on that the loader computed on, 0 to 1
    # Natural logarithm of those cores' speed in the window; ``None`` where unknown.
    log_speed: float | None = None
    busy: int = 0  # how many cores the loader kept busy
    batches: int = 0  # how many it is of; 0 where unknown
    # Share of the time in which a batch is waited for: as it costs more, so much longer it takes.
    waited: float = 1.0
    # How far off it may be of those of the longest window, as a standard deviation, as batches
    # differ.
    unlike_sd: float = 0.0


def observe(
    trial: Trial,
    rate: float | None = None,
    *,
    wait: float | None = None,
    usable_cores: float = math.inf,
) -> ObservedRate | None:
    """A trial as the belief sees it.

    The spread is that between runs, by how much the loader computes and whether the speed of its
    cores is known, or what the trial's own interval says of its window, if that is more. A trial
    without an interval was too short for one and counts like a noisy trial. Configurations that
    differ only in ``persistent_workers`` are of one group, as torch looks at it between epochs
    only; not so where the rates cover whole epochs. Beyond ``usable_cores`` of the machine others
    took nothing from it. ``None`` for a trial without a positive rate.
    """
    measured, usage = trial.samples_per_s, trial.usage
    if trial.outcome != "completed" or measured is None or measured.value <= 0:
        return None
    rate = measured.value if rate is None else rate
    speed = usage.core_speed if usage.core_speed and usage.core_speed > 0 else None
    wait = trial.wait_fraction if wait is None else wait
    share = _cpu_share(trial, wait)
    computing = COMPUTING_LOG_SD if speed is None else ADJUSTED_LOG_SD
    computing = NOISY_LOG_SD if trial.noisy else computing
    node, log_left, log_wanted, others_wanted = trial.node_usage, None, 0.0, None
    if node.available_cpu_cores:  # a trial had what it used: of 0 cores none were looked at in time
        others, left = node.taken_cores(usable_cores), max(node.available_cpu_cores, 0.01)
        log_left = -math.log1p(others / left)
        if node.other_runnable is not None:
            here = others / (node.other_cpu_cores or others or 1.0)
            others_wanted = here * node.other_runnable / (left + others)
        ranks = left / max(usage.available_cpu_cores or 0.0, 0.01)
        if (runnable := _runnable(usage)) is None:
            runnable = max(1, trial.config.num_workers) * _cpu_share(trial, None)
        log_wanted = min(0.0, math.log(ranks * max(runnable, 0.01) / (left + others)))
    between = math.hypot(WAITING_LOG_SD, share * computing)
    steady = math.hypot(WAITING_LOG_SD, share * min(computing, COMPUTING_LOG_SD))
    # Of few blocks the normal quantiles of ``Estimate.log_sd`` make more than their standard error,
    # by as much as that itself is unsure: with it, 95 % intervals of three repeats of windows of
    # three blocks hold in 78 to 85 %, and so in 90 to 92 %.
    within = NOISY_LOG_SD if measured.log_sd is None else measured.log_sd
    return ObservedRate(
        key=trial.config.key,
        block=trial.repetition,
        log_rate=max(-LARGEST_LOG, min(LARGEST_LOG, math.log(rate))),
        log_sd=min(max(between, within, _LEAST_LOG_SD), _MOST_LOG_SD),
        noisy=trial.noisy,
        steady_log_sd=min(max(steady, within, _LEAST_LOG_SD), _MOST_LOG_SD),
        log_left=log_left,
        log_wanted=log_wanted,
        others_wanted=others_wanted,
        group="" if trial.whole_epochs else _steady_group(trial.config),
        whole_epochs=trial.whole_epochs,
        cpu_share=share,
        log_speed=None if speed is None else math.log(speed),
        busy=round(usage.own_cpu_cores or 0.0),
        batches=trial.window_batches,
        waited=1.0 if wait is None else wait,
    )


def _runnable(usage: Usage) -> float | None:
    """Threads of the loader that ran or waited for a core; ``None`` where that isn't known."""
    known = None not in (usage.own_cpu_cores, usage.run_queue_wait_fraction)
    return usage.runnable(usage.own_cpu_cores) if known and not usage.throttled_fraction else None


def _cpu_share(trial: Trial, wait: float | None) -> float:
    """CPU time over what the loader's processes, or its cores, had at most; 1 where unknown.

    That in which they only waited for a core counts, too. Of workers, or of main, which takes all
    their batches in: who is nearer to its limit sets the rate. As far as loading sets it: not at
    all where the step never waits for it. ``wait`` is the share of the time in which the step
    waits; ``None`` is for while it does.
    """
    usage, workers = trial.usage, trial.config.num_workers
    own, available, runnable = usage.own_cpu_cores, usage.available_cpu_cores, _runnable(usage)
    share = 1.0
    if runnable is not None:
        main = (usage.main_runnable or 0.0) if workers else 0.0
        share = max(main, (runnable - main) / max(1, workers))
    elif own is not None:
        cores = math.inf if available is None else available  # 0 where others left it none
        most = min(max(1, workers), cores) * (1 - (usage.run_queue_wait_fraction or 0.0))
        share = own / most if most > 0 else 1.0
    share = min(1.0, max(0.0, share))
    if not workers:  # the time of its step, in which nothing is loaded, is a part of the window
        return min(1.0, share / (trial.wait_fraction or 1.0)) * (1.0 if wait is None else wait)
    # Share of waiting of a step beside workers, from which loading sets the rate alone.
    return share if wait is None else share * min(1.0, wait / 0.05)


@functools.lru_cache(maxsize=4096)
def _steady_group(config: Config) -> str:
    """What of a configuration matters within an epoch."""
    return f"{dataclasses.replace(config, persistent_workers=False).key} steady"


@record(frozen=True, slots=True, kw_only=True)
class ExpectedRates:
    """Rates that were predicted before anything was measured."""

    # Steady ones by ``ObservedRate.key``.
    log_rates: Mapping[str, float] = dataclasses.field(hash=False)
    log_sd: float  # how far off one of them may be beside the others, as a standard deviation
    # Over whole epochs, for observations that cover such; the steady ones where they are not known.
    epoch_log_rates: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    # As of observations of steady rates.
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    # ``num_workers`` of each: predictions of one are off by much the same, and those of its
    # neighbors by the like; that those without workers, which rest on figures of their own, turn
    # out wrong says nothing of the others.
    families: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    # ``num_workers`` that the model was fitted with: predictions of these are off by no more than
    # what configurations of one family don't share.
    calibrated: frozenset[int] = frozenset()
    # How far off each may be beside that, as a standard deviation; those of no limit not at all.
    beside_limit: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    # How far off all of a ``num_workers`` may be beside that, as a standard deviation: by what
    # others take, which its neighbors share.
    beside_others: Mapping[int, float] = dataclasses.field(default_factory=dict, hash=False)
    # Coefficient of variation of what a batch costs: a window of few may have had no expensive one.
    batch_cv: float = 0.0
    epoch_batches: float = math.inf  # of an epoch, if that is known: more differ in nothing

    @classmethod
    def of(
        cls,
        cells: Sequence[PredictedCell],
        log_sd: float,
        calibrated: frozenset[int] | None = None,
        *,
        run: Run | None = None,
    ) -> ExpectedRates:
        """What a model predicted, that was ``calibrated`` with the fewest where it isn't known.

        ``run`` holds what it went by, if that is known.
        """
        by = None if run is None else run.calibration
        epoch = None if run is None else run.header.target.batches_per_epoch
        counts = sorted({c.config.num_workers for c in cells} - {0})
        found = frozenset(CALIBRATED.intersection(counts) or counts[:1])
        found = found if calibrated is None else calibrated
        rates = {c.config.key: (c.samples_per_s.value, c.epoch_samples_per_s) for c in cells}
        # What others take of some and not of those that were calibrated is known badly: in 139 runs
        # beside 5 to 20 busy processes, trials were off by 0.95 (root mean square of logarithms)
        # where it was 0.6 to 1.5, and by 0.45 where it was next to nothing.
        # By the shallowest of each number, whatever else is asked for: deeper ones differ little.
        all_taken = dict[int, float]()
        for c in sorted(cells, key=lambda each: each.config.prefetch_factor or 0):
            all_taken.setdefault(c.config.num_workers, c.taken_log)
        least = min((log for workers, log in all_taken.items() if workers in found), default=0.0)
        taken = {w: log - least for w, log in all_taken.items() if w and log > least}
        return cls(
            log_rates={key: math.log(rate) for key, (rate, _) in rates.items() if rate > 0},
            log_sd=min(max(log_sd, WAITING_LOG_SD), _MOST_LOG_SD),
            epoch_log_rates={key: math.log(o) for key, (_, o) in rates.items() if o and o > 0},
            groups={c.config.key: _steady_group(c.config) for c in cells},
            families={c.config.key: c.config.num_workers for c in cells},
            calibrated=found,
            beside_others={workers: 0.7 * log for workers, log in taken.items()},
            batch_cv=(by.cpu_cv if by is not None else None) or 0.0,
            epoch_batches=epoch or math.inf,
        )


@record(frozen=True, slots=True, kw_only=True)
class _Level:
    """What is believed of one group's log rate, given what all have in common."""

    fixed: float  # what is left of it where that is 0
    slopes: Mapping[int, float]  # how it follows what all have in common, by place, where it does
    variance: float  # of what is its own


@record(frozen=True, slots=True, kw_only=True)
class Carried:
    """A rate under other conditions than those that it is believed under."""

    log_rate: float  # there
    follows: float  # how far it follows the one here, 0 (a step sets it) to 1
    log_sd: float  # what it may be off beside that, as a standard deviation
    by_speed: float  # how far it follows the speed of the cores there


class Gap(NamedTuple):
    """A logarithm, as that of a ratio of rates, and how surely it is known."""

    value: float  # it; of two explanations, the mean
    error: float  # its standard error, which of these is right in it
    df: float  # degrees of freedom of that
    apart: float = 0.0  # by how much more it is by the second explanation than by the first
    second: float = 0.0  # how likely the second is

    @property
    def _within(self) -> float:
        """Its standard error by either explanation."""
        between = self.second * (1 - self.second) * self.apart**2
        return math.sqrt(max(0.0, self.error**2 - between))

    @property
    def _either(self) -> list[tuple[float, float]]:
        """How likely each explanation is, and what it is by that."""
        first = self.value - self.second * self.apart
        both = [(1 - self.second, first), (self.second, first + self.apart)]
        # One that no quantile shows, as most that trials rule out, isn't worth a search for that.
        return both if self.second > 1e-9 and self.apart else [(1.0, self.value)]

    def chance(self, bound: float) -> float:
        """Probability that it is above a bound."""
        if (within := self._within) <= 0:
            return math.fsum(likely for likely, value in self._either if value > bound)
        tails = [(likely, t_tail((bound - v) / within, self.df)) for likely, v in self._either]
        return math.fsum(likely * tail for likely, tail in tails)

    def quantile(self, probability: float) -> float:
        """What it is not above, with a probability: between what it isn't by either explanation."""
        reach = t_quantile(probability, self.df) * self._within
        ends = [value + reach for _, value in self._either]
        low, high = min(ends), max(ends)
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if self.chance(middle) > 1 - probability else (low, middle)
        return high

    @property
    def most(self) -> float:
        """What it is not above, with ``PROBABILITY``."""
        return self.quantile(PROBABILITY)

    def minus(self, other: Gap) -> Gap:
        """The difference of it and another one that has nothing to do with it."""
        error, df = math.hypot(self.error, other.error), min(self.df, other.df)
        return self._replace(value=self.value - other.value, error=error, df=df)

    def factor(self) -> Estimate:
        """``exp`` of it, with its interval."""
        most = 10 * LARGEST_LOG
        # The mean may lie beyond both ends, where the second explanation is unlikely and far off.
        low = self.value - min(most, max(0.0, self.value - self.quantile(0.025)))
        high = self.value + min(most, max(0.0, self.quantile(0.975) - self.value))
        return Estimate(value=math.exp(self.value), low=math.exp(low), high=math.exp(high))


@record(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is known of the rates of configurations, by ``Config.key``."""

    log_rates: Mapping[str, float]  # the most likely log rate of each
    groups: Mapping[str, str]  # the group of each: those of one have the same rate
    # In how many blocks each, or one of its group, was measured; 0 for what was only predicted.
    blocks: Mapping[str, int]
    df: float  # degrees of freedom of what is known of those that were measured
    # Of those that were only predicted: how far off predictions are, fewer show.
    predicted_df: float
    _levels: Mapping[str, _Level]
    _common: Sequence[Sequence[float]]
    # Where in the common it is which of two explanations is right, if there are two, and how likely
    # the second is.
    _either: tuple[int, float] = (-1, 0.0)
    # Of each by itself, as the samples of the longest window are not all that there are.
    _sampled_sd: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def rate(self, key: str) -> Estimate:
        """What the configuration gives in an average block, at the cores' mean speed."""
        return self.log_rate(key).factor()

    def log_rate(self, key: str) -> Gap:
        """The logarithm of that."""
        level = self._levels[self.groups[key]]
        own = _variance(level.slopes, self._common) + level.variance
        error = math.hypot(math.sqrt(own), self._sampled_sd.get(key, 0.0))
        return Gap(self.log_rates[key], error, self._df_of(key), *self._second(key))

    def ratio(self, key: str, other: str) -> Estimate:
        """Rate of one configuration over that of another."""
        return self.gap(key, other).factor()

    def error(self, key: str, other: str) -> float:
        """Standard error of the difference of two log rates."""
        if self.groups[key] == self.groups[other]:
            return 0.0
        one, two = self._levels[self.groups[key]], self._levels[self.groups[other]]
        apart = _added(one.slopes, two.slopes, -1.0)
        return math.sqrt(_variance(apart, self._common) + one.variance + two.variance)

    def gap(self, key: str, other: str) -> Gap:
        """By how much one log rate is above another."""
        value = self.log_rates[key] - self.log_rates[other]
        df, (mine, second) = min(self._df_of(key), self._df_of(other)), self._second(key)
        apart = mine - self._second(other)[0]
        return Gap(value, self.error(key, other), df, apart, second)

    def _second(self, key: str) -> tuple[float, float]:
        """By how much more one is by the second explanation, and how likely that is."""
        place, second = self._either
        return self._levels[self.groups[key]].slopes.get(place, 0.0), second

    def too_little(self, key: str, rest: Belief) -> float:
        """By how much all else has one faster than its own trials, as a logarithm.

        ``rest`` is believed without these. 0 where that isn't sure, with ``PROBABILITY``: what says
        little, as where it proves the model wrong, contradicts nothing.
        """
        if key not in rest.log_rates:
            return 0.0
        own, else_ = self.log_rate(key), rest.log_rate(key)
        apart = else_.minus(own)._replace(df=else_.df)
        return apart.value if apart.chance(NEAR_LOG) > PROBABILITY else 0.0

    def opened(self, key: str, reach: float) -> Belief:
        """The same, but that the interval of one log rate reaches so far to each side at least."""
        group, log_sd = self.groups[key], reach / t_quantile(0.975, self._df_of(key))
        level = self._levels[group]
        level = dataclasses.replace(level, variance=max(level.variance, log_sd**2))
        return dataclasses.replace(self, _levels={**self._levels, group: level})

    def shortfall(self, key: str, gaps: Mapping[str, Gap], room: Gap | None = None) -> float:
        """By how much one log rate may be below the best of others, with ``PROBABILITY`` at most.

        The least bound that any of them is above with the rest of the probability, at most. Of
        those that were measured, and of those that hardly ever are, the probabilities add up. Of
        those that were only predicted joint draws are counted: what many share, as that the model
        or the one they are compared with is off, is one error and not one of each. As a belief is
        the same whenever measuring stops, so is this; that the belief is right is held against
        replayed sweeps (``benchmarks/certificate.py``).

        Args:
            key: Which.
            gaps: By how much each of the others is above it. What they are less sure of than the
                belief is each one's own.
            room: By how much any loader can be above it (``room_of``), if that is known.
        """
        rest = 1 - PROBABILITY
        low = 0.0
        for gap in gaps.values():
            low = gap.most if gap.chance(low) > rest else low
        most = math.inf if room is None else max(0.0, room.most)
        if low >= most or not gaps:
            return min(low, most)
        ranked = sorted(gaps, key=lambda other: gaps[other].chance(low))
        chances = itertools.accumulate(gaps[other].chance(low) for other in ranked)
        rare = max(sum(chance <= rest / 20 for chance in chances), len(ranked) - _JOINT)
        alone = {other for n, other in enumerate(ranked) if n < rare or self.blocks[other]}
        joint = {other: gap for other, gap in gaps.items() if other not in alone}
        best = self._best_of(key, joint)

        def risk(bound: float) -> float:
            above = len(best) - bisect.bisect_right(best, bound)
            return above / _DRAWS + math.fsum(gaps[other].chance(bound) for other in alone)

        high = low
        while risk(high) > rest and high < most:
            low, high = high, 2 * high + NEAR_LOG
        while high - low > 1e-4 * (1 + high):
            middle = (low + high) / 2
            low, high = (middle, high) if risk(middle) > rest else (low, middle)
        return min(high, most)

    def _best_of(self, key: str, gaps: Mapping[str, Gap]) -> list[float]:
        """By how much the best of some is above one of them, in joint draws; least first."""
        if not gaps:
            return []
        first, mine, best = len(self._common), self.groups[key], [-math.inf] * _DRAWS
        places = {group: first + n for n, group in enumerate(self._levels)}
        beside = {each: first + len(places) + n for n, each in enumerate(self.log_rates)}
        normals = [_normals(place) for place in range(first)]
        place, second = self._either
        edge = statistics.NormalDist().inv_cdf(second) if second else -math.inf
        which = [float(each < edge) - second for each in _normals(place)]
        common = [_mixed(zip(row, normals, strict=False)) for row in _cholesky(self._common)]

        @functools.cache
        def off(group: str) -> list[float]:
            level = self._levels[group]
            own = math.sqrt(level.variance), _normals(places[group])
            shared = ((slope, common[i]) for i, slope in level.slopes.items() if i != place)
            return _mixed([own, *shared])

        for other, gap in gaps.items():
            group = self.groups[other]
            parts: list[tuple[float, Sequence[float]]] = []
            if group != mine:
                parts += [(1.0, off(group)), (-1.0, off(mine))]
            rest = math.sqrt(max(0.0, gap.error**2 - self.error(other, key) ** 2))
            if rest:
                parts.append((rest, _normals(beside[other])))
            drawn = zip(best, _mixed(parts), _spreads(gap.df), which, strict=True)
            best = [max(b, gap.value + gap.apart * w + t * error) for b, error, t, w in drawn]
        return sorted(best)

    def _df_of(self, key: str) -> float:
        return self.df if self.blocks[key] else self.predicted_df

    def unless(self, other: Belief, chance: float) -> Belief:
        """The same where another one of the same rates is right with some probability.

        Which of them is right is one error that all rates share, of two values: the mean and the
        variance are those of the two together, and an interval holds what either has.
        """
        apart = {g: other.log_rates[k] - self.log_rates[k] for k, g in self.groups.items()}
        place, logs = len(self._common), self.log_rates
        levels = {
            group: dataclasses.replace(level, slopes={**level.slopes, place: apart[group]})
            for group, level in self._levels.items()
        }
        beside = [0.0] * place
        return dataclasses.replace(
            self,
            log_rates={key: log + chance * apart[self.groups[key]] for key, log in logs.items()},
            _levels=levels,
            _common=[*([*row, 0.0] for row in self._common), [*beside, chance * (1 - chance)]],
            _either=(place, chance),
        )

    def carried(self, there: Mapping[str, Carried], log_speed_sd: float) -> Belief:
        """What follows for some rates elsewhere, by key, from how far off predictions were here.

        ``log_speed_sd`` is how far off the speed of the cores there may be.
        """
        levels: dict[str, _Level] = {}
        for key, each in there.items():
            here = self._levels[self.groups[key]]
            slopes = {i: each.follows * a for i, a in here.slopes.items()}
            slopes[len(self._common)] = each.by_speed
            variance = each.follows**2 * here.variance + each.log_sd**2
            levels.setdefault(
                self.groups[key], _Level(fixed=here.fixed, slopes=slopes, variance=variance)
            )
        speed = [0.0] * len(self._common)
        return dataclasses.replace(
            self,
            log_rates={key: each.log_rate for key, each in there.items()},
            groups={key: self.groups[key] for key in there},
            blocks=dict.fromkeys(there, 0),
            _levels=levels,
            _common=[*([*row, 0.0] for row in self._common), [*speed, log_speed_sd**2]],
            _sampled_sd={
                key: each.follows * self._sampled_sd.get(key, 0.0) for key, each in there.items()
            },
        )


def near_best(
    some: Mapping[Config, float],
    present: Config | None,
    gap: Callable[[Config, Config], Gap],
    risk: float = RISK,
    fed: Collection[Config] = (),
) -> list[Config]:
    """What may be chosen: configurations that are likely near the best, in their order.

    None that is estimated slower than what the user has, or could have for nothing: loading
    without workers. Nor one that costs more than what he has and isn't likely faster: what can't be
    distinguished is no reason to change. In doubt, far fewer workers are: where the best has over
    ``FAR_TOO_MANY`` times as many, they have to be likelier worth it than not.

    Args:
        some: Log rates, the cheapest configuration first.
        present: What the user has.
        gap: By how much the log rate of one is above that of another.
        risk: Probability that it is slower than ``NEAR`` of the best, at most.
        fed: Those that keep a step fed: where what he has doesn't, that is a reason.
    """
    if present is not None and present in some:
        keeps, cost = (present in fed) or not fed, present.cost_key
        some = {
            config: log
            for config, log in some.items()
            if config.cost_key <= cost
            or (not keeps and config in fed)
            or gap(config, present).chance(0.0) >= 1 - risk
        }
    best = max(some, key=some.__getitem__)
    kept = [log for config, log in some.items() if config == present or not config.num_workers]
    least = max(kept, default=-math.inf)

    def allowed(config: Config) -> float:
        far = best.num_workers > FAR_TOO_MANY * max(1, config.num_workers)
        return max(risk, 0.5) if far else risk

    return [
        config
        for config, log in some.items()
        if config == best
        or (log >= least and gap(best, config).chance(NEAR_LOG) <= allowed(config))
    ]


def room_of(
    trials: Iterable[tuple[Trial, ObservedRate, float | None]],
    turnover: float = 0.0,
    *,
    least_work: float | None = None,
    usable_cores: float = math.inf,
) -> Gap | None:
    """By how much a log rate could grow at most: by what its step waited, and by idle cores.

    No loader is faster than its step, nor than all cores at the least CPU time a sample. A step
    that has no idle core beside it may be faster with fewer workers.

    Args:
        trials: Of one configuration, each as the belief sees it, and how long its step waited.
        turnover: What epochs leave of its log rate beside that, 0 or less.
        least_work: That of ``log_work``, of configurations whose samples cost much the same; where
            it is ``None``, cores don't show it.
        usable_cores: Of the machine, which are all that it can have if others leave.

    Returns:
        ``None`` where no trial shows it.
    """
    waiting, computing = list[tuple[float, float]](), list[tuple[float, float]]()
    for trial, seen, wait in trials:
        own, available = trial.usage.own_cpu_cores, trial.usage.available_cpu_cores
        full = own is not None and available is not None and own > 0.9 * available
        if wait is not None and not full:
            waiting.append((room_beside(wait + _in_step(trial)), seen.log_sd))
        work = log_work(trial)
        if least_work is not None and work is not None and own and available and not trial.ranks:
            others = trial.usage.taken_cores(usable_cores)  # which may leave it theirs
            room = math.log(max(1.0, (available + others) / own))
            computing.append((room + work - least_work, seen.log_sd))
    rooms = []
    for some, beside in ((waiting, 0.0), (computing, COMPUTING_LOG_SD)):
        if some:
            mean = math.fsum(room for room, _ in some) / len(some)
            error = math.hypot(*(sd for _, sd in some)) / len(some)
            rooms.append(Gap(mean - turnover, math.hypot(error, beside), TAIL_DF))
    return min(rooms, key=lambda room: room.most, default=None)


def _in_step(trial: Trial) -> float:
    """Share of the time in which its step waits for what other settings may spare it.

    Ranks for batches of others at a barrier, of which the slowest waits least; any loader for
    copies of batches that it doesn't pin.
    """
    slowest = min(trial.ranks, key=lambda rank: rank.pace, default=None)
    held = 0.0 if slowest is None else slowest.barrier_fraction or 0.0
    copies, rate = trial.copies, trial.batches_per_s
    if copies is None or rate is None or trial.config.pin_memory:
        return held
    return held + rate.value * (copies.exposed_s or 0.0)


def log_work(trial: Trial) -> float | None:
    """Logarithm of the CPU seconds a sample takes on cores of one speed; ``None`` where unknown.

    Fewer workers may take less, of which each has more of the caches.
    """
    own, rate, speed = trial.usage.own_cpu_cores, trial.samples_per_s, trial.usage.core_speed
    if own is None or own <= 0 or rate is None or rate.value <= 0:
        return None
    fast = math.log(speed) if speed is not None and speed > 0 else 0.0
    return math.log(own / rate.value) + SPEED_EXPONENT * fast


def room_beside(wait: float) -> float:
    """By how much a log rate would grow if its step never waited."""
    return -math.log1p(-min(wait, 1 - 1e-9))


def believe(observations: Sequence[ObservedRate], expected: ExpectedRates | None = None) -> Belief:
    """What to believe of all that was measured or predicted."""
    expected = expected or ExpectedRates(log_rates={}, log_sd=_UNKNOWN_LOG_SD)
    if not observations and not expected.log_rates:
        raise ValueError("a belief about nothing")
    return _believed(tuple(observations), expected)


@functools.lru_cache(maxsize=8)  # views of one run ask alike, and thousands of trials take seconds
def _believed(observations: Sequence[ObservedRate], expected: ExpectedRates) -> Belief:
    observations = _as_uneven(_as_others_are(observations), expected)
    groups = _groups(observations, expected)
    found = _Fit(observations, groups, expected)
    if (plateau := _bounded(observations, expected)) is None:
        return found.belief()
    bounded, shown = plateau
    other = _Fit(observations, groups, bounded)
    # How much likelier the first is, as a logarithm.
    over = max(other.cost - found.cost, -math.inf if shown else 0.0) + math.log(_PLATEAU_ODDS)
    one, two = (found, other) if over >= 0 else (other, found)
    against = math.exp(-abs(over))  # which of hundreds of trials is 0 rather than too large
    return one.belief().unless(two.belief(), against / (1 + against))


class _Fit:
    """The weighted least squares, weights by iteration.

    ``cost`` is the negative logarithm of how likely all of it is where the rounds ended, but for a
    constant, if predictions are as sure as they claim.
    """

    def __init__(
        self,
        observations: Sequence[ObservedRate],
        groups: Mapping[str, str],
        expected: ExpectedRates,
    ) -> None:
        self._groups = groups
        self._predicted: dict[str, _Predicted] = {}
        whole = {o.key for o in observations if o.whole_epochs}
        for key, steady in expected.log_rates.items():
            log_rate = expected.epoch_log_rates.get(key, steady) if key in whole else steady
            beside = expected.beside_limit.get(key, 0.0)
            found = _Predicted(log_rate, expected.families.get(key), beside**2)
            self._predicted.setdefault(groups[key], found)
        most = max((o.batches for o in observations), default=0)
        open_ = max(0.0, 1 / most - 1 / expected.epoch_batches) if most else 0.0
        self._sampled_sd = expected.batch_cv * math.sqrt(open_)
        self._claimed = expected.log_sd
        # Of how far off predictions may be, in the first round: from a narrow one the
        # rounds may end where a few trials that agree are all taken for disturbed.
        self._known_sd = max(self._claimed, 1.0)
        self._seen = observations
        # Wide at first, too: that all are off together may explain what each by itself does.
        first_sd = _LEVEL_LOG_SD * self._known_sd / self._claimed
        self._common_sd = dict.fromkeys((_LEVEL, _APART), first_sd)
        blocks = sorted({o.block for o in observations})
        # Neighboring blocks are merged beyond this many, so that long runs stay quick to judge.
        merged = max(1, math.ceil(len(blocks) / 32))
        self._place = {block: place // merged for place, block in enumerate(blocks)}
        self._blocks = len(set(self._place.values()))
        seen = {groups[o.key] for o in observations}
        places = {p.place for group, p in self._predicted.items() if group in seen}
        self._held = set(map(math.log2, expected.calibrated))
        self._nodes = sorted({place for place in places if place is not None} | self._held)
        # The variance by what others take, gathered up to each place: where it says no more of
        # twice as many, these are off by something else as well.
        # Gathered where trials are: what else is asked for leaves what these say as it is.
        self._others = list[tuple[float, float]]()
        last, variance = math.inf, 0.0
        # One of which it says nothing is off by what is gathered, too.
        taken = dict.fromkeys(self._nodes, 0.0)
        taken |= {math.log2(workers): sd for workers, sd in expected.beside_others.items()}
        for place, sd in sorted(taken.items()):
            grown = variance + _PER_DOUBLING * sd**2 * max(0.0, place - last)
            self._others.append((place, max(grown, sd**2)))
            if sd and place in self._nodes:
                last, variance = self._others[-1]
        self._first = _BLOCKS + self._blocks
        self._size = self._first + len(self._nodes)
        self._steps = [1.0] * len(self._nodes)  # trust in how errors go on from one to the next
        usual = _usual_speeds(observations)
        speeds = (
            0.0 if o.log_speed is None else o.cpu_share * (o.log_speed - usual[o.busy])
            for o in observations
        )
        # What each has of what all have in common, but for its prediction's part.
        self._rows = [
            {_SPEED: speed, _NOISE: o.cpu_share * taken, _BLOCKS + self._place[o.block]: 1.0}
            for o, speed, taken in zip(observations, speeds, _taken(observations), strict=True)
        ]
        self._by_group: dict[str, list[int]] = {group: [] for group in groups.values()}
        for number, o in enumerate(observations):
            self._by_group[groups[o.key]].append(number)
        self._weights = [1 / o.log_sd**2 for o in observations]
        self._trust = dict.fromkeys(self._by_group, 1.0)  # in what was predicted of each
        # What blocks may drift by in the first round.
        self._block_variance = 0.2**2
        self._scale = 1.0
        self._df, self._predicted_df = TAIL_DF, TAIL_DF
        measured = [group for group, numbers in self._by_group.items() if numbers]
        for _ in range(8):
            self.cost = self._reweigh(*self._solve(measured))

    def belief(self) -> Belief:
        """What follows for all of them."""
        levels, common, found = self._solve(self._by_group)
        # What others surely made of disturbed trials: what they may have made hides none of these.
        noise = abs(found[_NOISE]) - t_quantile(0.975, self._df) * math.sqrt(common[_NOISE][_NOISE])
        sure = [*found]
        sure[_NOISE] = math.copysign(max(0.0, noise), found[_NOISE])
        for group, level in levels.items():
            unlike = min((self._seen[n].unlike_sd for n in self._by_group[group]), default=0.0)
            least = unlike**2
            if numbers := self._by_group[group]:
                # An interval holds what its own trials gave, though all else outvotes few of them.
                weights = [self._weights[n] for n in numbers]
                off = statistics.fmean(self._own(numbers, sure), weights) - _at(level, found)
                sd = off / t_quantile(0.975, self._df)
                least = max(least, sd**2 - _variance(level.slopes, common))
            if least > level.variance:
                levels[group] = dataclasses.replace(level, variance=least)
        mean = {group: _at(level, found) for group, level in levels.items()}
        blocks = {
            group: len({self._place[self._seen[n].block] for n in numbers})
            for group, numbers in self._by_group.items()
        }
        longest = max((o.waited for o in self._seen), default=1.0)
        waited = {
            group: statistics.fmean([self._seen[n].waited for n in numbers] or [longest])
            for group, numbers in self._by_group.items()
        }
        return Belief(
            log_rates={key: mean[group] for key, group in self._groups.items()},
            groups=self._groups,
            blocks={key: blocks[group] for key, group in self._groups.items()},
            df=self._df,
            predicted_df=min(self._df, self._predicted_df),
            _levels=levels,
            _common=common,
            _sampled_sd={k: waited[each] * self._sampled_sd for k, each in self._groups.items()},
        )

    def _own(self, numbers: Sequence[int], found: Sequence[float]) -> list[float]:
        """Log rates of some trials, without what all have in common."""
        return [
            self._seen[n].log_rate - math.fsum([found[i] * a for i, a in self._rows[n].items()])
            for n in numbers
        ]

    def _prior(self, group: str) -> tuple[float, dict[int, float], float]:
        """What was predicted of a group: its log rate, its part of the common, its precision."""
        if group not in self._predicted:
            return 0.0, {}, 1 / _UNKNOWN_LOG_SD**2
        found = self._predicted[group]
        part = {_LEVEL: 1.0, _APART: 1.0} if found.workers == 0 else {_LEVEL: 1.0}
        if found.place is None or not self._nodes:
            return found.log_rate, part, self._trust[group] / self._known_sd**2
        nodes, gathered = [*map(self._walked, self._nodes)], self._walked(found.place)
        # What others take of it, and less of the next ones, ties it to none of these.
        after = bisect.bisect_left(self._nodes, found.place)
        apart = max(0.0, gathered - nodes[after]) if after < len(nodes) else 0.0
        shares, open_ = _between(nodes, gathered - apart)
        part |= {self._first + node: share for node, share in shares.items()}
        own = _OWN_SHARE / self._trust[group] * self._known_sd**2
        return found.log_rate, part, 1 / (own + open_ + apart + found.variance)

    def _walked(self, place: float, known_sd: float | None = None) -> float:
        """The variance that errors have gathered on their way from one worker to a place.

        By how they change with each doubling, as far off as predictions are or as ``known_sd`` has
        it, and by what others take there and not before.
        """
        beside = bisect.bisect_right(self._others, (place, math.inf))
        taken = self._others[beside - 1][1] if beside else 0.0
        sd = self._known_sd if known_sd is None else known_sd
        return (1 - _OWN_SHARE) * sd**2 * _PER_DOUBLING * place + taken

    def _beforehand(self) -> tuple[list[list[float]], list[float]]:
        """Precision of what all have in common before anything is seen, and that times its mean."""
        size = self._size
        matrix = [[0.0] * size for _ in range(size)]
        right = [0.0] * size
        for place, sd in self._common_sd.items():
            matrix[place][place] = 1 / sd**2
        matrix[_SPEED][_SPEED] = 1 / SPEED_EXPONENT_SD**2
        right[_SPEED] = SPEED_EXPONENT / SPEED_EXPONENT_SD**2
        matrix[_NOISE][_NOISE] = 1 / NOISY_LOG_SD**2
        for place in range(_BLOCKS, _BLOCKS + self._blocks):
            matrix[place][place] = 1 / self._block_variance
        for step, spread in enumerate(self._spreads()):
            place, weight = self._first + step, self._steps[step] / spread**2
            matrix[place][place] += weight
            if self._nodes[step] in self._held:
                matrix[place][place] += 1 / (_OWN_SHARE * self._known_sd**2)
            if step:
                matrix[place - 1][place - 1] += weight
                matrix[place - 1][place] -= weight
                matrix[place][place - 1] -= weight
        return matrix, right

    def _solve(
        self, groups: Iterable[str]
    ) -> tuple[dict[str, _Level], list[list[float]], list[float]]:
        """Levels of these groups, and covariance and mean of what all have in common.

        Of that, groups that were not measured say nothing.
        """
        matrix, right = self._beforehand()
        parts: dict[str, _Level] = {}
        for group in groups:
            log_rate, part, precision = self._prior(group)
            shown, offset = 0.0, 0.0
            own: dict[int, float] = {}
            for n in self._by_group[group]:
                weight, row = self._weights[n] / self._scale, self._rows[n]
                gap = self._seen[n].log_rate - log_rate
                shown += weight
                offset += weight * gap
                for i, a in row.items():
                    own[i] = own.get(i, 0.0) + weight * a
                    right[i] += weight * a * gap
                    line = matrix[i]
                    for j, b in row.items():
                        line[j] += weight * a * b
            for i, a in part.items():  # which all of them have alike
                right[i] += a * offset
                for j, b in own.items():
                    matrix[i][j] += a * b
                    matrix[j][i] += a * b
                for j, b in part.items():
                    matrix[i][j] += shown * a * b
            own |= {i: shown * a for i, a in part.items()}
            total = precision + shown
            for i, a in own.items():
                right[i] -= a * offset / total
                for j, b in own.items():
                    matrix[i][j] -= a * b / total
            parts[group] = _Level(
                fixed=log_rate + offset / total,
                slopes=_added(part, own, -1 / total),
                variance=1 / total,
            )
        common = _inverted(matrix)
        found = [math.fsum(a * b for a, b in zip(row, right, strict=True)) for row in common]
        return parts, common, found

    def _spreads(self) -> list[float]:
        """Standard deviation of the first node's error, and of what each differs from the last."""
        walked = [*map(self._walked, self._nodes)]
        apart = [b - a for a, b in itertools.pairwise(walked)]
        first = (1 - _OWN_SHARE) * self._known_sd**2
        return [math.sqrt(each) for each in [first, *apart][: len(self._nodes)]]

    def _reweigh(
        self,
        levels: Mapping[str, _Level],
        common: Sequence[Sequence[float]],
        found: Sequence[float],
    ) -> float:
        """Weights, spread and trust as the residuals have them, and what these cost."""
        squares, missed, shown = 0.0, 0.0, 0.0
        repeated = any(len(numbers) > 1 for numbers in self._by_group.values())
        known, costs = self._known_sd, list[float]()

        def trust(before: float, square: float, open_: float, claimed: float) -> float:
            # ``claimed``: the variance that these are in parts of, over what was claimed of it.
            # What was measured shows of an error counts, and what that leaves open does not: a
            # prediction that nothing is held against is no good one.
            nonlocal missed, shown
            whole = square + open_
            costs.append(_surprise(whole * claimed, _MODEL_TAIL_DF))
            missed += _trust(whole) * square * known**2
            shown += max(0.0, 1 - before * open_)
            return _trust(whole)

        for group in levels:
            level, numbers = _at(levels[group], found), self._by_group[group]
            if group in self._predicted:
                log_rate, part, _ = self._prior(group)
                off = level - log_rate - math.fsum(found[i] * a for i, a in part.items())
                apart = _added(levels[group].slopes, part, -1.0)
                open_ = _variance(apart, common) + levels[group].variance
                given = self._predicted[group]
                share = 1 if given.place is None else _OWN_SHARE
                one = known**2 * share + given.variance
                claimed = self._claimed**2 * share
                costs.append(math.log1p(given.variance / claimed) / 2)
                claimed += given.variance
                before = self._trust[group]
                self._trust[group] = trust(before, off**2 / one, open_ / one, one / claimed)
            # About what they give themselves: that they are not as predicted is no noise of theirs.
            own, weights = self._own(numbers, found), [self._weights[n] for n in numbers]
            middle = statistics.fmean(own, weights)
            for n, each in zip(numbers, own, strict=True):
                error = (each - level) / self._seen[n].log_sd
                costs.append(_surprise(error**2 / self._scale, TAIL_DF))
                square = ((each - middle) / self._seen[n].log_sd) ** 2
                doubt = (TAIL_DF + 1) / (TAIL_DF + square / self._scale)
                if len(own) == 1:
                    # Where nothing was repeated, none shows the spread, nor outvotes another: each
                    # is as unsure as its tails are wide.
                    doubt = 1.0 if repeated else (TAIL_DF - 2) / TAIL_DF
                self._weights[n] = doubt / self._seen[n].log_sd ** 2
                squares += doubt * square
        for step, spread in enumerate(self._spreads()):
            place = self._first + step
            apart = {place: 1.0, place - 1: -1.0} if step else {place: 1.0}
            off = math.fsum(found[i] * a for i, a in apart.items())
            open_ = _variance(apart, common) / spread**2
            claimed = (spread * self._claimed / known) ** 2
            if step:
                pair = self._nodes[step - 1 : step + 1]
                before, after = (self._walked(each, self._claimed) for each in pair)
                plain = (1 - _OWN_SHARE) * self._claimed**2 * _PER_DOUBLING * (pair[1] - pair[0])
                claimed = after - before
                costs.append(math.log(claimed / plain) / 2)
            whole = spread**2 / claimed
            self._steps[step] = trust(self._steps[step], (off / spread) ** 2, open_, whole)
        count = self._blocks
        free = max(0, len(self._seen) - sum(map(bool, self._by_group.values())) - max(0, count - 1))
        self._df = TAIL_DF + free
        self._scale = (TAIL_DF + squares) / self._df if free else 1.0
        for place in self._common_sd:
            square = (found[place] / _LEVEL_LOG_SD) ** 2
            costs.append(_surprise(square, TAIL_DF))
            self._common_sd[place] = _LEVEL_LOG_SD / math.sqrt(_trust(square))
        stated = _MODEL_TAIL_DF * self._claimed**2
        # A calibration that is off by far more than any was knows no better how they differ.
        missed += (self._claimed * found[_LEVEL] / _LEVEL_LOG_SD) ** 2
        self._predicted_df = _MODEL_TAIL_DF + shown
        self._known_sd = math.sqrt((stated + missed) / (_MODEL_TAIL_DF + shown))
        drift = sum(found[i] ** 2 + common[i][i] for i in range(_BLOCKS, _BLOCKS + count))
        # What a quiet machine drifts from one block to another, expected before any is seen.
        self._block_variance = (TAIL_DF * 0.03**2 + drift) / (TAIL_DF + count)
        return math.fsum(costs)


def _surprise(square: float, df: float) -> float:
    """Negative log density of Student's t at the square of so many scales, but for a constant."""
    return (df + 1) / 2 * math.log1p(square / df)


def _trust(square: float) -> float:
    """Weight of a prediction that is off by the square of so many standard deviations."""
    return (_MODEL_TAIL_DF + 1) / (_MODEL_TAIL_DF + square)


def _added(one: Mapping[int, float], other: Mapping[int, float], factor: float) -> dict[int, float]:
    """The sum of some slopes and of others times a factor."""
    return {i: one.get(i, 0.0) + factor * other.get(i, 0.0) for i in {**one, **other}}


def _variance(slopes: Mapping[int, float], common: Sequence[Sequence[float]]) -> float:
    """Variance of what follows what all have in common by some slopes."""
    pairs = itertools.product(((i, a) for i, a in slopes.items() if a), repeat=2)
    return max(0.0, math.fsum(a * common[i][j] * b for (i, a), (j, b) in pairs))


def _between(nodes: Sequence[float], place: float) -> tuple[dict[int, float], float]:
    """What the errors at some nodes say of the error at a place between or beyond them.

    Each place by the variance that errors gather up to it. The share of each node's error in it,
    and the variance that stays open: those of a Brownian bridge.
    """
    right = bisect.bisect_left(nodes, place)
    if right < len(nodes) and nodes[right] == place:
        return {right: 1.0}, 0.0
    if right in (0, len(nodes)):
        near = min(right, len(nodes) - 1)
        return {near: 1.0}, abs(place - nodes[near])
    before, after = place - nodes[right - 1], nodes[right] - place
    whole = before + after
    return {right - 1: after / whole, right: before / whole}, before * after / whole


def _at(level: _Level, common: Sequence[float]) -> float:
    return level.fixed + math.fsum(a * common[i] for i, a in level.slopes.items())


def _bounded(
    observations: Iterable[ObservedRate], expected: ExpectedRates
) -> tuple[ExpectedRates, bool] | None:
    """Predictions as they would be if workers got no more served than the most that was measured.

    And whether the rates may speak for it: not if all that should exceed it gained at least half of
    what was predicted, as a logarithm, over fewer, measured or calibrated. Such may be workers that
    only gain more slowly, and go on to gain, which explains them as well: then it remains as likely
    as it was.

    Where what batches wait for serves only so many at once, its rate bounds that of any number of
    workers (asymptotic bounds, Denning & Buzen 1978), and the few of a calibration, who never meet
    there, don't show it. It isn't below what was predicted of those. ``None`` where no measured
    ones that should exceed it gained less than was predicted. Those that compute half of the time
    say nothing of it: cores may be what holds these back, and others may leave more of them.

    Such a limit is no sharp one: where workers would ask for as much as it gives, they may get the
    root of 2 less, and of what is further from it ever less than that. With 0.3 of this as a
    standard deviation, 95 % intervals of numbers that weren't measured hold in 96 to 99 % of drawn
    plateaus, sharp or not; without, in 78 to 98 %.
    """
    logs, families, epochs = expected.log_rates, expected.families, expected.epoch_log_rates
    over = {key: epochs[key] - log for key, log in logs.items() if key in epochs}
    few = {key: log for key, log in logs.items() if families.get(key) in expected.calibrated}
    seen = dict[str, list[float]]()
    for o in observations:
        if o.key in logs and families.get(o.key, 0) and o.cpu_share < 0.5:
            turnover = over.get(o.key, 0.0) if o.whole_epochs else 0.0
            seen.setdefault(o.key, []).append(o.log_rate - turnover)
    means = {key: statistics.fmean(each) for key, each in seen.items()}
    bound = max([*few.values(), *means.values()], default=math.inf)
    gains = [
        (mean - log, logs[key] - logs[other])
        for key, mean in means.items()
        for other, log in {**few, **means}.items()
        if families[other] < families[key] and logs[key] > max(bound, logs[other]) + expected.log_sd
    ]
    if not few or not any(gain < most for gain, most in gains):
        return None
    shown = any(gain <= most / 2 for gain, most in gains)
    rates = {key: min(log, bound) if families.get(key) else log for key, log in logs.items()}
    epochs = {key: rates[key] + log for key, log in over.items()}
    near = {
        key: 0.3 * math.log1p(math.exp(-2 * abs(log - bound))) / 2
        for key, log in logs.items()
        if families.get(key) and key not in few
    }
    # What others take of the rest isn't missing where the limit gives less.
    below = {families.get(key) for key, log in logs.items() if log < bound}
    others = {each: sd for each, sd in expected.beside_others.items() if each in below}
    bounded = dataclasses.replace(
        expected,
        log_rates=rates,
        epoch_log_rates=epochs,
        beside_limit=near,
        beside_others=others,
    )
    return bounded, shown


def _groups(observations: Iterable[ObservedRate], expected: ExpectedRates) -> dict[str, str]:
    """The group of each configuration; one that is in two stands alone."""
    groups: dict[str, str] = {}
    steady = True
    for o in observations:
        group = o.group or o.key
        groups[o.key] = group if groups.get(o.key, group) == group else o.key
        steady = steady and not o.whole_epochs
    for key in expected.log_rates:
        groups.setdefault(key, expected.groups.get(key, key) if steady else key)
    return groups


class _Predicted(NamedTuple):
    """What was predicted of a group."""

    log_rate: float
    workers: int | None  # ``num_workers``, if known
    variance: float  # of it alone, beside what all predictions have

    @property
    def place(self) -> float | None:
        """Where its error is among the others': a binary logarithm, or ``None`` for nowhere."""
        return math.log2(self.workers) if self.workers else None


def _kept_off(observations: Sequence[ObservedRate]) -> list[float | None]:
    """By how much more others kept each off the cores that it would use than they usually would.

    As a natural logarithm. Usual is what they leave in the mean of all trials. A loader that has
    all that it could use is not slower beside others, and that it was not disturbed is no sign that
    they were gone. ``None`` where it isn't known: nobody looked, or what disturbed it doesn't show
    there, as others that use up the same quota don't.

    What a loader gets grows with its threads at the others' expense, so that what these took is its
    configuration's own doing: how many wanted cores is not, if they were counted.
    """
    counted = any(o.others_wanted is not None for o in observations)

    def left_of(o: ObservedRate) -> float | None:
        if o.log_left is None or (o.noisy and o.log_left > -_UNSEEN):
            return None
        # In a window that no look was in, and beside what looks missed, they took as much.
        wanted = max(-math.expm1(o.log_left), o.others_wanted or 0.0)
        return -math.log1p(wanted) if counted else o.log_left

    left = [left_of(o) for o in observations]
    known = [each for each in left if each is not None]
    usual = math.fsum(known) / max(1, len(known))
    return [
        None if each is None else min(0.0, usual - o.log_wanted) - min(0.0, each - o.log_wanted)
        for o, each in zip(observations, left, strict=True)
    ]


def _as_others_are(observations: Sequence[ObservedRate]) -> Sequence[ObservedRate]:
    """Disturbed ones as unsure as others are unsteady, as far as their trials show it.

    What others left is seen in each window. Where it hardly differs, those windows are like any
    other; what a neighbor that comes and goes would make of them counts as ``TAIL_DF`` of them.
    """
    kept = _kept_off(observations)
    pairs = zip(observations, kept, strict=True)
    known = [each for o, each in pairs if o.noisy and each is not None]
    if len(known) < 2:
        return observations
    squares, df = math.fsum(each**2 for each in known), TAIL_DF + len(known) - 1

    def sd(o: ObservedRate) -> float:
        learned = math.sqrt((TAIL_DF * o.log_sd**2 + o.cpu_share**2 * squares) / df)
        return min(max(learned, o.steady_log_sd), _MOST_LOG_SD)

    return [
        dataclasses.replace(o, log_sd=sd(o)) if o.noisy and each is not None else o
        for o, each in zip(observations, kept, strict=True)
    ]


def _as_uneven(
    observations: Sequence[ObservedRate], expected: ExpectedRates
) -> Sequence[ObservedRate]:
    """Those of few batches as unsure as these are unlike the batches of the longest window.

    All trials load the same samples in the same order, so that repeats don't average that out.
    """
    longest = max((o.batches for o in observations), default=0)
    most = min(longest, expected.epoch_batches)

    def unlike(o: ObservedRate) -> float:
        open_ = max(0.0, 1 / o.batches - 1 / most) if o.batches else 0.0
        return expected.batch_cv * o.waited * math.sqrt(open_)

    pairs = ((o, min(unlike(o), _MOST_LOG_SD)) for o in observations)
    return [dataclasses.replace(o, log_sd=max(o.log_sd, sd), unlike_sd=sd) for o, sd in pairs]


def _taken(observations: Sequence[ObservedRate]) -> list[float]:
    """The same in halvings of what others leave; where it is unknown, noisy ones are one more."""
    kept = _kept_off(observations)
    pairs = zip(observations, kept, strict=True)
    taken = [float(o.noisy) if each is None else each / math.log(2) for o, each in pairs]
    unknown = sum(o.noisy for o, each in zip(observations, kept, strict=True) if each is None)
    return [each - unknown / max(1, len(taken)) for each in taken]


def _usual_speeds(observations: Iterable[ObservedRate]) -> dict[int, float]:
    """Usual log speed of the cores, by how many of them the loader keeps busy.

    Cores that are busy together slow each other down (hyper-threads, clock rates): that is the
    configuration's own doing, not the machine's. Where few trials show it, it is that of all.
    """
    seen: dict[int, list[float]] = {}
    for o in observations:
        seen.setdefault(o.busy, []).extend([] if o.log_speed is None else [o.log_speed])
    known = [speed for some in seen.values() for speed in some]
    all_ = math.fsum(known) / len(known) if known else 0.0
    # So many trials the speed of all counts for, beside that of those with as many busy cores.
    return {
        busy: all_ + math.fsum(speed - all_ for speed in some) / (len(some) + 2.0)
        for busy, some in seen.items()
    }


@functools.lru_cache(maxsize=2 * _JOINT)
def _normals(column: int) -> Sequence[float]:
    """Draws of one standard normal variable, the same each time: one from each part as likely."""
    normal = statistics.NormalDist()
    drawn = [normal.inv_cdf((place + 0.5) / _DRAWS) for place in range(_DRAWS)]
    random.Random(column).shuffle(drawn)
    return drawn


@functools.lru_cache(maxsize=8)
def _spreads(df: float) -> Sequence[float]:
    """Times its error that normal draws are off as Student's t has it, least first.

    The root of ``df`` over chi-square. Those of other degrees of freedom are as unlikely in the
    same draw: that errors are larger than they look is so of all of them at once.
    """
    rng, parts = random.Random(0), 4
    drawn = sorted(df / (2 * rng.gammavariate(df / 2, 1.0)) for _ in range(parts * _DRAWS))
    return [math.sqrt(each) for each in drawn[parts // 2 :: parts]]


def _mixed(parts: Iterable[tuple[float, Sequence[float]]]) -> list[float]:
    """The sum of some columns of draws, each times a factor."""
    total = [0.0] * _DRAWS
    for factor, column in parts:
        if factor:
            total = [sum_ + factor * each for sum_, each in zip(total, column, strict=True)]
    return total


def _cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """The lower factor of a positive matrix, row by row; of what doesn't vary at all it is 0."""
    factor = list[list[float]]()
    for row in matrix:
        found: list[float] = []
        for other in factor:
            rest = row[len(found)] - sum(map(operator.mul, found, other))
            found.append(rest / other[-1] if other[-1] else 0.0)
        rest = row[len(found)] - sum(map(operator.mul, found, found))
        found.append(math.sqrt(max(rest, 1e-12 * row[len(found)])))
        factor.append(found)
    return factor


def _inverted(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Inverse of a positive definite matrix: that of its Cholesky factor, times itself."""
    size, factor = len(matrix), _cholesky(matrix)
    columns: list[list[float]] = []  # of the factor's inverse, from the diagonal on
    for k in range(size):
        column = [1 / factor[k][k]]
        for row in factor[k + 1 :]:
            column.append(-sum(map(operator.mul, row[k:-1], column)) / row[-1])
        columns.append(column)
    result = [[0.0] * size for _ in range(size)]
    for i, column in enumerate(columns):
        for j in range(i + 1):
            result[i][j] = result[j][i] = sum(map(operator.mul, column, columns[j][i - j :]))
    return result
