"""The table and the plot of predictions, at every width; the commands' options."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from builders import config, header, target, trial
from golden import drawn
from model_calibrations import constant
from predicted_runs import asked, calibrated, calibration

from dlprof.advise.candidates import wanted_configs
from dlprof.advise.forecast import forecast
from dlprof.advise.recommend import recommend, summarize
from dlprof.cli.entry import run as dlprof
from dlprof.errors import UsageError
from dlprof.records import Calibration, Constraints, Estimate, Run
from dlprof.report.predict import forecast_report
from dlprof.report.sweep import recommendation_report
from dlprof.settings import parse_option
from dlprof.store import RunWriter
from dlprof.units import format_rate


def screen(run: Run, width: int, *, whole: bool = False, workers: str = "", **question: Any) -> str:
    where = asked(run, **question)
    axes = {"num_workers": parse_option("num_workers", workers)} if workers else {}
    named = ["prefetch_factor"] if whole else []
    found = forecast(where, wanted_configs(where, axes) if axes else None, named=named)
    return drawn(forecast_report(found), width, verbose=True)


@pytest.mark.parametrize("width", [60, 80, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "costs",
    [calibration(cpu=0.004, io=0.04), pytest.param(constant(cpu=0.01), marks=pytest.mark.slow)],
)
def test_no_line_is_wider_than_the_terminal(width: int, costs: Calibration) -> None:
    run = calibrated(costs, [trial(config(2), 1400.0)])
    question: dict[str, Any] = {"step_s": 0.002, "neighbours": 2.0, "storage_bytes_per_s": 1e9}
    for each in ({}, question):
        text = screen(run, width, **each)
        assert max(map(len, text.splitlines())) <= width
        assert "recommended" in text


def test_measured_and_predicted_are_distinguished() -> None:
    run = calibrated(trials=[trial(config(2), 1234.0)])
    text = screen(run, 200)
    (seen,) = summarize(run)
    assert seen.rate is not None
    assert "measured" in text
    assert text.count(f" {format_rate(seen.rate.value)}") == 4  # as every view has it
    assert "  Predicted    for machine box: " in text
    assert f"measured: {format_rate(seen.rate.value)}" not in screen(run, 100, ranks=2)


def test_rows_show_what_they_differ_in() -> None:
    """Trials of a sweep keep their workers or don't, and each is predicted beside its figure."""
    run = calibrated(trials=[trial(config(2, persistent_workers=True), 1234.0)])
    text = screen(run, 120, whole=True)
    assert "persist" in text
    assert any("2         2      yes" in line for line in text.splitlines())
    assert "persist" in screen(calibrated(), 120, whole=True)
    assert "persist" not in screen(calibrated(), 120, whole=True, workers="0:8")


def test_limits_are_reported_in_words() -> None:
    assert "  Bottleneck   the cores: all available ones are busy" in screen(calibrated(), 120)
    text = screen(calibrated(), 120, workers="0:16")
    assert "  Bottleneck   the workers: each is busy with a batch all the time" in text


def test_rows_that_say_nothing_new_are_left_out() -> None:
    run = calibrated(calibration(cpu=0.01))
    assert len(screen(run, 120, whole=True).splitlines()) > len(screen(run, 120).splitlines())
    assert "--json shows all" in screen(run, 120)


@pytest.mark.parametrize("whole", [True, False])
def test_the_hint_counts_the_settings_that_the_table_has(*, whole: bool) -> None:
    run = calibrated(calibration(cpu=0.01))
    found = forecast(asked(run), None, named=["prefetch_factor"] if whole else [])
    report = forecast_report(found)
    hidden = re.search(r"(\d+) more configurations: --json", drawn(report, 120, verbose=True))
    left_out, of_all = int(hidden[1]) if hidden else 0, len(found.rows)
    said = f"{of_all - left_out} of {of_all}" if left_out else f"all {of_all}"
    assert bool(left_out) is not whole
    assert f"Details: -v ({said} settings)" in drawn(report, 120)


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with RunWriter.create(tmp_path / "run.dlprof.jsonl", header()) as writer:
        writer.append(calibration(cpu=0.004, io=0.04))
    return "run.dlprof.jsonl"


