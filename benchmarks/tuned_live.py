"""Trainings of real loaders that take turns, one tuned, each in a process of its own.

A training is held where its next sample begins, its workers too, and its clock stands still until
it goes on: so it takes no notice of the others, nor does ``dlprof.tune``, which reads that clock. A
sample that has begun is finished meanwhile, the same for each of them.

First a small grid of settings that stay is tried. The fastest goes on in a process of its own that
is as fresh as the others': it was the luckiest of its grid, by how its memory lay, too. Then the
tuned training has the machine until it tries nothing any more, and takes turns with its two twins.
Then something happens, and all of this comes once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import os
import random
import select
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from crowd import neighbours
from emulated_cores import EmulatedCores, EmulatedData, Plan
from emulated_cores import collate as emulated_collate
from picks_report import at_usual_speed
from rivals import Shot
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from worlds import World, emulated_worlds, real_worlds

import dlprof
from dlprof.errors import NothingMeasuredError
from dlprof.machine.core_speed import SpeedProbe
from dlprof.records import Config
from dlprof.targets.build import build_target
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target
from dlprof.tuning import loader as tuner
from dlprof.tuning import seeding
from dlprof.tuning.control import NO_WORKERS, Setting

MOST_WORKERS = 16
GRID = (
    NO_WORKERS,
    *(Setting(1, 2), Setting(2, 2), Setting(4, 2), Setting(4, 8), Setting(8, 2), Setting(16, 2)),
)
"""Settings that stay."""

STARTS = (1, 2, 2, 4, 8)
"""Workers that a loader may have before it is tuned, as in the replays."""

QUIET = "quiet"
EVENTS = ("load comes", "step halves")
SURE = 0.01
"""Standard error from which a figure is known."""

Name = Literal["tuned", "best", "untuned"]
NAMES: tuple[Name, ...] = get_args(Name)

EPOCH_S = 20.0
"""Some settings come at an epoch's edge only."""

