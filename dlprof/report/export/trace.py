"""A run's timelines as a trace that ui.perfetto.dev and chrome://tracing open.

Written in the Trace Event Format (JSON): a process per traced trial, a track per worker, its
feeder thread, the main process and the pin thread; what lies in queues as asynchronous slices, as
several batches lie there at once; arrows that follow each batch from its worker to the consumer;
counters of how many batches are where.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlprof.errors import UsageError
from dlprof.records import Run, Timeline
from dlprof.report.labels import stages_of
from dlprof.report.text import clean

MOST_BYTES = 48_000_000
"""Batches beyond it are left out: viewers in a browser get slow, and a report should be small."""

_LONGEST_NAME = 200

_Track = tuple[int, str]  # where something is drawn: its place from top to bottom, and its name

_MAIN, _RECEIVE, _PIN = (1, "main"), (2, "main: receiving"), (3, "pin thread")

_COLUMNS = tuple(each.name for each in dataclasses.fields(Timeline) if each.name.endswith("_s"))
"""Of times, in the order of a batch's way."""


class Slice(NamedTuple):
    """A stage that a batch went through, in the timeline's time; in a queue it has no track."""

    name: str
    track: _Track | None
    begin_s: float
    end_s: float


class Batch(NamedTuple):
    """One batch of a timeline."""

    number: int  # within its epoch
    epoch: int
    slices: tuple[Slice, ...]
    is_from_worker: bool
    yielded_s: float | None  # when the consumer got it


def since_first(timeline: Timeline) -> Timeline:
    """A timeline with times since the first thing that happened, if that was before its start.

    Batches that were sent out before it began are seen in it, and viewers drop what comes before 0.
    """
    columns = {name: getattr(timeline, name) for name in _COLUMNS}
    times = (at for column in columns.values() for at in column if at is not None)
    latest_s = 1e9  # no time is further from a timeline's start, whatever a file says
    first_s = max(-latest_s, min(0.0, min(times, default=0.0)))
    shifted: dict[str, Any] = {
        name: tuple(None if at is None else min(latest_s, max(0.0, at - first_s)) for at in each)
        for name, each in columns.items()
    }
    return dataclasses.replace(timeline, **shifted)


def batches(timeline: Timeline) -> Iterator[Batch]:
    """The batches of a timeline by ``since_first``, in its order."""
    pinned = any(at is not None for at in timeline.pinned_s)
    columns = {name: getattr(timeline, name) for name in _COLUMNS}
    asked = sorted(at for at in timeline.asked_s if at is not None)
    for place, number in enumerate(timeline.batch):
        at = {name: column[place] for name, column in columns.items() if column}
        worker = timeline.worker[place] if timeline.worker else -1
        step_ends = _next_after(asked, at.get("yielded_s"))
        yield Batch(
            number=number,
            epoch=timeline.epoch[place] if timeline.epoch else 0,
            slices=tuple(_slices(at, worker, step_ends, pinned=pinned)),
            is_from_worker=worker >= 0,
            yielded_s=at.get("yielded_s"),
        )


def _slices(
    at: dict[str, float | None], worker: int, step_ends: float | None, *, pinned: bool
) -> Iterator[Slice]:
    """All stages whose both ends are known, the consumer's own among them."""
    place, name = 10 + 2 * min(worker, 100_000), f"worker {min(worker, 100_000)}"
    own = (place, name) if worker >= 0 else _MAIN
    feeder = (place + 1, f"{name} feeder")  # pickles while the next batch is fetched
    ready = at.get("pinned_s") if at.get("pinned_s") is not None else at.get("rebuilt_s")
    receiver = _PIN if pinned else _RECEIVE
    yielded = at.get("yielded_s")
    spans = (
        ("wait", _MAIN, at.get("asked_s"), yielded),
        ("pick_up", None, at.get("dispatched_s"), at.get("picked_s")),
        ("fetch", own, at.get("picked_s"), at.get("fetched_s")),
        ("collate", own, at.get("fetched_s"), at.get("collated_s")),
        ("serialise", feeder, at.get("serialising_s"), at.get("serialised_s")),
        ("queue", None, at.get("serialised_s"), at.get("received_s")),
        ("rebuild", receiver, at.get("received_s"), at.get("rebuilt_s")),
        ("pin", _PIN, at.get("rebuilt_s"), at.get("pinned_s")),
        ("hold_up", None, ready, yielded),
        ("step", _MAIN, yielded, step_ends),
    )
    for stage, track, begin, end in spans:
        in_main = worker < 0 and stage in {"pick_up", "serialise", "queue", "rebuild", "hold_up"}
        if begin is None or end is None or end < begin or in_main:
            continue
        yield Slice(stage, track, begin, end)


def _next_after(asked: Sequence[float], yielded: float | None) -> float | None:
    """When the consumer asks again, for whichever batch: it ends a step; the last ends at once."""
    if yielded is None:
        return None
    place = bisect_left(asked, yielded)
    return asked[place] if place < len(asked) else yielded


# From the column of the beginning to that of the end. What never came to an end is not counted.
_PLACES: Mapping[str, tuple[str, str]] = {
    "loading": ("picked_s", "collated_s"),
    "queued": ("serialised_s", "received_s"),
    "held": ("rebuilt_s", "yielded_s"),
}


