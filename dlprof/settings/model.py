"""What a sweep is to do: its settings, which of them exclude each other, and their JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dlprof.errors import UsageError
from dlprof.settings.options import OPTIONS, SWEPT
from dlprof.units import format_duration, spread_of

MAX_CONFIGS = 10_000
"""Most configurations that one sweep may span: more is a slip, and fills memory."""

_COSTING = ("batch_size", "start_method", "sharing_strategy", "worker_threads")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """A sweep's options as resolved: the table in ``settings/options.py`` says what each does.

    ``None`` leaves the choice to dlprof or the target, and is no limit of the user's. Several
    values are those to try. Times are in seconds.
    """

    target: str = "images"
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_workers: tuple[int, ...] | None = None
    prefetch_factor: tuple[int, ...] | None = None
    pin_memory: tuple[bool, ...] | None = None
    persistent_workers: tuple[bool, ...] | None = None
    batch_size: tuple[int, ...] | None = None
    in_order: tuple[bool, ...] | None = None
    start_method: tuple[str, ...] | None = None
    sharing_strategy: tuple[str, ...] | None = None
    worker_threads: tuple[int, ...] | None = None
    shuffle: bool | None = None
    step_s: float | None = None
    step_callable: str | None = None
    device: str = "auto"
    copy_ahead: bool = False
    step_on: str = "host"
    budget_s: float = 45.0
    trial_s: float | None = None
    repeats: int | None = None
    search: str = "auto"
    seed: int = 0
    timeout_s: float = 120.0
    max_workers: int | None = None
    max_ram_bytes: int | None = None
    max_shm_bytes: int | None = None
    ranks: int = 1
    make_load: Mapping[str, float] | None = None
    launch_ranks: tuple[int, ...] | None = None
    step_barrier: bool = False
    au: float | None = None
    cold_cache: bool = False

    @property
    def launched(self) -> int:
        """How many ranks load at once at most."""
        return max(self.launch_ranks or (1,))


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
    """Refuse options that exclude each other."""
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
    alone = settings.num_workers == (0,)
    for key in [key for key, values in swept.items() if alone and needs_workers(key, values)]:
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
    launched = max(settings.launch_ranks or (settings.ranks,))
    if settings.ranks not in (1, launched):
        yield (
            f"ranks = {settings.ranks} assumes what launch_ranks = {launched} measures",
            "Leave ranks out.",
        )
    count = math.prod(len(values) for values in swept.values())
    if count > MAX_CONFIGS:
        yield (
            f"The values given make {count:,} configurations, more than {MAX_CONFIGS:,}",
            "Give fewer values for num_workers, prefetch_factor and the other swept settings.",
        )


def settings_to_json(settings: SweepSettings) -> dict[str, Any]:
    """The settings under their field names, as JSON values for the header of a run file."""
    values = dataclasses.asdict(settings).items()
    plain = {key: list(each) if isinstance(each, tuple) else each for key, each in values}
    if spread := spread_of(settings.step_s):
        plain |= {"step_s": float(settings.step_s or 0.0), "step_spread": spread}
    return plain


def settings_from_json(data: Mapping[str, Any]) -> SweepSettings:
    """The settings that ``settings_to_json`` wrote, to resume a run.

    Fields that are missing take their default, and unknown ones are ignored, so that versions
    which differ in options read each other's files.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.field not in data:
            continue
        raw = data[option.field]
        if option.key == "step_time":  # its mean is in the field's own place, for all who read it
            raw = data.get("step_spread") or raw
        if raw is None and option.unset is None:
            raise UsageError(
                f"The run's settings have no value for {option.field}",
                hint="Start a new run: this file was changed after it was written.",
            )
        values[option.field] = (
            None if raw is None else option.read(raw, f"{option.field} in the run's settings")
        )
    settings = SweepSettings(**values)
    check_conflicts(settings)
    return settings