_ENDLESS = 1 << 40  # samples
_SHUFFLED = 400_000  # more would take long to shuffle
_HOPELESS = 0.8  # of the fastest: what stays below it without a step isn't tried with one
_FINALISTS = 3
_END_S = 10.0
_MOST_TURNS = 4000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How long things take, in seconds.

    Attributes:
        grid: Settings that stay.
        slice_s: Of a turn of the grid.
        rounds: Of the grid with its step, and as many of the fastest.
        turn_s: Of a turn of the three trainings.
        least_rounds: Of these in each phase.
        settle_s: The tuned one goes on alone at least so long in each phase, and at most.
    """

    grid: Sequence[Setting] = GRID
    slice_s: float = 0.4
    rounds: int = 3
    turn_s: float = 1.0
    least_rounds: int = 6
    settle_s: tuple[float, float] = (40.0, 60.0)  # in which what brought nothing is tried again


QUICK = Design(
    grid=(Setting(1, 2), Setting(2, 2)),
    slice_s=0.2,
    rounds=1,
    turn_s=0.3,
    least_rounds=2,
    settle_s=(1.0, 1.0),
)

# What a training and its owner share: the clock, as far as it is ahead of the training's or, where
# that stands still, -1 less the training's; the step; the number of the turn; and flags.
_CLOCK, _STEP, _TURN, _READY, _RESTS, _OVER = range(6)


class Gate:
    """Lets a training go on, or holds it. Made before its process is forked."""

    def __init__(self) -> None:
        self._state = RawArray("d", 6)
        self._state[_CLOCK] = -1.0
        self._counts = RawArray("d", 4 * _MOST_TURNS)
        self._last_s = 0.0  # by the training's clock, when a batch came
        # It can be read from while the gate is open; and to its end when the owner is gone.
        self._reader, self._writer = os.pipe()

    # The owner's.

    def open(self) -> None:
        """Let it go on: another turn begins."""
        self._state[_TURN] += 1
        self._state[_CLOCK] = time.perf_counter() + self._state[_CLOCK] + 1
        os.write(self._writer, b".")

    def close(self) -> int:
        """Hold it; the number of the turn that has ended."""
        os.read(self._reader, 1)
        self._state[_CLOCK] = self._state[_CLOCK] - time.perf_counter() - 1
        return int(self._state[_TURN])

    def end(self) -> None:
        """Let it go on to its end."""
        self._state[_OVER] = 1
        self.open()

    def counted(self, turn: int, *, restart: bool = False) -> tuple[float, float]:
        """Batches of a turn, the first of an epoch or the others, and what they took.

        By the training's clock: each took what passed since the one before, of whatever epoch.
        """
        at = self._place(turn, restart=restart)
        return self._counts[at], self._counts[at + 1]

    @staticmethod
    def _place(turn: int, *, restart: bool) -> int:
        return 4 * min(turn, _MOST_TURNS - 1) + 2 * restart

    def set_step(self, seconds: float) -> None:
        """What each step takes from now on."""
        self._state[_STEP] = seconds

    @property
    def is_ready(self) -> bool:
        """Whether its workers were started."""
        return bool(self._state[_READY])

    @property
    def rests(self) -> bool:
        """Whether it tries nothing any more."""
        return bool(self._state[_RESTS])

    def disown(self) -> None:
        """Called in processes that don't own it."""
        os.close(self._writer)

    def forget(self) -> None:
        """The training has ended."""
        os.close(self._reader)
        os.close(self._writer)

    # The training's.

    @property
    def is_over(self) -> bool:
        """Whether it is to end."""
        return bool(self._state[_OVER])

    @property
    def turn(self) -> int:
        """The number of the turn."""
        return int(self._state[_TURN])

    def clock(self) -> float:
        """The training's."""
        ahead_s: float = self._state[_CLOCK]
        return time.perf_counter() - ahead_s if ahead_s >= 0 else -ahead_s - 1

    def wait(self) -> None:
        """Wait until it may go on; without an owner the process ends here."""
        while self._state[_CLOCK] < 0:
            poll = select.poll()
            poll.register(self._reader, select.POLLIN)
            if not all(event & select.POLLIN for _, event in poll.poll()):
                os._exit(1)

    def step(self) -> None:
        """The training's step: an accelerator works, and this process sleeps."""
        end_s = self.clock() + self._state[_STEP]
        while True:
            self.wait()
            left_s = end_s - self.clock()
            if left_s <= 0:
                return
            time.sleep(left_s)

    def count(self, *, restart: bool) -> None:
        """One more batch."""
        now_s, at = self.clock(), self._place(self.turn, restart=restart)
        self._counts[at] += 1
        self._counts[at + 1] += now_s - self._last_s
        self._last_s = now_s

    def note(self, *, ready: bool, rests: bool) -> None:
        """Let the owner know."""
        self._state[_READY], self._state[_RESTS] = ready, rests


class _Gated(Dataset[Any]):
    """A map-style dataset whose samples have their numbers."""

    def __init__(self, gate: Gate, data: Any) -> None:
        self._gate, self._data = gate, data

    def __getitem__(self, index: int) -> tuple[int, Any]:
        self._gate.wait()
        return index, self._data[index]


class _GatedStream(IterableDataset[Any]):
    """An iterable dataset of so many batches, whose samples have their numbers in the order due."""

    def __init__(self, gate: Gate, data: Any, batch_size: int, batches: int) -> None:
        self._gate, self._data, self._size, self._batches = gate, data, batch_size, batches

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for count, sample in enumerate(self._data):
            batch, place = divmod(count, self._size)
            batch = batch * step + first
            if batch >= self._batches:
                return
            self._gate.wait()
            yield batch * self._size + place, sample


