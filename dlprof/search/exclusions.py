"""Why a configuration is not worth measuring, or must not be."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
from collections.abc import Sequence

from dlprof.records import Config, LeftOut, Machine, Target
from dlprof.settings import SweepSettings
from dlprof.units import format_bytes

FORKED_WORKER_BYTES = 45e6
"""Memory of a forked worker of its own; 11 to 45 MB were measured with torch 2.13."""

SPAWNED_WORKER_BYTES = 155e6
"""The same for spawn and forkserver, where each worker imports torch anew."""

_MEMORY_SHARE = 0.8
"""Share of the memory to be had that a trial may plan to use: the rest is for the data set."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What configurations are held against.

    Attributes:
        max_workers: The user's limit.
        length: Samples in an epoch.
        batches_per_epoch: At the target's own batch size; ``None`` where it isn't known, or
            where the user named ``num_workers`` and is to be believed.
        batch_size: The target's own.
        memory_bytes: What one trial may use.
        shm_bytes: Shared memory that one trial may use.
        batch_bytes: Of one batch at the target's own size.
        start_method: What workers are started by where a configuration doesn't say.
    """

    max_workers: int | None
    length: int | None
    batches_per_epoch: int | None
    batch_size: int | None
    memory_bytes: float | None
    shm_bytes: float | None
    batch_bytes: float | None
    start_method: str

    @classmethod
    def of(cls, settings: SweepSettings, target: Target, machine: Machine) -> Limits:
        """The limits of this sweep: the user's, shared by the ranks, and the machine's."""
        auto = settings.num_workers is None
        available = machine.memory_available_bytes
        own = target.own_config or Config()
        return cls(
            max_workers=settings.max_workers,
            length=target.length if auto else None,
            batches_per_epoch=target.batches_per_epoch if auto else None,
            batch_size=target.batch_size,
            memory_bytes=_least(
                None if available is None else available * _MEMORY_SHARE,
                _share(settings.max_ram_bytes, settings.ranks),
            ),
            shm_bytes=_least(
                machine.shm_available_bytes, _share(settings.max_shm_bytes, settings.ranks)
            ),
            batch_bytes=target.batch_bytes,
            start_method=own.start_method or multiprocessing.get_all_start_methods()[0],
        )


def excluded(config: Config, limits: Limits) -> tuple[str, str] | None:
    """The kind of reason and the reason to leave a configuration out; ``None`` to keep it."""
    checks = {
        "prefetch": _prefetch(config),
        "max_workers": _max_workers(config, limits),
        "epoch": _epoch(config, limits),
        "memory": _memory(config, limits),
        "shm": _shared_memory(config, limits),
    }
    return next(((kind, reason) for kind, reason in checks.items() if reason), None)


def explain(rows: Sequence[tuple[Config, str]], kept: Sequence[Config]) -> LeftOut:
    """One entry for all configurations left out for one kind of reason.

    Args:
        rows: Configurations and reasons, cheapest first; the first one's reason is given.
        kept: What is measured: values of ``num_workers`` among them are told apart further.
    """
    measured = {config.num_workers for config in kept}
    whole = sorted({config.num_workers for config, _ in rows} - measured)
    partly = sorted(
        {(c.num_workers, c.prefetch_factor or 0) for c, _ in rows if c.num_workers in measured}
    )
    names = [f"num_workers={', '.join(map(str, whole))}"] if whole else []
    names += [f"num_workers={w} with prefetch_factor={p}" for w, p in partly]
    return LeftOut(setting="; ".join(names), reason=rows[0][1])


def _prefetch(config: Config) -> str | None:
    if config.num_workers and config.prefetch_factor == 0:
        return "torch refuses prefetch_factor=0 with workers"
    return None


def _max_workers(config: Config, limits: Limits) -> str | None:
    if limits.max_workers is not None and config.num_workers > limits.max_workers:
        return f"max_workers is {limits.max_workers}"
    return None


def _epoch(config: Config, limits: Limits) -> str | None:
    batches = limits.batches_per_epoch
    if config.batch_size is not None and limits.length is not None:
        batches = math.ceil(limits.length / config.batch_size)
    if batches is None or config.num_workers <= max(1, batches):
        return None
    return f"an epoch has {batches} batches, and workers beyond that have nothing to load"


def _memory(config: Config, limits: Limits) -> str | None:
    if limits.memory_bytes is None:
        return None
    spawned = (config.start_method or limits.start_method) in ("spawn", "forkserver")
    each = SPAWNED_WORKER_BYTES if spawned else FORKED_WORKER_BYTES
    need = config.num_workers * each
    if need <= limits.memory_bytes:
        return None
    return (
        f"{config.num_workers} workers of about {format_bytes(round(each))} need "
        f"{format_bytes(round(need))}, more than the {format_bytes(round(limits.memory_bytes))} "
        "of memory that a trial may use"
    )


def _shared_memory(config: Config, limits: Limits) -> str | None:
    """Full queues hold ``num_workers * prefetch_factor + 1`` batches in /dev/shm."""
    if limits.shm_bytes is None or limits.batch_bytes is None or not config.num_workers:
        return None
    batch = limits.batch_bytes
    if config.batch_size is not None and limits.batch_size:
        batch *= config.batch_size / limits.batch_size
    held = config.batches_in_flight + 1
    if held * batch <= limits.shm_bytes:
        return None
    return (
        f"{config.num_workers} x {config.prefetch_factor} + 1 batches of "
        f"{format_bytes(round(batch))} need {format_bytes(round(held * batch))} of shared memory, "
        f"and {format_bytes(round(limits.shm_bytes))} can be had"
    )


def _share(total: int | None, ranks: int) -> float | None:
    """One rank's share of a limit for all of them."""
    return None if total is None else total / ranks


def _least(*limits: float | None) -> float | None:
    """The tightest of the limits that are known."""
    return min((limit for limit in limits if limit is not None), default=None)