class Counts:
    """How many batches at a moment are ``loading`` in workers, ``queued``, or ``held`` in main."""

    def __init__(self, timeline: Timeline) -> None:
        self._places: dict[str, tuple[list[float], list[float]]] = {}
        for place, columns in _PLACES.items():
            pairs = zip(*(getattr(timeline, name) for name in columns), strict=False)
            known = [(a, b) for a, b in pairs if a is not None and b is not None and a <= b]
            self._places[place] = sorted(a for a, _ in known), sorted(b for _, b in known)

    def at(self, moment_s: float) -> dict[str, int]:
        """How many batches are where; those that have left at that moment are gone."""
        return {
            place: bisect_right(begins, moment_s) - bisect_right(ends, moment_s)
            for place, (begins, ends) in self._places.items()
        }


def render_perfetto(run: Run, most_bytes: int = MOST_BYTES) -> str:
    """The trace of all timelines of a run, of more than 16 the last ones.

    Batches beyond ``most_bytes`` are left out, and the trace says how many.
    """
    timelines = [timeline for timeline in run.timelines if timeline.batch][-16:]
    if not timelines:
        raise _without_timeline(run)
    share = most_bytes // len(timelines)
    events: list[str] = []
    for process, timeline in enumerate(timelines, start=1):
        events += _events(run, timeline, process, share)
    start = '{"displayTimeUnit":"ms","otherData":'
    spec, version = clean(run.header.target.spec), clean(run.header.dlprof_version)
    about = {"target": spec[:_LONGEST_NAME], "dlprof": version[:_LONGEST_NAME]}
    return start + json.dumps(about) + ',"traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def _without_timeline(run: Run) -> UsageError:
    what = ", which only a traced trial records"
    hint = "Measure one with dlprof profile, and give its run file."
    if run.is_script and run.end is None:
        what = ": the script was cut off before there was one to write"
        hint = "Run it again, without --no-follow, and let it end by itself."
    elif run.is_script:
        what = ": no batch of the script's loaders was followed"
        hint = "Run the script with dlprof run, without --no-follow, and give that run file."
    return UsageError(f"{run.path or 'The run'} holds no timeline{what}", hint=hint)


def _events(run: Run, timeline: Timeline, process: int, most_bytes: int) -> list[str]:
    """The events of one timeline as JSON, batch by batch until the room is used up."""
    timeline = since_first(timeline)
    counts, called = Counts(timeline), stages_of(run)
    tracks: set[_Track] = set()
    events: list[str] = []
    room = most_bytes
    left_out = timeline.dropped
    for place, batch in enumerate(batches(timeline)):
        if room <= 0:
            left_out += len(timeline.batch) - place
            break
        found = {each.track for each in batch.slices if each.track is not None}
        # More than a track's name and place take.
        room -= 300 * len(found - tracks)
        tracks |= found
        lines = list(_of_batch(batch, counts, f"{process}.{place}", process, called))
        room -= sum(len(line) + 2 for line in lines)
        events += lines
    return [*_names(run, timeline, process, tracks, left_out), *events]


def _names(
    run: Run, timeline: Timeline, process: int, tracks: set[_Track], left_out: int
) -> list[str]:
    trial = next((each for each in run.trials if each.id == timeline.trial_id), None)
    name = clean(timeline.trial_id)
    if trial is not None:
        name = f"{name[:_LONGEST_NAME]}: {clean(trial.config.text)}"
    name = name[: 2 * _LONGEST_NAME]
    if left_out:
        name += f" ({left_out:,} batches left out)"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {"name": name}}]
    for track, title in sorted(tracks):
        events += [
            {"ph": "M", "name": "thread_name", "tid": track, "args": {"name": title}},
            {"ph": "M", "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}},
        ]
    return [json.dumps({"pid": process, **each}, separators=(",", ":")) for each in events]


def _of_batch(
    batch: Batch, counts: Counts, name: str, process: int, called: Mapping[str, str]
) -> Iterator[str]:
    # Written by hand rather than by ``json``, of numbers and names of our own alone: a trace has
    # hundreds of thousands of events.
    us = 1e6
    args = f'"args":{{"batch":{batch.number},"epoch":{batch.epoch}}}'
    key = f'"pid":{process},"id":"{name}"'
    for each in batch.slices:
        # Both ends are rounded alike: a slice that overlaps with the next is dropped by the viewer.
        begin, end = round(each.begin_s * us, 1), round(each.end_s * us, 1)
        stage = called[each.name]
        if each.track is not None:
            place = (
                f'"pid":{process},"tid":{each.track[0]},"ts":{begin:.1f},"dur":{end - begin:.1f}'
            )
            yield f'{{"ph":"X","name":"{stage}",{place},{args}}}'
        else:
            # Several batches lie in a queue at once, each a slice with an id of its own.
            lane = f'"cat":"{stage}","name":"{stage}",{key}'
            yield f'{{"ph":"b",{lane},"ts":{begin:.1f},{args}}}'
            yield f'{{"ph":"e",{lane},"ts":{end:.1f}}}'
    # An arrow follows it from the worker over where it is received to the consumer's step.
    stops = [each for each in batch.slices if each.name in {"fetch", "rebuild", "step"}]
    last = len(stops) - 1
    for number, stop in enumerate(stops if batch.is_from_worker else ()):
        kind = '"s"' if number == 0 else '"f","bp":"e"' if number == last else '"t"'
        track = 0 if stop.track is None else stop.track[0]
        at = f'"tid":{track},"ts":{stop.begin_s * us:.1f}'
        yield f'{{"ph":{kind},"cat":"batch","name":"batch",{key},{at}}}'
    if batch.yielded_s is not None:
        shown = ",".join(f'"{name}":{n}' for name, n in counts.at(batch.yielded_s).items())
        head = f'{{"ph":"C","name":"batches","pid":{process}'
        yield f'{head},"ts":{batch.yielded_s * us:.1f},"args":{{{shown}}}}}'
