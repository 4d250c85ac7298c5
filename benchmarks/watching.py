"""What do ``dlprof.watch`` and ``dlprof run`` cost a loop? Its thread's CPU, in pairs."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from common import Report, Table, parser, publish, quartiles, surroundings

GOAL_S = 2e-6
PAIRS = 15
QUICK_PAIRS = 2
BATCHES = {0: 20_000, 2: 4_000}
"""Batches of one loop, by ``num_workers``."""
QUICK_SHARE = 20
_SIZE = 64
_BLOCK = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two loops that ran one after the other, each in a process of its own.

    Attributes:
        arm: What was done to the one.
        num_workers: Of both.
        plain_s: CPU seconds a batch of the thread of the loop left alone.
        watched_s: The same of the other.
    """

    arm: str
    num_workers: int
    plain_s: float
    watched_s: float

    @property
    def cost_s(self) -> float:
        """CPU seconds that watching added to a batch."""
        return self.watched_s - self.plain_s


def _as_it_is(loader: Callable[[], Iterable[object]]) -> Iterable[object]:
    return loader()


def _watch(loader: Callable[[], Iterable[object]]) -> Iterable[object]:
    import dlprof  # the plain loop has no part of it

    return dlprof.watch(loader())


def _watch_and_log(loader: Callable[[], Iterable[object]]) -> Iterable[object]:
    import dlprof

    return dlprof.watch(loader(), log=lambda _: None, every=100)


def _run(loader: Callable[[], Iterable[object]], *, follow: bool) -> Iterable[object]:
    """The hooks of ``dlprof run``, without its files and its screen."""
    import torch.utils.data.dataloader as module

    from dlprof.integrations.recorder import LoaderRecorder

    recorder = LoaderRecorder(clock=time.perf_counter_ns, folder=os.sep, follow=follow)
    recorder.attach(module)
    return loader()


ARMS: dict[str, Callable[[Callable[[], Iterable[object]]], Iterable[object]]] = {
    "dlprof.watch(loader)": _watch,
    "dlprof.watch(loader, log=…, every=100)": _watch_and_log,
    "dlprof run --no-follow": lambda loader: _run(loader, follow=False),
    "dlprof run, after the batches that it follows": lambda loader: _run(loader, follow=True),
}


def loop_s(
    arm: Callable[[Callable[[], Iterable[object]]], Iterable[object]], workers: int, batches: int
) -> float:
    """CPU seconds that one loop's thread takes for a batch, the first ones left out."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(_timed(arm, workers, batches)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        shown = answer.read()
    os.waitpid(child, 0)
    return float(shown)


def _timed(
    arm: Callable[[Callable[[], Iterable[object]]], Iterable[object]], workers: int, batches: int
) -> float:
    from torch.utils.data import DataLoader

    # By default dlprof run follows 200 batches; as many again for the queues to run empty of them.
    warm_up = 400
    samples: Any = range((batches + warm_up) * _SIZE)
    iterator = iter(arm(lambda: DataLoader(samples, batch_size=_SIZE, num_workers=workers)))
    for _ in range(warm_up):
        next(iterator)
    blocks = []
    for _ in range(batches // _BLOCK):
        began_s = time.thread_time()
        for _ in itertools.islice(iterator, _BLOCK):
            pass
        blocks.append((time.thread_time() - began_s) / _BLOCK)
    # What others do on the machine makes some blocks costlier, and none cheaper.
    return quartiles(blocks)[0]


def measure(*, quick: bool) -> list[Pair]:
    """All pairs, the arms in turn, and the order within a pair by chance."""
    import torch  # noqa: F401 - once, for all the children

    order = random.Random(0)
    pairs = []
    for _ in range(QUICK_PAIRS if quick else PAIRS):
        for workers, full in BATCHES.items():
            batches = full // QUICK_SHARE if quick else full
            for name, arm in ARMS.items():
                sides = {"plain": _as_it_is, "watched": arm}
                found = {
                    side: loop_s(sides[side], workers, batches)
                    for side in order.sample(sorted(sides), k=2)
                }
                pairs.append(
                    Pair(
                        arm=name,
                        num_workers=workers,
                        plain_s=found["plain"],
                        watched_s=found["watched"],
                    )
                )
    return pairs


def report_on(pairs: list[Pair]) -> Report:
    """The table of all arms."""
    groups: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.arm, pair.num_workers), []).append(pair)
    medians = [statistics.median(pair.cost_s for pair in group) for group in groups.values()]
    columns = ("loop", "num_workers", "plain, µs a batch", "cost, µs a batch", "quartiles")
    return Report(
        name="watching",
        title="Watching a loop costs next to nothing",
        goal=f"at most {GOAL_S * 1e6:g} µs a batch, in the median of all pairs of a row",
        passed=all(median <= GOAL_S for median in medians),
        tables=[Table("", columns, [_row(*key, group) for key, group in groups.items()])],
        notes=[
            (
                f"{len(pairs) // len(groups)} pairs per row; each loop in a process of its own, "
                "the two of a pair in random order."
            ),
            (
                f"CPU time of the thread that loops, lower quartile of blocks of {_BLOCK} batches; "
                f"batches of {_SIZE} integers, so that nothing hides the cost."
            ),
        ],
        data={"pairs": [dataclasses.asdict(pair) for pair in pairs]},
    )


def _row(arm: str, workers: int, group: list[Pair]) -> tuple[str, ...]:
    costs = [1e6 * pair.cost_s for pair in group]
    plain = statistics.median(1e6 * pair.plain_s for pair in group)
    low, high = quartiles(costs)
    return (
        arm,
        str(workers),
        f"{plain:.1f}",
        f"{statistics.median(costs):.2f}",
        f"{low:.2f}-{high:.2f}",
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    publish(report_on(measure(quick=given.quick)), before, quick=given.quick)


if __name__ == "__main__":
    main()
