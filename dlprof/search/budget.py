"""What trials cost, as far as is known by now, and what of the budget that leaves room for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from dlprof.records import Config, Plan, Trial
from dlprof.search.plan import expected_survivors

_UNCOMPARED = 2
"""So many configurations are measured before any room is kept for repeats: one alone, however
often it is measured, recommends nothing."""

_SURE = 2.0
"""What fits even if trials take this many times as long as expected fits surely."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What trials cost in all.

    Attributes:
        plan: What was expected before any was run.
        known_s: The dearest so far of each configuration that was measured.
        factor: How much dearer than expected completed trials turned out, in the mean.
    """

    plan: Plan
    known_s: dict[Config, float]
    factor: float

    @classmethod
    def of(cls, trials: Sequence[Trial], plan: Plan) -> Costs:
        """What the trials so far have shown."""
        known_s: dict[Config, float] = {}
        for trial in trials:
            known_s[trial.config] = max(trial.wall_s, known_s.get(trial.config, 0.0))
        completed = [trial for trial in trials if trial.outcome == "completed"]
        took_s = sum(trial.wall_s for trial in completed)
        planned_s = sum(plan.cost.of(trial.config, plan.trial_s) for trial in completed)
        factor = took_s / planned_s if took_s and planned_s else 1.0
        return cls(plan=plan, known_s=known_s, factor=factor)

    def expected_s(self, config: Config) -> float:
        """What one trial of a configuration will cost."""
        planned_s = self.plan.cost.of(config, self.plan.trial_s)
        return self.known_s.get(config, self.factor * planned_s)

    @property
    def typical_s(self) -> float:
        """The mean over all that is planned."""
        return sum(map(self.expected_s, self.plan.configs)) / len(self.plan.configs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the rest of the budget holds.

    Attributes:
        costs: Of trials.
        left_s: Rest of the budget; ``None`` for no limit.
        repeats: How often the best few are to be measured at least.
        due: Repeats that those still need which by now may be the best.
    """

    costs: Costs
    left_s: float | None
    repeats: int
    due: int = 0

    def fits(self, config: Config) -> bool:
        """Whether one trial more of a configuration fits."""
        return self.left_s is None or self.costs.expected_s(config) <= self.left_s

    def surely(self, wanted: Sequence[Config]) -> list[Config]:
        """As many of the first as fit even if trials are dearer than expected."""
        if self.left_s is None:
            return list(wanted)
        spent_s = itertools.accumulate(_SURE * self.costs.expected_s(each) for each in wanted)
        return [each for each, sum_s in zip(wanted, spent_s, strict=True) if sum_s <= self.left_s]

    def surely_new(self, wanted: Sequence[Config], tried: Collection[Config]) -> list[Config]:
        """As many of the first of ``for_new`` as fit even if trials are dearer than expected."""
        fitting = set(self.for_new(wanted, tried, _SURE))
        return list(itertools.takewhile(fitting.__contains__, wanted))

    def for_new(
        self, wanted: Sequence[Config], tried: Collection[Config], times: float = 1.0
    ) -> list[Config]:
        """Those that are to be measured for the first time; those that don't fit are passed over.

        Room is kept to measure the best few again: where trials cost more than was planned, fewer
        configurations known twice tell more than all of them known once.

        Args:
            wanted: Never measured, in the order in which they are wanted.
            tried: Those that were measured.
            times: How many times as dear as expected they may turn out.
        """
        if self.left_s is None:
            return list(wanted)
        found: list[Config] = []
        tried_s = sum(map(self.costs.expected_s, tried))
        new_s = 0.0
        for config in wanted:
            all_s = new_s + self.costs.expected_s(config)
            new, count = len(found) + 1, len(tried) + len(found) + 1
            # Repeats that are due, and one round more where a new one is as good.
            rounds = self.repeats - 1
            rivals = min(count - 1, expected_survivors(count)) * rounds
            repeats = min(self.due + new * rounds, rivals) if count > _UNCOMPARED else 0
            if times * all_s + repeats * (tried_s + all_s) / count <= self.left_s:
                found.append(config)
                new_s = all_s
        return found
