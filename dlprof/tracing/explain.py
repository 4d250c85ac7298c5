"""From a trace and a window to an explanation: pure, without torch.

What each stage of a batch's way took comes first: from stamps to lengths of time (``spans``).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import statistics
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dlprof.records import Config
from dlprof.records.run import Timeline
from dlprof.records.stages import (
    AGE_STAGES,
    BatchCosts,
    Explanation,
    SampleCosts,
    Stage,
    StageName,
    TransformCost,
    WorkerCosts,
)
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Made, Row, Trace

LEAST_RESTED = 3  # batches from resting workers that show what receiving one takes
_CONSUMER: tuple[StageName, ...] = ("wait", "step")
_ORDER: tuple[StageName, ...] = ("dispatch", "pick_up", *AGE_STAGES, *_CONSUMER)


def explain(
    trace: Trace,
    *,
    trial_id: str,
    config: Config,
    window: tuple[int, int] | None = None,
    computes: bool = True,
) -> Explanation:
    """Say where the time of the batches of a window went.

    Its ends are nanoseconds of ``time.perf_counter_ns``: batches that were yielded within count.
    Where the consumer computes nothing between batches, CPU there was spent on letting go of the
    last one. What is missing has a reason under ``unavailable``.

    What a worker's first batch takes belongs to starting it, and is in the time to the first batch
    and in an epoch's restart: modules that the dataset imports and files that it opens when first
    asked. It counts in what the consumer waits for, in ``first_fetch_s``, and else where no worker
    made another one.
    """
    plain = in_window(trace, window)
    rows = [_with_children(row)[0] for row in plain]
    began, ended = window or ((rows[0].asked, rows[-1].yielded) if rows else (0, 0))
    window_s = (ended - began) * 1e-9
    unavailable = dict(trace.unavailable)
    if not rows:
        unavailable["stages"] = "no batch was yielded in the window"
    usual = _started(rows)
    found = {name: spans(name, rows if name in _CONSUMER else usual) for name in _ORDER}
    stages = tuple(_stage(name, found[name]) for name in _ORDER if found[name])
    made = [row for row in usual if row.made is not None]
    if made and any(span.run_queue_ns is None for span in found["fetch"]):
        why = "the kernel reports no run-queue delay here, so it counts as blocked time"
        unavailable["run_queue_s"] = why
    if rows and trace.hooked and not made:
        why = "batches came without their worker's stamps: its worker_init_fn was not called"
        unavailable["fetch"] = why
    samples = _samples(made)
    if made and samples is None:
        unavailable["samples"] = "the dataset is asked for whole batches (__getitems__)"
    rate = len(rows) / window_s if window_s > 0 else 0.0
    ages = [row.yielded - row.made.picked for row in made if row.made is not None]
    firsts = [each.made for each in trace.rows if each.made and _is_a_start(each.made)]
    own, ever = _by_worker(rows), _by_worker(trace.rows)
    return Explanation(
        trial_id=trial_id,
        config=config,
        window_s=window_s,
        batches=len(rows),
        stages=stages,
        samples=samples,
        transforms=_transforms(made, trace.names),
        # Memory, threads and affinity are looked up seldom, and are no matter of a window.
        workers=tuple(
            _worker(worker, each, ever[worker], window_s) for worker, each in sorted(own.items())
        ),
        costs=_costs(made, {} if computes else _let_go(rows)),
        age_s=statistics.fmean(ages) * 1e-9 if ages else None,
        # Little's law: at each place lie rate x mean time batches.
        waiting_batches={
            stage.name: rate * stage.mean_s
            for stage in stages
            if stage.name in {"pick_up", *AGE_STAGES}
        },
        wait_fraction=_wait_fraction(rows, window, window_s),
        main_threads_cpu_cores=_other_threads(rows),
        fetch_threads_cpu_s=(
            None if "fetch_threads_cpu_s" in unavailable else _beside_fetching_s(made)
        ),
        step_cpu_s=_step_cpu_s(rows),
        children_cpu_s=_waited_for_s(plain),
        # They come before the window, and at each epoch's start.
        first_fetch_s=(
            statistics.median(each.fetched - each.picked for each in firsts) * 1e-9
            if firsts
            else None
        ),
        rested_receive_s=None if window is None else _rested_receive_s(trace, window[1]),
        hooked=trace.hooked,
        unavailable=unavailable,
    )


def with_copies(explanation: Explanation, held_s: float, exposed_s: Sequence[float]) -> Explanation:
    """The explanation with copies to the device separated from the step that they stand before.

    A copy held the consuming thread up for a mean of ``held_s``; of some batches the step had to
    wait ``exposed_s`` for it.
    """
    if not exposed_s:
        return explanation
    ordered = sorted(exposed_s)
    copied = Stage(
        name="copy",
        mean_s=statistics.fmean(ordered),
        median_s=statistics.median(ordered),
        p95_s=quantile(ordered, 0.95),
        max_s=ordered[-1],
    )
    stages: list[Stage] = []
    for stage in explanation.stages:
        if stage.name == "step":
            figures = ("mean_s", "median_s", "p95_s", "max_s")
            rest = {name: max(0.0, getattr(stage, name) - held_s) for name in figures}
            stages += [copied, dataclasses.replace(stage, **rest)]
        else:
            stages.append(stage)
    return dataclasses.replace(explanation, stages=tuple(stages))


def in_window(trace: Trace, window: tuple[int, int] | None) -> list[Row]:
    """Rows yielded in a window, in the order of their yields."""
    began, ended = (-math.inf, math.inf) if window is None else window
    return [row for row in trace.rows if began <= row.yielded <= ended]


def _with_children(row: Row) -> tuple[Row, int]:
    """The batch with what its child processes computed as CPU of what waited for them.

    A process that is blocked while its child computes waits for that, and no core is idle by it; or
    it waits for a core itself meanwhile, as where the child was given its own. What is left was
    computed beside it.

    Returns:
        The batch, whose ``children_cpu`` is what is left, and for how long they computed while it
        was blocked.
    """
    made = row.made
    if made is None or made.children_cpu <= 0:
        return row, 0
    fetched, collated = made.fetched - made.picked, made.collated - made.fetched
    left = made.children_cpu
    fetch = min(left, max(0, fetched - made.fetch_cpu))
    collate = min(left - fetch, max(0, collated - made.collate_cpu))
    blocked = min(fetch, fetched - made.fetch_cpu - max(0, made.fetch_run_queue))
    blocked += min(collate, collated - made.collate_cpu - max(0, made.collate_run_queue))
    made = made._replace(
        fetch_cpu=made.fetch_cpu + fetch,
        fetch_run_queue=min(made.fetch_run_queue, max(0, fetched - made.fetch_cpu - fetch)),
        collate_cpu=made.collate_cpu + collate,
        collate_run_queue=min(
            made.collate_run_queue, max(0, collated - made.collate_cpu - collate)
        ),
        children_cpu=left - fetch - collate,
    )
    return dataclasses.replace(row, made=made), max(0, blocked)


def _started(rows: Sequence[Row]) -> Sequence[Row]:
    """Rows without each worker's first batch; all where no worker made another one."""
    later = [row for row in rows if not row.made or not _is_a_start(row.made)]
    return later if any(row.made for row in later) else rows


