"""What one batch asks of each part of the loader, in the form that predictions are made from."""

from __future__ import annotations

import dataclasses
import math

from dlprof.model.conditions import Conditions
from dlprof.records import BatchCosts, Calibration, Config

DEFAULT = "default"
"""The key of torch's own sharing strategy and of the target's own start method."""

Rows = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Means:
    """Mean seconds a batch.

    Attributes:
        cpu: CPU of the process that fetches: the worker, or main without workers.
        io: Waiting in that process.
        receive_cpu: CPU of taking the batch into the main process.
        receive_io: Waiting in that, the batch's worker at rest.
        main_cpu: CPU of main for drawing indices, sending them out and letting batches go.
        pin: CPU of the pin thread.
    """

    cpu: float
    io: float
    receive_cpu: float = 0.0
    receive_io: float = 0.0
    main_cpu: float = 0.0
    pin: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What batches cost in one kind of configuration, under given conditions.

    Attributes:
        rows: One row a batch, its figures as in ``Means``, CPU already at the machine's speed.
        means: Over the rows.
        hand_over_s: What a worker's CPU time holds for handing a batch over, its mean; only with
            workers.
        busy_s: What receiving takes longer while the batch's worker computes.
        helpers: Other threads of the main process that compute while it fetches; only without
            workers.
        pinned: Whether a pin thread stands between the workers and main.
        read_bytes: From storage, a batch.
    """

    rows: Rows
    means: Means
    hand_over_s: float = 0.0
    busy_s: float = 0.0
    helpers: float = 0.0
    pinned: bool = False
    read_bytes: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration under given conditions: what is to be predicted.

    Attributes:
        workers: ``num_workers``.
        prefetch: ``prefetch_factor``; 0 without workers.
        in_order: As torch has it.
        work: What its batches cost.
        step_s: The consumer's step, copying included, that is not CPU work.
        conditions: Where it runs.
    """

    workers: int
    prefetch: int
    in_order: bool
    work: Work
    step_s: float
    conditions: Conditions

    @property
    def whole_step_s(self) -> float:
        """The step with the consumer's CPU work."""
        return self.step_s + self.conditions.step_cpu_s / self.conditions.speed


def cell_of(
    calibration: Calibration, config: Config, conditions: Conditions, *, work: Work | None = None
) -> Cell:
    """What to predict.

    Args:
        calibration: What batches cost.
        config: Which configuration.
        conditions: Where it runs.
        work: From ``work_of``, where it is known already.

    Raises:
        ValueError: The calibration holds no batch, or is for another batch size.
    """
    return Cell(
        workers=config.num_workers,
        prefetch=(config.prefetch_factor or 2) if config.num_workers else 0,
        in_order=config.in_order or not config.num_workers,
        work=work or work_of(calibration, config, conditions),
        step_s=conditions.step_s + conditions.copy_scale * _copy_s(calibration, config),
        conditions=conditions,
    )


def _copy_s(calibration: Calibration, config: Config) -> float:
    """How long the step waits for a copy; pinned ones count as others where none was measured."""
    if config.pin_memory and calibration.pinned_copy_s is not None:
        return calibration.pinned_copy_s
    return calibration.copy_s


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
            f"a calibration at batch_size={calibration.batch_size} says nothing of "
            f"batch_size={config.batch_size}"
        )
    fed, speed = config.num_workers > 0, conditions.speed / calibration.core_speed
    named = calibration.receive.get(config.sharing_strategy or "")
    sources = (named, *_sources(calibration)) if fed else reversed(_sources(calibration))
    costs = next((each for each in sources if each and each.cpu_s), None)
    if costs is None:
        raise ValueError("the calibration holds no batch")
    read_bytes = calibration.read_bytes_per_batch or 0.0
    columns = [_column(costs, name) for name in _COLUMNS]
    if not fed:
        pins = config.pin_memory
        rows: Rows = tuple(
            ((cpu + main + let_go + (pin if pins else 0.0)) / speed, io, 0.0, 0.0, 0.0, 0.0)
            for cpu, _, _, io, _, _, main, let_go, pin in zip(*columns, strict=True)
        )
        means = _means(rows)
        helpers = calibration.helper_cpu_s / speed / means.cpu if means.cpu > 0 else 0.0
        return Work(rows=rows, means=means, helpers=helpers, read_bytes=read_bytes)
    rows = tuple(
        (
            (cpu + put + between) / speed,
            io,
            receive / speed,
            receive_io,
            (main + let_go) / speed,
            pin / speed,
        )
        for cpu, put, between, io, receive, receive_io, main, let_go, pin in zip(
            *columns, strict=True
        )
    )
    handing_s = math.fsum(columns[1]) + math.fsum(columns[2])
    return Work(
        rows=rows,
        means=_means(rows),
        hand_over_s=handing_s / len(rows) / speed,
        busy_s=_busy_s(calibration, config.sharing_strategy or DEFAULT),
        pinned=config.pin_memory and bool(costs.pin_s),
        read_bytes=read_bytes,
    )


_COLUMNS = (
    *("cpu_s", "put_cpu_s", "between_cpu_s", "io_s"),
    *("receive_cpu_s", "receive_io_s", "main_cpu_s", "let_go_cpu_s", "pin_s"),
)


def _column(costs: BatchCosts, name: str) -> tuple[float, ...]:
    """A column at the length of ``cpu_s``; one that was not measured costs nothing."""
    column: tuple[float, ...] = getattr(costs, name)
    length = len(costs.cpu_s)
    return column if len(column) == length else (0.0,) * length


def _sources(calibration: Calibration) -> tuple[BatchCosts | None, BatchCosts | None]:
    return calibration.in_workers, calibration.in_main


def _busy_s(calibration: Calibration, strategy: str) -> float:
    """What receiving takes longer from busy workers; by name it is torch's default on Linux."""
    named = strategy == "file_descriptor" and strategy not in calibration.receive
    return calibration.receive_busy_s.get(DEFAULT if named else strategy, 0.0)


def _means(rows: Rows) -> Means:
    """Over rows, whose figures are in the order of the fields."""
    return Means(*(math.fsum(column) / len(rows) for column in zip(*rows, strict=True)))
