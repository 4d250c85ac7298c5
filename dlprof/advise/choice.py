"""The cheapest configuration that can't be told apart from the best."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.effective import Rates, Situation, cores_share, rates_of
from dlprof.records import Estimate, Trial
from dlprof.stats import BlockFit, fit_blocks, mean_interval, observe

SAME_SPEED = 0.98
"""Within 2 % counts as the same speed, however sure the difference: no training run shows it."""

LEAST_TIE = 0.90
"""Slower than this by its best estimate is no tie, however unsure: the evidence leans against it.
The recommendation then says that more repeats could settle it."""

FED_WAIT_FRACTION = 0.02
"""A step that waits for data this little counts as fed."""

_PERHAPS_FED_WAIT_FRACTION = 0.05
"""A mean above this is not fed, even where its interval reaches ``FED_WAIT_FRACTION``."""

_DERIVED_MARGIN = 1.1
"""What a loader must give above the step's need where the two were not measured together:
receiving a batch is dearer while workers are busy, and adds to the step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        situation: What the settings are wanted for.
        pick: The recommended configuration.
        best: The fastest of the pool.
        pool: What the choice was between: those that feed the step, where some do.
        allowed: All that keep the limits.
        ties: Those of the pool that can't be told apart from the best, ``pick`` among them.
        undecided: Cheaper than ``pick``, slower by the best estimate, but not ruled out.
        fed: Whether the pool keeps the step fed; ``None`` without a step.
        steady: Steady rates compared.
        effective: Rates over whole epochs compared; what the choice rests on.
        rates: Each trial's rates, by trial id.
    """

    situation: Situation
    pick: Candidate
    best: Candidate
    pool: tuple[Candidate, ...]
    allowed: tuple[Candidate, ...]
    ties: tuple[Candidate, ...]
    undecided: tuple[Candidate, ...]
    fed: bool | None
    steady: BlockFit
    effective: BlockFit
    rates: dict[str, Rates]

    def speed(self, candidate: Candidate, other: Candidate) -> Estimate:
        """Rate of one over that of another, over whole epochs where their length is known."""
        return self.effective.ratio(candidate.key, other.key)

    def fastest(self, among: Sequence[Candidate]) -> Candidate:
        """The fastest of some, which must not be none."""
        key = self.effective.best([candidate.key for candidate in among])
        return next(candidate for candidate in among if candidate.key == key)

    def wait_fraction(self, candidate: Candidate) -> float | None:
        """Mean share of time that the step waits."""
        return _mean_wait(candidate, self.rates)


def choose(
    candidates: Sequence[Candidate], allowed: Sequence[Candidate], situation: Situation
) -> Choice:
    """Choose among the allowed; all candidates help to take out drift between blocks.

    Args:
        candidates: All with at least one rate.
        allowed: Those that keep the limits, cheapest first, at least one.
        situation: What the settings are wanted for.
    """
    trials = [trial for candidate in candidates for trial in candidate.trials]
    rates = {trial.id: rates_of(trial, situation) for trial in trials}
    steady = _fit(trials, {key: each.samples_per_s for key, each in rates.items()})
    effective = _fit(trials, {key: each.effective_samples_per_s for key, each in rates.items()})
    fed = [candidate for candidate in allowed if _is_fed(candidate, rates, situation)]
    pool = fed or list(allowed)
    best_key = effective.best([candidate.key for candidate in pool])
    best = next(candidate for candidate in pool if candidate.key == best_key)
    ties = [each for each in pool if is_tie(effective.ratio(each.key, best_key))]
    pick = ties[0]
    return Choice(
        situation=situation,
        pick=pick,
        best=best,
        pool=tuple(pool),
        allowed=tuple(allowed),
        ties=tuple(ties),
        undecided=tuple(
            each
            for each in pool[: pool.index(pick)]
            if (effective.ratio(each.key, best_key).high or 0) >= 1
        ),
        fed=bool(fed) if _has_step(situation) else None,
        steady=steady,
        effective=effective,
        rates=rates,
    )


def is_tie(ratio: Estimate) -> bool:
    """Whether a rate relative to the best can't be told apart from it."""
    reaches_best = ratio.high is None or ratio.high >= 1
    return ratio.value >= SAME_SPEED or (ratio.value >= LEAST_TIE and reaches_best)


def _fit(trials: Sequence[Trial], rates: dict[str, float]) -> BlockFit:
    seen = [observe(trial, rates[trial.id]) for trial in trials]
    return fit_blocks([each for each in seen if each is not None])


def _has_step(situation: Situation) -> bool:
    return situation.step_measured or situation.derived_step_s is not None


def _mean_wait(candidate: Candidate, rates: dict[str, Rates]) -> float | None:
    waits = [rates[trial.id].wait_fraction for trial in candidate.trials]
    known = [wait for wait in waits if wait is not None]
    return statistics.fmean(known) if known else None


def _is_fed(candidate: Candidate, rates: dict[str, Rates], situation: Situation) -> bool:
    """Whether the step waits so little for this configuration that it counts as fed."""
    mean = _mean_wait(candidate, rates)
    if mean is None:
        return False
    if situation.derived_step_s is not None and candidate.config.num_workers:
        return _outruns(candidate, situation, situation.derived_step_s)
    if mean <= FED_WAIT_FRACTION:
        return True
    waits = [rates[trial.id].wait_fraction for trial in candidate.trials]
    low = mean_interval([wait for wait in waits if wait is not None]).low
    return low is not None and low <= FED_WAIT_FRACTION and mean <= _PERHAPS_FED_WAIT_FRACTION


def _outruns(candidate: Candidate, situation: Situation, step_s: float) -> bool:
    """Whether every trial gave batches faster than the step takes them, by its lower end."""
    for trial in candidate.trials:
        rate = trial.batches_per_s
        if rate is None:
            return False
        lowest = rate.value if rate.low is None else rate.low
        if lowest * cores_share(trial, situation) * step_s < _DERIVED_MARGIN:
            return False
    return True