def _is_a_start(made: Made) -> bool:
    """Whether it is a worker's first batch."""
    return made.worker >= 0 and not made.ordinal


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of ascending values: linear between the two that stand about it."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _mean_s(values: Sequence[int | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.fmean(known) * 1e-9 if known and len(known) == len(values) else None


def _stage(name: StageName, found: Sequence[Span]) -> Stage:
    walls = sorted(span.wall_ns for span in found)
    return Stage(
        name=name,
        mean_s=statistics.fmean(walls) * 1e-9,
        median_s=quantile(walls, 0.5) * 1e-9,
        p95_s=quantile(walls, 0.95) * 1e-9,
        max_s=walls[-1] * 1e-9,
        cpu_s=_mean_s([span.cpu_ns for span in found]),
        run_queue_s=_mean_s([span.run_queue_ns for span in found]),
        io_s=_mean_s([span.io_ns for span in found]),
    )


def _wait_fraction(
    rows: Sequence[Row], window: tuple[int, int] | None, window_s: float
) -> float | None:
    if not rows or window_s <= 0:
        return None
    began = rows[0].asked if window is None else window[0]
    waited = math.fsum(row.yielded - max(row.asked, began) for row in rows) * 1e-9
    return min(1.0, waited / window_s)


def _other_threads(rows: Sequence[Row]) -> float | None:
    """CPU cores of main's other threads, between the first yield and the last."""
    if len(rows) < 2 or rows[-1].yielded <= rows[0].yielded:
        return None
    first, last = rows[0], rows[-1]
    process, own = last.process_cpu - first.process_cpu, last.thread_cpu - first.thread_cpu
    return max(0.0, (process - own) / (last.yielded - first.yielded))


