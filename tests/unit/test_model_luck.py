"""What few batches have of luck is taken out of the simulation: no jumps from one W to the next."""

from __future__ import annotations

import math
import random

import pytest

from dlprof.model import Conditions, cell_of, maxplus, simulate
from dlprof.model.deck import Deck
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


def rates(workers: int, *, share: float, batches: int, ranks: int = 1) -> tuple[float, float]:
    """The simulation's, and that of a recursion so long that luck is nothing."""
    config = Config(num_workers=workers).canonical()
    cell = cell_of(tailed(share=share), config, Conditions(cores=64.0 * ranks, ranks=ranks))
    found = simulate.steady_rate(cell, Deck(3), batches=batches)
    long = maxplus.steady_rate(cell, Deck(4), batches=20_000)
    return found.batches_per_s, long.batches_per_s


@pytest.mark.parametrize("share", [0.0, 0.03])
@pytest.mark.parametrize("workers", [4, 8, 28, 32, 57, 62, 65, 80, 100])
def test_the_rate_does_not_hang_on_how_workers_divide_the_batches(
    workers: int, share: float
) -> None:
    simulated, long = rates(workers, share=share, batches=600)
    assert abs(math.log(simulated / long)) < _MOST_OFF


def test_many_ranks_share_their_luck() -> None:
    simulated, long = rates(12, share=0.03, batches=600, ranks=4)
    assert abs(math.log(simulated / long)) < _MOST_OFF


def test_few_batches_are_lucky_or_not_and_many_are_neither() -> None:
    config = Config(num_workers=62).canonical()
    cell = cell_of(tailed(share=0.03), config, Conditions(cores=64.0))
    few = [maxplus.luck(cell, Deck(s), batches=248, ranks=1, many=20_000) for s in range(8)]
    assert max(few) / min(few) > 1.1
    assert maxplus.luck(cell, Deck(1), batches=20_000, ranks=1, many=20_000) == pytest.approx(1.0)


def test_batches_that_cost_nothing_have_no_luck() -> None:
    nothing = BatchCosts(cpu_s=(0.0,) * 20, io_s=(0.0,) * 20)
    config = Config(num_workers=2).canonical()
    cell = cell_of(Calibration(in_workers=nothing), config, Conditions(cores=2.0))
    assert maxplus.luck(cell, Deck(1), batches=60, ranks=1, many=600) == 1.0
