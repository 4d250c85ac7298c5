"""A run's timelines as a trace that ui.perfetto.dev and chrome://tracing open.

Written in the Trace Event Format (JSON): a process per traced trial, a track per worker, its
feeder thread, the main process and the pin thread; what lies in queues as asynchronous slices, as
several batches lie there at once; arrows that follow each batch from its worker to the consumer;
counters of how many batches are where.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from dlprof.errors import UsageError
from dlprof.records import Run, Timeline
from dlprof.report.export.batches import Batch, batches, since_first
from dlprof.report.text import clean

MOST_BYTES = 48_000_000
"""Batches beyond it are left out: viewers in a browser get slow, and a report should be small."""


_LONGEST_NAME = 200
_US = 1e6


# From the column of the beginning to that of the end. What never came to an end is not counted.
_PLACES: Mapping[str, tuple[str, str]] = {
    "loading": ("picked_s", "collated_s"),
    "queued": ("serialised_s", "received_s"),
    "held": ("rebuilt_s", "yielded_s"),
}


class Counts:
    """The batches at each place of a timeline at a moment.

    ``loading`` in workers, ``queued``, ``held`` in main.
    """

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
    """The trace of all timelines of a run.

    Args:
        run: What was measured; of more than 16 timelines the last ones count.
        most_bytes: How long the text may become; later batches are left out, and the trace says
            how many.

    Raises:
        UsageError: If the run has no timeline.
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
    """Why there is nothing to draw, by what made the run file."""
    name = run.path or "The run"
    what, hint = (
        "which only a traced trial records",
        "Measure one with dlprof profile, and give its run file.",
    )
    if run.script is not None or run.watched:
        what = "no batch of the script's loaders was followed"
        hint = "Run the script with dlprof run, without --no-follow, and give that run file."
        if run.end is None:
            what = "the script was cut off before there was one to write"
            hint = "Run it again, without --no-follow, and let it end by itself."
        return UsageError(f"{name} holds no timeline: {what}", hint=hint)
    return UsageError(f"{name} holds no timeline, {what}", hint=hint)


def _events(run: Run, timeline: Timeline, process: int, most_bytes: int) -> list[str]:
    """The events of one timeline as JSON, batch by batch until the room is used up."""
    timeline = since_first(timeline)
    counts = Counts(timeline)
    tracks: dict[int, str] = {}
    events: list[str] = []
    room = most_bytes
    left_out = timeline.dropped
    for batch in batches(timeline):
        if room <= 0:
            left_out += len(timeline.batch) - batch.place
            break
        # More than a track's name and place take.
        room -= 300 * len(batch.tracks.keys() - tracks.keys())
        tracks |= batch.tracks
        lines = list(_of_batch(batch, counts, process))
        room -= sum(len(line) + 2 for line in lines)
        events += lines
    return [*_names(run, timeline, process, tracks, left_out), *events]


def _names(
    run: Run, timeline: Timeline, process: int, tracks: Mapping[int, str], left_out: int
) -> list[str]:
    """What the process and its tracks are called, in their order from top to bottom."""
    trial = next((each for each in run.trials if each.id == timeline.trial_id), None)
    name = clean(timeline.trial_id)
    if trial is not None:
        name = f"{name[:_LONGEST_NAME]}: {clean(trial.config.text)}"
    name = name[: 2 * _LONGEST_NAME]
    if left_out:
        name += f" ({left_out:,} batches left out)"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {"name": name}}]
    for track, title in sorted(tracks.items()):
        events += [
            {"ph": "M", "name": "thread_name", "tid": track, "args": {"name": title}},
            {"ph": "M", "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}},
        ]
    return [json.dumps({"pid": process, **each}, separators=(",", ":")) for each in events]


def _of_batch(batch: Batch, counts: Counts, process: int) -> Iterator[str]:
    # Written by hand rather than by ``json``, of numbers and names of our own alone: a trace has
    # hundreds of thousands of events.
    args = f'"args":{{"batch":{batch.number},"epoch":{batch.epoch}}}'
    key = f'"pid":{process},"id":"{process}.{batch.place}"'
    for each in batch.slices:
        # Both ends are rounded alike: a slice that overlaps with the next is dropped by the viewer.
        name, begin, end = each.name, round(each.begin_s * _US, 1), round(each.end_s * _US, 1)
        if each.track is not None:
            place = f'"pid":{process},"tid":{each.track},"ts":{begin:.1f},"dur":{end - begin:.1f}'
            yield f'{{"ph":"X","name":"{name}",{place},{args}}}'
        else:
            # Several batches lie in a queue at once, each a slice with an id of its own.
            lane = f'"cat":"{name}","name":"{name}",{key}'
            yield f'{{"ph":"b",{lane},"ts":{begin:.1f},{args}}}'
            yield f'{{"ph":"e",{lane},"ts":{end:.1f}}}'
    last = len(batch.stops) - 1
    for number, stop in enumerate(batch.stops):
        kind = '"s"' if number == 0 else '"f","bp":"e"' if number == last else '"t"'
        at = f'"tid":{stop.track},"ts":{stop.begin_s * _US:.1f}'
        yield f'{{"ph":{kind},"cat":"batch","name":"batch",{key},{at}}}'
    if batch.yielded_s is not None:
        shown = ",".join(f'"{name}":{n}' for name, n in counts.at(batch.yielded_s).items())
        head = f'{{"ph":"C","name":"batches","pid":{process}'
        yield f'{head},"ts":{batch.yielded_s * _US:.1f},"args":{{{shown}}}}}'
