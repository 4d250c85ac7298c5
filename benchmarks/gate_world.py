"""Blocks of a machine that doesn't exist, whose noise is known: what ``gate_rule.py`` judges.

Modelled on what was measured of a real one: per quad the service time of equal code spreads by
2 to 3 % whatever neighbours do, wall time by 20 % and in long waves beside them; single batches
take several times as long now and then.
"""

from __future__ import annotations

import dataclasses
import math
import random

from dlprof.gate import SIDES, order_of
from dlprof.records.gate import Block, Quad

BATCHES = 16
SAMPLES = 4
_BATCH_S = 0.016
_FETCH_SHARE = 0.8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a machine does to equal code; standard deviations of logarithms.

    Attributes:
        name: For tables.
        service_sd: Of the service time from block to block.
        drift_sd: Step of its random walk from block to block.
        wall_sd: Of waves in wall time, on top.
        memory: How much of a wave is left in the next block.
        waited: Share of waiting for a core.
        outliers: Share of batches that take three to ten times as long.
    """

    name: str
    service_sd: float
    drift_sd: float
    wall_sd: float
    memory: float
    waited: float
    outliers: float


QUIET = World(
    name="quiet",
    service_sd=0.012,
    drift_sd=0.002,
    wall_sd=0.01,
    memory=0.5,
    waited=0.02,
    outliers=0.0,
)
CROWDED = World(
    name="beside neighbours",
    service_sd=0.024,
    drift_sd=0.01,
    wall_sd=0.35,
    memory=0.7,
    waited=0.5,
    outliers=0.001,
)
DRIFTING = dataclasses.replace(QUIET, name="drifting clock", service_sd=0.02, drift_sd=0.03)
ODD = dataclasses.replace(QUIET, name="odd slow batches", service_sd=0.02, outliers=0.005)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """What the change costs.

    Attributes:
        name: For tables.
        mean: Of the mean service time, as a fraction.
        share: Of the batches that bear all of it; 1 for all alike.
    """

    name: str
    mean: float
    share: float = 1.0

    def factors(self) -> list[float]:
        """How much longer each batch of a block takes; the same batches in every block."""
        slow = max(1, round(self.share * BATCHES))
        return [1 + self.mean * BATCHES / slow] * slow + [1.0] * (BATCHES - slow)


class Machine:
    """Measures blocks, one after the other, as its world has it."""

    def __init__(self, world: World, slowdown: Slowdown, seed: str) -> None:
        """Start a machine.

        Args:
            world: What it does to equal code.
            slowdown: What the change costs.
            seed: Of all its chance.
        """
        self._world = world
        self._factors = {"A": [1.0] * BATCHES, "B": slowdown.factors()}
        self._coin = random.Random(seed)
        self._level = 0.0
        self._wave = self._coin.gauss(0, world.wall_sd)

    def block(self, letter: str) -> Block:
        """The next block, of the base (A) or of the change (B)."""
        world, coin = self._world, self._coin
        self._level += coin.gauss(0, world.drift_sd)
        fresh = math.sqrt(1 - world.memory**2)
        self._wave = world.memory * self._wave + fresh * coin.gauss(0, world.wall_sd)
        factor = _BATCH_S * math.exp(self._level + coin.gauss(0, world.service_sd))
        service_s = tuple(
            factor * each * math.exp(coin.gauss(0, 0.05)) * self._outlier()
            for each in self._factors[letter]
        )
        whole_s = sum(service_s)
        return Block(
            side=SIDES[letter],
            service_s=service_s,
            samples=(SAMPLES,) * BATCHES,
            wall_s=whole_s * math.exp(self._wave),
            run_queue_wait_fraction=world.waited,
            stages_s={"fetch": _FETCH_SHARE * whole_s, "collate": (1 - _FETCH_SHARE) * whole_s},
        )

    def _outlier(self) -> float:
        odd = self._coin.random() < self._world.outliers
        return self._coin.uniform(3, 10) if odd else 1.0

    def quad(self, number: int, seed: int) -> Quad:
        """The next quad, in the order that a check would take."""
        order = order_of(seed, "load", number)
        blocks = tuple(self.block(letter) for letter in order)
        return Quad(number=number, series="load", blocks=blocks)
