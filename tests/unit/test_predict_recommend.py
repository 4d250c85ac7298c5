"""Recommendations for what was not measured: by the model, marked, never over-confident."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest
from builders import around, blocks, config, failed, run, target, trial
from golden import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from model_calibrations import tailed
from predicted_runs import asked, calibrated, calibration, elsewhere

from dlprof.advise.choice import decide
from dlprof.advise.forecast import feed, forecast
from dlprof.advise.reasons import certainty_of
from dlprof.advise.recommend import recommend
from dlprof.errors import UsageError
from dlprof.records import (
    Calibration,
    Certificate,
    Config,
    Constraints,
    Diagnosis,
    Estimate,
    Finding,
    Fix,
    PredictedCell,
    Recommendation,
    Run,
    SweepPrediction,
    Usage,
)
from dlprof.report.predict import feed_report, forecast_report, predict_document
from dlprof.report.snippets import render_python
from dlprof.report.sweep import recommendation_report

RATES = {config(0): (400.0, 410.0, 405.0), config(4): (1500.0, 1520.0, 1490.0)}


def measured(**rest: object) -> Run:
    """A sweep that holds a calibration as well."""
    return dataclasses.replace(run(blocks(RATES), **rest), calibration=calibrated().calibration)


def test_what_was_measured_is_answered_from_what_was_measured() -> None:
    """Half of what the model says: what it says of both then weighs little."""
    with_it, without = recommend(measured()), recommend(run(blocks(RATES)))
    assert (with_it.config, with_it.basis) == (without.config, "measured")
    rates = [each.expected.samples_per_s.value for each in (with_it, without)]
    assert rates[0] == pytest.approx(rates[1], rel=0.03)


def test_a_run_without_a_calibration_says_so_in_its_details() -> None:
    said = "From its trials alone: the run has no calibration to predict more from"
    for made, wanted in (measured(), False), (run(blocks(RATES)), True):
        report = recommendation_report(made, recommend(made))
        text = " ".join(drawn(report, 80, verbose=True).split())
        assert (said in text) == wanted


def test_without_a_calibration_all_is_as_before() -> None:
    for limits in (Constraints(ranks=2), Constraints(step_s=0.05)):
        assert recommend(run(blocks(RATES)), limits).basis == "measured"
    elsewhere_ = recommend(run(blocks(RATES)), machine=elsewhere())
    assert elsewhere_.basis == "measured"
    assert elsewhere_.extrapolated


@pytest.mark.parametrize(
    "limits", [Constraints(cores=4.0), Constraints(neighbours=2.0), Constraints(speed=0.5)]
)
def test_what_only_a_model_answers_needs_a_calibration(limits: Constraints) -> None:
    with pytest.raises(UsageError) as caught:
        recommend(run(blocks(RATES)), limits)
    assert "dlprof profile" in str(caught.value.hint)
    assert recommend(measured(), limits).basis == "predicted"


@pytest.mark.parametrize("limits", [Constraints(ranks=2), Constraints(step_s=0.05)])
def test_ranks_and_steps_that_were_not_measured_are_predicted(limits: Constraints) -> None:
    answer = recommend(measured(), limits)
    assert answer.basis == "predicted"
    assert not answer.extrapolated
    assert answer.confidence in {"medium", "low"}


@pytest.mark.parametrize(("limits", "apart"), [(None, False), (Constraints(step_s=0.05), True)])
def test_rates_of_trials_beside_those_of_what_they_do_not_show_are_called_measured(
    limits: Constraints | None, *, apart: bool
) -> None:
    made = measured()
    screen = drawn(recommendation_report(made, recommend(made, limits)), 200, verbose=True)
    assert "Configurations" in screen
    assert ("Configurations, as measured" in screen) is apart


def test_a_step_that_was_measured_is_not_predicted() -> None:
    steps = measured(settings={"step_s": 0.05})
    assert recommend(steps, Constraints(step_s=0.05)).basis == "measured"
    assert recommend(steps, Constraints(step_s=0.02)).basis == "predicted"


def test_a_step_that_waits_to_take_batches_in_is_not_asked_to_be_kept_up_with() -> None:
    costs = calibration(cpu=0.004, receive=0.005)
    answer = recommend(calibrated(costs), Constraints(step_s=0.05))
    text = " ".join(reason.claim for reason in answer.reasons)
    assert "No configuration would keep a step of 50 ms fed" in text
    assert "keeps up" not in text
    assert "it waits only while the main process takes in a batch" in text


@pytest.mark.parametrize(("main", "work"), [(0.006, "drawing indices"), (0.0, "receiving batches")])
def test_all_views_name_what_the_main_process_is_busy_with(main: float, work: str) -> None:
    """Beside others every trial uses all cores that were left to it, whatever holds it up."""
    crowd = Usage(
        own_cpu_cores=0.7, available_cpu_cores=0.7, other_cpu_cores=7.3, run_queue_wait_fraction=0.5
    )
    costs = calibration(cpu=0.002, main=main, receive=0.001, receive_io=0.006 - main)
    tried = [
        trial(config(workers), rate, usage=crowd, wait_fraction=0.6)
        for workers, rate in ((1, 2_600.0), (2, 2_700.0), (1, 2_650.0), (2, 2_750.0))
    ]
    where = asked(calibrated(costs, tried, settings={"step_s": 0.005}))
    (row,) = (each for each in forecast(where, None).rows if each.config == config(2))
    assert row.prediction.bound == "main"
    shown = [drawn(forecast_report(forecast(where, None)), 200)]
    assert "Cores are the limit" not in " ".join(r.claim for r in recommend(where.run).reasons)
    shown.append(drawn(recommendation_report(where.run, recommend(where.run)), 200))
    shown.append(drawn(feed_report(feed(where)), 200))
    assert [work in each for each in shown] == [True] * 3
    assert not any("CPU cores are the bottleneck" in each for each in shown)
    assert main > 0 or not any("drawing indices" in each for each in shown)


def test_what_a_profile_found_the_main_process_to_do_is_what_all_views_of_its_run_name() -> None:
    """A sampler that waits computes nothing, by which the model could see it."""
    tried = [trial(config(2), 1_000.0, wait_fraction=0.8), trial(config(1), 990.0)]
    costs = calibration(cpu=0.002, receive=0.001)
    run_ = calibrated(costs, tried, settings={"step_s": 0.005})
    finding = Finding(code="main.sampler", severity="high", title="Slow", explanation="It is.")
    found = Diagnosis(config=config(2), findings=(finding,), trials=("t0001",))
    for known in (None, found):
        where = asked(dataclasses.replace(run_, diagnosis=known))
        advice = recommend(where.run)
        assert advice.config.num_workers
        screens = [
            drawn(forecast_report(forecast(where, None)), 200),
            drawn(recommendation_report(where.run, advice), 200),
            drawn(feed_report(feed(where, max_wait=0.001)), 200),
        ]
        assert ["drawing indices" in each for each in screens] == [known is not None] * 3
    # On other cores it may be another.
    other = forecast(asked(where.run, cores=1.0), None)
    assert "main" not in {row.prediction.bound for row in other.rows}


def advising(**changes: Any) -> Diagnosis:
    """What a profile of one worker found, whose fix are these arguments of DataLoader."""
    fix = Fix(text="Set them.", dataloader_kwargs=changes)
    cause = Finding(code="fetch.io", severity="high", title="Slow", explanation="It is.", fix=fix)
    return Diagnosis(config=config(1), findings=(cause,), trials=("t0001",))


def of_a_thousand() -> Run:
    """A sweep of as many configurations, of which it had time for two."""
    cells = tuple(
        PredictedCell(config=config(count, depth), samples_per_s=around(rate, 0.1), speed=speed)
        for count in range(1, 251)
        for speed in [min(1.0, count / 40)]
        for rate in [15_000.0 * speed]
        for depth in (2, 4, 8, 16)
    )
    predicted = SweepPrediction(cells=cells, race=(), pick=config(40), cores=8.0)
    few = blocks({config(1): (370.0, 380.0), config(4): (1500.0, 1520.0)})
    return dataclasses.replace(run(few), prediction=predicted)


SPARSE = {
    "one trial each": run(blocks({each: rates[:1] for each, rates in RATES.items()})),
    "two configurations, all noisy": run(blocks(RATES, noisy=True, spread=0.5)),
    "an endless set": run(
        blocks(RATES), target=target(kind="iterable", length=None, batches_per_epoch=None)
    ),
    "a thousand configurations": of_a_thousand(),
}


@pytest.mark.parametrize("name", SPARSE)
def test_what_says_little_is_answered_with_all_that_is_open(name: str) -> None:
    made = SPARSE[name]
    answer = recommend(made)
    sure = answer.certificate
    assert sure is not None
    assert 0 <= sure.epsilon_measured <= sure.epsilon + 1e-3 <= 1 + 1e-3
    assert sure.configurations == (len(made.prediction.cells) if made.prediction else 2)
    for each in answer.rates:
        low, high = each.samples_per_s.ends
        assert 0 < low <= each.samples_per_s.value <= high < math.inf
    screen = drawn(recommendation_report(made, answer), 100)
    assert answer.config.text in screen
    assert not re.search(r"\b(nan|inf)\b", screen)


@pytest.mark.parametrize("purpose", ["measure", "explain"])
def test_what_a_profile_advises_is_what_is_recommended_of_its_run(purpose: Any) -> None:
    """It had no time to measure it, and no view of its run answers otherwise."""
    tried = [trial(config(1), 700.0, purpose=purpose)]
    run_ = dataclasses.replace(calibrated(trials=tried), diagnosis=advising(num_workers=6))
    advice, found = recommend(run_), forecast(asked(run_), None)
    assert (advice.config, found.pick) == (config(6), config(6))
    assert advice.basis == "predicted"
    assert {each.config for each in advice.rates} >= {config(1), config(6)}


def test_a_profile_whose_trials_break_a_limit_is_answered_from_what_else_is_predicted() -> None:
    """What it advises needn't be of that: queues as deep are not looked at unasked."""
    tried = [trial(config(1), 700.0)]
    advises = advising(num_workers=2, prefetch_factor=7)
    run_ = dataclasses.replace(calibrated(trials=tried), diagnosis=advises)
    assert run_.advised == config(2, 7)
    limits: dict[str, Any] = {"max_ram_bytes": 450_000_000}
    advice, found = recommend(run_, Constraints(**limits)), forecast(asked(run_, **limits), None)
    assert advice.basis == "predicted"
    assert config(1) not in {advice.config, found.pick}


