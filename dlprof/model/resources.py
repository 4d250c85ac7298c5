"""What a configuration needs beside time on cores: memory, shared memory, descriptors, start-up."""

from __future__ import annotations

import dataclasses
import statistics

from dlprof.model.spread import fetch_s
from dlprof.model.work import DEFAULT
from dlprof.records import Calibration, Config


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one rank needs; ``None`` where the calibration doesn't tell.

    Attributes:
        pss_bytes: Memory of its process tree with full queues.
        shm_bytes: Shared memory with full queues.
        open_files: Descriptors of the main process when every batch but the one that is due has
            come: with ``file_descriptor`` sharing each tensor takes one.
        startup_s: ``iter`` plus first ``next``.
        turnover_s: From an epoch's last batch to the first of the next.
    """

    pss_bytes: float | None
    shm_bytes: float | None
    open_files: int | None
    startup_s: float | None
    turnover_s: float | None


def needs(calibration: Calibration, config: Config) -> Needs:
    """Predict what one rank needs in a configuration."""
    return Needs(
        pss_bytes=_pss_bytes(calibration, config),
        shm_bytes=_shm_bytes(calibration, config),
        open_files=_open_files(calibration, config),
        startup_s=startup_s(calibration, config),
        turnover_s=turnover_s(calibration, config),
    )


def startup_s(calibration: Calibration, config: Config) -> float | None:
    """Seconds from ``iter`` to the first batch: the first worker's start, then each further one's.

    ``None`` where the start method was not calibrated, or only with one worker while more are
    asked for.
    """
    if not config.num_workers:
        return next(iter(calibration.startup_s.get("main", ())), None)
    costs = calibration.startup_s.get(config.start_method or DEFAULT, ())
    if not costs or (config.num_workers > 1 and len(costs) < 2):
        return None
    return costs[0] + sum(costs[1:2]) * (config.num_workers - 1)


def turnover_s(calibration: Calibration, config: Config) -> float | None:
    """Seconds from an epoch's last batch to the first of the next.

    Workers that don't persist start anew: that takes at least as long as starting them. Those that
    do have their first batch to load, which is all that is known where no such end was timed.
    """
    known = calibration.turnover_s
    if not config.num_workers:
        return known.get("main")
    if config.persistent_workers:
        timed = known.get("persistent")
        return _first_batch_s(calibration) if timed is None else timed
    found = (known.get(config.start_method or DEFAULT), startup_s(calibration, config))
    return max((each for each in found if each is not None), default=None)


def _first_batch_s(calibration: Calibration) -> float | None:
    """What a worker needs to load a batch; ``None`` where workers were not calibrated."""
    costs = calibration.in_workers
    return statistics.fmean(fetch_s(costs)) if costs is not None and costs.cpu_s else None


def _pss_bytes(calibration: Calibration, config: Config) -> float | None:
    main, worker = calibration.main_bytes, calibration.worker_bytes
    queued = _shm_bytes(calibration, config)
    if main is None or queued is None:
        return None
    if not config.num_workers:
        return main
    return None if worker is None else main + config.num_workers * worker + queued


def _shm_bytes(calibration: Calibration, config: Config) -> float | None:
    if not config.num_workers:
        return 0.0
    batch = calibration.batch_bytes
    return None if batch is None else config.queued_batches * batch


def _open_files(calibration: Calibration, config: Config) -> int | None:
    by_name = not config.num_workers or config.sharing_strategy == "file_system"
    tensors = 0.0 if by_name else calibration.batch_tensors
    return None if tensors is None else config.open_files(tensors)
