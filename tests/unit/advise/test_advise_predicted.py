"""What a model-led sweep adds to a recommendation, and how its predictions weigh in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import pytest
from builders import WAITING, around, blocks, config, failed, machine, run, target, trial
from predicted_runs import calibrated, calibration

from dlprof.advise.choice import (
    Candidate,
    Speeds,
    candidates_of,
    perhaps_faster,
    predictions,
    speeds_of,
)
from dlprof.advise.forecast import forecast
from dlprof.advise.recommend import recommend, summarize
from dlprof.advise.situation import Situation
from dlprof.records import (
    Config,
    Constraints,
    Cost,
    PredictedCell,
    Run,
    RunEnd,
    SweepPrediction,
    Trial,
    Usage,
)
from dlprof.stats.belief import ExpectedRates, Gap, believe

NONE, TWO, FOUR = config(0), config(2), config(4)
COMPUTING = Usage(own_cpu_cores=8.0, available_cpu_cores=8.0)


def predicted(rates: dict[Config, float], **rest: Any) -> SweepPrediction:
    best = max(rates.values())
    cells = tuple(
        PredictedCell(config=each, samples_per_s=around(rate, 0.1), speed=rate / best)
        for each, rate in sorted(rates.items(), key=lambda item: item[0].cost_key)
    )
    fields: dict[str, Any] = {"race": (NONE, TWO), "pick": TWO, "cores": 2.0, "log_sd": 0.08} | rest
    return SweepPrediction(cells=cells, **fields)


def led(trials: list[Trial], prediction: SweepPrediction) -> Run:
    return dataclasses.replace(run(trials), prediction=prediction)


def claims(found: Run) -> str:
    return "\n".join(reason.claim for reason in recommend(found).reasons)


def test_how_much_was_predicted_and_how_much_seen_is_reported() -> None:
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    text = claims(led(trials, predicted({NONE: 100.0, TWO: 190.0, FOUR: 192.0})))
    assert "3 configurations predicted, and 2 measured" in text


def test_noise_does_not_change_the_choice_that_the_model_made() -> None:
    noisy = [
        trial(each, rate, repetition=block, noisy=True, spread=0.3)
        for block, rates in enumerate(({TWO: 100.0, NONE: 118.0}, {TWO: 130.0, NONE: 120.0}))
        for each, rate in rates.items()
    ]
    assert recommend(run(noisy)).config == NONE
    assert recommend(led(noisy, predicted({NONE: 100.0, TWO: 190.0}))).config == TWO


def test_trials_that_say_the_opposite_are_no_evidence_for_the_model() -> None:
    """Others disturbed each of them, so that the model decides, and is what is named for it."""
    rates = {NONE: 60.0, TWO: 150.0, FOUR: 145.0}
    noisy = [trial(each, rate, noisy=True, spread=0.1) for each, rate in rates.items()]
    found = led(noisy, predicted({NONE: 60.0, TWO: 130.0, FOUR: 190.0}))
    assert recommend(found).config == FOUR
    said = "The model has fewer workers slower, and their trials don't show it: num_workers=2 is 0."
    assert said in claims(found)
    assert "Fewer workers" not in claims(found)
    rates |= {TWO: 130.0, FOUR: 190.0}
    quiet = [trial(each, rate, usage=WAITING) for each, rate in rates.items()]
    assert "Fewer workers are slower" in claims(
        dataclasses.replace(found, trials=run(quiet).trials)
    )


def test_the_rate_that_is_reported_is_the_one_that_was_measured() -> None:
    trials = blocks({NONE: [100.0, 101.0], TWO: [150.0, 151.0]}, usage=WAITING)
    plain = recommend(run(trials))
    by_model = recommend(led(trials, predicted({NONE: 100.0, TWO: 160.0})))
    rates = [each.expected.samples_per_s.value for each in (plain, by_model)]
    assert rates == pytest.approx([150.5, 150.5], rel=0.005)


def test_more_workers_than_a_plateau_has_shown_to_be_enough_are_not_recommended() -> None:
    """Samples wait for two slots, of which the model, fitted with two workers, knows nothing."""
    trials = blocks({NONE: [178.0, 180.0], config(14): [354.0, 375.0]}, usage=WAITING)
    rates = {config(n): 180.0 * max(1, n) for n in (0, 1, 2, 14, 32)}
    found = calibrated(calibration(cpu=0.0005, io=0.17), trials)
    found = dataclasses.replace(found, prediction=predicted(rates))
    assert recommend(found).config == config(14)


def _of_waiting(cpu: float = 0.0005, **rest: Any) -> Run:
    """A run whose 32 workers are the most that were predicted, and as fast as they should be."""
    many = config(32, persistent_workers=True)
    costs = calibration(cpu=cpu, io=0.17)
    trials = blocks({NONE: [180.0] * 3, many: [5700.0] * 3}, usage=WAITING)
    prediction = predicted({NONE: 180.0, many: 5700.0}, pick=many)
    return dataclasses.replace(calibrated(costs, trials, **rest), prediction=prediction)


def test_more_workers_than_were_predicted_may_be_faster_where_they_wait() -> None:
    said = "; more than 32 workers were not tried, and may be faster"
    answer = recommend(_of_waiting())
    assert answer.config.num_workers == 32
    assert answer.confidence == "medium"
    assert answer.confidence_reason.endswith(said)
    # Not where others than workers limit, nor what the user has left out himself.
    assert said not in recommend(_of_waiting(cpu=0.2)).confidence_reason
    assert said not in recommend(_of_waiting(settings={"num_workers": [0, 32]})).confidence_reason
    assert said not in recommend(_of_waiting(), Constraints(max_workers=32)).confidence_reason
    fixed = target(fixed={"num_workers": "The loader starts its own"})  # and no option changes it
    assert said not in recommend(_of_waiting(target=fixed)).confidence_reason
    alone = blocks({NONE: [180.0] * 3, config(0, pin_memory=True): [181.0] * 3}, usage=WAITING)
    found = calibrated(calibration(cpu=0.0005, io=0.17), alone)
    prediction = predicted({each.config: 180.0 for each in alone}, pick=NONE)
    found = dataclasses.replace(found, prediction=prediction)
    said = "more than 0 workers were not tried"
    assert said in recommend(found).confidence_reason
    assert said not in recommend(found, Constraints(max_workers=0)).confidence_reason


def test_of_an_iterable_more_workers_than_gave_batches_are_not_recommended_but_named() -> None:
    """Two were within 10 % of the best, of a shuffle buffer of which four made 2.5 times as much.

    And asked for eight, predict called two the best, with a third of their rate.
    """
    said = "; more than 2 workers were not tried, and may be faster, if its shards feed all workers"
    rates = {NONE: 180.0, TWO: 360.0, config(8): 1440.0}
    trials = blocks({NONE: [180.0] * 3, TWO: [360.0] * 3}, usage=WAITING)
    unknown = {"kind": "iterable", "length": None, "batches_per_epoch": None}
    led_by, seen = list[Run](), list[Run]()
    for shards in (None, 2):
        stream = target(shards=shards, **unknown)
        seen.append(run(blocks({NONE: [33.0] * 3, TWO: [66.0] * 3}, usage=WAITING), target=stream))
        found = calibrated(calibration(cpu=0.0005, io=0.17), trials, target=stream)
        led_by.append(dataclasses.replace(found, prediction=predicted(rates)))
    for free, divided in (led_by, seen):
        assert recommend(free).config == TWO
        assert said in recommend(free).confidence_reason
        assert said not in recommend(divided).confidence_reason
    asked = [NONE, TWO, config(8)]
    there = forecast(Situation.of(led_by[0]), asked, named=["num_workers"])
    assert there.pick == config(8)


@pytest.mark.parametrize(("usage", "six"), [(WAITING, 400.0), (COMPUTING, 600.0)])
def test_workers_that_load_the_last_shards_alone_make_an_epoch_longer(
    usage: Usage, six: float
) -> None:
    """568 samples/s were promised of 6 workers of 8 shards, in epochs that had 400.

    Unless cores are short, of which the last two workers then have more.
    """
    usage = dataclasses.replace(usage, own_cpu_cores=min(2.0, usage.own_cpu_cores or 0.0))
    usage = dataclasses.replace(usage, available_cpu_cores=2.0)
    stream = target(kind="iterable", length=None, batches_per_epoch=None, shards=8)
    seen = run(blocks({FOUR: [400.0] * 3, config(6): [600.0] * 3}, usage=usage), target=stream)
    speeds = speeds_of(Situation.of(seen))
    rates = [speeds.rate(each.key).value for each in (FOUR, config(6))]
    assert rates == pytest.approx([400.0, six], rel=0.02)
    found = calibrated(calibration(cpu=0.0005, io=0.17), [], target=stream)
    models = predictions(Situation.of(found, Constraints(cores=2.0)), {FOUR, config(6)})
    four, more = models[FOUR], models[config(6)]
    assert more.epoch_batches_per_s == pytest.approx(four.batches_per_s.value, rel=0.02)
    assert more.batches_per_s.value == pytest.approx(1.5 * four.batches_per_s.value, rel=0.05)


def test_workers_that_share_another_limit_load_the_last_shards_as_fast() -> None:
    """Four are as fast as six: of a server's rate two have as much as all of them."""
    stream = target(kind="iterable", length=None, batches_per_epoch=None, shards=8)
    seen = blocks({FOUR: [400.0] * 3, config(6): [400.0] * 3}, usage=WAITING)
    costs = calibration(cpu=0.0005, io=0.0195)
    found = calibrated(costs, seen, target=stream)
    speeds = speeds_of(Situation.of(found), predictions(Situation.of(found), {FOUR, config(6)}))
    batches = seen[0].batches_per_s
    assert batches is not None
    alone = batches.value * 0.02  # workers that would do
    lost = max(0.0, alone - 2) / 8
    assert math.exp(speeds.epochs[config(6).key].value) == pytest.approx(1 / (1 + lost), rel=0.02)
    assert lost < 0.2  # and not 0.5, as of six that share nothing