def test_present_settings_that_fail_are_not_recommended_of_a_profile() -> None:
    tried = [trial(config(1), 700.0, purpose="explain"), failed(config(8), purpose="explain")]
    diagnosis = dataclasses.replace(advising(num_workers=6), config=config(8))
    run_ = dataclasses.replace(calibrated(trials=tried), diagnosis=diagnosis)
    assert recommend(run_).config.num_workers < 8


def test_advice_of_a_profile_that_is_not_certain_is_what_seems_faster() -> None:
    costs = calibration(cpu=0.004, io=0.04, receive=0.041)  # which main hardly takes in faster
    tried = [trial(config(1), rate) for rate in (650.0, 800.0)]
    several = dataclasses.replace(calibrated(costs, tried), diagnosis=advising(num_workers=6))
    advice, found = recommend(several), forecast(asked(several), None)
    assert (advice.config, found.pick) == (config(1), config(1))
    seems = [each.config for each in advice.alternatives if each.relation == "predicted"]
    assert (seems, found.faster) == ([config(6)], config(6))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"num_workers": 0}, config(0)),
        ({"num_workers": 6, "fetchers": 2}, None),  # as a later version may
        ({"multiprocessing_context": "spawn"}, config(1, start_method="spawn")),
    ],
)
def test_a_profile_advises_settings_where_its_first_fix_has_any(
    changes: dict[str, Any], expected: Config | None
) -> None:
    run_ = calibrated()
    assert run_.advised is None
    assert dataclasses.replace(run_, diagnosis=advising(**changes)).advised == expected