def _beside_fetching_s(made: Sequence[Row]) -> float | None:
    """CPU of the fetching process's other threads for a batch; each may have held the GIL."""
    used = []
    for row in made:
        if row.made is not None and row.made.worker >= 0:
            used.append(row.made.others_cpu)
        elif MISSING not in (row.asked_process_cpu, row.process_cpu, row.next_cpu):
            used.append(max(0, row.process_cpu - row.asked_process_cpu - row.next_cpu))
    return statistics.fmean(used) * 1e-9 if used else None


def _waited_for_s(rows: Sequence[Row]) -> float | None:
    """CPU of child processes while making a batch was blocked."""
    known = [row for row in _started(rows) if row.made and row.made.children_cpu != MISSING]
    return statistics.fmean(_with_children(row)[1] for row in known) * 1e-9 if known else None


def _step_cpu_s(rows: Sequence[Row]) -> float | None:
    """CPU of the whole main process between a batch and the next that is asked for."""
    used = [
        max(0, after.asked_process_cpu - row.process_cpu)
        for row, after in itertools.pairwise(rows)
        if after.epoch == row.epoch and MISSING not in (after.asked_process_cpu, row.process_cpu)
    ]
    return statistics.fmean(used) * 1e-9 if used else None


def _rested_receive_s(trace: Trace, ended_ns: int) -> float | None:
    """Of the batches that were taken in behind the window, when the workers had nothing to do.

    Whoever takes batches there has to see to that (``Explainer.rest``). The lower median: a batch
    that overtook others came from a worker that was busy again.
    """
    rested = [row for row in trace.rows if ended_ns <= row.received != MISSING]
    waits = [max(0, span.wall_ns - (span.cpu_ns or 0)) for span in spans("rebuild", rested)]
    return statistics.median_low(waits) * 1e-9 if len(waits) >= LEAST_RESTED else None


def _samples(made: Sequence[Row]) -> SampleCosts | None:
    """Over all samples of a window; quantiles from those that were kept, each batch's weighing."""
    batches = [row.made for row in made if row.made is not None and row.made.samples]
    if not batches:
        return None
    count = sum(each.samples for each in batches)
    weighed: list[tuple[float, float]] = []  # seconds, and how many samples stand behind them
    for each in batches:
        kept = array("d", each.kept)
        weighed += [(took_s, each.samples / len(kept)) for took_s in kept]
    weighed.sort()
    ends = list(itertools.accumulate(weight for _, weight in weighed))
    slowest: dict[str, int] = {}
    for each in batches:
        for name, took in each.slowest:
            slowest[name] = max(took, slowest.get(name, 0))
    first = sorted(slowest.items(), key=lambda pair: -pair[1])[:10]
    max_s = max(each.worst_ns for each in batches) * 1e-9
    # The kept ones are rounded otherwise than the worst, which none of them exceeds.
    values = [min(value, max_s) for value, _ in weighed]

    def at(share: float) -> float:
        wanted = share * ends[-1]
        return next(v for v, end in zip(values, ends, strict=True) if end >= wanted - 1e-9)

    return SampleCosts(
        count=count,
        mean_s=sum(each.samples_ns for each in batches) / count * 1e-9,
        median_s=at(0.5),
        p95_s=at(0.95),
        p99_s=at(0.99),
        max_s=max_s,
        slowest={name: took * 1e-9 for name, took in first},
    )