def test_shards_that_each_worker_begins_again_leave_none_to_load_alone() -> None:
    stream = target(kind="iterable", length=None, batches_per_epoch=None, shards=8)
    again = dataclasses.replace(stream, repeats_shards=True)
    assert (stream.last_shards(6), again.last_shards(6)) == (2, 0)
    assert (stream.fewest_workers(6), again.fewest_workers(6)) == (4, 6)
    found = calibrated(calibration(cpu=0.0005, io=0.17), [], target=again)
    six = predictions(Situation.of(found), {config(6)})[config(6)]
    assert six.epoch_batches_per_s is None


def test_one_worker_is_not_called_workers() -> None:
    trials = blocks({NONE: [33.0] * 3, config(1): [66.0] * 3}, usage=WAITING)
    said = "; more than 1 worker was not tried, and may be faster"
    assert recommend(run(trials)).confidence_reason.endswith(said)
    # What was tried and failed is shown as such.
    assert said not in recommend(run([*trials, failed(TWO)])).confidence_reason


def test_of_what_was_measured_alone_more_workers_may_be_faster_where_each_brought_more() -> None:
    """A budget that held two configurations, or a list that the user gave."""
    said = "; more than 2 workers were not tried, and may be faster"
    found = run(blocks({config(1): [33.0] * 3, TWO: [66.0] * 3}, usage=WAITING))
    assert recommend(found).confidence == "medium"
    assert recommend(found).confidence_reason.endswith(said)
    header = dataclasses.replace(found.header, settings={"num_workers": [1, 2, 4]})
    listed = dataclasses.replace(found, header=header)
    assert recommend(listed).confidence_reason.endswith(said)
    every = dataclasses.replace(header, settings={"num_workers": [1, 2]})
    flat = run(blocks({config(1): [65.0] * 3, TWO: [66.0] * 3}, usage=WAITING))
    busy = Usage(own_cpu_cores=float(found.header.machine.usable_cores))
    full = run(blocks({config(1): [33.0] * 3, TWO: [66.0] * 3}, usage=busy))
    for other in (dataclasses.replace(found, header=every), flat, full):
        assert said not in recommend(other).confidence_reason


