"""Why the estimator is as it is: what simpler ways of timing a loader give instead."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from common import Report, Table, parser, publish, spread, surroundings

from dlprof.records import Config
from dlprof.trial.measure import Epoch, throughput

TARGET = "synthetic:wait_ms=1,shape=4"
"""Workers that wait, so that eight of them need no eight cores."""

CONFIG = Config(num_workers=8, prefetch_factor=2)
BATCHES = 20
"""What the simple ways time: a number that people choose, and no multiple of the workers."""

LONG, QUICK_LONG = 1200, 240
RUNS, QUICK_RUNS = 9, 1
PAUSE_S = 1.0

WAYS = (
    "clock from iter()",
    "clock once the queues are full",
    "no whole number of rounds: at the worst place",
    "no whole number of rounds: at the best place",
    "dlprof's, of the same length",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """One pass over a loader: when it began and when each batch came."""

    began_s: float
    yields_s: Sequence[float]


def watch(loader: Iterable[Any], batches: int, *, pause_after: int = 0) -> Passed:
    """Take so many batches, and rest once on the way, as a program does that prepares a model.

    Args:
        loader: Where from.
        batches: How many.
        pause_after: The number of the batch after which to rest; 0 for never.
    """
    yields_s: list[float] = []
    began_s = time.perf_counter()
    for number, _batch in enumerate(loader, 1):
        yields_s.append(time.perf_counter())
        if number == batches:
            break
        if number == pause_after:
            time.sleep(PAUSE_S)
    return Passed(began_s, yields_s)


def rate(yields_s: Sequence[float], first: int, batches: int) -> float:
    """Batches per second over the ``batches`` that follow yield ``first``."""
    return batches / (yields_s[first + batches] - yields_s[first])


def ways(steady: Passed, paused: Passed, config: Config = CONFIG) -> dict[str, float]:
    """What each way says, over the rate of the long steady part.

    Args:
        steady: A long pass.
        paused: One that rested after its first batch, until the queues were full.
        config: What both ran with.
    """
    first = config.warm_up_batches
    rounds, workers = (len(steady.yields_s) - 1 - first) // config.num_workers, config.num_workers
    truth = rate(steady.yields_s, first, rounds * workers)
    # The clock of the second way starts when the program asks for the first batch after its rest.
    full_s = paused.yields_s[BATCHES] - (paused.yields_s[0] + PAUSE_S)
    somewhere = [rate(steady.yields_s, first + place, BATCHES) for place in range(workers)]
    shortest = steady.yields_s[: first + BATCHES - BATCHES % workers + 1]
    own = throughput(
        [Epoch(began_s=steady.began_s, yields_s=[*shortest], warm_up=first)], config, enough_s=0.0
    )
    figures = (
        BATCHES / (steady.yields_s[BATCHES - 1] - steady.began_s),
        BATCHES / full_s,
        max(somewhere, key=lambda found: abs(found - truth)),
        min(somewhere, key=lambda found: abs(found - truth)),
        own.batches_per_s.value if own else float("nan"),
    )
    return {way: figure / truth for way, figure in zip(WAYS, figures, strict=True)}


def autocorrelation(values: Sequence[float], lag: int) -> float:
    """How alike values are that lie ``lag`` apart, from -1 to 1."""
    return statistics.correlation(values[:-lag], values[lag:])


def report_on(found: Sequence[dict[str, float]], alike: Sequence[float]) -> Report:
    """The tables of all runs."""
    columns = ("way of timing", "rate over the true one, median", "quartiles")
    rows = [
        (
            way,
            f"{statistics.median(each[way] for each in found):.2f}",
            spread([each[way] for each in found], 2),
        )
        for way in WAYS
    ]
    gaps = Table(
        "Likeness (autocorrelation) of the time between batches, by how many batches lie between",
        ("", *(str(lag) for lag in range(1, len(alike) + 1))),
        [("likeness", *(f"{value:.2f}" for value in alike))],
    )
    return Report(
        name="estimator",
        title="Why the estimator is as it is",
        goal="none: it shows what simpler ways of timing a loader give instead",
        passed=None,
        tables=[Table("", columns, rows), gaps],
        notes=[
            f"`{TARGET}` with {CONFIG.text}; {len(found)} runs.",
            f"{BATCHES} batches in each way, {BATCHES - BATCHES % CONFIG.num_workers} in the last.",
        ],
        data={"ratios": list(found), "autocorrelation": list(alike)},
    )


def main() -> None:
    """Measure and publish."""
    from dlprof.targets.build import build_target
    from dlprof.targets.grammar import parse_target
    from dlprof.targets.loader import make_loader

    given = parser(__doc__).parse_args()
    before = surroundings()
    built = build_target(parse_target(f"{TARGET},length=10000000"))
    found, steady = [], Passed(0.0, ())
    for _ in range(QUICK_RUNS if given.quick else RUNS):
        steady = watch(make_loader(built, CONFIG), QUICK_LONG if given.quick else LONG)
        paused = watch(make_loader(built, CONFIG), BATCHES + 1, pause_after=1)
        found.append(ways(steady, paused))
    steady_s = steady.yields_s[CONFIG.warm_up_batches :]
    gaps = [after - earlier for earlier, after in itertools.pairwise(steady_s)]
    alike = [autocorrelation(gaps, lag) for lag in range(1, 2 * CONFIG.num_workers + 1)]
    publish(report_on(found, alike), before, quick=given.quick)


if __name__ == "__main__":
    main()
