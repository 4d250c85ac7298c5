"""What the costs of batches leave out of the CPU time that the kernel counts: next to nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dlprof.records import Config
from dlprof.records.stages import BatchCosts
from dlprof.tracing.explain import explain
from dlprof.tracing.trace import Trace
from dlprof.tracing.tracer import Tracer

BATCHES = 40
LEAST, MOST = 0.85, 1.05
"""Of the kernel's count; the tracer's own work belongs to no batch."""

INIT_S = 0.2


class Copied(Dataset[torch.Tensor]):
    """Samples of 4 MB, so that handing batches over and letting them go costs something."""

    def __init__(self) -> None:
        self.kept = torch.zeros(1 << 20)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.kept + index


def traced(**options: Any) -> tuple[Trace, BatchCosts]:
    """An epoch of a loader, and what its batches cost."""
    tracer = Tracer(DataLoader(Copied(), batch_size=1, **options))
    tracer.install()
    for _ in tracer:
        pass
    tracer.remove()
    trace, config = tracer.trace(), Config(num_workers=options.get("num_workers", 0))
    told = explain(trace, trial_id="", config=config.canonical(), computes=False)
    return trace, told.costs


def test_all_cpu_of_a_worker_is_told() -> None:
    trace, costs = traced(num_workers=1)
    counted = [row.made.process_cpu for row in trace.rows if row.made is not None]
    told_s = sum(map(sum, (costs.cpu_s[1:], costs.put_cpu_s[1:], costs.between_cpu_s[1:])))
    assert LEAST < told_s / (1e-9 * (counted[-1] - counted[0])) < MOST


def computing(_worker: int) -> None:
    """Keeps a worker computing before its first batch."""
    while time.thread_time() < INIT_S:
        pass


def test_starting_a_worker_is_no_cost_of_its_first_batch() -> None:
    _, costs = traced(num_workers=1, worker_init_fn=computing)
    assert costs.between_cpu_s[0] < INIT_S / 2


@pytest.mark.parametrize("workers", [0, 1])
def test_all_cpu_of_main_is_told(workers: int) -> None:
    trace, costs = traced(num_workers=workers)
    counted = [row.thread_cpu for row in trace.rows]
    own = () if workers else costs.cpu_s[1:]
    told = costs.receive_cpu_s[1:], costs.main_cpu_s[1:], costs.let_go_cpu_s[1:], own
    assert LEAST < sum(map(sum, told)) / (1e-9 * (counted[-1] - counted[0])) < MOST