def test_a_run_of_no_trials_is_enough() -> None:
    answer = recommend(calibrated(), Constraints(ranks=4))
    assert answer.config.num_workers > 0


def shared_server() -> Recommendation:
    return recommend(calibrated(), Constraints(neighbours=90.0), machine=elsewhere())


def test_another_machine_is_extrapolated_with_low_confidence() -> None:
    answer = shared_server()
    assert answer.extrapolated
    assert answer.confidence == "low"
    assert answer.constraints.machine == "server"


@pytest.mark.parametrize(("noisy", "more"), [(True, "on a quieter machine"), (False, "for longer")])
def test_what_was_disturbed_is_to_be_measured_on_a_quieter_machine(
    *, noisy: bool, more: str
) -> None:
    class Wide:
        def rate(self, key: str) -> Estimate:
            return Estimate(value=100.0, low=10.0, high=200.0)

    crowd = Usage(own_cpu_cores=2.0, available_cpu_cores=2.0, other_cpu_cores=6.0)
    run_ = calibrated(trials=[trial(config(2), 1450.0, noisy=noisy, usage=crowd)])
    choice, _ = decide(asked(run_, ranks=2))
    wide: Any = Wide()
    sure = Certificate(
        epsilon=0.1, epsilon_measured=0.1, probability=0.95, configurations=9, measured=0
    )
    level, reason = certainty_of(dataclasses.replace(choice, speeds=wide), sure)
    assert level == "low"
    assert reason.startswith(f"its rate may be 90% lower: measure {more}; by the model within 10% ")


