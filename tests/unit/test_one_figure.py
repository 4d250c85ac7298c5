"""One run has one rate for each configuration: every view that shows one shows that."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from builders import WAITING, blocks, config, plan, target
from golden import drawn
from predicted_runs import asked, calibrated, calibration, elsewhere
from rich.console import Console

from dlprof import api
from dlprof.advise.choice import predictions, shown_gain, shown_rate, speeds_of
from dlprof.advise.forecast import Forecast, ForecastRow, feed, forecast
from dlprof.advise.recommend import recommend, summarize, with_recommendation
from dlprof.advise.situation import Situation
from dlprof.engine.sweep import sweep_prediction
from dlprof.errors import UsageError
from dlprof.machine.profiles import MachineProfile, save_profile
from dlprof.records import Config, Constraints, Copies, Estimate, Failure, Run
from dlprof.report import document as doc
from dlprof.report.compare import comparison_report
from dlprof.report.documents import json_document
from dlprof.report.export.formats import render_as, render_html, run_report
from dlprof.report.export.rows import render_csv, render_parquet
from dlprof.report.index import index_row
from dlprof.report.labels import count_text, interval_text, rate_text, ratio_text, value_text
from dlprof.report.live import LiveListener, trial_line
from dlprof.report.notebook import notebook_html
from dlprof.report.predict import feed_report, feed_text, forecast_report, predict_document
from dlprof.report.sweep import recommendation_report, sweep_report
from dlprof.store import read_run
from dlprof.units import format_bytes, format_rate

RATES = {
    config(0): [240, 251, 236],
    config(2): [470, 498, 455],
    config(4): [880, 905, 610],
    config(4, 4): [870, 930],
    config(8): [1240],
    config(8, persistent_workers=True): [1260],
}
KEPT = config(4, persistent_workers=True)


@pytest.fixture(scope="module")
def run() -> Run:
    # Of 8 workers nothing is only predicted that may be faster than what was measured.
    cells = [config(w, p) for w in (1, 2, 4) for p in (2, 4, 8)] + [config(8)]
    made = calibrated(trials=blocks(RATES), plan=plan(RATES, cells=(config(0), *cells, *RATES)))
    made = dataclasses.replace(made, prediction=sweep_prediction(made))
    assert made.prediction is not None
    return dataclasses.replace(made, recommendation=recommend(made))


def rates(run: Run) -> dict[Config, float]:
    return {row.config: row.rate.value for row in summarize(run) if row.rate is not None}


def test_the_table_the_recommendation_and_the_prediction_have_the_same_rates(run: Run) -> None:
    known, advice = rates(run), run.recommendation
    assert advice is not None
    assert known.keys() == RATES.keys()
    reported = [
        (advice.config, advice.expected),
        *((a.config, a.expected) for a in advice.alternatives),
    ]
    for chosen, expected in reported:
        assert expected.samples_per_s is not None
        assert expected.samples_per_s.value == pytest.approx(known[chosen])
    for rule in advice.rules_of_thumb:
        if rule.expected_samples_per_s is not None and not rule.predicted:
            assert rule.expected_samples_per_s == pytest.approx(known[rule.config])
    answer = forecast(asked(run), None)
    measured = {row.config: row.measured for row in answer.rows if row.measured is not None}
    assert measured
    for chosen, seen in measured.items():
        assert seen.samples_per_s.value == pytest.approx(known[chosen])


def test_the_rates_that_were_kept_are_those_of_the_table(run: Run) -> None:
    advice = run.recommendation
    assert advice is not None
    kept = {each.config: each for each in advice.rates}
    assert {each for each in kept if kept[each].measured} == {*RATES}
    assert any(not each.measured for each in kept.values())
    fastest_first = [each.samples_per_s.value for each in advice.rates]
    assert fastest_first == sorted(fastest_first, reverse=True)
    without = dataclasses.replace(run, recommendation=dataclasses.replace(advice, rates=()))
    assert rates(run) == pytest.approx(rates(without))
    moved = tuple(
        dataclasses.replace(each, samples_per_s=each.samples_per_s.times(2))
        for each in advice.rates
    )  # by another version, say
    older = dataclasses.replace(run, recommendation=dataclasses.replace(advice, rates=moved))
    assert rates(older) == {
        each.config: each.samples_per_s.value for each in moved if each.measured
    }


def test_every_ratio_is_the_quotient_of_two_rates(run: Run) -> None:
    known, advice = rates(run), run.recommendation
    assert advice is not None
    for row in summarize(run):
        assert row.relative is not None
        assert row.relative.value == pytest.approx(known[row.config] / known[advice.config])
    for other in advice.alternatives:
        assert other.speed == pytest.approx(known[other.config] / known[advice.config])


def test_screens_and_pages_print_that_rate_and_no_other(run: Run) -> None:
    known, advice = rates(run), run.recommendation
    assert advice is not None
    pick = format_rate(known[advice.config])
    for screen in (sweep_report(run), recommendation_report(run, advice)):
        assert pick in drawn(screen, 160)
    assert pick in render_html(run)
    document = json.loads(json_document(advice, run_file=run.path))
    assert document["expected"]["samples_per_s"]["value"] == pytest.approx(known[advice.config])
    answer = forecast(asked(run), None)
    rows = json.loads(predict_document(answer))["rows"]
    measured = [row["measured"] for row in rows if row.get("measured")]
    assert {round(each["samples_per_s"]["value"], 6) for each in measured} <= {
        round(rate, 6) for rate in known.values()
    }


def test_a_page_has_one_rate_of_what_was_only_predicted(run: Run) -> None:
    """What the model said before anything was measured is named so."""
    advice, page = run.recommendation, html.unescape(render_html(run))
    assert advice is not None
    known = dict[str, set[str]]()
    for each in advice.rates:
        known.setdefault(each.config.text, set()).add(format_rate(each.samples_per_s.value))
    said = re.findall(r"(num_workers=[\w=, ]+): ([\d,.]+) samples/s(?! by the model)", page)
    assert {name for name, _ in said} > {advice.config.text}
    for name, rate in said:
        assert rate in known[name]
    assert "samples/s by the model, before anything was measured" in page


def test_a_rate_that_is_hardly_known_stands_beside_its_interval(run: Run) -> None:
    advice = run.recommendation
    assert advice is not None
    wide = [
        dataclasses.replace(each, samples_per_s=Estimate(value=500.0, low=300.0, high=833.0))
        if each.config == config(2)
        else each
        for each in advice.rates
    ]
    unsure = dataclasses.replace(run, recommendation=dataclasses.replace(advice, rates=tuple(wide)))
    assert "95% CI 300-833" not in drawn(sweep_report(run), 160)
    assert "95% CI 300-833" in drawn(sweep_report(unsure), 160)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.dlprof.jsonl"))
RECORDED = [*EXAMPLES, *sorted((Path(__file__).parents[1] / "data" / "runs").glob("*.jsonl"))]
SWEPT = [path for path in RECORDED if (kept := read_run(path)).trials and kept.diagnosis is None]


@pytest.fixture(
    scope="module", params=[None, *SWEPT], ids=lambda path: path.name if path else "made"
)
def any_run(request: pytest.FixtureRequest, run: Run) -> Run:
    """A run that was made here, or a recorded one as the views get it."""
    return with_recommendation(read_run(request.param)) if request.param else run


def test_every_view_has_the_rate_and_the_needs_of_each_configuration(any_run: Run) -> None:
    known = {row.config: row for row in summarize(any_run) if row.rate is not None}
    kept, asked_again = any_run.recommendation, api.recommend(any_run)
    assert kept is not None
    for advice in (kept, asked_again):
        assert advice.config == kept.config
        for each in advice.rates:
            if each.measured:
                assert each.samples_per_s == known[each.config].rate
                assert each.ratio == known[each.config].relative
        reported = {advice.config: advice.expected} | {
            a.config: a.expected for a in advice.alternatives
        }
        for key, expected in reported.items():
            assert expected.samples_per_s == known[key].rate
            assert expected.pss_bytes == known[key].seen.pss_bytes
            assert expected.shm_bytes == known[key].seen.shm_bytes
    compared = api.compare(any_run, any_run)
    for side in (compared.a, compared.b):
        assert side.samples_per_s == known[side.config].rate
    assert compared.ratio.value == pytest.approx(1.0)
    pick = format_rate(kept.expected.samples_per_s.value)
    assert pick in drawn(sweep_report(any_run), 200)
    assert pick in render_html(any_run)


SAID = re.compile(
    r"(\d[\d,.]*) samples/s(?! a rank| by the model|, by )"
    r"(?: \((?:noisy: )?95% CI ([\d,.]+-[\d,.]+)\))?"
)


def blocks_of(document: doc.Document) -> Iterator[doc.Block]:
    yield from document.answer
    for section in (*document.details(), *document.pictures, *document.appendix):
        yield from section.blocks


def columns_of(document: doc.Document) -> dict[str, list[str]]:
    """The cells of the tables of configurations, by their titles."""
    tables = [b for b in blocks_of(document) if isinstance(b, doc.Table)]
    columns = (each for table in tables for each in table.columns)
    return {each.title: [*each.cells] for each in columns if each.title}


def readable(page: str) -> str:
    """A page's text: an HTML page without its markup, lines not broken."""
    plain = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", html.unescape(page), flags=re.DOTALL)
    return " ".join(re.sub(r"[*|\\]", " ", plain).replace(" _", "_").split())


