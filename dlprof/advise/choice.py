"""The decision: the cheapest configuration that is likely within 3 % of the best.

Never one that is likely slower than what the user has, or than loading without workers; with a
step, of those that keep it fed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.effective import Situation, cores_share
from dlprof.advise.speeds import Speeds, compare_speeds
from dlprof.stats import NEAR, mean_interval

RISK = 1 / 3
"""Probability that a recommended configuration is slower than ``NEAR`` of the best, at most: a
costlier one is taken until then. Where two are equal and known to 5 %, it is 0.34."""

WITHIN = f"within {(1 - NEAR) * 100:.0f} %"
"""``NEAR`` in words."""

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
        fed: Whether the pool keeps the step fed; ``None`` without a step.
        speeds: What the choice rests on.
    """

    situation: Situation
    pick: Candidate
    best: Candidate
    pool: tuple[Candidate, ...]
    allowed: tuple[Candidate, ...]
    fed: bool | None
    speeds: Speeds

    @property
    def ties(self) -> tuple[Candidate, ...]:
        """Those of the pool that are more likely near the best than not, and ``pick``."""
        return tuple(each for each in self.pool if each is self.pick or self.far(each) <= 0.5)

    @property
    def undecided(self) -> tuple[Candidate, ...]:
        """Cheaper than ``pick``, and neither likely nor surely too slow."""
        cheaper = self.pool[: self.pool.index(self.pick)]
        return tuple(each for each in cheaper if self.far(each) < 1 - RISK)

    @property
    def present(self) -> Candidate | None:
        """What the target's own DataLoader is set to now, if measured and within the limits."""
        config = self.situation.present
        return next((each for each in self.allowed if each.config == config), None)

    def far(self, candidate: Candidate) -> float:
        """Probability that a configuration is slower than ``NEAR`` of the best."""
        return self.speeds.chance(self.best.key, candidate.key, 1 / NEAR)


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
    # What the user has, or could have for nothing, is left for nothing that is likely slower.
    kept = [c for c in pool if c.config == situation.present or not c.config.num_workers]
    least = max((speeds.log_speed(each.key) for each in kept), default=-math.inf)
    safe = (each for each in pool if speeds.log_speed(each.key) >= least)
    pick = next(c for c in safe if speeds.chance(best.key, c.key, 1 / NEAR) <= RISK)
    return Choice(
        situation=situation,
        pick=pick,
        best=best,
        pool=tuple(pool),
        allowed=tuple(allowed),
        fed=bool(fed) if _has_step(situation) else None,
        speeds=speeds,
    )


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