class _Timed(Sampler[int]):
    """A sampler whose epochs are over after some time of the training's, however fast it is.

    Attributes:
        batches: That were drawn in this epoch.
    """

    def __init__(self, gate: Gate, order: Any, batch_size: int, epoch_s: float) -> None:
        self._gate, self._order, self._size, self._epoch_s = gate, order, batch_size, epoch_s
        self.batches = 0

    def __iter__(self) -> Iterator[int]:
        self.batches, edge_s = 0, self._gate.clock() + self._epoch_s
        for place, index in enumerate(self._order):
            if place % self._size == 0:
                if self._gate.clock() >= edge_s:
                    return
                self.batches += 1
            yield index

    def __len__(self) -> int:
        return len(self._order)


class _Numbered:
    """A ``collate_fn`` that keeps the numbers of the samples beside the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Sequence[tuple[int, Any]]) -> tuple[list[int], Any]:
        return [number for number, _ in samples], self._collate([sample for _, sample in samples])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is loaded.

    Attributes:
        make: Makes the dataset, in the process that is to load it.
        batch_size: Samples of a batch.
        collate: Makes a batch of samples.
        shuffled: Whether they come in a random order.
        emulated_cores: That it computes on; 0 for real ones.
    """

    make: Callable[[], Any]
    batch_size: int
    collate: Callable[[list[Any]], Any]
    shuffled: bool = False
    emulated_cores: int = 0

    @classmethod
    def of(cls, world: World) -> Source:
        """What ``picks.py`` loads under that name.

        Raises:
            DlprofError: It can't be built.
        """
        if world.target is None:
            context = multiprocessing.get_context("fork")

            def make() -> EmulatedData:
                cores = EmulatedCores(world.cores, MOST_WORKERS + 1, context)
                return EmulatedData(load, cores, 0, Plan())

            load: Any = world.load
            return cls(
                make=make,
                batch_size=load.batch_size,
                collate=emulated_collate,
                emulated_cores=world.cores,
            )
        spec = parse_target(world.target)
        if spec.kind == "builtin":
            prepare(spec, lambda *_: None)
        parts: Any = build_target(spec).parts
        own = parts.build({"num_workers": 0})
        return cls(
            make=lambda: own.dataset,
            batch_size=own.batch_size,
            collate=own.collate_fn,
            shuffled=isinstance(own.sampler, RandomSampler),
        )

    def order(self) -> Any:
        """A sampler of more than are loaded; two of them draw the same."""
        if not self.shuffled:
            return SequentialSampler(range(_ENDLESS))
        return RandomSampler(range(_SHUFFLED), generator=torch.Generator().manual_seed(0))

    def loader(
        self,
        gate: Gate,
        setting: Setting,
        *,
        epoch_s: float = math.inf,
        batches: int = _ENDLESS,
    ) -> DataLoader[Any]:
        """Loads epochs that end after some time, or after so many batches of a stream."""
        data, size = self.make(), self.batch_size
        is_stream = isinstance(data, IterableDataset)
        gated: Any = _GatedStream(gate, data, size, batches) if is_stream else _Gated(gate, data)
        order = self.order()
        return DataLoader(
            gated,
            batch_size=size,
            sampler=None if is_stream else _Timed(gate, order, size, epoch_s),
            collate_fn=_Numbered(self.collate),
            num_workers=setting.workers,
            prefetch_factor=setting.ahead or None,
            drop_last=not is_stream,
        )

    def due(self, loader: DataLoader[Any]) -> Callable[[], Iterator[list[int]]]:
        """The numbers of each batch of an epoch, in the order in which they are due."""
        size = self.batch_size
        if isinstance(loader.dataset, IterableDataset):
            return lambda: (list(range(n, n + size)) for n in itertools.count(step=size))
        again = torch.utils.data.BatchSampler(self.order(), size, drop_last=True)
        return lambda: iter(again)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a training says in the end.

    Attributes:
        disordered: Batches with other samples than were due.
        most_workers: That it had at once.
        kept: Its setting.
        changes: What was tried on it, a line each.
    """

    disordered: int
    most_workers: int
    kept: str
    changes: Sequence[str]


def _train(
    source: Source,
    setting: Setting,
    gates: Sequence[Gate],
    results: Connection,
    epoch_batches: int | None,
    *,
    tuned: bool,
) -> None:
    """The process of a training: to its end, or its owner's."""
    os.setsid()  # what its owner ends it by, workers and all
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the owner's, who ends it then
    owner, gate = os.getppid(), gates[-1]
    for each in gates:
        each.disown()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of more workers than cores
    if source.emulated_cores:
        with contextlib.suppress(OSError):  # takes little CPU, but wants it at once
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    tuning = None
    if epoch_batches is None:
        loader = source.loader(gate, setting)
    else:
        loader = source.loader(gate, setting, epoch_s=EPOCH_S, batches=epoch_batches)
    if tuned:
        _share_clock(gate, source)
        given: Any = dlprof.tune(loader, max_workers=MOST_WORKERS)
        tuning = given.tuning
    due, disordered, most_workers = source.due(loader), 0, 0
    while not gate.is_over:
        others, workers = _epoch(gate, loader, due(), owner, tuning)
        disordered, most_workers = disordered + others, max(most_workers, workers)
    results.send(
        Ended(
            disordered=disordered,
            most_workers=most_workers,
            kept=key(setting if tuning is None else Setting(*_kept(tuning.kwargs))),
            changes=[] if tuning is None else str(tuning).splitlines(),
        )
    )


