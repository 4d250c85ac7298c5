"""How much can be measured within the budget: how long a trial is, and which configurations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.errors import UsageError
from dlprof.records import Config, LeftOut
from dlprof.settings import SweepSettings
from dlprof.units import format_duration

SHORTEST_TRIAL_S = 0.3
"""Shorter windows hold too few batches for an interval of their own."""

LONGEST_TRIAL_S = 3.0
"""Longer ones don't help: drift between trials is the larger part, which only repeats even out."""

DEFAULT_OVERHEAD_S = 0.4
"""What a trial costs beside its window before any was run: a process forked with torch loaded,
workers started, queues filled, figures sent back."""

MIN_REPEATS = 2
MAX_REPEATS = 8
"""Blocks where the user names no number: two to see drift at all, and eight because the interval
then shrinks by less than 7 % with each further one."""

PLANNED_REPEATS = 3
"""Blocks that the length of a trial is planned for."""

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the grid search carries out.

    Attributes:
        configs: To be measured, in their stable order.
        trial_s: Length of a trial's measured window.
        min_repeats: Blocks before the search may call itself decided.
        max_repeats: Blocks after which it is complete.
        planned_repeats: Blocks that it is likely to take.
        take_turns: Whether, after the first block, configurations of the same steady rate (those
            that differ only in ``persistent_workers``) are measured in turn rather than all in
            each block.
        overhead_s: Expected cost of a trial beside its window.
        left_out: What the budget had no room for.
    """

    configs: tuple[Config, ...]
    trial_s: float
    min_repeats: int = MIN_REPEATS
    max_repeats: int = MAX_REPEATS
    planned_repeats: int = PLANNED_REPEATS
    take_turns: bool = True
    overhead_s: float = DEFAULT_OVERHEAD_S
    left_out: tuple[LeftOut, ...] = ()


def plan_trials(
    configs: Sequence[Config],
    settings: SweepSettings,
    *,
    overhead_s: float = DEFAULT_OVERHEAD_S,
    spent_s: float = 0.0,
) -> Plan:
    """Fit the trials into the budget.

    All configurations are measured once, and about a third of them, three at least, again in each
    later block. Trials are as long as that allows for three blocks, between ``SHORTEST_TRIAL_S``
    and ``LONGEST_TRIAL_S``. Where two blocks of the shortest don't fit, the least important
    configurations are left out (see ``by_importance``).

    Args:
        configs: What the space holds.
        settings: ``budget_s``, ``trial_s`` and ``repeats`` are used.
        overhead_s: What a trial costs beside its window, the target's build where it can't be
            shared among them included.
        spent_s: What building and probing the target has taken of the budget already.

    Raises:
        UsageError: If the budget can't hold a single trial.
    """
    budget_s = settings.budget_s - spent_s
    shortest = (settings.trial_s or SHORTEST_TRIAL_S) + overhead_s
    if shortest > budget_s:
        enough = format_duration(math.ceil(spent_s + shortest * _trials(3, MIN_REPEATS)))
        raise UsageError(
            f"A budget of {format_duration(settings.budget_s)} can't hold a single trial, "
            f"which takes about {format_duration(spent_s + shortest)} with all before it",
            hint=f"Give a budget of {enough} or more.",
        )
    least = settings.repeats or MIN_REPEATS
    fitting = [n for n in range(1, len(configs) + 1) if _trials(n, least) * shortest <= budget_s]
    count = max(fitting, default=1)
    planned = settings.repeats or PLANNED_REPEATS
    affordable = budget_s / _trials(count, planned) - overhead_s
    trial_s = settings.trial_s or min(LONGEST_TRIAL_S, max(SHORTEST_TRIAL_S, affordable))
    chosen = sorted(by_importance(configs)[:count], key=lambda config: config.cost_key)
    return Plan(
        configs=tuple(chosen),
        trial_s=trial_s,
        min_repeats=least,
        max_repeats=settings.repeats or MAX_REPEATS,
        planned_repeats=planned,
        take_turns=settings.repeats is None,
        overhead_s=overhead_s,
        left_out=_left_out(
            len(configs),
            count,
            settings.budget_s,
            spent_s + _trials(len(configs), least) * shortest,
        ),
    )


def by_importance(configs: Sequence[Config]) -> list[Config]:
    """Configurations in the order in which a short budget should take them.

    First every ``num_workers`` with everything else at its plainest (``prefetch_factor=2``, not
    pinned, workers not kept), the range halved again and again so that any first few span it;
    then those that differ from that in one setting, then in two, and so on.
    """
    places = {w: place for place, w in enumerate(_coarse_first({c.num_workers for c in configs}))}
    plainest = {axis: _plainest(configs, axis) for axis in _AXES}

    def importance(config: Config) -> tuple[object, ...]:
        axes = _AXES if config.num_workers else _MEANINGFUL_WITHOUT_WORKERS
        differs = tuple(
            place
            for place, axis in enumerate(_AXES)
            if axis in axes and getattr(config, axis) != plainest[axis]
        )
        return len(differs), differs, places[config.num_workers], config.cost_key

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


def _trials(configs: int, repeats: int) -> int:
    """Trials expected for so many configurations, most ruled out after their first."""
    return configs + (repeats - 1) * expected_survivors(configs)


def expected_survivors(configs: int) -> int:
    """How many of so many configurations the first block is expected to leave."""
    return max(min(configs, 3), math.ceil(configs / 3))


def _left_out(total: int, count: int, budget_s: float, needed_s: float) -> tuple[LeftOut, ...]:
    if count == total:
        return ()
    reason = (
        f"a budget of {format_duration(budget_s)} holds {count}, the most telling ones; "
        f"all need about {format_duration(math.ceil(needed_s))}"
    )
    return (LeftOut(setting=f"{total - count} of {total} configurations", reason=reason),)
