"""Options that are each right but not together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings.model import SweepSettings
from dlprof.settings.options import SWEPT
from dlprof.units import format_duration

MAX_CONFIGS = 10_000
"""Most configurations that one sweep may span: more is a slip, and fills memory."""

_COSTING = ("batch_size", "start_method", "sharing_strategy", "worker_threads")


def needs_workers(field: str, value: Any) -> bool:
    """Whether this value of a swept option means nothing without worker processes."""
    if field in {"prefetch_factor", "start_method", "sharing_strategy", "worker_threads"}:
        return value is not None
    if field == "persistent_workers":
        return bool(value == (True,))
    return bool(field == "in_order" and value == (False,))


def several_calibrations(settings: SweepSettings) -> str | None:
    """A setting with several values that change what a batch costs, which no calibration covers."""
    several = (name for name in _COSTING if len(getattr(settings, name) or ()) > 1)
    return next(several, None)


def check_conflicts(settings: SweepSettings) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: Names the options and their values.
    """
    for message, hint in _conflicts(settings):
        raise UsageError(message, hint=hint)


def _conflicts(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    swept = {key: values for key in SWEPT if (values := getattr(settings, key)) is not None}
    name = several_calibrations(settings)
    if settings.search == "model" and name is not None:
        yield (
            f"search = model knows what a batch costs at one value of {name} only",
            f"Use --search grid, or give {name} one value.",
        )
    if settings.step_s is not None and settings.step_callable is not None:
        yield "step_time and step exclude each other", "Give one of them."
    if settings.step_on == "device" and settings.step_s is None:
        yield "step_on = device says where step_time passes", "Give step_time too."
    for key, values in swept.items() if settings.num_workers == (0,) else ():
        if needs_workers(key, values):
            yield (
                f"{key} needs worker processes, but num_workers is only 0",
                f"Leave {key} out, or add a num_workers above 0.",
            )
    limit = settings.max_workers
    if limit is not None and settings.num_workers and min(settings.num_workers) > limit:
        yield (
            f"num_workers starts at {min(settings.num_workers)}, above max_workers = {limit}",
            "Raise max_workers, or add a smaller num_workers.",
        )
    for key, limit_s in (("budget", settings.budget_s), ("timeout", settings.timeout_s)):
        if settings.trial_s is not None and settings.trial_s >= limit_s:
            trial, longest = format_duration(settings.trial_s), format_duration(limit_s)
            yield (
                f"trial_time = {trial} doesn't fit into {key} = {longest}",
                f"Give a shorter trial_time or a longer {key}.",
            )
    count = math.prod(len(values) for values in swept.values())
    if count > MAX_CONFIGS:
        yield (
            f"The values given make {count:,} configurations, more than {MAX_CONFIGS:,}",
            "Give fewer values for num_workers, prefetch_factor and the other swept settings.",
        )