def _epoch(
    gate: Gate, loader: DataLoader[Any], due: Iterator[list[int]], owner: int, tuning: Any
) -> tuple[int, int]:
    """One epoch; batches with other samples than were due, and the workers that there ever were."""
    iterator, disordered, count = iter(loader), 0, 0
    workers = most_workers = len(multiprocessing.active_children())
    fill, turn = 2 * workers, gate.turn  # the first ones wait for workers and queues
    gate.note(ready=True, rests=False)
    for count, (numbers, _) in enumerate(iterator, 1):
        gate.count(restart=count <= fill)
        disordered += numbers != next(due, None)
        gate.step()
        if tuning is not None:
            gate.note(ready=True, rests=tuning._control.resting)  # noqa: SLF001 - nothing public says so
        if gate.turn != turn:
            turn, now = gate.turn, len(multiprocessing.active_children())
            most_workers = max(most_workers, now)
        if os.getppid() != owner:
            os._exit(1)
        if gate.is_over:
            return disordered, most_workers
    next(due, None)  # a RandomSampler draws once more at its end, as the loader's did
    lost = loader.sampler.batches - count if isinstance(loader.sampler, _Timed) else 0
    return disordered + lost, most_workers


def _kept(kwargs: Mapping[str, int]) -> tuple[int, int]:
    return kwargs["num_workers"], kwargs.get("prefetch_factor", 0)


def key(setting: Setting) -> str:
    """As ``picks.py`` names it."""
    workers, ahead, _ = setting
    return Config(num_workers=workers, prefetch_factor=ahead or None).canonical().key


def _share_clock(gate: Gate, source: Source) -> None:
    """Have ``dlprof.tune`` take no notice of turns that aren't this training's."""
    clock: Any = SimpleNamespace(**vars(time))
    clock.perf_counter = gate.clock
    clock.perf_counter_ns = lambda: int(1e9 * gate.clock())
    vars(tuner)["time"] = vars(seeding)["time"] = clock
    if source.emulated_cores:
        vars(tuner)["usable_cores"] = lambda: source.emulated_cores


