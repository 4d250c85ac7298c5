"""Every configuration in interleaved blocks, the hopeless ones dropped on the way."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence
from typing import Literal

from dlprof.records import Config, Plan, Trial
from dlprof.search.plan import by_importance, expected_survivors
from dlprof.stats import BlockFit, fit_blocks, observe

RULE_OUT_CONFIDENCE = 0.99
"""A configuration is dropped when this interval of its rate over the best one's lies below 1."""

TIE = 0.98
"""Configurations that are all this close to the best need no further telling apart."""

_BLOCKS_BEFORE_TIE = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The trial to run next.

    Attributes:
        config: What to measure.
        repetition: Number of the block that it belongs to.
        trial_s: Length of its measured window.
        expected_s: Its whole cost, start and end included.
        expected_rest_s: Cost of it and everything foreseen after it.
    """

    config: Config
    repetition: int
    trial_s: float
    expected_s: float
    expected_rest_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """No further trial.

    Attributes:
        reason: ``decided``: more would not change the answer; ``complete``: all repeats are
            done or nothing works; ``budget``: there was no time for more.
    """

    reason: Literal["decided", "complete", "budget"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """A randomised block design over the plan's configurations.

    The first block holds every configuration, but for the least important ones where trials cost
    more than was planned; a later one every surviving configuration, but that those that differ
    only in ``persistent_workers`` take turns (``Plan.take_turns``).

    It keeps no state: what comes next follows from the trials so far alone, so that a sweep that
    was cut off anywhere goes on as if it had not been.

    Attributes:
        plan: What to measure and how long.
        seed: Decides the order within each block.
    """

    plan: Plan
    seed: int = 0

    def propose(
        self, history: Sequence[Trial], *, remaining_s: float | None = None
    ) -> Proposal | Stop:
        """What to measure next.

        Args:
            history: All trials so far; those of configurations outside the plan are ignored.
            remaining_s: What is left of the budget; ``None`` for no limit.
        """
        planned = set(self.plan.configs)
        trials = [trial for trial in history if trial.config in planned]
        untried = planned - {trial.config for trial in trials}
        costs = _Costs.of(trials, self.plan)
        current = max((trial.repetition for trial in trials), default=0)
        for block in range(current, min(current + 2, self.plan.max_repeats)):
            earlier = [trial for trial in trials if trial.repetition < block]
            members = self._members(earlier, block)
            waiting = set(members) - {trial.config for trial in trials if trial.repetition == block}
            new = self._affordable(untried, len(planned) - len(untried), costs, remaining_s)
            todo = [config for config in self._order(block) if config in waiting | new]
            if not todo:
                continue
            if not new and self._is_decided(members, earlier, block):
                return Stop(reason="budget" if untried else "decided")
            return self._next(todo, block, costs, remaining_s)
        return Stop(reason="budget" if untried else "complete")

    def _affordable(
        self, untried: Collection[Config], tried: int, costs: _Costs, remaining_s: float | None
    ) -> set[Config]:
        """Those never measured that the budget has room for, the most important first.

        Room is kept to measure the best few a second time: where trials cost more than was
        planned, fewer configurations known twice tell more than all of them known once.
        """
        if remaining_s is None:
            return set(untried)
        kept_back = min(tried, expected_survivors(1 + tried)) * (self.plan.min_repeats - 1)
        room = max(0, int(remaining_s / costs.typical_s) - kept_back)
        return set(
            [config for config in by_importance(self.plan.configs) if config in untried][:room]
        )

    def _members(self, earlier: Sequence[Trial], block: int) -> tuple[Config, ...]:
        """Configurations that work and are not ruled out by the blocks so far.

        Judged anew for each block: one that was dropped comes back if later blocks no longer
        rule it out.
        """
        failed = {trial.config for trial in earlier if trial.outcome != "completed"}
        fit = _fit([trial for trial in earlier if trial.config not in failed])
        if fit is None:
            return ()
        best = fit.best()
        working = [config for config in self.plan.configs if config not in failed]
        members = [config for config in working if _is_possible(fit, config.key, best)]
        return _in_turn(members, fit, block) if self.plan.take_turns else tuple(members)

    def _is_decided(self, members: Sequence[Config], earlier: Sequence[Trial], block: int) -> bool:
        if block < self.plan.min_repeats:
            return False
        if len(members) == 1:
            return True
        fit = _fit(earlier)
        if fit is None or block < _BLOCKS_BEFORE_TIE:
            return False
        best = fit.best([config.key for config in members])
        return all(fit.ratio(config.key, best).value >= TIE for config in members)

    def _order(self, block: int) -> list[Config]:
        """The block's own order, the same whatever part of it is left."""
        order = list(self.plan.configs)
        random.Random(f"{self.seed}-{block}").shuffle(order)
        return order

    def _next(
        self,
        todo: Sequence[Config],
        block: int,
        costs: _Costs,
        remaining_s: float | None,
    ) -> Proposal | Stop:
        """The first trial of those left in the block, if it fits into what is left of the time."""
        expected_s = costs.expected_s(todo[0])
        if remaining_s is not None and expected_s > remaining_s:
            return Stop(reason="budget")
        survivors = len(todo) if block else expected_survivors(len(self.plan.configs))
        later = max(0, self.plan.planned_repeats - block - 1) * survivors
        rest_s = sum(map(costs.expected_s, todo)) + later * costs.typical_s
        return Proposal(
            config=todo[0],
            repetition=block,
            trial_s=self.plan.trial_s,
            expected_s=expected_s,
            expected_rest_s=rest_s if remaining_s is None else min(rest_s, remaining_s),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
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
    def of(cls, trials: Sequence[Trial], plan: Plan) -> _Costs:
        known_s: dict[Config, float] = {}
        for trial in trials:
            known_s[trial.config] = max(trial.wall_s, known_s.get(trial.config, 0.0))
        completed = [trial for trial in trials if trial.outcome == "completed"]
        took_s = sum(trial.wall_s for trial in completed)
        planned_s = sum(plan.cost.of(trial.config, plan.trial_s) for trial in completed)
        factor = took_s / planned_s if took_s and planned_s else 1.0
        return cls(plan=plan, known_s=known_s, factor=factor)

    def expected_s(self, config: Config) -> float:
        planned_s = self.plan.cost.of(config, self.plan.trial_s)
        return self.known_s.get(config, self.factor * planned_s)

    @property
    def typical_s(self) -> float:
        """The mean over all that is planned."""
        return sum(map(self.expected_s, self.plan.configs)) / len(self.plan.configs)


def _fit(trials: Sequence[Trial]) -> BlockFit | None:
    """The comparison of all trials with figures, if there are any."""
    observations = [seen for trial in trials if (seen := observe(trial)) is not None]
    return fit_blocks(observations) if observations else None


def _in_turn(members: Sequence[Config], fit: BlockFit, block: int) -> tuple[Config, ...]:
    """One configuration of each group that has the same steady rate, another in each block."""
    groups: dict[str, list[Config]] = {}
    for config in members:
        groups.setdefault(fit.groups[config.key], []).append(config)
    return tuple(group[block % len(group)] for group in groups.values())


def _is_possible(fit: BlockFit, key: str, best: str) -> bool:
    """Whether a configuration may yet be the best; without any figure it may not."""
    if key not in fit.log_rates:
        return False
    high = fit.ratio(key, best, RULE_OUT_CONFIDENCE).high
    return high is None or high >= 1