def test_the_command_answers(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlprof(["predict", run_file], {}) == 0
    out, err = capsys.readouterr()
    assert out.startswith("  Predicted ")
    assert len(out.splitlines()) <= 16
    assert err == ""


def test_the_document_has_every_cell(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", run_file, "--num-workers", "0:6:2", "--prefetch-factor", "2,4", "--json"]
    words += ["--cores", "2", "--storage-limit", "1GB/s"]
    assert dlprof(words, {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 7
    assert document["conditions"]["cores"] == 2.0
    assert document["conditions"]["storage_bytes_per_s"] == 1e9


def test_feeding_answers(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", run_file, "--feed", "--step-time", "12ms", "--ranks", "2", "--json"]
    assert dlprof([*words, "--max-wait", "5%"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["asked_wait_fraction"] == 0.05
    assert document["ranks"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-wait", "2%"], "--max-wait belongs to --feed"),
        (["--method", "simulation"], "--method is gone: there is one predictor"),
        (["--feed", "--step-time", "1ms", "--num-workers", "4"], "finds num_workers by itself"),
        (["--feed", "--step-time", "1ms", "--in-order", "both"], "one value of each"),
        (["--feed"], "no training step to feed"),
        (["--cores", "0"], "--cores: '0' is not a number"),
        (["--cores", "nan"], "--cores: 'nan' is not a number"),
        (["--neighbours", "-1"], "--assume-background: '-1' is not a number"),
        (["--speed", "fast"], "--speed: 'fast' is not a number"),
        (["--storage-limit", "0"], "--storage-limit: '0' is not a size a second above 0"),
        (["--storage-limit", "2 apples/s"], "is not a size"),
        (["--num-workers", "many"], "--num-workers"),
    ],
)
def test_bad_options_are_refused(
    run_file: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert dlprof(["predict", run_file, *words, "--json"], {}) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]


def test_values_are_read() -> None:
    assert parse_option("cores", "0.5") == parse_option("cores", 0.5) == 0.5
    assert parse_option("speed", 2) == 2.0
    assert parse_option("storage_limit", "2GB/s") == parse_option("storage_limit", 2e9) == 2e9
    assert parse_option("storage_limit", "512MiB") == 512 * 2**20
    assert parse_option("max_wait", "2 %") == parse_option("max_wait", 0.02) == 0.02
    assert parse_option("max_wait", ".1") == 0.1


@pytest.mark.parametrize("wrong", ["0", "100%", "1.5", "-3%", "much", 1, math.inf, None, True])
def test_what_is_no_share_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a share") as caught:
        parse_option("max_wait", wrong)
    assert caught.value.hint == "max_wait takes a share above 0 and below 1, such as 2% or 0.02."


def test_what_may_be_faster_than_what_was_measured_is_named() -> None:
    run = calibrated(calibration(cpu=0.001, io=0.05), [trial(config(2), 300.0)])
    text = screen(run, 80)
    assert "  Faster?      num_workers=" in text
    said = " ".join(text.split())
    asks = r"Faster\? num_workers=(\d+).*, only predicted, if its workers share no limit "
    assert re.search(asks + r"\(dlprof sweep --num-workers \1 measures it\) ", said)
    two = calibrated(
        calibration(cpu=0.001, io=0.05), [trial(config(1), 150.0), trial(config(2), 300.0)]
    )
    text = screen(two, 80)
    same = drawn(recommendation_report(two, recommend(two)), 80)  # as recommend says it
    assert text[text.index("  Faster?") : text.index("  Throughput")] in same
    assert "if its shards feed" not in text
    assert "Faster?" not in screen(calibrated(calibration(cpu=0.001, io=0.05)), 80)
    fed = trial(config(2), 300.0, wait_fraction=0.0)  # faster than a step that never waits is none
    assert "Faster?" not in screen(calibrated(calibration(cpu=0.001, io=0.05), [fed]), 80)


def test_of_one_measured_setting_predict_and_recommend_say_the_same() -> None:
    """However many others are predicted, it was compared with none."""
    run = calibrated(calibration(cpu=0.001, io=0.05), [trial(config(2), 300.0)])
    predicted, recommended = (
        " ".join(text.split())
        for text in (screen(run, 80), drawn(recommendation_report(run, recommend(run)), 80))
    )
    for text in (predicted, recommended):
        assert "Recommended nothing yet: only num_workers=2 was measured; sweep again with " in text
        assert "Faster? num_workers=" in text
    owned = calibrated(run.calibration, run.trials, target=target(own_config=config(2)))
    assert "Recommended num_workers=2" in " ".join(screen(owned, 80).split())


@pytest.mark.parametrize("noisy", [True, False])
def test_one_disturbed_trial_bounds_a_gain_in_no_view(*, noisy: bool) -> None:
    """A figure that is too noisy reads alike where settings are predicted and recommended."""
    run = calibrated(trials=[trial(config(0), 100.0, noisy=noisy), trial(config(2), 1000.0)])
    advice, found = recommend(run), forecast(asked(run), None)
    wide = Estimate(value=0.1, low=0.02, high=0.5)
    default = dataclasses.replace(found.others["default"], ratio=wide)
    found = dataclasses.replace(found, others={**found.others, "default": default})
    rates = [
        dataclasses.replace(r, ratio=wide) if r.config == config(0) else r for r in advice.rates
    ]
    advice = dataclasses.replace(advice, rates=tuple(rates))
    screens = forecast_report(found), recommendation_report(run, advice)
    for text in (" ".join(drawn(each, 80).split()) for each in screens):
        assert ("not known over PyTorch's default: measured once, and disturbed" in text) is noisy
        assert ("at least 2.0x over PyTorch's default" in text) is not noisy


@pytest.mark.parametrize(("repeats", "reaches"), [(1, True), (2, False)])
def test_a_lone_trial_of_the_default_reaches_what_all_else_says(
    repeats: int, *, reaches: bool
) -> None:
    """The model and the other trials have it five times as fast."""
    own = [trial(config(0), 100.0, repetition=n) for n in range(repeats)]
    advice = recommend(calibrated(trials=[*own, trial(config(2), 1000.0)]))
    (default,) = (each.samples_per_s for each in advice.rates if each.config == config(0))
    assert default.value == pytest.approx(100, rel=0.1)
    assert (default.ends[1] > 500) is reaches
    assert default.is_wide is reaches


def test_workers_that_persist_are_what_may_be_faster_where_restarts_take_long() -> None:
    """Their steady rate was measured; of fewer workers all is predicted, their restarts too."""
    seven = trial(config(7), 1475.0, wait_fraction=0.05, startup_s=0.34, epoch_turnover_s=None)
    costs = calibration(
        cpu=0.003, io=0.13, startup_s={"default": (0.17, 0.0)}, turnover_s={"default": 0.17}
    )
    short = target(length=3200, batches_per_epoch=100)
    run = calibrated(costs, [seven] * 3, target=short, settings={"step_s": 0.02})
    advice = recommend(run, Constraints(step_s=0.02))
    assert advice.config == config(7)
    assert advice.expected.turnover_fraction == pytest.approx(0.13, abs=0.02)
    better = [each.config for each in advice.alternatives if each.relation == "predicted"]
    assert better == [config(7, persistent_workers=True)]


def test_workers_that_start_again_for_most_of_the_time_are_not_busy_all_the_time() -> None:
    costs = calibration(
        cpu=0.003, io=0.13, startup_s={"default": (1.0, 0.5)}, turnover_s={"default": 2.0}
    )
    run = calibrated(costs, target=target(length=320, batches_per_epoch=10))
    text = " ".join(screen(run, 80, workers="4").split())
    assert "busy with a batch all the time" not in text
    assert "Bottleneck epoch restarts (" in text
    assert "as workers start again: persistent_workers=True keeps them" in text


def test_the_bottleneck_is_what_the_step_waits_for() -> None:
    waits = calibrated(calibration(cpu=0.001, receive=0.02))
    text = screen(waits, 80, step_s=0.03, workers="4")
    assert "the training step (60% of the time), not loading (receiving: 40%)" in text
    alone = screen(waits, 80, step_s=0.03, workers="0")
    assert "the main process loads each batch itself" in alone
    fed = screen(calibrated(calibration(cpu=0.001)), 80, step_s=0.03, workers="4")
    assert "  Bottleneck   the training step: the workers keep up\n" in fed


def test_what_may_be_faster_by_nobody_knows_how_much_has_no_figure() -> None:
    rate = Estimate(value=100.0, low=20.0, high=500.0)
    run = calibrated(calibration(cpu=0.001, io=0.05), [trial(config(2), 300.0)])
    advice = recommend(run)
    wide = tuple(
        dataclasses.replace(
            each, expected=dataclasses.replace(each.expected, samples_per_s=rate), speed=7.77
        )
        for each in advice.alternatives
    )
    unsure = dataclasses.replace(advice, alternatives=wide)
    text = drawn(recommendation_report(run, unsure), 80)
    assert "Faster?" in text
    assert "7.77x" not in text
