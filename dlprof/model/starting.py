"""Time from ``iter(loader)`` to the first batch, of any number of workers, from the start of one.

torch starts its workers one after the other and hands out indices when all are started, so that the
first batch, which is the first worker's, waits for the start of the last. Meanwhile the workers
compete for the cores: each of them imports and unpickles for itself. What is pickled goes through a
pipe; where it is larger than that holds, main can't go on before the worker has read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from dlprof.records import PIPE_BYTES, StartPhaseName, WorkerStart

_MOST = 512
"""Workers that are gone through one by one; of more, each further one takes as long."""

_ROUNDS = 2
"""Batches that each worker is asked for at once (torch's ``prefetch_factor``)."""

_NOTHING_S = 1e-12


class _Piece(NamedTuple):
    """What a process does next: computes, waits, waits for a word, gives one, or starts another."""

    kind: Literal["cpu", "rest", "await", "say", "start"]
    seconds: float = 0.0
    word: str = ""


def first_batch_s(start: WorkerStart, workers: int, *, cores: float) -> float:
    """Seconds from ``iter(loader)`` to the first batch."""
    count = min(workers, _MOST)
    now_s, said = 0.0, set[str]()
    main = deque(_main(start, count))
    running = [main]
    while main:
        while sum(_instant(each, running, said, start) for each in tuple(running)):
            pass
        computing = [each for each in running if each and each[0].kind == "cpu"]
        resting = [each for each in running if each and each[0].kind == "rest"]
        if not main or not (computing or resting):
            break
        rate = min(1.0, max(cores, 0.01) / len(computing)) if computing else 1.0
        step_s = min(
            [each[0].seconds / rate for each in computing] + [each[0].seconds for each in resting]
        )
        now_s += step_s
        for each in computing:
            _spend(each, step_s * rate)
        for each in resting:
            _spend(each, step_s)
    return now_s * workers / count


def _main(start: WorkerStart, count: int) -> Iterator[_Piece]:
    """Start all, then ask all, then wait for the first."""
    yield from _phase(start, "server")
    for worker in range(count):
        yield from _phase(start, "create")
        yield _Piece("start", word=str(worker))
        if start.sent_bytes > PIPE_BYTES:
            yield _Piece("await", word=f"read {worker}")
    yield _Piece("say", word="asked")
    yield _Piece("await", word="made 0")


def _worker(start: WorkerStart, worker: str) -> Iterator[_Piece]:
    for name in ("process", "imports", "unpickle"):
        yield from _phase(start, name)
    yield _Piece("say", word=f"read {worker}")
    yield from _phase(start, "init")
    yield _Piece("await", word="asked")
    for _ in range(_ROUNDS):
        yield from _phase(start, "fetch")
        yield _Piece("say", word=f"made {worker}")


def _phase(start: WorkerStart, name: StartPhaseName) -> Iterable[_Piece]:
    phase = start.phase(name)
    pieces = (_Piece("cpu", phase.cpu_s), _Piece("rest", phase.wall_s - phase.cpu_s))
    return (piece for piece in pieces if piece.seconds > _NOTHING_S)


def _instant(
    own: deque[_Piece], running: list[deque[_Piece]], said: set[str], start: WorkerStart
) -> bool:
    """Take what lasts no time; whether there was any."""
    if not own or own[0].kind in ("cpu", "rest"):
        return False
    kind, _, word = own[0]
    if kind == "await" and word not in said:
        return False
    own.popleft()
    if kind == "say":
        said.add(word)
    elif kind == "start":
        running.append(deque(_worker(start, word)))
    return True


def _spend(own: deque[_Piece], seconds: float) -> None:
    left_s = own[0].seconds - seconds
    if left_s <= _NOTHING_S:
        own.popleft()
    else:
        own[0] = own[0]._replace(seconds=left_s)
