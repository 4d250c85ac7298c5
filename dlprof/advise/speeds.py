"""What each configuration is worth: one rate for each, that a training run would see."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.effective import Rates, Situation, rates_of
from dlprof.records import Estimate
from dlprof.stats import Belief, believe, chance, observe, shortfall, turnovers

_TURNOVER_SPREAD = 0.25
"""Expected relative standard deviation of one epoch turnover: starting the same workers took 32
to 53 ms on a quiet machine, and it is timed once in a trial."""

_LEAST_FACTOR = 1e-20
"""Turnovers that would leave less are nonsense, but must not overflow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpochFactor:
    """What epoch turnover leaves of a configuration's steady rate.

    Attributes:
        log: Natural logarithm of the factor.
        log_sd: Its standard error.
    """

    log: float
    log_sd: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Steady rates as they are believed to be, times what epoch turnover leaves of them.

    The two are kept apart because configurations that differ only in ``persistent_workers`` have
    the same steady rate: what tells them apart is the turnover, not the noise of their rates.

    Attributes:
        belief: The steady rates, from what was measured and what a model predicted.
        epochs: Per configuration, over epochs of the target's length.
        rates: Each trial's rates in the situation that counts, by trial id.
    """

    belief: Belief
    epochs: Mapping[str, EpochFactor]
    rates: Mapping[str, Rates]

    def waits(self, candidate: Candidate) -> list[float]:
        """Share of time that the step waits, of each trial that tells."""
        waits = [self.rates[trial.id].wait_fraction for trial in candidate.trials]
        return [wait for wait in waits if wait is not None]

    def wait_fraction(self, candidate: Candidate) -> float | None:
        """Mean share of time that the step waits; ``None`` without a step."""
        waits = self.waits(candidate)
        return statistics.fmean(waits) if waits else None

    def rate(self, key: str) -> Estimate:
        """The one rate of a configuration, over whole epochs where their length is known."""
        return self._widened(self.belief.rate(key), self.epochs[key].log, self.epochs[key].log_sd)

    def ratio(self, key: str, other: str) -> Estimate:
        """The rate of one over that of another, with the interval of their quotient."""
        if key == other:
            return Estimate(value=1.0, low=1.0, high=1.0)
        one, two = self.epochs[key], self.epochs[other]
        error = math.hypot(one.log_sd, two.log_sd)
        return self._widened(self.belief.ratio(key, other), one.log - two.log, error)

    def chance(self, key: str, other: str, factor: float = 1.0) -> float:
        """Probability that one is more than a factor as fast as another."""
        return chance(self.gap(key, other), math.log(factor), self.belief.df)

    def gap(self, key: str, other: str) -> tuple[float, float]:
        """By how much the log rate of one is above that of another, and the standard error."""
        one, two = self.epochs[key], self.epochs[other]
        error = math.hypot(self.belief.error(key, other), one.log_sd, two.log_sd)
        return self.log_speed(key) - self.log_speed(other), 0.0 if key == other else error

    def shortfall(self, key: str, others: Iterable[str]) -> float:
        """By how much the log rate of one may be below the best of others, at most."""
        return shortfall((self.gap(each, key) for each in others), self.belief.df)

    def fastest(self, among: Sequence[Candidate]) -> Candidate:
        """The fastest of some, which must not be none; the first of equals."""
        return max(among, key=lambda each: self.log_speed(each.key))

    def log_speed(self, key: str) -> float:
        """Natural logarithm of a configuration's rate."""
        return self.belief.log_rates[key] + self.epochs[key].log

    def _widened(self, steady: Estimate, log: float, log_sd: float) -> Estimate:
        """An estimate times a factor that is itself known with an error."""
        value = steady.value * math.exp(log)
        if not steady.low or not steady.high:
            return Estimate(value=value)
        error = 2 * log_sd  # two of them make 95 % of what is assumed rather than estimated
        low = math.exp(-math.hypot(math.log(steady.value / steady.low), error))
        high = math.exp(math.hypot(math.log(steady.high / steady.value), error))
        return Estimate(value=value, low=value * low, high=value * high)


def compare_speeds(candidates: Sequence[Candidate], situation: Situation) -> Speeds:
    """What all configurations are worth, those that were only predicted among them.

    Args:
        candidates: With at least one rate each.
        situation: What the settings are wanted for.
    """
    trials = [trial for candidate in candidates for trial in candidate.trials]
    turns = turnovers(trials)
    rates = {
        trial.id: rates_of(trial, situation, turns.get(trial.config.turnover_group))
        for trial in trials
    }
    observed = (
        observe(trial, rates[trial.id].samples_per_s, wait=rates[trial.id].wait_fraction)
        for trial in trials
    )
    expected = situation.expected
    epochs = {} if expected is None else expected.epoch_log_rates
    known = {
        key: EpochFactor(log=epochs.get(key, steady) - steady, log_sd=0.0)
        for key, steady in ({} if expected is None else expected.log_rates).items()
    }
    return Speeds(
        belief=believe([each for each in observed if each is not None], expected),
        epochs=known | {each.key: _epoch_factor(each, rates) for each in candidates},
        rates=rates,
    )


def _epoch_factor(candidate: Candidate, rates: Mapping[str, Rates]) -> EpochFactor:
    """The mean over trials; its error follows from that of the turnover's share of the epoch."""
    factors = [max(_LEAST_FACTOR, rates[trial.id].epoch_factor) for trial in candidate.trials]
    log = math.fsum(map(math.log, factors)) / len(factors)
    share = 1 - math.exp(log)
    return EpochFactor(log=log, log_sd=share * _TURNOVER_SPREAD / math.sqrt(len(factors)))
