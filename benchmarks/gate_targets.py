"""Loaders that an argument makes slower, one stage at a time: what the gate is tried on."""

from __future__ import annotations

import functools
import os
import random
import time
import zlib
from collections.abc import Callable, Sequence

import torch
from torch.utils.data import DataLoader, Dataset

LENGTH = 100_000
BATCH = 4
_ROUNDS = 100
_EVERY = 20
_WORDS = b"batch collate dataset epoch fetch index loader prefetch queue sampler worker".split()
_PACKED = zlib.compress(b" ".join(random.Random(0).choices(_WORDS, k=1200)))


def work(rounds: int) -> None:
    """Unpack a little text so many times: a few milliseconds of CPU time for 100."""
    for _ in range(rounds):
        zlib.decompress(_PACKED)


def count(rounds: int) -> int:
    """Add numbers one by one, some 2 ms for 100 rounds: what a core's speed shows in most."""
    total = 0
    for number in range(500 * rounds):
        total += number & 7
    return total


class Samples(Dataset[torch.Tensor]):
    """Samples that take CPU time and wait, some of them longer than the others."""

    def __init__(
        self,
        *,
        work: Callable[[int], object],
        rounds: int,
        tail_rounds: int = 0,
        wait_s: float = 0.0,
    ) -> None:
        """Set what a sample takes.

        Args:
            work: Takes CPU time for so many rounds.
            rounds: Of work.
            tail_rounds: Further rounds of one sample in twenty.
            wait_s: Of sleeping.
        """
        self._work = work
        self._rounds = rounds
        self._tail_rounds = tail_rounds
        self._wait_s = wait_s

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._wait_s:
            time.sleep(self._wait_s)
        self._work(self._rounds + (0 if index % _EVERY else self._tail_rounds))
        return torch.full((3, 16, 16), float(index % 251))


def collate(
    samples: Sequence[torch.Tensor], *, rounds: int, tensors: int
) -> torch.Tensor | list[torch.Tensor]:
    """Stack the samples after some work; ``tensors`` above 1 gives so many small tensors instead.

    Args:
        samples: Of the batch.
        rounds: Of work.
        tensors: In the batch.
    """
    work(rounds)
    batch = torch.stack(list(samples))
    return batch if tensors == 1 else [batch[:, 0, 0].clone() for _ in range(tensors)]


def start_worker(_number: int, *, wait_s: float) -> None:
    """Take a while to start."""
    time.sleep(wait_s)


def make(
    kind: str = "none", slower: str = "0", workers: str = "2", core: str = ""
) -> DataLoader[torch.Tensor]:
    """A loader, slower by about a fraction of its service time in one way.

    With ``tail`` one sample in twenty bears it all, so that blocks of few samples bear a bit more.

    Args:
        kind: ``none``, ``cpu``, ``loop``, ``wait``, ``tail``, ``collate``, ``receive`` or
            ``startup``.
        slower: The fraction; with ``startup`` the seconds.
        workers: ``num_workers``.
        core: What the process that builds it keeps to from now on; empty for all that it has.
    """
    if core:
        os.sched_setaffinity(0, {int(core)})
    more = float(slower)
    rounds, in_collate, wait_s, tail, tensors, start_s = _ROUNDS, 0, 0.0, 0, 1, 0.0
    match kind:
        case "cpu" | "loop":
            rounds += round(more * _ROUNDS)
        case "wait":
            rounds, wait_s = 5, 4e-3 + more * 4.2e-3
        case "tail":
            tail = round(more * _ROUNDS * _EVERY)
        case "collate":
            rounds, in_collate = 60, round((0.4 + more) * _ROUNDS * BATCH)
        case "receive":
            tensors = 1 + round(more * 30)
        case "startup":
            start_s = more
    return DataLoader(
        Samples(
            work=count if kind == "loop" else work,
            rounds=rounds,
            tail_rounds=tail,
            wait_s=wait_s,
        ),
        batch_size=BATCH,
        num_workers=int(workers),
        collate_fn=functools.partial(collate, rounds=in_collate, tensors=tensors),
        worker_init_fn=functools.partial(start_worker, wait_s=start_s),
    )