def test_both_cases_are_predicted() -> None:
    costs = calibration(cpu=0.02)
    answer = recommend(calibrated(costs), Constraints(neighbours=90.0), machine=elsewhere())
    shared, alone = answer.cases
    assert (shared.name, shared.neighbours) == ("as shared now", 90.0)
    assert (alone.name, alone.neighbours) == ("dedicated", 0.0)
    assert shared.expected.samples_per_s.value <= alone.expected.samples_per_s.value
    assert shared.expected.samples_per_s == answer.expected.samples_per_s
    assert shared.bound
    only = recommend(calibrated(costs), machine=elsewhere())
    assert [case.name for case in only.cases] == ["dedicated"]


@pytest.mark.parametrize(
    ("neighbours", "said"),
    [
        (2.0, "Other processes want 2 cores, and there are 8: "),
        (500.0, "Other processes want 500 cores, and there are 8: "),
    ],
)
def test_neighbours_are_counted_as_threads(neighbours: float, said: str) -> None:
    answer = recommend(calibrated(), Constraints(neighbours=neighbours))
    assert any(reason.claim.startswith(said) for reason in answer.reasons)


@pytest.mark.slow
def test_neighbours_that_were_seen_here_are_reckoned_with() -> None:
    busy = trial(config(2), usage=Usage(other_cpu_cores=6.0))
    answer = recommend(calibrated(trials=[busy]), Constraints(ranks=2))
    assert [case.neighbours for case in answer.cases] == [6.0, 0.0]


def test_it_says_what_to_measure_there() -> None:
    answer = shared_server()
    commands = [each.command for each in answer.measure_there]
    assert commands[0].startswith("dlprof sweep data.py:make --num-workers 0,")
    assert any("--cold-cache" in command for command in commands)
    assert "dlprof machine" in commands
    here = recommend(calibrated(), Constraints(ranks=2, step_s=0.0125))
    (only,) = here.measure_there
    assert only.command.endswith("--step-time 12.5ms --launch-ranks 2")


def test_a_target_with_arguments_is_named_with_them() -> None:
    answer = recommend(
        calibrated(settings={"arguments": {"root": "/my data"}}), Constraints(ranks=2)
    )
    assert "--arg 'root=/my data'" in answer.measure_there[0].command


def with_settings(run: Run, **chosen: Any) -> Run:
    """The run of a sweep that recommended some settings beside workers."""
    found = config(1, **chosen)
    shown = recommend(run, Constraints(ranks=2))
    return dataclasses.replace(run, recommendation=dataclasses.replace(shown, config=found))


def test_what_is_to_be_measured_is_what_was_predicted() -> None:
    costs = calibration(cpu=0.004, io=0.04, batch_size=16)
    run = with_settings(
        calibrated(costs, settings={"shuffle": True}), in_order=False, start_method="spawn"
    )
    answer = recommend(run, machine=elsewhere())
    commands = [each.command for each in answer.measure_there if each.command != "dlprof machine"]
    assert len(commands) == 3
    for command in commands:
        assert "--batch-size 16 --in-order off --start-method spawn --shuffle" in command


