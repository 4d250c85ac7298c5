"""Memory that grows, that would not fit, and shared memory that is too small."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.view import View
from dlprof.advise.wrong_data import failed_by
from dlprof.records import Failure, FailureKind
from dlprof.units import format_bytes

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

_SHORTER, _LATE = 0.75, 0.6
"""Share of the longest trial's batches up to which others are shorter; and of its first slope that
memory which goes on growing has beyond these."""

_SOON_SHARE, _HOUR_S = 0.1, 3600.0
"""Share of the memory to be had that an epoch, or an hour, would take."""

_NAMED = 0.2
"""Share of the growth that a container must explain to be named."""

_NEARLY = 0.9
_LEAST_BATCHES = 8


def growth(view: View) -> Claim | None:
    """Memory per worker grows."""
    slope, machine = growth_per_batch(view), view.evidence.machine
    room = machine.memory_available_bytes or machine.memory_bytes
    if slope is None or slope <= 0 or not view.rate or room is None:
        return None
    ahead, each_s = slope * max(view.epoch_batches or 0, view.rate * _HOUR_S), slope * view.rate
    if ahead < _SOON_SHARE * room:
        return None
    grown = growing(view)
    named = next((name for name, size in grown.items() if size >= _NAMED * slope), None)
    return Claim(
        "Memory of the workers grows" + (f": {named}" if named else ""),
        f"Memory grows by {format_bytes(slope)} a batch, {format_bytes(each_s)} a second; "
        f"{format_bytes(room)} is available. {_what_grows(view, named, grown)}",
        ahead / room,
        given={
            "growing": grown,
            "growth_bytes_per_batch": slope,
            "growth_bytes_per_s": each_s,
            "memory_available_bytes": room,
            "seconds_to_full": room / each_s,
        },
        fix=f"Keep nothing per sample in {named}, or bound it."
        if named
        else "Find what the dataset keeps, such as a list or cache that only grows. Keep its "
        "index in tensors or arrays instead of Python objects.",
        code="""# one array: Python objects are copied page by page as workers count references
self.paths = torch.tensor(...)  # or numpy arrays, or one bytes object with offsets""",
    )


def growing(view: View) -> dict[str, float]:
    """Bytes a batch by which containers of the dataset grow: medians over workers, most first."""
    workers = () if view.explained is None else view.explained.workers
    sizes: dict[str, list[float]] = {}
    for worker in workers:
        for name, size in worker.growing.items():
            sizes.setdefault(name, []).append(size)
    middle = {name: statistics.median(found) for name, found in sizes.items()}
    return {name: middle[name] for name in sorted(middle, key=lambda each: -middle[each])}


def _what_grows(view: View, named: str | None, grown: Mapping[str, float]) -> str:
    if named is not None:
        return f"{named} grows by {format_bytes(grown[named])} a batch."
    weight = view.evidence.weight
    first = None if weight is None else weight.heaviest
    if first is not None and first.object_bytes >= _LEAST_SEEN:
        return (
            f"No attribute of the dataset grows that much; {first.name} has "
            f"{format_bytes(first.object_bytes)} of Python objects, whose pages workers copy."
        )
    return "No attribute of the dataset, global of its module or lru_cache grows that much."


def growth_per_batch(view: View) -> float | None:
    """Bytes that a batch leaves behind, all processes together; ``None`` where nothing is sure.

    By what longer trials had in the end more than shorter ones, or else by the slope of the
    workers' private memory.
    """
    points, explained = _memory(view), view.explained
    if len(points) > 1:
        return _slope(points) if _grows(view, points) else None
    slopes = [w.pss_growth_bytes_per_batch for w in (explained.workers if explained else ())]
    known = [slope for slope in slopes if slope is not None]
    if not known or explained is None or explained.batches < _LEAST_BATCHES:
        return None
    slope = statistics.median(known)
    return slope if slope * explained.batches >= _LEAST_SEEN else None


