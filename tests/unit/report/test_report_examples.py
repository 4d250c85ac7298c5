"""The run files of the documentation say what the documentation says of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import config, trial
from golden import drawn

from dlprof import api
from dlprof.advise.compare import compare
from dlprof.advise.recommend import recommend, with_recommendation
from dlprof.cli.entry import run as dlprof
from dlprof.machine.profiles import MachineProfile, save_profile
from dlprof.records import Config, ConfigRate, Constraints, Estimate
from dlprof.records.codec import to_json
from dlprof.report.compare import comparison_report
from dlprof.report.document import Document, FactList
from dlprof.report.export.formats import render_as, run_report
from dlprof.report.findings import answer
from dlprof.report.predict import forecast_report
from dlprof.report.snippets import render_python
from dlprof.report.sweep import gains_text, recommendation_report, sweep_report
from dlprof.store import read_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
EARLIER = ROOT / "tests" / "data" / "runs"  # whose boxes have no rates, as of an earlier version
CROWDED = EARLIER / "crowded-profile.dlprof.jsonl"


def screen(document: Document) -> str:
    """A screen of 80 columns as one line."""
    return " ".join(drawn(document, 80).split())


def test_the_page_shows_what_the_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = compare(
        read_run("single-box.dlprof.jsonl"),
        read_run("shared-server.dlprof.jsonl"),
    )
    page = (ROOT / "docs" / "concepts" / "comparing.md").read_text(encoding="utf-8")
    assert drawn(comparison_report(found), 80).strip() in page
    assert found.findings[0].code == "cpu.neighbours"


def test_the_quota_hides_behind_the_neighbours() -> None:
    a, b = (read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in ("single-box", "shared-server"))
    parts = {part.code: part.log_ratio.value for part in compare(a, b).parts}
    assert parts["neighbours"] < 5 * parts.get("quota", 0.0) <= 0


@pytest.mark.parametrize("name", ["headroom", "training-before", "training-after"])
def test_the_answer_of_a_script_fits_into_16_lines_and_says_how_sure_it_is(name: str) -> None:
    text = drawn(run_report(read_run(EXAMPLES / f"{name}.dlprof.jsonl")), 80)
    assert len(text.splitlines()) <= 16
    sure = "low" if name == "training-after" else "medium"
    assert f"Certainty   {sure}: the script ran once; " in text
    assert ("The loop over train.py:17 spends 31% of its time" in text) is (name == "headroom")


def test_a_headroom_is_shown_of_the_loader_that_is_waited_for_longest() -> None:
    run = read_run(EXAMPLES / "headroom.dlprof.jsonl")
    (measured,) = run.watched
    slower = dataclasses.replace(
        measured, name="slow.py:1", waited_s=60.0, wait_fraction=0.6, headroom=None
    )
    assert run.diagnosis is not None
    both = dataclasses.replace(
        run,
        watched=(slower, measured),
        diagnosis=dataclasses.replace(run.diagnosis, trials=("slow.py:1",)),
    )
    text = drawn(run_report(both), 80)
    assert "Headroom  " not in text
    assert "Certainty   medium: the script ran once" in text


def test_how_sure_it_is_of_named_settings_counts_all_of_them() -> None:
    run = read_run(CROWDED)
    of_the_run, named = api.predict(run), api.predict(run, num_workers=range(17))
    assert of_the_run.confidence_reason.startswith("within ")
    assert named.pick == of_the_run.pick
    assert named.confidence == "low"
    assert (
        f" of the best of the {len(named.rows)} settings asked for (95%)" in named.confidence_reason
    )


def test_predict_has_as_many_settings_as_the_certainty_of_the_sweep_names() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    found = api.predict(run)
    assert run.recommendation is not None
    assert run.recommendation.certificate is not None
    count = run.recommendation.certificate.configurations
    assert len(found.rows) == count
    text = screen(forecast_report(found))
    assert f"of the best of {count} settings" in text or "measured settings" in text
    assert f" of {count} settings)" in text


def test_predict_compares_with_what_recommend_compares_with_and_with_what_it_recommends() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    (line,) = (row for row in _rows(recommendation_report(run, api.recommend(run)), "Speed-up"))
    assert " over your settings (" in line
    assert line in _rows(forecast_report(api.predict(run)), "Speed-up")
    named = forecast_report(api.predict(run, num_workers=1))
    (line,) = _rows(named, "Speed-up")
    best = api.recommend(run).config
    assert f"slower than the recommended {best.text} (" in line


def _rows(document: Document, name: str) -> list[str]:
    return [
        str(words)
        for block in document.answer
        if isinstance(block, FactList)
        for label, words in block.rows
        if label == name
    ]


def test_a_profile_s_own_machine_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / "loader.dlprof.jsonl"
    own = tmp_path / "own.toml"
    save_profile(own, MachineProfile.of(read_run(path).header.machine, dt.date(2026, 11, 1)))
    texts = []
    for words in ([], ["--machine", str(own)]):
        for more in ("--verbose", "--json"):
            assert dlprof(["recommend", str(path), *words, more], {}) == 0
            texts.append(capsys.readouterr().out)
    assert texts[:2] == texts[2:]


def test_of_named_settings_the_screen_says_that_the_run_has_others() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    found = api.predict(run, num_workers=range(4))
    assert run.recommendation is not None
    assert run.recommendation.config not in {row.config for row in found.rows}
    hint = "(of what was asked for; of all settings: dlprof recommend)"
    both = hint.replace(";", ", prefetch_factor 2 or 4;")
    assert both in screen(forecast_report(found))
    assert hint not in screen(forecast_report(dataclasses.replace(found, named=())))
    profiled = read_run(EXAMPLES / "why.dlprof.jsonl")  # which keeps no recommendation
    found = api.predict(profiled, num_workers=8)
    assert both in screen(forecast_report(found))


def test_more_workers_than_cores_are_no_riddle() -> None:
    run, why = read_run(EXAMPLES / "loader.dlprof.jsonl"), " busy with 7 workers)"
    found = api.predict(run, num_workers=range(17), step_time="20ms")
    assert found.pick is not None
    assert found.pick.num_workers > found.conditions.cores
    assert f" 2 cores (0.6{why}" in screen(forecast_report(found))
    few = api.predict(run, num_workers=2)
    assert why not in screen(forecast_report(few))


@pytest.mark.slow
def test_beside_background_load_busy_cores_are_compared_with_those_available() -> None:
    run, why = read_run(EXAMPLES / "loader.dlprof.jsonl"), " busy with 7 workers)"
    question: Any = {"num_workers": range(17), "assume_background": 0.9}
    found = api.predict(run, step_time="20ms", **question)
    others = "other processes want 0.9 cores"
    assert f" 2 cores (0.6{why}, {others}" in screen(forecast_report(found))
    (picked,) = (row for row in found.rows if row.config == found.pick)
    busy = dataclasses.replace(
        picked, prediction=dataclasses.replace(picked.prediction, cores=1.7)
    )  # of 1.8 beside the others
    assert why not in screen(forecast_report(dataclasses.replace(found, rows=(busy,))))
    limited = api.predict(run, num_workers=range(17), assume_background=3.0, step_time="4ms")
    (picked,) = (row for row in limited.rows if row.config == limited.pick)
    assert picked.prediction.bound == "cores"
    assert picked.config.num_workers > limited.conditions.cores
    assert " 2 cores, other processes want 3 cores" in screen(forecast_report(limited))


def test_a_comparison_says_how_many_parts_it_has_beside_those_with_a_bar() -> None:
    names = ("single-box", "shared-server")
    found = compare(*(read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in names))
    text = screen(comparison_report(found))
    assert len(found.parts) > text.count("█|")
    whole = f"{found.ratio.value:.2f}x"
    assert text.endswith(f"Details: -v (all {len(found.parts)} parts, which multiply to {whole})")
    text = screen(comparison_report(dataclasses.replace(found, parts=found.parts[:1])))
    assert text.endswith("Details: -v")


def test_where_a_comparison_has_no_room_its_smallest_part_goes_first() -> None:
    names = ("single-box", "shared-server")
    runs = (read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in names)
    text = screen(comparison_report(compare(*runs, num_workers=0)))
    assert "background load (0.36x), then CPU time per sample (0.49x)" in text
    assert "part factor background load 0.36x" in text
    assert "CPU time per sample 0.49x" in text
    assert "unexplained" not in text


def test_beside_one_that_seems_faster_no_answer_is_highly_certain() -> None:
    run = read_run(EXAMPLES / "why.dlprof.jsonl")
    for text in (
        screen(recommendation_report(run, api.recommend(run))),
        screen(forecast_report(api.predict(run))),
    ):
        assert "Faster? num_workers=7, persistent_workers=True: 1.07x" in text
        assert "Certainty medium: within 1% of the best of the 2 measured settings (95%); " in text
        assert "one that was not measured may be faster" in text


def test_named_settings_are_compared_with_the_default_that_is_not_named() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    whole, named = api.predict(run), api.predict(run, num_workers=8)
    assert {row.config.num_workers for row in named.rows} == {8}
    rates = {row.config: row.samples_per_s for row in (*whole.rows, *named.rows)}
    assert named.pick is not None
    mine, default = rates[named.pick], rates[Config()]
    assert named.speedup is not None
    assert mine is not None
    assert default is not None
    assert named.speedup.value == pytest.approx(mine.value / default.value, rel=0.001)


def test_what_the_step_waits_within_epochs_and_between_them_is_one_figure() -> None:
    run = read_run(CROWDED)
    advice = api.recommend(run, step_time="20ms")
    wait, restarts = advice.expected.wait_fraction, advice.expected.turnover_fraction
    assert wait == pytest.approx(0.223, abs=0.005)
    assert restarts == pytest.approx(0.16, abs=0.005)
    text = screen(recommendation_report(run, advice))
    assert "35% of the time: 19% in epochs, 16% at epoch ends (measured, step 20 ms)" in text
    predicted = screen(forecast_report(api.predict(run, num_workers=8)))
    assert "42% of the time: 23% in epochs, 19% at epoch ends (step 20 ms)" in predicted
    assert "the training step (58% of the time), not loading (receiving: 23%)" in predicted


def test_cores_that_others_had_when_it_was_calibrated_are_none_that_it_lacked() -> None:
    found = api.predict(read_run(CROWDED), num_workers=8)
    assert found.conditions.neighbours > 1
    assert "were available when it was measured" not in found.confidence_reason


def test_a_row_that_differs_in_more_than_workers_says_in_what() -> None:
    run = read_run(EXAMPLES / "loader.dlprof.jsonl")
    lines = drawn(sweep_report(run), 80).splitlines()
    unlike = [line.split()[:2] for line in lines if "persistent" in line]
    assert unlike == [["5", "persistent"]]
    ranks = drawn(forecast_report(api.predict(run, ranks=4)), 80)
    assert "\n  2 yours  " in ranks
    # Beside a wait: as ranks wait longer for what they share, none of them is at full speed.
    assert "the cores run out first, beyond 6 such ranks (95% CI 5-8)" in ranks
    assert len(ranks.splitlines()) <= 16


def test_rates_that_no_trial_shows_are_called_estimated() -> None:
    run = read_run(EARLIER / "shared-server.dlprof.jsonl")
    advice = api.recommend(run, ranks=4)
    text = drawn(recommendation_report(run, advice), 80)
    assert "  Estimated    for 4 ranks\n" in text
    assert "samples/s a rank, estimated\n" in text
    assert "--launch-ranks 4" in text
    assert "--budget" not in text
    assert len(text.splitlines()) <= 16
    run = read_run(EARLIER / "single-box.dlprof.jsonl")
    text = drawn(recommendation_report(run, api.recommend(run, machine="dgx-h100")), 80)
    assert "  Estimated    for dgx-h100 by the rates measured on single-box\n" in text
    assert "\n  dlprof sweep images --num-workers 0,1,2,3,4,8,16,32,64,128,224 " in text
    doubt = (
        "not considered: more workers than 2 (a run of dlprof profile predicts them), other batch"
    )
    assert doubt in " ".join(text.split())
    assert "\n  2 ◀ " in text
    assert "Asked for" not in text
    assert "--budget" not in text
    assert len(text.splitlines()) <= 16
    there, here = (
        next(line for line in render_python(run, each).splitlines() if "# expect " in line)
        for each in (api.recommend(run, machine="dgx-h100"), api.recommend(run))
    )
    assert there == "# expect 273 samples/s (95% CI 223-334), estimated, confidence low"
    assert here == there.replace(", estimated, confidence low", ", confidence high")


def test_the_default_is_one_at_the_same_batch_size() -> None:
    run = read_run(EARLIER / "single-box.dlprof.jsonl")
    text = " ".join(drawn(sweep_report(run), 80).split())
    assert (
        "at least 1.06x over PyTorch's default at batch_size=8 (95%); too noisy for more "
        "(sweep again with --budget 60s)"
    ) in text


@pytest.mark.parametrize("disturbed", [False, True])
def test_one_disturbed_trial_alone_bounds_no_gain(*, disturbed: bool) -> None:
    run = read_run(EARLIER / "single-box.dlprof.jsonl")
    first = next(trial for trial in run.completed if not trial.config.num_workers)
    first = dataclasses.replace(first, noisy=disturbed)
    others = [trial for trial in run.trials if trial.config != first.config]
    run = dataclasses.replace(run, trials=(first, *others), recommendation=None)
    found = with_recommendation(run)
    assert found.recommendation is not None
    (rate,) = (each for each in found.recommendation.rates if each.config == first.config)
    assert rate.ratio.is_wide
    assert (rate.ratio.high or 1) < 1
    text = " ".join(drawn(sweep_report(found), 80).split())
    once = "measured once, and disturbed"
    unknown = f"not known over PyTorch's default at batch_size=8: {once}"
    assert (unknown in text, "at least" in text) == (disturbed, not disturbed)
    claim = next(c.claim for c in found.recommendation.reasons if "num_workers=0" in c.claim)
    assert claim.startswith("How ") is (once in claim) is disturbed
    assert ("is faster than" in claim) is not disturbed
    assert "too uncertain" in claim
    # Nor does the table, whose intervals need not overlap.
    table = " ".join(drawn(sweep_report(found), 80, verbose=True).split())
    words = "slower, faster: surely; by how much", "unclear: too noisy, or measured once"
    assert [each in table for each in words] == [not disturbed, disturbed]


@pytest.mark.parametrize("high", [110.0, 210.0])
def test_one_disturbed_trial_bounds_a_gain_where_its_own_rate_is_known(high: float) -> None:
    """As of a loader that waits: what makes the ratio wide is the other."""
    rate = Estimate(value=100.0, low=92.0, high=high)
    ratio = Estimate(value=1 / 20, low=1 / 40, high=1 / 10)
    default = ConfigRate(config=config(0), samples_per_s=rate, ratio=ratio, measured=True)
    run = builders.run([trial(config(0), 100.0, noisy=True)])
    text = gains_text(run, config(2), [(default, "num_workers=0")], None)
    known = "at least 10x over num_workers=0 (95%)"
    assert text == (
        known if high < 200 else "not known over num_workers=0: measured once, and disturbed"
    )


def test_what_is_not_known_over_one_and_over_another_are_two_clauses() -> None:
    wide = Estimate(value=100.0, low=20.0, high=500.0)
    ratio = Estimate(value=0.5, low=0.1, high=2.5)
    own, default = (
        ConfigRate(config=config(n), samples_per_s=wide, ratio=ratio, measured=True) for n in (2, 0)
    )
    run = builders.run([trial(config(2), noisy=True)])
    text = gains_text(run, config(4), [(own, "yours"), (default, "default")], None)
    assert text.startswith("not known over yours: measured once, and disturbed; not known over")


def test_a_ratio_that_is_too_noisy_reads_alike_on_the_screen_and_in_the_reasons() -> None:
    run = with_recommendation(read_run(EARLIER / "single-box.dlprof.jsonl"))
    found = run.recommendation
    assert found is not None
    claim = found.reasons[0].claim
    assert "is faster than num_workers=0, batch_size=8, but by how much is too uncertain" in claim
    # The bound is the same one.
    (bound,) = re.findall(r"at least [0-9.]+x", claim)
    assert bound in drawn(sweep_report(run), 200)
    assert found.confidence == "high"
    assert found.confidence_reason.endswith(
        "within 1% of the best of the 2 measured settings (95%)"
    )
    sure = with_recommendation(read_run(EARLIER / "shared-server.dlprof.jsonl")).recommendation
    assert sure is not None
    assert sure.confidence == "medium"
    assert sure.confidence_reason.endswith(
        "measured settings (95%); its trials: all 5 disturbed by other processes"
    )


def test_how_many_trials_were_disturbed_is_one_count_in_certainty_and_comparison() -> None:
    run = read_run(EARLIER / "shared-server.dlprof.jsonl")
    answer = screen(sweep_report(run))
    assert "Certainty medium: within 1% of the best of the 2 measured settings" in answer
    beside = screen(comparison_report(compare(run, run)))
    assert "all 5 disturbed" in answer
    assert "all 5 disturbed" in beside


@pytest.mark.parametrize("folder", [EXAMPLES, EARLIER])
@pytest.mark.parametrize("name", ["single-box", "shared-server"])
def test_the_document_of_a_run_has_the_answer_of_its_screen(name: str, folder: Path) -> None:
    """A file of an earlier version keeps one without rates."""
    run = read_run(folder / f"{name}.dlprof.jsonl")
    document = json.loads(render_as(run, "json"))
    assert document["recommendation"] == to_json(with_recommendation(run).recommendation)
    assert document["recommendation"]["rates"]


def test_a_rate_for_a_step_that_was_not_measured_says_so() -> None:
    run = read_run(EARLIER / "golden-before-plans.dlprof.jsonl")
    text = drawn(recommendation_report(run, recommend(run, Constraints(step_s=0.02))), 80)
    assert "260 samples/s (95% CI 173-390) for a step of 20 ms" in text


def test_a_predicted_fix_that_leaves_much_of_the_wait_says_that_more_may_pay() -> None:
    run = read_run(EXAMPLES / "training-before.dlprof.jsonl")
    first, wait = run.findings[0], run.watched[0].wait_fraction
    assert first.predicted_gain is not None

    def fix(value: float = 1.48, workers: int = 2, gain_from: str = "model") -> str:
        gain, evidence = Estimate(value=value), {"gain_from": gain_from}
        found = dataclasses.replace(first, evidence=evidence, predicted_gain=gain)
        return str(dict(answer([found], wait, workers=workers))["Fix"])

    assert fix() == "num_workers=6 (more may be faster: dlprof sweep measures them)"
    for limit, said in (("cores", "cores"), ("step", "the main process"), ("workers", "")):
        evidence = {"gain_from": "model", "gain_limit": limit}
        gain = Estimate(value=1.48, low=1.4, high=1.6)
        found = dataclasses.replace(first, evidence=evidence, predicted_gain=gain)
        text = dict(answer([found], 0.8, workers=2))["Fix"]
        assert text == (
            f"num_workers=6 (then limited by {said}: 70% wait is left)" if said else fix()
        )
    # A file may have anything there.
    shown: dict[str, object] = {"gain_from": "model", "gain_limit": ["cores"]}
    found = dataclasses.replace(first, evidence=shown, predicted_gain=gain)
    assert dict(answer([found], 0.8, workers=2))["Fix"] == fix()
    # What must hold for the gain is beside it.
    for needs in ("its shards feed all workers alike", ["its workers share no limit"]):
        shown = {"gain_from": "model", "gain_if": needs}
        found = dataclasses.replace(first, evidence=shown, predicted_gain=gain)
        assert dict(answer([found], wait, workers=2))["Fix"] == "num_workers=6"
    # None that is measurable leaves nothing.
    found = dataclasses.replace(
        first,
        evidence={"gain_from": "model", "gain_limit": "cores"},
        predicted_gain=Estimate(value=1.1, low=0.98, high=1.2),
    )
    assert "limited" not in str(dict(answer([found], 0.8, workers=2))["Fix"])
    # Tried; enough for the step; fewer than now.
    assert {fix(gain_from="measured"), fix(value=4.3), fix(workers=8)} == {"num_workers=6"}


def test_a_certificate_that_says_nothing_is_no_promise() -> None:
    run = read_run(EARLIER / "single-box.dlprof.jsonl")
    found = with_recommendation(run).recommendation
    assert found is not None
    assert found.certificate is not None
    sure = dataclasses.replace(found.certificate, epsilon=0.94, epsilon_measured=0.94)
    wide = Estimate(value=1.0, low=0.05, high=20.0)
    rates = tuple(dataclasses.replace(each, ratio=wide) for each in found.rates)
    advice = dataclasses.replace(found, certificate=sure, rates=rates)
    text = " ".join(drawn(recommendation_report(run, advice), 80).split())
    assert "too noisy to say (95% CI 0.05-20); sweep again" in text
    assert "slower" not in text


def test_all_workers_that_were_asked_for_are_on_the_screen() -> None:
    """However long the answer above them is."""
    run = with_recommendation(read_run(CROWDED))
    asked = [0, 2, 3, 10, 20, 36, 60]
    text = drawn(forecast_report(api.predict(run, num_workers=asked)), 60)
    chart = [line.split() for line in text.splitlines() if "█" in line]
    assert [int(words[0]) for words in chart] == asked
