"""Configurations compared by the rate that a training run would see."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.effective import Rates, Situation, rates_of
from dlprof.records import Estimate
from dlprof.stats import BlockFit, fit_blocks, fit_expecting, observe, turnovers

_TURNOVER_SPREAD = 0.5
"""Expected relative standard deviation of one epoch turnover: starting the same workers took 32
to 53 ms on a quiet machine, and it is timed once in a trial."""

_LEAST_FACTOR = 1e-20
"""Turnovers that would leave less are nonsense, but must not overflow."""

_ERRORS_TO_EACH_SIDE = 2.0
"""Standard errors in a 95 % interval, of figures whose spread is assumed rather than estimated."""


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
    """Steady rates, compared in blocks, times what epoch turnover leaves of them.

    The two are kept apart because configurations that differ only in ``persistent_workers`` have
    the same steady rate: what tells them apart is the turnover, not the noise of their rates.

    Attributes:
        steady: The steady rates as measured.
        judged: The same in the light of what a model foretold, by which they are compared.
        epochs: Per configuration, over epochs of the target's length.
        rates: Each trial's rates in the situation that counts, by trial id.
    """

    steady: BlockFit
    judged: BlockFit
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

    def ratio(self, candidate: Candidate, other: Candidate) -> Estimate:
        """Rate of one over that of another, to choose by: what was predicted weighs in.

        Over whole epochs where their length is known.
        """
        return self._ratio(self.judged, candidate, other)

    def seen(self, candidate: Candidate, other: Candidate) -> Estimate:
        """The same to be told: by what was measured alone."""
        return self._ratio(self.steady, candidate, other)

    def _ratio(self, fit: BlockFit, candidate: Candidate, other: Candidate) -> Estimate:
        if candidate.key == other.key:
            return Estimate(value=1.0, low=1.0, high=1.0)
        steady = fit.ratio(candidate.key, other.key)
        one, two = self.epochs[candidate.key], self.epochs[other.key]
        between = math.exp(one.log - two.log)
        error = _ERRORS_TO_EACH_SIDE * math.hypot(one.log_sd, two.log_sd)
        if steady.low is None or steady.high is None or not steady.low:
            return Estimate(value=steady.value * between)
        low = math.exp(-math.hypot(math.log(steady.value / steady.low), error))
        high = math.exp(math.hypot(math.log(steady.high / steady.value), error))
        value = steady.value * between
        return Estimate(value=value, low=value * low, high=value * high)

    def fastest(self, among: Sequence[Candidate]) -> Candidate:
        """The fastest of some, which must not be none; the first of equals."""
        return max(among, key=self.log_speed)

    def log_speed(self, candidate: Candidate) -> float:
        """Natural logarithm of its rate, over whole epochs where their length is known."""
        return self.judged.log_rates[candidate.key] + self.epochs[candidate.key].log


def compare_speeds(candidates: Sequence[Candidate], situation: Situation) -> Speeds:
    """Compare all candidates.

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
    observed = (observe(trial, rates[trial.id].samples_per_s) for trial in trials)
    seen = [each for each in observed if each is not None]
    return Speeds(
        steady=fit_blocks(seen),
        judged=fit_expecting(seen, situation.expected),
        epochs={each.key: _epoch_factor(each, rates) for each in candidates},
        rates=rates,
    )


def _epoch_factor(candidate: Candidate, rates: Mapping[str, Rates]) -> EpochFactor:
    """The mean over trials; its error follows from that of the turnover's share of the epoch."""
    factors = [max(_LEAST_FACTOR, rates[trial.id].epoch_factor) for trial in candidate.trials]
    log = math.fsum(map(math.log, factors)) / len(factors)
    share = 1 - math.exp(log)
    return EpochFactor(log=log, log_sd=share * _TURNOVER_SPREAD / math.sqrt(len(factors)))
