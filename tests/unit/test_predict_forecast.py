"""Tables of predictions: the pick, what was measured beside, and how far to trust them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest
from builders import WAITING, blocks, config, machine, target, trial
from golden import drawn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_calibrations import constant, fed
from predicted_runs import asked, calibrated, calibration, elsewhere

from dlprof.advise.candidates import wanted_configs
from dlprof.advise.choice import decide, predictions, speeds_of
from dlprof.advise.forecast import Forecast, ForecastRow, forecast
from dlprof.advise.reasons import certainty_of
from dlprof.advise.recommend import recommend
from dlprof.advise.thresholds import FED_WAIT_FRACTION
from dlprof.errors import UsageError
from dlprof.model.predict import cells_of
from dlprof.records import (
    Calibration,
    Certificate,
    Config,
    Constraints,
    Run,
    SweepPrediction,
    Usage,
)
from dlprof.report.predict import forecast_report, predict_document
from dlprof.stats.belief import NEAR


def is_fed(row: ForecastRow) -> bool:
    wait = row.prediction.wait_fraction
    return wait is not None and wait <= FED_WAIT_FRACTION


def predicted(run: Run, **question: Any) -> Forecast:
    situation = asked(run, **question)
    return forecast(situation, wanted_configs(situation, {}))


def rate_of(found: Forecast, wanted: Config) -> float:
    return next(row.rate for row in found.rows if row.config == wanted)


def test_a_run_without_a_calibration_says_what_to_do() -> None:
    run = calibrated()
    for none in (None, Calibration()):
        with pytest.raises(UsageError) as caught:
            predicted(Run(path=run.path, header=run.header, calibration=none))
        assert "dlprof profile" in str(caught.value.hint)
        assert "dlprof sweep" in str(caught.value.hint)


def test_another_run_s_calibration_is_reported_by_its_batch_size() -> None:
    mine = trial(config(1, batch_size=16), purpose="explain")
    for size in (None, 32):
        costs = calibration(cpu=0.004, batch_size=size, trials=("t0001",))
        with pytest.raises(UsageError, match="another batch size"):
            predicted(calibrated(costs, trials=[mine]))
    own = calibration(cpu=0.004, batch_size=16, trials=("t0001",))
    assert predicted(calibrated(own, trials=[mine])).rows


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    cpu=st.floats(1e-5, 0.1),
    io=st.floats(0, 0.1),
    receive=st.floats(0, 0.02),
    put=st.floats(0, 0.01),
    cores=st.floats(0.5, 64),
    ranks=st.integers(1, 8),
    step_s=st.floats(0, 0.1),
)
@example(cpu=0.001, io=0.000624, receive=0.000624, put=0.0, cores=1.0, ranks=5, step_s=0.0625)
def test_the_pick_is_never_worse_than_the_default(
    cpu: float, io: float, receive: float, put: float, cores: float, ranks: int, step_s: float
) -> None:
    run = calibrated(calibration(cpu=cpu, io=io, receive=receive, put=put))
    found = predicted(run, cores=cores, ranks=ranks, step_s=step_s)
    best = max(row.speed for row in found.rows)
    picked = next(row for row in found.rows if row.config == found.pick)
    default = next(row for row in found.rows if row.config == Config())
    assert picked.speed >= default.speed
    assert picked.speed >= NEAR * best
    cheaper = [row for row in found.rows if row.config.cost_key < picked.config.cost_key]
    # What is slower than loading without workers is never chosen, however little it is.
    alone = next((row.speed for row in found.rows if not row.config.num_workers), 0.0)
    near = [row for row in cheaper if row.speed >= max(NEAR * best, alone)]
    assert all(is_fed(picked) and not is_fed(row) for row in near)


def test_cores_are_no_bottleneck_of_what_left_them_idle() -> None:
    """At a lock, say: the model has all eight cores busy, and its trials used one of them."""
    for own, bound in ((1.0, ""), (7.9, "cores")):
        usage = Usage(own_cpu_cores=own, available_cpu_cores=8.0, run_queue_wait_fraction=0.2)
        trials = blocks({config(16): [300, 310]}, usage=usage)
        found = predicted(calibrated(calibration(cpu=0.04, receive=0.0002), trials=trials))
        row = next(row for row in found.rows if row.config == config(16))
        assert row.measured is not None
        assert row.prediction.bound == bound


def test_data_that_waits_wants_more_workers_than_cores() -> None:
    found = predicted(calibrated(), cores=2.0)
    assert found.pick is not None
    assert found.pick.num_workers > 2


def test_what_does_not_fit_is_not_picked() -> None:
    there = elsewhere(96, memory_bytes=400 << 20)
    found = predicted(calibrated(), machine=there)
    assert found.pick is not None
    assert found.pick.num_workers <= 4
    assert any("memory of server" in row.beyond for row in found.rows)


def test_where_nothing_fits_there_is_no_pick() -> None:
    there = elsewhere(96, memory_bytes=1 << 20)
    found = predicted(calibrated(), machine=there)
    assert found.pick is None
    assert all(row.beyond for row in found.rows)


def test_where_nothing_that_was_measured_fits_there_is_no_pick_either() -> None:
    rates = {config(0): [730.0, 731.0, 730.0], config(8): [5800.0, 5810.0, 5790.0]}
    run = calibrated(trials=blocks(rates, usage=WAITING))
    found = forecast(asked(run, max_ram_bytes=1 << 20), [*rates])
    assert found.pick is None
    assert found.confidence == "low"


def test_a_trial_without_a_rate_is_none_of_what_the_model_calibrated_by() -> None:
    empty = trial(config(1), None)
    found = recommend(calibrated(trials=[trial(config(4), 1400.0), empty]))
    assert [each.config for each in found.rates] == [config(4)]


def test_measured_rates_stand_beside() -> None:
    rates = (trial(config(2), rate, repetition=n) for n, rate in enumerate((1400.0, 1500.0)))
    run = calibrated(trials=rates)
    found = predicted(run)
    (row,) = [row for row in found.rows if row.measured is not None]
    assert row.config == config(2)
    assert row.measured is not None
    assert row.measured.samples_per_s.value == pytest.approx(math.sqrt(1400 * 1500), rel=0.003)
    assert row.measured.trials == ("t0001", "t0002")
    others = predicted(run, ranks=2)
    assert all(row.measured is None for row in others.rows)


def test_what_the_run_recommends_is_among_what_is_predicted() -> None:
    """The search may have found it further away than what is worth predicting by itself."""
    run = calibrated(trials=[trial(config(2), 1400.0)])
    odd = config(2, prefetch_factor=7)
    advice = dataclasses.replace(recommend(run), config=odd)
    run = dataclasses.replace(run, recommendation=advice)
    found = forecast(asked(run), None)
    assert found.pick == odd
    assert odd in {row.config for row in found.rows}
    assert "no configuration keeps the limits" not in drawn(forecast_report(found), 80)


def test_which_limit_keeps_all_from_being_recommended_is_said() -> None:
    run = calibrated(trials=[trial(config(2), 1400.0)])
    found = forecast(asked(run), [config(4000)])
    assert found.pick is None
    said = " ".join(drawn(forecast_report(found), 80).split())
    assert "Recommended nothing: num_workers=4000, prefetch_factor=2 does not keep the m" in said


def test_a_model_that_agrees_with_the_run_is_trusted() -> None:
    # 8 workers, 44.2 ms a batch of 32 samples
    run = calibrated(trials=[trial(config(8), 5760.0, spread=0.02)])
    agreed = predicted(run, max_workers=16)
    assert (agreed.confidence, agreed.agreement and agreed.agreement.outside) == ("medium", 0)
    assert agreed.confidence_reason.startswith("the model agrees with the trials")
    alone = predicted(calibrated())
    assert alone.confidence == "medium"
    assert alone.confidence_reason.startswith("no trial measured settings like these")


def test_workers_that_wait_may_share_a_limit_that_far_fewer_did_not_reach() -> None:
    few = [trial(config(2), 1440.0, spread=0.02)]
    waiting = predicted(calibrated(trials=few), max_workers=16)
    assert waiting.confidence == "low"
    assert waiting.confidence_reason.startswith("no more than 2 workers measured: more may share")
    elsewhere = predicted(calibrated(trials=few), max_workers=16, cores=32)
    assert elsewhere.confidence == "low"  # on whatever cores
    assert elsewhere.confidence_reason.startswith("no more than 2 workers measured: more may share")
    needs = {row.config.num_workers: row.gain_if for row in waiting.rows}
    assert needs[16] == "its workers share no limit"  # which its gain says, too
    assert {needs[count] for count in needs if count <= 4} == {""}
    near = predicted(calibrated(trials=few), max_workers=4)
    near_there = predicted(calibrated(trials=few), max_workers=4, cores=32)
    computing = predicted(
        calibrated(calibration(cpu=0.04, io=0.0, receive=0.0002), trials=few), max_workers=16
    )
    others = (near, near_there, computing)
    assert {"share" in each.confidence_reason for each in others} == {False}


def test_waiting_workers_that_gave_far_less_than_predicted_speak_for_no_more() -> None:
    """Three are served at once: 7 gave what 3 would, and 14 are no more than twice as many."""
    few = [trial(config(n), rate, spread=0.02) for n, rate in ((1, 720.0), (2, 1440.0))]
    held, grown = (
        calibrated(trials=[*few, trial(config(7), rate, spread=0.02)]) for rate in (2200.0, 5000.0)
    )
    models = predictions(asked(held), [config(n) for n in (0, 1, 2, 7, 14)])
    chosen = {}
    for run in (held, grown):
        made = SweepPrediction(
            cells=cells_of(models), race=(), pick=config(14), cores=8.0, neighbours=0.0, log_sd=0.05
        )
        answer = recommend(dataclasses.replace(run, prediction=made))
        chosen[run is held] = answer.config.num_workers
    assert chosen == {True: 7, False: 14}
    there = recommend(held, Constraints(cores=32.0))  # where nobody asked for so many either
    assert there.config.num_workers <= 7
    unsure, sure = (forecast(asked(run), [config(14)]) for run in (held, grown))
    assert unsure.confidence == "low"
    assert unsure.confidence_reason.startswith("no more than 7 workers measured: more may share")
    assert "share" not in sure.confidence_reason


@pytest.mark.parametrize(("four", "chosen"), [(2160.0, 4), (2800.0, 14)])
def test_a_limit_that_four_workers_may_have_met_is_not_passed_untried(
    four: float, chosen: int
) -> None:
    """Three slots give 2160, and so do workers that gain less each: only more of them show it.

    Of what they gained as predicted, more are likely to gain as well.
    """
    rates = ((1, 720.0), (2, 1440.0), (4, four))
    run = calibrated(trials=[trial(config(n), r, spread=0.02, usage=WAITING) for n, r in rates])
    cells = cells_of(predictions(asked(run), [config(n) for n in (0, 1, 2, 4, 14)]))
    led = SweepPrediction(
        cells=cells, race=(), pick=config(14), cores=8.0, neighbours=0.0, log_sd=0.08
    )
    answer = recommend(dataclasses.replace(run, prediction=led))
    assert answer.config.num_workers == chosen
    # The belief has it open: both what a limit gives and what the model does.
    ratio = speeds_of(asked(dataclasses.replace(run, prediction=led))).ratio(
        config(14).key, config(4).key
    )
    assert ratio.low is not None
    assert ratio.high is not None
    assert (ratio.low < 1.05) is (chosen == 4)
    assert ratio.high > 3


def test_no_more_workers_seem_faster_than_those_that_met_a_limit() -> None:
    """Three are served at once: 7 gave what 3 would, and the model knows nothing of it."""
    few = [trial(config(n), rate, usage=WAITING) for n, rate in ((1, 720.0), (2, 1440.0))]
    found = []
    for rate in (2200.0, 5000.0):
        run = calibrated(trials=[*few, trial(config(7), rate, usage=WAITING)])
        found.append(forecast(asked(run), [config(n) for n in (0, 1, 2, 7, 14)]))
    held, grown = found
    assert (held.pick, held.faster) == (config(7), None)
    assert grown.pick == config(14)


def test_a_model_that_contradicts_the_run_is_not() -> None:
    """And it is off of the others as well, and not of the one that was measured alone."""
    found = predicted(calibrated(trials=[trial(config(2), 300.0, spread=0.02)]))
    assert found.confidence == "low"
    assert found.agreement is not None
    assert found.agreement.outside == 1
    assert rate_of(found, config(2, 4)) == pytest.approx(rate_of(found, config(2)), rel=0.1)


def test_rates_over_whole_epochs_are_held_against_such() -> None:
    """Twenty batches take 0.44 s, and starting workers again half as long."""
    of = target(batches_per_epoch=20, length=640)
    steady, whole = (
        predicted(calibrated(target=of, trials=[trial(config(2), rate, whole_epochs=over)]))
        for rate, over in ((1440.0, False), (20 * 32 / 0.6, True))
    )
    for found in (steady, whole):
        assert found.agreement is not None
        assert found.agreement.outside == 0
    text = drawn(forecast_report(whole), 120, verbose=True)
    assert "what 1 trial of this run gave, over whole epochs as the predictions are." in text


def test_open_files_are_reckoned_with_for_what_was_not_measured() -> None:
    here = machine(8, open_files_limit=256)
    tensors = target(batch_tensors=20)
    found = predicted(calibrated(machine=here, target=tensors))
    beyond = {row.config for row in found.rows if "open files" in row.beyond}
    assert beyond
    assert {Config(), found.pick}.isdisjoint(beyond)
    # Of batches without any each worker takes four, and the queue of results two.
    none = predicted(calibrated(machine=here, target=target(batch_tensors=0)))
    beyond = {row.config for row in none.rows if "open files" in row.beyond}
    assert min(each.num_workers for each in beyond) > (256 - 64 - 2) // 4


def test_neighbours_that_were_there_explain_a_low_rate() -> None:
    usage = Usage(other_cpu_cores=8.0)
    busy = calibration(cpu=0.04)
    # 4 threads of ours beside 8 of others on 8 cores: 2.67 cores, 67 batches a second
    found = predicted(calibrated(busy, [trial(config(4), 2133.0, usage=usage)]))
    assert found.agreement is not None
    assert found.agreement.neighbours == 8.0
    assert found.agreement.outside == 0


@pytest.mark.parametrize(
    ("run", "question", "confidence", "words"),
    [
        (calibrated(calibration(cpu=0.01, doubts=("it was short",))), {}, "low", "short"),
        (calibrated(calibration(cpu=0.01, standard_error=0.4)), {}, "low", "lower"),
        (calibrated(), {"machine": elsewhere()}, "low", "--speed"),
        (
            calibrated(),
            {"machine": elsewhere(), "speed": 1.0},
            "low",
            "measured on box, and nothing on",
        ),
        (calibrated(), {"ranks": 2}, "medium", "not 2 at once"),
        (calibrated(), {"cores": 64.0}, "medium", "not 64"),
    ],
)
def test_doubts_are_reported(
    run: Run, question: dict[str, Any], confidence: str, words: str
) -> None:
    found = predicted(run, **question)
    assert found.confidence == confidence
    assert words in found.confidence_reason


@pytest.mark.parametrize("question", [{"cores": 32.0}, {"step_s": 0.02}])
def test_how_near_the_best_it_is_by_the_model_is_said_beside_the_doubt(
    question: dict[str, Any],
) -> None:
    rates = {2: 1440.0, 4: 2800.0}
    trials = [trial(config(n), rate, repetition=r) for n, rate in rates.items() for r in range(3)]
    found = predicted(calibrated(trials=trials), **question)
    near = re.search(
        r"; by the model within (\d+)% of the best of the (\d+) settings asked for \(95%\)$",
        found.confidence_reason,
    )
    assert near is not None
    assert int(near[2]) <= len(found.rows)
    assert 1 <= int(near[1]) <= 50


def test_where_the_others_are_too_uncertain_the_model_says_it_of_those_that_were_measured() -> None:
    """It said that it can't say, of a choice that was within 9% of the best that was measured."""
    near = Certificate(
        epsilon=0.87, epsilon_measured=0.085, probability=0.95, configurations=127, measured=3
    )
    choice, _ = decide(asked(calibrated(), ranks=2))
    _, said = certainty_of(choice, near)
    wanted = "; by the model within 9% of the best of the 3 measured settings (95%); "
    assert said.endswith(f"{wanted}the others are too uncertain")