class Arm:
    """A training in a process of its own, which its owner lets go on and ends.

    ``gates`` are those of the owner's other trainings. Its epochs end where ``epoch_batches`` says
    how many a stream has.
    """

    def __init__(
        self,
        source: Source,
        setting: Setting,
        gates: Sequence[Gate] = (),
        epoch_batches: int | None = None,
        *,
        tuned: bool = False,
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.gate, self.setting = Gate(), setting
        self._results, self._theirs = context.Pipe(duplex=False)
        given = (source, setting, (*gates, self.gate), self._theirs, epoch_batches)
        self._process = context.Process(target=_train, args=given, kwargs={"tuned": tuned})

    def start(self) -> None:
        """Start its process, held at its beginning; whoever owns it ends it from here on."""
        self._process.start()
        self._theirs.close()

    def wait_until_ready(self) -> None:
        """Until its workers were started."""
        while not self.gate.is_ready and self._process.is_alive():
            time.sleep(0.01)

    def end(self) -> Ended | None:
        """End it, workers and all; what it says, and ``None`` where it says nothing."""
        said, began = None, self._process.ident is not None
        try:
            self._theirs.close()
            self.gate.end()
            with contextlib.suppress(EOFError):
                said = self._results.recv() if self._results.poll(_END_S) else None
        finally:
            if began:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)  # its own group
                self._process.kill()
                self._process.join()
            self._results.close()
            self.gate.forget()
        return said

    @property
    def pid(self) -> int:
        """Of its main process, and of its group; 0 before it is started."""
        return self._process.ident or 0

    @property
    def lives(self) -> bool:
        """Whether its main process goes on."""
        return self._process.is_alive()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a training did in one turn.

    Attributes:
        phase: ``quiet``, or what had happened.
        arm: Which training.
        round: Of the phase; -1 where the tuned one went on alone.
        batches: That came, the first ones of an epoch left out.
        seconds: That these took, by the training's clock.
        restart_batches: The first ones of an epoch, as many as its workers have ahead.
        restart_s: That these took, from the last one of the epoch before.
        whole_s: That the turn took by that clock, whether or not a batch came.
        speed: Of the cores, as dlprof's probe saw it; ``None`` where it did not.
    """

    phase: str
    arm: Name
    round: int
    batches: float
    seconds: float
    restart_batches: float
    restart_s: float
    whole_s: float
    speed: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """One training, tuned, and its twins.

    Attributes:
        world: Name of the dataset.
        event: What happened, after a quiet time.
        start: The setting to begin with.
        best: The one of the grid that stays.
        step_s: At first.
        turns: Of all three.
        rested: Phases at whose beginning it came to try nothing any more while it was alone.
        disordered: Batches with other samples than were due, of all three.
        most_workers: Of the tuned one.
        kept: Its setting in the end.
        changes: What was tried, a line each.
    """

    world: str
    event: str
    start: str
    best: str
    step_s: float
    turns: Sequence[Turn]
    rested: Sequence[str]
    disordered: int
    most_workers: int
    kept: str
    changes: Sequence[str]


def rates(turns: Sequence[Turn]) -> list[tuple[Turn, float]]:
    """Batches a second in each turn that had some, at the cores' usual speed.

    Of one that goes on alone all batches count, and all of the time.
    """
    some = [
        (turn, batches, seconds)
        for turn in turns
        for batches, seconds in [
            (turn.batches, turn.seconds)
            if turn.round >= 0
            else (turn.batches + turn.restart_batches, turn.whole_s)
        ]
        if batches and seconds > 0
    ]
    made = at_usual_speed(
        [
            {
                # What goes on alone changes as it does: nothing there has a mean.
                (turn.phase, turn.arm, -1 if turn.round >= 0 else number): Shot(
                    rate=batches / seconds, cost_s=seconds, speed=turn.speed
                )
            }
            for number, (turn, batches, seconds) in enumerate(some)
        ]
    )
    return [
        (each, rate) for (each, *_), one in zip(some, made, strict=True) for rate in one.values()
    ]


def against(turns: Sequence[Turn], other: Name, phase: str) -> tuple[float, float]:
    """Logarithm of the tuned one's rate over another's in a phase, and its standard error.

    A round in which one of the two had no batch goes with the next in which both had some: there
    the time of both is counted. After the last of these it goes with that one. What goes together
    counts by its rounds.
    """
    found = {(turn.round, turn.arm): turn for turn in turns if turn.phase == phase}
    made = {
        (turn.round, turn.arm): rate * turn.seconds
        for turn, rate in rates(turns)
        if turn.phase == phase
    }
    both: tuple[Name, Name] = ("tuned", other)
    places = [place for place, arm in found if arm == other and (place, "tuned") in found]
    known = [place for place in places if all((place, arm) in made for arm in both)]
    if len(known) < 2:
        return 0.0, math.inf

    def log_rate(arm: Name, group: Sequence[int]) -> float:
        seconds = 0.0
        for turn in (found[place, arm] for place in group):
            late = turn.round > known[-1] and not turn.seconds  # is counted nowhere
            seconds += max(0.0, turn.whole_s - turn.restart_s) if late else turn.seconds
        return math.log(math.fsum(made.get((place, arm), 0.0) for place in group) / seconds)

    edges = [-1, *known[:-1], places[-1]]
    groups = [[p for p in places if after < p <= last] for after, last in itertools.pairwise(edges)]
    logs = [log_rate("tuned", group) - log_rate(other, group) for group in groups]
    counts = [len(group) for group in groups]
    mean = statistics.fmean(logs, counts)
    spread = math.fsum((n * (log - mean)) ** 2 for n, log in zip(counts, logs, strict=True))
    return mean, math.sqrt(spread * len(logs) / (len(logs) - 1)) / sum(counts)


def restarts(turns: Sequence[Turn], phase: str, arm: Name = "tuned") -> float:
    """Share of its time that a training loses to epoch restarts in the rounds of a phase.

    That is what the first batches of epochs took beyond what as many of its others take.
    """
    own = [t for t in turns if t.phase == phase and t.arm == arm and t.round >= 0]
    whole_s, batches = math.fsum(t.whole_s for t in own), math.fsum(t.batches for t in own)
    if not (whole_s and batches):
        return 0.0
    each_s = math.fsum(turn.seconds for turn in own) / batches
    return math.fsum(t.restart_s - t.restart_batches * each_s for t in own) / whole_s


def settling(turns: Sequence[Turn], phase: str) -> tuple[float, float]:
    """Seconds that the tuned one went on alone, and those of them that it lost on the best.

    Its epoch restarts are in these, and so are those that the best one has in as long.
    """
    known = [(turn, rate) for turn, rate in rates(turns) if turn.phase == phase]
    logs = [math.log(rate) for turn, rate in known if turn.arm == "best"]
    alone = math.fsum(turn.whole_s * rate for turn, rate in known if turn.round < 0)
    took_s = math.fsum(t.whole_s for t in turns if t.phase == phase and t.round < 0)
    if not logs:
        return took_s, 0.0
    best = math.exp(statistics.fmean(logs)) * (1 - restarts(turns, phase, "best"))
    return took_s, took_s - alone / best


class _Stage:
    """The trainings of one dataset, of which one goes on at a time."""

    def __init__(self, source: Source, design: Design) -> None:
        self._source, self._design = source, design
        self.arms: list[Arm] = []
        self._probe = SpeedProbe()
        self._taken: list[tuple[str, Name, int, Arm, int, float, float | None]] = []

    def start(
        self, setting: Setting, epoch_batches: int | None = None, *, tuned: bool = False
    ) -> Arm:
        """One more, held at its beginning."""
        gates = [arm.gate for arm in self.arms]
        self.arms.append(Arm(self._source, setting, gates, epoch_batches, tuned=tuned))
        self.arms[-1].start()
        return self.arms[-1]

    def drop(self, arm: Arm) -> Ended:
        """End one of them.

        Raises:
            NothingMeasuredError: It failed.
        """
        self.arms.remove(arm)
        said = arm.end()
        if said is None:
            raise NothingMeasuredError(f"a training with {arm.setting} failed")
        return said

    def close(self) -> None:
        """End all of them, also where one can't be, or where this is interrupted."""
        if self.arms:
            try:
                self.arms.pop().end()
            finally:
                self.close()

    def go_on(self, arm: Arm, seconds: float) -> tuple[int, float | None]:
        """Let one go on for so long; the number of its turn, and the speed of the cores.

        Raises:
            NothingMeasuredError: It failed.
        """
        self._probe.start()
        arm.gate.open()
        try:
            time.sleep(seconds)
        finally:
            turn = arm.gate.close()
            self._probe.stop()
        if not arm.lives:
            raise NothingMeasuredError(f"a training with {arm.setting} failed")
        return turn, self._probe.mean

    def take(self, phase: str, name: Name, place: int, arm: Arm) -> None:
        """The same, and it counts."""
        began_s = arm.gate.clock()
        turn, speed = self.go_on(arm, self._design.turn_s)
        self._taken.append((phase, name, place, arm, turn, arm.gate.clock() - began_s, speed))

    def turns(self) -> list[Turn]:
        """What counted so far."""
        found = []
        for phase, name, place, arm, turn, whole_s, speed in self._taken:
            batches, seconds = arm.gate.counted(turn)
            restart_batches, restart_s = arm.gate.counted(turn, restart=True)
            found.append(
                Turn(
                    phase=phase,
                    arm=name,
                    round=place,
                    batches=batches,
                    seconds=seconds,
                    restart_batches=restart_batches,
                    restart_s=restart_s,
                    whole_s=whole_s,
                    speed=speed,
                )
            )
        return found