def _transforms(made: Sequence[Row], names: Sequence[str]) -> tuple[TransformCost, ...]:
    calls, took, fetch = [0] * len(names), [0] * len(names), 0
    for row in made:
        if row.made is None or len(row.made.chain) != 2 * len(names) or not names:
            continue
        fetch += row.made.fetched - row.made.picked
        calls = list(map(operator.add, calls, row.made.chain[::2]))
        took = list(map(operator.add, took, row.made.chain[1::2]))
    return tuple(
        TransformCost(name=name, mean_s=ns / count * 1e-9, share=ns / fetch if fetch > 0 else 0.0)
        for name, count, ns in zip(names, calls, took, strict=True)
        if count
    )


def _let_go(rows: Sequence[Row]) -> dict[int, int]:
    """CPU of main between a batch and the one yielded before it, by the batch's row (``id``)."""
    return {
        id(after): max(0, after.asked_cpu - row.thread_cpu)
        for row, after in itertools.pairwise(rows)
        if after.epoch == row.epoch
    }


def _costs(made: Sequence[Row], let_go: Mapping[int, int]) -> BatchCosts:
    """Batch by batch, in the order of their indices."""
    rows = sorted(made, key=lambda row: (row.epoch, row.batch))
    fetch, collate = spans("fetch", rows), spans("collate", rows)
    receive, pin = spans("rebuild", rows), spans("pin", rows)
    own = [row.made for row in rows if row.made is not None]
    usual = statistics.fmean(let_go.values()) if let_go else 0.0
    both = list(zip(fetch, collate, strict=True))
    return BatchCosts(
        cpu_s=tuple(((a.cpu_ns or 0) + (b.cpu_ns or 0)) * 1e-9 for a, b in both),
        io_s=tuple((a.waited_ns + b.waited_ns) * 1e-9 for a, b in both),
        run_queue_s=tuple(((a.run_queue_ns or 0) + (b.run_queue_ns or 0)) * 1e-9 for a, b in both),
        put_cpu_s=tuple(
            (each.others_cpu + max(0, each.children_cpu)) * 1e-9 if each.worker >= 0 else 0.0
            for each in own
        ),
        between_cpu_s=tuple(each.between_cpu * 1e-9 if each.worker >= 0 else 0.0 for each in own),
        receive_cpu_s=tuple((span.cpu_ns or 0) * 1e-9 for span in receive) or (0.0,) * len(rows),
        receive_io_s=tuple(span.waited_ns * 1e-9 for span in receive) or (0.0,) * len(rows),
        main_cpu_s=tuple(max(0, row.next_cpu - row.other_cpu) * 1e-9 for row in rows),
        let_go_cpu_s=tuple(let_go.get(id(row), usual) * 1e-9 for row in rows) if let_go else (),
        pin_s=tuple(span.wall_ns * 1e-9 for span in pin) if len(pin) == len(rows) else (),
    )


def _by_worker(rows: Sequence[Row]) -> dict[int, list[Made]]:
    found: dict[int, list[Made]] = defaultdict(list)
    for row in rows:
        if row.made is not None and row.made.worker >= 0:
            found[row.made.worker].append(row.made)
    return {worker: sorted(each, key=lambda m: m.picked) for worker, each in found.items()}