def test_where_all_are_too_uncertain_the_model_does_not_say_how_near_the_best_it_is() -> None:
    doubted = calibration(cpu=1e-5, io=0.01, doubts=("it is in doubt",) * 9)
    unsure = predicted(calibrated(doubted))
    assert unsure.confidence_reason.endswith("; how near the best it is, the model can't say")


def test_what_uses_all_cores_is_near_the_best_whatever_a_batch_costs() -> None:
    """That the calibration is off by 200 % is so of all settings, and there are no more cores."""
    unsure = predicted(calibrated(calibration(cpu=0.01, standard_error=2.0)))
    near = re.search(r"; by the model within (\d+)% of the best of ", unsure.confidence_reason)
    assert near is not None
    assert int(near[1]) <= 40


def test_what_is_not_recommended_is_near_nothing() -> None:
    impossible = predicted(calibrated(), machine=elsewhere(96, memory_bytes=1 << 20))
    assert impossible.pick is None
    assert "by the model" not in impossible.confidence_reason


def test_a_speed_that_is_not_known_widens_intervals_of_loaders_that_compute() -> None:
    def width(costs: Calibration, speed: float | None) -> float:
        run = calibrated(costs)
        found = forecast(asked(run, machine=elsewhere(), speed=speed), [fed(2)])
        rate = found.rows[0].prediction.batches_per_s
        assert rate.low is not None
        assert rate.high is not None
        return math.log(rate.high / rate.low)

    computing, waiting = calibration(cpu=0.02), calibration(cpu=1e-5, io=0.02)
    assert width(computing, None) > 2 * width(computing, 1.0)
    assert width(waiting, None) < width(waiting, 1.0) + 0.01


