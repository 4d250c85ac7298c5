"""Blocks of a machine that doesn't exist, whose noise is known: what ``gate_rule.py`` judges.

Modelled on what was measured of a real one: per quad the service time of equal code spreads by
2 to 3 % whatever neighbours do, wall time by 20 % and in long waves beside them; single batches
take several times as long now and then.
"""

from __future__ import annotations

import dataclasses
import math
import random

from dlprof.gate.plan import SIDES, THRESHOLD, order_of
from dlprof.records.gate import Block, Quad

BATCHES = 16
SAMPLES = 4
_BATCH_S = 0.0023  # blocks of 0.05 s, as a check has them, on a core that is slow mostly
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
        slow: How many times as long a slow core takes. Each core changes between slow and fast by
            itself, as measured: slow for 1.2 s and fast for 0.5 s in the mean, for what feels all
            of it (/proc/stat shows nothing).
        apart: Whether each side keeps to a core of its own, instead of both to the same ones.
    """

    name: str
    service_sd: float
    drift_sd: float
    wall_sd: float
    memory: float
    waited: float
    outliers: float
    slow: float = 1.0
    apart: bool = False


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
SWITCHING = dataclasses.replace(QUIET, name="cores that change their speed", slow=1.77)
APART = dataclasses.replace(SWITCHING, name="the same, sides on cores of their own", apart=True)
ODD = dataclasses.replace(QUIET, name="odd slow batches", service_sd=0.02, outliers=0.005)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """What the change costs.

    Attributes:
        name: For tables.
        mean: Of the mean service time, as a fraction.
        share: Of the batches that bear all of it; 1 for all alike.
        limit: What it is held against, ``--fail-above``.
    """

    name: str
    mean: float
    share: float = 1.0
    limit: float = THRESHOLD

    def factors(self) -> list[float]:
        """How much longer each batch of a block takes; the same batches in every block."""
        slow = max(1, round(self.share * BATCHES))
        return [1 + self.mean * BATCHES / slow] * slow + [1.0] * (BATCHES - slow)


_CORES = 2
_SLOW_S, _FAST_S = 1.2, 0.5


class Core:
    """A core that is slow for a while, and fast for a while."""

    def __init__(self, slow: float, coin: random.Random) -> None:
        self._slow, self._coin = slow, coin
        self._is_slow = coin.random() < _SLOW_S / (_SLOW_S + _FAST_S)
        self._changes_s = self._stays_s()

    def _stays_s(self) -> float:
        return self._coin.expovariate(1 / (_SLOW_S if self._is_slow else _FAST_S))

    def _turn(self, seconds: float) -> None:
        self._changes_s -= seconds
        while self._changes_s <= 0:
            self._is_slow = not self._is_slow
            self._changes_s += self._stays_s()

    def rest(self, seconds: float) -> None:
        """Let time go by."""
        self._turn(seconds)

    def takes_s(self, work_s: float) -> float:
        """How long work takes that a fast core does in so many seconds."""
        took_s = 0.0
        while work_s > 0:
            pace = self._slow if self._is_slow else 1.0
            step_s = min(work_s * pace, self._changes_s)
            work_s -= step_s / pace
            took_s += step_s
            self._turn(step_s)
            if step_s == 0.0:
                break
        return took_s


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
        self._cores = [Core(world.slow, self._coin) for _ in range(_CORES)]

    def block(self, letter: str, core: int = 0) -> Block:
        """The next block, of the base (A) or of the change (B), on a core."""
        world, coin = self._world, self._coin
        self._level += coin.gauss(0, world.drift_sd)
        fresh = math.sqrt(1 - world.memory**2)
        self._wave = world.memory * self._wave + fresh * coin.gauss(0, world.wall_sd)
        factor = _BATCH_S * math.exp(self._level + coin.gauss(0, world.service_sd))
        service_s = tuple(
            self._cores[core].takes_s(
                factor * each * math.exp(coin.gauss(0, 0.05)) * self._outlier()
            )
            for each in self._factors[letter]
        )
        whole_s = sum(service_s)
        for place, other in enumerate(self._cores):
            if place != core:
                other.rest(whole_s)
        return Block(
            side=SIDES[letter],
            service_s=service_s,
            samples=(SAMPLES,) * BATCHES,
            wall_s=whole_s * math.exp(self._wave),
            run_queue_wait_fraction=world.waited,
            cores=(core,),
            stages_s={"fetch": _FETCH_SHARE * whole_s, "collate": (1 - _FETCH_SHARE) * whole_s},
        )

    def _outlier(self) -> float:
        odd = self._coin.random() < self._world.outliers
        return self._coin.uniform(3, 10) if odd else 1.0

    def quad(self, number: int, seed: int) -> Quad:
        """The next quad, in the order that a check would take."""
        order = order_of(seed, "load", number)
        turn = number % _CORES
        cores = {"A": 0, "B": 1} if self._world.apart else {"A": turn, "B": turn}
        blocks = tuple(self.block(letter, cores[letter]) for letter in order)
        return Quad(number=number, series="load", blocks=blocks)
