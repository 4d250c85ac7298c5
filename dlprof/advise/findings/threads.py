"""What several samples at once in each worker would give, without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.advise.findings.claims import Gain, predicted_gain
from dlprof.advise.findings.evidence import Costs, StageTime, View
from dlprof.advise.thresholds import PAYS

CODE = """from concurrent.futures import ThreadPoolExecutor

def __getitems__(self, indices):  # torch calls it with all indices of a batch
    if self.pool is None:
        self.pool = ThreadPoolExecutor({threads})  # made in the worker
    return list(self.pool.map(self.__getitem__, indices))"""


def fetch_in_threads(view: View, costs: Costs) -> Mapping[int, Gain]:
    """Gains by the number of threads that fetch samples in each worker.

    Threads take turns on the interpreter, so that CPU time stays as it is, and only what is blocked
    passes side by side: a batch takes ``max(cpu, (cpu + blocked) / threads)``. Code that computes
    without the interpreter's lock does better than that.

    Args:
        view: The evidence.
        costs: Of making batches now.

    Returns:
        Empty where samples can't be fetched at once: those of an iterable, or where the dataset is
        asked for whole batches already.
    """
    samples = None if view.explained is None else view.explained.samples
    if view.evidence.target.kind == "iterable" or samples is None or view.explained is None:
        return {}
    each = samples.count / max(1, view.explained.batches)
    gains: dict[int, Gain] = {}
    for count in (2, 4, 8, 16, 32):
        if count > each:
            break
        blocked_s = max(0.0, costs.fetch.own_s / count - costs.fetch.cpu_s)
        fetch = StageTime(costs.fetch.cpu_s, blocked_s)
        gain = predicted_gain(view, costs=dataclasses.replace(costs, fetch=fetch))
        if gain is not None:
            gains[count] = gain
    return gains


def fewest(gains: Mapping[int, Gain]) -> int | None:
    """The fewest threads that bring about as much as the most of them do, if that pays."""
    most = max((gain.value for gain in gains.values()), default=0.0)
    if most < PAYS:
        return None
    # The fewest threads that are as good as the best.
    return next(count for count, gain in gains.items() if gain.value >= 0.95 * most)
