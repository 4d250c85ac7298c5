"""Memory that grows, that would not fit, and shared memory that is too small."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dlprof.advise.findings.claims import Claim, settings_fix
from dlprof.advise.findings.view import View
from dlprof.advise.wrong_data import failed_by
from dlprof.records import Config, Failure, FailureKind, Fix
from dlprof.units import format_bytes

_LEAST_GROWTH = 16 << 10
"""Bytes per batch below which a slope is noise of the allocator."""

_LEAST_SEEN = 48 << 20
"""Growth of each worker between trials, from which it is believed where it is steady: pools of
threads were seen to fill up by 46 MB within 540 batches."""

_SUSPECTED = 4 << 20
"""Growth of all processes between short trials that is more than the allocator's noise."""

_HINTED = 0.5
"""Share of ``_LEAST_SEEN`` that short trials must promise, since their slope has its luck."""

_BATCHES_OF_NOISE = 2.0
"""Batches more or less in the queues that trials of one configuration differ by."""

ENOUGH_BATCHES = 200
"""Batches of each worker after which memory has filled up: seen were 120, in which a worker grew by
73 MB and then no more."""

_FILLED_UP = 112 << 20
"""Growth of each worker that is no filling up, whatever the batches: half as much again as the most
that was seen of that."""

_STEADY = 0.85
"""Correlation of memory with batches, from which it does."""

_SHORTER = 0.75
_LATE = 0.6
"""Share of its first slope that memory which goes on growing has in the end."""

_SOON_SHARE = 0.1
"""Share of the memory to be had that an epoch, or an hour, would take."""

_HOUR_S = 3600.0
_NEARLY = 0.9
_LEAST_BATCHES = 8
_SHM_ROOM = 0.8

_GROWTH_CODE = """# one array: Python objects are copied page by page as workers count references
self.paths = torch.tensor(...)  # or numpy arrays, or one bytes object with offsets"""
_SHM_CODE = "docker run --shm-size=8g ...   # Kubernetes: an emptyDir of medium Memory at /dev/shm"


def growth(view: View) -> Claim | None:
    """Memory per worker grows."""
    slope = growth_per_batch(view)
    if slope is None or slope < _LEAST_GROWTH or not view.rate:
        return None
    ahead = max(view.epoch_batches or 0, view.rate * _HOUR_S)
    room = view.evidence.machine.memory_available_bytes or view.evidence.machine.memory_bytes
    if room is None or slope * ahead < _SOON_SHARE * room:
        return None
    return Claim(
        title="Memory of the workers grows",
        explanation=f"Each batch leaves {format_bytes(slope)} behind, "
        f"{format_bytes(slope * view.rate)} a second in all; {format_bytes(room)} can be had.",
        cost=min(1.0, slope * ahead / room),
        figures={
            "growth_bytes_per_batch": slope,
            "growth_bytes_per_s": slope * view.rate,
            "memory_available_bytes": room,
            "seconds_to_full": room / (slope * view.rate),
        },
        fix=Fix(
            text="Look for what the data set keeps (a list or cache that only grows), and keep "
            "its index in tensors or arrays instead of Python objects.",
            code=_GROWTH_CODE,
        ),
    )


def growth_per_batch(view: View) -> float | None:
    """Bytes that a batch leaves behind, all processes together; ``None`` where nothing is sure.

    By what longer trials had in the end more than shorter ones, or else by the slope of the
    workers' private memory.
    """
    points = memory_points(view)
    if len(points) > 1:
        return _slope(points) if _grows(view, points) else None
    workers = view.explained.workers if view.explained is not None else ()
    slopes = [w.pss_growth_bytes_per_batch for w in workers]
    known = [slope for slope in slopes if slope is not None]
    if not known or view.explained is None or view.explained.batches < _LEAST_BATCHES:
        return None
    slope = statistics.median(known)
    return slope if slope * view.explained.batches >= _LEAST_SEEN else None


def memory_points(view: View) -> list[tuple[int, int]]:
    """Batches and memory in the end, of the configuration's own trials, by batches."""
    trials = view.evidence.plain("present")
    return sorted(
        (t.window_batches, t.usage.pss_peak_bytes)
        for t in trials
        if t.usage.pss_peak_bytes is not None
    )


def may_grow(view: View, batches: float) -> bool:
    """Whether a trial of so many batches is worth its time.

    The longest so far had most memory, and at that rate this one would show it to be growth.
    """
    points = memory_points(view)
    if len(points) < 2 or points[-1][0] - points[0][0] < _LEAST_BATCHES:
        return False
    grown = points[-1][1] - points[0][1]
    expected = grown / (points[-1][0] - points[0][0]) * (batches - points[0][0])
    return grown >= _SUSPECTED and expected >= _HINTED * _LEAST_SEEN * max(1, view.workers)


