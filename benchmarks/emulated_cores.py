"""Real DataLoaders on emulated cores: many cores and ranks on a machine with two.

A dataset's CPU phase means "hold one of C tokens and sleep": as many phases go on at once as
there are tokens, and none of them takes a real core. Tokens go round in slices, as a kernel lets
threads take turns, and are handed from one process straight to the next that waits. A slice is
counted from when the token's last one ended by plan, so that what the real machine is late by
never makes the emulated one slower while anybody waits for a core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import queue
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkContext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from dlprof.records import BatchCosts, Config, Explanation, WorkerCosts

SLICE_S = 0.003
"""How long a token stays with one process while others wait; a kernel's slices are alike."""

EPOCH = 100
"""Samples of the dataset; the slow ones among them are the same in each epoch."""

_SAMPLES_SEED = 7
_CATCH_UP_S = 0.001
_PRIORITY = 1
_MOST_RANKS = 64
_APART = 1000  # epochs between what one rank and the next begin with
Sample = tuple[float, float, float, float]
Asked = tuple[float, float, torch.Tensor]
_NEVER = 1 << 62
_START_LIMIT_S = 60.0


class EmulatedCores:
    """Tokens that stand for cores, shared by processes that are forked later."""

    def __init__(self, count: int, seats: int, context: ForkContext) -> None:
        """Lay out the tokens.

        Args:
            count: Cores.
            seats: Processes that may compute; each uses its own number below this.
            context: Makes what is shared.
        """
        self._lock = context.Lock()
        self._free = context.Value("i", count, lock=False)
        self._queue = context.Array("i", seats + 1, lock=False)
        self._ends = context.Array("i", 2, lock=False)  # of the queue: first, one behind the last
        self._gates = [context.Semaphore(0) for _ in range(seats)]
        self._handed_s = context.Array("d", seats, lock=False)

    def compute(self, seconds: float, seat: int, *, since_s: float) -> tuple[float, float]:
        """Compute for so long on one emulated core.

        Args:
            seconds: CPU.
            seat: Of this process.
            since_s: When the process wanted to begin, by plan; now or a little earlier.

        Returns:
            The seconds spent without a core, and when it ended by plan.
        """
        start_s, queued_s = self._enter(seat, since_s)
        left_s = seconds
        while True:
            end_s = start_s + min(left_s, SLICE_S)
            left_s -= SLICE_S
            _sleep_until(end_s)
            if left_s <= 0:
                self._leave(end_s)
                return queued_s, end_s
            start_s = self._take_turns(seat, end_s)
            queued_s += start_s - end_s

    def _enter(self, seat: int, since_s: float) -> tuple[float, float]:
        """Get a core; returns when it was available, and how long that took."""
        with self._lock:
            if self._free.value > 0:
                self._free.value -= 1
                return since_s, 0.0
            self._push(seat)
        self._gates[seat].acquire()
        start_s = max(since_s, float(self._handed_s[seat]))
        return start_s, start_s - since_s

    def _leave(self, end_s: float) -> None:
        with self._lock:
            if not self._hand_over(end_s):
                self._free.value += 1

    def _take_turns(self, seat: int, end_s: float) -> float:
        """At a slice's end, let the first in the queue compute; returns when the next begins."""
        with self._lock:
            if not self._hand_over(end_s):
                return end_s
            self._push(seat)
        self._gates[seat].acquire()
        return max(end_s, float(self._handed_s[seat]))

    def _push(self, seat: int) -> None:
        self._queue[self._ends[1]] = seat
        self._ends[1] = (self._ends[1] + 1) % len(self._queue)

    def _hand_over(self, end_s: float) -> bool:
        first = self._ends[0]
        if first == self._ends[1]:
            return False
        self._ends[0] = (first + 1) % len(self._queue)
        seat = self._queue[first]
        self._handed_s[seat] = end_s
        self._gates[seat].release()
        return True


def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


