"""How a model-led sweep calibrates: when it can, by which trials, and for how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dlprof.records import Calibration, Config, Plan, Trial, TrialCost
from dlprof.search.grid import Proposal
from dlprof.search.plan import SHORTEST_TRIAL_S
from dlprof.settings import SweepSettings, several_calibrations

_WORKERS = (0, 1, 2)
_TRIAL_S = 0.8
"""Longer where the cost's spread asks for it."""

_RACE_TRIAL_S = 1.0
"""Length of the windows that verify a prediction, where there is time for it: a loader of 24
workers takes as long to start and to end, and has a quarter of a second's batches in hand."""

_RACED = 5
"""Most configurations of a race (``dlprof.search.foretell``)."""

_LONGEST_S = 2.0
_CAP_S = 6.0
"""Measured seconds after which calibrating ends, however much batches vary: what remains open then
is told by the intervals, and the race sees to it."""

_PRECISION = 0.03
"""Relative standard error of the mean batch cost that is enough: the model is as far off."""

_FEW = 6
"""So many configurations are measured as quickly as they are calibrated and verified."""

_MOST_BLOCKS = 6
"""Errors fall with the root of the number of blocks: a seventh would narrow them by 7 %."""


def wants_model(settings: SweepSettings, grid: Sequence[Config]) -> bool:
    """Whether a sweep is led by the model.

    With ``search = auto`` it is, but where few configurations are asked for, where the user says
    how often each is to be measured, or where one calibration does not cover them.

    Args:
        settings: What the user asked for.
        grid: What would be measured without a model, and can work.
    """
    if settings.search != "auto":
        return settings.search == "model"
    several = several_calibrations(settings) is not None
    return len(grid) > _FEW and settings.repeats is None and not several


def calibration_configs(
    cells: Sequence[Config], iterable_present: Config | None = None
) -> tuple[Config, ...]:
    """The configurations to calibrate by: none, one and two workers, everything else plain.

    Where pinning is compared, the last of them is calibrated with it as well: what pinning costs
    and what it spares the copies follows from nothing else.

    Args:
        cells: What is to be predicted; only of these, and with the fewest workers there are where
            that is more than two.
        iterable_present: The settings as they are of an iterable dataset, which alone decides how
            many workers it feeds: with more of them than two, it is looked at as well.
    """
    counts = {cell.num_workers for cell in cells}
    chosen = [count for count in _WORKERS if count in counts]
    if not any(chosen):  # without workers nothing is handed over
        chosen += sorted(counts - {0})[:1]
    plainest = sorted(cells, key=lambda c: (c.prefetch_factor != 2, c.pin_memory, c.cost_key))
    plain = [next(cell for cell in plainest if cell.num_workers == count) for count in chosen]
    pinned = [dataclasses.replace(each, pin_memory=True) for each in plain[-1:]]
    beside = [each for each in pinned if each not in plain]
    if iterable_present is not None and iterable_present.num_workers > max(_WORKERS):
        beside.insert(0, iterable_present)
    return (*plain[:-1], *(each for each in beside if each in cells), *plain[-1:])


def has_room(plan: Plan, cost: TrialCost, left_s: float) -> bool:
    """Whether a budget holds the calibration and as many trials to verify it."""
    one = sum(cost.of(config, _TRIAL_S) for config in plan.calibration)
    again = max((cost.of(config, plan.trial_s) for config in plan.calibration), default=0.0)
    return one + 4 * again <= left_s


def race_trial_s(plan: Plan, left_s: float) -> float:
    """How long the windows that verify a prediction may be within what is left of a budget.

    As long as they should be, where the planned repeats of all that is raced then find room.
    """
    cost = plan.cost
    calibrating_s = sum(cost.of(config, _TRIAL_S) for config in plan.calibration)
    likely = [c for c in plan.cells if c.num_workers <= 2 * cost.usable_cores]
    beside_s = max((cost.of(config, 0.0) for config in likely), default=0.0)
    window_s = (left_s - calibrating_s) / (plan.planned_repeats * _RACED) - beside_s
    return min(max(window_s, SHORTEST_TRIAL_S), _RACE_TRIAL_S)


def next_calibration(
    plan: Plan, explained: Sequence[Trial], calibration: Calibration | None
) -> Proposal | None:
    """The trial to calibrate by next; ``None`` when enough is known.

    Args:
        plan: Names the configurations.
        explained: The traced trials so far.
        calibration: What they tell together.
    """
    done = [trial.config for trial in explained]
    for config in plan.calibration:
        if config not in done:
            return _proposal(plan, config, _TRIAL_S, 0)
    failed = {trial.config for trial in explained if trial.failure is not None}
    working = [config for config in plan.calibration if config not in failed]
    # Windows that held nothing count, too, so that this ends.
    spent_s = sum(max(trial.measured_s, _TRIAL_S / 2) for trial in explained)
    error = calibration.standard_error if calibration is not None else None
    if error is None or error <= _PRECISION or spent_s >= _CAP_S or not working:
        return None
    wanted_s = spent_s * ((error / _PRECISION) ** 2 - 1)
    longer_s = min(max(wanted_s, _TRIAL_S), _CAP_S - spent_s, _LONGEST_S)
    if longer_s < _TRIAL_S / 2:
        return None
    return _proposal(plan, working[-1], longer_s, done.count(working[-1]))


def _proposal(plan: Plan, config: Config, trial_s: float, repetition: int) -> Proposal:
    """One more, and what is foreseen after it: the rest of the calibration and a short race."""
    expected_s = plan.cost.of(config, trial_s)
    places = [place for place, each in enumerate(plan.calibration) if each == config]
    left = plan.calibration[places[0] + 1 :] if places and not repetition else ()
    rest_s = sum(plan.cost.of(each, _TRIAL_S) for each in left)
    race_s = 2 * _FEW * plan.cost.of(config, plan.trial_s)
    return Proposal(
        config=config,
        repetition=repetition,
        trial_s=trial_s,
        expected_s=expected_s,
        expected_rest_s=expected_s + rest_s + race_s,
    )


def race_plan(plan: Plan, race: Sequence[Config]) -> Plan:
    """The plan of measuring what a prediction leaves, first of all the few that tell most."""
    return dataclasses.replace(
        plan,
        configs=tuple(race),
        max_repeats=max(plan.min_repeats, min(plan.max_repeats, _MOST_BLOCKS)),
        present=plan.present if plan.present in race else None,
    )
