"""How much can be measured within the budget: how long a trial is, and which configurations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dlprof.errors import UsageError
from dlprof.records import Config, LeftOut, Plan, TrialCost
from dlprof.settings import SweepSettings
from dlprof.units import format_duration

SHORTEST_TRIAL_S = 0.3
"""Shorter windows hold too few batches for an interval of their own."""

LONGEST_TRIAL_S = 3.0
"""Longer ones don't help: drift between trials is the larger part, which only repeats even out."""

DEFAULT_OVERHEAD_S = 0.3
"""What a trial costs beside its batches: a process forked with torch loaded, workers started twice,
memory read, figures sent back."""

MIN_REPEATS = 2
MAX_REPEATS = 8
"""Blocks where the user names no number: two to see drift at all, and eight because the interval
then shrinks by less than 7 % with each further one."""

PLANNED_REPEATS = 3
"""Blocks that the length of a trial is planned for."""

LEAST_CONFIGS = 3
"""The few that any sweep sets out to measure: no workers, some and the most. One configuration,
however often it is measured, recommends nothing; and trials may cost less than expected."""

_AXES = (
    "batch_size",
    "in_order",
    "start_method",
    "sharing_strategy",
    "worker_threads",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
)
"""Settings beside ``num_workers``, those that are swept only on request first."""

OF_WORKERS = frozenset(_AXES) - {"batch_size", "pin_memory"}
"""Settings that mean nothing at ``num_workers=0``."""


def plan_trials(
    configs: Sequence[Config],
    settings: SweepSettings,
    cost: TrialCost,
    *,
    spent_s: float = 0.0,
    present: Config | None = None,
) -> tuple[Plan, tuple[LeftOut, ...]]:
    """Fit the trials into the budget.

    All configurations are measured once, and about a third of them, three at least, again in each
    later block. Trials are as long as that allows for three blocks, between ``SHORTEST_TRIAL_S``
    and ``LONGEST_TRIAL_S``. Where one block of the shortest doesn't fit, or the repeats that the
    user asks for don't, the least important configurations are left out (see ``by_importance``),
    down to ``LEAST_CONFIGS``. Where only the repeats of an automatic search don't, the search
    itself finds out how many configurations there is time for.

    Args:
        configs: What the space holds.
        settings: ``budget_s``, ``trial_s`` and ``repeats`` are used.
        cost: What a trial costs, the target's build where trials can't share it included.
        spent_s: What building and probing the target has taken of the budget already.
        present: Which of the configurations the target's own DataLoader is set to now, if it has
            one (``Target.present_settings``); others are ignored.

    Returns:
        The plan, and what the budget had no room for.

    Raises:
        UsageError: If the budget can't hold a single trial.
    """
    budget_s = settings.budget_s - spent_s
    shortest_s = settings.trial_s or SHORTEST_TRIAL_S
    present = present if present in configs else None
    ordered = by_importance(configs, present)
    single_s = cost.of(ordered[0], shortest_s)
    if single_s > budget_s:
        needed_s = spent_s + _total_s(ordered[:3], MIN_REPEATS, cost, shortest_s)
        takes = f"about {format_duration(spent_s + single_s)} with all before it"
        raise _too_little(settings, takes, needed_s)
    blocks = settings.repeats or 1
    # Costs of the first one, two, and so on, with their repeats.
    firsts_s = itertools.accumulate(cost.of(config, shortest_s) for config in ordered)
    wholes_s = (_with_repeats_s(first_s, n, blocks) for n, first_s in enumerate(firsts_s, start=1))
    held = sum(1 for _ in itertools.takewhile(lambda whole_s: whole_s <= budget_s, wholes_s))
    chosen = ordered[: max(held, LEAST_CONFIGS)]
    planned = settings.repeats or PLANNED_REPEATS
    lengths_s = (
        SHORTEST_TRIAL_S + (LONGEST_TRIAL_S - SHORTEST_TRIAL_S) * step / 100
        for step in range(100, 0, -1)
    )
    fitting_s = (s for s in lengths_s if _total_s(chosen, planned, cost, s) <= budget_s)
    plan = Plan(
        configs=tuple(sorted(chosen, key=lambda config: config.cost_key)),
        trial_s=settings.trial_s or next(fitting_s, SHORTEST_TRIAL_S),
        min_repeats=settings.repeats or MIN_REPEATS,
        max_repeats=settings.repeats or MAX_REPEATS,
        planned_repeats=planned,
        take_turns=settings.repeats is None,
        cost=cost,
        present=present,
    )
    if len(chosen) == len(configs):
        return plan, ()
    needed_s = spent_s + _total_s(ordered, settings.repeats or MIN_REPEATS, cost, shortest_s)
    reason = (
        f"a budget of {format_duration(settings.budget_s)} holds {len(chosen)} at most, the most"
        f" informative ones; all need about {format_duration(math.ceil(needed_s))}"
    )
    setting = f"{len(configs) - len(chosen)} of {len(configs)} configurations"
    return plan, (LeftOut(setting=setting, reason=reason),)