def views_of(run: Run) -> dict[str, str]:
    """What each view prints of a sweep, as one line."""
    advice = run.recommendation
    assert advice is not None
    screens = {
        "sweep": sweep_report(run),
        "recommend": recommendation_report(run, advice),
        **({"predict": forecast_report(api.predict(run))} if run.calibration else {}),
        # Of the fastest, which needn't be what is recommended.
        "compare": comparison_report(api.compare(run, run)),
    }
    shown = {name: drawn(each, 200) for name, each in screens.items()}
    shown |= {f"{name} -v": drawn(each, 200, verbose=True) for name, each in screens.items()}
    shown |= {name: render_as(run, name).decode() for name in ("text", "markdown", "html")}
    shown["notebook, run"] = html.unescape(notebook_html(run))
    shown["notebook, recommendation"] = html.unescape(notebook_html(advice))
    return {name: readable(text) for name, text in shown.items()}


def test_each_view_prints_the_same_rates_ratios_memory_and_files(any_run: Run) -> None:
    kept = any_run.recommendation
    assert kept is not None
    rows = summarize(any_run)
    known = [*(each.samples_per_s for each in kept.rates), *(row.rate for row in rows if row.rate)]
    known += [each.expected.samples_per_s for each in kept.alternatives]
    rates_said = {(format_rate(each.value), interval_text(each)) for each in known}
    pick = kept.expected.samples_per_s
    pss, shm = (format_bytes(size) for size in (kept.expected.pss_bytes, kept.expected.shm_bytes))
    speed_ups = set[str]()
    for name, text in views_of(any_run).items():
        said_here = SAID.findall(text)
        for rate, interval in said_here:
            beside = {i for r, i in rates_said if r == rate}
            assert interval in beside if interval else beside, (name, rate, interval)
        if "compare" in name:
            assert said_here or "-v" in name, name
            continue
        assert format_rate(pick.value) in text, name
        if "-v" in name or name in {"text", "markdown", "html"} or "notebook" in name:
            assert interval_text(pick) in text, name
            assert pss in text, name
            assert shm in text, name
        said = re.search(r"Speed-up(?: :)? (.*?) (?:- )?(?:Bottleneck|Data wait|Certainty)\b", text)
        speed_ups |= {said[1]} if said else set()
    others = {any_run.present, Config(batch_size=kept.config.batch_size)} - {kept.config, None}
    assert len(speed_ups) <= 1, speed_ups
    assert speed_ups or not others & {row.config for row in kept.rates}

    name, shown, interval = index_row(any_run)[1:4]
    assert (name.removeprefix("only "), shown, interval) == (
        kept.config.text,
        format_rate(pick.value),
        interval_text(pick),
    )
    table = columns_of(sweep_report(any_run))
    assert table["samples/s"] == [value_text(row.rate) for row in rows]
    assert table["95% CI"] == [interval_text(row.rate) for row in rows]
    ratios = [(cell, row.relative) for cell, row in zip(table["relative"], rows, strict=True)]
    assert all(cell == ratio_text(r.value) for cell, r in ratios if r and not r.is_wide)
    assert not any(cell.endswith("x") for cell, ratio in ratios if ratio and ratio.is_wide)
    assert table["memory"] == [format_bytes(row.seen.pss_bytes) for row in rows]
    assert table["shm"] == [format_bytes(row.seen.shm_bytes) for row in rows]


