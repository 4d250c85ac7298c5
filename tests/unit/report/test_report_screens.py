"""Whole screens against recorded ones; look at the files under tests/data/report."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from builders import config, failed, header, machine, numbered, plan
from example_runs import (
    FOUR_KEPT,
    TWO,
    example_run,
    example_run_without_advice,
    hostile_run,
    present_run,
)
from golden import check_golden, drawn

from dlprof.records import Failure, Run
from dlprof.report.recommendation import render_recommendation
from dlprof.report.screen import render_run
from dlprof.report.summary import summarise
from dlprof.report.sweep import render_sweep
from dlprof.report.table import RunTable, columns_for

_WIDTHS = (60, 80, 200)
_TO_COPY = ("  dlprof recommend ", "  loader = ")


@pytest.mark.parametrize("width", _WIDTHS)
def test_the_final_screen(width: int) -> None:
    check_golden(f"sweep-{width}.txt", drawn(render_sweep(example_run()), width))


def test_the_final_screen_where_only_ascii_can_be_written() -> None:
    text = drawn(render_sweep(example_run()), 80, "ascii")
    assert text.isascii()
    check_golden("sweep-80-ascii.txt", text)


def test_a_run_without_a_recommendation_marks_the_fastest() -> None:
    text = drawn(RunTable(summarise(example_run_without_advice())), 80)
    assert [line.split()[0] for line in text.splitlines() if line.startswith("fastest")]
    assert "pick" not in text


@pytest.mark.parametrize("width", _WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for run in (example_run(), hostile_run()):
        lines = drawn(render_sweep(run), width).splitlines()
        too_wide = [line for line in lines if len(line) > width]
        # What is there to be copied is never broken; a terminal folds it by itself.
        assert [line for line in too_wide if not line.startswith(_TO_COPY)] == []


@pytest.mark.parametrize("width", _WIDTHS)
def test_numbers_in_the_table_are_never_cut(width: int) -> None:
    run = example_run()
    text = drawn(RunTable(summarise(run)), width)
    assert len(text.splitlines()) == 1 + len(summarise(run))
    assert "…" not in text


def test_columns_go_in_the_stated_order() -> None:
    rows = summarise(example_run())
    everything = columns_for(rows, 1000)
    gone = []
    for width in range(200, 10, -1):
        left = {column.title for column in columns_for(rows, width)}
        gone += [
            column.title
            for column in everything
            if column.title not in left and column.title not in gone
        ]
    assert gone == [
        "cores used/had",
        "shm",
        "trials",
        "turnover",
        "memory",
        "start-up",
        "relative",
        "wait",
        "95 %",
    ]


def test_a_hostile_run_is_shown_as_text() -> None:
    text = drawn(render_sweep(hostile_run()), 80)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]loud[/bold]" in text


def test_a_run_in_which_everything_failed_still_shows() -> None:
    run = example_run_without_advice()
    failures = tuple(trial for trial in run.trials if trial.failure is not None)
    text = drawn(render_sweep(dataclasses.replace(run, trials=failures)), 80)
    assert "Failed: num_workers=16" in text
    assert "samples/s by num_workers" not in text


def test_an_empty_and_cut_off_run_still_shows() -> None:
    run = Run(path="cut.jsonl", header=example_run().header, truncated=True)
    assert "--resume continues it" in drawn(render_sweep(run), 60)


def test_what_was_saved_is_not_offered_for_saving() -> None:
    run = example_run()
    assert run.recommendation is not None
    text = drawn(render_recommendation(run, run.recommendation, saved=True), 80)
    assert "--save" not in text


def test_what_a_data_set_raised_is_told_with_its_place() -> None:
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
    text = drawn(render_sweep(found), 200)
    assert text.count('The last call in it: "/my data/images.py", line 32, in __getitem__.') == 1


@pytest.mark.parametrize(("cores", "told"), [(1.0, "1 usable core)"), (1.5, "1.5 usable cores)")])
def test_one_core_is_one(cores: float, told: str) -> None:
    found = Run(path="run.jsonl", header=header(machine=machine(cores)))
    assert told in drawn(render_sweep(found), 200)


def test_the_present_settings_are_marked_and_explained() -> None:
    text = drawn(render_sweep(present_run(TWO)), 80)
    assert [line for line in text.splitlines() if line.startswith("present ")]
    assert "present: what the target's own DataLoader is set to now." in text
    assert "  - present: num_workers=2: " in text
    assert "present" not in drawn(render_sweep(example_run()), 80)


def test_a_pick_that_is_set_already_is_said_to_be() -> None:
    text = " ".join(drawn(render_sweep(present_run(FOUR_KEPT)), 80).split())
    assert "pick: recommended, and what the target is set to now" in text
    assert "present:" not in text


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("budget", "the budget ran out"),
        ("interrupted", "the sweep was interrupted"),
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
    text = " ".join(drawn(render_sweep(cut), 80).split())
    assert f"2 of 9 configurations were not measured: {why}." in text


def test_a_sweep_that_measured_all_of_its_plan_has_nothing_to_count() -> None:
    run = example_run()
    whole = plan(dict.fromkeys(trial.config for trial in run.trials))
    for planned in (None, whole):
        header = dataclasses.replace(run.header, plan=planned)
        text = drawn(render_sweep(dataclasses.replace(run, header=header)), 80)
        assert "not measured:" not in text


def test_speeds_are_called_those_of_whole_epochs_where_their_length_is_known() -> None:
    made = example_run_without_advice()
    assert "relative: speed over whole epochs against the fastest." in drawn(render_sweep(made), 80)
    endless = dataclasses.replace(made.header.target, batches_per_epoch=None, length=None)
    made = dataclasses.replace(made, header=dataclasses.replace(made.header, target=endless))
    assert "relative: speed against the fastest." in drawn(render_sweep(made), 80)


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
    assert "cut off" not in drawn(render_run(named), 100)
    script = dataclasses.replace(
        named, trials=(), header=dataclasses.replace(named.header, settings={})
    )
    assert "dlprof run make, cut off" in drawn(render_run(script), 100)


def test_by_what_samples_are_counted_is_said_below_the_table() -> None:
    run = example_run()
    note = "The second batch counts as 11 samples, by the length of batch['x']."
    target = dataclasses.replace(run.header.target, notes=(note,))
    told = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    assert note in drawn(render_sweep(told), 200)