@pytest.mark.parametrize(("own", "known"), [(32, False), (64, True)])
def test_present_settings_are_predicted_at_their_own_batch_size_alone(
    own: int, *, known: bool
) -> None:
    """A sweep with --batch-size 64 calibrates by these; a step passes for each batch."""
    costs = calibration(cpu=0.004, io=0.04, batch_size=64, samples_per_batch=64.0)
    swept = calibrated(costs, target=target(own_config=config(2), batch_size=own))
    advice = recommend(swept, Constraints(step_s=0.05))
    assert (config(2) in {each.config for each in advice.rates}) is known
    found = forecast(asked(swept, step_s=0.05), None)
    assert ("present" in found.others) is known
    assert known or {row.config.batch_size for row in found.rows} == {64}


def test_present_settings_whose_workers_get_no_data_are_compared_where_they_were_measured() -> None:
    """Of an iterable dataset of four shards, say: for other conditions nobody predicts them."""
    tried = [trial(config(count), 2_700.0, fed_workers=4) for count in (4, 8)]
    made = calibrated(trials=tried, target=target(kind="iterable", own_config=config(8)))
    here, there = (forecast(asked(made, step_s=each), None) for each in (None, 0.05))
    assert here.others["present"].config == config(8)
    assert "present" not in there.others
    assert there.pick is not None
    assert there.pick.num_workers <= 4


def test_a_pick_without_workers_is_compared_with_the_other_settings_of_the_run() -> None:
    costs = calibration(cpu=0.004, receive=0.1, batch_size=16)
    answer = recommend(with_settings(calibrated(costs), start_method="spawn"), Constraints(ranks=2))
    assert answer.config.num_workers == 0
    assert "--batch-size 16 --start-method spawn" in answer.measure_there[0].command


def test_what_the_target_sets_itself_is_named_only_where_it_was_not_predicted() -> None:
    own = target(own_config=config(1, batch_size=32, in_order=False))
    costs = calibration(cpu=0.004, io=0.04)
    (as_it_is,) = recommend(calibrated(costs, target=own), Constraints(ranks=2)).measure_there
    assert "--in-order" not in as_it_is.command
    ordered = with_settings(calibrated(costs, target=own), in_order=True)
    (other,) = recommend(ordered, Constraints(ranks=2)).measure_there
    assert "--in-order on" in other.command


@pytest.mark.parametrize("limits", [Constraints(cores=2.0), Constraints(speed=2.0)])
def test_what_is_not_for_this_machine_is_not_offered_to_be_saved(limits: Constraints) -> None:
    text = drawn(
        recommendation_report(calibrated(), recommend(calibrated(), limits)), 80, verbose=True
    )
    assert "--save" not in text
    assert "--format python" in text


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    cpu=st.floats(1e-5, 0.05),
    io=st.floats(0, 0.05),
    receive=st.floats(0, 0.02),
    ranks=st.integers(1, 8),
    neighbours=st.floats(0, 100),
)
def test_never_worse_than_the_default(
    cpu: float, io: float, receive: float, ranks: int, neighbours: float
) -> None:
    costs = calibration(cpu=cpu, io=io, receive=receive)
    limits = Constraints(ranks=ranks, neighbours=neighbours)
    answer = recommend(calibrated(costs), limits, machine=elsewhere(16))
    default = [other for other in answer.alternatives if other.relation == "default"]
    assert all(other.speed <= 1.0 for other in default)
    assert bool(default) == (answer.config.num_workers > 0)


def test_limits_are_kept() -> None:
    limits = Constraints(ranks=2, max_workers=3)
    assert recommend(calibrated(), limits).config.num_workers <= 3
    answer = recommend(calibrated(), Constraints(ranks=2, max_ram_bytes=1 << 30))
    assert answer.config.num_workers <= 7
    assert any("max_ram" in reason.claim for reason in answer.reasons)
    with pytest.raises(UsageError, match="No configuration of this run keeps"):
        recommend(calibrated(), Constraints(ranks=2, max_ram_bytes=1 << 20))


