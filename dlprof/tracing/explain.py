"""From a trace and a window to an explanation: pure, without torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from dlprof.records import Config
from dlprof.records.stages import (
    AGE_STAGES,
    BatchCosts,
    Explanation,
    SampleCosts,
    Stage,
    StageName,
    TransformCost,
)
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.spans import Span, spans
from dlprof.tracing.trace import Made, Row, Trace
from dlprof.tracing.workers import worker_costs

_NS = 1e-9
LEAST_RESTED = 3
"""Batches from resting workers that show what receiving one takes."""
_ORDER: tuple[StageName, ...] = ("dispatch", "pick_up", *AGE_STAGES, "wait", "step")
_NO_RUN_QUEUE = "the kernel reports no run-queue delay here, so it counts as blocked time"
_WHOLE_BATCHES = "the dataset is asked for whole batches (__getitems__)"
_NO_STAMPS = "batches came without their worker's stamps: its worker_init_fn was not called"
_NO_WINDOW = "no batch was yielded in the window"


def explain(
    trace: Trace,
    *,
    trial_id: str,
    config: Config,
    window: tuple[int, int] | None = None,
    computes: bool = True,
) -> Explanation:
    """Say where the time of the batches of a window went.

    Args:
        trace: From a tracer.
        trial_id: The trial that it belongs to.
        config: What ran.
        window: Its ends in nanoseconds of ``time.perf_counter_ns``: batches that were yielded
            within count; ``None`` takes all.
        computes: Whether the consumer may compute between batches; where it doesn't, CPU there
            was spent on letting go of the last one.

    Returns:
        The explanation; what is missing has a reason under ``unavailable``.
    """
    rows = in_window(trace, window)
    window_s = _length_s(rows, window)
    unavailable = dict(trace.unavailable)
    if not rows:
        unavailable["stages"] = _NO_WINDOW
    found = {name: spans(name, rows) for name in _ORDER}
    stages = tuple(_stage(name, found[name]) for name in _ORDER if found[name])
    made = [row for row in rows if row.made is not None]
    if made and any(span.run_queue_ns is None for span in found["fetch"]):
        unavailable["run_queue_s"] = _NO_RUN_QUEUE
    if rows and trace.hooked and not made:
        unavailable["fetch"] = _NO_STAMPS
    samples = _samples(made)
    if made and samples is None:
        unavailable["samples"] = _WHOLE_BATCHES
    rate = len(rows) / window_s if window_s > 0 else 0.0
    ages = [row.yielded - row.made.picked for row in made if row.made is not None]
    return Explanation(
        trial_id=trial_id,
        config=config,
        window_s=window_s,
        batches=len(rows),
        stages=stages,
        samples=samples,
        transforms=_transforms(made, trace.names),
        workers=worker_costs(made, window_s, seen=trace.rows),
        costs=_costs(made, {} if computes else _let_go(rows)),
        age_s=statistics.fmean(ages) * _NS if ages else None,
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
        rested_receive_s=None if window is None else _rested_receive_s(trace, window[1]),
        hooked=trace.hooked,
        unavailable=unavailable,
    )


def with_copies(explanation: Explanation, held_s: float, exposed_s: Sequence[float]) -> Explanation:
    """The explanation with copies to the device separated from the step that they stand before.

    Args:
        explanation: Whose step is all that the consumer did.
        held_s: Mean seconds in which a copy held the consuming thread up.
        exposed_s: Of some batches, seconds in which the step had to wait for the copy.
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
            stages.append(copied)
        stages.append(_shortened(stage, held_s) if stage.name == "step" else stage)
    return dataclasses.replace(explanation, stages=tuple(stages))


def _shortened(stage: Stage, by_s: float) -> Stage:
    return dataclasses.replace(
        stage,
        mean_s=max(0.0, stage.mean_s - by_s),
        median_s=max(0.0, stage.median_s - by_s),
        p95_s=max(0.0, stage.p95_s - by_s),
        max_s=max(0.0, stage.max_s - by_s),
    )


def in_window(trace: Trace, window: tuple[int, int] | None) -> list[Row]:
    """Rows yielded in a window, in the order of their yields."""
    began, ended = (-math.inf, math.inf) if window is None else window
    return [row for row in trace.rows if began <= row.yielded <= ended]


def _length_s(rows: Sequence[Row], window: tuple[int, int] | None) -> float:
    if window is not None:
        return (window[1] - window[0]) * _NS
    return (rows[-1].yielded - rows[0].asked) * _NS if rows else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of ascending values: linear between the two that stand about it."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _mean_s(values: Sequence[int | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.fmean(known) * _NS if known and len(known) == len(values) else None


