"""A training of several ranks, which synchronize each step by gloo; one of them is slow.

``python ranks_script.py CAUSE SLOW STEPS``: what is slow, which rank, and how many steps to make.
What waits makes truth that no other process on the machine can change.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

CAUSE, SLOW, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BUSY = """
import contextlib, os, pathlib, sys
rank, cpu = pathlib.Path("/proc", sys.argv[1]), int(sys.argv[2])
if os.fork():
    os._exit(0)  # so that it is a process of another job, and none of the rank's own
os.setsid()
os.sched_setaffinity(0, {cpu})
with contextlib.suppress(OSError):  # so that they are felt on a machine that is busy anyway
    pathlib.Path("/proc/self/autogroup").write_text("-10")
while rank.exists():
    for _ in range(1_000_000):
        pass
"""


class Planted(Dataset[Tensor]):
    """Samples that wait, and take CPU time where that is what is planted."""

    def __init__(self, rank: int) -> None:
        mine = rank == SLOW
        self.wait_s, self.spin_s = 0.002, 0.0
        if CAUSE.endswith("storage"):
            self.wait_s = 0.030 if mine else 0.002
        elif CAUSE == "shard":
            self.spin_s = 0.020 if mine else 0.001
        elif CAUSE in {"job", "cores"}:
            self.wait_s, self.spin_s = 0.0, 0.003
        self.epoch, self.rank = 0, rank
        self.nice = 10 if mine and CAUSE == "cores" else 0

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> Tensor:
        if self.nice:  # of its session, too: the kernel shares cores out among sessions first
            with contextlib.suppress(OSError):
                Path("/proc/self/autogroup").write_text(str(self.nice))
            os.nice(self.nice)
            self.nice = 0
        wait_s = self.wait_s
        if CAUSE == "turns" and self.epoch % dist_size() == self.rank:  # another one each epoch
            wait_s = 0.030
        ends_s = time.thread_time() + self.spin_s
        while time.thread_time() < ends_s:
            pass
        time.sleep(wait_s)
        return torch.full((4,), float(index))


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def main() -> None:
    dist.init_process_group("gloo")
    rank, cpus = dist.get_rank(), sorted(os.sched_getaffinity(0))
    if CAUSE in {"job", "cores"}:  # all on one core, or the slow one on one of its own
        cpu = cpus[-1] if CAUSE == "job" and rank == SLOW else cpus[0]
        os.sched_setaffinity(0, {cpu})
        if CAUSE == "job" and rank == SLOW:  # they end when this process has
            command = [sys.executable, "-c", BUSY, str(os.getpid()), str(cpu)]
            for _ in range(3):
                subprocess.run(command, check=True)
    train(rank)
    dist.barrier()  # a rank that ends seconds before the others waits for their files no longer
    dist.destroy_process_group()


def train(rank: int) -> None:
    dataset = Planted(rank)
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    gradient = torch.ones(8)
    for epoch in range(2):
        dataset.epoch = epoch
        for _ in loader:
            time.sleep(0.004)
            if not CAUSE.startswith("free"):
                dist.all_reduce(gradient)


if __name__ == "__main__":
    main()