def _grows(view: View, points: Sequence[tuple[int, int]]) -> bool:
    """Whether the growth is larger than what queues and allocators make of it, and goes on."""
    processes = max(1, view.workers)
    grown = points[-1][1] - points[0][1]
    if grown < max(_LEAST_SEEN * processes, _BATCHES_OF_NOISE * (batch_bytes(view) or 0.0)):
        return False
    if points[-1][0] - points[0][0] < _LEAST_BATCHES:
        return False
    if points[-1][0] < ENOUGH_BATCHES * processes:
        return grown >= _FILLED_UP * processes
    return statistics.correlation(*zip(*points, strict=True)) >= _STEADY and _goes_on(points)


def _goes_on(points: Sequence[tuple[int, int]]) -> bool:
    """Whether memory grew as fast in the longest trial's second half: what fills up levels off."""
    batches, most = points[-1]
    shorter = [point for point in points if point[0] <= _SHORTER * batches]
    if not shorter:
        return False
    late = (most - shorter[-1][1]) / (batches - shorter[-1][0])
    if len(shorter) < 2 or shorter[-1][0] == shorter[0][0]:
        return late >= _LATE * _slope(points)
    return late >= _LATE * _slope(shorter)


def _slope(points: Sequence[tuple[int, int]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def limit(view: View) -> Claim | None:
    """The setting does not fit into memory, or only just."""
    failure = _failure(view, "out_of_memory")
    machine = view.evidence.machine
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    room = min((size for size in sizes if size), default=None)
    used = view.usage.pss_peak_bytes
    near = used is not None and room is not None and used >= _NEARLY * room
    if failure is None and not near:
        return None
    fewer = _smaller(view.config)
    needs = "" if used is None else f"It used {format_bytes(used)}. "
    told = "" if failure is None else f"{failure.message} "
    return Claim(
        title="The setting does not fit into memory",
        explanation=f"{told}{needs}{format_bytes(room)} is what there is.",
        cost=1.0 if failure is not None else 0.5,
        figures={"memory_bytes": room, "pss_peak_bytes": used, "failure": failure and failure.kind},
        fix=settings_fix(
            view,
            fewer,
            f"Use fewer workers or shallower queues (num_workers={fewer.num_workers}), or keep "
            "the data set's index in tensors instead of Python objects.",
        ),
    )


def shared(view: View) -> Claim | None:
    """Shared memory is too small for full queues."""
    failure = _failure(view, "shared_memory")
    room, batch = view.evidence.machine.shm_available_bytes, batch_bytes(view)
    need = view.config.queued_batches * batch if batch is not None and view.workers else None
    over = room is not None and need is not None and need > room
    if failure is None and not over:
        return None
    smaller = fitting(view)
    return Claim(
        title="Shared memory is too small",
        explanation=f"Full queues hold {format_bytes(need)} in /dev/shm, which has "
        f"{format_bytes(room)} to give." + ("" if failure is None else f" {failure.message}"),
        cost=1.0,
        figures={
            "shm_needed_bytes": need,
            "shm_available_bytes": room,
            "batch_bytes": batch,
            "failure": failure and failure.kind,
        },
        fix=dataclasses.replace(
            settings_fix(
                view,
                smaller,
                "Give /dev/shm more room, or let fewer batches wait in it: "
                f"{smaller.text_naming('prefetch_factor')}.",
            ),
            code=_SHM_CODE,
        ),
    )


def batch_bytes(view: View) -> float | None:
    """Tensor data of a batch: as measured, calibrated or probed."""
    sizes = [trial.batch_bytes for trial in view.evidence.trials() if trial.batch_bytes]
    if sizes:
        return statistics.median(sizes)
    calibration = view.evidence.calibration
    if calibration is not None and calibration.batch_bytes:
        return calibration.batch_bytes
    return view.evidence.target.batch_bytes


def fitting(view: View) -> Config:
    """The most workers and the deepest queues that shared memory has room for."""
    room, batch = view.evidence.machine.shm_available_bytes, batch_bytes(view)
    if room is None or not batch:
        return _smaller(view.config)
    most = int(_SHM_ROOM * room / batch) - 1
    for workers in range(view.workers, 0, -1):
        if most >= workers:
            depth = min(view.config.prefetch_factor or 2, most // workers)
            return dataclasses.replace(view.config, num_workers=workers, prefetch_factor=depth)
    return dataclasses.replace(view.config, num_workers=0).canonical()


def _smaller(config: Config) -> Config:
    """Half the workers, at the shallowest queues."""
    depth = 1 if config.num_workers else None
    half = dataclasses.replace(config, num_workers=config.num_workers // 2, prefetch_factor=depth)
    return half.canonical()


def _failure(view: View, kind: FailureKind) -> Failure | None:
    """A failure of the configuration itself, or of any trial where it was never run."""
    found = failed_by(view.evidence.trials("present") or view.evidence.trials(), kind)
    return found[0].failure if found else None
