"""Whole screens against recorded ones; look at the files under tests/data/report."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal

import pytest
from builders import blocks, config, failed, header, machine, numbered, plan, run, target
from example_runs import (
    FOUR_KEPT,
    TWO,
    example_run,
    example_run_without_advice,
    hostile_run,
    present_run,
)
from finding_cases import Loader, explanation
from golden import check_golden, drawn
from profiled_runs import made_explanation, profiled_run
from sample_run import GOLDEN

from dlprof.advise.candidates import stored_limits
from dlprof.advise.recommend import recommend
from dlprof.errors import NothingMeasuredError
from dlprof.records import Diagnosis, Estimate, Failure, Finding, PageFaults, Run
from dlprof.report.document import Chart, Document, Table
from dlprof.report.export.formats import run_report
from dlprof.report.labels import MOST_BARS, Rated, rates_chart
from dlprof.report.sweep import recommendation_report, sweep_report
from dlprof.store import read_run

LOADER = Path(__file__).parents[3] / "examples" / "loader.dlprof.jsonl"

_WIDTHS = (60, 80, 200)
_TO_COPY = ("  dlprof report ", "  dlprof recommend ", "  loader = ")
_MOST_LINES = 16


def table(document: Document) -> Table:
    """The table of configurations."""
    blocks = (block for section in document.details() for block in section.blocks)
    return next(block for block in blocks if isinstance(block, Table))


def roles(document: Document) -> list[str]:
    """What the table calls its rows."""
    return list(table(document).columns[0].cells)


@pytest.mark.parametrize("width", _WIDTHS)
def test_the_final_screen(width: int) -> None:
    check_golden(f"sweep-{width}.txt", drawn(sweep_report(example_run()), width))


@pytest.mark.parametrize("width", _WIDTHS)
def test_the_whole_of_it(width: int) -> None:
    text = drawn(sweep_report(example_run()), width, verbose=True)
    check_golden(f"sweep-verbose-{width}.txt", text)
    answer, _, _ = drawn(sweep_report(example_run()), width).partition("  Full report")
    assert answer in text
    assert text.endswith("  As a page:\n  dlprof report images.dlprof.jsonl -o report.html\n")
    assert "report images.dlprof.jsonl -v" not in text  # which is what was asked for


def test_the_final_screen_where_only_ascii_can_be_written() -> None:
    text = drawn(sweep_report(example_run()), 80, "ascii")
    assert text.isascii()
    check_golden("sweep-80-ascii.txt", text)


def test_the_answer_fits_into_16_lines() -> None:
    found = example_run()
    assert len(drawn(sweep_report(found), 80).splitlines()) <= _MOST_LINES
    assert len(drawn(sweep_report(present_run(TWO)), 80).splitlines()) <= _MOST_LINES


def test_a_recommendation_for_more_ranks_fits_whatever_the_run_file_is_called() -> None:
    run = read_run(LOADER)
    limits = stored_limits(run.header.settings)
    limits = dataclasses.replace(limits, ranks=8, cores=32.0, max_ram_bytes=8 * 2**30)
    run = dataclasses.replace(run, path="a/folder/of/a/long/name/for/loader.dlprof.jsonl")
    text = drawn(recommendation_report(run, recommend(run, limits)), 80)
    assert "8.0 GiB of memory, 32 cores, shared by 8 ranks" in " ".join(text.split())
    assert "workers samples/s a rank" in " ".join(text.split())
    assert len(text.splitlines()) <= 16
    few = dataclasses.replace(limits, max_workers=2, cores=None, max_ram_bytes=None)
    text = " ".join(drawn(recommendation_report(run, recommend(run, few)), 80).split())
    assert "for at most 2 workers a rank, 8 ranks" in text
    elsewhere = recommend(run, limits, machine=machine(64, hostname="a" * 40))
    text = drawn(recommendation_report(run, elsewhere), 80)
    assert "num_workers" in text
    assert "\n  samples/s a rank by workers: 0 default 336, 2 yours 880, 4 ◀ 1,394\n" in text
    assert len(text.splitlines()) <= 16


def test_nothing_is_recommended_where_one_configuration_alone_was_measured() -> None:
    run = read_run(GOLDEN)
    text = drawn(run_report(run), 80)
    assert "nothing yet: only num_workers=0 worked; fix what failed (below)," in text
    assert "DataLoader(" not in text
    assert "--budget" not in text  # which would fix no error
    only = {trial.config for trial in run.completed}.pop()
    own, other = (
        drawn(sweep_report(dataclasses.replace(run, diagnosis=Diagnosis(config=each))), 80)
        for each in (only, config(3))
    )
    assert "num_workers=0  (yours)" in own
    assert "fix what failed (below), then sweep again" in " ".join(other.split())
    short = " ".join(drawn(run_report(dataclasses.replace(run, trials=run.completed)), 80).split())
    assert "only num_workers=0 was measured; sweep again with --budget 10s" in short
    skipped = tuple(
        dataclasses.replace(each, outcome="skipped") if each.failure else each
        for each in run.trials
    )
    none = " ".join(drawn(run_report(dataclasses.replace(run, trials=skipped)), 80).split())
    assert "num_workers=0: no other settings can work here. " in none  # no budget changes that
    assert "DataLoader(" in none
    assert "--budget" not in none


@pytest.mark.parametrize(
    ("rates", "says"),
    [({0: 100, 1: 80}, True), ({0: 100, 1: 80, 2: 70}, False), ({0: 50, 1: 80, 2: 100}, True)],
)
def test_more_workers_that_were_skipped_are_named(rates: dict[int, float], says: bool) -> None:
    """As without room in /dev/shm: they may be faster, if that is for no want of cores."""
    left_out = [
        failed(config(workers), "8 MiB is free.", outcome="skipped")
        for workers in (max(rates) + 1, 4 * (max(rates) + 1))
    ]
    trials = [*blocks({config(workers): [rate] * 3 for workers, rate in rates.items()}), *left_out]
    found = run(trials, machine=machine(2))
    text = " ".join(drawn(recommendation_report(found, recommend(found)), 80).split())
    assert (f"Skipped num_workers={max(rates) + 1} (and 1 more): 8 MiB is free." in text) == says


@pytest.mark.parametrize(("worked", "named"), [([], 1), ([2], 2)])
def test_of_what_failed_the_present_settings_are_named(worked: list[int], named: int) -> None:
    """Unless they always fail, which is said before all else."""
    rates = {config(each): [430.0, 432.0] for each in (0, *worked)}
    trials = [*blocks(rates), *(failed(config(each)) for each in (1, 2, 4))]
    found = run(trials, plan=plan([config(0), config(2)], present=config(2)))
    text = " ".join(drawn(recommendation_report(found, recommend(found)), 80).split())
    assert f"Failed num_workers={named} (and 2 more): " in text
    assert ("Your settings (num_workers=2) fail: " in text) == (not worked)


def test_what_has_nothing_to_set_is_not_to_be_swept_again() -> None:
    """As SPDL's pipelines and Ray's batches: no budget would change that."""
    why = "Pipeline can't be built again with other settings"
    trials = blocks({config(0): [430, 432]})
    made = target(fixed={"num_workers": why})
    found = run(trials, target=made, plan=plan([config(0)]))
    text = " ".join(drawn(recommendation_report(found, recommend(found)), 80).split())
    assert f"Recommended nothing: {why}" in text
    assert "Throughput 431 samples/s" in text
    assert "sweep again" not in text


def test_a_sweep_says_what_grows_and_that_workers_which_persist_keep_it() -> None:
    """Its traced trials had a leak of 15 MB a batch, and it recommended workers that persist."""
    shown = made_explanation()
    worker = dataclasses.replace(shown.workers[0], growing={"ld.kept": 15e6})
    plain = dataclasses.replace(profiled_run(), diagnosis=None, recommendation=None)
    leaks = dataclasses.replace(
        plain, explanations=(dataclasses.replace(shown, workers=(worker,)),)
    )
    for each, grows in ((plain, False), (leaks, True)):
        found = recommend(each)
        text = " ".join(drawn(recommendation_report(each, found), 80).split())
        assert ("ld.kept grows by 14.3 MiB a batch" in text) is grows
        assert ("persistent_workers=True keeps it" in text) is False
        pick = dataclasses.replace(found.config, persistent_workers=True)
        kept = dataclasses.replace(found, config=pick)
        text = " ".join(drawn(recommendation_report(each, kept), 80).split())
        assert ("persistent_workers=True keeps it" in text) is grows


def test_a_sweep_says_what_fewer_page_faults_would_bring_over_what_it_recommends() -> None:
    alone = explanation(Loader(config=config(0), fetch_cpu=0.019, collate_cpu=0.001, rate=49))
    measured = run(blocks({config(0): (1000.0, 1001.0), config(2): (1800.0, 1801.0)}))

    def said(kept_cpu_s: float, seen: Run) -> tuple[list[Estimate | None], str]:
        faults = PageFaults(spared=9000, cpu_s=0.02, kept_cpu_s=kept_cpu_s)
        shown = dataclasses.replace(alone, trial_id=seen.trials[0].id, page_faults=faults)
        seen = dataclasses.replace(seen, explanations=(shown,))
        found = recommend(seen)
        text = " ".join(drawn(recommendation_report(seen, found), 80).split())
        return [each.predicted_gain for each in found.findings], text

    (gain,), text = said(0.002, measured)
    assert "num_workers=0 with MALLOC_MMAP_MAX_=0" in text
    assert "page faults take 90%" in text
    assert gain is not None
    profiled = dataclasses.replace(measured, diagnosis=Diagnosis(config=config(2)))
    assert "MALLOC_MMAP_MAX_" not in said(0.002, profiled)[1]  # its own screen has it
    period_s = 1 / 49
    assert gain.value == pytest.approx(period_s / (period_s - 0.018) / 1.8, rel=0.02)
    assert said(0.015, measured)[0] == []  # faster, but not than two workers
    assert said(0.002, example_run_without_advice())[0] == []  # its step waits for 3%


def test_of_many_configurations_the_ends_the_best_and_the_recommended_are_drawn() -> None:
    measured = run(
        blocks({config(n): (1000.0 - abs(n - 41), 1000.5 - abs(n - 41)) for n in range(99)})
    )
    answer = sweep_report(measured).answer
    chart = next(block for block in answer if isinstance(block, Chart))
    labels = [bar.label.split()[0] for bar in chart.bars]
    assert len(labels) == MOST_BARS
    assert {"0", "41"} <= set(labels)
    assert labels == sorted(labels, key=int)
    assert any("◀" in bar.label for bar in chart.bars)


def test_a_bar_says_in_what_it_differs_from_the_recommended_settings() -> None:
    pick = config(4, persistent_workers=True)
    others = [
        config(0),
        config(1, persistent_workers=True),
        config(2),
        config(8, 4, persistent_workers=True, pin_memory=True),
    ]
    rated = [Rated(each, Estimate(value=1.0), "") for each in (pick, *others)]
    chart = rates_chart(rated, pick, present=None)
    assert chart is not None
    assert [bar.label for bar in chart.bars] == [
        "0 default",
        "1",
        "2 not persistent",
        "4 ◀",
        "8 prefetch 4, pinned",
    ]


@pytest.mark.parametrize("noisy", [True, False])
def test_beside_a_rate_that_is_not_known_the_recommended_one_has_its_interval_too(
    *, noisy: bool
) -> None:
    """And more of what was disturbed is no surer: a longer budget isn't advised then."""
    measured = example_run_without_advice()
    trials = tuple(dataclasses.replace(trial, noisy=noisy) for trial in measured.trials)
    measured = dataclasses.replace(measured, trials=trials)
    advice = recommend(measured)
    text = drawn(recommendation_report(measured, advice), 80)
    assert "95% CI" not in text[text.index("workers ") :]
    unsure = Estimate(value=400.0, low=200.0, high=900.0)
    rates = tuple(
        dataclasses.replace(
            each, samples_per_s=unsure, ratio=Estimate(value=0.3, low=0.1, high=0.6)
        )
        if not each.config.num_workers
        else each
        for each in advice.rates
    )
    text = drawn(recommendation_report(measured, dataclasses.replace(advice, rates=rates)), 80)
    bars = {line.split()[0]: line for line in text.splitlines() if "█" in line}
    assert "95% CI 200-900" in bars["0"]
    assert "95% CI 1," in bars["4"]
    assert "95% CI" not in bars.get("8", "")
    more = "on a quieter machine" if noisy else "with --budget"
    assert f"too noisy for more (sweep again {more}" in " ".join(text.split())


