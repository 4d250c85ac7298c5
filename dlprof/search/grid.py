"""Every configuration in interleaved blocks, the hopeless ones dropped on the way."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence
from typing import Literal

from dlprof.records import Config, Plan, Trial
from dlprof.search.budget import Costs, Room
from dlprof.search.plan import by_importance, expected_survivors
from dlprof.stats import BlockFit, Expected, fit_blocks, fit_expecting, observe

RULE_OUT_CONFIDENCE = 0.99
"""A configuration is dropped when this interval of its rate over the best one's lies below 1."""

TIE = 0.98
"""Configurations that are all this close to the best need no further telling apart."""

_BLOCKS_BEFORE_TIE = 3

StopReason = Literal["decided", "complete", "budget", "noise"]


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
            done or nothing works; ``budget``: there was no time for more; ``noise``: a model chose,
            and what is left to gain is too little to be seen beside this much noise.
    """

    reason: StopReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """A randomised block design over the plan's configurations.

    The first block holds every configuration, but for the least important ones where trials cost
    more than was planned; a later one every surviving configuration, but that those that differ
    only in ``persistent_workers`` take turns (``Plan.take_turns``). Within a block the order is
    random, but that a model's best is measured first of all, and where time may not suffice: there
    the most important come first, and in a later block the fastest.

    It keeps no state: what comes next follows from the trials so far alone, so that a sweep that
    was cut off anywhere goes on as if it had not been.

    Attributes:
        plan: What to measure and how long.
        seed: Decides the order within each block.
        expected: What a model predicted of them, if one did.
    """

    plan: Plan
    seed: int = 0
    expected: Expected | None = None

    def propose(
        self, history: Sequence[Trial], *, remaining_s: float | None = None
    ) -> Proposal | Stop:
        """What to measure next.

        Args:
            history: All trials so far; those of configurations outside the plan, and those that
                explain, are ignored.
            remaining_s: What is left of the budget; ``None`` for no limit.
        """
        planned = set(self.plan.configs)
        measured = [trial for trial in history if trial.purpose == "measure"]
        trials = [trial for trial in measured if trial.config in planned]
        tried = {trial.config for trial in trials}
        costs = Costs.of(trials, self.plan)
        untried = [c for c in by_importance(self.plan.configs, self.plan.present) if c not in tried]
        due = self._due(trials) if untried and remaining_s is not None else 0
        room = Room(costs=costs, left_s=remaining_s, repeats=self.plan.min_repeats, due=due)
        new = room.for_new(untried, tried)
        current = max((trial.repetition for trial in trials), default=0)
        reason: StopReason = "complete"
        for block in range(current, min(current + 2, self.plan.max_repeats)):
            earlier = [trial for trial in trials if trial.repetition < block]
            members = self._members(earlier, block)
            done = {trial.config for trial in trials if trial.repetition == block}
            todo = [*(config for config in members if config not in done), *new]
            if not todo:
                continue
            if not new and (found := self._verdict(members, earlier, block)) is not None:
                reason = found
                break
            if not any(map(room.fits, todo)):
                reason = "budget"
                break
            sure = room.surely_new(new, tried) if block == 0 else room.surely(todo)
            if not tried and (first := self._foretold_best(sure)) is not None:
                sure = [first]
            return self._next(todo, sure, block, room)
        if any(map(room.fits, untried)):  # better one more seen once than time left over
            return self._next(untried, (), current, room)
        return Stop(reason="budget" if untried else reason)

    def _foretold_best(self, configs: Sequence[Config]) -> Config | None:
        """What is measured first, lest the budget be spent on others; ``None`` without a model."""
        known = self.expected.log_rates if self.expected is not None else {}
        rates = {each: known[each.key] for each in configs if each.key in known}
        return max(rates, key=rates.__getitem__, default=None)

    def _members(self, earlier: Sequence[Trial], block: int) -> list[Config]:
        """Configurations that work and are not ruled out by the blocks so far, fastest first.

        Judged anew for each block: one that was dropped comes back if later blocks no longer
        rule it out.
        """
        fit, members = self._possible(earlier)
        return members if fit is None else self._by_turns(members, fit, block)

    def _possible(self, trials: Sequence[Trial]) -> tuple[BlockFit | None, list[Config]]:
        """The comparison of what works, and those that may be the best, fastest first."""
        failed = {trial.config for trial in trials if trial.outcome != "completed"}
        fit = self._judge([trial for trial in trials if trial.config not in failed])
        if fit is None:
            return None, []
        best = fit.best()
        working = [config for config in self.plan.configs if config not in failed]
        members = [config for config in working if _is_possible(fit, config.key, best)]
        return fit, sorted(members, key=lambda config: -fit.log_rates[config.key])

    def _due(self, trials: Sequence[Trial]) -> int:
        """Repeats that those still need which by now may be the best."""
        fit, members = self._possible(trials)
        seen = _fit(trials)
        if fit is None or seen is None:
            return 0
        members = self._by_turns(members, fit, 0)
        return sum(max(0, self.plan.min_repeats - seen.blocks(each.key)) for each in members)

    def _by_turns(self, members: list[Config], fit: BlockFit, block: int) -> list[Config]:
        """One configuration of each group that has the same steady rate, another in each block."""
        if not self.plan.take_turns:
            return members
        groups: dict[str, list[Config]] = {}
        for config in members:
            groups.setdefault(fit.groups[config.key], []).append(config)
        return [group[block % len(group)] for group in groups.values()]

    def _verdict(
        self, members: Sequence[Config], earlier: Sequence[Trial], block: int
    ) -> StopReason | None:
        """Why the blocks so far are enough, if they are."""
        if block < self.plan.min_repeats:
            return None
        seen, fit = _fit(earlier), self._judge(earlier)
        if seen is None or fit is None:
            return None
        if any(seen.blocks(each.key) < self.plan.min_repeats for each in members):
            return None
        if len(members) == 1:
            return "decided"
        best = fit.best([config.key for config in members])
        ratios = [fit.ratio(config.key, best).value for config in members]
        # What was predicted is worth a block where it says the same.
        enough = block >= _BLOCKS_BEFORE_TIE - (self.expected is not None)
        if enough and all(ratio >= TIE for ratio in ratios):
            return "decided"
        # What trials alone lean to counts as well: a few more may show that the model is wrong.
        most = self.plan.max_repeats
        hidden = self.expected is not None and not (
            _can_tell(seen, members, most) or _can_tell(fit, members, most + 1)
        )
        return "noise" if hidden else None

    def _judge(self, trials: Sequence[Trial]) -> BlockFit | None:
        """The comparison of trials, in the light of what was predicted."""
        observations = [seen for trial in trials if (seen := observe(trial)) is not None]
        return fit_expecting(observations, self.expected) if observations else None

    def _next(
        self, todo: Sequence[Config], sure: Collection[Config], block: int, room: Room
    ) -> Proposal:
        """The next of the block: in the block's own order as far as there is surely time for it.

        Where time is short, the most telling one that fits: the order that evens out drift is
        worth less than what would be left out for it.
        """
        shuffled = list(self.plan.configs)
        random.Random(f"{self.seed}-{block}").shuffle(shuffled)
        chosen = next((config for config in shuffled if config in sure), None)
        chosen = chosen or next(filter(room.fits, todo))
        costs = room.costs
        survivors = len(todo) if block else expected_survivors(len(self.plan.configs))
        later = max(0, self.plan.planned_repeats - block - 1) * survivors
        rest_s = sum(map(costs.expected_s, todo)) + later * costs.typical_s
        return Proposal(
            config=chosen,
            repetition=block,
            trial_s=self.plan.trial_s,
            expected_s=costs.expected_s(chosen),
            expected_rest_s=rest_s if room.left_s is None else min(rest_s, room.left_s),
        )


def _can_tell(fit: BlockFit, members: Sequence[Config], blocks: int) -> bool:
    """Whether so many blocks would show one of these to be slower than the best of them."""
    best = fit.best([config.key for config in members])
    return any(
        fit.ratio(config.key, best).value < TIE and fit.would_tell(config.key, best, blocks)
        for config in members
    )


def _fit(trials: Sequence[Trial]) -> BlockFit | None:
    """The comparison of all trials with figures, if there are any."""
    observations = [seen for trial in trials if (seen := observe(trial)) is not None]
    return fit_blocks(observations) if observations else None


def _is_possible(fit: BlockFit, key: str, best: str) -> bool:
    """Whether a configuration may yet be the best; without any figure it may not."""
    if key not in fit.log_rates:
        return False
    high = fit.ratio(key, best, RULE_OUT_CONFIDENCE).high
    return high is None or high >= 1
