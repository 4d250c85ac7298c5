"""Time from ``iter(loader)`` to the first batch, of any number of workers, from the start of one.

torch starts its workers one after the other and hands out indices when all are started, so that the
first batch, which is the first worker's, waits for the start of the last. Meanwhile the workers
compete for the cores: each of them imports and unpickles for itself. What is pickled goes through a
pipe; where it is larger than that holds, main can't go on before the worker has read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import NamedTuple

from dlprof.records import PIPE_BYTES, StartPhaseName, WorkerStart

_MOST = 512
"""Workers that are gone through one by one; of more, each further one takes as long."""

_ROUNDS = 2
"""Batches that each worker is asked for at once (torch's ``prefetch_factor``)."""

_NOTHING_S = 1e-12


class _Need(NamedTuple):
    """What a process needs to go on: seconds, of a core where it computes, or a word of another."""

    seconds: float = 0.0
    computes: bool = False
    word: str = ""


@dataclasses.dataclass(slots=True)
class _Running:
    """What a process does, and what it needs now; ``None`` once it has ended."""

    life: Iterator[_Need]
    need: _Need | None = None

    def goes_on(self, said: Collection[str]) -> bool:
        """Go through what lasts no time; whether there was any."""
        went = False
        while (need := self.need) and need.seconds <= _NOTHING_S:
            if need.word and need.word not in said:
                break
            self.need, went = next(self.life, None), True
        return went


def first_batch_s(start: WorkerStart, workers: int, *, cores: float) -> float:
    """Seconds from ``iter(loader)`` to the first batch."""
    count, now_s, said = min(workers, _MOST), 0.0, set[str]()
    running: list[_Running] = []
    running.append(_Running(_main(start, count, said, running), _Need()))
    while True:
        while sum([each.goes_on(said) for each in running]):
            pass
        timed = [(n, each) for each in running if (n := each.need) and n.seconds > _NOTHING_S]
        if not running[0].need or not timed:
            return now_s * workers / count
        busy = sum(need.computes for need, _ in timed)
        pace = min(1.0, max(cores, 0.01) / busy) if busy else 1.0
        step_s = min(need.seconds / (pace if need.computes else 1.0) for need, _ in timed)
        now_s += step_s
        for need, each in timed:
            spent_s = step_s * (pace if need.computes else 1.0)
            each.need = need._replace(seconds=need.seconds - spent_s)


def _main(
    start: WorkerStart, count: int, said: set[str], running: list[_Running]
) -> Iterator[_Need]:
    """Start all, then ask all, then wait for the first."""
    yield from _lasting(start, "server")
    for number in range(count):
        yield from _lasting(start, "create")
        running.append(_Running(_worker(start, number, said), _Need()))
        if start.sent_bytes > PIPE_BYTES:
            yield _Need(word=f"read {number}")
    said.add("asked")
    yield _Need(word="made 0")


def _worker(start: WorkerStart, number: int, said: set[str]) -> Iterator[_Need]:
    yield from _lasting(start, "process", "imports", "unpickle")
    said.add(f"read {number}")
    yield from _lasting(start, "init")
    yield _Need(word="asked")
    for _ in range(_ROUNDS):
        yield from _lasting(start, "fetch")
        said.add(f"made {number}")


def _lasting(start: WorkerStart, *names: StartPhaseName) -> Iterator[_Need]:
    for phase in map(start.phase, names):
        yield _Need(phase.cpu_s, computes=True)
        yield _Need(phase.wall_s - phase.cpu_s)