def test_persistence_follows_from_what_an_epoch_s_end_costs() -> None:
    short = calibrated(target=target(batches_per_epoch=20, length=640))
    long = calibrated(target=target(batches_per_epoch=100_000, length=3_200_000))
    limits = Constraints(cores=8.0, max_workers=4)
    assert recommend(short, limits).config.persistent_workers
    assert recommend(short, limits).expected.epoch_turnover_s == 0.001
    assert not recommend(long, limits).config.persistent_workers


def test_workers_beyond_an_epoch_s_batches_are_not_recommended() -> None:
    waits = calibration(cpu=0.001, io=0.1, receive=0.001)
    answer = recommend(
        calibrated(waits, target=target(batches_per_epoch=4, length=128)), Constraints(cores=8.0)
    )
    assert 1 < answer.config.num_workers <= 4
    assert all(each.config.num_workers <= 4 for each in answer.alternatives)
    default = [each.speed for each in answer.alternatives if each.relation == "default"]
    assert default == [pytest.approx(0.25)]  # four batches at once
    assert answer.config.persistent_workers


@pytest.mark.parametrize(("starts_s", "kept"), [(4.0, True), (0.03, True), (0.0, False)])
def test_workers_that_are_expensive_to_start_are_kept_not_left_out(
    starts_s: float, *, kept: bool
) -> None:
    waits = calibration(
        cpu=0.0001,
        io=0.04,
        receive=0.0,
        put=0.0,
        startup_s={"main": (0.0,), "default": (starts_s, starts_s / 3)},
        turnover_s={},
    )
    answer = recommend(
        calibrated(waits, target=target(batches_per_epoch=50, length=1600)),
        Constraints(cores=16.0),
    )
    assert answer.config.num_workers > 8
    assert answer.config.persistent_workers is kept
    shown = [
        claim for reason in answer.reasons if "persistent_workers=True" in (claim := reason.claim)
    ]
    assert bool(shown) == kept


def test_the_cheapest_that_keeps_the_step_fed_is_enough() -> None:
    """Three workers would feed 97 of 100 steps, within 2 % of what four feed."""
    answer = recommend(
        calibrated(calibration(cpu=0.0, io=0.0308, receive=0.0)), Constraints(step_s=0.01)
    )
    assert answer.config.num_workers == 4
    claims = [reason.claim for reason in answer.reasons]
    assert any("cheapest configuration that would keep a step" in claim for claim in claims)


def test_a_fast_loader_keeps_pytorch_s_default() -> None:
    tiny = calibration(cpu=1e-4, receive=0.001)
    answer = recommend(calibrated(tiny), Constraints(cores=64.0))
    assert answer.config == Config()
    assert any("num_workers=0 is enough" in reason.claim for reason in answer.reasons)


def test_batches_in_any_order_are_named_where_slow_ones_hold_back_the_rest() -> None:
    uneven = recommend(calibrated(tailed(io=0.01)), Constraints(ranks=2, max_workers=4))
    even = recommend(calibrated(), Constraints(ranks=2, max_workers=4))
    shown = [any("in_order=False" in r.claim for r in each.reasons) for each in (uneven, even)]
    assert shown == [True, False]
    (claim,) = [r.claim for r in uneven.reasons if "in_order=False" in r.claim]
    assert re.search(r"would be \d\.\d\dx as fast \(95% CI [\d.]+-[\d.]+\), but batches", claim)


@pytest.mark.slow
def test_rules_of_thumb_are_predicted_too() -> None:
    answer = shared_server()
    rules = {rule.name: rule for rule in answer.rules_of_thumb}
    assert rules["num_workers = cores"].config.num_workers == 96
    assert rules["num_workers = cores"].predicted
    assert rules["4 x GPUs"].unavailable


def test_the_screen_says_that_nothing_else_is_assumed_to_run_on_another_machine() -> None:
    answer = recommend(calibrated(), machine=elsewhere())
    whole = " ".join(drawn(recommendation_report(calibrated(), answer), 80).split())
    assert "for server, without background load (--assume-background), from what" in whole
    asked = " ".join(drawn(recommendation_report(calibrated(), shared_server()), 80).split())
    assert "for a background load of 90 cores" in asked
    assert "without background load" not in asked


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_says_that_it_is_extrapolated(width: int) -> None:
    text = drawn(recommendation_report(calibrated(), shared_server()), width, verbose=True)
    whole = " ".join(text.split())
    assert "Predicted for server from what was measured on box" in whole
    assert "Measure there to be sure" in whole
    assert "as shared now (other processes want 90 cores)" in whole
    commands = ("dlprof ", "loader =")
    lines = [line for line in text.splitlines() if not line.strip().startswith(commands)]
    assert max(map(len, lines)) <= width