def test_that_one_worker_is_as_fast_as_none_says_nothing_of_more() -> None:
    """A budget that held two configurations of a loader that waits, as for storage."""
    said = "; more than 1 worker was not tried, and may be faster"
    rates = {NONE: [65.0] * 3, config(1): [66.0] * 3}
    found = run(blocks(rates, usage=WAITING))
    assert recommend(found).confidence_reason.endswith(said)
    busy = Usage(own_cpu_cores=float(found.header.machine.usable_cores))
    every = dataclasses.replace(found.header, settings={"num_workers": [0, 1]})
    for other in (run(blocks(rates, usage=busy)), dataclasses.replace(found, header=every)):
        assert said not in recommend(other).confidence_reason


def test_only_what_is_over_3_percent_faster_itself_may_be_called_faster() -> None:
    rates = {TWO: 100.0, FOUR: 101.5, config(8): 104.0}
    logs = ExpectedRates.of(predicted(rates).cells, 0.1)
    speeds = Speeds(
        belief=believe([], logs),
        epochs={each.key: Gap(0.0, 0.0, math.inf) for each in rates},
    )
    pick, *others = (Candidate(config=c, name=c.text, measured=c == TWO) for c in rates)
    there = Situation.of(run([trial(TWO, 100.0)]))
    found = perhaps_faster(pick, others, speeds, there)
    assert found is not None
    assert found.config == config(8)  # near which four workers are, within 3 % of both
    assert perhaps_faster(pick, others[:1], speeds, there) is None
    for_failed = Situation.of(run([trial(TWO, 100.0), failed(config(8))]))
    assert perhaps_faster(pick, others, speeds, for_failed) is None


