"""The luck of the order in which batches are drawn is small: no jumps from one W to the next."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from dlprof.model import maxplus
from dlprof.model.bounds import cell_of
from dlprof.model.maxplus import drawn, steady_rate
from dlprof.model.work import Conditions
from dlprof.records import BatchCosts, Calibration, Config

_MOST_OFF = 0.08


def tailed(*, share: float, batches: int = 100) -> Calibration:
    """Batches that wait for 50 ms, a share of them for 15 times as long."""
    rng = random.Random(1)
    io = [
        0.05 * rng.uniform(0.8, 1.2) * (15 if rng.random() < share else 1) for _ in range(batches)
    ]
    costs = BatchCosts(cpu_s=(0.0002,) * batches, io_s=tuple(io), receive_cpu_s=(0.0001,) * batches)
    return Calibration(in_workers=costs, available_cores=64.0)


def predicted(workers: int, *, share: float) -> float:
    """Batches per second."""
    config = Config(num_workers=workers).canonical()
    cell = cell_of(tailed(share=share), config, Conditions(cores=64.0))
    return steady_rate(dataclasses.replace(cell, work=drawn(cell.work))).batches_per_s


@pytest.mark.parametrize("share", [0.0, 0.03])
@pytest.mark.parametrize("workers", [4, 8, 28, 32, 57, 62, 65, 80, 100])
def test_the_rate_does_not_hang_on_how_workers_divide_the_batches(
    workers: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = predicted(workers, share=share)
    monkeypatch.setattr(maxplus, "_BATCHES", 40_000)
    monkeypatch.setattr(maxplus, "_SEED", 1)
    assert abs(math.log(found / predicted(workers, share=share))) < _MOST_OFF


def test_of_more_batches_than_are_wanted_like_ones_are_drawn() -> None:
    config, where = Config(num_workers=4).canonical(), Conditions(cores=64.0)
    work = cell_of(tailed(share=0.03, batches=4000), config, where).work
    some = drawn(work)
    assert len(some.rows) == maxplus._BATCHES
    means = [math.fsum(column) / len(some.rows) for column in zip(*some.rows, strict=True)]
    assert means == pytest.approx(list(work.means))
    assert drawn(work) == some