class Plan:
    """What time it would be for a process if the real machine were never late.

    A phase begins when the one before it should have ended: what the real machine is late by, up
    to a millisecond, is made good by the next phase instead of adding up.
    """

    def __init__(self) -> None:
        self._planned_s = 0.0

    def now(self) -> float:
        """The time by plan, not long before the real one."""
        real_s = time.monotonic()
        if real_s - self._planned_s > _CATCH_UP_S:
            self._planned_s = real_s
        return self._planned_s

    def end_at(self, moment_s: float) -> None:
        """Sleep until then."""
        self._planned_s = moment_s
        _sleep_until(moment_s)

    def took(self, asked_s: float, got_s: float) -> None:
        """Something real took from then to then; a long time was a wait for others."""
        if got_s - asked_s < _CATCH_UP_S:
            self._planned_s += got_s - asked_s
        else:
            self._planned_s = got_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What samples cost.

    Attributes:
        cpu_s: CPU of a sample.
        io_s: Waiting of a sample.
        spread: Each sample costs up to this share more or less.
        slow: Of ``EPOCH`` samples, so many cost more, at random places.
        slow_factor: How many times as much.
        batch_size: Samples in a batch.
    """

    cpu_s: float = 0.0
    io_s: float = 0.0
    spread: float = 0.2
    slow: int = 0
    slow_factor: float = 1.0
    batch_size: int = 2

    def factors(self, epoch: int) -> tuple[float, ...]:
        """How many times its mean each sample of an epoch costs.

        All epochs have the same samples, in another order each: as with a real dataset.
        """
        even = [1 + self.spread * ((2 * place + 1) / EPOCH - 1) for place in range(EPOCH)]
        random.Random(_SAMPLES_SEED).shuffle(even)
        for place in range(self.slow):
            even[place] *= self.slow_factor
        random.Random(epoch).shuffle(even)
        return tuple(even)


class EmulatedData(Dataset[Sample]):
    """Samples that compute on emulated cores, then wait."""

    def __init__(self, load: Load, cores: EmulatedCores, first_seat: int, plan: Plan) -> None:
        self._load = load
        self._cores = cores
        self._first_seat = first_seat
        self._plan = plan  # each worker is forked with one of its own
        self._epoch = -1
        self._factors: tuple[float, ...] = ()

    def __len__(self) -> int:
        return _NEVER

    def __getitem__(self, index: int) -> Sample:
        """One sample: its CPU, how long it had no core, when it began and ended by plan."""
        info = get_worker_info()
        seat = self._first_seat + (info.id + 1 if info is not None else 0)
        epoch, place = divmod(index, EPOCH)
        if epoch != self._epoch:
            self._epoch, self._factors = epoch, self._load.factors(epoch)
        factor = self._factors[place]
        began_s = self._plan.now()
        cpu_s = self._load.cpu_s * factor
        queued_s, end_s = 0.0, began_s
        if cpu_s > 0:
            queued_s, end_s = self._cores.compute(cpu_s, seat, since_s=began_s)
        end_s += self._load.io_s * factor
        self._plan.end_at(end_s)
        return cpu_s, queued_s, began_s, end_s


def collate(samples: Sequence[Sample]) -> torch.Tensor:
    """A batch that says what it cost: CPU, time without a core, beginning and end by plan, end."""
    cpu_s = math.fsum(cpu for cpu, _, _, _ in samples)
    queued_s = math.fsum(queued for _, queued, _, _ in samples)
    figures = [cpu_s, queued_s, samples[0][2], samples[-1][3], time.monotonic()]
    return torch.tensor(figures, dtype=torch.float64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run.

    Attributes:
        load: What samples cost.
        config: The loader's settings.
        cores: Emulated cores.
        ranks: Loaders at once.
        step_s: The consumer sleeps so long for each batch.
        step_cpu_s: And computes so long on an emulated core.
        window_s: Measured at least, after the pipeline has filled.
        batches: And at least so many; whole epochs of a load with slow samples.
        seed: Decides in which order the samples come.
    """

    load: Load
    config: Config
    cores: int
    ranks: int = 1
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    window_s: float = 2.0
    batches: int = 50
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one rank saw in its window.

    Attributes:
        rate: Batches per second.
        span_s: Length of the window.
        cpu_s: Of each batch.
        io_s: Of each batch.
        queued_s: Of each batch.
        late_s: Mean seconds by which the real machine ended batches late.
        receive_s: Of each batch: what ``next()`` took, waiting for batches left out.
    """

    rate: float
    span_s: float
    cpu_s: tuple[float, ...]
    io_s: tuple[float, ...]
    queued_s: tuple[float, ...]
    late_s: float
    receive_s: tuple[float, ...] = ()


def run(setup: Setup) -> list[Ran]:
    """Run a loader on every rank at once; one result for each.

    Raises:
        RuntimeError: A rank ended without a result.
    """
    context = multiprocessing.get_context("fork")
    seats = setup.ranks * (setup.config.num_workers + 1)
    cores = EmulatedCores(setup.cores, seats, context)
    measured = context.Semaphore(0)
    all_done = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(setup.ranks)]
    processes = [
        context.Process(target=_rank, args=(setup, rank, cores, pipe[1], (measured, all_done)))
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            if not measured.acquire(timeout=_START_LIMIT_S + 20 * setup.window_s):
                raise RuntimeError(f"a rank of {setup} came to no end")
        all_done.set()
        return [reader.recv() for reader, _ in pipes]
    finally:
        all_done.set()
        for process in processes:
            process.join(_START_LIMIT_S)
            process.kill()


def _rank(
    setup: Setup, rank: int, cores: EmulatedCores, writer: Any, signals: tuple[Any, Any]
) -> None:
    """A rank's process: measure, say so, and go on until all have measured."""
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # takes little CPU, but wants it at once
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    first_seat, plan = rank * (setup.config.num_workers + 1), Plan()
    measured, all_done = signals
    loader = DataLoader(
        EmulatedData(setup.load, cores, first_seat, plan),
        batch_size=setup.load.batch_size,
        sampler=_From((setup.seed * _MOST_RANKS + rank) * _APART * EPOCH),
        collate_fn=collate,
        multiprocessing_context="fork" if setup.config.num_workers else None,
        **setup.config.dataloader_kwargs(),
    )
    batches: Any = iter(loader)
    timed = None
    if setup.config.num_workers:
        timed = batches._data_queue = _TimedQueue(batches._data_queue)  # noqa: SLF001 - as above

    def step() -> None:
        end_s = plan.now()
        if setup.step_cpu_s:
            _, end_s = cores.compute(setup.step_cpu_s, first_seat, since_s=end_s)
        plan.end_at(end_s + setup.step_s)

    def ask() -> Asked:
        before_s = timed.waited_s if timed is not None else 0.0
        asked_s = time.monotonic()
        batch = next(batches)
        got_s = time.monotonic()
        if timed is None:
            return got_s, 0.0, batch
        plan.took(asked_s, got_s)
        return got_s, got_s - asked_s - (timed.waited_s - before_s), batch

    writer.send(_consume(setup, ask, step, all_done.is_set, measured.release))