def most_with_step(rate: float, step_s: float, setting: Setting) -> float:
    """Batches a second with a step, at most, of a loader that gives so many without one."""
    if setting.workers:
        return min(rate, 1 / step_s)
    return 1 / (1 / rate + step_s)


class _Grid:
    """Finds the best setting that stays.

    Attributes:
        step_s: As long as a batch takes without a step with the fastest of them.
        rates: Of those that were tried without a step.
    """

    def __init__(self, stage: _Stage, design: Design, settings: Sequence[Setting]) -> None:
        self._stage, self._design = stage, design
        self._rng = random.Random(5)
        self._arms = [stage.start(each) for each in settings]
        self.rates: dict[Setting, float] = {}
        self.step_s = 0.0

    def best(self, event: str) -> Setting:
        """The fastest, with the step as it will be; all of them are ended."""
        for arm in self._arms:
            arm.wait_until_ready()
        for arm in self._arms:
            self.rates[arm.setting] = self._rate(arm, least=max(8, arm.setting.workers))
        fastest = max(self.rates.values())
        if fastest <= 0:
            raise NothingMeasuredError("no setting gave a batch in time")
        self.step_s = 1 / fastest
        step_s = self.step_s / 2 if event == "step halves" else self.step_s
        most = {
            each: most_with_step(rate, step_s, each) if rate else 0.0
            for each, rate in self.rates.items()
        }
        self._keep([each for each in most if most[each] >= _HOPELESS * max(most.values())])
        seen: dict[Arm, list[tuple[float, float]]] = {arm: [] for arm in self._arms}
        for arm in self._arms:
            arm.gate.set_step(step_s)
            self._stage.go_on(arm, self._design.slice_s)  # what was in its queues
        for place in range(2 * self._design.rounds):
            if place == self._design.rounds:
                ranked = sorted(self._arms, key=lambda arm: -_rate_of(seen[arm]))
                self._keep([arm.setting for arm in ranked[:_FINALISTS]])
            for arm in self._rng.sample(self._arms, len(self._arms)):
                turn, _ = self._stage.go_on(arm, self._design.slice_s)
                seen[arm].append(arm.gate.counted(turn))
        best = max(self._arms, key=lambda arm: _rate_of(seen[arm]))
        self._keep([])
        return best.setting

    def _rate(self, arm: Arm, least: int) -> float:
        seen: list[tuple[float, float]] = []
        for _ in range(5):
            turn, _speed = self._stage.go_on(arm, self._design.slice_s)
            seen.append(arm.gate.counted(turn))
            if sum(batches for batches, _ in seen) >= least:
                break
        return _rate_of(seen)

    def _keep(self, settings: Sequence[Setting]) -> None:
        for arm in [each for each in self._arms if each.setting not in settings]:
            self._arms.remove(arm)
            self._stage.drop(arm)