def test_what_is_predicted_prints_the_needs_that_all_else_has(any_run: Run) -> None:
    if any_run.calibration is None:
        pytest.skip("the run holds no calibration")
    answer = api.predict(any_run)
    assert isinstance(answer, Forecast)
    table = columns_of(forecast_report(answer))
    shown = {row.config: row for row in answer.rows}
    rows = {row.config: row.seen for row in summarize(any_run) if row.rate is not None}
    tensors = any_run.calibration.batch_tensors or any_run.header.target.batch_tensors
    for key in rows.keys() & shown.keys():
        found = shown[key].prediction
        assert (found.pss_bytes, found.shm_bytes) == (rows[key].pss_bytes, rows[key].shm_bytes)
        if tensors is not None:
            assert found.open_files == key.open_files(tensors)
    for title, field in ("memory", "pss_bytes"), ("shm", "shm_bytes"):
        printed = {format_bytes(getattr(row.prediction, field)) for row in answer.rows}
        assert {*table[title]} <= printed
    assert {*table["files"]} <= {count_text(row.prediction.open_files) for row in answer.rows}


def live_lines(run: Run) -> list[str]:
    """All that a terminal shows of a sweep by the end of its last trial."""
    screen = io.StringIO()
    with LiveListener(Console(file=screen, width=200, force_terminal=True)) as live:
        live.planned(run.header, [], None)
        if run.prediction is not None:
            live.predicted(run.prediction, run.calibration)
        live.trials += run.trials[:-1]
        live.trial_ended(run.trials[-1])
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", screen.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", text)]


def test_while_it_runs_and_as_a_table_a_sweep_has_the_figures_that_it_ends_with(
    any_run: Run,
) -> None:
    fresh = dataclasses.replace(any_run, recommendation=None)
    best = summarize(fresh)[0]
    lines = live_lines(fresh)
    shown = [line for line in lines if "samples/s" in line]
    assert {*shown} == {f"best    {rate_text(best.rate)}"}
    assert lines[lines.index(shown[0]) + 1] == best.config.text
    listed = list(csv.DictReader(io.StringIO(render_csv(any_run))))
    for trial, row in zip(any_run.trials, listed, strict=True):
        rate = trial.samples_per_s
        if rate is not None:
            ends = [row[f"samples_per_s{end}"] for end in ("", "_low", "_high")]
            assert [float(each) if each else None for each in ends] == [*dataclasses.astuple(rate)]
            assert rate_text(rate) in trial_line(trial)
        peak = row["usage_pss_peak_bytes"]
        assert (int(peak) if peak else None) == trial.usage.pss_peak_bytes


