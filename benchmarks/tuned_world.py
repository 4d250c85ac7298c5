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
import random
import statistics
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from dlprof.model.bounds import slowdown
from dlprof.tuning.control import Ask, Setting, Window

PHASES = ("quiet", "load comes", "step halves", "storage slows", "quota is set")
_SPEEDS = (0.77, 1.23)
"""Time of the same work in the two states of a core; 1.77x apart were measured of a Python loop."""

_STATE_S = (0.3, 10.0)
_ATTEMPTS, _ATTEMPTS_S = 16, 0.125


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a training meets, until something changes.

    Attributes:
        cpu_s: Of a batch, in a worker.
        io_s: Waiting of a batch, in a worker.
        send_s: CPU time of handing a batch over, in a worker; without workers there is none.
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
    send_s: float = 0.0
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
            threads,
            compute_s=self.cpu_s + (self.send_s if workers else 0.0),
            wait_s=self.io_s,
            cores=self.cores,
            beside=self.beside,
        )
        return own


@dataclasses.dataclass(slots=True)
class Ran:
    """What came of a training.

    Attributes:
        batches: Yielded.
        by_minute: The same in each minute.
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
        for _ in range(1 << 14)
    ]


class _Cores:
    """Cores that go over from one speed to another, each by itself.

    Attributes:
        slowness: How long the same work takes on each.
        until_s: When that changes.
    """

    def __init__(self, seed: int, cores: int) -> None:
        self._draws = [random.Random(f"core {seed} {number}") for number in range(cores)]
        self.slowness = [1.0] * cores
        self.until_s = [0.0] * cores

    def change(self, core: int, now_s: float) -> None:
        """Have a core's speed at a time; it is asked of in the order of time."""
        while now_s >= self.until_s[core]:
            self.slowness[core] = self._draws[core].choice(_SPEEDS)
            self.until_s[core] += self._draws[core].uniform(*_STATE_S)


class _Loader:
    """Batches, each with when it is there.

    Attributes:
        now_s: The training's clock.
        waited_s: In all.
        clock: Seconds, those of CPU time, those of waiting for a core, and batches of workers.
        received: Whether a batch was ready when it was asked for.
    """

    def __init__(self, setting: Setting, world: World, seed: int) -> None:
        self._costs = _costs(seed, world.spread, world.slow, world.slow_factor)
        self._cores = _Cores(seed, max(1, int(world.cores)))
        self._free: list[float] = [0.0] * 256  # when each worker is
        self._ready: deque[float] = deque()  # when each batch that is ordered is
        self._ordered = 0
        self.now_s = self.waited_s = 0.0
        self.clock = [0.0] * 4
        self.received = False
        self.set(setting)

    def set(self, setting: Setting) -> None:
        """Hand out otherwise from now on."""
        self._setting, self._worker = setting, 0

    def restart(self) -> None:
        """A new epoch: nothing is in flight."""
        self._ready.clear()
        self._free = [self.now_s] * 256

    def meet(self, batch: int) -> None:
        """Go on after so many batches were yielded."""
        self._ordered = batch + len(self._ready)

    def ready(self) -> int:
        """Batches that are there and not yet asked for."""
        return sum(done_s <= self.now_s for done_s in self._ready)

    def load(self, world: World, batches: int, until_s: float, stop_s: float) -> int:
        """Load and step for so many batches and so long, but no longer than to ``stop_s``.

        Returns:
            How many were yielded, one or more.
        """
        # All of the time of a replay is spent here.
        workers, in_flight = self._setting.workers, self._setting.in_flight
        slowed = world.slowed(workers)
        cpu_s, io_s = world.cpu_s * slowed, world.io_s
        receive_s, send_s = (world.receive_s, world.send_s * slowed) if workers else (0.0, 0.0)
        step_s = world.step_s
        costs, free, ready, cores = self._costs, self._free, self._ready, int(world.cores)
        slowness, until_core_s = self._cores.slowness, self._cores.until_s
        ordered, worker, now_s = self._ordered, self._worker, self.now_s
        most = len(costs) - 1  # a power of 2, less 1
        made_s, made, yielded, waited_s = 0.0, ordered, 0, 0.0
        computed = 0.0
        while now_s < stop_s and (yielded < batches or now_s < until_s):
            asked_s = now_s
            while len(ready) < (in_flight or 1):  # without workers it is made when it is asked for
                start_s = free[worker] if free[worker] > asked_s else asked_s  # noqa: FURB136 - it takes half as long
                core = worker % cores
                if start_s >= until_core_s[core]:
                    self._cores.change(core, start_s)
                cost, slow = costs[ordered & most], slowness[core]
                computed += cost * slow
                took_s = cost * (cpu_s * slow + io_s)
                ordered += 1
                made_s += took_s
                free[worker] = start_s + took_s + send_s * slow
                ready.append(free[worker])
                worker = worker + 1 if worker + 1 < workers else 0
            done_s = ready.popleft()
            if done_s <= asked_s:
                done_s = asked_s
                self.received = True
            now_s = done_s + receive_s
            waited_s += now_s - asked_s
            now_s += step_s
            yielded += 1
        self.clock[0] += made_s
        self.clock[1] += computed * world.cpu_s
        self.clock[2] += computed * (cpu_s - world.cpu_s)
        self.clock[3] += ordered - made
        self._ordered, self._worker = ordered, worker
        self.now_s, self.waited_s = now_s, self.waited_s + waited_s
        return yielded


