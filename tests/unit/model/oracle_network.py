"""The loader as a network of queues: workers, the pin thread, main and its consumer.

The parts behave as torch 2.13's do. Main sends ``W * P`` index lists ahead, batch ``k`` to worker
``k mod W``; for each batch that it yields it sends one more. It takes batches from the data queue
as they come, puts by those that are not yet due, and yields in order; with ``in_order=False`` it
yields what comes, and the next index goes to the worker that has just been relieved of a batch.
With ``pin_memory`` a thread takes the batches from the data queue instead, copies them, and hands
them to main.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from oracle_clock import Clock

from dlprof.model.work import Rows


@dataclasses.dataclass(slots=True, kw_only=True)
class Storage:
    """One storage for all ranks, which serves one request after the other.

    Attributes:
        batch_s: Seconds that a batch keeps it busy.
        free_s: When it will be free.
    """

    batch_s: float
    free_s: float = 0.0

    def serve(self, now: float) -> float:
        """Seconds until a request made now is served."""
        self.free_s = max(self.free_s, now) + self.batch_s
        return self.free_s - now


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What batches cost, column by column; batch ``k`` finds its own at ``k`` modulo the length.

    Attributes:
        cpu: CPU of fetching.
        io: Waiting in fetching.
        turns: A batch computes and waits by turns, for it has many samples: how much of each
            falls on which turn, one row for each kind of batch.
        take_cpu: CPU of main in taking a batch in; of the pin thread where there is one.
        take_io: Waiting in that, the batch's worker at rest.
        busy_s: What it takes longer while the worker computes.
        main_cpu: CPU of main behind the pin thread; empty where there is none.
        step_s: The consumer's step.
        step_cpu: CPU work in a step.
        step_threads: Threads that do it at once, each as much.
        storage: Shared by all; ``None`` for one without a limit.
    """

    cpu: Sequence[float]
    io: Sequence[float]
    turns: Sequence[Sequence[float]] = ((1.0,),)
    take_cpu: Sequence[float] = ()
    take_io: Sequence[float] = ()
    busy_s: float = 0.0
    main_cpu: Sequence[float] = ()
    step_s: float = 0.0
    step_cpu: float = 0.0
    step_threads: float = 1.0
    storage: Storage | None = None

    def compute_s(self, batch: int, turn: int) -> float:
        """CPU seconds of fetching that fall on a turn of a batch."""
        return self.cpu[batch % len(self.cpu)] * self.turns[batch % len(self.turns)][turn]

    def wait_s(self, batch: int, turn: int) -> float:
        """Seconds of waiting in fetching that fall on a turn of a batch."""
        # Another row than for computing: samples that compute for long need not wait for long.
        share = self.turns[(batch + 1) % len(self.turns)][turn]
        return self.io[batch % len(self.io)] * share


def costs_of(rows: Rows, *, pinned: bool) -> dict[str, tuple[float, ...]]:
    """The columns of ``Costs`` from rows as ``Work`` holds them."""
    cpu, io, receive_cpu, receive_io, main_cpu, pin = zip(*rows, strict=True)
    behind = pin if pinned else main_cpu
    take = tuple(a + b for a, b in zip(receive_cpu, behind, strict=True))
    found = {"cpu": cpu, "io": io, "take_cpu": take, "take_io": receive_io}
    return {**found, "main_cpu": main_cpu} if pinned else found


class Sink(Protocol):
    """Where workers put their batches."""

    def arrive(self, batch: int, worker: Worker) -> None:
        """A batch lies in the data queue."""


class Worker:
    """A worker process: one batch at a time, in the order of its index queue.

    Attributes:
        computing: Whether it needs a core at this moment.
    """

    __slots__ = (
        *("_batch", "_clock", "_costs", "_sink", "_tasks", "_turns"),
        "computing",
    )

    def __init__(self, clock: Clock, costs: Costs) -> None:
        self._clock = clock
        self._costs = costs
        self._sink: Sink | None = None
        self._tasks: deque[int] = deque()
        self._batch = -1
        self._turns = 0
        self.computing = False

    def connect(self, sink: Sink) -> None:
        """Tell it where its batches go."""
        self._sink = sink

    def give(self, batch: int) -> None:
        """Send it a batch's indices."""
        if self._batch < 0:
            self._begin(batch)
        else:
            self._tasks.append(batch)

    def _begin(self, batch: int) -> None:
        self._batch = batch
        self._turns = len(self._costs.turns[0])
        self._compute()

    def _compute(self) -> None:
        self.computing = True
        self._turns -= 1
        self._clock.compute(self._costs.compute_s(self._batch, self._turns), self._computed)

    def _computed(self) -> None:
        self.computing = False
        wait_s, storage = self._costs.wait_s(self._batch, self._turns), self._costs.storage
        if self._turns:
            self._clock.wait(wait_s, self._compute)
            return
        if storage is not None:
            wait_s = max(wait_s, storage.serve(self._clock.now))
        if wait_s > 0.0:
            self._clock.wait(wait_s, self._loaded)
        else:
            self._loaded()

    def _loaded(self) -> None:
        batch = self._batch
        if self._tasks:
            self._begin(self._tasks.popleft())
        else:
            self._batch = -1
        if self._sink is not None:
            self._sink.arrive(batch, self)


class PinThread:
    """Takes batches from the data queue, copies them to page-locked memory, hands them on."""

    __slots__ = ("_arrived", "_clock", "_costs", "_main", "_now")

    def __init__(self, clock: Clock, costs: Costs, main: Sink) -> None:
        self._clock = clock
        self._costs = costs
        self._main = main
        self._arrived: deque[tuple[int, Worker]] = deque()
        self._now: tuple[int, Worker] | None = None

    def arrive(self, batch: int, worker: Worker) -> None:
        """A batch lies in the data queue."""
        self._arrived.append((batch, worker))
        if self._now is None:
            self._take()

    def _take(self) -> None:
        self._now = self._arrived.popleft()
        cpu = self._costs.take_cpu
        self._clock.compute(cpu[self._now[0] % len(cpu)], self._computed)

    def _computed(self) -> None:
        if self._now is not None:
            self._clock.wait(taking_s(self._costs, *self._now), self._taken)

    def _taken(self) -> None:
        taken, self._now = self._now, None
        if self._arrived:
            self._take()
        if taken is not None:
            self._main.arrive(*taken)


def taking_s(costs: Costs, batch: int, worker: Worker) -> float:
    """Seconds of waiting in taking a batch in: the handshake waits for a worker that computes."""
    wait_s = costs.take_io[batch % len(costs.take_io)]
    return wait_s + costs.busy_s if worker.computing else wait_s
