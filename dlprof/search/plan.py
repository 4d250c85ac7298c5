"""How much can be measured within the budget: how long a trial is, and which configurations."""

from __future__ import annotations

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

_MEANINGFUL_WITHOUT_WORKERS = ("batch_size", "pin_memory")


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
    if cost.of(ordered[0], shortest_s) > budget_s:
        raise _too_little(ordered, settings, cost, spent_s)
    blocks = settings.repeats or 1
    count = max(
        _holds(ordered, blocks, cost, shortest_s, budget_s), min(len(ordered), LEAST_CONFIGS)
    )
    planned = settings.repeats or PLANNED_REPEATS
    plan = Plan(
        configs=tuple(sorted(ordered[:count], key=lambda config: config.cost_key)),
        trial_s=settings.trial_s or _longest_s(ordered[:count], planned, cost, budget_s),
        min_repeats=settings.repeats or MIN_REPEATS,
        max_repeats=settings.repeats or MAX_REPEATS,
        planned_repeats=planned,
        take_turns=settings.repeats is None,
        cost=cost,
        present=present,
    )
    needed_s = spent_s + _total_s(ordered, settings.repeats or MIN_REPEATS, cost, shortest_s)
    return plan, _left_out(len(configs), count, settings.budget_s, needed_s)


def refuse_budget(settings: SweepSettings) -> None:
    """Refuse a budget that can't hold a trial whatever the target, before it is built.

    Raises:
        UsageError: It is smaller than the shortest trial of batches that cost nothing.
    """
    least_s = TrialCost(overhead_s=DEFAULT_OVERHEAD_S).of(
        Config(), settings.trial_s or SHORTEST_TRIAL_S
    )
    if least_s > settings.budget_s:
        raise UsageError(
            f"A budget of {format_duration(settings.budget_s)} can't hold a single trial, which "
            f"takes {format_duration(least_s)} at least",
            hint=f"Give a budget of {format_duration(math.ceil(10 * least_s))} or more.",
        )


def _holds(
    ordered: Sequence[Config], repeats: int, cost: TrialCost, trial_s: float, budget_s: float
) -> int:
    """How many of the first can be measured within the budget."""
    first_s = 0.0
    for count, config in enumerate(ordered, start=1):
        first_s += cost.of(config, trial_s)
        if _with_repeats_s(first_s, count, repeats) > budget_s:
            return count - 1
    return len(ordered)


def _total_s(configs: Sequence[Config], repeats: int, cost: TrialCost, trial_s: float) -> float:
    """Expected cost of a whole sweep, most configurations ruled out after their first trial."""
    first_s = math.fsum(cost.of(config, trial_s) for config in configs)
    return _with_repeats_s(first_s, len(configs), repeats)


def _with_repeats_s(first_s: float, count: int, repeats: int) -> float:
    """Cost of a whole sweep of so many configurations whose first block takes ``first_s``."""
    return first_s * (1 + (repeats - 1) * expected_survivors(count) / count)


def _longest_s(configs: Sequence[Config], repeats: int, cost: TrialCost, budget_s: float) -> float:
    """The longest window with which the sweep still fits, to a hundredth of the range."""
    steps = 100
    for step in range(steps, 0, -1):
        trial_s = SHORTEST_TRIAL_S + (LONGEST_TRIAL_S - SHORTEST_TRIAL_S) * step / steps
        if _total_s(configs, repeats, cost, trial_s) <= budget_s:
            return trial_s
    return SHORTEST_TRIAL_S


def _too_little(
    ordered: Sequence[Config], settings: SweepSettings, cost: TrialCost, spent_s: float
) -> UsageError:
    trial_s = settings.trial_s or SHORTEST_TRIAL_S
    enough_s = math.ceil(spent_s + _total_s(ordered[:3], MIN_REPEATS, cost, trial_s))
    return UsageError(
        f"A budget of {format_duration(settings.budget_s)} can't hold a single trial, which takes "
        f"about {format_duration(spent_s + cost.of(ordered[0], trial_s))} with all before it",
        hint=f"Give a budget of {format_duration(enough_s)} or more.",
    )


def by_importance(configs: Sequence[Config], present: Config | None = None) -> list[Config]:
    """Configurations in the order in which a short budget should take them.

    First the present settings, which every gain is told against; then every ``num_workers`` with
    everything else at its plainest (``prefetch_factor=2``, not pinned, workers not kept), the
    range halved again and again so that any first few span it; then those that differ from that
    in one setting, then in two, and so on.
    """
    others = [config for config in configs if config != present] or configs
    places = {w: place for place, w in enumerate(_coarse_first({c.num_workers for c in others}))}
    plainest = {axis: _plainest(others, axis) for axis in _AXES}

    def importance(config: Config) -> tuple[object, ...]:
        axes = _AXES if config.num_workers else _MEANINGFUL_WITHOUT_WORKERS
        differs = tuple(
            place
            for place, axis in enumerate(_AXES)
            if axis in axes and getattr(config, axis) != plainest[axis]
        )
        place = places.get(config.num_workers, 0)
        return config != present, len(differs), differs, place, config.cost_key

    return sorted(configs, key=importance)


def _plainest(configs: Sequence[Config], axis: str) -> object:
    """The value of one setting that stands for "nothing special"."""
    with_workers = [config for config in configs if config.num_workers]
    values = [
        getattr(config, axis)
        for config in sorted(with_workers or configs, key=lambda config: config.cost_key)
    ]
    return 2 if axis == "prefetch_factor" and 2 in values else values[0]


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


def _left_out(total: int, count: int, budget_s: float, needed_s: float) -> tuple[LeftOut, ...]:
    if count == total:
        return ()
    reason = (
        f"a budget of {format_duration(budget_s)} holds {count} at most, the most telling ones; "
        f"all need about {format_duration(math.ceil(needed_s))}"
    )
    return (LeftOut(setting=f"{total - count} of {total} configurations", reason=reason),)
