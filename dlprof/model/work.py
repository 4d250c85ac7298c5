"""What one batch asks of each part of the loader, and where: what predictions are made from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from dlprof.records import BatchCosts, Calibration, Config, Target
from dlprof.records.record import record

DEFAULT = "default"  # the key of torch's own sharing strategy and of the target's own start method

SPEED_ERROR = 0.08
"""How far off a core's speed is from that while a loader was calibrated, as the standard deviation
of its logarithm, where the calibration itself has seen no more and the run's trials don't say how
fast cores were: hyper-threads that others use, clocks, caches. Predictions for eight real datasets
on a virtual machine (240 cells of ``benchmarks/real_data.py``) held in 72 % without it, and hold in
80 % with it; in 78 and 88 % of the cells that repeated within 5 %. Speeds that change by a factor
of two, as there, it doesn't cover."""

Rows = tuple[tuple[float, ...], ...]

_ABOVE_0 = ("cores", "ranks", "speed", "copy_scale", "storage_bytes_per_s", "epoch_batches")


@record(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where and beside what a configuration is to run."""

    cores: float  # cores that all ranks may use together; a CPU quota may be a fraction
    ranks: int = 1  # training processes on these cores, each with a loader of its own
    step_s: float = 0.0  # seconds of the consumer's step that are not CPU work of its own
    # How these differ, with ``step_s`` as their mean; empty where all are alike.
    step_spread: str = ""
    # CPU work of the consumer a step, which slows down where cores are short.
    step_cpu_s: float = 0.0
    step_threads: float = 1.0  # threads that compute at once in that work
    # What the storage gives to all ranks together; ``None`` for no limit beyond the waiting that
    # was calibrated.
    storage_bytes_per_s: float | None = None
    speed: float = 1.0  # speed of a core relative to that where the calibration was taken
    # How far off ``speed`` may be, as the standard deviation of its logarithm; 0 where a core's
    # speed can't change, as that of an emulated one.
    speed_error: float = SPEED_ERROR
    # How long a copy to the device takes relative to where the calibration was taken: another link.
    copy_scale: float = 1.0
    # Threads of others that compute all the time; they may be more than the cores. A loader with
    # more threads of its own gets a larger share, as the kernel divides it between threads.
    neighbours: float = 0.0
    # Cores that it gets beside them however many threads it has, where the kernel divides them
    # between sessions or cgroups; ``None`` where it doesn't.
    fair_cores: float | None = None
    # Batches in one rank's epoch; ``None`` for an epoch without end.
    epoch_batches: int | None = None
    # By what one rank's epoch is split between its workers; ``None`` where that isn't known.
    shards: int | None = None
    # Nodes, each with as many ranks, that all begin each step together, as under DDP; 0 where no
    # rank waits for another.
    barrier_nodes: int = 0
    # What is loaded, where each process keeps samples of it; ``None`` where none does.
    keeping: Target | None = dataclasses.field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Refuse what no machine has.

        Raises:
            ValueError: A figure is not finite or out of range.
        """
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if not isinstance(value, int | float):
                continue
            if not math.isfinite(value) or value < 0 or (name in _ABOVE_0 and not value):
                least = "above 0" if name in _ABOVE_0 else "0 or more"
                raise ValueError(f"{name} must be {least}, not {value}")

    def on(self, cores: float) -> Conditions:
        """The same on other cores: it gets as large a share of them, or what others leave.

        Of fewer never more than of these, whatever they should leave.
        """
        fair = self.fair_cores
        if fair is not None and cores != self.cores:
            left = cores - self.neighbours
            left = left if cores > self.cores else min(fair, left)
            fair = max(fair * cores / self.cores, left)
        return dataclasses.replace(self, cores=cores, fair_cores=fair)


class Means(NamedTuple):
    """Mean seconds a batch."""

    cpu: float  # CPU of the process that fetches: the worker, or main without workers
    io: float  # waiting in that process
    receive_cpu: float = 0.0  # CPU of taking the batch into the main process
    receive_io: float = 0.0  # waiting in that, the batch's worker at rest
    # CPU of main for drawing indices, sending them out and letting batches go.
    main_cpu: float = 0.0
    pin: float = 0.0  # CPU of the pin thread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What batches cost in one kind of configuration, under given conditions."""

    # One row a batch, its figures as in ``Means``, CPU already at the machine's speed. The means
    # set most apart, and hash in a thousandth of the time.
    rows: Rows = dataclasses.field(hash=False)
    means: Means  # over the rows
    # What a worker's CPU time holds for handing a batch over, its mean; only with workers.
    hand_over_s: float = 0.0
    busy_s: float = 0.0  # what receiving takes longer while the batch's worker computes
    # Other threads of the main process that compute while it fetches; only without workers.
    helpers: float = 0.0
    pinned: bool = False  # whether a pin thread stands between the workers and main
    read_bytes: float = 0.0  # from storage, a batch
    # How much longer each batch waits for every other one that is waited for at once.
    queueing_s: float = 0.0
    lock_s: float = 0.0  # of making a batch, those in which no other worker of the rank can
    # Whether twice the workers would gain less than the root of 2 for that.
    is_saturated: bool = False

    def kept(self, share: float) -> Work:
        """The same where making a batch takes that share, as its samples are kept."""
        handed_s = self.hand_over_s
        rows = tuple(
            (min(cpu, handed_s) + share * max(0.0, cpu - handed_s), share * io, *others)
            for cpu, io, *others in self.rows
        )
        return dataclasses.replace(
            self,
            rows=rows,
            means=means_of(rows),
            queueing_s=share * self.queueing_s,
            lock_s=share * self.lock_s,
        )

    @property
    def main_s(self) -> float:
        """Seconds a batch that main works for the loader beside workers."""
        means = self.means
        return means.main_cpu + (0.0 if self.pinned else means.receive_cpu + means.receive_io)


@record(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration under given conditions: what is to be predicted."""

    workers: int  # ``num_workers``
    prefetch: int  # ``prefetch_factor``; 0 without workers
    in_order: bool  # as torch has it
    work: Work  # what its batches cost
    step_s: float  # the consumer's step, copying included, that is not CPU work
    conditions: Conditions  # where it runs

    @property
    def whole_step_s(self) -> float:
        """The step with the consumer's CPU work."""
        return self.step_s + self.conditions.step_cpu_s / self.conditions.speed


def work_of(calibration: Calibration, config: Config, conditions: Conditions) -> Work:
    """What batches cost in a configuration.

    Without workers the main process fetches, collates and pins by itself. Where only one of the
    two ways was calibrated, the costs of fetching are taken from the other.

    Raises:
        ValueError: The calibration holds no batch, or is for another batch size.
    """
    sizes = {config.batch_size, calibration.batch_size} - {None}
    if len(sizes) > 1:
        raise ValueError(
            f"a calibration at batch_size={calibration.batch_size} predicts nothing for "
            f"batch_size={config.batch_size}"
        )
    fed, speed = config.num_workers > 0, conditions.speed
    named = calibration.receive.get(config.sharing_strategy or "")
    in_main, in_workers = calibration.in_main, calibration.in_workers
    sources = (named, in_workers, in_main) if fed else (in_main, in_workers)
    costs = next((each for each in sources if each and each.cpu_s), None)
    if costs is None:
        raise ValueError("the calibration holds no batch")
    read_bytes = calibration.read_bytes_per_batch or 0.0
    missing = (0.0,) * len(costs.cpu_s)  # one that was not measured costs nothing
    found = (getattr(costs, name) for name in _COLUMNS)
    columns = [column if len(column) == len(missing) else missing for column in found]
    if not fed:
        pins = config.pin_memory
        rows: Rows = tuple(
            ((cpu + main + let_go + (pin if pins else 0.0)) / speed, io, 0.0, 0.0, 0.0, 0.0)
            for cpu, _, _, io, _, _, main, let_go, pin in zip(*columns, strict=True)
        )
        means = means_of(rows)
        helpers = calibration.helper_cpu_s / speed / means.cpu if means.cpu > 0 else 0.0
        return Work(
            rows=rows,
            means=means,
            helpers=helpers,
            read_bytes=read_bytes,
            queueing_s=calibration.queueing_s,
        )
    rows = tuple(
        ((cpu + put + between) / speed, io, got / speed, wait, (main + let_go) / speed, pin / speed)
        for cpu, put, between, io, got, wait, main, let_go, pin in zip(*columns, strict=True)
    )
    strategy = config.sharing_strategy or DEFAULT
    if strategy == "file_descriptor" and strategy not in calibration.receive:
        strategy = DEFAULT  # torch's own on Linux
    means = means_of(rows)
    there_s, here_s = means.cpu + means.io, means.cpu * speed + means.io
    return Work(
        rows=rows,
        means=means,
        hand_over_s=math.fsum(columns[1] + columns[2]) / len(rows) / speed,
        busy_s=calibration.receive_busy_s.get(strategy, 0.0),
        pinned=config.pin_memory and bool(costs.pin_s),
        read_bytes=read_bytes,
        queueing_s=calibration.queueing_s,
        lock_s=calibration.lock_s * there_s / here_s if here_s > 0 else 0.0,
    )


_COLUMNS = (
    *("cpu_s", "put_cpu_s", "between_cpu_s", "io_s"),
    *("receive_cpu_s", "receive_io_s", "main_cpu_s", "let_go_cpu_s", "pin_s"),
)


def fetch_s(costs: BatchCosts) -> list[float]:
    """CPU time and waiting of each batch."""
    io = costs.io_s or (0.0,) * len(costs.cpu_s)
    return [a + b for a, b in zip(costs.cpu_s, io, strict=True)]


def means_of(rows: Sequence[tuple[float, ...]]) -> Means:
    """Over rows, whose figures are in the order of the fields."""
    return Means(*(math.fsum(column) / len(rows) for column in zip(*rows, strict=True)))
