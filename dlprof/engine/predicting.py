"""From a sweep's traced trials to its calibration, and from that to what the model predicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dlprof.advise.candidates import most_workers
from dlprof.advise.situation import Situation
from dlprof.advise.thresholds import PAYS
from dlprof.engine.preparation import sensible
from dlprof.errors import UsageError
from dlprof.model import Conditions, fit, needs
from dlprof.records import Calibration, Config, Integrity, Run, SweepPrediction
from dlprof.search.led import levers, predict_sweep
from dlprof.search.space import still_useful

_MANY_PER_CORE, _MANY = (8, 16), 32
"""Workers for each core, up to so many, that are looked at beside those that the model sees a gain
in: on two cores that change their speed 16 gave 7 to 10 % more than 3, 32 a fifth more than 7, as
whichever core is fast has something to do then."""


def calibrated(run: Run) -> Calibration | None:
    """What a run's traced trials show of its batches; ``None`` where they show nothing."""
    found = fit(run.explanations, run.trials, batch_tensors=run.header.target.batch_tensors)
    return sensible(found) if found.is_usable else None


def sweep_prediction(run: Run) -> SweepPrediction | None:
    """What the model says of all configurations that a run's plan names.

    For the machine as busy as it was during the calibration.

    Returns:
        ``None`` where the model can say nothing of them.
    """
    plan, calibration = run.header.plan, run.calibration
    if plan is None or calibration is None:
        return None
    plan = still_useful(plan, Integrity.of(run))
    try:
        conditions = Situation.of(run).conditions
        cells = _worth_predicting(run, calibration, plan.cells, conditions)
        found = predict_sweep(calibration, cells, conditions, present=plan.present)
    except (UsageError, ValueError):
        return None
    if plan.present is None or plan.present not in plan.configs or plan.present in plan.cells:
        return found
    finalists = sorted({*found.race, plan.present}, key=lambda config: config.cost_key)
    return dataclasses.replace(found, race=tuple(finalists))


def levers_of(run: Run, pick: Config) -> tuple[Config, ...]:
    """What beside the swept settings may pay for the pick of a run that holds a calibration."""
    calibration = run.calibration
    if calibration is None:
        return ()
    swept = [name for name, value in run.header.settings.items() if value is not None]
    swept += run.header.target.fixed
    explained = [trial for trial in run.trials if trial.purpose == "explain"]
    try:
        conditions = Situation.of(run).conditions
        return levers(calibration, pick, conditions, explained, unordered_pays=PAYS, swept=swept)
    except (UsageError, ValueError):
        return ()


def _worth_predicting(
    run: Run, calibration: Calibration, cells: Sequence[Config], conditions: Conditions
) -> list[Config]:
    """The cells without more workers than could gain or be measured, unless the user named them.

    On a machine that others keep busy, ever more workers take ever more of the cores from them.
    That is no gain to recommend: what saturates the machine with nobody else on it is enough. And
    what takes too much of the budget to start could not be verified.
    """
    settings, plan = run.header.settings, run.header.plan
    if settings.get("num_workers") is not None or not cells:
        return list(cells)
    alone = dataclasses.replace(conditions, neighbours=0.0)
    most = most_workers(calibration, cells[-1], alone)
    # A few with more are looked at, with shallow queues: deep ones fill slowly.
    share = conditions.cores / conditions.ranks
    each = () if conditions.neighbours else _MANY_PER_CORE
    limits = [min(_MANY, math.ceil(count * share)) for count in each]
    many = {max((c.num_workers for c in cells if c.num_workers <= n), default=0) for n in limits}
    depth = min((c.prefetch_factor or 0 for c in cells if c.num_workers), default=0)
    budget_s = settings.get("budget_s")
    # A trial starts its workers up to three times, and there are several trials; starts of half a
    # second are no reason to leave anything out.
    longest_s = max(0.5, budget_s / 30) if isinstance(budget_s, int | float) else math.inf
    starts_s = {cell: needs(calibration, cell).startup_s for cell in cells}
    # As long as the first batch takes, all of them start, without workers too.
    longest_s += min((each for each in starts_s.values() if each is not None), default=0.0)

    def worth(cell: Config) -> bool:
        looked_at = cell.num_workers in many and cell.prefetch_factor == depth
        few = cell.num_workers <= most or looked_at
        return few and (starts_s[cell] or 0.0) <= longest_s

    present = None if plan is None else plan.present
    return [cell for cell in cells if cell == present or worth(cell)]
