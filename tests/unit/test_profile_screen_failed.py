"""The screen of a profile of which nothing, or not all, could be measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from golden import drawn
from sample_run import PLAIN, RUN, TRIALS

from dlprof.records import Diagnosis, Failure, Finding, Timeline
from dlprof.report.export.formats import run_report
from dlprof.report.index import index_row
from dlprof.report.profile import profile_report
from dlprof.store import read_run


def test_a_profile_without_figures_does_not_say_that_all_is_well() -> None:
    failed = dataclasses.replace(TRIALS[0], outcome="timed_out", samples_per_s=None)
    run = dataclasses.replace(
        RUN, path="mine.dlprof.jsonl", trials=(failed,), diagnosis=Diagnosis(config=PLAIN)
    )
    screen = drawn(profile_report(run), 80)
    assert "nothing could be measured" in screen
    assert "mine.dlprof.jsonl" in screen
    assert "none found" not in screen
    assert "perfetto" not in screen
    plain = dataclasses.replace(run, recommendation=None)
    assert "not known: nothing could be measured" in index_row(plain)


def test_a_profile_whose_settings_can_not_work_here_says_why() -> None:
    """Shared memory was short, and the screen had "nothing could be measured" without a reason."""
    short = Failure(kind="shared_memory", message="5 batches need 320 MiB.", hint="Give more.")
    skipped = dataclasses.replace(
        TRIALS[0], outcome="skipped", samples_per_s=None, batches_per_s=None, failure=short
    )
    found = Finding(
        code="memory.shm", severity="high", title="Shared memory is too small", explanation=""
    )
    for findings in ((found,), ()):
        run = dataclasses.replace(
            RUN, trials=(skipped,), diagnosis=Diagnosis(config=PLAIN, findings=findings)
        )
        screen = drawn(profile_report(run), 80)
        assert "5 batches need 320 MiB. Give more." in screen
        assert ("Shared memory is too small" in screen) is bool(findings)
        assert ("nothing could be measured" in screen) is not bool(findings)


def test_a_picture_is_offered_only_where_batches_were_followed() -> None:
    timeline = Timeline(trial_id="t0002", began_at="", batch=(0,))
    for timelines, offered in (((), False), ((timeline,), True)):
        run = dataclasses.replace(
            RUN,
            path="mine.dlprof.jsonl",
            trials=TRIALS,
            diagnosis=Diagnosis(config=PLAIN),
            timelines=timelines,
        )
        screen = drawn(profile_report(run), 80)
        assert "Full report" in screen
        assert ("perfetto" in screen) is offered


def test_a_profile_that_was_cut_off_says_so() -> None:
    run = read_run(Path(__file__).parents[2] / "examples" / "why.dlprof.jsonl")
    cut = dataclasses.replace(run, trials=run.trials[:2], diagnosis=None, end=None)
    text = drawn(run_report(cut), 80)
    assert "Bottleneck  not known" in text
    assert "Cut off     the profile did not end" in text
    assert "--resume" not in text


def test_a_diagnosis_that_was_interrupted_says_that_it_rests_on_less() -> None:
    run = read_run(Path(__file__).parents[2] / "examples" / "why.dlprof.jsonl")
    assert run.end is not None
    assert "Cut off" not in drawn(run_report(run), 80)
    cut = dataclasses.replace(run, end=dataclasses.replace(run.end, reason="interrupted"))
    text = drawn(run_report(cut), 80)
    assert "Cut off     the profile was interrupted; run it once more" in text
    assert len(text.splitlines()) <= 16
