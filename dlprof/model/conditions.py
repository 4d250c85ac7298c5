"""Where a configuration is to run: the machine's share, the ranks and the consumer."""

from __future__ import annotations

import dataclasses
import math

SPEED_ERROR = 0.08
"""How far off a core's speed is from that while a loader was calibrated, as the standard deviation
of its logarithm, where the calibration itself has seen no more and the run's trials don't say how
fast cores were: hyper-threads that others use, clocks, caches. Predictions for eight real data sets
on a virtual machine (240 cells of ``benchmarks/real_data.py``) held in 72 % without it, and hold in
80 % with it; in 78 and 88 % of the cells that repeated within 5 %. Speeds that change by a factor
of two, as there, it doesn't cover."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where and beside what a configuration is to run.

    Attributes:
        cores: Cores that all ranks may use together; a CPU quota may be a fraction.
        ranks: Training processes on these cores, each with a loader of its own.
        step_s: Mean seconds of the consumer's step that are not CPU work of its own.
        step_samples: Lengths of steps, for a step that varies; scaled so that their mean is
            ``step_s``. Empty for a step of constant length.
        step_cores: Cores that the step keeps busy while it waits: 1 for one that spins, 0 for
            one that sleeps.
        step_cpu_s: CPU work of the consumer a step, which slows down where cores are short.
        step_threads: Threads that compute at once in that work.
        storage_bytes_per_s: What the storage gives to all ranks together; ``None`` for no limit
            beyond the waiting that was calibrated.
        speed: Speed of a core relative to that where the calibration was taken.
        copy_scale: How long a copy to the device takes relative to where the calibration was
            taken: another link.
        neighbours: Busy cores of others. They keep as many threads running, so that a loader
            with more threads of its own gets a larger share, as the kernel divides it.
        speed_error: How far off ``speed`` may be, as the standard deviation of its logarithm; 0
            where a core's speed can't change, as that of an emulated one.
        epoch_batches: Batches in one rank's epoch; ``None`` for an epoch without end.
    """

    cores: float
    ranks: int = 1
    step_s: float = 0.0
    step_samples: tuple[float, ...] = ()
    step_cores: float = 0.0
    step_cpu_s: float = 0.0
    step_threads: float = 1.0
    storage_bytes_per_s: float | None = None
    speed: float = 1.0
    speed_error: float = SPEED_ERROR
    copy_scale: float = 1.0
    neighbours: float = 0.0
    epoch_batches: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no machine has.

        Raises:
            ValueError: A figure is not finite or out of range.
        """
        positive = {"cores": self.cores, "speed": self.speed, "ranks": self.ranks}
        positive["copy_scale"] = self.copy_scale
        if self.storage_bytes_per_s is not None:
            positive["storage_bytes_per_s"] = self.storage_bytes_per_s
        if self.epoch_batches is not None:
            positive["epoch_batches"] = self.epoch_batches
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be above 0, not {value}")
        rest = {
            "speed_error": self.speed_error,
            "step_s": self.step_s,
            "step_cores": self.step_cores,
            "step_cpu_s": self.step_cpu_s,
            "step_threads": self.step_threads,
            "neighbours": self.neighbours,
        }
        for name, value in (*rest.items(), *(("step_samples", s) for s in self.step_samples)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be 0 or more, not {value}")
