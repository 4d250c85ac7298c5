"""Trainings that happen in a recursion: a loader with settings that change while it runs.

Workers fetch the batches that they are handed in turn, each for its CPU and its waiting; computing
slows down where threads are more than cores (the machine-repairman model of ``dlprof/model``), and
with the speed of the cores, which goes up and down. Batches are yielded in order. The clock is a
number, so that half an hour takes a second.

When a core is how fast, and which batch costs how much, is drawn beforehand: trainings of one seed
meet the same, whatever their settings, and differ by these alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from dlprof.model.bounds import slowdown
from dlprof.tuning.control import Ask, Setting, Window

PHASES = ("quiet", "load comes", "step halves", "storage slows", "quota is set")
_SPEEDS = (0.77, 1.23)
"""Time of the same work in the two states of a core; 1.77x apart were measured of a Python loop."""

_STATE_S = (0.3, 10.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a training meets, until something changes.

    Attributes:
        cpu_s: Of a batch, in a worker.
        io_s: Waiting of a batch, in a worker.
        step_s: What the training does with a batch.
        receive_s: Taking a batch in.
        cores: Cores that the workers have.
        beside: Processes of others that always compute.
        spread: Batches cost up to this share more or less.
        slow: Share of batches that cost ``slow_factor`` times as much.
        slow_factor: See there.
    """

    cpu_s: float
    io_s: float
    step_s: float
    receive_s: float = 0.0003
    cores: float = 4
    beside: float = 0
    spread: float = 0.2
    slow: float = 0.0
    slow_factor: float = 1.0

    def changed(self, phase: str) -> World:
        """The same after something has happened."""
        if phase == "load comes":
            return dataclasses.replace(self, beside=self.cores)
        if phase == "step halves":
            return dataclasses.replace(self, step_s=self.step_s / 2)
        if phase == "storage slows":
            return dataclasses.replace(self, io_s=3 * self.io_s + 0.2 * self.cpu_s)
        if phase == "quota is set":
            return dataclasses.replace(self, cores=max(1.0, self.cores / 2))
        return self

    @functools.cache  # noqa: B019 - worlds are few
    def slowed(self, workers: int) -> float:
        """How much longer computing takes with so many workers that never rest."""
        threads = max(1, workers)
        own, _ = slowdown(
            threads, compute_s=self.cpu_s, wait_s=self.io_s, cores=self.cores, beside=self.beside
        )
        return own


@dataclasses.dataclass(slots=True)
class Ran:
    """What came of a training.

    Attributes:
        batches: Yielded.
        by_minute: Batches of each minute.
        settled_s: When nothing was tried any more for the first time.
        most_workers: That there ever were.
    """

    batches: int = 0
    by_minute: list[int] = dataclasses.field(default_factory=list)
    settled_s: float | None = None
    most_workers: int = 0


@functools.lru_cache
def _costs(seed: int, spread: float, slow: float, slow_factor: float) -> list[float]:
    """What each batch costs, over what they cost in the mean; after the last comes the first."""
    rng = random.Random(f"costs {seed}")
    return [
        (1 + spread * (2 * rng.random() - 1)) * (slow_factor if rng.random() < slow else 1.0)
        for _ in range(1 << 16)
    ]


class _Core:
    """A core that goes over from one speed to another, by itself."""

    def __init__(self, seed: int, number: int) -> None:
        self._rng = random.Random(f"core {seed} {number}")
        self._slowness = 1.0
        self._until_s = 0.0

    def slowness(self, now_s: float) -> float:
        """How long the same work takes; asked in the order of time."""
        while now_s >= self._until_s:
            self._slowness = self._rng.choice(_SPEEDS)
            self._until_s += self._rng.uniform(*_STATE_S)
        return self._slowness


class _Loader:
    """Batches, each with when it is there."""

    def __init__(self, setting: Setting, world: World, seed: int) -> None:
        self._costs = _costs(seed, world.spread, world.slow, world.slow_factor)
        self._cores = [_Core(seed, number) for number in range(max(1, int(world.cores)))]
        self._free: list[float] = [0.0] * 256
        self._ready: deque[float] = deque()
        self.ordered = 0
        self.clock = [0.0, 0.0]  # seconds and batches of workers
        self.set(setting)

    def set(self, setting: Setting) -> None:
        """Hand out otherwise from now on."""
        self._setting = setting
        self._cycle = itertools.cycle(range(setting.workers))

    def restart(self, now_s: float) -> None:
        """A new epoch: nothing is in flight."""
        self._ready.clear()
        self._free = [now_s] * 256

    def meet(self, batch: int) -> None:
        """Go on after so many batches were yielded."""
        self.ordered = batch + len(self._ready)

    def refill(self, now_s: float, world: World) -> None:
        """Hand out indices up to what may be in flight."""
        slowed = world.slowed(self._setting.workers)
        while len(self._ready) < self._setting.in_flight:
            worker = next(self._cycle)
            start_s = max(now_s, self._free[worker])
            took_s = self._took_s(worker, start_s, world, slowed)
            self._free[worker] = start_s + took_s
            self.clock[0] += took_s
            self.clock[1] += 1
            self._ready.append(self._free[worker])

    def _took_s(self, worker: int, start_s: float, world: World, slowed: float) -> float:
        slowness = self._cores[worker % int(world.cores)].slowness(start_s)
        cost = self._costs[self.ordered % len(self._costs)]
        self.ordered += 1
        return cost * (world.cpu_s * slowed * slowness + world.io_s)

    def next(self, now_s: float, world: World) -> float:
        """When the next batch is there."""
        if not self._setting.workers:  # the main process makes it
            return now_s + self._took_s(0, now_s, world, world.slowed(1))
        done_s = self._ready.popleft() + world.receive_s
        return max(now_s + world.receive_s, done_s)