def may_grow(view: View, batches: float) -> bool:
    """Whether a trial of so many batches is worth its time.

    The longest so far had most memory, and at that rate this one would show it to be growth.
    """
    points = _memory(view)
    if len(points) < 2 or points[-1][0] - points[0][0] < _LEAST_BATCHES:
        return False
    grown = points[-1][1] - points[0][1]
    expected = grown / (points[-1][0] - points[0][0]) * (batches - points[0][0])
    if grown < _SUSPECTED:
        return False
    return expected >= _HINTED * _LEAST_SEEN * max(1, view.workers)


def _memory(view: View) -> list[tuple[int, int]]:
    """Batches and memory in the end, of the configuration's own trials, by batches."""
    trials = view.evidence.plain("present")
    points = ((trial.window_batches, trial.usage.pss_peak_bytes) for trial in trials)
    return sorted((batches, held) for batches, held in points if held is not None)


def _grows(view: View, points: Sequence[tuple[int, int]]) -> bool:
    """Whether the growth is larger than what queues and allocators make of it, and goes on."""
    processes = max(1, view.workers)
    grown = points[-1][1] - points[0][1]
    if grown < max(_LEAST_SEEN * processes, _BATCHES_OF_NOISE * (view.batch_bytes or 0.0)):
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
    several = shorter[-1][0] > shorter[0][0]
    return late >= _LATE * _slope(shorter if several else points)


def _slope(points: Sequence[tuple[int, int]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def limit(view: View) -> Claim | None:
    """The setting does not fit into memory, or only just."""
    failure, machine = _failure(view, "out_of_memory"), view.evidence.machine
    sizes = (machine.memory_limit_bytes, machine.memory_bytes)
    room = min((size for size in sizes if size), default=None)
    used = view.usage.pss_peak_bytes
    if failure is None and (used is None or room is None or used < _NEARLY * room):
        return None
    fewer = view.having(num_workers=view.workers // 2, prefetch_factor=1)
    needs = "" if used is None else f"It used {format_bytes(used)}. "
    told = "" if failure is None else f"{failure.message} "
    return Claim(
        "The setting does not fit into memory",
        f"{told}{needs}The limit is {format_bytes(room)}.",
        1.0 if failure is not None else 0.5,
        "",
        {"memory_bytes": room, "pss_peak_bytes": used, "failure": failure and failure.kind},
        f"Use fewer workers or shallower queues (num_workers={fewer.num_workers}), or keep the "
        "dataset's index in tensors instead of Python objects.",
        config=fewer,
    )


def shared(view: View) -> Claim | None:
    """Shared memory is too small for full queues."""
    failure, room = _failure(view, "shared_memory"), view.evidence.machine.shm_available_bytes
    need = view.shared_bytes(view.config) or None
    if failure is None and (room is None or need is None or need <= room):
        return None
    smaller = view.having(num_workers=view.workers // 2, prefetch_factor=1)
    if room is not None and need:  # the most workers, and the deepest queues, that it has room for
        several = (
            view.having(num_workers=workers, prefetch_factor=depth)
            for workers in range(view.workers, 0, -1)
            for depth in range(view.config.prefetch_factor or 2, 0, -1)
        )
        smaller = next(filter(view.fits_shared_memory, several), view.having(num_workers=0))
    return Claim(
        "Shared memory is too small",
        f"Full queues need {format_bytes(need)} of /dev/shm, and {format_bytes(room)} is "
        "available." + ("" if failure is None else f" {failure.message}"),
        1.0,
        "shm_needed_bytes shm_available_bytes batch_bytes",
        {"shm_needed_bytes": need, "failure": failure and failure.kind},
        "Give /dev/shm more room, or let fewer batches wait in it: "
        f"{smaller.text_naming('prefetch_factor')}.",
        "docker run --shm-size=8g ...   # Kubernetes: an emptyDir of medium Memory at /dev/shm",
        smaller,
    )


def _failure(view: View, kind: FailureKind) -> Failure | None:
    """A failure of the configuration itself, or of any trial where it was never run."""
    found = failed_by(view.evidence.trials("present") or view.evidence.trials(), kind)
    return found[0].failure if found else None
