"""The decision: the cheapest configuration that is likely within 3 % of the best.

Never one that is estimated slower than what the user has, or than loading without workers; with a
step, of those that keep it fed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import Speeds, cores_share
from dlprof.advise.thresholds import (
    DERIVED_MARGIN,
    EVEN,
    FED_WAIT_FRACTION,
    PERHAPS_FED_WAIT_FRACTION,
)
from dlprof.records import Config
from dlprof.stats import NEAR, RISK, mean_interval


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        situation: What the settings are wanted for.
        pick: The recommended configuration.
        best: The fastest of the pool.
        pool: What the choice was between: those that feed the step, where some do.
        allowed: All that keep the limits, cheapest first.
        fed: Whether the pick keeps the step fed; ``None`` without a step.
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
        return tuple(each for each in self.pool if each is self.pick or self.far(each) <= EVEN)

    @property
    def undecided(self) -> tuple[Candidate, ...]:
        """Cheaper than ``pick``, measured, and neither likely nor surely too slow."""
        cheaper = self.pool[: self.pool.index(self.pick)]
        return tuple(each for each in cheaper if each.measured and self.far(each) < 1 - RISK)

    @property
    def present(self) -> Candidate | None:
        """What the target's own DataLoader is set to now, if it keeps the limits."""
        return self.of(self.situation.present)

    @property
    def default(self) -> Candidate | None:
        """PyTorch's own default, ``num_workers=0``, at the batch size of the pick."""
        return self.of(Config(batch_size=self.pick.config.batch_size))

    @property
    def fewer(self) -> Candidate | None:
        """The fastest of fewer workers that are workers."""
        most = self.pick.config.num_workers
        some = [each for each in self.allowed if 0 < each.config.num_workers < most]
        return self.speeds.fastest(some) if some else None

    def of(self, config: Config | None) -> Candidate | None:
        """The candidate of a configuration, if it keeps the limits."""
        return next((each for each in self.allowed if each.config == config), None)

    def far(self, candidate: Candidate) -> float:
        """Probability that a configuration is slower than ``NEAR`` of the best."""
        return self.speeds.chance(self.best.key, candidate.key, 1 / NEAR)


def choose(allowed: Sequence[Candidate], situation: Situation, speeds: Speeds) -> Choice:
    """Choose among those that keep the limits.

    What was measured is left for what was only predicted where that is likely better by over 3 %
    than all of it.

    Args:
        allowed: Cheapest first, at least one.
        situation: What the settings are wanted for.
        speeds: What they are worth.
    """
    measured = [each for each in allowed if each.measured]
    found = _choose(measured, allowed, situation, speeds, RISK) if measured else None
    others = [each for each in allowed if not each.measured]
    better = [each for each in others if found is None or is_better(found, each.key)]
    if found is None or better:
        return _choose(better, allowed, situation, speeds, EVEN)
    return found


def is_better(choice: Choice, key: str) -> bool:
    """Whether one that was only predicted is likely better by over 3 % than what was chosen."""
    return not choice.fed and choice.speeds.chance(key, choice.pick.key, 1 / NEAR) >= 1 - RISK


def _choose(
    some: Sequence[Candidate],
    allowed: Sequence[Candidate],
    situation: Situation,
    speeds: Speeds,
    risk: float,
) -> Choice:
    """The cheapest that is near the best; with a step, that keeps it fed, if any does."""
    fed = [each for each in some if _is_fed(each, speeds, situation)]
    # What the user has, or could have for nothing, is left for nothing that is estimated slower.
    kept = [c for c in some if c.config == situation.present or not c.config.num_workers]
    least = max((speeds.log_speed(each.key) for each in kept), default=-math.inf)

    def near(pool: Sequence[Candidate], best: Candidate) -> list[Candidate]:
        return [
            each
            for each in pool
            if speeds.log_speed(each.key) >= least
            and speeds.chance(best.key, each.key, 1 / NEAR) <= risk
        ]

    # Keeping the step fed may cost more between epochs than it saves.
    found = near(fed, speeds.fastest(some))
    pool = fed if found else some
    best = speeds.fastest(pool)
    by_model = situation.by_model and situation.step_s + situation.step_cpu_s > 0
    has_step = situation.step_measured or situation.derived_step_s is not None or by_model
    return Choice(
        situation=situation,
        pick=(found or near(pool, best))[0],
        best=best,
        pool=tuple(pool),
        allowed=tuple(allowed),
        fed=bool(found) if has_step else None,
        speeds=speeds,
    )


def _is_fed(candidate: Candidate, speeds: Speeds, situation: Situation) -> bool:
    """Whether the step waits so little for this configuration that it counts as fed."""
    mean = speeds.wait_fraction(candidate)
    if mean is None:
        return False
    if situation.derived_step_s is not None and candidate.config.num_workers:
        return _outruns(candidate, situation, situation.derived_step_s)
    if mean <= FED_WAIT_FRACTION:
        return True
    waits = speeds.waits(candidate)
    low = mean_interval(waits).low if waits else None
    return low is not None and low <= FED_WAIT_FRACTION and mean <= PERHAPS_FED_WAIT_FRACTION


def _outruns(candidate: Candidate, situation: Situation, step_s: float) -> bool:
    """Whether every trial gave batches faster than the step takes them, by its lower end."""
    for trial in candidate.trials:
        rate = trial.batches_per_s
        if rate is None:
            return False
        lowest = rate.value if rate.low is None else rate.low
        if lowest * cores_share(trial, situation) * step_s < DERIVED_MARGIN:
            return False
    return True