def test_a_run_without_a_recommendation_is_given_one() -> None:
    assert roles(sweep_report(example_run_without_advice())).count("recommended") == 1


@pytest.mark.parametrize("width", _WIDTHS)
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, *, verbose: bool) -> None:
    for found in (example_run(), hostile_run()):
        lines = drawn(sweep_report(found), width, verbose=verbose).splitlines()
        too_wide = [line for line in lines if len(line) > width]
        # What is there to be copied is never broken; a terminal folds it by itself.
        assert [line for line in too_wide if not line.startswith(_TO_COPY)] == []


def test_columns_go_in_the_stated_order() -> None:
    found = table(sweep_report(example_run()))

    def titles(width: int) -> list[str]:
        head = drawn(Document(title="", answer=(found,)), width).splitlines()[0]
        return re.split(r"  +", head.strip())

    every, gone = titles(200), list[str]()
    for width in range(200, 10, -1):
        left = {*titles(width), *gone}
        gone += [title for title in every if title not in left]
    assert gone == [
        "cores",
        "shm",
        "trials",
        "restart",
        "memory",
        "1st batch",
        "relative",
        "wait",
        "95% CI",
    ]


def test_a_hostile_run_is_shown_as_text() -> None:
    text = drawn(sweep_report(hostile_run()), 80, verbose=True)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]loud[/bold]" in text


