"""What each worker did in a window."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from dlprof.records.stages import WorkerCosts
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Made, Row


def worker_costs(
    rows: Sequence[Row], window_s: float, *, seen: Sequence[Row] | None = None
) -> tuple[WorkerCosts, ...]:
    """One entry per worker, by number; none where the main process loads.

    Args:
        rows: Of the window, with their makers' stamps.
        window_s: Its length.
        seen: All rows, those before the window too: memory, threads and affinity are looked up
            seldom, and are no matter of a window. ``None`` for the same rows.
    """
    made, ever = _by_worker(rows), _by_worker(rows if seen is None else seen)
    return tuple(
        _costs(worker, made[worker], ever.get(worker, made[worker]), window_s)
        for worker in sorted(made)
    )


def _by_worker(rows: Sequence[Row]) -> dict[int, list[Made]]:
    """The batches of each worker, in the order in which it made them."""
    found: dict[int, list[Made]] = defaultdict(list)
    for row in rows:
        if row.made is not None and row.made.worker >= 0:
            found[row.made.worker].append(row.made)
    return {worker: sorted(each, key=lambda m: m.picked) for worker, each in found.items()}


def _costs(worker: int, made: Sequence[Made], ever: Sequence[Made], window_s: float) -> WorkerCosts:
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
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None


def _growing(made: Sequence[Made]) -> dict[str, float]:
    """Bytes a batch of the containers that grow, of the worker's last process."""
    points: dict[str, list[tuple[int, int]]] = {}
    sizes: dict[str, int] = {}
    last = -1
    for each in made:
        if each.ordinal < last:
            points.clear()
        last = each.ordinal
        for name, entries, entry_bytes in () if each.facts is None else each.facts.kept:
            points.setdefault(name, []).append((each.ordinal, entries))
            sizes[name] = entry_bytes
    grown = {
        name: sizes[name] * (ys[-1][1] - ys[0][1]) / (ys[-1][0] - ys[0][0])
        for name, ys in points.items()
        if ys[-1][0] - ys[0][0] >= 4 and ys[-1][1] > ys[(len(ys) - 1) // 2][1]
    }
    first = sorted(grown, key=grown.__getitem__, reverse=True)[:5]
    return {name: grown[name] for name in first if grown[name] > 0}
