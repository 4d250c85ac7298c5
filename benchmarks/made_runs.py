"""Run files of any length without measuring."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import platform
import random
from collections.abc import Sequence
from pathlib import Path

from dlprof.machine import inspect_machine
from dlprof.records import (
    SCHEMA_VERSION,
    Config,
    Estimate,
    Plan,
    RunHeader,
    Target,
    Trial,
    TrialCost,
    Usage,
)
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.store import encode_line
from dlprof.version import __version__

WORKERS = (0, 1, 2, 3, 4, 6, 8)
"""With two prefetch factors and both kinds of workers: 25 configurations."""

SAMPLES_PER_BATCH = 32


def configurations() -> tuple[Config, ...]:
    """What a made run has measured."""
    every = itertools.product(WORKERS, (2, 4), (False, True))
    made = (
        Config(num_workers=workers, prefetch_factor=prefetch, persistent_workers=kept).canonical()
        for workers, prefetch, kept in every
    )
    return tuple(dict.fromkeys(made))


def made_trials(count: int, *, seed: int = 0) -> list[Trial]:
    """Trials in blocks over all configurations; rates grow with workers and level off."""
    chance = random.Random(seed)
    configs = configurations()
    return [
        _trial(place, configs[place % len(configs)], place // len(configs), chance)
        for place in range(count)
    ]


def _trial(place: int, config: Config, block: int, chance: random.Random) -> Trial:
    workers = max(config.num_workers, 1)
    rate = 20.0 * workers / (1 + workers / 4) * math.exp(chance.gauss(0, 0.03))
    per_sample = _around(rate * SAMPLES_PER_BATCH)
    return Trial(
        id=f"t{place + 1:04d}",
        config=config,
        repetition=block,
        outcome="completed",
        samples_per_s=per_sample,
        batches_per_s=_around(rate),
        bytes_per_s=_around(rate * 512),
        startup_s=0.02 * workers,
        epoch_turnover_s=0.001 if config.persistent_workers else 0.02 * workers,
        usage=Usage(
            own_cpu_cores=min(workers, 4.0),
            available_cpu_cores=4.0,
            other_cpu_cores=0.1,
            run_queue_wait_fraction=0.02,
            pss_peak_bytes=(200 + 60 * workers) << 20,
            shm_peak_bytes=workers << 20,
            observer_cpu_cores=0.005,
        ),
        unavailable={"wait_fraction": "no step was stated", "usage.throttled_fraction": "no quota"},
        started_at="2026-01-01T00:00:00.000+00:00",
        measured_s=1.0,
        wall_s=1.3,
        window_batches=int(rate),
        batch_bytes=512.0,
        samples_per_batch=float(SAMPLES_PER_BATCH),
    )


def _around(value: float) -> Estimate:
    return Estimate(value=value, low=0.98 * value, high=1.02 * value)


def made_header() -> RunHeader:
    """The header of a made run: on this machine, of a dataset that doesn't exist."""
    return RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id="made",
        started_at="2026-01-01T00:00:00.000+00:00",
        dlprof_version=__version__,
        torch_version=importlib.metadata.version("torch"),
        python_version=platform.python_version(),
        machine=inspect_machine(),
        target=Target(
            spec="data.py:make",
            kind="map",
            dataset="data.Images",
            length=1_000_000,
            batches_per_epoch=1_000_000 // SAMPLES_PER_BATCH,
            batch_size=SAMPLES_PER_BATCH,
        ),
        settings=settings_to_json(SweepSettings(target="data.py:make")),
    )


def long_plan(trials: int) -> Plan:
    """A plan over all configurations that so many trials have not quite carried out."""
    blocks = trials // len(configurations()) + 2
    return Plan(
        configs=configurations(),
        trial_s=0.1,
        min_repeats=blocks,
        max_repeats=blocks,
        planned_repeats=blocks,
        take_turns=False,
        cost=TrialCost(overhead_s=0.3),
    )


def write_run(path: Path, header: RunHeader, trials: Sequence[Trial]) -> None:
    """Write a run file without an end record: without syncing each record, as a sweep does."""
    with path.open("wb") as file:
        file.writelines(encode_line(record) for record in (header, *trials))
