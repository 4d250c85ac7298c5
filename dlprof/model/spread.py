"""How much what batches cost varies: from batch to batch, and from trial to trial."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from dlprof.records import BatchCosts, Explanation

MIN_BATCHES = 10
"""Fewer batches than this say nothing of their spread."""

_BLOCKS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How much the cost of fetching varies; ``None`` where too few batches tell."""

    count: int
    cv: float | None
    error: float | None
    run_queue: float | None

    @classmethod
    def of(cls, some: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> Fetching:
        """From instrumented trials and what their batches cost, by trial."""
        took = [fetch_s(clean[each.trial_id]) for each in some]
        whole_s = math.fsum(itertools.chain.from_iterable(took))
        count = sum(map(len, took))
        if count < MIN_BATCHES or whole_s <= 0:
            return cls(count=count, cv=None, error=None, run_queue=None)
        series = _relative(took, [each.config.num_workers > 0 for each in some])
        blocks = list(itertools.chain.from_iterable(map(_block_means, series)))
        waits = (clean[each.trial_id].run_queue_s for each in some)
        queued = math.fsum(itertools.chain.from_iterable(waits))
        return cls(
            count=count,
            cv=statistics.stdev(itertools.chain.from_iterable(series)),
            error=statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 1.0,
            run_queue=queued / (queued + whole_s),
        )


def _relative(took: Sequence[Sequence[float]], fed: Sequence[bool]) -> list[list[float]]:
    """Costs over their mean: of the trials with workers, or of those without.

    Main may fetch at another price than workers do, which is the spread of neither.

    Args:
        took: Seconds of each batch, by trial.
        fed: Whether a trial had workers.
    """
    pooled: dict[bool, list[float]] = {}
    for costs, kind in zip(took, fed, strict=True):
        pooled.setdefault(kind, []).extend(costs)
    means = {kind: math.fsum(costs) / max(1, len(costs)) for kind, costs in pooled.items()}
    return [
        [cost_s / means[kind] if means[kind] > 0 else 1.0 for cost_s in costs]
        for costs, kind in zip(took, fed, strict=True)
    ]


def drift_of(some: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> float | None:
    """How far apart trials lie whose batches should cost the same CPU time.

    Those with workers are compared with each other, and those without; what their own luck explains
    is taken off.

    Args:
        some: Instrumented trials.
        clean: What their batches cost, by trial.

    Returns:
        Standard deviation of the logarithm of what a batch costs, waiting included, which is taken
        to stay as it is; ``None`` of a single trial of each kind.
    """
    fed = [clean[each.trial_id].cpu_s for each in some if each.config.num_workers]
    alone = [clean[each.trial_id].cpu_s for each in some if not each.config.num_workers]
    groups = [group for group in (fed, alone) if len(group) > 1]
    if not groups:
        return None
    beyond = math.fsum(map(_squares_beyond_luck, groups)) / sum(len(group) - 1 for group in groups)
    return _share_of_cpu(clean[each.trial_id] for each in some) * math.sqrt(max(0.0, beyond))


def _squares_beyond_luck(group: Sequence[Sequence[float]]) -> float:
    """Sum of the squares of how far trials lie from their middle, less what is expected by luck."""
    logs, lucks = [], []
    for costs in group:
        mean, blocks = statistics.fmean(costs), _block_means(costs)
        if mean <= 0:
            continue
        luck = statistics.variance(blocks) / len(blocks) if len(blocks) > 1 else 0.0
        logs.append(math.log(mean))
        lucks.append(luck / mean**2)
    if len(logs) < 2:
        return 0.0
    return (len(logs) - 1) * (statistics.variance(logs) - statistics.fmean(lucks))


def _share_of_cpu(some: Iterable[BatchCosts]) -> float:
    both = [(math.fsum(each.cpu_s), math.fsum(each.io_s)) for each in some]
    cpu, whole = math.fsum(c for c, _ in both), math.fsum(c + w for c, w in both)
    return cpu / whole if whole > 0 else 0.0


def fetch_s(costs: BatchCosts) -> list[float]:
    """CPU time and waiting of each batch."""
    io = costs.io_s or (0.0,) * len(costs.cpu_s)
    return [a + b for a, b in zip(costs.cpu_s, io, strict=True)]


def _block_means(values: Sequence[float]) -> list[float]:
    """Means over equal blocks of batches that follow each other."""
    size = max(1, len(values) // _BLOCKS)
    starts = range(0, len(values) - size + 1, size)
    return [math.fsum(values[start : start + size]) / size for start in starts]