def test_a_figure_of_a_finding_that_is_none_is_shown_as_missing() -> None:
    """A file may have anything there."""
    made = example_run()
    assert made.recommendation is not None
    growth = Finding(
        code="memory.growth",
        severity="info",
        title="Memory grows: a list",
        explanation="",
        evidence={"growth_bytes_per_batch": ["much"]},
    )
    faults = dataclasses.replace(
        growth,
        code="memory.faults",
        evidence={"page_fault_fraction": "most"},
        predicted_gain=Estimate(value=1.5),
    )
    advice = dataclasses.replace(made.recommendation, findings=(growth, faults))
    text = drawn(recommendation_report(made, advice), 200)
    assert "a list grows by - a batch" in text
    assert "page faults take - of its CPU time" in text


def test_a_run_in_which_everything_failed_still_shows() -> None:
    run = example_run_without_advice()
    failures = tuple(trial for trial in run.trials if trial.failure is not None)
    text = drawn(sweep_report(dataclasses.replace(run, trials=failures)), 80)
    assert "Recommended  nothing: A worker was killed by signal SIGBUS." in text
    assert " ".join(text.split()).count("/dev/shm is full, or") == 1  # not beside what failed, too
    assert "Failed       num_workers=16" in text
    assert "samples/s" not in text


