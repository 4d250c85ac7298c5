"""How a sweep is led by the model: what it calibrates by, what it predicts, what else may pay."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from dlprof.model.predict import MODEL_ERROR, cells_of, predict_all, relative_error
from dlprof.model.work import Conditions
from dlprof.records import (
    Calibration,
    Config,
    Plan,
    PredictedCell,
    SweepPrediction,
    Trial,
    TrialCost,
)
from dlprof.search.grid import Proposal
from dlprof.search.space import FEW, MIN_REPEATS, SHORTEST_TRIAL_S
from dlprof.settings import SweepSettings, several_calibrations
from dlprof.stats.belief import CALIBRATED, NEAR

_WORKERS = (0, *sorted(CALIBRATED))
_TRIAL_S = 0.8  # longer where the cost's spread asks for it


def wants_model(settings: SweepSettings, grid: Sequence[Config]) -> bool:
    """Whether a sweep is led by the model.

    With ``search = auto`` it is, but where few configurations are asked for, where the user says
    how often each is to be measured, or where one calibration does not cover them.
    """
    if settings.search != "auto":
        return settings.search == "model"
    several = several_calibrations(settings) is not None
    return len(grid) > FEW and settings.repeats is None and not several


def calibration_configs(
    cells: Sequence[Config], iterable_present: Config | None = None
) -> tuple[Config, ...]:
    """The configurations to calibrate by: none, one and two workers, everything else plain.

    Only of what is to be predicted (``cells``), with the fewest workers there are where that is
    more than two. Where pinning is compared, the last of them is calibrated with it as well: what
    pinning costs and what it spares the copies follows from nothing else. An iterable dataset alone
    decides how many workers it feeds: its present settings are looked at, too, if those are more.
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


def needed_s(plan: Plan, cost: TrialCost) -> float:
    """What the calibration takes, and as many trials, and one more, to verify it."""
    one = sum(cost.of(config, _TRIAL_S) for config in plan.calibration)
    again = max((cost.of(config, plan.trial_s) for config in plan.calibration), default=0.0)
    return one + (1 + len(plan.calibration)) * again


def final_trial_s(plan: Plan, left_s: float) -> float:
    """How long windows that verify a prediction may be, if a budget is to hold their repeats."""
    cost = plan.cost
    calibrating_s = sum(cost.of(config, _TRIAL_S) for config in plan.calibration)
    likely = [c for c in plan.cells if c.num_workers <= 2 * cost.usable_cores]
    beside_s = max((cost.of(config, 0.0) for config in likely), default=0.0)
    # Most ``finalists`` are five.
    window_s = (left_s - calibrating_s) / (plan.planned_repeats * 5) - beside_s
    # Length of the windows that verify a prediction, where there is time for it: a loader of 24
    # workers takes as long to start and to end, and has a quarter of a second's batches in hand.
    return min(max(window_s, SHORTEST_TRIAL_S), 1.0)


def next_calibration(
    plan: Plan, explained: Sequence[Trial], calibration: Calibration | None
) -> Proposal | None:
    """The trial to calibrate by next; ``None`` when enough is known."""
    done = [trial.config for trial in explained]
    for config in plan.calibration:
        if config not in done:
            return _proposal(plan, config, _TRIAL_S, 0)
    failed = {trial.config for trial in explained if trial.failure is not None}
    working = [config for config in plan.calibration if config not in failed]
    # Windows that held nothing count, too, so that this ends.
    spent_s = sum(max(trial.measured_s, _TRIAL_S / 2) for trial in explained)
    error = calibration.standard_error if calibration is not None else None
    # After so many measured seconds calibrating ends, however much batches vary: the intervals
    # show what remains open then, and the final comparison sees to it.
    left_s = 6.0 - spent_s
    # A mean batch cost that is known as well as the model is known well enough.
    if error is None or error <= MODEL_ERROR or left_s <= 0 or not working:
        return None
    known_s = sum(trial.measured_s for trial in explained if trial.config.num_workers) or spent_s
    wanted_s = known_s * ((error / MODEL_ERROR) ** 2 - 1)
    longer_s = min(max(wanted_s, _TRIAL_S), left_s, 2.0)
    if longer_s < _TRIAL_S / 2:
        return None
    return _proposal(plan, working[-1], longer_s, done.count(working[-1]))


def _proposal(plan: Plan, config: Config, trial_s: float, repetition: int) -> Proposal:
    """One more, and what is to come after it: the other calibrations, a short final comparison."""
    expected_s = plan.cost.of(config, trial_s)
    places = [place for place, each in enumerate(plan.calibration) if each == config]
    left = plan.calibration[places[0] + 1 :] if places and not repetition else ()
    rest_s = sum(plan.cost.of(each, _TRIAL_S) for each in left)
    final_s = 2 * FEW * plan.cost.of(config, plan.trial_s)
    return Proposal(
        config=config,
        repetition=repetition,
        trial_s=trial_s,
        expected_s=expected_s,
        expected_rest_s=expected_s + rest_s + final_s,
    )