def test_a_pick_whose_workers_persist_is_not_predicted_once_more_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[set[Config]] = []

    def predict(there: Situation, configs: Collection[Config]) -> Any:
        asked.append({*configs})
        return candidates_of(there, configs)

    monkeypatch.setattr("dlprof.advise.recommend.candidates_of", predict)
    for persistent in (False, True):
        pick = config(2, persistent_workers=persistent)
        found = calibrated(calibration(cpu=0.001, io=0.05), [trial(pick, 300.0)])
        asked.clear()
        assert recommend(found).config == pick
        alone = [each for each in asked if len(each) == 1]
        assert alone == ([] if persistent else [{config(2, persistent_workers=True)}])
        assert asked


@pytest.mark.parametrize("usage", [WAITING, COMPUTING])
def test_trials_that_agree_outweigh_a_prediction_that_is_far_off(usage: Usage) -> None:
    eight = config(8)
    trials = blocks({NONE: [720.0] * 4, eight: [700.0] * 4}, usage=usage)
    answer = recommend(led(trials, predicted({NONE: 720.0, eight: 5800.0}, pick=eight)))
    assert answer.config == NONE
    other = next(each for each in answer.alternatives if each.config == eight)
    assert other.expected.samples_per_s.value == pytest.approx(700, rel=0.1)


def test_predictions_that_are_surely_wrong_promise_nothing_of_the_rest() -> None:
    wrong = {NONE: [100.0, 101.0, 99.0, 100.0], TWO: [100.0, 100.0, 101.0, 99.0]}
    prediction = predicted({NONE: 100.0, TWO: 200.0, config(8): 170.0})
    answer = recommend(led(blocks(wrong, usage=WAITING), prediction))
    assert answer.config == NONE
    assert answer.certificate is not None
    assert answer.certificate.epsilon > 0.3


def test_what_was_not_measured_is_of_the_certificate_too() -> None:
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]}, usage=WAITING)
    found, alone = (
        recommend(each).certificate
        for each in (
            led(trials, predicted({NONE: 100.0, TWO: 190.0, FOUR: 192.0})),
            led(trials, predicted({NONE: 100.0, TWO: 190.0})),
        )
    )
    assert found is not None
    assert alone is not None
    assert (found.configurations, found.measured) == (3, 2)
    assert found.epsilon > found.epsilon_measured
    assert (alone.configurations, alone.measured) == (2, 2)
    assert alone.epsilon == alone.epsilon_measured


@pytest.mark.parametrize("log_sd", [0.0, -1.0, 1e-60, 1e60])
@pytest.mark.parametrize("rates", [(0.0, 0.0), (-1.0, 5.0), (1e-60, 1e60)])
def test_whatever_a_file_says_was_predicted_leads_to_an_answer(
    log_sd: float, rates: tuple[float, float]
) -> None:
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    prediction = predicted({NONE: 1.0, TWO: 2.0}, log_sd=log_sd)
    cells = tuple(
        dataclasses.replace(cell, samples_per_s=around(rate, 0.1))
        for cell, rate in zip(prediction.cells, rates, strict=True)
    )
    found = led(trials, dataclasses.replace(prediction, cells=cells))
    assert recommend(found).config in {NONE, TWO}
    assert summarize(found)


