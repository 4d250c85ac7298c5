"""Time from ``iter(loader)`` to the first batch, of any number of workers, from the start of one.

torch starts its workers one after the other and hands out indices when all are started, so that the
first batch, which is the first worker's, waits for the start of the last. Meanwhile the workers
compete for the cores: each of them imports and unpickles for itself. What is pickled goes through a
pipe; where it is larger than that holds, main can't go on before the worker has read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dlprof.records import PIPE_BYTES, StartPhaseName, WorkerStart


class _Need(NamedTuple):
    """What a process needs to go on: seconds, of a core where it computes, or a word of another."""

    seconds: float = 0.0
    computes: bool = False
    word: str = ""


_Life = Iterator[_Need]


def first_batch_s(start: WorkerStart, workers: int, *, cores: float) -> float:
    """Seconds from ``iter(loader)`` to the first batch."""
    # Of more workers than are gone through one by one, each further one takes as long.
    count, now_s, said = min(workers, 512), 0.0, set[str]()
    nothing_s = 1e-12
    needs: dict[_Life, _Need | None] = {}  # of each process; none once it has ended
    main = _main(start, count, said, needs)
    needs[main] = _Need()
    while True:
        went = True
        while went:  # through what lasts no time, by which others may go on
            went = False
            for life in [*needs]:
                while (
                    (need := needs[life]) is not None
                    and need.seconds <= nothing_s
                    and (not need.word or need.word in said)
                ):
                    needs[life], went = next(life, None), True
        timed = {life: n for life, n in needs.items() if n and n.seconds > nothing_s}
        if not needs[main] or not timed:
            return now_s * workers / count
        busy = sum(need.computes for need in timed.values())
        pace = min(1.0, max(cores, 0.01) / busy) if busy else 1.0
        step_s = min(need.seconds / (pace if need.computes else 1.0) for need in timed.values())
        now_s += step_s
        for life, need in timed.items():
            spent_s = step_s * (pace if need.computes else 1.0)
            needs[life] = need._replace(seconds=need.seconds - spent_s)


def _main(
    start: WorkerStart, count: int, said: set[str], needs: dict[_Life, _Need | None]
) -> _Life:
    """Start all, then ask all, then wait for the first."""
    yield from _lasting(start, "server")
    for number in range(count):
        yield from _lasting(start, "create")
        needs[_worker(start, number, said)] = _Need()
        if start.sent_bytes > PIPE_BYTES:
            yield _Need(word=f"read {number}")
    said.add("asked")
    yield _Need(word="made 0")


def _worker(start: WorkerStart, number: int, said: set[str]) -> _Life:
    yield from _lasting(start, "process", "imports", "unpickle")
    said.add(f"read {number}")
    yield from _lasting(start, "init")
    yield _Need(word="asked")
    for _ in range(2):  # batches that it is asked for at once (torch's ``prefetch_factor``)
        yield from _lasting(start, "fetch")
        said.add(f"made {number}")


def _lasting(start: WorkerStart, *names: StartPhaseName) -> _Life:
    for phase in map(start.phase, names):
        yield _Need(phase.cpu_s, computes=True)
        yield _Need(phase.wall_s - phase.cpu_s)