def final_plan(plan: Plan, finalists: Sequence[Config]) -> Plan:
    """The plan of measuring what a prediction leaves, first of all the few that say most."""
    # Errors fall with the root of the number of blocks: a seventh would narrow them by 7 %.
    return dataclasses.replace(
        plan,
        configs=tuple(finalists),
        max_repeats=max(plan.min_repeats, min(plan.max_repeats, 6)),
        present=plan.present if plan.present in finalists else None,
    )


def predict_sweep(
    calibration: Calibration,
    cells: Sequence[Config],
    conditions: Conditions,
    *,
    present: Config | None = None,
) -> SweepPrediction:
    """Predict all configurations, and choose which to measure.

    Raises:
        ValueError: There are no cells, or the calibration says nothing of such batches.
    """
    if not cells:
        raise ValueError("there is nothing to predict")
    ordered = sorted(cells, key=lambda config: config.cost_key)
    found = predict_all(calibration, ordered, conditions)
    if not all(0 < each.batches_per_s.value < math.inf for each in found):
        raise ValueError("the calibrated batches cost no time at all")
    predicted = cells_of(dict(zip(ordered, found, strict=True)))
    pick = next(cell for cell in predicted if cell.speed >= NEAR)
    return SweepPrediction(
        cells=predicted,
        race=finalists(predicted, pick, present),
        pick=pick.config,
        cores=conditions.cores,
        neighbours=conditions.neighbours,
        log_sd=relative_error(calibration),
        method=found[0].method,
    )


def finalists(
    cells: Sequence[PredictedCell], pick: PredictedCell, present: Config | None
) -> tuple[Config, ...]:
    """Configurations whose measuring says most: what is chosen, and what would prove it wrong."""

    def fastest(least: int, most: int) -> PredictedCell | None:
        """The cheapest of the fastest with so many workers."""
        some = [cell for cell in cells if least <= cell.config.num_workers <= most]
        best = max((cell.speed for cell in some), default=0.0)
        return next((cell for cell in some if cell.speed >= NEAR * best), None)

    workers = pick.config.num_workers
    counts = sorted({cell.config.num_workers for cell in cells})
    more = next((count for count in counts if count >= max(1, 2 * workers)), counts[-1])
    wanted = [
        pick,
        next((cell for cell in cells if cell.config == present), None),
        next((cell for cell in cells if not cell.config.num_workers), None),
        fastest(1, workers // 2) or fastest(1, workers - 1),
        fastest(more, more),
    ]
    found = {cell.config for cell in wanted if cell is not None}
    return tuple(sorted(found, key=lambda config: config.cost_key))


def levers(
    calibration: Calibration,
    pick: Config,
    conditions: Conditions,
    explained: Sequence[Trial],
    *,
    unordered_pays: float,
    swept: Sequence[str] = (),
) -> tuple[Config, ...]:
    """The pick with one setting more changed, where the calibration says that it may pay.

    Those that the user named (``swept``) are compared anyway. ``explained`` are the trials of the
    calibration; from the factor ``unordered_pays`` ``in_order=False`` is worth trying.

    Raises:
        ValueError: The calibration says nothing of such batches.
    """
    if not pick.num_workers:
        return ()
    both = [pick, dataclasses.replace(pick, in_order=False)]
    ordered, unordered = (
        each.batches_per_s.value for each in predict_all(calibration, both, conditions)
    )
    own = (each.usage.own_cpu_cores or 0.0 for each in explained if each.config.num_workers == 1)
    found: dict[str, Any] = {}
    if pick.num_workers > 1 and unordered >= unordered_pays * ordered:
        found["in_order"] = False
    costs = calibration.in_workers
    columns = (costs.receive_cpu_s, costs.receive_io_s) if costs and costs.receive_cpu_s else ()
    receiving_s = sum(statistics.fmean(column) for column in columns if column)
    receiving_s += calibration.receive_busy_s.get("default", 0.0) if columns else 0.0
    # With ``file_descriptor`` each tensor of a batch takes a handshake of its own.
    many = (calibration.batch_tensors or 0) >= 8
    # Share of a batch's period that main spends on receiving from which another way of sharing is.
    if many and receiving_s * ordered >= 0.2:
        found["sharing_strategy"] = "file_system"
    # Cores that a loader of one worker keeps busy from which its worker computes with threads.
    if max(own, default=0.0) > 1.3:
        found["worker_threads"] = 1
    return tuple(
        dataclasses.replace(pick, **{name: value})
        for name, value in found.items()
        if name not in swept and getattr(pick, name) != value
    )


def next_lever(
    plan: Plan, trials: Sequence[Trial], tried: Sequence[Config], pick: Config
) -> Proposal | None:
    """The trial to run next: an extra setting and the pick interleaved, so that drift hits both."""
    done = [trial for trial in trials if trial.purpose == "lever"]
    for repetition in range(MIN_REPEATS):
        for config in tried:
            own = [each for each in done if each.config == config]
            if any(each.failure is not None for each in own) or len(own) > repetition:
                continue
            beside = sum(each.purpose == "lever" and each.config == pick for each in trials)
            expected_s = plan.cost.of(pick, plan.trial_s)
            return Proposal(
                config=pick if beside <= repetition else config,
                repetition=repetition,
                trial_s=plan.trial_s,
                expected_s=expected_s,
                expected_rest_s=expected_s * 2 * len(tried) * (MIN_REPEATS - repetition),
            )
    return None
