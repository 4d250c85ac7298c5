"""The screen of a profile of which nothing, or not all, could be measured."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console
from sample_run import PLAIN, RUN, TRIALS

from dlprof.records import Diagnosis, Timeline
from dlprof.report.profile import render_profile


def test_a_profile_without_figures_does_not_say_that_all_is_well() -> None:
    failed = dataclasses.replace(TRIALS[0], outcome="timed_out", samples_per_s=None)
    run = dataclasses.replace(
        RUN, path="mine.dlprof.jsonl", trials=(failed,), diagnosis=Diagnosis(config=PLAIN)
    )
    screen = io.StringIO()
    Console(file=screen, width=80).print(render_profile(run))
    assert "Nothing could be measured" in screen.getvalue()
    assert "mine.dlprof.jsonl" in screen.getvalue()
    assert "Nothing stands out" not in screen.getvalue()
    assert "perfetto" not in screen.getvalue()


def test_a_picture_is_offered_only_where_batches_were_followed() -> None:
    timeline = Timeline(trial_id="t0002", began_at="", batch=(0,))
    for timelines, offered in (((), False), ((timeline,), True)):
        run = dataclasses.replace(
            RUN, trials=TRIALS, diagnosis=Diagnosis(config=PLAIN), timelines=timelines
        )
        screen = io.StringIO()
        Console(file=screen, width=80).print(render_profile(run))
        assert "Run file:" in screen.getvalue()
        assert ("perfetto" in screen.getvalue()) is offered
