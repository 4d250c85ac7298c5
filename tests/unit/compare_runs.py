"""Runs of a loader whose costs are known, for the tests of comparing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from builders import config, machine, run, trial

from dlprof.records import Run, Usage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What a made-up loader costs on a made-up machine; seconds per sample."""

    cpu_s: float = 0.010
    io_s: float = 0.0
    affinity: int = 16
    quota: float | None = None
    taken: float = 0.0
    workers: Sequence[int] = (0, 8)
    throttled: float | None = None
    ranks: int = 1  # that loaded at once, each as the other figures say, on its share of a machine


def made_run(costs: Costs, repeats: int = 3, **rest: Any) -> Run:
    """A sweep that measured the costs, with a wobble of 1 % between blocks."""
    usable = costs.affinity if costs.quota is None else min(costs.affinity, costs.quota)
    free = min(usable, costs.affinity - costs.taken)
    trials = []
    for block in range(repeats):
        for workers in costs.workers:
            wobble = 1 + 0.01 * (block - (repeats - 1) / 2)
            work_s = costs.cpu_s + costs.io_s
            period_s = work_s if workers == 0 else max(work_s / workers, costs.cpu_s / free)
            rate = wobble / period_s
            cores = rate / wobble * costs.cpu_s
            wanted = cores if workers == 0 else workers * (1 - costs.io_s / (workers * period_s))
            usage = Usage(
                own_cpu_cores=rate * costs.cpu_s,
                available_cpu_cores=free,
                other_cpu_cores=costs.ranks * costs.taken,
                run_queue_wait_fraction=max(0.0, 1 - cores / wanted),
                throttled_fraction=costs.throttled,
            )
            trials.append(trial(config(workers), rate, repetition=block, usage=usage))
    ranks = costs.ranks
    quota = None if costs.quota is None else ranks * costs.quota
    made = machine(ranks * usable, affinity_cpus=ranks * costs.affinity, quota_cores=quota)
    settings = {"launch_ranks": [ranks]} if ranks > 1 else {}
    return run(trials, **({"machine": made, "settings": settings} | rest))
