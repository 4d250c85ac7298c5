from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from example_runs import HOSTILE, example_run
from hypothesis import given, settings
from hypothesis import strategies as st
from profiled_runs import hostile_profile, made_timeline, profiled_run

from dlprof.errors import UsageError
from dlprof.records import Run, Timeline, WatchedScript
from dlprof.report.export.trace import MOST_BYTES, Counts, render_perfetto
from dlprof.report.labels import STAGES

_TIMES = st.none() | st.floats(-1e308, 1e308)


def _run(*timelines: Timeline) -> Run:
    return dataclasses.replace(profiled_run(), timelines=timelines)


def _events(run: Run) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(render_perfetto(run))["traceEvents"]
    return events


def _names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_each_worker_and_main_have_a_track() -> None:
    names = set(_names(_events(_run(made_timeline(workers=2)))).values())
    workers = {"worker 0", "worker 0 feeder", "worker 1", "worker 1 feeder"}
    assert names == {"main", "main: receiving"} | workers


def test_the_pin_thread_has_its_track() -> None:
    plain = made_timeline()
    pinned = [None if at is None else at + 0.0001 for at in plain.rebuilt_s]
    events = _events(_run(dataclasses.replace(plain, pinned_s=tuple(pinned))))
    names = _names(events)
    assert "pin thread" in names.values()
    assert "main: receiving" not in names.values()
    pinning = {"pin", "deserialize"}
    assert {names[e["tid"]] for e in events if e["name"] in pinning} == {"pin thread"}


def test_slices_on_a_track_follow_each_other() -> None:
    spans = defaultdict(list)
    for event in _events(profiled_run()):
        if event["ph"] == "X":
            spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in spans.values():
        track.sort()
        # A viewer drops slices that overlap by the least it can show: a tenth of a microsecond.
        assert all(one[1] <= two[0] + 0.01 for one, two in itertools.pairwise(track))


def test_what_was_sent_before_the_start_is_shown_too() -> None:
    plain = made_timeline()
    sent = [None if at is None else at - 0.75 for at in plain.dispatched_s]
    early = _events(_run(dataclasses.replace(plain, dispatched_s=tuple(sent))))
    times = [event["ts"] for event in early if "ts" in event]
    assert min(times) == 0.0
    usual = max(event["ts"] for event in _events(_run(plain)) if "ts" in event)
    assert max(times) == usual + 750_000


def test_each_batch_is_followed_by_an_arrow_to_the_step() -> None:
    events = _events(profiled_run())
    names = _names(events)
    begins = {e["id"]: names[e["tid"]] for e in events if e["ph"] == "s"}
    ends = {e["id"]: names[e["tid"]] for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 40
    assert set(begins.values()) == {f"worker {number}" for number in range(4)}
    assert set(ends.values()) == {"main"}


def test_what_lies_in_a_queue_begins_and_ends() -> None:
    events = _events(profiled_run())
    for name in ("result queue", "reorder wait", "index queue"):
        kinds = [event["ph"] for event in events if event["name"] == name]
        assert kinds.count("b") == kinds.count("e") == 40


def test_slices_have_the_names_by_which_stages_are_shown() -> None:
    """A key of the run file's, such as ``hold_up``, is nowhere explained in a viewer."""
    named = {e["name"] for e in _events(profiled_run()) if e["ph"] in "Xb"}
    assert {"serialize", "deserialize"} <= named <= {*STAGES.values()}


def test_without_workers_main_does_it_all() -> None:
    columns = ("dispatched_s", "serialising_s", "serialised_s", "received_s", "rebuilt_s")
    nothing: dict[str, Any] = dict.fromkeys(columns, ())
    events = _events(_run(made_timeline(workers=0, **nothing)))
    assert set(_names(events).values()) == {"main"}
    assert not [event for event in events if event["ph"] in "stfbe"]


def test_batches_are_counted_where_they_are() -> None:
    counts = Counts(made_timeline(count=4))
    assert counts.at(0.005) == {"loading": 4, "queued": 0, "held": 0}
    assert counts.at(0.0105) == {"loading": 0, "queued": 4, "held": 0}
    assert counts.at(0.014) == {"loading": 0, "queued": 0, "held": 4}
    assert counts.at(1.0) == {"loading": 0, "queued": 0, "held": 0}


@pytest.mark.slow
def test_an_hour_stays_within_its_bounds() -> None:
    run = _run(made_timeline(count=6000, workers=16), made_timeline(count=6000))
    text = render_perfetto(run, most_bytes=1_000_000)
    assert len(text) < 1_010_000
    events = json.loads(text)["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(processes) == 2
    assert all("batches left out" in name for name in processes)
    assert MOST_BYTES < 50_000_000


def test_many_tracks_and_timelines_stay_within_the_bounds() -> None:
    wide = made_timeline(count=2000, workers=2000)
    assert len(render_perfetto(_run(wide), most_bytes=100_000)) < 110_000
    assert len(render_perfetto(_run(*[made_timeline(3)] * 200), most_bytes=100_000)) < 130_000


def test_a_run_without_a_timeline_names_the_command_that_records_one() -> None:
    with pytest.raises(UsageError, match="no timeline") as caught:
        render_perfetto(example_run())
    assert "dlprof profile" in caught.value.hint
    script = dataclasses.replace(example_run(), script=WatchedScript(wall_s=1.0, ending="returned"))
    with pytest.raises(UsageError, match="no batch of the script's loaders") as caught:
        render_perfetto(script)
    assert "without --no-follow" in caught.value.hint


@st.composite
def _timelines(draw: st.DrawFn) -> Timeline:
    count = draw(st.integers(1, 4))
    names = [f.name for f in dataclasses.fields(Timeline) if f.name.endswith("_s")]
    column = st.just(()) | st.tuples(*[_TIMES] * count)
    columns: dict[str, Any] = {name: draw(column) for name in names}
    worker = draw(st.tuples(*[st.integers(-5, 1 << 40)] * count))
    batch = draw(st.tuples(*[st.integers(-(1 << 70), 1 << 70)] * count))
    return Timeline(trial_id="t", began_at="", batch=batch, worker=worker, **columns)


@pytest.mark.slow
@settings(deadline=None)
@given(_timelines())
def test_any_timeline_makes_a_trace(timeline: Timeline) -> None:
    for event in _events(_run(timeline)):
        assert event.get("dur", 0) >= 0
        assert event.get("tid", 0) < 1 << 31


def test_no_text_of_a_run_acts() -> None:
    text = render_perfetto(hostile_profile())
    assert text.isascii()
    assert HOSTILE not in json.dumps(json.loads(text))
