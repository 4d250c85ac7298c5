"""Neighbours whose load changes: what half of ``gate_campaign.py``'s sessions run beside."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import time
import zlib
from collections.abc import Iterator
from multiprocessing.synchronize import Event

_TEXT = bytes(range(256)) * 64
_SHORTEST_S, _LONGEST_S = 0.5, 5.0


def neighbour(seed: int, ended: Event) -> None:
    """Compute, rest, compute: each for a time drawn again."""
    coin, started_by = random.Random(seed), os.getppid()
    while not ended.is_set() and os.getppid() == started_by:  # which may have been killed
        until = time.monotonic() + coin.uniform(_SHORTEST_S, _LONGEST_S)
        while time.monotonic() < until and not ended.is_set():
            zlib.compress(_TEXT)
        ended.wait(coin.uniform(_SHORTEST_S, _LONGEST_S))


@contextlib.contextmanager
def beside(count: int, seed: int) -> Iterator[None]:
    """Run so many neighbours, each busy half of the time.

    Args:
        count: How many; 0 for a quiet machine.
        seed: Of their chance.
    """
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    processes = [
        context.Process(target=neighbour, args=(seed + place, ended), daemon=True)
        for place in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        ended.set()
        for process in processes:
            process.join()
