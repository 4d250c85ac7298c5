"""The cheapest configuration that can't be told apart from the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.effective import Situation, cores_share
from dlprof.advise.speeds import Speeds, compare_speeds
from dlprof.records import Estimate
from dlprof.stats import mean_interval

SAME_SPEED = 0.98
"""Within 2 % counts as the same speed, however sure the difference: no training run shows it."""

WITHIN = f"within {(1 - SAME_SPEED) * 100:.0f} %"
"""The same in words."""

LEAST_TIE = 0.95
"""Slower than this by its best estimate is no tie, however unsure: the evidence leans against it.
The recommendation then says that more repeats could settle it."""

_RISK = 0.8
"""PyTorch's default, loading without workers, is not left for what may be this much slower."""

_WORTH = 1.5
"""Unless that seems to be this much faster: of less, trials that are so noisy say little."""

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
        ties: Those of the pool that can't be told apart from the best, and ``pick``.
        undecided: Cheaper than ``pick``, slower by the best estimate, but not surely.
        fed: Whether the pool keeps the step fed; ``None`` without a step.
        speeds: What the choice rests on.
    """

    situation: Situation
    pick: Candidate
    best: Candidate
    pool: tuple[Candidate, ...]
    allowed: tuple[Candidate, ...]
    ties: tuple[Candidate, ...]
    undecided: tuple[Candidate, ...]
    fed: bool | None
    speeds: Speeds

    @property
    def known_ties(self) -> list[Candidate]:
        """The ties without a pick that is one for want of knowledge alone."""
        return [each for each in self.ties if is_tie(self.speeds.ratio(each, self.best))]

    @property
    def present(self) -> Candidate | None:
        """What the target's own DataLoader is set to now, if measured and within the limits."""
        config = self.situation.present
        return next((each for each in self.allowed if each.config == config), None)


def choose(
    candidates: Sequence[Candidate], allowed: Sequence[Candidate], situation: Situation
) -> Choice:
    """Choose among the allowed; all candidates help to take out drift between blocks.

    Args:
        candidates: All with at least one rate.
        allowed: Those that keep the limits, cheapest first, at least one.
        situation: What the settings are wanted for.
    """
    speeds = compare_speeds(candidates, situation)
    fed = [candidate for candidate in allowed if _is_fed(candidate, speeds, situation)]
    pool = fed or list(allowed)
    best = speeds.fastest(pool)
    ties = [each for each in pool if is_tie(speeds.ratio(each, best))]
    pick = _safe(ties[0], pool, speeds)
    ties = ties if pick in ties else [pick, *ties]
    return Choice(
        situation=situation,
        pick=pick,
        best=best,
        pool=tuple(pool),
        allowed=tuple(allowed),
        ties=tuple(ties),
        undecided=tuple(
            each for each in pool[: pool.index(pick)] if (speeds.ratio(each, pick).high or 0) >= 1
        ),
        fed=bool(fed) if _has_step(situation) else None,
        speeds=speeds,
    )


def _safe(pick: Candidate, pool: Sequence[Candidate], speeds: Speeds) -> Candidate:
    """The pick, or loading without workers where too little is known to leave that for it."""
    plain = next((each for each in pool if not each.config.num_workers), None)
    if plain is None or not pick.config.num_workers:
        return pick
    gain = speeds.ratio(pick, plain)
    risky = gain.low is not None and gain.low < _RISK and gain.value < _WORTH
    return plain if risky else pick


def is_tie(ratio: Estimate) -> bool:
    """Whether a rate relative to the best can't be told apart from it."""
    reaches_best = ratio.high is None or ratio.high >= 1
    return ratio.value >= SAME_SPEED or (ratio.value >= LEAST_TIE and reaches_best)


def surely_differs(ratio: Estimate) -> bool:
    """Whether the interval of a ratio leaves out 1."""
    return (ratio.low is not None and ratio.low > 1) or (ratio.high is not None and ratio.high < 1)


def _has_step(situation: Situation) -> bool:
    return situation.step_measured or situation.derived_step_s is not None


def _is_fed(candidate: Candidate, speeds: Speeds, situation: Situation) -> bool:
    """Whether the step waits so little for this configuration that it counts as fed."""
    mean = speeds.wait_fraction(candidate)
    if mean is None:
        return False
    if situation.derived_step_s is not None and candidate.config.num_workers:
        return _outruns(candidate, situation, situation.derived_step_s)
    if mean <= FED_WAIT_FRACTION:
        return True
    low = mean_interval(speeds.waits(candidate)).low
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
