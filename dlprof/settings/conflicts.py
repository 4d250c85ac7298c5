"""Options that are each right but not together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings.model import SweepSettings
from dlprof.units import format_duration

MAX_CONFIGS = 10_000
"""Most configurations that one sweep may span: more is a slip, and fills memory."""

_SWEPT_FIELDS = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "batch_size",
    "in_order",
    "start_method",
    "sharing_strategy",
    "worker_threads",
)

_COSTING = ("batch_size", "start_method", "sharing_strategy", "worker_threads")


def needs_workers(field: str, value: Any) -> bool:
    """Whether this value of a swept option means nothing without worker processes."""
    if field in {"prefetch_factor", "start_method", "sharing_strategy", "worker_threads"}:
        return value is not None
    if field == "persistent_workers":
        return bool(value == (True,))
    return bool(field == "in_order" and value == (False,))


def check_conflicts(settings: SweepSettings) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: Names the options and their values.
    """
    for message, hint in _conflicts(settings):
        raise UsageError(message, hint=hint)


def _conflicts(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    if settings.search == "model":
        yield from _beyond_one_calibration(settings)
    if settings.step_s is not None and settings.step_callable is not None:
        yield "step_time and step exclude each other", "Give one of them."
    if settings.step_on == "device" and settings.step_s is None:
        yield "step_on = device says where step_time passes", "Give step_time too."
    yield from _without_workers(settings)
    yield from _above_limit(settings)
    yield from _times(settings)
    count = math.prod(len(values) for _, values in _given(settings))
    if count > MAX_CONFIGS:
        yield (
            f"The values given make {count:,} configurations, more than {MAX_CONFIGS:,}",
            "Give fewer values for num_workers, prefetch_factor and the other swept settings.",
        )


def several_calibrations(settings: SweepSettings) -> str | None:
    """A setting with several values that change what a batch costs, which no calibration covers."""
    several = (name for name in _COSTING if len(getattr(settings, name) or ()) > 1)
    return next(several, None)


def _beyond_one_calibration(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    name = several_calibrations(settings)
    if name is not None:
        yield (
            f"search = model knows what a batch costs at one value of {name} only",
            f"Use --search grid, or give {name} one value.",
        )


def _given(settings: SweepSettings) -> Iterator[tuple[str, Sequence[Any]]]:
    for field in _SWEPT_FIELDS:
        values = getattr(settings, field)
        if values is not None:
            yield field, values


def _without_workers(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    if settings.num_workers != (0,):
        return
    for field, values in _given(settings):
        if needs_workers(field, values):
            yield (
                f"{field} needs worker processes, but num_workers is only 0",
                f"Leave {field} out, or add a num_workers above 0.",
            )


def _above_limit(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    if settings.num_workers is None or settings.max_workers is None:
        return
    least, limit = min(settings.num_workers), settings.max_workers
    if least > limit:
        yield (
            f"num_workers starts at {least}, above max_workers = {limit}",
            "Raise max_workers, or add a smaller num_workers.",
        )


def _times(settings: SweepSettings) -> Iterator[tuple[str, str]]:
    if settings.trial_s is None:
        return
    trial = format_duration(settings.trial_s)
    for name, limit_s in (("budget", settings.budget_s), ("timeout", settings.timeout_s)):
        if settings.trial_s >= limit_s:
            yield (
                f"trial_time = {trial} doesn't fit into {name} = {format_duration(limit_s)}",
                f"Give a shorter trial_time or a longer {name}.",
            )