def test_as_columns_a_sweep_has_the_figures_that_it_ends_with(any_run: Run) -> None:
    read = pytest.importorskip("pyarrow.parquet").read_table
    columns = read(io.BytesIO(render_parquet(any_run))).to_pydict()
    rates = [trial.samples_per_s for trial in any_run.trials]
    assert columns["samples_per_s"] == [None if rate is None else rate.value for rate in rates]
    peaks = [trial.usage.pss_peak_bytes for trial in any_run.trials]
    assert columns["usage_pss_peak_bytes"] == peaks


@pytest.mark.parametrize("name", ["why", "crowded-profile"])
def test_a_profile_has_one_rate_on_its_screen_its_page_and_in_an_index(name: str) -> None:
    (path,) = (each for each in RECORDED if each.name == f"{name}.dlprof.jsonl")
    run = read_run(path)
    assert run.diagnosis is not None
    (rate,) = (row.rate for row in summarize(run) if row.config == run.diagnosis.config)
    said = f"{run.diagnosis.config.text}: {rate_text(rate)}"
    assert index_row(run)[2:4] == (value_text(rate), interval_text(rate))
    shown = [drawn(run_report(run), 200), drawn(run_report(run), 200, verbose=True)]
    shown += [render_as(run, each).decode() for each in ("text", "markdown", "html")]
    shown.append(html.unescape(notebook_html(run)))
    for text in shown:
        assert said in readable(text)


def test_epochs_of_what_was_only_predicted_end_as_those_that_were_timed() -> None:
    """A restart that the model has as no time is no gain of a deeper queue."""
    own, deeper = config(4), config(4, 4)
    trials = blocks({own: [880, 905, 890]}, epoch_turnover_s=0.5)
    short = target(length=3200, batches_per_epoch=100)
    made = calibrated(trials=trials, target=short, plan=plan([own], cells=(config(0), own, deeper)))
    situation = Situation.of(dataclasses.replace(made, prediction=sweep_prediction(made)))
    speeds = speeds_of(situation)
    assert speeds.epochs[deeper.key] == speeds.epochs[own.key]
    assert speeds.epochs[own.key].value < -0.05


def test_of_several_that_were_timed_none_counts_for_its_place_among_the_trials() -> None:
    one, other, deeper = config(4), config(4, 8), config(4, 4)
    rates = {one: [880, 905], other: [1340, 1350]}
    short = target(length=3200, batches_per_epoch=100)
    ends = set[float]()
    for order in (rates, dict(reversed(rates.items()))):
        trials = blocks(order, epoch_turnover_s=0.5)
        made = calibrated(trials=trials, target=short, plan=plan(order, cells=(*order, deeper)))
        situation = Situation.of(dataclasses.replace(made, prediction=sweep_prediction(made)))
        epochs = speeds_of(situation).epochs
        ends.add(round(epochs[deeper.key].value, 9))
        assert epochs[other.key].value < epochs[deeper.key].value < epochs[one.key].value
    assert len(ends) == 1


def test_what_does_not_keep_the_limits_of_memory_is_no_rival(run: Run) -> None:
    free, bound = (
        recommend(run, each).certificate
        for each in (Constraints(), Constraints(max_shm_bytes=20_000_000))
    )
    assert free is not None
    assert bound is not None
    assert bound.configurations < free.configurations
    unmeasured = [each.configurations - each.measured for each in (free, bound)]
    assert unmeasured[1] < unmeasured[0]


def test_what_is_predicted_for_this_machine_are_the_rates_of_the_run(any_run: Run) -> None:
    if any_run.calibration is None:
        pytest.skip("the run holds no calibration")
    known = {row.config: row.rate for row in summarize(any_run) if row.rate is not None}
    answer = api.predict(any_run)
    assert isinstance(answer, Forecast)
    seen = [row for row in answer.rows if row.measured is not None]
    assert seen
    for row in seen:
        assert row.measured is not None
        assert row.measured.samples_per_s == known[row.config]


ASKED = {
    "elsewhere": {"machine": elsewhere(16)},
    "ranks": {"ranks": 2},
    "step": {"step_s": 0.01},
    "cores": {"cores": 2.0},
    "background": {"neighbours": 6.0},
}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, id=name, marks=() if name in {"ranks", "cores"} else pytest.mark.slow)
        for name, each in ASKED.items()
    ],
)
def test_a_prediction_and_a_recommendation_by_prediction_have_the_same_figures(
    run: Run, question: dict[str, Any]
) -> None:
    limits = {name: value for name, value in question.items() if name != "machine"}
    advice = recommend(run, Constraints(**limits), machine=question.get("machine"))
    assert advice.basis == "predicted"
    where = asked(run, **question)
    configs = {advice.config, *(other.config for other in advice.alternatives)}
    answer = forecast(where, None)
    rows = {row.config: row for row in answer.rows}
    assert answer.pick == advice.config
    reported = {advice.config: advice.expected} | {
        a.config: a.expected for a in advice.alternatives
    }
    assert configs <= rows.keys()
    for chosen, expected in reported.items():
        row = rows[chosen]
        shown, known = row.samples_per_s, expected.samples_per_s
        assert shown is not None
        assert dataclasses.astuple(shown) == pytest.approx(dataclasses.astuple(known))
        assert row.prediction.wait_fraction == expected.wait_fraction
    for other in advice.alternatives:
        assert other.speed == pytest.approx(rows[other.config].speed / rows[advice.config].speed)
    pick = format_rate(advice.expected.samples_per_s.value)
    for screen in (recommendation_report(run, advice), forecast_report(answer)):
        assert pick in drawn(screen, 200)