def test_rules_that_were_not_measured_are_reported_as_predicted() -> None:
    eight = config(8)
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    found = recommend(led(trials, predicted({NONE: 100.0, TWO: 190.0, eight: 170.0})))
    by_cores = next(rule for rule in found.rules_of_thumb if rule.config == eight)
    assert by_cores.predicted
    assert math.isclose(by_cores.expected_samples_per_s or 0.0, 170.0, rel_tol=0.05)


def test_rules_that_only_the_calibration_was_with_are_not_reported_as_predicted() -> None:
    """One of its two counts is a rule's for two cores; no other rule is predicted, either."""
    trials = blocks({config(3): [198.0, 201.0]}, usage=WAITING)
    found = recommend(calibrated(trials=trials, machine=machine(2)))
    rules = {rule.config.num_workers: rule for rule in found.rules_of_thumb if rule.unavailable}
    assert {0, 1, 2} <= rules.keys()
    assert all(rule.expected_samples_per_s is None for rule in rules.values())


def test_rules_that_failed_are_not_reported_as_predicted() -> None:
    eight = config(8)
    prediction = predicted({NONE: 100.0, TWO: 200.0, eight: 170.0})
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    found = recommend(led([*trials, failed(eight)], prediction))
    by_cores = next(rule for rule in found.rules_of_thumb if rule.config == eight)
    assert by_cores.expected_samples_per_s is None
    assert "failed" in by_cores.unavailable


def test_a_lever_that_gained_is_a_reason_and_no_recommendation() -> None:
    unordered = config(2, in_order=False)
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    tried = blocks({TWO: [200.0, 199.0], unordered: [390.0, 402.0]}, purpose="lever")
    found = led([*trials, *tried], predicted({NONE: 100.0, TWO: 190.0}))
    assert recommend(found).config == TWO
    assert "in_order=False is 1.98x as fast (95% CI " in claims(found)
    assert "can't be repeated" in claims(found)


def test_a_lever_that_gained_nothing_is_not_reported() -> None:
    unordered = config(2, in_order=False)
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0]})
    tried = blocks({TWO: [200.0, 199.0], unordered: [201.0, 200.0]}, purpose="lever")
    found = led([*trials, *tried], predicted({NONE: 100.0, TWO: 190.0}))
    assert "in_order" not in claims(found)


def test_a_pick_that_levers_were_tried_with_is_no_lever_itself() -> None:
    """Two sessions of a sweep whose pick changed: each tried the lever with its own."""
    trials = blocks({NONE: [100.0, 101.0], TWO: [198.0, 201.0], FOUR: [390.0, 400.0]})
    first = blocks({TWO: [200.0, 199.0], config(2, in_order=False): [201.0, 200.0]})
    second = blocks({FOUR: [395.0, 399.0], config(4, in_order=False): [400.0, 398.0]})
    tried = [dataclasses.replace(each, purpose="lever") for each in [*first, *second]]
    prediction = predicted(
        {NONE: 100.0, TWO: 190.0, FOUR: 380.0}, race=(NONE, TWO, FOUR), pick=FOUR
    )
    answer = recommend(led([*trials, *tried], prediction), Constraints(max_workers=2))
    assert answer.config == TWO
    assert not any("num_workers=4 is" in reason.claim for reason in answer.reasons)


@pytest.mark.parametrize(
    ("most", "seen", "basis", "workers"),
    [
        (4, 5700.0, "predicted", 4),
        (8, 5700.0, "measured", 8),
        (0, 5700.0, "measured", 0),
        (4, 700.0, "predicted", 2),  # surely wrong of 8, and so of 4; 2 are what it was fitted with
    ],
)
def test_a_limit_below_what_was_measured_is_answered_by_what_was_predicted(
    most: int, seen: float, basis: str, workers: int
) -> None:
    rates = {NONE: 720.0, TWO: 1450.0, FOUR: 2900.0, config(8): 5800.0}
    raced = {NONE: [720.0] * 4, config(8): [seen] * 4}
    prediction = predicted(rates, race=tuple(raced), pick=config(8), cores=8.0)
    found = dataclasses.replace(
        led(blocks(raced), prediction), calibration=calibrated().calibration
    )
    answer = recommend(found, Constraints(max_workers=most))
    assert (answer.basis, answer.config.num_workers) == (basis, workers)
    assert answer.confidence == "low" or seen == 5700.0