def test_batches_that_cost_nothing_predict_nothing() -> None:
    run = calibrated(constant())
    with pytest.raises(UsageError, match="cost no time"):
        forecast(asked(run), [fed(2)])


def test_another_batch_size_is_refused() -> None:
    run = calibrated(calibration(cpu=0.01, batch_size=16))
    with pytest.raises(UsageError, match="batch_size=8"):
        forecast(asked(run), [fed(2, batch_size=8)])


def test_the_document_holds_all_with_reasons_for_what_is_missing() -> None:
    bare = constant(cpu=0.01, io=0.01)
    run = calibrated(bare, [trial(config(2), 1400.0)])
    found = predicted(run)
    document = json.loads(predict_document(found))
    assert document["schema_version"] == 1
    assert document["conditions"]["cores"] == 8.0
    assert document["method"] == document["rows"][0]["prediction"]["method"] == "maxplus"
    row = document["rows"][0]
    assert row["config"]["num_workers"] == 0
    assert set(row["prediction"]["batches_per_s"]) == {"value", "low", "high"}
    missing = {name for name, value in row["prediction"].items() if value is None}
    assert missing <= set(document["unavailable"])
    assert "wait_fraction" in document["unavailable"]
    assert document["bounds"]["workers"].startswith("the workers are the limit")
    assert {row["measured"] is None for row in document["rows"]} == {True, False}