def _slower(share: float) -> Run:
    """A run whose trials all gave a share of what the model predicts."""
    alone = calibrated()
    models = {row.config: row.rate for row in forecast(asked(alone), [*RATES]).rows}
    rates = {each: [share * 32 * rate] * 3 for each, rate in models.items()}
    return calibrated(trials=blocks(rates, usage=WAITING))


def test_what_trials_show_of_the_model_is_carried_to_where_nothing_was_measured() -> None:
    """All trials gave half of what the model predicts: so will two ranks, each on cores enough."""
    alone, slower = calibrated(), _slower(0.5)
    configs = [config(3), config(6)]
    for limits in ({"ranks": 2}, {"cores": 6.0}, {"machine": elsewhere(16), "speed": 1.0}):
        before, after = (forecast(asked(each, **limits), configs).rows for each in (alone, slower))
        for one, two in zip(before, after, strict=True):
            assert two.rate / one.rate == pytest.approx(0.5, abs=0.04)
    fed = forecast(asked(slower, step_s=0.5), configs).rows  # the step sets the rate
    assert all(row.rate == pytest.approx(2.0, rel=0.01) for row in fed)
    assert all((row.prediction.wait_fraction or 0.0) < 0.01 for row in fed)


def test_that_others_took_less_than_predicted_makes_no_loader_faster_without_them() -> None:
    """Workers that wait gave as much beside others as the model has alone, and more than there."""
    costs, many = calibration(io=0.04, cpu=0.002, receive=0.0001), [config(8), config(12)]
    crowd = dataclasses.replace(
        WAITING,
        own_cpu_cores=0.2,
        available_cpu_cores=0.2,
        other_cpu_cores=7.8,
        other_runnable=40.0,
        fair_cpu_cores=0.3,
    )
    some = blocks({config(1): [700.0]}, usage=crowd, noisy=True)
    beside, alone = (
        {row.config: row.rate for row in forecast(asked(each), many).rows}
        for each in (calibrated(costs, trials=some), calibrated(costs))
    )
    assert all(beside[each] < 0.7 * alone[each] for each in many)
    gave = {config(1): [700.0] * 2, **{each: [32 * alone[each]] * 2 for each in many}}
    made = calibrated(costs, trials=blocks(gave, usage=crowd, noisy=True))
    for row in forecast(asked(made, neighbours=0.0), many).rows:
        assert row.rate == pytest.approx(alone[row.config], rel=0.1)


