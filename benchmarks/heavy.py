"""Is the heaviest attribute of a dataset named, and is the time to first batch predicted?

Run: ``python benchmarks/heavy.py`` for the first; ``python benchmarks/heavy.py starts 8,32`` for
the second, by fork, forkserver and spawn, of a light and of a heavy dataset. A busy machine
gives the starting processes fewer cores than it has: the predictions are then for those that they
got, which is their CPU time over the time that it took.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from heavy_targets import PLANTED, Held, records
from torch.utils.data import DataLoader

from dlprof.model.starting import first_batch_s
from dlprof.records import WorkerStart
from dlprof.targets.weighing import weigh
from dlprof.trial.starting import measure_start

METHODS = ("fork", "forkserver", "spawn")


def name_heaviest() -> int:
    """Weigh each planted dataset; how many were named rightly."""
    right = 0
    for title, (make, names) in PLANTED.items():
        found = weigh(DataLoader(make()))
        first = found.heaviest
        named = "" if first is None else first.name
        right += named in names
        sign = "ok  " if named in names else "FAIL"
        print(
            f"{sign} {title:24} {named:24} {found.pickled_bytes / 1e6:7.1f} MB pickled "
            f"{found.pickle_s:6.3f} + {found.unpickle_s:6.3f} s, objects "
            f"{found.object_bytes / 1e6:6.1f} MB, {found.how}, weighed in {found.took_s:.2f} s"
        )
    print(f"{right} of {len(PLANTED)} named")
    return right


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


def predict_starts(counts: Sequence[int], methods: Sequence[str]) -> None:
    """Predict starts of many workers from that of one, and measure them."""
    torch.set_num_threads(1)
    for title, dataset in (("light", Held()), ("heavy", Held(records=records() * 4))):
        for method in methods:
            one = measured(dataset, method)
            if one is None:
                continue
            one = dataclasses.replace(
                one, phases=tuple(p for p in one.phases if p.name != "server")
            )
            for workers in (1, *counts):
                took_s, cores = started(dataset, workers, method)
                told_s = first_batch_s(one, workers, cores=cores)
                quiet_s = first_batch_s(one, workers, cores=os.cpu_count() or 1)
                print(
                    f"{title} {method:10} {workers:3} workers: measured {took_s:7.3f} s on "
                    f"{cores:.2f} cores, predicted {told_s:7.3f} s there "
                    f"({told_s / took_s - 1:+.0%}), {quiet_s:7.3f} s on all cores",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["starts"]:
        predict_starts([int(each) for each in sys.argv[2].split(",")], sys.argv[3:] or METHODS)
    else:
        name_heaviest()
