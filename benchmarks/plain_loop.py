"""A loop timed by hand, as a careful person writes it; shares no measuring code with dlprof.

Run as ``python benchmarks/plain_loop.py TARGET [--shuffle]``. It builds the target once, then reads
one JSON request on each line of standard input, such as
``{"num_workers": 2, "warm_up": 12, "batches": 200}``, and answers each with
``{"samples_per_s": 812.5}``. Each request runs in a fork of its own, so that importing torch is
paid once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hand_timed import PREFETCH_FACTOR

if TYPE_CHECKING:
    from dlprof.targets.build import BuiltTarget


def time_batches(
    loader: Iterable[Any],
    *,
    warm_up: int,
    batches: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds that ``batches`` batches take once ``warm_up`` of them have come.

    Raises:
        ValueError: The loader ended before that.
    """
    began = 0.0
    for number, _batch in enumerate(loader, 1):
        if number == warm_up:
            began = clock()
        if number == warm_up + batches:
            return clock() - began
    raise ValueError("the epoch ended within the loop")


def _answer(built: BuiltTarget, request: Mapping[str, int]) -> dict[str, float]:
    from dlprof.records import Config  # once torch is imported
    from dlprof.targets.loader import make_loader

    config = Config(num_workers=request["num_workers"], prefetch_factor=PREFETCH_FACTOR)
    loader: Any = make_loader(built, config.canonical())
    # The second epoch, as dlprof's window is in: each is shuffled in an order of its own, and of
    # photographs the first batches of one have up to 7 % more pixels than those of another.
    begun = iter(loader)
    next(begun)
    del begun
    seconds = time_batches(loader, warm_up=request["warm_up"], batches=request["batches"])
    return {"samples_per_s": request["batches"] * loader.batch_size / seconds}


def _in_a_fork(built: BuiltTarget, request: Mapping[str, int]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            print(json.dumps(_answer(built, request)), flush=True)
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit("the loop failed")


def main() -> None:
    """Serve until standard input ends."""
    from dlprof.targets.build import build_target
    from dlprof.targets.grammar import parse_target

    shuffle = True if "--shuffle" in sys.argv else None
    built = build_target(parse_target(sys.argv[1]), shuffle=shuffle)
    for line in sys.stdin:
        _in_a_fork(built, json.loads(line))


if __name__ == "__main__":
    main()