class Tuner(Protocol):
    """What changes settings while a training runs, as ``Control`` does."""

    cores: int
    live: bool
    settled_s: float | None

    @property
    def kept(self) -> Setting:
        """What it goes back to."""

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

    def run(
        self,
        setting: Setting,
        control: Tuner | None = None,
        beside: Ran | None = None,
        *,
        late_s: float = 0.0,
    ) -> Ran:
        """Run it, with settings that stay or that a tuner changes; its first epoch begins so late.

        In each minute it meets the batches that the training ``beside`` it met in that minute.
        """
        return _Run(self, setting, control, beside, late_s).run()

    def attempt(self) -> tuple[float, float, float]:
        """What a process that makes batches for some time sees before the first epoch.

        Seconds of a batch, those of CPU time, and all that the epoch begins later: those to start
        it, too.
        """
        world, cores = self.world, _Cores(self.seed, 1)
        costs = _costs(self.seed, world.spread, world.slow, world.slow_factor)
        took: list[tuple[float, float]] = []
        now_s = self.start_s
        while len(took) < _ATTEMPTS and now_s < _ATTEMPTS_S:
            cores.change(0, now_s)
            cpu_s = costs[-1 - len(took)] * world.cpu_s * cores.slowness[0]
            took.append((cpu_s + costs[-1 - len(took)] * world.io_s, cpu_s))
            now_s += took[-1][0]
        fetch_s, cpu_s = map(statistics.median_low, zip(*took, strict=True))
        return fetch_s, cpu_s, now_s


