"""Is the heaviest attribute of a dataset named, and is the time to first batch predicted?

The latter by fork, forkserver and spawn, of a light and of a heavy dataset, predicted from the
start of one worker. A busy machine gives the starting processes fewer cores than it has: the
predictions are for those that they got, which is their CPU time over the time that it took.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import Report, Table, parser, publish, surroundings
from heavy_targets import PLANTED, Held, records
from torch.utils.data import DataLoader

from dlprof.model.predict import first_batch_s
from dlprof.records import WorkerStart
from dlprof.targets.weighing import weigh
from dlprof.trial.starting import measure_start

METHODS = ("fork", "forkserver", "spawn")
_NEAR = 0.1


def name_heaviest(*, quick: bool) -> list[list[str]]:
    """Weigh each planted dataset: its title, what was named, whether rightly, and how."""
    rows = []
    for title, (make, names) in list(PLANTED.items())[: 3 if quick else None]:
        found = weigh(DataLoader(make()))
        first = found.heaviest
        named = "" if first is None else first.name
        rows.append(
            [
                *(title, named, "yes" if named in names else "no"),
                *(f"{found.pickled_bytes / 1e6:.1f}", f"{found.object_bytes / 1e6:.1f}"),
                *(f"{found.pickle_s:.3f}", f"{found.unpickle_s:.3f}"),
                *(found.how, f"{found.took_s:.2f}"),
            ]
        )
    return rows


def loader(dataset: Any, workers: int, method: str) -> DataLoader[torch.Tensor]:
    """One to start."""
    return DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=method)


def started(dataset: Any, workers: int, method: str) -> tuple[float, float]:
    """Seconds to the first batch, and the cores that all processes got meanwhile."""
    made = loader(dataset, workers, method)
    began_s, own_s = time.perf_counter(), _tree_cpu_s(os.getpid())
    iterator: Any = iter(made)
    next(iterator)
    took_s = time.perf_counter() - began_s
    used_s = _tree_cpu_s(os.getpid()) - own_s
    iterator._shutdown_workers()  # noqa: SLF001 - as torch does when it is let go
    return took_s, used_s / took_s


def _tree_cpu_s(pid: int) -> float:
    """CPU of a process and of its descendants that run, by the scheduler's nanoseconds."""
    used_s = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            used_s += int((task / "schedstat").read_text().split()[0]) * 1e-9
            children = (task / "children").read_text().split()
        except OSError:  # it has ended
            continue
        used_s += sum(_tree_cpu_s(int(child)) for child in children)
    return used_s


def measured(dataset: Any, method: str) -> WorkerStart | None:
    """The start of one worker, with what is sent to it."""
    found = measure_start(loader(dataset, 1, method), method)
    if found is None:
        return None
    sent = 0.0 if method == "fork" else weigh(DataLoader(dataset)).pickled_bytes
    return dataclasses.replace(found, sent_bytes=sent)


def predict_starts(counts: Sequence[int], methods: Sequence[str]) -> list[list[str]]:
    """Predict starts of many workers from that of one, and measure them."""
    torch.set_num_threads(1)
    rows = []
    for title, dataset in (("light", Held()), ("heavy", Held(records=records() * 4))):
        for method in methods:
            one = measured(dataset, method)
            if one is None:
                continue
            one = dataclasses.replace(
                one, phases=tuple(p for p in one.phases if p.name != "server")
            )
            for workers in counts:
                took_s, cores = started(dataset, workers, method)
                shown_s = first_batch_s(one, workers, cores=cores)
                off = f"{shown_s / took_s - 1:+.2f}"
                sizes = (f"{took_s:.3f}", f"{cores:.2f}", f"{shown_s:.3f}", off)
                rows.append([title, method, str(workers), *sizes])
    return rows


def main() -> None:
    """Name, predict, count."""
    given, before = parser(__doc__).parse_args(), surroundings()
    named = name_heaviest(quick=given.quick)
    starts = predict_starts(
        *(((1, 2), ("fork",)) if given.quick else ((1, 8, 32), METHODS)),
    )
    right = sum(row[2] == "yes" for row in named)
    off = [abs(float(row[-1])) for row in starts if row[2] == "32"]
    report = Report(
        name="heavy",
        title="What a dataset weighs, and the time to first batch",
        goal="the heaviest attribute named in each; 32 workers' start predicted within 10 %",
        passed=right == len(named) and max(off, default=0.0) <= _NEAR,
        tables=[
            Table(
                f"{right} of {len(named)} named",
                (
                    *("dataset", "named", "right", "MB pickled", "MB of objects"),
                    *("pickle s", "unpickle s", "how", "weighed in s"),
                ),
                named,
            ),
            Table(
                "Time to first batch",
                ("dataset", "start method", "workers", "s", "cores", "predicted s", "off"),
                starts,
            ),
        ],
    )
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