@pytest.mark.parametrize("share", [0.8, pytest.param(0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step_s", [pytest.param(0.002, marks=pytest.mark.slow), 0.01])
def test_what_feeds_a_step_has_the_figures_that_predict_has(step_s: float, share: float) -> None:
    found = feed(asked(slower := _slower(share), step_s=step_s))
    where = asked(slower, step_s=step_s, cores=found.cores.value)
    (row,) = forecast(where, [found.config]).rows
    assert row.prediction == found.prediction
    assert row.samples_per_s == found.samples_per_s
    assert found.samples_per_s is not None
    assert found.prediction.samples_per_s is not None
    assert found.samples_per_s.value < found.prediction.samples_per_s.value  # over whole epochs
    rate = format_rate(found.samples_per_s.value)
    answer = forecast(where, [found.config])
    for screen in (feed_report(found), forecast_report(answer)):
        assert rate in drawn(screen, 200)
    assert found.prediction.wait_fraction is not None
    assert found.prediction.wait_fraction <= found.max_wait_fraction


@pytest.mark.parametrize("step_s", [0.01, 0.03])
def test_what_feeds_a_step_is_found_by_how_fast_each_proved(step_s: float) -> None:
    """Workers proved twice as fast as the model has them, and loading without as it has it."""
    costs = calibration(cpu=0.0012, receive=0.001)
    models = forecast(asked(calibrated(costs)), [config(0), config(1), config(2)]).rows
    seen = {e.config: [32 * (2 if e.config.num_workers else 1) * e.rate] * 3 for e in models}
    made = calibrated(costs, trials=blocks(seen, usage=WAITING))
    found, advice = feed(asked(made, step_s=step_s)), recommend(made, Constraints(step_s=step_s))
    assert found.prediction.wait_fraction is not None
    assert found.prediction.wait_fraction <= found.max_wait_fraction
    assert found.config.num_workers == advice.config.num_workers > 0
    assert found.recommended == advice.config
    assert "recommended" not in feed_text(found)


def test_where_fewer_cores_take_other_settings_both_are_in_one_sentence() -> None:
    made = calibrated(calibration(cpu=0.02))
    found = feed(asked(made, step_s=0.005, cores=1.0))
    advice = recommend(made, Constraints(step_s=0.005, cores=1.0))
    assert found.config.num_workers != advice.config.num_workers
    workers = advice.config.num_workers
    said = f"; on the 1 core of {found.hostname}, num_workers={workers} is recommended"
    assert feed_text(found).endswith(said)
    assert found.recommended == advice.config


@pytest.mark.parametrize("share", [0.8, 1.3])
@pytest.mark.parametrize("measured", [True, False], ids=["step measured", "step asked"])
def test_no_rate_is_above_what_the_step_allows(share: float, measured: bool) -> None:
    """Trials gave so much of what the model predicts, and gains are quotients of those rates."""
    made, step_s = calibrated(), 0.01
    settings = {**made.header.settings, **({"step_s": step_s} if measured else {})}
    made = dataclasses.replace(made, header=dataclasses.replace(made.header, settings=settings))
    models = forecast(asked(made), [config(1), config(2)]).rows
    gave = {each.config: [share * 32 * each.rate] * 3 for each in models}
    seen = tuple(blocks(gave, usage=WAITING))
    if measured:
        rates = [trial.samples_per_s.value if trial.samples_per_s else 0.0 for trial in seen]
        waits = [1 - rate * step_s / 32 for rate in rates]
        pairs = zip(seen, waits, strict=True)
        seen = tuple(dataclasses.replace(trial, wait_fraction=wait) for trial, wait in pairs)
    run = dataclasses.replace(made, trials=seen)
    question: dict[str, Any] = {} if measured else {"step_s": step_s}
    rows = {row.config: row for row in forecast(asked(run, **question), None).rows}
    shown = {key: row.samples_per_s for key, row in rows.items() if row.samples_per_s is not None}
    for rate in shown.values():
        assert max(rate.value, *rate.ends) <= 32 / step_s * (1 + 1e-9)
    advice = recommend(run, Constraints(**question))
    for each in advice.rates:
        quotient = each.samples_per_s.value / advice.expected.samples_per_s.value
        assert each.ratio.value == pytest.approx(quotient)
    for key, rate in shown.items():
        if measured and (gain := shown_gain(run, config(1), key)) is not None:
            assert gain.value == pytest.approx(rate.value / shown[config(1)].value)
            low = shown[config(1)].ends[0]
            assert key == config(1) or gain.ends[1] <= 32 / step_s / low * (1 + 1e-9)


def test_a_step_with_copies_of_unpinned_batches_is_no_limit_of_pinned_ones() -> None:
    """Of 10 ms of copying 2 ms stay: what is predicted was cut to the rate of what was measured."""
    step_s, costs = 0.005, calibration(cpu=0.004, copy_s=0.01, pinned_copy_s=0.002)
    made = calibrated(costs)
    settings = {**made.header.settings, "step_s": step_s}
    head = dataclasses.replace(made.header, settings=settings, accelerator="cuda")
    made, pinned = dataclasses.replace(made, header=head), config(4, pin_memory=True)
    (model,) = forecast(asked(made), [config(4)]).rows
    copies = Copies(device="cuda:0", batches=100, exposed_s=0.01)
    trials = tuple(
        dataclasses.replace(each, wait_fraction=1 - model.rate * (step_s + 0.01), copies=copies)
        for each in blocks({config(4): [32 * model.rate] * 3})
    )
    run = dataclasses.replace(made, trials=trials)
    before, after = (forecast(asked(each), [pinned]).rows[0].rate for each in (made, run))
    assert after == pytest.approx(before, rel=0.05)
    gain = shown_gain(run, config(4), pinned)
    assert gain is not None
    assert gain.value > 1.8
    found = forecast(asked(run), [config(4), pinned])
    assert found.pick == config(4)  # it keeps the step fed, copies and all
    assert found.certificate is not None
    assert found.certificate.epsilon > 0.4


def test_causes_are_found_by_a_rate_that_counts_neither_restarts_nor_kept_samples() -> None:
    """They count a restart's share themselves, which was a third then where it is a half."""
    now = config(2)
    trials = [
        dataclasses.replace(each, epoch_turnover_s=1.0) for each in blocks({now: [320.0] * 3})
    ]
    short = calibrated(trials=trials, target=target(batches_per_epoch=10))
    assert rates(short)[now] < 200
    keeping = target(sampler="SequentialSampler", first_sample_s=0.01, kept_sample_s=1e-4)
    kept = calibrated(trials=blocks({config(0): [320.0] * 3}), target=keeping)
    for made, each in (short, now), (kept, config(0)):
        rate = shown_rate(made, each)
        assert rate is not None
        assert rate.value == pytest.approx(320, rel=0.05)


def test_a_loader_that_proved_slower_takes_more_workers_to_feed_a_step() -> None:
    raw, slower = calibrated(), _slower(0.8)
    found, other = (feed(asked(each, step_s=0.01)) for each in (slower, raw))
    assert found.workers.value > other.workers.value


@pytest.mark.parametrize("limits", [{}, {"ranks": 2}, {"step_s": 0.01}])
def test_what_is_predicted_of_settings_does_not_follow_from_what_else_is_asked(
    limits: dict[str, Any],
) -> None:
    """Of a run that measured neither of the ``num_workers`` that calibrate."""
    made = calibrated(trials=blocks({config(4): [880, 905], config(8): [1240]}, usage=WAITING))
    where = asked(made, **limits)

    def rows(*workers: int) -> dict[Config, ForecastRow]:
        found = forecast(where, [config(count) for count in workers]).rows
        # Its ratio is that to what is recommended of those that are asked for.
        return {row.config: dataclasses.replace(row, ratio=None) for row in found}

    whole = rows(*range(17))
    for workers in (3, 8, 16):
        ((asked_for, row),) = rows(workers).items()
        assert row == whole[asked_for]


def test_rates_that_another_version_kept_are_those_of_every_question(run: Run) -> None:
    advice = run.recommendation
    assert advice is not None
    moved = {
        each.config: dataclasses.replace(each, samples_per_s=each.samples_per_s.times(2))
        for each in advice.rates
    }
    kept = dataclasses.replace(advice, rates=tuple(moved.values()))
    older = dataclasses.replace(run, recommendation=kept)
    limited = recommend(older, Constraints(max_workers=4))
    assert limited.config.num_workers <= 4
    for each in limited.rates:
        assert each.samples_per_s == moved[each.config].samples_per_s
        ratio = each.samples_per_s.value / limited.expected.samples_per_s.value
        assert each.ratio.value == pytest.approx(ratio)
    for row in forecast(asked(older), [*moved]).rows:
        assert row.samples_per_s == moved[row.config].samples_per_s
        if row.measured is not None:
            assert row.measured.samples_per_s == row.samples_per_s
    table = {row.config: row for row in summarize(older, limited)}
    assert table[limited.config].role == "recommended"
    assert all(row.rate == moved[row.config].samples_per_s for row in table.values())


def test_how_long_a_predicted_epoch_restart_takes_is_not_certain() -> None:
    """As where it was timed: by its share of an epoch."""
    short = target(length=320, batches_per_epoch=10)
    made = calibrated(target=short)
    speeds = speeds_of(where := asked(made), predictions(where, [config(4), KEPT]))
    ratio = speeds.ratio(KEPT.key, config(4).key)
    assert ratio.low is not None
    assert ratio.low < 0.99 * ratio.value


def test_what_was_predicted_before_epochs_were_seen_is_reported_over_them_too() -> None:
    endless = target(kind="iterable", length=None, batches_per_epoch=None)
    cells = [config(w, p) for w in (2, 4, 8) for p in (2, 4)]
    made = calibrated(target=endless, plan=plan(RATES, cells=(config(0), *cells)))
    made = dataclasses.replace(made, prediction=sweep_prediction(made))
    assert made.prediction is not None
    assert not any(each.epoch_samples_per_s for each in made.prediction.cells)
    seen = blocks({config(8): [1240, 1250]}, epoch_samples=3200, epoch_turnover_s=0.5)
    later = dataclasses.replace(made, trials=(*made.trials, *seen))
    epochs = speeds_of(Situation.of(later)).epochs
    assert all(epochs[cell.key].value < -0.01 for cell in cells)


QUESTIONS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "ranks": {"ranks": 2},
    "step": {"step_time": "3ms"},
    "no step": {"step_time": "none"},
    "ranks and step": {"ranks": 2, "step_time": "3ms"},
    "background": {"assume_background": 6},
    "slow cores": {"speed": 0.5},
    "machine": {"machine": None},
}

PLAIN = ("ranks and step", "machine")
"""Asked with every change; the others by turns."""


def same_answer(run: Run, question: dict[str, Any]) -> None:
    advice, answer = api.recommend(run, **question), api.predict(run, **question)
    assert isinstance(answer, Forecast)
    assert answer.pick == advice.config
    assert (answer.confidence, answer.confidence_reason) == (
        advice.confidence,
        advice.confidence_reason,
    )
    rows = {row.config: row for row in answer.rows}
    row = rows[advice.config]
    assert (row.measured is not None) == (advice.basis == "measured")
    wait = row.prediction if row.measured is None else row.measured
    assert wait.wait_fraction == advice.expected.wait_fraction
    reported = {advice.config: advice.expected} | {
        a.config: a.expected for a in advice.alternatives
    }
    for chosen, expected in reported.items():
        shown = rows[chosen].samples_per_s if chosen in rows else expected.samples_per_s
        assert shown is not None
        known = dataclasses.astuple(expected.samples_per_s)
        assert dataclasses.astuple(shown) == pytest.approx(known)
    pick = format_rate(advice.expected.samples_per_s.value)
    for screen in (recommendation_report(run, advice), forecast_report(answer)):
        assert pick in drawn(screen, 200)


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, marks=() if name in PLAIN else pytest.mark.slow)
        for name, each in QUESTIONS.items()
    ],
    ids=QUESTIONS,
)
@pytest.mark.parametrize(
    "path",
    [None, *(pytest.param(each, marks=pytest.mark.slow) for each in RECORDED)],
    ids=lambda path: path.name if path else "made",
)
def test_predict_and_recommend_answer_the_same_question_alike(
    run: Run, path: Path | None, question: dict[str, Any], tmp_path: Path
) -> None:
    asked_of = read_run(path) if path else run
    if "machine" in question:
        profile = MachineProfile.of(elsewhere(16), date(2026, 1, 1))
        save_profile(tmp_path / "server.toml", profile)
        question = {"machine": tmp_path / "server.toml"}
    if asked_of.calibration is None:
        with pytest.raises(UsageError, match=r"no calibration|script's run"):
            api.predict(asked_of, **question)
        return
    same_answer(asked_of, question)


