"""The rate that the costs of a sample and the cores to be had allow, in closed form.

The bounds of a pipeline, as in ``X <= min(W / (cpu + io), C / cpu, 1 / (step + receive))``: the
workers, the cores, and what follows one after another in the main process. It is simple on purpose:
each of its figures is measured on both sides, and what it does not explain is told as such.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What decides the rate of one configuration on one machine. Seconds are per sample.

    Attributes:
        cpu_s: CPU seconds of all the loader's processes.
        worker_share: Share of that in workers; 1 where it isn't told apart.
        threads: Threads that run or want to without workers, on average, at least 1.
        affinity: CPUs that the job may run on.
        own_stretch: What a CPU second takes because own threads get into each other's way, beyond
            what too few CPUs explain; 1 for no longer.
        quota_stretch: The same because a quota holds the job back.
        neighbour_stretch: The same because neighbours take cores.
        io_s: True waiting in fetching and collating.
        receive_s: Taking, rebuilding and ordering a batch, in the main process.
        pin_s: Copying to page-locked memory.
        pin_thread: Whether a thread of its own receives and pins.
        copy_s: Copying to the device.
        step_s: The training step.
        workers: ``num_workers``.
    """

    cpu_s: float
    worker_share: float = 1.0
    threads: float = 1.0
    affinity: float = 1.0
    own_stretch: float = 1.0
    quota_stretch: float = 1.0
    neighbour_stretch: float = 1.0
    io_s: float = 0.0
    receive_s: float = 0.0
    pin_s: float = 0.0
    pin_thread: bool = False
    copy_s: float = 0.0
    step_s: float = 0.0
    workers: int = 0

    @property
    def stretch(self) -> float:
        """How much longer than its CPU time computing takes, were there CPUs enough."""
        return self.own_stretch * self.quota_stretch * self.neighbour_stretch

    @property
    def demand(self) -> float:
        """Threads that want to run at once, on average."""
        if self.workers == 0:
            return self.threads
        busy_s = self.cpu_s * self.worker_share * self.stretch
        return self.workers * busy_s / (busy_s + self.io_s)


def log_rate(costs: Costs) -> float:
    """Natural logarithm of the samples per second that the costs allow."""
    return -math.log(max(1e-15, _period_s(costs)))


def _period_s(costs: Costs) -> float:
    """Seconds a sample, by whatever takes longest."""
    computing_s = costs.cpu_s * costs.stretch
    consumer_s = costs.copy_s + costs.step_s
    if costs.workers == 0:
        fetch_s = computing_s / min(costs.threads, costs.affinity) + costs.io_s
        return fetch_s + costs.pin_s + consumer_s
    worker_s = (computing_s * costs.worker_share + costs.io_s) / costs.workers
    cores_s = computing_s / costs.affinity
    if costs.pin_thread:
        return max(worker_s, cores_s, consumer_s, costs.receive_s + costs.pin_s)
    return max(worker_s, cores_s, consumer_s + costs.receive_s)