def test_an_empty_and_cut_off_run_still_shows() -> None:
    planned = dataclasses.replace(example_run().header, plan=plan([config(0)]))
    run = Run(path="cut.jsonl", header=planned, truncated=True)
    text = drawn(sweep_report(run), 60)
    assert "The run file ends in the middle of a record. Continue it:\n  dlprof sweep" in text
    assert "--resume -o cut.jsonl\n" in text
    nowhere = drawn(sweep_report(dataclasses.replace(run, path="")), 60)
    assert "in the middle of a record." in nowhere
    assert "--resume" not in nowhere


@pytest.mark.parametrize("ended", [True, False])
def test_a_profile_that_was_cut_off_has_nothing_to_continue(*, ended: bool) -> None:
    why = read_run(Path(__file__).parents[3] / "examples" / "why.dlprof.jsonl")
    assert why.end is not None
    end = dataclasses.replace(why.end, reason="interrupted") if ended else None
    cut = dataclasses.replace(why, end=end)
    text = drawn(recommendation_report(cut, recommend(cut)), 80)
    assert f"The run {'was interrupted' if ended else 'did not end'}." in text
    assert "--resume" not in text
    assert "Full report" in text
    traced = tuple(each for each in cut.trials if each.purpose == "explain")
    with pytest.raises(NothingMeasuredError, match="only traced trials") as found:
        recommend(dataclasses.replace(cut, trials=traced, calibration=None))
    assert found.value.hint == "Give it more time with --budget."