@pytest.mark.parametrize(
    "limits", [{"ranks": 2}, {"max_workers": 2}, {"step_s": 0.01}, {"max_shm_bytes": 10_000_000}]
)
@pytest.mark.parametrize(
    "question", [{}, pytest.param({"ranks": 3}, marks=pytest.mark.slow)], ids=str
)
def test_both_keep_the_limits_that_a_sweep_was_given(
    run: Run, limits: dict[str, Any], question: dict[str, Any]
) -> None:
    given = dataclasses.replace(run.header, settings={**run.header.settings, **limits})
    limited = dataclasses.replace(run, header=given, recommendation=None)
    same_answer(limited, question)
    if not question:
        assert (
            api.recommend(limited).constraints
            == api.recommend(run, **api_names(limits)).constraints
        )


def test_where_nothing_measured_keeps_a_limit_both_choose_of_what_the_sweep_predicted() -> None:
    """Which isn't any number of workers: as many as an epoch has batches would be the best."""
    cells = [config(0), *(config(w, persistent_workers=True) for w in (1, 2, 4, 8, 12))]
    made = calibrated(
        calibration(cpu=0.004, io=0.04, receive=0.0002, worker_bytes=1e6),
        trials=blocks({config(1): [700.0]}),  # of 500 MiB
        plan=plan([config(1)], cells=tuple(cells)),
        target=target(length=13 * 32, batches_per_epoch=13),
        settings={"max_ram_bytes": 450_000_000},
    )
    made = dataclasses.replace(made, prediction=sweep_prediction(made))
    advice, answer = api.recommend(made), api.predict(made)
    assert isinstance(answer, Forecast)
    assert answer.pick == advice.config
    assert advice.config in cells