def test_snippets_say_that_it_is_predicted() -> None:
    assert ", predicted, confidence low" in render_python(calibrated(), shared_server())
    here = render_python(measured(), recommend(measured()))
    assert "predicted" not in here


ENDLESS = {"length": None, "batches_per_epoch": None, "kind": "iterable"}
POOR: dict[str, tuple[dict[Config, list[float]], dict[str, Any], dict[str, Any]]] = {
    "one trial each": ({config(w): [100.0 * (w + 1)] for w in (0, 1, 2, 4)}, {}, {}),
    "all noisy": ({config(w): [100.0, 300.0, 40.0] for w in (0, 2, 4)}, {"noisy": True}, {}),
    "two": ({config(0): [100.0], config(2): [180.0]}, {}, {}),
    "a hundred": ({config(w, p): [50.0 + w] for w in range(1, 21) for p in range(1, 6)}, {}, {}),
    "a thousand": ({config(w, p): [50.0 + w] for w in range(1, 41) for p in range(1, 26)}, {}, {}),
    "endless": ({config(0): [100.0, 110.0], config(2): [180.0, 170.0]}, {}, ENDLESS),
    "absurd": ({config(0): [1e-300], config(2): [1e300, 1.0]}, {"spread": 1e9}, {}),
}

FEW = ("two", "endless", "absurd")
"""Asked with every change; the others by turns."""


@pytest.mark.parametrize(
    "poor",
    [
        pytest.param(each, id=name, marks=() if name in FEW else pytest.mark.slow)
        for name, each in POOR.items()
    ],
)
@pytest.mark.parametrize(
    "question",
    [
        {},
        pytest.param({"ranks": 2}, marks=pytest.mark.slow),
        pytest.param({"step_s": 0.02}, marks=pytest.mark.slow),
        {"machine": elsewhere(16)},
    ],
    ids=["here", "ranks", "step", "elsewhere"],
)
@pytest.mark.parametrize("costs", [None, calibration(cpu=0.004, io=0.04)], ids=["trials", "model"])
def test_poor_runs_get_an_honest_answer(
    poor: tuple[dict[Config, list[float]], dict[str, Any], dict[str, Any]],
    question: dict[str, Any],
    costs: Calibration | None,
) -> None:
    rates, how, of = poor
    found = dataclasses.replace(run(blocks(rates, **how), target=target(**of)), calibration=costs)
    asked_ = {name: value for name, value in question.items() if name != "machine"}
    answer = recommend(found, Constraints(**asked_), machine=question.get("machine"))
    assert answer.basis == ("predicted" if question and costs else "measured")
    rate = answer.expected.samples_per_s
    assert rate.low is not None
    assert rate.high is not None
    assert 0 < rate.low <= rate.value <= rate.high < float("inf")
    assert not question or answer.confidence != "high"
    json.dumps(dataclasses.asdict(answer), allow_nan=False)
    if costs is not None:
        there = asked(found, **question)
        view = forecast(there, None)
        rates_there = {row.config: row.samples_per_s for row in view.rows}
        assert (view.pick, view.confidence) == (answer.config, answer.confidence)
        assert rates_there[answer.config] == rate
        assert json.loads(predict_document(view))["rows"]
        assert drawn(forecast_report(view), 80, verbose=True)


def test_what_was_not_measured_is_said_in_plain_words() -> None:
    """Not by the name of the host, which says nothing of how it is known."""
    seen = run(blocks({config(0): [100.0] * 3, config(1): [150.0] * 3}))
    found = dataclasses.replace(recommend(seen), basis="predicted")
    text = " ".join(drawn(recommendation_report(seen, found), 80).split())
    assert "Predicted not measured: this run has it from what a batch costs" in text
    assert seen.header.machine.hostname not in text