def _rate_of(seen: Sequence[tuple[float, float]]) -> float:
    batches, seconds = (math.fsum(each) for each in zip(*seen, strict=True))
    return batches / seconds if seconds > 0 else 0.0


def event_of(world: str) -> str:
    """What happens to a dataset's trainings: emulated cores feel no others."""
    names = [each.name for each in real_worlds()]
    return EVENTS[names.index(world) % 2] if world in names else "step halves"


def live(world: World, design: Design, seconds: float) -> Lived:
    """Have a dataset's training tuned, and its twins, for so long.

    Raises:
        DlprofError: It can't be built, or a training failed.
    """
    due_s, event = time.monotonic() + seconds, event_of(world.name)
    start = Setting(random.Random(world.name).choice(STARTS), 2)
    source = Source.of(world)
    stage = _Stage(source, design)
    with contextlib.ExitStack() as stack:
        stack.callback(stage.close)
        grid = _Grid(stage, design, list(dict.fromkeys([*design.grid, start])))
        best = grid.best(event)
        slow = most_with_step(grid.rates[start] or 1.0, grid.step_s, start)
        batches = max(16, round(EPOCH_S * slow))
        arms: dict[Name, Arm] = {
            "tuned": stage.start(start, batches, tuned=True),
            "best": stage.start(best, batches),
            "untuned": stage.start(start, batches),
        }
        for arm in arms.values():
            arm.gate.set_step(grid.step_s)
            arm.wait_until_ready()
        rested = []
        if _phase(stage, design, arms, QUIET, until_s=lambda now_s: now_s + 0.4 * (due_s - now_s)):
            rested.append(QUIET)
        if event == "step halves":
            for arm in arms.values():
                arm.gate.set_step(grid.step_s / 2)
        else:
            stack.enter_context(neighbours(1))
        if _phase(stage, design, arms, event, until_s=lambda _: due_s):
            rested.append(event)
        said = {name: stage.drop(arm) for name, arm in arms.items()}
        turns = stage.turns()
    return Lived(
        world=world.name,
        event=event,
        start=key(start),
        best=key(best),
        step_s=grid.step_s,
        turns=turns,
        rested=rested,
        disordered=sum(each.disordered for each in said.values()),
        most_workers=said["tuned"].most_workers,
        kept=said["tuned"].kept,
        changes=said["tuned"].changes,
    )


