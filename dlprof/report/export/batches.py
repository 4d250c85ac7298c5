"""A timeline batch by batch, as the slices that a trace shows of it."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dlprof.records import Timeline

MAIN = 1
RECEIVE = 2
PIN = 3
_FIRST_WORKER = 10
_LATEST_S = 1e9
"""No time is further from a timeline's start, whatever a file says."""

_COLUMNS = (
    "dispatched_s",
    "picked_s",
    "fetched_s",
    "collated_s",
    "serialising_s",
    "serialised_s",
    "received_s",
    "rebuilt_s",
    "pinned_s",
    "yielded_s",
    "asked_s",
)


def worker_track(worker: int) -> int:
    """The track of a worker; that of the main process for -1."""
    return MAIN if worker < 0 else _FIRST_WORKER + 2 * min(worker, 100_000)


def feeder_track(worker: int) -> int:
    """The track of a worker's feeder thread, which pickles while the next batch is fetched."""
    return worker_track(worker) + 1


class Slice(NamedTuple):
    """Something that a batch went through.

    Attributes:
        name: The stage.
        track: Where it is drawn; ``None`` for a queue.
        begin_s: As the timeline's times; see ``since_first``.
        end_s: Not before ``begin_s``.
    """

    name: str
    track: int | None
    begin_s: float
    end_s: float


class Batch(NamedTuple):
    """One batch of a timeline.

    Attributes:
        place: In the timeline, from 0.
        number: Within its epoch.
        epoch: From 0.
        slices: In the order of its way.
        stops: The slices that an arrow follows it over: the worker's, the receiving one, the
            consumer's step.
        tracks: The tracks that it was on, with their names.
        yielded_s: When the consumer got it.
    """

    place: int
    number: int
    epoch: int
    slices: tuple[Slice, ...]
    stops: tuple[Slice, ...]
    tracks: dict[int, str]
    yielded_s: float | None


def since_first(timeline: Timeline) -> Timeline:
    """A timeline with times since the first thing that happened, if that was before its start.

    Batches that were sent out before it began are seen in it, and viewers drop what comes before 0.
    """
    columns = {name: getattr(timeline, name) for name in _COLUMNS}
    times = (at for column in columns.values() for at in column if at is not None)
    first_s = max(-_LATEST_S, min(times, default=0.0))
    if first_s >= 0.0:
        return timeline
    shifted: dict[str, Any] = {
        name: tuple(None if at is None else max(0.0, at - first_s) for at in each)
        for name, each in columns.items()
    }
    return dataclasses.replace(timeline, **shifted)


def batches(timeline: Timeline) -> Iterator[Batch]:
    """The batches of a timeline, in its order."""
    pinned = any(at is not None for at in timeline.pinned_s)
    columns = {name: getattr(timeline, name) for name in _COLUMNS}
    asked = sorted(at for at in map(_time, timeline.asked_s) if at is not None)
    for place, number in enumerate(timeline.batch):
        at = {name: _time(column[place]) for name, column in columns.items() if column}
        worker = timeline.worker[place] if timeline.worker else -1
        step_ends = _next_after(asked, at.get("yielded_s"))
        slices = tuple(_slices(at, worker, step_ends, pinned=pinned))
        found = {each.name: each for each in slices}
        stops = [found[name] for name in ("fetch", "rebuild", "step") if name in found]
        yield Batch(
            place=place,
            number=number,
            epoch=timeline.epoch[place] if timeline.epoch else 0,
            slices=slices,
            stops=tuple(stops) if worker >= 0 else (),
            tracks={each.track: _title(each.track) for each in slices if each.track is not None},
            yielded_s=at.get("yielded_s"),
        )


def _time(value: float | None) -> float | None:
    return None if value is None else max(-_LATEST_S, min(_LATEST_S, value))


def _slices(
    at: dict[str, float | None], worker: int, step_ends: float | None, *, pinned: bool
) -> Iterator[Slice]:
    """All stages whose both ends are known, the consumer's own among them."""
    own, feeder = worker_track(worker), feeder_track(worker)
    ready = at.get("pinned_s") if at.get("pinned_s") is not None else at.get("rebuilt_s")
    receiver = PIN if pinned else RECEIVE
    yielded = at.get("yielded_s")
    spans = (
        ("wait", MAIN, at.get("asked_s"), yielded),
        ("pick_up", None, at.get("dispatched_s"), at.get("picked_s")),
        ("fetch", own, at.get("picked_s"), at.get("fetched_s")),
        ("collate", own, at.get("fetched_s"), at.get("collated_s")),
        ("serialise", feeder, at.get("serialising_s"), at.get("serialised_s")),
        ("queue", None, at.get("serialised_s"), at.get("received_s")),
        ("rebuild", receiver, at.get("received_s"), at.get("rebuilt_s")),
        ("pin", PIN, at.get("rebuilt_s"), at.get("pinned_s")),
        ("hold_up", None, ready, yielded),
        ("step", MAIN, yielded, step_ends),
    )
    for name, track, begin, end in spans:
        in_main = worker < 0 and name in {"pick_up", "serialise", "queue", "rebuild", "hold_up"}
        if begin is None or end is None or end < begin or in_main:
            continue
        yield Slice(name, track, begin, end)


def _next_after(asked: Sequence[float], yielded: float | None) -> float | None:
    """When the consumer asks again, which ends its step; of the last batch, at once.

    The next in time, which is not the next batch where batches come out of order.
    """
    if yielded is None:
        return None
    place = bisect_left(asked, yielded)
    return asked[place] if place < len(asked) else yielded


def _title(track: int) -> str:
    fixed = {MAIN: "main", RECEIVE: "main: receiving", PIN: "pin thread"}
    if track in fixed:
        return fixed[track]
    worker, is_feeder = divmod(track - _FIRST_WORKER, 2)
    return f"worker {worker} feeder" if is_feeder else f"worker {worker}"
