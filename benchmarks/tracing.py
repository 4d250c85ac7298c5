"""What does timing every stage cost? CPU a batch and a sample, and throughput on real images."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import Report, Table, parser, publish, spread, surroundings
from observer import cpu_s
from torch.utils.data import DataLoader, Dataset

from dlprof.records import Config
from dlprof.targets.build import build_target
from dlprof.targets.grammar import parse_target
from dlprof.targets.loader import make_loader
from dlprof.tracing.tracer import Tracer

BATCH_GOAL_US, SAMPLE_GOAL_NS, RATE_GOAL = 60.0, 250.0, 0.01
SMALL, LARGE = 1, 256
WORKERS = (0, 2)
SEED = 11


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        pairs: Traced and plain runs of each cell, in random order within a pair.
        batches: Measured batches of a run on tiny samples.
        image_batches: The same on images.
    """

    pairs: int
    batches: int
    image_batches: int


FULL = Effort(pairs=15, batches=3000, image_batches=60)
QUICK = Effort(pairs=2, batches=300, image_batches=6)


class Tiny(Dataset[Any]):
    """Samples that cost nothing."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._sample = torch.ones(4)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, _index: int) -> Any:
        return self._sample


def first_sample(samples: Sequence[Any]) -> Any:
    """A collate function that costs nothing, whatever the size of the batch."""
    return samples[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run, per batch.

    Attributes:
        main_us: CPU of the main process.
        worker_us: CPU of all workers; 0 without.
        wall_us: Time.
    """

    main_us: float
    worker_us: float
    wall_us: float


def run(loader: Any, *, traced: bool, batches: int) -> Cost:
    """Take batches, past a warm-up, and say what each cost."""
    tracer = Tracer(loader) if traced else contextlib.nullcontext()
    with tracer:
        iterator: Any = iter(loader)
        for _ in itertools.islice(iterator, 4 + 4 * loader.num_workers):
            pass
        workers = getattr(iterator, "_workers", ())
        began = _clocks(workers)
        for _ in itertools.islice(iterator, batches):
            pass
        taken = [after - before for before, after in zip(began, _clocks(workers), strict=True)]
        del iterator
    main_us, worker_us, wall_us = (1e6 * each / batches for each in taken)
    return Cost(main_us=main_us, worker_us=worker_us, wall_us=wall_us)


def _clocks(workers: Sequence[Any]) -> tuple[float, float, float]:
    used_s = sum(cpu_s(Path("/proc"), worker.pid) for worker in workers)
    return time.process_time(), used_s, time.perf_counter()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run with the tracer and one without, one right after the other."""

    plain: Cost
    traced: Cost


def measure(make: Any, *, batches: int, pairs: int, order: random.Random) -> list[Pair]:
    """Interleaved pairs, in random order within each."""
    found = []
    for _ in range(pairs):
        costs = {}
        for traced in order.sample((False, True), 2):
            costs[traced] = run(make(), traced=traced, batches=batches)
        found.append(Pair(plain=costs[False], traced=costs[True]))
    return found


def tiny_loader(workers: int, size: int, batches: int) -> DataLoader[Any]:
    """An epoch that is longer than what is measured of it."""
    length = size * (batches + 20 * max(workers, 1))
    return DataLoader(Tiny(length), size, num_workers=workers, collate_fn=first_sample)


def median_added_us(pairs: Sequence[Pair], part: str) -> float:
    """What tracing adds to a batch: the median over pairs."""
    added: list[float] = [getattr(p.traced, part) - getattr(p.plain, part) for p in pairs]
    return statistics.median(added)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What tracing adds in one process.

    Attributes:
        workers: ``num_workers``.
        process: ``main`` or ``workers``.
        batch_us: To each batch of one sample.
        sample_ns: To each further sample of a batch.
        plain_us: What a batch of one sample costs without it.
    """

    workers: int
    process: str
    batch_us: float
    sample_ns: float
    plain_us: float


def added(workers: int, small: Sequence[Pair], large: Sequence[Pair]) -> list[Added]:
    """From batches of one sample and of many to what a batch and a sample cost."""
    found = []
    for process, part in (("main", "main_us"), ("workers", "worker_us")):
        if workers == 0 and process == "workers":
            continue
        batch_us = median_added_us(small, part)
        found.append(
            Added(
                workers=workers,
                process=process,
                batch_us=batch_us,
                sample_ns=1e3 * (median_added_us(large, part) - batch_us) / (LARGE - SMALL),
                plain_us=statistics.median(getattr(pair.plain, part) for pair in small),
            )
        )
    return found


def report_on(costs: Sequence[Added], images: dict[int, list[Pair]]) -> Report:
    """Both tables."""
    ratios = {
        workers: [pair.plain.wall_us / pair.traced.wall_us for pair in pairs]
        for workers, pairs in images.items()
    }
    cheap = all(
        each.batch_us <= BATCH_GOAL_US and each.sample_ns <= SAMPLE_GOAL_NS for each in costs
    )
    fast = all(statistics.median(each) >= 1 - RATE_GOAL for each in ratios.values())
    by_process = Table(
        "CPU that tracing adds to data that cost nothing",
        ("num_workers", "process", "a batch, µs", "a sample, ns", "a plain batch, µs"),
        [
            (
                str(each.workers),
                each.process,
                f"{each.batch_us:.1f}",
                f"{each.sample_ns:.0f}",
                f"{each.plain_us:.1f}",
            )
            for each in costs
        ],
    )
    on_images = Table(
        "Throughput on `images`, traced/plain",
        ("num_workers", "pairs", "median", "quartiles"),
        [
            (
                str(workers),
                str(len(each)),
                f"{statistics.median(each):.4f}",
                spread(each),
            )
            for workers, each in ratios.items()
        ],
    )
    return Report(
        name="tracing",
        title="Timing every stage costs little",
        goal=(
            f"at most {BATCH_GOAL_US:g} µs a batch and {SAMPLE_GOAL_NS:g} ns a sample in main and "
            f"in the workers, and {RATE_GOAL:.0%} of the throughput on images"
        ),
        passed=cheap and fast,
        tables=[by_process, on_images],
        notes=[
            f"Medians over interleaved pairs; batches of {SMALL} and of {LARGE} samples.",
            "CPU of main is that of its process; of workers, of all their threads.",
        ],
        data={
            "added": [dataclasses.asdict(each) for each in costs],
            "image_ratios": {str(workers): each for workers, each in ratios.items()},
        },
    )


def measure_all(effort: Effort) -> Report:
    """All cells."""
    order, costs, images = random.Random(SEED), [], {}
    built = build_target(parse_target("images"))
    for workers in WORKERS:
        config = Config(num_workers=workers).canonical()
        cells = [
            measure(
                lambda size=size, workers=workers: tiny_loader(workers, size, effort.batches),
                batches=effort.batches,
                pairs=effort.pairs,
                order=order,
            )
            for size in (SMALL, LARGE)
        ]
        costs += added(workers, *cells)
        images[workers] = measure(
            lambda config=config: make_loader(built, config),
            batches=effort.image_batches,
            pairs=effort.pairs,
            order=order,
        )
    return report_on(costs, images)


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    before = surroundings()
    report = measure_all(QUICK if given.quick else FULL)
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