def test_what_failed_is_not_predicted_in_its_place() -> None:
    six, twelve, most = config(6), config(12), config(24)
    rates = {NONE: 720.0, six: 4300.0, twelve: 5800.0, config(14): 5810.0, most: 5900.0}
    raced = {NONE: [720.0] * 3, six: [4300.0] * 3, most: [5900.0] * 3}
    prediction = predicted(rates, race=(NONE, six, twelve, most), pick=most, cores=8.0)
    found = dataclasses.replace(
        led([*blocks(raced), failed(twelve)], prediction),
        calibration=calibrated().calibration,
    )
    answer = recommend(found, Constraints(max_workers=16))
    assert (answer.basis, answer.config) == ("measured", six)
    # Nor has it a rate, nor what needs at least as much, unless that was measured.
    assert {each.config for each in answer.rates} == {NONE, six, most}


def test_settings_that_were_only_predicted_are_never_reported_with_high_confidence() -> None:
    rates = {NONE: 720.0, FOUR: 2900.0, config(8): 5800.0}
    raced = {NONE: [720.0] * 4, config(8): [5800.0] * 4}
    prediction = predicted(rates, race=tuple(raced), pick=config(8), cores=8.0)
    found = dataclasses.replace(
        led(blocks(raced), prediction), calibration=calibrated().calibration
    )
    answer = recommend(found, Constraints(max_workers=6))
    assert answer.config == FOUR  # of the cells that the sweep predicted, and none beside them
    assert answer.confidence != "high"


def disturbed(rates: dict[Config, list[float]]) -> list[Trial]:
    """Trials beside a busy neighbour."""
    return [dataclasses.replace(each, noisy=True) for each in blocks(rates, spread=0.6)]


DENIED = {NONE: [305.0, 300.0], config(14): [4090.0, 4030.0], config(32): [3450.0, 2480.0]}


@pytest.mark.parametrize(
    "trials",
    [blocks(DENIED, usage=WAITING), disturbed(DENIED)],
    ids=["waiting", "disturbed"],
)
def test_a_forecast_that_every_trial_belies_picks_nothing(trials: list[Trial]) -> None:
    few, many = config(14), config(32)
    found = led(trials, predicted({NONE: 307.0, few: 4040.0, many: 8620.0}, pick=many))
    assert recommend(found).config == few


TINY = calibration(cpu=1e-4, put=0.0005, receive=0.001)
"""Batches that are costlier to hand over than to load: without workers 10,000 a second."""


def test_a_budget_that_ended_before_the_best_was_measured_leaves_it_to_the_model() -> None:
    prediction = predicted({NONE: 320_000.0, TWO: 32_000.0}, race=(NONE, TWO), pick=NONE)
    cut_short = calibrated(TINY, blocks({TWO: [31_000.0]}))
    end = RunEnd(ended_at="", reason="budget", cost_s=Cost(measured=1.0, overhead=1.0, total=2.0))
    answer = recommend(dataclasses.replace(cut_short, prediction=prediction, end=end))
    assert (answer.config, answer.basis) == (NONE, "predicted")
    least = Constraints(max_ram_bytes=550 << 20)  # less than the model predicts without workers
    tight = dataclasses.replace(TINY, main_bytes=600e6)
    held = dataclasses.replace(cut_short, prediction=prediction, end=end, calibration=tight)
    answer = recommend(held, least)
    assert (answer.config, answer.basis) == (TWO, "measured")
    whole = calibrated(TINY, blocks({TWO: [31_000.0] * 2, NONE: [310_000.0] * 2}))
    answer = recommend(dataclasses.replace(whole, prediction=prediction))
    assert (answer.config, answer.basis) == (NONE, "measured")


def test_cores_limit_by_what_a_sample_takes_where_workers_are_few() -> None:
    """Eight workers keep all cores busy at twice what a sample costs two; four may do more."""

    def busy(cores: float) -> Usage:
        return Usage(own_cpu_cores=cores, available_cpu_cores=8.0, core_speed=20.0)

    many = config(8)
    prediction = predicted({TWO: 60.0, FOUR: 108.0, many: 108.0}, log_sd=0.4)
    found = []
    for rate in (25.5, 51.0):  # of two, a quarter and half of what eight give
        trials = [*blocks({many: [101, 103]}, usage=busy(7.9))]
        trials += blocks({TWO: [rate, rate]}, usage=busy(2.0))
        found.append(recommend(led(trials, prediction)).certificate)
    alike, fewer = (each.epsilon for each in found if each is not None)
    assert alike < 0.25 < fewer