def _stage(name: StageName, found: Sequence[Span]) -> Stage:
    walls = sorted(span.wall_ns for span in found)
    return Stage(
        name=name,
        mean_s=statistics.fmean(walls) * _NS,
        median_s=quantile(walls, 0.5) * _NS,
        p95_s=quantile(walls, 0.95) * _NS,
        max_s=walls[-1] * _NS,
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
    waited = math.fsum(row.yielded - max(row.asked, began) for row in rows) * _NS
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
    return statistics.fmean(used) * _NS if used else None


def _step_cpu_s(rows: Sequence[Row]) -> float | None:
    """CPU of the whole main process between a batch and the next that is asked for."""
    used = [
        max(0, after.asked_process_cpu - row.process_cpu)
        for row, after in itertools.pairwise(rows)
        if after.epoch == row.epoch and MISSING not in (after.asked_process_cpu, row.process_cpu)
    ]
    return statistics.fmean(used) * _NS if used else None


def _rested_receive_s(trace: Trace, ended_ns: int) -> float | None:
    """Of the batches that were taken in behind the window, when the workers had nothing to do.

    Whoever takes batches there has to see to that (``Explainer.rest``). The lower median: a batch
    that overtook others came from a worker that was busy again.
    """
    rested = [row for row in trace.rows if ended_ns <= row.received != MISSING]
    waits = [max(0, span.wall_ns - (span.cpu_ns or 0)) for span in spans("rebuild", rested)]
    return statistics.median_low(waits) * _NS if len(waits) >= LEAST_RESTED else None


def _samples(made: Sequence[Row]) -> SampleCosts | None:
    """Over all samples of a window; quantiles from those that were kept, each batch's weighing."""
    batches = [row.made for row in made if row.made is not None and row.made.samples]
    if not batches:
        return None
    count = sum(each.samples for each in batches)
    weighed = sorted(itertools.chain.from_iterable(map(_kept, batches)))
    ends = list(itertools.accumulate(weight for _, weight in weighed))
    slowest: dict[str, int] = {}
    for each in batches:
        for name, took in each.slowest:
            slowest[name] = max(took, slowest.get(name, 0))
    first = sorted(slowest.items(), key=lambda pair: -pair[1])[:10]
    max_s = max(each.worst_ns for each in batches) * _NS
    # The kept ones are rounded otherwise than the worst, which none of them exceeds.
    at = _weighed_quantile([min(value, max_s) for value, _ in weighed], ends)
    return SampleCosts(
        count=count,
        mean_s=sum(each.samples_ns for each in batches) / count * _NS,
        median_s=at(0.5),
        p95_s=at(0.95),
        p99_s=at(0.99),
        max_s=max_s,
        slowest={name: took * _NS for name, took in first},
    )


def _kept(made: Made) -> list[tuple[float, float]]:
    """Seconds and weights."""
    kept = array("d", made.kept)
    return [(each, made.samples / len(kept)) for each in kept]


def _weighed_quantile(values: Sequence[float], ends: Sequence[float]) -> Callable[[float], float]:
    def at(share: float) -> float:
        wanted = share * ends[-1]
        return next(v for v, end in zip(values, ends, strict=True) if end >= wanted - 1e-9)

    return at


def _transforms(made: Sequence[Row], names: Sequence[str]) -> tuple[TransformCost, ...]:
    calls: dict[int, int] = defaultdict(int)
    took: dict[int, int] = defaultdict(int)
    fetch = 0
    for row in made:
        if row.made is None or len(row.made.chain) != 2 * len(names) or not names:
            continue
        fetch += row.made.fetched - row.made.picked
        for place in range(len(names)):
            calls[place] += row.made.chain[2 * place]
            took[place] += row.made.chain[2 * place + 1]
    return tuple(
        TransformCost(
            name=name,
            mean_s=took[place] / calls[place] * _NS,
            share=took[place] / fetch if fetch > 0 else 0.0,
        )
        for place, name in enumerate(names)
        if calls[place]
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
        cpu_s=tuple(((a.cpu_ns or 0) + (b.cpu_ns or 0)) * _NS for a, b in both),
        io_s=tuple((a.waited_ns + b.waited_ns) * _NS for a, b in both),
        run_queue_s=tuple(((a.run_queue_ns or 0) + (b.run_queue_ns or 0)) * _NS for a, b in both),
        put_cpu_s=tuple(each.others_cpu * _NS if each.worker >= 0 else 0.0 for each in own),
        between_cpu_s=tuple(each.between_cpu * _NS if each.worker >= 0 else 0.0 for each in own),
        receive_cpu_s=tuple((span.cpu_ns or 0) * _NS for span in receive) or (0.0,) * len(rows),
        receive_io_s=tuple(span.waited_ns * _NS for span in receive) or (0.0,) * len(rows),
        main_cpu_s=tuple(max(0, row.next_cpu - row.other_cpu) * _NS for row in rows),
        let_go_cpu_s=tuple(let_go.get(id(row), usual) * _NS for row in rows) if let_go else (),
        pin_s=tuple(span.wall_ns * _NS for span in pin) if len(pin) == len(rows) else (),
    )