class Tuner(Protocol):
    """What changes settings while a training runs, as ``Control`` does."""

    live: bool
    settled_s: float | None

    def begin(self) -> Ask:
        """The first thing to look at."""

    def look(self, window: Window) -> Ask:
        """Take in what was seen; returns what to have from now on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training, and what happens in it.

    Attributes:
        world: At its beginning.
        phase: What happens.
        at_s: When.
        whole_s: How long it lasts.
        epoch_s: Seconds between two edges of an epoch, where settings change at edges only.
        restart_s: What an edge costs.
        start_s: What starting a worker costs the training.
        seed: Of all that is random.
    """

    world: World
    phase: str = "quiet"
    at_s: float = 600.0
    whole_s: float = 1800.0
    epoch_s: float = float("inf")
    restart_s: float = 0.2
    start_s: float = 0.03
    seed: int = 0

    def run(self, setting: Setting, control: Tuner | None = None, beside: Ran | None = None) -> Ran:
        """Run it, with settings that stay or that a tuner changes.

        In each minute it meets the batches that the training ``beside`` it met in that minute.
        """
        return _Run(self, setting, control, beside).run()


class _Run:
    def __init__(
        self, training: Training, setting: Setting, control: Tuner | None, beside: Ran | None
    ) -> None:
        self._training, self._control, self._beside = training, control, beside
        self._setting = setting
        self._loader = _Loader(setting, training.world, training.seed)
        self._started = setting.workers
        self._now_s = self._receive_s = 0.0
        self._seen = Ran(most_workers=setting.workers)
        # As `_Tap` counts, by a clock that is a number.
        self._ask = control.begin() if control else Ask(setting, 0, 1 << 62, 0.0)
        self._begin(self._ask.skip)

    def _begin(self, skip: int) -> None:
        self._skip, self._count = skip, 0
        self._skipped, self._skipped_s = 0, 0.0
        self._waited_s = self._stepped_s = 0.0
        self._until_s = self._now_s + self._ask.seconds

    def run(self) -> Ran:
        training, before = self._training, self._training.world
        after = before.changed(training.phase)
        edge_s = training.epoch_s
        while self._now_s < training.whole_s:
            world = before if self._now_s < training.at_s else after
            if self._now_s >= edge_s:
                edge_s = self._now_s + training.epoch_s
                self._edge()
            self._batch(world)
        if self._control is not None:
            self._seen.settled_s = self._control.settled_s
        return self._seen

    def _edge(self) -> None:
        self._now_s += self._training.restart_s
        self._loader.restart(self._now_s)
        if self._ask.setting != self._setting:
            self._set(self._ask.setting)
        self._begin(max(self._ask.skip, self._setting.in_flight + self._setting.workers))

    def _set(self, setting: Setting) -> None:
        fresh = max(0, setting.workers - self._started)
        self._now_s += fresh * self._training.start_s
        self._started += fresh
        self._setting = setting
        self._seen.most_workers = max(self._seen.most_workers, setting.workers)
        self._loader.set(setting)

    def _batch(self, world: World) -> None:
        self._loader.refill(self._now_s, world)
        got_s = self._loader.next(self._now_s, world)
        if got_s <= self._now_s + world.receive_s:
            self._receive_s = world.receive_s
        self._waited_s += got_s - self._now_s
        self._stepped_s += world.step_s
        self._now_s = got_s + world.step_s
        self._seen.batches += 1
        minute = int(self._now_s // 60)
        if minute >= len(self._seen.by_minute):
            self._seen.by_minute += [0] * (minute + 1 - len(self._seen.by_minute))
            if self._beside is not None:
                self._loader.meet(sum(self._beside.by_minute[:minute]))
        self._seen.by_minute[minute] += 1
        self._count += 1
        if self._control is not None:
            self._look(self._control)

    def _look(self, control: Tuner) -> None:
        if self._skip:
            if self._count >= self._skip:
                skipped, skipped_s = self._count, self._waited_s + self._stepped_s
                self._begin(0)
                self._skipped, self._skipped_s = skipped, skipped_s
            return
        if self._count < self._ask.batches or self._now_s < self._until_s:
            return
        figures = (self._count, self._waited_s, self._stepped_s, self._skipped, self._skipped_s)
        seconds, batches = self._loader.clock
        self._loader.clock = [0.0, 0.0]
        fetch_s = seconds / batches if batches else 0.0
        window = Window(self._setting, *figures, receive_s=self._receive_s, fetch_s=fetch_s)
        self._ask = control.look(window)
        deeper = self._ask.setting.workers == self._setting.workers
        if self._ask.setting != self._setting and (control.live or deeper):
            self._set(self._ask.setting)
        self._begin(self._ask.skip)


def statics(most: int) -> Iterator[Setting]:
    """The settings that a grid would try."""
    for workers in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if workers <= most:
            yield from (Setting(workers, ahead) for ahead in (2, 4, 8))
