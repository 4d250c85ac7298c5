"""What explaining passes and calibrations tell of a configuration, per sample."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from dlprof.advise.compare.parts import PartCode
from dlprof.records import BatchCosts, Config, Explanation, Run, StageName

_PROFILE = "run dlprof profile"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Serial:
    """What follows one after another in the main process; seconds per sample.

    Attributes:
        receive_s: Dispatching and rebuilding; ``None`` where nothing tells.
        pin_s: Copying to page-locked memory.
        copy_s: Copying to the device.
        worker_share: Share of the loader's CPU time that is in workers; 1 where nothing tells.
        unknown: Parts that nothing tells, and what would.
    """

    receive_s: float | None
    pin_s: float | None
    copy_s: float | None
    worker_share: float
    unknown: Mapping[PartCode, str]


def serial_costs(run: Run, config: Config, samples_per_batch: float) -> Serial:
    """The costs in the main process, from an explaining pass or else from a calibration.

    Args:
        run: The run.
        config: Of which the costs are wanted.
        samples_per_batch: Of this configuration.
    """
    explained = explanation_for(run, config)
    costs = _batch_costs(run, config, explained)
    receive_s = pin_s = copy_s = None
    if explained is not None:
        receive_s = _sum_s(explained, "dispatch", "rebuild")
        pin_s, copy_s = _sum_s(explained, "pin"), _sum_s(explained, "copy")
    if costs is not None:
        receive_s = _total_s(costs, "receive_cpu_s", "receive_io_s", "main_cpu_s", known=receive_s)
        pin_s = _total_s(costs, "pin_s", known=pin_s)
    if run.calibration is not None and copy_s is None:
        copy_s = run.calibration.copy_s
    if config.num_workers == 0:
        receive_s = 0.0  # it is part of the fetching there
    pins = config.pin_memory and run.header.accelerator is not None
    if not pins:
        pin_s = 0.0
    if run.header.accelerator is None:
        copy_s = copy_s or 0.0
    unknown: dict[PartCode, str] = {}
    if receive_s is None or pin_s is None:
        unknown["receive"] = _PROFILE
    if copy_s is None:
        unknown["copy"] = _PROFILE
    return Serial(
        receive_s=_each(receive_s, samples_per_batch),
        pin_s=_each(pin_s, samples_per_batch),
        copy_s=_each(copy_s, samples_per_batch),
        worker_share=_worker_share(costs) if config.num_workers else 1.0,
        unknown=unknown,
    )


def waiting_s(run: Run, config: Config, samples_per_batch: float) -> float | None:
    """True waiting in fetching and collating, per sample; ``None`` where nothing tells."""
    explained = explanation_for(run, config)
    costs = _batch_costs(run, config, explained)
    if costs is not None and costs.io_s:
        return _each(max(0.0, statistics.fmean(costs.io_s)), samples_per_batch)
    fetch = explained.stage("fetch") if explained is not None else None
    if fetch is None or fetch.io_s is None:
        return None
    return _each(max(0.0, fetch.io_s), samples_per_batch)


def explanation_for(run: Run, config: Config) -> Explanation | None:
    """The last explanation of a configuration, or of one that differs in how queues are kept."""
    hooked = [each for each in reversed(run.explanations) if each.hooked]
    same = (each for each in hooked if each.config == config)
    alike = (each for each in hooked if _alike(each.config, config))
    return next(same, None) or next(alike, None)


def _alike(one: Config, two: Config) -> bool:
    """Whether a sample costs the same in both: only the depth and life of the queues differ."""
    workers = bool(one.num_workers) == bool(two.num_workers)
    pinned = one.pin_memory == two.pin_memory
    return workers and pinned and _at_one_worker(one) == _at_one_worker(two)


def _at_one_worker(config: Config) -> Config:
    return dataclasses.replace(config.turnover_group, num_workers=1, persistent_workers=False)


def _batch_costs(run: Run, config: Config, explained: Explanation | None) -> BatchCosts | None:
    if explained is not None and explained.costs.cpu_s:
        return explained.costs
    known = run.calibration
    if known is None or known.batch_size != config.batch_size:
        return None
    return known.in_workers if config.num_workers else known.in_main


def _worker_share(costs: BatchCosts | None) -> float:
    if costs is None:
        return 1.0
    inside = _total_s(costs, "cpu_s", "put_cpu_s", known=None)
    outside = _total_s(costs, "receive_cpu_s", "main_cpu_s", known=None)
    if not inside or inside <= 0 or outside is None or outside < 0:
        return 1.0
    return max(0.01, inside / (inside + outside))


def _total_s(costs: BatchCosts, *names: str, known: float | None) -> float | None:
    """The means of some columns together; ``known`` where all of them are empty."""
    columns: list[Sequence[float]] = [getattr(costs, name) for name in names]
    if not any(columns):
        return known
    return sum(statistics.fmean(column) for column in columns if column)


def _sum_s(explained: Explanation, *names: StageName) -> float | None:
    found = [stage.mean_s for name in names if (stage := explained.stage(name)) is not None]
    return sum(found) if found else None


def _each(seconds: float | None, samples: float) -> float | None:
    return None if seconds is None else min(1e12, max(0.0, seconds) / samples)
