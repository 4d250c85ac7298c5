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
        series = [fetch_s(clean[each.trial_id]) for each in some]
        values = list(itertools.chain.from_iterable(series))
        mean = math.fsum(values) / len(values) if values else 0.0
        if len(values) < MIN_BATCHES or mean <= 0:
            return cls(count=len(values), cv=None, error=None, run_queue=None)
        blocks = list(itertools.chain.from_iterable(map(_block_means, series)))
        error = statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else mean
        queued = math.fsum(itertools.chain.from_iterable(_queued(clean, some)))
        return cls(
            count=len(values),
            cv=statistics.stdev(values) / mean,
            error=error / mean,
            run_queue=queued / (queued + math.fsum(values)),
        )


def drift_of(some: Sequence[Explanation], clean: Mapping[str, BatchCosts]) -> float | None:
    """How far apart trials lie that should cost the same, as a standard deviation of logarithms.

    Those with workers are compared with each other, and those without.

    Args:
        some: Instrumented trials.
        clean: What their batches cost, by trial.
    """
    fed = [clean[each.trial_id] for each in some if each.config.num_workers]
    alone = [clean[each.trial_id] for each in some if not each.config.num_workers]
    groups = [logs for logs in map(_log_means, (fed, alone)) if len(logs) > 1]
    if not groups:
        return None
    squares = [statistics.variance(logs) * (len(logs) - 1) for logs in groups]
    return math.sqrt(math.fsum(squares) / sum(len(logs) - 1 for logs in groups))


def _log_means(some: Sequence[BatchCosts]) -> list[float]:
    means = [statistics.fmean(fetch_s(each)) for each in some]
    return [math.log(mean) for mean in means if mean > 0]


def fetch_s(costs: BatchCosts) -> list[float]:
    """CPU time and waiting of each batch."""
    io = costs.io_s or (0.0,) * len(costs.cpu_s)
    return [a + b for a, b in zip(costs.cpu_s, io, strict=True)]


def _queued(
    clean: Mapping[str, BatchCosts], some: Sequence[Explanation]
) -> Iterable[tuple[float, ...]]:
    return (clean[each.trial_id].run_queue_s for each in some)


def _block_means(values: Sequence[float]) -> list[float]:
    """Means over equal blocks of batches that follow each other."""
    size = max(1, len(values) // _BLOCKS)
    starts = range(0, len(values) - size + 1, size)
    return [math.fsum(values[start : start + size]) / size for start in starts]
