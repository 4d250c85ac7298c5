"""What one batch asks of each part of the loader, in the form that all predictors reckon with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dlprof.model.conditions import Conditions
from dlprof.records import BatchCosts, Calibration, Config

DEFAULT = "default"
"""The key of torch's own sharing strategy and of the target's own start method."""

Rows = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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

    def with_rows(self, rows: Rows) -> Work:
        """The same with other batches."""
        return dataclasses.replace(self, rows=rows, means=_means(rows))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration under given conditions: what a predictor is asked for.

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
    speed = conditions.speed / calibration.core_speed
    if config.num_workers == 0:
        return _in_main(calibration, speed, pins=config.pin_memory)
    costs = _in_workers(calibration, config)
    return _with_workers(calibration, costs, config, speed)


def _sources(calibration: Calibration) -> tuple[BatchCosts | None, BatchCosts | None]:
    return calibration.in_workers, calibration.in_main


def _in_main(calibration: Calibration, speed: float, *, pins: bool) -> Work:
    costs = next((c for c in reversed(_sources(calibration)) if c and c.cpu_s), None)
    if costs is None:
        raise ValueError("the calibration holds no batch")
    columns = _columns(costs)
    cpu, main, pin = columns["cpu_s"], columns["main_cpu_s"], columns["pin_s"]
    let_go, io = columns["let_go_cpu_s"], columns["io_s"]
    rows = tuple(
        ((c + m + g + (p if pins else 0.0)) / speed, i, 0.0, 0.0, 0.0, 0.0)
        for c, m, g, p, i in zip(cpu, main, let_go, pin, io, strict=True)
    )
    means = _means(rows)
    helpers = calibration.helper_cpu_s / speed / means.cpu if means.cpu > 0 else 0.0
    return Work(
        rows=rows,
        means=means,
        helpers=helpers,
        read_bytes=calibration.read_bytes_per_batch or 0.0,
    )


def _in_workers(calibration: Calibration, config: Config) -> BatchCosts:
    candidates = (calibration.receive.get(config.sharing_strategy or ""), *_sources(calibration))
    costs = next((c for c in candidates if c and c.cpu_s), None)
    if costs is None:
        raise ValueError("the calibration holds no batch")
    return costs


def _with_workers(
    calibration: Calibration, costs: BatchCosts, config: Config, speed: float
) -> Work:
    columns = _columns(costs)
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
            *(columns[name] for name in _WITH_WORKERS), strict=True
        )
    )
    return Work(
        rows=rows,
        means=_means(rows),
        hand_over_s=_hand_over_s(columns) / speed,
        busy_s=_busy_s(calibration, config.sharing_strategy or DEFAULT),
        pinned=config.pin_memory and bool(costs.pin_s),
        read_bytes=calibration.read_bytes_per_batch or 0.0,
    )


def _hand_over_s(columns: Mapping[str, Sequence[float]]) -> float:
    """CPU seconds of a worker a batch beside fetching it."""
    both = math.fsum(columns["put_cpu_s"]) + math.fsum(columns["between_cpu_s"])
    return both / len(columns["put_cpu_s"])


def _busy_s(calibration: Calibration, strategy: str) -> float:
    """What receiving takes longer from busy workers; by name it is torch's default on Linux."""
    named = strategy == "file_descriptor" and strategy not in calibration.receive
    return calibration.receive_busy_s.get(DEFAULT if named else strategy, 0.0)


_WITH_WORKERS = (
    *("cpu_s", "put_cpu_s", "between_cpu_s", "io_s"),
    *("receive_cpu_s", "receive_io_s", "main_cpu_s", "let_go_cpu_s", "pin_s"),
)


def _columns(costs: BatchCosts) -> dict[str, tuple[float, ...]]:
    """All columns at the length of ``cpu_s``; those that were not measured cost nothing."""
    length = len(costs.cpu_s)
    columns: dict[str, tuple[float, ...]] = {}
    for field in dataclasses.fields(costs):
        column = getattr(costs, field.name)
        columns[field.name] = column if len(column) == length else (0.0,) * length
    return columns


def _means(rows: Rows) -> Means:
    count = len(rows)
    cpu, io, receive_cpu, receive_io, main_cpu, pin = (
        math.fsum(column) / count for column in zip(*rows, strict=True)
    )
    return Means(
        cpu=cpu,
        io=io,
        receive_cpu=receive_cpu,
        receive_io=receive_io,
        main_cpu=main_cpu,
        pin=pin,
    )