def test_where_one_configuration_was_to_be_measured_no_budget_measures_more() -> None:
    mine = config(4)
    trials = blocks({mine: [800.0, 801.0, 799.0]})
    for fixed, said in (({"num_workers": "Mine can't be built again"}, " (Mine can't"), ({}, "; ")):
        made = target(own_config=mine, fixed=fixed)
        measured = run(trials, target=made, plan=plan([mine], present=mine))
        text = " ".join(drawn(recommendation_report(measured, recommend(measured)), 80).split())
        assert f"not known: nothing else was measured{said}" in text
        assert "--budget" not in text
    several = run(trials, target=target(own_config=mine), plan=plan([mine, config(8)]))
    text = " ".join(drawn(recommendation_report(several, recommend(several)), 80).split())
    assert "nothing else was measured (sweep again with --budget" in text


def test_what_limits_cost_is_said_in_words() -> None:
    measured = present_run(config(4))
    limits = dataclasses.replace(stored_limits(measured.header.settings), max_workers=0)
    advice = recommend(measured, limits)
    text = drawn(recommendation_report(measured, advice), 80)
    assert re.search(r"Speed-up +none: \d\d% slower than your settings \(0\.\d\dx, 95% CI", text)
    assert "at most 0 workers" in text


def test_what_a_dataset_raised_is_reported_with_its_place() -> None:
    tail = """Traceback (most recent call last):
  File "/lib/torch/fetch.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
  File "/my data/images.py", line 32, in __getitem__
    raise ValueError("bad sample 77")
ValueError: bad sample 77
"""
    raised = Failure(kind="worker_exception", message="ValueError: bad sample", stderr_tail=tail)
    killed = dataclasses.replace(raised, kind="worker_signal")
    trials = numbered([failed(TWO, failure=raised), failed(FOUR_KEPT, failure=killed)])
    found = Run(path="run.jsonl", header=header(), trials=trials)
    text = drawn(sweep_report(found), 200, verbose=True).partition("Recommended")[0]
    assert text.count('The last call in it: "/my data/images.py", line 32, in __getitem__.') == 1
    answer = drawn(sweep_report(found), 200)
    assert "Recommended  nothing: ValueError: bad sample The last call in it: " in answer
    assert answer.count("images.py") == 1


@pytest.mark.parametrize(("cores", "shown"), [(1.0, "1 usable core)"), (1.5, "1.5 usable cores)")])
def test_one_core_is_one(cores: float, shown: str) -> None:
    found = Run(path="run.jsonl", header=header(machine=machine(cores)))
    assert shown in drawn(sweep_report(found), 200, verbose=True)