class _TimedQueue:
    """The data queue, that notes how long main waits for a batch that can't be read yet.

    Attributes:
        waited_s: In all.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self.waited_s = 0.0

    def get(self, timeout: float | None = None) -> Any:
        """As the queue's own."""
        asked_s = time.monotonic()
        is_readable = self._real._reader.poll(timeout)  # noqa: SLF001 - nothing public says
        self.waited_s += time.monotonic() - asked_s
        if not is_readable:
            raise queue.Empty
        return self._real.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _From:
    """A sampler that counts up without end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Any:
        return iter(range(self._first, _NEVER))

    def __len__(self) -> int:
        return _NEVER


def _consume(
    setup: Setup,
    ask: Callable[[], Asked],
    step: Callable[[], None],
    is_over: Callable[[], bool],
    report: Callable[[], object],
) -> Ran:
    """Measure whole epochs after the warm-up, then go on until all ranks have."""
    config = setup.config
    warm_up = config.batches_in_flight + max(1, config.num_workers)
    # What an epoch costs is known where some samples are slow; else batches come in rounds of W.
    stride = EPOCH // setup.load.batch_size if setup.load.slow else max(1, config.num_workers)
    log: list[Asked] = []
    ended = 0
    while not (ended and is_over()):
        asked = ask()
        if not ended:
            log.append(asked)
            count = len(log) - warm_up
            enough = count >= setup.batches and asked[0] - log[warm_up - 1][0] >= setup.window_s
            if enough and count % stride == 0:
                ended = len(log)
                report()
        step()
    return _shown(log[warm_up - 1 : ended])


def _shown(log: Sequence[Asked]) -> Ran:
    """What a window says; its first entry only marks its beginning."""
    span_s = log[-1][0] - log[0][0]
    rows = [batch.tolist() for _, _, batch in log[1:]]
    return Ran(
        rate=len(rows) / span_s,
        span_s=span_s,
        cpu_s=tuple(cpu for cpu, *_ in rows),
        io_s=tuple(planned - began - cpu - queued for cpu, queued, began, planned, _ in rows),
        queued_s=tuple(queued for _, queued, *_ in rows),
        late_s=math.fsum(ended - planned for *_, planned, ended in rows) / len(rows),
        receive_s=tuple(took for _, took, _ in log[1:]),
    )


def explanation(setup: Setup, ran: Ran, name: str) -> Explanation:
    """What a run shows, as an instrumented trial would.

    Real CPU is no CPU of the emulated machine: what the real main process and the real workers
    take beside the emulated phases is waiting there.
    """
    count = len(ran.cpu_s)
    workers = max(1, setup.config.num_workers)
    busy_s = math.fsum(ran.cpu_s) + math.fsum(ran.io_s) + math.fsum(ran.queued_s)
    costs = BatchCosts(
        cpu_s=ran.cpu_s,
        io_s=ran.io_s,
        run_queue_s=ran.queued_s,
        receive_io_s=ran.receive_s if setup.config.num_workers else (),
    )
    return Explanation(
        trial_id=name,
        config=setup.config,
        window_s=ran.span_s,
        batches=count,
        costs=costs,
        workers=tuple(
            WorkerCosts(
                worker=place, batches=count // workers, busy_fraction=busy_s / ran.span_s / workers
            )
            for place in range(setup.config.num_workers)
        ),
    )
