"""One rank's loop timed by hand, as a careful person writes it; dlprof makes the dataset alone.

Run as ``torchrun … launched_ranks_by_hand.py TARGET NUM_WORKERS SECONDS``: each rank prints the
samples per second of its window, which begins for all at once.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from dlprof.targets.build import build_target
from dlprof.targets.grammar import parse_target

PREFETCH_FACTOR = 2


def main() -> None:
    """Warm up, meet, and count what comes for so many seconds."""
    target, workers, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    built = build_target(parse_target(target))
    if built.parts is None:
        raise SystemExit(f"{target} is no DataLoader that can be built again")
    dataset, size = built.parts.dataset, built.target.batch_size or 1
    sampler: Any = DistributedSampler(dataset)
    loader = DataLoader(
        dataset,
        batch_size=size,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        collate_fn=built.parts.kept["collate_fn"],
    )
    batches = iter(loader)
    for _ in range(3 * max(1, workers) * PREFETCH_FACTOR):
        next(batches)
    meeting: Any = dist.all_reduce(torch.zeros(1), async_op=True)
    while not meeting.is_completed():  # loading goes on, or the queues would fill
        next(batches)
    next(batches)
    began_s = now_s = time.perf_counter()  # when a batch has just come
    count = 0
    while now_s < began_s + seconds or count % max(1, workers):
        next(batches)
        count, now_s = count + 1, time.perf_counter()
    # In one piece, so that ranks that print at once leave a line each.
    sys.stdout.write(json.dumps({"samples_per_s": count * size / (now_s - began_s)}) + "\n")
    sys.stdout.flush()
    meeting = dist.all_reduce(torch.zeros(1), async_op=True)
    while not meeting.is_completed():  # until the last one is done
        next(batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
