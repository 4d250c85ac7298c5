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
        quota: Cores that a quota allows; infinite without one.
        free_share: Share of those CPUs that neighbours leave; 1 without neighbours.
        quota_wait: Waiting for a core per CPU second that a quota causes beyond what too few
            cores explain.
        neighbour_wait: The same by neighbours.
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
    quota: float = math.inf
    free_share: float = 1.0
    quota_wait: float = 0.0
    neighbour_wait: float = 0.0
    io_s: float = 0.0
    receive_s: float = 0.0
    pin_s: float = 0.0
    pin_thread: bool = False
    copy_s: float = 0.0
    step_s: float = 0.0
    workers: int = 0

    @property
    def cores(self) -> float:
        """Cores to be had."""
        return min(self.affinity * self.free_share, self.quota)

    @property
    def demand(self) -> float:
        """Cores that the loader would keep busy if there were enough."""
        if self.workers == 0:
            return self.threads
        cpu_s = self.cpu_s * self.worker_share
        return self.workers * cpu_s / (cpu_s + self.io_s)


def log_rate(costs: Costs) -> float:
    """Natural logarithm of the samples per second that the costs allow."""
    return -math.log(max(1e-15, _period_s(costs)))


def _period_s(costs: Costs) -> float:
    """Seconds a sample, by whatever takes longest."""
    stretch = 1 + costs.quota_wait + costs.neighbour_wait
    consumer_s = costs.copy_s + costs.step_s
    if costs.workers == 0:
        computing_s = costs.cpu_s * stretch / min(costs.threads, costs.cores)
        return computing_s + costs.io_s + costs.pin_s + consumer_s
    worker_s = (costs.cpu_s * costs.worker_share * stretch + costs.io_s) / costs.workers
    cores_s = costs.cpu_s / costs.cores
    if costs.pin_thread:
        return max(worker_s, cores_s, consumer_s, costs.receive_s + costs.pin_s)
    return max(worker_s, cores_s, consumer_s + costs.receive_s)
