"""Is the heaviest attribute of a dataset named, and is the time to first batch predicted?

The latter by fork, forkserver and spawn, of a light and of a heavy dataset, predicted from starts
of one worker, one before and one after each start of many: cores change their speed meanwhile. A
busy machine gives the starting processes fewer cores than it has: the predictions are for those
that they got, which is their CPU time over the time that it took.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
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


def predict_starts(counts: Sequence[int], methods: Sequence[str], turns: int) -> list[list[str]]:
    """Predict starts of many workers from those of one around them, and measure them.

    The row of a count is the middle turn's, by how far the prediction is off.
    """
    torch.set_num_threads(1)
    rows = []
    for title, dataset in (("light", Held()), ("heavy", Held(records=records() * 4))):
        for method, workers in itertools.product(methods, counts):
            tried = [_turn(dataset, workers, method) for _ in range(turns)]
            known = sorted((each for each in tried if each is not None), key=lambda each: each[-1])
            if not known:
                continue
            took_s, cores, shown_s, off = known[len(known) // 2]
            sizes = (f"{took_s:.3f}", f"{cores:.2f}", f"{shown_s:.3f}", f"{off:+.2f}")
            spread = " to ".join(f"{each[-1]:+.2f}" for each in (known[0], known[-1]))
            rows.append([title, method, str(workers), *sizes, spread])
    return rows


def _turn(dataset: Any, workers: int, method: str) -> tuple[float, float, float, float] | None:
    """Seconds that many took, their cores, the seconds predicted, and by which share it is off."""
    before = measured(dataset, method)
    took_s, cores = started(dataset, workers, method)
    after = measured(dataset, method)
    if before is None or after is None:
        return None
    shown_s = statistics.fmean(
        first_batch_s(_at_once(each), workers, cores=cores) for each in (before, after)
    )
    return took_s, cores, shown_s, shown_s / took_s - 1


def _at_once(start: WorkerStart) -> WorkerStart:
    """A start without that of a server, which runs since the first of them."""
    phases = tuple(phase for phase in start.phases if phase.name != "server")
    return dataclasses.replace(start, phases=phases)


def main() -> None:
    """Name, predict, count."""
    given, before = parser(__doc__).parse_args(), surroundings()
    named = name_heaviest(quick=given.quick)
    starts = predict_starts(
        *(((1, 2), ("fork",), 1) if given.quick else ((1, 8, 32), METHODS, 3)),
    )
    right = sum(row[2] == "yes" for row in named)
    off = [abs(float(row[-2])) for row in starts if row[2] == "32"]
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
                (
                    *("dataset", "start method", "workers", "s", "cores", "predicted s", "off"),
                    "of all turns",
                ),
                starts,
            ),
        ],
    )
    publish(report, before, quick=given.quick)


if __name__ == "__main__":
    main()
