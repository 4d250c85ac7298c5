"""How long does predicting take? 2,000 configurations, eight ranks; and up to 10,000 ranks."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from common import DLPROF, RESULTS, Report, Table, parser, publish, run_command, surroundings

from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import BatchCosts, Calibration, Config

_GOAL_S = 2.0
_CELLS = 2000
_RANKS = 8
_CORES = (2.0, 16.0, 64.0, 192.0)
_NODES = (1, 125, 1250)
"""Of eight ranks each, with eight workers a rank: up to 10,000 ranks."""
_CLUSTER_S, _CLUSTER_BYTES = 60.0, 1e9


def calibration(*, tail: float, batches: int = 200) -> Calibration:
    """Batches of about 4 ms of CPU and 4 ms of waiting; so large a share costs 15 times as much."""
    rng = random.Random(1)
    factors = [rng.uniform(0.8, 1.2) * (15 if rng.random() < tail else 1) for _ in range(batches)]
    columns = {
        "cpu_s": tuple(0.004 * each for each in factors),
        "io_s": tuple(0.004 * each for each in factors),
        "main_cpu_s": (0.0002,) * batches,
    }
    fed = BatchCosts(
        put_cpu_s=(0.0003,) * batches,
        receive_cpu_s=(0.0004,) * batches,
        pin_s=(0.0005,) * batches,
        **columns,
    )
    return Calibration(in_main=BatchCosts(**columns), in_workers=fed, available_cores=2.0)


def configs(count: int) -> list[Config]:
    """Distinct configurations."""
    axes = itertools.product(
        range(33), (1, 2, 3, 4, 6, 8, 12, 16), (False, True), (True, False), (False, True)
    )
    made = (
        Config(
            num_workers=workers,
            prefetch_factor=prefetch,
            pin_memory=pins,
            in_order=in_order,
            persistent_workers=persists,
        ).canonical()
        for workers, prefetch, pins, in_order, persists in axes
    )
    return list(dict.fromkeys(made))[:count]


def timed(where: Conditions, cells: Sequence[Config], tail: float) -> float:
    """CPU seconds of predicting all."""
    known = calibration(tail=tail)
    began_s = time.process_time()
    predict_all(known, cells, where)
    return time.process_time() - began_s


def clusters() -> tuple[list[list[str]], bool, dict[str, list[float]]]:
    """Rows of ranks whose nodes share a storage, whether the goal is kept, and the figures."""
    rows, data, passed = [], {}, True
    for nodes in _NODES:
        asked = ("--ranks", "8", "--nodes", str(nodes), "--storage-limit", "20GBps")
        run = str(RESULTS.parents[1] / "examples" / "loader.dlprof.jsonl")
        done = run_command(
            [*DLPROF, "predict", run, *asked, "--num-workers", "8", "--step-time", "9ms"]
        )
        ranks, used = 8 * nodes, done.peak_rss_bytes
        rows.append([f"{ranks:,}", f"{done.cpu_s:.1f}", f"{used / 1e6:.0f}"])
        passed = passed and done.cpu_s <= _CLUSTER_S and used <= _CLUSTER_BYTES
        data[str(ranks)] = [done.cpu_s, used]
    return rows, passed, data


def main() -> None:
    """Run it."""
    options = parser(__doc__).parse_args()
    before = surroundings()
    cells = configs(20 if options.quick else _CELLS)
    rows, passed = [], True
    data: dict[str, Any] = {}
    for tail in (0.0, 0.03):
        found = {
            cores: timed(
                Conditions(cores=cores, ranks=_RANKS, step_s=0.001, barrier_nodes=1), cells, tail
            )
            for cores in _CORES
        }
        passed = passed and max(found.values()) <= _GOAL_S
        rows.append([f"{tail:.0%} slow", *(f"{s:.2f}" for s in found.values()), f"{_GOAL_S:g}"])
        data[str(tail)] = {str(cores): spent for cores, spent in found.items()}
    many, kept, data["clusters"] = clusters()
    publish(
        Report(
            name="emulated_speed",
            title="Predicting thousands of configurations takes seconds",
            goal=(
                f"2,000 configurations of 8 ranks in {_GOAL_S:g} s; 1,000 ranks of 8 workers in "
                f"{_CLUSTER_S:g} s and {_CLUSTER_BYTES / 1e9:g} GB"
            ),
            passed=passed and kept,
            tables=[
                Table("CPU seconds", ("", *(f"{c:g} cores" for c in _CORES), "goal"), rows),
                Table(
                    "A whole `dlprof predict` of nodes of 8 ranks, 8 workers each",
                    ("ranks", "CPU seconds", "memory, MB"),
                    many,
                ),
            ],
            notes=[
                (
                    f"{len(cells)} distinct configurations, {_RANKS} ranks at a barrier each step, "
                    "intervals included."
                ),
                "Nodes are alike: one is predicted, and what all of them share is counted.",
            ],
            data=data,
        ),
        before,
        quick=options.quick,
    )


if __name__ == "__main__":
    main()