class _Run:
    def __init__(
        self,
        training: Training,
        setting: Setting,
        control: Tuner | None,
        beside: Ran | None,
        late_s: float,
    ) -> None:
        self._training, self._control, self._beside = training, control, beside
        self._live = control is not None and control.live
        self._setting = setting
        self._loader = _Loader(setting, training.world, training.seed)
        self._loader.now_s = late_s
        self._started = setting.workers
        self._receive_s = 0.0
        self._seen = Ran(by_minute=[0], most_workers=setting.workers)
        # As `_Tap` counts, by a clock that is a number.
        self._ask = control.begin() if control else Ask(setting, 0, 1 << 62, 0.0)
        self._begin(self._ask.skip)

    def _begin(self, skip: int) -> None:
        self._skip, self._count = skip, 0
        self._skipped, self._skipped_s = 0, 0.0
        self._from_s, self._waited_s = self._loader.now_s, self._loader.waited_s
        self._ready = self._loader.ready()
        self._until_s = 0.0 if skip else self._from_s + self._ask.seconds

    def run(self) -> Ran:
        training, loader, minutes = self._training, self._loader, self._seen.by_minute
        edge_s = training.epoch_s
        while loader.now_s < training.whole_s:
            early = loader.now_s < training.at_s
            world = training.world if early else training.world.changed(training.phase)
            if loader.now_s >= edge_s:
                edge_s = loader.now_s + training.epoch_s
                self._edge()
            stops_s = training.whole_s, edge_s, 60.0 * len(minutes)
            stop_s = min(*stops_s, training.at_s if early else training.whole_s)
            left = (self._skip or self._ask.batches) - self._count
            yielded = loader.load(world, left, self._until_s, stop_s)
            self._count += yielded
            minutes[-1] += yielded
            if loader.now_s >= 60.0 * len(minutes):
                minutes[-1] -= 1  # the last one is of the next minute
                minutes += [0] * (int(loader.now_s // 60) - len(minutes)) + [1]
                if self._beside is not None:
                    loader.meet(sum(self._beside.by_minute[: len(minutes) - 1]) + 1)
            if loader.received:
                self._receive_s = world.receive_s
            if self._control is not None:
                self._look(self._control, world)
        self._seen.batches = sum(minutes)
        if self._control is not None:
            self._seen.settled_s = self._control.settled_s
        return self._seen

    def _edge(self) -> None:
        self._loader.now_s += self._training.restart_s
        self._loader.restart()
        asked, control = self._ask.setting, self._control
        if control is not None and control.live and not asked.workers:
            asked = control.kept
        if asked != self._setting:
            self._set(asked)
        self._started = asked.workers
        if control is not None:
            self._begin(max(self._ask.skip, self._setting.in_flight + self._setting.workers))

    def _set(self, setting: Setting) -> None:
        fresh = max(0, setting.workers - self._started)
        self._loader.now_s += fresh * self._training.start_s
        self._started += fresh
        self._setting = setting
        self._seen.most_workers = max(self._seen.most_workers, setting.workers)
        self._loader.set(setting)

    def _look(self, control: Tuner, world: World) -> None:
        took_s = self._loader.now_s - self._from_s
        if self._skip:
            if self._count >= self._skip:
                skipped = self._count
                self._begin(0)
                self._skipped, self._skipped_s = skipped, took_s
            return
        if self._count < self._ask.batches or self._loader.now_s < self._until_s:
            return
        waited_s = self._loader.waited_s - self._waited_s
        figures = (self._count, waited_s, took_s - waited_s, self._skipped, self._skipped_s)
        *took, batches = self._loader.clock
        self._loader.clock = [0.0] * 4
        workers = self._setting.workers  # these are clocked, and a batch is received from them
        took = [each / batches if batches and workers else 0.0 for each in took]
        fetch_s, cpu_s, delay_s = took
        receive_s = self._receive_s if workers else 0.0
        window = Window(self._setting, *figures, receive_s=receive_s, fetch_s=fetch_s)
        stocked = self._loader.ready() - self._ready
        window = window._replace(cpu_s=cpu_s, delay_s=delay_s, stocked=stocked)
        control.cores = int(world.cores)
        self._ask = control.look(window)
        wanted = self._ask.within or self._ask.setting
        deeper = wanted.workers == workers
        if wanted != self._setting and (self._live or (self._started and deeper)):
            self._set(wanted)
        control.live = self._live and (control.kept.workers > 0 or control.live)
        self._begin(self._ask.skip)


def statics(most: int) -> Iterator[Setting]:
    """The settings that a grid would try."""
    for workers in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if workers <= most:
            yield from (Setting(workers, ahead) for ahead in (2, 4, 8, 16))
