"""Sweeps led by the model: when, by which trials, what is predicted and what is measured of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import pytest
from builders import config, failed, machine, plan, target, trial
from model_calibrations import fed, tailed
from predicted_runs import calibration

from dlprof.advise.thresholds import MOST_WORKERS
from dlprof.model.predict import RELATIVE_ERROR
from dlprof.model.work import Conditions
from dlprof.records import BatchCosts, Config, Plan, SweepPrediction, Trial, TrialCost, Usage
from dlprof.records.codec import from_json, to_json
from dlprof.search.grid import GridSearch, Proposal, StopReason
from dlprof.search.led import (
    calibration_configs,
    final_plan,
    final_trial_s,
    needed_s,
    next_calibration,
    next_lever,
    predict_sweep,
    wants_model,
)
from dlprof.search.led import levers as levers_of
from dlprof.search.space import build_cells, build_space
from dlprof.settings import SweepSettings
from dlprof.stats.belief import NEAR, ExpectedRates

NET = tuple(
    config(workers, prefetch, persistent_workers=kept)
    for workers in range(17)
    for prefetch in ((2, 4, 8) if workers else (None,))
    for kept in ((False, True) if workers else (False,))
)
CALIBRATING = (config(0), config(1), config(2))
WAITS = calibration(cpu=0.0005, io=0.04)
COMPUTES = calibration(cpu=0.02)
levers = functools.partial(levers_of, unordered_pays=1.1)
WAITING = Usage(own_cpu_cores=0.1, available_cpu_cores=8.0)


def led(**rest: Any) -> Plan:
    fields: dict[str, Any] = {"search": "model", "cells": NET, "calibration": CALIBRATING} | rest
    return plan((config(0), config(2)), **fields)


def explained(chosen: Config, **rest: Any) -> Trial:
    return trial(chosen, purpose="explain", measured_s=0.8, **rest)


@pytest.mark.parametrize(
    ("settings", "configs", "leads"),
    [
        (SweepSettings(), 20, "model"),
        (SweepSettings(), 6, "grid"),
        (SweepSettings(repeats=3), 20, "grid"),
        (SweepSettings(batch_size=(16, 32)), 20, "grid"),
        (SweepSettings(start_method=("fork", "spawn")), 20, "grid"),
        (SweepSettings(search="grid"), 20, "grid"),
        (SweepSettings(search="model"), 3, "model"),
    ],
)
def test_the_model_leads_where_it_saves_measuring(
    settings: SweepSettings, configs: int, leads: str
) -> None:
    assert wants_model(settings, NET[:configs]) is (leads == "model")


def test_what_is_predicted_is_a_finer_net_than_what_would_be_measured() -> None:
    settings, here = SweepSettings(), machine(2)
    grid = build_space(settings, target(), here, has_accelerator=False).configs
    cells = build_cells(settings, target(), here, has_accelerator=False, most_workers=MOST_WORKERS)
    assert set(grid) < set(cells)
    counts = [cell.num_workers for cell in cells]
    assert {*counts} >= {*range(9), 32, MOST_WORKERS}
    assert {cell.prefetch_factor for cell in cells} == {None, 2, 4, 8}
    few = dataclasses.replace(settings, max_workers=50)
    fewer = build_cells(few, target(), here, has_accelerator=False, most_workers=MOST_WORKERS)
    assert {c.num_workers for c in fewer} == {n for n in counts if n <= 36} | {42, 50}


def test_what_the_user_names_is_all_that_is_predicted() -> None:
    settings = SweepSettings(num_workers=(0, 3, 40), prefetch_factor=(1,), max_workers=30)
    cells = build_cells(
        settings, target(), machine(2), has_accelerator=False, most_workers=MOST_WORKERS
    )
    assert {(cell.num_workers, cell.prefetch_factor) for cell in cells} == {(0, None), (3, 1)}


def test_it_calibrates_with_few_workers_and_all_else_plain() -> None:
    assert calibration_configs(NET) == CALIBRATING
    assert calibration_configs([config(4), config(2, 8), config(2, 4)]) == (config(2, 4),)


def test_where_more_than_two_workers_are_named_the_fewest_calibrate() -> None:
    assert calibration_configs([config(4), config(8), config(16, 8)]) == (config(4),)
    assert calibration_configs([config(0), config(8), config(4)]) == (config(0), config(4))
    assert calibration_configs([]) == ()


def test_calibrating_goes_through_its_configurations_once() -> None:
    seen = []
    history: list[Trial] = []
    while (found := next_calibration(led(), history, COMPUTES)) is not None:
        seen.append((found.config, found.repetition))
        history.append(explained(found.config))
    assert seen == [(config(0), 0), (config(1), 0), (config(2), 0)]


def test_batches_that_vary_are_looked_at_for_longer_up_to_a_cap() -> None:
    unsure = dataclasses.replace(COMPUTES, standard_error=0.2)
    history = [explained(each) for each in CALIBRATING]
    longer = []
    while (found := next_calibration(led(), history, unsure)) is not None:
        longer.append(found.trial_s)
        history.append(explained(found.config, wall_s=found.trial_s + 1.0))
        history[-1] = dataclasses.replace(history[-1], measured_s=found.trial_s)
    assert longer
    assert all(each.config == config(2) for each in history[3:])
    assert sum(each.measured_s for each in history) <= 6.01


def test_a_trial_that_failed_is_not_calibrated_by_again() -> None:
    history = [failed(each, purpose="explain") for each in CALIBRATING]
    assert next_calibration(led(), history, None) is None


def test_what_failed_is_not_looked_at_for_longer() -> None:
    unsure = dataclasses.replace(COMPUTES, standard_error=0.2)
    history = [explained(config(0)), explained(config(1)), failed(config(2), purpose="explain")]
    longer = next_calibration(led(), history, unsure)
    assert longer is not None
    assert longer.config == config(1)
    history = [failed(each, purpose="explain") for each in CALIBRATING]
    assert next_calibration(led(), history, unsure) is None


def test_trials_that_measure_nothing_end_calibrating_too() -> None:
    unsure = dataclasses.replace(COMPUTES, standard_error=0.2)
    history: list[Trial] = []
    while (found := next_calibration(led(), history, unsure)) is not None:
        history.append(trial(found.config, purpose="explain", measured_s=0.0))
        assert len(history) < 20


def test_a_budget_without_room_for_it_is_known_before() -> None:
    cost = TrialCost(overhead_s=0.4)
    assert 5.0 < needed_s(led(), cost) <= 20.0


@pytest.mark.parametrize(("left_s", "window_s"), [(60.0, 1.0), (20.0, 0.69), (8.0, 0.3)])
def test_the_windows_of_a_final_comparison_are_as_long_as_its_repeats_leave_room_for(
    left_s: float, window_s: float
) -> None:
    found = final_trial_s(led(planned_repeats=3, cost=TrialCost(overhead_s=0.4)), left_s)
    assert found == pytest.approx(window_s, abs=0.01)


def test_more_workers_than_cores_where_batches_wait() -> None:
    found = predict_sweep(WAITS, NET, Conditions(cores=2.0))
    assert found.pick.num_workers == 16
    assert {each.num_workers for each in found.race} == {0, 8, 16}
    assert found.log_sd == pytest.approx(RELATIVE_ERROR)


def test_no_more_workers_than_cores_where_batches_compute() -> None:
    found = predict_sweep(COMPUTES, NET, Conditions(cores=2.0))
    assert found.pick == config(2)
    assert {each.num_workers for each in found.race} == {0, 1, 2, 4}


def test_a_choice_is_never_alone_in_its_final_comparison_where_fewer_workers_are_named() -> None:
    named = [config(workers, prefetch) for workers in (3, 4) for prefetch in (2, 4)]
    found = predict_sweep(WAITS, named, Conditions(cores=2.0))
    assert found.pick == config(4)
    assert found.race == (config(3), config(4))


def test_no_workers_where_handing_over_costs_more_than_loading() -> None:
    tiny = calibration(cpu=1e-5, put=1e-3, receive=1e-3)
    found = predict_sweep(tiny, NET, Conditions(cores=2.0))
    assert found.pick == config(0)
    assert len(found.race) > 1  # what would prove it wrong


def test_the_pick_is_the_cheapest_within_three_percent_of_the_best() -> None:
    found = predict_sweep(WAITS, NET, Conditions(cores=2.0, epoch_batches=1000))
    speeds = {cell.config: cell.speed for cell in found.cells}
    assert max(speeds.values()) == 1.0
    cheaper = [each for each in NET if each.cost_key < found.pick.cost_key]
    assert speeds[found.pick] >= NEAR > max(speeds[each] for each in cheaper)


def test_nothing_to_predict_is_said() -> None:
    with pytest.raises(ValueError, match="nothing to predict"):
        predict_sweep(WAITS, [], Conditions(cores=2.0))


def test_workers_are_kept_where_epochs_are_short() -> None:
    short = predict_sweep(COMPUTES, NET, Conditions(cores=2.0, epoch_batches=20))
    assert short.pick.persistent_workers
    long = predict_sweep(COMPUTES, NET, Conditions(cores=2.0, epoch_batches=1_000_000))
    assert not long.pick.persistent_workers


def test_rates_over_epochs_are_predicted_beside_steady_ones() -> None:
    short = predict_sweep(COMPUTES, NET, Conditions(cores=8.0, epoch_batches=20))
    cells = {cell.config: cell for cell in short.cells}
    turned, kept = cells[config(8)], cells[config(8, persistent_workers=True)]
    assert turned.samples_per_s == kept.samples_per_s
    assert turned.epoch_samples_per_s is not None
    assert kept.epoch_samples_per_s is not None
    assert turned.epoch_samples_per_s < kept.epoch_samples_per_s <= kept.samples_per_s.value
    endless = predict_sweep(COMPUTES, NET, Conditions(cores=8.0))
    assert {cell.epoch_samples_per_s for cell in endless.cells} == {None}


def test_the_present_settings_are_always_measured() -> None:
    present = config(5, 8)
    found = predict_sweep(COMPUTES, NET, Conditions(cores=2.0), present=present)
    assert present in found.race


def test_doubts_about_the_calibration_make_predictions_worth_less() -> None:
    doubtful = dataclasses.replace(COMPUTES, doubts=("too busy", "too short"))
    assert predict_sweep(doubtful, NET, Conditions(cores=2.0)).log_sd > 2 * RELATIVE_ERROR


def test_batches_that_cost_nothing_predict_nothing() -> None:
    nothing = calibration(cpu=0.0)
    with pytest.raises(ValueError, match="no time"):
        predict_sweep(nothing, NET, Conditions(cores=2.0))


def raced(
    race: tuple[Config, ...],
    rates: Mapping[Config, float | None],
    predicted: Mapping[Config, float],
    present: Config | None = None,
) -> tuple[list[list[Config]], StopReason]:
    """What the blocks of a race hold, and how it ends, of loaders that wait.

    Args:
        race: What the first block holds.
        rates: What all give; ``None`` for one that fails.
        predicted: What a model said of them, and of what may be measured as well.
        present: What the user has.
    """
    shown = ExpectedRates(
        log_rates={each.key: math.log(rate) for each, rate in predicted.items()},
        log_sd=RELATIVE_ERROR,
        families={each.key: each.num_workers for each in predicted},
    )
    final = final_plan(led(present=present), race)
    search = GridSearch(plan=final, expected=shown, cells=tuple(predicted))
    history: list[Trial] = []
    while isinstance(found := search.propose(history), Proposal):
        rate, block = rates[found.config], found.repetition
        history.append(
            failed(found.config, repetition=block)
            if rate is None
            else trial(found.config, rate, repetition=block, usage=WAITING)
        )
    last = history[-1].repetition
    return [[t.config for t in history if t.repetition == b] for b in range(last + 1)], found


NONE, ONE, TWO, THREE, FOUR, EIGHT, SIXTEEN = map(config, (0, 1, 2, 3, 4, 8, 16))


def test_a_final_comparison_is_over_when_it_says_what_was_predicted() -> None:
    rates = {NONE: 100.0, ONE: 101.0, TWO: 199.0}
    blocks, end = raced((NONE, ONE, TWO), rates, {NONE: 100.0, ONE: 100.0, TWO: 200.0})
    assert end == "decided"
    assert len(blocks) == 2


def test_a_final_comparison_goes_on_until_what_was_predicted_equal_is_known_to_be() -> None:
    blocks, end = raced(
        (TWO, FOUR), dict.fromkeys((TWO, FOUR), 100.0), dict.fromkeys((TWO, FOUR), 105.0)
    )
    assert end == "decided"
    assert len(blocks) > 1
    assert all({*block} == {TWO, FOUR} for block in blocks)


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize(
    ("own", "noisy", "repeats"),
    [(100.0, False, 1), (60.0, False, 2), (45.0, False, 2), (50.0, True, 2)],
)
def test_a_gain_does_not_rest_on_one_disturbed_trial_of_the_default(
    own: float, *, noisy: bool, repeats: int, model: bool
) -> None:
    """Others say that it was, or a model, which has it twice as fast."""
    predicted = {NONE: 100.0, ONE: 100.0, TWO: 200.0, FOUR: 400.0, EIGHT: 400.0}
    shown = ExpectedRates(
        log_rates={each.key: math.log(rate) for each, rate in predicted.items()},
        log_sd=RELATIVE_ERROR,
        families={each.key: each.num_workers for each in predicted},
    )
    search = GridSearch(plan=final_plan(led(), tuple(predicted)), expected=shown if model else None)
    history: list[Trial] = []
    while isinstance(found := search.propose(history), Proposal):
        first = found.config == NONE and not found.repetition
        history.append(
            trial(
                found.config,
                own if first else predicted[found.config],
                repetition=found.repetition,
                noisy=first and noisy,
                usage=Usage(own_cpu_cores=1.0, available_cpu_cores=8.0) if first else WAITING,
            )
        )
    assert found == "decided"
    seen = sum(each.config == NONE for each in history)
    assert seen == (repeats if model or noisy else 1)


@pytest.mark.parametrize(("others", "again"), [(1.0, True), (0.1, False)])
def test_where_others_are_as_far_from_the_model_it_is_wrong_and_not_the_trial(
    others: float, *, again: bool
) -> None:
    """Eight workers, which the user has, give a tenth of what was predicted."""
    predicted = {NONE: 400.0, ONE: 400.0, TWO: 800.0, FOUR: 1600.0, EIGHT: 1600.0}
    rates = {NONE: 400.0, ONE: 400.0, TWO: 800 * others, FOUR: 1600 * others, EIGHT: 160.0}
    blocks, end = raced(tuple(predicted), rates, predicted, present=EIGHT)
    assert end == "decided"
    assert sum(block.count(EIGHT) for block in blocks) == (2 if again else 1)


def test_what_is_predicted_to_be_better_joins_the_race() -> None:
    rates = {TWO: 100.0, THREE: 150.0, FOUR: 100.0, EIGHT: 50.0}
    predicted = {TWO: 105.0, THREE: 150.0, FOUR: 105.0, EIGHT: 35.0}
    blocks, end = raced((TWO, FOUR), rates, predicted)
    assert set(blocks[0]) == {TWO, FOUR}
    assert THREE in blocks[1]
    assert EIGHT not in {each for block in blocks for each in block}
    assert end == "decided"


def test_what_seems_best_by_one_trial_is_measured_again_beside_the_others() -> None:
    """The machine is slow until three workers are measured, which are no faster than eight."""
    predicted = {TWO: 200.0, THREE: 300.0, FOUR: 390.0, EIGHT: 400.0}
    shown = ExpectedRates(
        log_rates={each.key: math.log(rate) for each, rate in predicted.items()},
        log_sd=RELATIVE_ERROR,
        families={each.key: each.num_workers for each in predicted},
    )
    final = final_plan(led(), (TWO, FOUR, EIGHT))
    search = GridSearch(plan=final, expected=shown, cells=tuple(predicted))
    done = [(FOUR, 0.5, 0), (TWO, 0.5, 0), (EIGHT, 0.5, 0), (FOUR, 0.5, 1), (EIGHT, 0.5, 1)]
    history = [
        trial(each, speed * predicted[each], repetition=block, usage=WAITING)
        for each, speed, block in (*done, (THREE, 1.0, 1))
    ]
    again = set[Config]()
    while isinstance(found := search.propose(history), Proposal):
        again.add(found.config)
        rate = predicted[found.config]
        history.append(trial(found.config, rate, repetition=found.repetition, usage=WAITING))
    assert again >= {FOUR, EIGHT}


def test_what_asks_for_as_much_as_one_that_failed_does_not_join() -> None:
    rates = {TWO: 100.0, THREE: 150.0, FOUR: None, EIGHT: 200.0}
    predicted = {TWO: 105.0, THREE: 150.0, FOUR: 105.0, EIGHT: 200.0}
    blocks, _ = raced((TWO, FOUR), rates, predicted)
    assert set(blocks[1]) == {TWO, THREE}
    assert not {FOUR, EIGHT} & {each for block in blocks[1:] for each in block}


def test_what_asks_for_as_much_as_one_that_failed_in_the_same_block_is_not_tried_either() -> None:
    log_rates = {each.key: math.log(150) for each in (FOUR, EIGHT)} | {TWO.key: math.log(100)}
    search = GridSearch(
        plan=final_plan(led(), (TWO,)),
        expected=ExpectedRates(log_rates=log_rates, log_sd=RELATIVE_ERROR),
        cells=(TWO, FOUR, EIGHT),
    )
    first = [trial(TWO, 100.0, usage=WAITING)]
    assert {found.config for found in blocks_of(search, first)} == {TWO, FOUR, EIGHT}
    failing = [*first, failed(FOUR, repetition=1)]
    assert {found.config for found in blocks_of(search, failing)} == {TWO}


def blocks_of(search: GridSearch, history: list[Trial]) -> list[Proposal]:
    """What is proposed for the second block, of rates as they were predicted."""
    found: list[Proposal] = []
    while isinstance(step := search.propose(history), Proposal) and step.repetition == 1:
        found.append(step)
        rate = 100.0 if step.config == TWO else 150.0
        history = [*history, trial(step.config, rate, repetition=1, usage=WAITING)]
    return found


def test_predictions_that_prove_wrong_are_measured_rather_than_believed() -> None:
    """The model sees neither a gain in eight workers, nor that four are slower than two."""
    rates = {TWO: 100.0, THREE: 100.0, FOUR: 60.0, EIGHT: 180.0}
    predicted = {TWO: 100.0, THREE: 140.0, FOUR: 160.0, EIGHT: 160.0}
    blocks, end = raced((TWO, FOUR), rates, predicted)
    assert {THREE, EIGHT} <= {each for block in blocks[1:] for each in block}
    assert blocks[-1].count(EIGHT) == 1
    assert end == "decided"


def test_explained_trials_are_no_part_of_a_race() -> None:
    search = GridSearch(plan=final_plan(led(), (config(0), config(2))))
    found = search.propose([explained(config(0)), explained(config(2))])
    assert isinstance(found, Proposal)
    assert found.repetition == 0


def test_slow_batches_that_hold_up_others_ask_for_another_order() -> None:
    found = levers(tailed(io=0.01), fed(8), Conditions(cores=2.0), [])
    assert fed(8, in_order=False) in found
    assert levers(tailed(io=0.01), fed(8), Conditions(cores=2.0), [], swept=["in_order"]) == ()
    assert levers(tailed(io=0.01), config(0), Conditions(cores=2.0), []) == ()
    assert levers(COMPUTES, fed(2), Conditions(cores=2.0), []) == ()


def test_many_tensors_ask_for_another_way_of_sharing() -> None:
    many = calibration(cpu=0.001, receive=0.01, batch_tensors=40.0)
    found = levers(many, fed(2), Conditions(cores=4.0), [])
    assert found == (fed(2, sharing_strategy="file_system"),)
    few = dataclasses.replace(many, batch_tensors=2.0)
    assert levers(few, fed(2), Conditions(cores=4.0), []) == ()


def test_a_worker_that_computes_with_threads_asks_for_one() -> None:
    busy = trial(config(1), purpose="explain", usage=Usage(own_cpu_cores=3.5))
    found = levers(COMPUTES, fed(2), Conditions(cores=4.0), [busy])
    assert found == (fed(2, worker_threads=1),)


def test_levers_take_turns_with_the_pick() -> None:
    pick, lever = fed(8), fed(8, in_order=False)
    history: list[Trial] = []
    while (found := next_lever(led(), history, [lever], pick)) is not None:
        history.append(trial(found.config, purpose="lever", repetition=found.repetition))
    assert [each.config for each in history] == [pick, lever, pick, lever]


def test_a_lever_lasts_as_long_and_costs_as_much_as_other_trials() -> None:
    slow = led(trial_s=0.2, cost=TrialCost(overhead_s=20.0))
    found = next_lever(slow, [], [fed(8, in_order=False)], fed(8))
    assert found is not None
    assert found.trial_s == 0.2
    assert found.expected_s == slow.cost.of(fed(8), 0.2)


def test_a_lever_that_fails_is_left_alone() -> None:
    pick, lever = fed(8), fed(8, in_order=False)
    history = [trial(pick, purpose="lever"), failed(lever, purpose="lever")]
    assert next_lever(led(), history, [lever], pick) is None


def test_costs_of_an_unknown_receiver_ask_for_nothing() -> None:
    bare = dataclasses.replace(
        calibration(cpu=0.01, batch_tensors=40.0), in_workers=BatchCosts(cpu_s=(0.01,) * 20)
    )
    assert levers(bare, fed(2), Conditions(cores=4.0), []) == ()


def test_where_pinning_is_compared_it_is_calibrated_too() -> None:
    plain = [config(0), config(1), config(2)]
    net = [*plain, *(config(each.num_workers, pin_memory=True) for each in plain)]
    pinned = config(2, pin_memory=True)
    assert calibration_configs(net) == (config(0), config(1), pinned, config(2))
    assert calibration_configs([pinned]) == (pinned,)


@pytest.mark.parametrize("seed", range(8))
def test_the_cheapest_that_is_predicted_near_the_best_is_measured_first(seed: int) -> None:
    found = predict_sweep(COMPUTES, NET, Conditions(cores=8.0))
    raced = final_plan(led(), found.race)
    expected = ExpectedRates.of(found.cells, found.log_sd)
    first = GridSearch(plan=raced, seed=seed, expected=expected).propose([], remaining_s=60.0)
    assert isinstance(first, Proposal)
    best = max(expected.log_rates[each.key] for each in found.race)
    near = [c for c in found.race if expected.log_rates[c.key] >= best + math.log(NEAR)]
    assert first.config == min(near, key=lambda each: each.cost_key)


def test_predictions_of_earlier_runs_by_the_simulation_still_load() -> None:
    found = predict_sweep(tailed(io=0.01), [Config(), fed(2)], Conditions(cores=4.0))
    assert found.method == "maxplus"
    earlier = to_json(found) | {"method": "simulation"}
    assert from_json(SweepPrediction, earlier).method == "simulation"


def test_two_workers_alone_calibrate_in_less() -> None:
    slow, plan_ = TrialCost(overhead_s=0.4, batch_s=1.5), led()
    assert needed_s(plan_, slow) > 40.0
    assert needed_s(dataclasses.replace(plan_, calibration=plan_.calibration[-1:]), slow) <= 40.0
