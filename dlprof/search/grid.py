"""Which configuration to measure next: interleaved blocks of what may yet be the best."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from dlprof.records import Config, Plan, Trial
from dlprof.search.space import by_importance, expected_survivors
from dlprof.stats.belief import (
    NEAR_LOG,
    PROBABILITY,
    Belief,
    ExpectedRates,
    Gap,
    believe,
    near_best,
    observe,
    room_of,
)

_RIVALS = 2  # configurations that each later block has beside the choice

StopReason = Literal["decided", "complete", "budget"]
"""Why no further trial is run: ``decided``: more would not change the answer; ``complete``: all
repeats are done or nothing works; ``budget``: there was no time for more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The trial to run next."""

    config: Config  # what to measure
    repetition: int  # number of the block that it belongs to
    trial_s: float  # length of its measured window
    expected_s: float  # its whole cost, start and end included
    expected_rest_s: float  # cost of it and everything planned after it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """Randomised blocks: first all of the plan, then the choice and what may be better.

    The first block holds every configuration of the plan, but for the least important ones where
    trials cost more than was planned. A later one holds what would be chosen by then, and those
    that could be better by most (Kalyanakrishnan et al. 2012), of what a model predicted and nobody
    measured, too; it ends when none could be better by more than ``NEAR``. What a gain is shown
    over, the user's own settings and PyTorch's default, is measured again where others disturbed
    its only trial, or all else says that it gave far too little.
    Where the user asks for a number of repeats, every block holds all that may be the best. Within
    a block the order is random, but in the first one by a model, where its best comes first and few
    workers before many, and where time may not suffice: there the most important come first, and in
    a later block the fastest.

    It keeps no state: what comes next follows from the trials so far alone, so that a sweep that
    was cut off anywhere goes on as if it had not been.
    """

    plan: Plan  # what to measure and how long
    seed: int = 0  # decides the order within each block
    expected: ExpectedRates | None = None  # what a model predicted of them, if one did
    cells: Sequence[Config] = ()  # what was predicted and may be measured as well
    usable_cores: float = math.inf  # of the machine that it is measured on
    # What has the values that the user named: measured once before anything is repeated.
    asked: Collection[Config] = ()

    def propose(
        self, history: Sequence[Trial], *, remaining_s: float | None = None
    ) -> Proposal | StopReason:
        """What to measure next.

        Args:
            history: All trials so far; those of configurations outside the plan are ignored, and of
                those that explain all but what they cost.
            remaining_s: What is left of the budget; ``None`` for no limit.
        """
        planned = {*self.plan.configs, *self.cells}
        trials, traced = (
            [trial for trial in history if trial.config in planned and trial.purpose == purpose]
            for purpose in ("measure", "explain")
        )
        tried = {trial.config for trial in trials}
        failed = {trial.config for trial in trials if trial.outcome != "completed"}
        untried = [c for c in by_importance(self.plan.configs, self.plan.present) if c not in tried]
        untried.sort(key=lambda config: config not in self.asked)
        left_s = math.inf if remaining_s is None else remaining_s
        room = SweepBudget.of([*traced, *trials], self.plan, left_s)
        if untried and remaining_s is not None and (belief := self._judge(trials)) is not None:
            seen = (belief.blocks[each.key] for each in self._members(trials, 1, room))
            due = sum(max(0, self.plan.min_repeats - blocks) for blocks in seen)
            room = dataclasses.replace(room, due=due)
        new = room.for_new(untried, tried, asked=self.asked)
        current = max((trial.repetition for trial in trials), default=0)
        reason: StopReason = "complete"
        for block in range(current, min(current + 2, self.plan.max_repeats)):
            earlier = [trial for trial in trials if trial.repetition < block]
            costs = SweepBudget.of([*traced, *earlier], self.plan)
            members = self._members(earlier, block, costs, padded=not untried)
            done = {trial.config for trial in trials if trial.repetition == block}
            # What failed in this very block was not known when it began.
            hopeless = {c for c in {*members} - tried if any(map(c.asks_as_much_as, failed))}
            again = [c for c in members if c not in done | hopeless]
            todo = [c for c in new if c in self.asked] if block else []
            todo = todo or [*again, *new]
            if not todo:
                continue
            if not new and block >= self.plan.min_repeats and len(members) < 2:
                reason = "decided"
                break
            if not any(map(room.fits, todo)):
                reason = "budget"
                break
            sure = room.surely(todo)
            if block == 0:
                fitting = set(room.for_new(new, tried, _SURE, asked=self.asked))
                sure = list(itertools.takewhile(fitting.__contains__, new))
            logs = self.expected.log_rates if self.expected is not None else {}
            rates = {c: logs[c.key] for c in sure if c.key in logs}
            if block == 0 and rates:
                # The cheapest that may be the best, lest others spend the budget; then few workers
                # before many, which show what more of them take to start.
                least = -math.inf if tried else max(rates.values()) - NEAR_LOG
                near = (c for c in rates if rates[c] >= least)
                sure = [min(near, key=lambda config: config.cost_key)]
            return self._next(todo, sure, block, room)
        if any(map(room.fits, untried)):  # better one more seen once than time left over
            return self._next(untried, (), current, room)
        return "budget" if untried else reason

    def _members(
        self, earlier: Sequence[Trial], block: int, costs: SweepBudget, *, padded: bool = False
    ) -> list[Config]:
        """What the next block holds: the choice, and what may be better, by how much it may.

        Judged again for each block: one that was dropped comes back if later blocks speak for it.
        If ``padded``, first repeats, and those of a new choice, hold what comes nearest where
        nothing may be better: drift does not show in one alone.
        """
        belief = self._judge(earlier)
        if belief is None:
            return []
        failed = {trial.config for trial in earlier if trial.outcome != "completed"}
        # What is known of and did not fail, nor asks for as much as what did; cheapest first.
        known = {*self.plan.configs, *self.cells} - failed
        working = [
            each
            for each in sorted(known, key=lambda config: config.cost_key)
            if each.key in belief.log_rates
            if belief.blocks[each.key] or not any(map(each.asks_as_much_as, failed))
        ]
        seen = [c for c in working if belief.blocks[c.key]]
        if not seen and failed:
            seen = working  # what is predicted of the rest, where all that was tried failed
        if not seen:
            return []
        expected, over = self.expected, dict[str, float]()
        if expected is not None and not any(trial.whole_epochs for trial in earlier):
            steady = expected.log_rates  # which hold no turnovers
            over = {key: log - steady[key] for key, log in expected.epoch_log_rates.items()}
        rates = {each: belief.log_rates[each.key] + over.get(each.key, 0.0) for each in working}

        def gap(one: Config, two: Config) -> Gap:
            return belief.gap(one.key, two.key)._replace(value=rates[one] - rates[two])

        pick = near_best({c: rates[c] for c in seen}, self.plan.present, gap)[0]
        others = [c for c in working if belief.groups[c.key] != belief.groups[pick.key]]
        gaps = {c: gap(c, pick) for c in others}
        cores = self.usable_cores
        own = ((t, observe(t, usable_cores=cores)) for t in earlier if t.config == pick)
        waits = ((t, o, t.wait_fraction) for t, o in own if o is not None)
        room = room_of(waits, over.get(pick.key, 0.0))
        short = belief.shortfall(pick.key, {c.key: gap for c, gap in gaps.items()}, room)
        # What narrows that most for its time is what would most likely go beyond it.
        cost_s = {c: max(costs.expected_s(c), 1e-3) for c in others}
        ahead = sorted(others, key=lambda c: gaps[c].chance(short) / cost_s[c], reverse=True)
        share = (1 - PROBABILITY) / max(1, len(others))
        # What the gain is shown over, again where one disturbed trial would decide it alone.
        shown = {self.plan.present, Config(batch_size=pick.batch_size)}
        once = (c for c in seen if c in shown and c in gaps and belief.blocks[c.key] == 1)
        less = [c for c in once if gaps[c].value < -NEAR_LOG]
        unclear = [c for c in less if self._is_disturbed(c, earlier, belief, gaps[c])]
        if not self.plan.take_turns:  # so many repeats are asked for of all that isn't ruled out
            level = [c for c in working if belief.groups[c.key] == belief.groups[pick.key]]
            close = [c for c in ahead if gaps[c].chance(-NEAR_LOG) > share or c in unclear]
            planned = {*self.plan.configs}
            return [*level, *(each for each in close if each in planned)]
        rivals = [c for c in ahead if gaps[c].chance(NEAR_LOG) > share]
        if short <= NEAR_LOG or not rivals:
            early, open_ = block < self.plan.min_repeats, room is None or room.most > NEAR_LOG
            few = open_ and belief.blocks[pick.key] < self.plan.min_repeats
            rivals = [c for c in ahead if padded and (early or (few and belief.blocks[c.key]))]
        groups = dict.fromkeys(belief.groups[each.key] for each in [pick, *rivals])
        twins = {group: [c for c in working if belief.groups[c.key] == group] for group in groups}
        # Those that differ between epochs only have one rate, and take turns.
        turns = [some[block % len(some)] for some in twins.values()]
        # Others of the same number of workers add less: predictions of these are off alike.
        first = {each.num_workers: each for each in reversed(turns[1:])}.values()
        spread = sorted(turns[1:], key=lambda each: each not in first)
        chosen = [turns[0], *spread[:_RIVALS]]
        done = {belief.groups[each.key] for each in chosen}
        return [*chosen, *(c for c in unclear if belief.groups[c.key] not in done)]

    def _is_disturbed(
        self, config: Config, earlier: Sequence[Trial], belief: Belief, gap: Gap
    ) -> bool:
        """Whether what was measured of one rests on a disturbed trial, by what all else says.

        Others disturbed its only one, and its gap to the choice is open by more than a factor of
        two; or the model and all other trials have it faster, which say little where these prove
        the model wrong.
        """
        if gap.factor().is_wide and any(t.noisy for t in earlier if t.config == config):
            return True
        rest = self._judge([trial for trial in earlier if trial.config != config])
        return rest is not None and belief.too_little(config.key, rest) > 0

    def _judge(self, trials: Sequence[Trial]) -> Belief | None:
        """What is believed by trials that worked, and by predictions; ``None`` without either."""
        failed = {trial.config for trial in trials if trial.outcome != "completed"}
        worked = (trial for trial in trials if trial.config not in failed)
        known = (observe(trial, usable_cores=self.usable_cores) for trial in worked)
        seen = [each for each in known if each is not None]
        expected = self.expected
        if expected is not None and any(o.whole_epochs for o in seen):  # all of them over such
            rates = {**expected.log_rates, **expected.epoch_log_rates}
            expected = dataclasses.replace(expected, log_rates=rates)
        return believe(seen, expected) if seen or (expected and expected.log_rates) else None

    def _next(
        self, todo: Sequence[Config], sure: Collection[Config], block: int, room: SweepBudget
    ) -> Proposal:
        """The next of the block: in the block's own order as far as there is surely time for it.

        Where time is short, the one that fits and says most: the order that evens out drift is
        worth less than what would be left out for it.
        """
        shuffled = sorted({*self.plan.configs, *todo}, key=lambda config: config.cost_key)
        random.Random(f"{self.seed}-{block}").shuffle(shuffled)
        chosen = next((config for config in shuffled if config in sure), None)
        chosen = chosen or next(filter(room.fits, todo))
        survivors = len(todo) if block else expected_survivors(len(self.plan.configs))
        blocks = self.plan.planned_repeats if self.expected is None else self.plan.max_repeats
        survivors = survivors if self.expected is None else 1 + _RIVALS
        later = max(0, blocks - block - 1) * survivors
        rest_s = sum(map(room.expected_s, todo)) + later * room.typical_s
        return Proposal(
            config=chosen,
            repetition=block,
            trial_s=self.plan.trial_s,
            expected_s=room.expected_s(chosen),
            expected_rest_s=min(rest_s, room.left_s),
        )


_SURE = 2.0  # what fits even if trials take this many times as long as expected fits surely


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepBudget:
    """What trials cost, as far as is known by now, and what of a budget that leaves room for."""

    plan: Plan  # what was expected before any was run
    known_s: Mapping[Config, float]  # the most so far of each configuration that was measured
    factor: float  # how many times what was expected completed trials turned out to cost
    start_s: float = 0.0  # what each of their workers took beside that
    left_s: float = math.inf  # rest of the budget
    due: int = 0  # repeats that those still need which by now may be the best

    @classmethod
    def of(cls, trials: Sequence[Trial], plan: Plan, left_s: float = math.inf) -> SweepBudget:
        """What the trials so far have shown."""
        known_s: dict[Config, float] = {}
        for trial in (trial for trial in trials if trial.purpose == "measure"):
            known_s[trial.config] = max(trial.wall_s, known_s.get(trial.config, 0.0))
        rows = [  # what was planned for, workers, what it took, and whether it is as those to come
            (plan.cost.of(each.config, window_s), each.config.num_workers, each.wall_s, alike)
            for each in trials
            if each.outcome == "completed"
            for alike in [each.purpose == "measure"]
            for window_s in [plan.trial_s if alike else each.measured_s]
        ]
        took_s, planned_s = (sum(row[i] for row in rows if row[3]) for i in (2, 0))
        factor, start_s = took_s / planned_s if took_s and planned_s else 1.0, 0.0
        # By least squares over those with workers, whose start is not planned for.
        pp, pw, ww, pt, wt = (
            sum(row[i] * row[j] for row in rows if row[1])
            for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
        )
        if (apart := pp * ww - pw**2) > 1e-6 * pp * ww:
            both = (pt * ww - wt * pw) / apart, (wt * pp - pt * pw) / apart
            factor, start_s = both if min(both) > 0 else (factor, start_s)
        return cls(plan=plan, known_s=known_s, factor=factor, start_s=start_s, left_s=left_s)

    def expected_s(self, config: Config) -> float:
        """What one trial of a configuration will cost."""
        planned_s = self.factor * self.plan.cost.of(config, self.plan.trial_s)
        return self.known_s.get(config, planned_s + self.start_s * config.num_workers)

    @property
    def typical_s(self) -> float:
        """The mean over all that is planned."""
        return sum(map(self.expected_s, self.plan.configs)) / len(self.plan.configs)

    def fits(self, config: Config) -> bool:
        """Whether one trial more of a configuration fits."""
        return self.expected_s(config) <= self.left_s

    def surely(self, wanted: Sequence[Config]) -> list[Config]:
        """As many of the first as fit even if trials cost more than expected."""
        spent_s = itertools.accumulate(_SURE * self.expected_s(each) for each in wanted)
        return [each for each, sum_s in zip(wanted, spent_s, strict=True) if sum_s <= self.left_s]

    def for_new(
        self,
        wanted: Sequence[Config],
        tried: Collection[Config],
        times: float = 1.0,
        *,
        asked: Collection[Config] = (),
    ) -> list[Config]:
        """Those that are to be measured for the first time; those that don't fit are passed over.

        Room is kept to measure the best few again: where trials cost more than was planned, fewer
        configurations known twice say more than all of them known once. None is kept from what is
        ``asked``: who names a value wants to see it.
        """
        found: list[Config] = []
        tried_s, new_s, rounds = sum(map(self.expected_s, tried)), 0.0, self.plan.min_repeats - 1
        for config in wanted:
            all_s = new_s + self.expected_s(config)
            new, count = len(found) + 1, len(tried) + len(found) + 1
            # Repeats that are due, and one round more where a new one is as good.
            rivals = min(count - 1, expected_survivors(count)) * rounds
            # So many configurations are measured before any room is kept for repeats:
            # one alone, however often it is measured, recommends nothing.
            repeats = min(self.due + new * rounds, rivals) if count > 2 else 0
            repeats = 0 if config in asked else repeats
            if times * all_s + repeats * (tried_s + all_s) / count <= self.left_s:
                found.append(config)
                new_s = all_s
        return found