def refuse_budget(settings: SweepSettings) -> None:
    """Refuse a budget that can't hold a trial whatever the target, before it is built.

    Raises:
        UsageError: It is smaller than the shortest trial of batches that cost nothing.
    """
    least_s = TrialCost(overhead_s=DEFAULT_OVERHEAD_S).of(
        Config(), settings.trial_s or SHORTEST_TRIAL_S
    )
    if least_s > settings.budget_s:
        raise _too_little(settings, f"{format_duration(least_s)} at least", 10 * least_s)


def _too_little(settings: SweepSettings, takes: str, enough_s: float) -> UsageError:
    budget, enough = format_duration(settings.budget_s), format_duration(math.ceil(enough_s))
    return UsageError(
        f"A budget of {budget} can't hold a single trial, which takes {takes}",
        hint=f"Give a budget of {enough} or more.",
    )


def _total_s(configs: Sequence[Config], repeats: int, cost: TrialCost, trial_s: float) -> float:
    """Expected cost of a whole sweep, most configurations ruled out after their first trial."""
    first_s = math.fsum(cost.of(config, trial_s) for config in configs)
    return _with_repeats_s(first_s, len(configs), repeats)


def _with_repeats_s(first_s: float, count: int, repeats: int) -> float:
    """Cost of a whole sweep of so many configurations whose first block takes ``first_s``."""
    return first_s * (1 + (repeats - 1) * expected_survivors(count) / count)


def by_importance(configs: Sequence[Config], present: Config | None = None) -> list[Config]:
    """Configurations in the order in which a short budget should take them.

    First the present settings, which every gain is told against; then every ``num_workers`` with
    everything else at its plainest (``prefetch_factor=2``, not pinned, workers not kept), the
    range halved again and again so that any first few span it; then those that differ from that
    in one setting, then in two, and so on.
    """
    others = [config for config in configs if config != present] or configs
    places = {w: place for place, w in enumerate(_coarse_first({c.num_workers for c in others}))}
    # What stands for "nothing special" of each setting.
    cheapest = min(others, key=lambda config: (not config.num_workers, config.cost_key))
    plainest = {axis: getattr(cheapest, axis) for axis in _AXES}
    if any(config.num_workers and config.prefetch_factor == 2 for config in others):
        plainest["prefetch_factor"] = 2

    def importance(config: Config) -> tuple[object, ...]:
        differs = tuple(
            place
            for place, axis in enumerate(_AXES)
            if config.num_workers or axis not in OF_WORKERS
            if getattr(config, axis) != plainest[axis]
        )
        place = places.get(config.num_workers, 0)
        return config != present, len(differs), differs, place, config.cost_key

    return sorted(configs, key=importance)


def _coarse_first(values: set[int]) -> list[int]:
    """The smallest, the middle, the largest, then the middles of what lies between."""
    ordered = sorted(values)
    last = len(ordered) - 1
    places = [0, (last + 1) // 2, last]
    gaps = [(places[0], places[1]), (places[1], places[2])]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            places.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [ordered[place] for place in dict.fromkeys(places)]


def expected_survivors(configs: int) -> int:
    """How many of so many configurations the first block is expected to leave."""
    return max(min(configs, 3), math.ceil(configs / 3))