def test_the_present_settings_are_named_and_compared_with() -> None:
    found = sweep_report(present_run(TWO))
    text = drawn(found, 120)
    assert "(yours: num_workers=2)" in text
    assert "over your settings (95% CI " in text
    assert "\n  2 yours " in text
    assert "yours" in roles(found)
    assert "yours" not in drawn(sweep_report(example_run()), 80)


def test_settings_that_are_as_recommended_already_are_said_to_be() -> None:
    text = drawn(sweep_report(present_run(config(4))), 120)
    assert "Recommended  num_workers=4  (yours)" in text
    assert "4 yours ◀" in text


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("budget", "the budget was used up"),
        ("interrupted", "interrupted; what was measured is kept"),
        (None, "the sweep was cut off"),
    ],
)
def test_what_was_planned_and_never_measured_is_counted(
    reason: Literal["budget", "interrupted"] | None, why: str
) -> None:
    run = example_run()
    assert run.end is not None
    measured = [trial.config for trial in run.trials]
    planned = plan(dict.fromkeys([*measured, config(32), config(64)]))
    cut = dataclasses.replace(
        run,
        header=dataclasses.replace(run.header, plan=planned),
        end=None if reason is None else dataclasses.replace(run.end, reason=reason),
    )
    text = " ".join(drawn(sweep_report(cut), 80, verbose=True).split())
    assert f"2 of 9 configurations were not measured: {why}." in text


def test_a_sweep_that_measured_all_of_its_plan_has_nothing_to_count() -> None:
    run = example_run()
    whole = plan(dict.fromkeys(trial.config for trial in run.trials))
    for planned in (None, whole):
        header = dataclasses.replace(run.header, plan=planned)
        text = drawn(sweep_report(dataclasses.replace(run, header=header)), 80, verbose=True)
        assert "not measured:" not in text


def test_speeds_are_called_those_of_whole_epochs_where_their_length_is_known() -> None:
    made = example_run_without_advice()
    text = drawn(sweep_report(made), 200, verbose=True)
    assert "relative: speed against the recommended, over whole epochs." in text
    endless = dataclasses.replace(made.header.target, batches_per_epoch=None, length=None)
    made = dataclasses.replace(made, header=dataclasses.replace(made.header, target=endless))
    text = drawn(sweep_report(made), 200, verbose=True)
    assert "relative: speed against the recommended." in text


def test_a_module_that_is_called_run_is_no_script() -> None:
    sweep = example_run()
    named = dataclasses.replace(
        sweep,
        header=dataclasses.replace(
            sweep.header,
            target=dataclasses.replace(sweep.header.target, spec="run:make"),
            settings={"target": "run:make"},
        ),
    )
    assert "Script" not in drawn(run_report(named), 100)
    script = dataclasses.replace(
        named, trials=(), header=dataclasses.replace(named.header, settings={})
    )
    assert "Script  make, cut off" in drawn(run_report(script), 100)


def test_by_what_samples_are_counted_is_said_below_the_table() -> None:
    run = example_run()
    note = "The second batch counts as 11 samples, by the length of batch['x']."
    target = dataclasses.replace(run.header.target, notes=(note,))
    shown = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    assert note in drawn(sweep_report(shown), 200, verbose=True)


def test_what_is_waited_in_a_first_epoch_is_not_called_that_of_the_ten_that_rates_are_of() -> None:
    kept = target(first_sample_s=0.02, kept_sample_s=1e-9, sampler="RandomSampler")
    one = config(1, persistent_workers=True)
    trials = blocks({config(0): [47.0] * 3, one: [10.0] * 3}, wait_fraction=0.97)
    for keeping, share in ((kept, "97% of the first epoch"), (target(), "97% of the time")):
        made = run(trials, target=keeping, settings={"step_s": 0.005})
        advised = recommendation_report(made, recommend(made))
        text = " ".join(drawn(advised, 100, verbose=True).split())
        assert f"Data wait {share} (measured, step 5.0 ms" in text
        assert f"data wait {share} (measured)" in text
