"""Main and its consumer in the simulated network, with workers and without."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from oracle_clock import Clock
from oracle_network import Costs, Worker, taking_s


class Barrier:
    """Where ranks wait for each other at the end of each step."""

    __slots__ = ("_ranks", "_waiting")

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._waiting: list[Callable[[], None]] = []

    def wait(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all ranks have come."""
        self._waiting.append(then)
        if len(self._waiting) == self._ranks:
            come, self._waiting = self._waiting, []
            for each in come:
                each()


class Consumer:
    """One rank's training loop: ask for a batch, step, ask for the next.

    Attributes:
        yields_s: When each batch was yielded.
    """

    __slots__ = ("_barrier", "_clock", "_costs", "_wanted", "yields_s")

    def __init__(self, clock: Clock, costs: Costs, *, wanted: int) -> None:
        """Get ready to begin; where ``join`` isn't called, without a barrier.

        Args:
            clock: Shared by all ranks.
            costs: Of this rank's batches and steps.
            wanted: Batches after which this rank is no longer open; it goes on meanwhile.
        """
        self._clock = clock
        self._costs = costs
        self._wanted = wanted
        self._barrier = Barrier(1)
        self.yields_s: list[float] = []
        clock.open += 1

    def join(self, barrier: Barrier) -> None:
        """Meet others at the end of each step."""
        self._barrier = barrier

    def ask(self) -> None:
        """Call ``next()``."""
        raise NotImplementedError

    def _yield(self) -> None:
        """A batch is there: step, then ask again."""
        count = len(self.yields_s)
        self.yields_s.append(self._clock.now)
        if count + 1 == self._wanted:
            self._clock.open -= 1
        if self._costs.step_cpu:
            self._clock.others += self._costs.step_threads - 1
            self._clock.compute(self._costs.step_cpu, self._stepped)
        else:
            self._step()

    def _stepped(self) -> None:
        self._clock.others -= self._costs.step_threads - 1
        self._step()

    def _step(self) -> None:
        # By the clock even where it takes no time: calls must not nest without end.
        self._clock.wait(self._costs.step_s, self._meet)

    def _meet(self) -> None:
        self._barrier.wait(self.ask)


class LoadingConsumer(Consumer):
    """A rank without workers: main loads each batch when it is asked for."""

    __slots__ = ("_turns",)

    def ask(self) -> None:
        """Load the next batch."""
        self._turns = len(self._costs.turns[0])
        self._compute()

    def _compute(self) -> None:
        self._turns -= 1
        seconds = self._costs.compute_s(len(self.yields_s), self._turns)
        self._clock.compute(seconds, self._computed)

    def _computed(self) -> None:
        wait_s, storage = self._costs.wait_s(len(self.yields_s), self._turns), self._costs.storage
        if self._turns:
            self._clock.wait(wait_s, self._compute)
            return
        if storage is not None:
            wait_s = max(wait_s, storage.serve(self._clock.now))
        self._clock.wait(wait_s, self._yield)


class FedConsumer(Consumer):
    """A rank with workers, and perhaps a pin thread between them and main."""

    __slots__ = (
        "_arrived",
        "_asking",
        "_in_order",
        "_next",
        "_now",
        "_put_by",
        "_sent",
        "_workers",
    )

    def __init__(
        self,
        clock: Clock,
        costs: Costs,
        workers: Sequence[Worker],
        *,
        wanted: int,
        in_order: bool,
    ) -> None:
        """Get ready to begin.

        Args:
            clock: Shared by all ranks.
            costs: Of this rank's batches and steps.
            workers: Of this rank, at rest.
            wanted: Batches after which this rank is no longer open.
            in_order: As torch has it.
        """
        super().__init__(clock, costs, wanted=wanted)
        self._workers = workers
        self._in_order = in_order
        self._arrived: deque[tuple[int, Worker]] = deque()
        self._put_by: dict[int, Worker] = {}
        self._now: tuple[int, Worker] | None = None
        self._asking = False
        self._next = 0
        self._sent = 0

    def prime(self, count: int) -> None:
        """Send so many batches' indices ahead."""
        for place in range(count):
            self._send(self._workers[place % len(self._workers)])

    def arrive(self, batch: int, worker: Worker) -> None:
        """A batch lies in the queue that main reads."""
        self._arrived.append((batch, worker))
        if self._asking:
            self._seek()

    def ask(self) -> None:
        """Look for the next batch; wait if it isn't there."""
        self._seek()

    def _send(self, worker: Worker) -> None:
        worker.give(self._sent)
        self._sent += 1

    def _seek(self) -> None:
        due = self._put_by.pop(self._next, None) if self._put_by else None
        self._asking = False
        if due is not None:
            self._hand_over(due)
        elif self._arrived:
            self._now = self._arrived.popleft()
            cpu = self._costs.main_cpu or self._costs.take_cpu
            self._clock.compute(cpu[self._now[0] % len(cpu)], self._computed)
        else:
            self._asking = True

    def _computed(self) -> None:
        if self._now is None or self._costs.main_cpu:
            self._taken()
            return
        wait_s = taking_s(self._costs, *self._now)
        if wait_s > 0.0:
            self._clock.wait(wait_s, self._taken)
        else:
            self._taken()

    def _taken(self) -> None:
        if self._now is None:
            return
        batch, worker = self._now
        self._now = None
        if self._in_order and batch != self._next:
            self._put_by[batch] = worker
            self._seek()
        else:
            self._hand_over(worker)

    def _hand_over(self, worker: Worker) -> None:
        turn = self._next % len(self._workers)
        self._next += 1
        self._send(self._workers[turn] if self._in_order else worker)
        self._yield()