def api_names(limits: dict[str, Any]) -> dict[str, Any]:
    names = {"step_s": "step_time", "max_shm_bytes": "max_shm"}
    return {names.get(name, name): value for name, value in limits.items()}


def test_a_batch_size_that_was_not_calibrated_is_recommended_by_both() -> None:
    rates = {config(2): [470, 480, 475], config(2, batch_size=64): [900, 905, 910]}
    made = calibrated(trials=blocks(rates), plan=plan(rates))
    assert api.recommend(made).config.batch_size == 64
    same_answer(made, {})


def test_of_certain_settings_the_same_rule_chooses(run: Run) -> None:
    failed = failing(config(4), run)
    answers = [api.predict(each, num_workers="0,2,4") for each in (run, failed)]
    assert [answer.pick and answer.pick.num_workers for answer in answers] == [4, 2]
    assert {row.config.num_workers for row in answers[0].rows} == {0, 2, 4}
    one = api.predict(run, num_workers="2")
    assert one.pick == config(2)


def failing(key: Config, run: Run) -> Run:
    """The run, in which one more trial of some settings and of all like them failed."""
    failure = Failure(kind="worker_signal", message="killed")
    made = [
        dataclasses.replace(trial, id=f"f{n}", outcome="crashed", failure=failure)
        for n, trial in enumerate(run.trials)
        if trial.config.num_workers == key.num_workers
    ]
    return dataclasses.replace(run, trials=(*run.trials, *made), recommendation=None)


def test_no_step_is_no_answer_of_trials_with_one() -> None:
    header_ = calibrated().header
    stepped = dataclasses.replace(header_, settings={**header_.settings, "step_s": 0.02})
    made = Run(path="x", header=stepped, trials=calibrated(trials=blocks(RATES)).trials)
    with pytest.raises(UsageError, match="a step of 20 ms") as caught:
        api.recommend(made, step_time="none")
    assert caught.value.hint == "Sweep again without a step."


@pytest.mark.parametrize("question", [{}, {"nodes": 2}])
def test_what_a_run_keeps_sets_the_level_of_the_rest(run: Run, question: dict[str, Any]) -> None:
    """Figures of an earlier version and today's don't stand beside each other."""
    advice, more = run.recommendation, config(6, 4)
    assert advice is not None
    lower = tuple(
        dataclasses.replace(
            each,
            samples_per_s=each.samples_per_s.times(0.8 if each.config == advice.config else 0.6),
        )
        for each in advice.rates
    )
    older = dataclasses.replace(run, recommendation=dataclasses.replace(advice, rates=lower))
    here, there = (
        forecast(asked(each, **question), [advice.config, more]).rows for each in (run, older)
    )
    for one, other in zip(here, there, strict=True):
        assert other.rate / one.rate == pytest.approx(0.8, rel=0.01)
    speeds = speeds_of(asked(older), predictions(asked(older), [more]))
    for against in (config(0).key, advice.config.key):
        ratio = speeds.rate(more.key).value / speeds.rate(against).value
        assert speeds.ratio(more.key, against).value == pytest.approx(ratio)