def _worker(
    worker: int, made: Sequence[Made], ever: Sequence[Made], window_s: float
) -> WorkerCosts:
    facts = [each.facts for each in ever if each.facts is not None]
    busy_s = sum(each.collated - each.picked for each in made) * 1e-9
    return WorkerCosts(
        worker=worker,
        batches=len(made),
        busy_fraction=min(1.0, busy_s / window_s) if window_s > 0 else 0.0,
        cpu_cores=_cpu_cores(made),
        threads=max((each.threads for each in facts if each.threads != MISSING), default=None),
        affinity_cpus=next(
            (each.affinity_cpus for each in reversed(facts) if each.affinity_cpus != MISSING), None
        ),
        pss_growth_bytes_per_batch=_growth(ever),
        growing=_growing(ever),
    )


def _cpu_cores(made: Sequence[Made]) -> float | None:
    """CPU of all its threads, while it is the same process: each epoch may start new ones."""
    used = lasted = 0
    for before, after in itertools.pairwise(made):
        if after.ordinal > before.ordinal and after.process_cpu >= before.process_cpu:
            used += after.process_cpu - before.process_cpu
            lasted += after.collated - before.collated
    return used / lasted if lasted > 0 else None


def _growth(made: Sequence[Made]) -> float | None:
    """Slope of private memory over batches, by least squares, of the worker's last process."""
    points: list[tuple[int, int]] = []
    for each in made:
        if points and each.ordinal < points[-1][0]:
            points = []
        if each.facts is not None and each.facts.private_bytes != MISSING:
            points.append((each.ordinal, each.facts.private_bytes))
    # The first quarter of a worker's readings shows caches that fill, not growth.
    points = points[len(points) // 4 :]
    if len(points) < 4:
        return None
    batches, sizes = zip(*points, strict=True)
    if len(set(batches)) < 2:
        return None
    return statistics.linear_regression(batches, sizes).slope


def _growing(made: Sequence[Made]) -> dict[str, float]:
    """Bytes a batch of the containers that grow, of all of the worker's processes together.

    Of short epochs each shows a batch or two. No more than private memory grew by a batch: entries
    may be of one object that all of them share.
    """
    # Of each process: what containers had after which batch, by name; and its memory.
    lives: list[dict[str, list[tuple[int, int]]]] = []
    memory: list[list[tuple[int, int]]] = []
    sizes: dict[str, int] = {}
    last = math.inf
    for each in made:
        if each.ordinal < last:
            lives.append({})
            memory.append([])
        last = each.ordinal
        if each.facts is None:
            continue
        if each.facts.private_bytes != MISSING:
            memory[-1].append((each.ordinal, each.facts.private_bytes))
        for name, entries, entry_bytes in each.facts.kept:
            lives[-1].setdefault(name, []).append((each.ordinal, entries))
            sizes[name] = entry_bytes
    gained, over = (sum(ys[-1][at] - ys[0][at] for ys in memory if ys) for at in (1, 0))
    grown: dict[str, float] = {}
    for name, size in sizes.items():
        found = [life[name] for life in lives if name in life]
        batches, entries = (sum(ys[-1][at] - ys[0][at] for ys in found) for at in (0, 1))
        later = sum(ys[-1][1] - ys[(len(ys) - 1) // 2][1] for ys in found)
        if batches >= 4 and later > 0:
            grown[name] = size * entries / batches
            if over:
                grown[name] = min(grown[name], gained / over)
    first = sorted(grown, key=grown.__getitem__, reverse=True)[:5]
    return {name: grown[name] for name in first if grown[name] > 0}


def timeline(
    trace: Trace, *, trial_id: str, window: tuple[int, int] | None = None, most: int = 4096
) -> Timeline:
    """When each of the first batches of a window was where; 4096 are about 1 MB of JSON.

    Second 0 is the beginning of the window, or of the tracer.
    """
    found = in_window(trace, window)
    rows = sorted(found[:most], key=lambda row: (row.epoch, row.batch))
    began_ns = trace.began_ns if window is None else window[0]
    began_at = trace.began_at + (began_ns - trace.began_ns) * 1e-9

    def column(name: str) -> tuple[float | None, ...]:
        if name in Made._fields:
            stamps = [MISSING if row.made is None else getattr(row.made, name) for row in rows]
        else:
            stamps = [getattr(row, name) for row in rows]
        return tuple(None if each == MISSING else (each - began_ns) * 1e-9 for each in stamps)

    names = [field.name for field in dataclasses.fields(Timeline) if field.name.endswith("_s")]
    columns: dict[str, Any] = {name: column(name.removesuffix("_s")) for name in names}
    return Timeline(
        trial_id=trial_id,
        began_at=datetime.fromtimestamp(began_at, UTC).isoformat(),
        batch=tuple(row.batch for row in rows),
        epoch=tuple(row.epoch for row in rows),
        worker=tuple(-1 if row.made is None else row.made.worker for row in rows),
        dropped=len(found) - len(rows) + (trace.dropped if window is None else 0),
        **columns,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One batch in one stage, in nanoseconds."""

    wall_ns: int  # from its beginning to its end
    cpu_ns: int | None = None  # CPU of the thread that did it; ``None`` if it isn't known apart
    run_queue_ns: int | None = None  # that thread's waiting for a core

    @property
    def io_ns(self) -> int | None:
        """True waiting: neither on a core nor waiting for one; ``None`` if that isn't known."""
        return None if self.run_queue_ns is None else self.waited_ns

    @property
    def waited_ns(self) -> int:
        """As ``io_ns``, waiting for a core included where that isn't known."""
        return max(0, self.wall_ns - (self.cpu_ns or 0) - (self.run_queue_ns or 0))


_STAMPS: Mapping[str, tuple[str, ...]] = {
    "dispatch": ("drawing", "dispatched"),
    "queue": ("serialised", "received"),
    "pin": ("rebuilt", "pinned", "pin_cpu"),
    "wait": ("asked", "yielded", "next_cpu"),
    "pick_up": ("dispatched", "made.picked"),
    "fetch": ("made.picked", "made.fetched", "made.fetch_cpu", "made.fetch_run_queue"),
    "collate": ("made.fetched", "made.collated", "made.collate_cpu", "made.collate_run_queue"),
    # From the worker's handing it over: the feeder thread's waiting for the GIL belongs to it.
    "serialise": ("made.collated", "serialised", "serialise_cpu", "serialise_run_queue"),
    "rebuild": ("received", "rebuilt", "receive_cpu", "receive_run_queue"),
}
"""Where a stage begins and ends in a row; CPU and run-queue delay of the thread, where known."""


def spans(name: StageName, rows: Sequence[Row]) -> list[Span]:
    """What a stage took, for each row that has it; ``step`` needs them in the order of yields."""
    if name == "step":
        return [
            Span(max(0, after.asked - row.left), after.asked_cpu - row.thread_cpu)
            for row, after in itertools.pairwise(rows)
            if after.epoch == row.epoch
        ]
    # These a batch has without stamps of its making, too.
    if name not in ("dispatch", "queue", "pin", "wait"):
        in_main = 0 if name == "pick_up" else -1  # which takes up the indices that it draws
        rows = [row for row in rows if row.made is not None and row.made.worker >= in_main]
    if name == "hold_up":
        ready = [(row.pinned, row.rebuilt, row.made.collated) for row in rows if row.made]
        begins = [next(each for each in stamps if each != MISSING) for stamps in ready]
        return [Span(max(0, row.yielded - at)) for row, at in zip(rows, begins, strict=True)]
    found = map(operator.attrgetter(*_STAMPS[name]), rows) if name in _STAMPS else ()
    return [
        Span(max(0, ended - began), *(None if each == MISSING else each for each in used))
        for began, ended, *used in found
        if MISSING not in (began, ended)
    ]
