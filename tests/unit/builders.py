"""Records built by hand for tests: only what a test is about needs to be said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlprof.records import (
    SCHEMA_VERSION,
    Config,
    Estimate,
    Failure,
    Machine,
    Plan,
    Run,
    RunHeader,
    Target,
    Trial,
    TrialCost,
    Usage,
)

WAITING = Usage(
    own_cpu_cores=0.1,
    available_cpu_cores=8.0,
    pss_peak_bytes=500 << 20,
    shm_peak_bytes=50 << 20,
)
"""Of a loader that waits: its trials repeat to 1 %, where without such figures 12 % are assumed."""


def config(num_workers: int = 0, prefetch_factor: int | None = None, **rest: Any) -> Config:
    """A canonical configuration; ``prefetch_factor`` defaults to torch's 2."""
    return Config(num_workers=num_workers, prefetch_factor=prefetch_factor, **rest).canonical()


def machine(cores: float = 8, **rest: Any) -> Machine:
    """A machine with room for everything unless said otherwise."""
    fields: dict[str, Any] = {
        "hostname": "box",
        "platform": "Linux 6.1",
        "cpu_model": "Example CPU",
        "logical_cpus": int(cores),
        "affinity_cpus": int(cores),
        "usable_cores": cores,
        "memory_bytes": 64 << 30,
        "memory_available_bytes": 48 << 30,
        "shm_bytes": 32 << 30,
        "shm_available_bytes": 32 << 30,
        "open_files_limit": 1 << 16,
        "fingerprint": "box",
    }
    return Machine(**(fields | rest))


def target(**rest: Any) -> Target:
    """A map-style target of 1000 batches."""
    fields: dict[str, Any] = {
        "spec": "data.py:make",
        "kind": "map",
        "dataset": "data.Images",
        "length": 32_000,
        "batches_per_epoch": 1000,
        "batch_size": 32,
    }
    return Target(**(fields | rest))


def header(**rest: Any) -> RunHeader:
    """A run's header."""
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": "r1",
        "started_at": "2026-01-01T00:00:00Z",
        "dlprof_version": "0.1.0",
        "torch_version": "2.13.0",
        "python_version": "3.11.0",
        "machine": machine(),
        "target": target(),
        "settings": {},
    }
    return RunHeader(**(fields | rest))


def plan(configs: Iterable[Config], **rest: Any) -> Plan:
    """A plan of 1 s windows that cost 1.4 s each, two to eight blocks of them."""
    fields: dict[str, Any] = {
        "configs": tuple(configs),
        "trial_s": 1.0,
        "min_repeats": 2,
        "max_repeats": 8,
        "planned_repeats": 3,
        "take_turns": True,
        "cost": TrialCost(overhead_s=0.4),
    }
    return Plan(**(fields | rest))


def trial(
    chosen: Config,
    rate: float | None = 1000.0,
    *,
    repetition: int = 0,
    spread: float = 0.01,
    trial_id: str = "t0001",
    **rest: Any,
) -> Trial:
    """A completed trial of 32 samples a batch; ``rate=None`` makes it one without figures."""
    fields: dict[str, Any] = {
        "id": trial_id,
        "config": chosen,
        "repetition": repetition,
        "outcome": "completed",
        "samples_per_batch": 32.0,
        "batch_bytes": 32 * 3 * 224 * 224 * 4.0,
        "startup_s": 0.05,
        "epoch_turnover_s": 0.05,
        "measured_s": 1.0,
        "wall_s": 1.2,
        "window_batches": 100,
        "usage": Usage(pss_peak_bytes=500 << 20, shm_peak_bytes=50 << 20),
    }
    if rate is not None:
        fields["samples_per_s"] = around(rate, spread)
        fields["batches_per_s"] = around(rate / 32, spread)
    return Trial(**(fields | rest))


def failed(chosen: Config, message: str = "The worker was killed.", **rest: Any) -> Trial:
    """A trial that crashed."""
    fields: dict[str, Any] = {
        "outcome": "crashed",
        "failure": Failure(kind="worker_signal", message=message, hint="Use fewer workers."),
    }
    return trial(chosen, None, **(fields | rest))


def around(value: float, spread: float = 0.01) -> Estimate:
    """An estimate whose interval reaches ``spread`` of the value to each side."""
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def run(trials: Iterable[Trial], **rest: Any) -> Run:
    """A run of the given trials, ids given again in their order."""
    return Run(path="run.dlprof.jsonl", header=header(**rest), trials=numbered(trials))


def numbered(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The trials with ids ``t0001`` onwards."""
    return tuple(
        dataclasses.replace(each, id=f"t{place:04}") for place, each in enumerate(trials, 1)
    )


def blocks(
    rates: Mapping[Config, Sequence[float]],
    **rest: Any,
) -> list[Trial]:
    """Trials of interleaved blocks from each configuration's rate in each block."""
    trials = [
        trial(chosen, rate, repetition=block, **rest)
        for chosen, row in rates.items()
        for block, rate in enumerate(row)
    ]
    return sorted(trials, key=lambda each: each.repetition)
