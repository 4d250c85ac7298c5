"""Runs with a calibration, made up for the tests of what answers without measuring."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from builders import header, machine, numbered
from model_calibrations import constant

from dlprof.advise.situation import Situation
from dlprof.records import Calibration, Constraints, Machine, Run, Trial

WHOLE = {
    "samples_per_batch": 32.0,
    "batch_bytes": 1e6,
    "batch_tensors": 2.0,
    "read_bytes_per_batch": 2e6,
    "startup_s": {"main": (0.05,), "default": (0.1, 0.02)},
    "turnover_s": {"default": 0.2, "persistent": 0.001},
    "main_bytes": 300e6,
    "worker_bytes": 30e6,
    "cpu_cv": 0.1,
    "standard_error": 0.01,
    "available_cores": 8.0,
}


def calibration(**costs: Any) -> Calibration:
    """Every batch costs the same; all else is known."""
    return constant(**{**WHOLE, **costs})


def calibrated(found: Calibration | None = None, trials: Iterable[Trial] = (), **rest: Any) -> Run:
    """A run on eight cores whose batches wait for 40 ms and compute for 4 ms."""
    if found is None:
        found = calibration(cpu=0.004, io=0.04, receive=0.0002)
    made = Run(path="run.dlprof.jsonl", header=header(**rest), trials=numbered(trials))
    return dataclasses.replace(made, calibration=found)


def elsewhere(cores: float = 96, **rest: Any) -> Any:
    """Another machine."""
    fields = {"hostname": "server", "fingerprint": "server", "cpu_model": "Other CPU"}
    return machine(cores, **(fields | rest))


def asked(
    run: Run,
    *,
    machine: Machine | None = None,
    storage_bytes_per_s: float | None = None,
    **limits: Any,
) -> Situation:
    """What a question makes of a run; ``limits`` are those of ``Constraints``."""
    return Situation.of(
        run, Constraints(**limits), machine, storage_bytes_per_s=storage_bytes_per_s
    )