def _phase(
    stage: _Stage,
    design: Design,
    arms: Mapping[Name, Arm],
    phase: str,
    until_s: Callable[[float], float],
) -> bool:
    """The tuned one alone until it rests, then all three; whether it came to rest.

    ``until_s`` says, by when that begins, how long they go on where they aren't known by then.
    """
    began_s, tuned, rng = time.monotonic(), arms["tuned"], random.Random(phase)
    least_s, most_s = design.settle_s
    taken_s = 0.0
    while taken_s < most_s and (taken_s < least_s or not tuned.gate.rests):
        stage.take(phase, "tuned", -1, tuned)
        taken_s = time.monotonic() - began_s
    rests, place = tuned.gate.rests, 0
    for name in ("best", "untuned"):
        stage.go_on(arms[name], design.turn_s)  # what was in its queues
    due_s = until_s(time.monotonic())
    while place < design.least_rounds or (
        time.monotonic() < due_s
        and any(against(stage.turns(), other, phase)[1] > SURE for other in NAMES[1:])
    ):
        for name in rng.sample(NAMES, len(NAMES)):
            stage.take(phase, name, place, arms[name])
        place += 1
    return rests


def worlds() -> list[World]:
    """All datasets."""
    return [*real_worlds(), *emulated_worlds()]
