"""Which configurations can't work here: they are skipped, with the reason, instead of tried.

Pure. A skipped configuration is never a guess: each sum leaves out whatever may not be needed, so
that what is skipped would have failed, if not in its short trial then in a training that lets the
queues fill. All others are tried, and ended when they exceed a limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlprof.records import BY_COPY, Config, Failure, Machine, Target, shared_position
from dlprof.settings import SweepSettings
from dlprof.trial import failures
from dlprof.trial.protocol import record_of
from dlprof.units import counted, format_bytes

FORKED_WORKER_BYTES = 11_000_000
"""Least memory of a forked worker of its own: 11 to 45 MB were measured with torch 2.13."""

SPAWNED_WORKER_BYTES = 100_000_000
"""The same for spawn and forkserver, where each worker imports torch again: 155 MB were measured,
and smaller builds of torch are about."""


class ResourceLimit(NamedTuple):
    """How much a trial may take of something, in bytes, and in words: ``64 MiB is free``."""

    size: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the probe and the machine say of what can work."""

    batch_size: int | None  # the target's own, at which it was probed
    # Data of the smaller of the batches seen; ``None`` if unknown, here and below.
    batch_bytes: int | None
    shared_bytes: int | None  # the part of it that goes through shared memory
    descriptors: int | None  # pieces of shared memory in it
    start_method: str  # what workers are started by where a configuration doesn't say
    # The same for how they share tensors; ``None`` where the target's own code may change it in
    # each worker.
    sharing_strategy: str | None
    memory: ResourceLimit | None  # what one trial may take
    shared_memory: ResourceLimit | None  # the same of shared memory
    open_files: int | None  # soft limit of a process
    unsendable: Failure | None = None  # why no worker can send a batch
    unstartable: Failure | None = None  # why no worker can be started by spawn or forkserver
    shared: Failure | None = None  # why the data of several forked workers is wrong

    @classmethod
    def of(
        cls,
        settings: SweepSettings,
        target: Target,
        machine: Machine,
        probe: Mapping[str, Any],
    ) -> Preflight:
        """From limits that all ranks share, what is free, and what ``probing.probe`` saw."""
        own = target.own_config or Config()
        return cls(
            batch_size=target.batch_size,
            batch_bytes=probe["least_bytes"],
            shared_bytes=probe["shared_bytes"],
            descriptors=probe["descriptors"],
            start_method=own.start_method or probe["start_method"],
            sharing_strategy=probe["sharing_strategy"],
            memory=_limit(
                machine.memory_available_bytes, settings, "--max-ram", settings.max_ram_bytes
            ),
            shared_memory=_limit(
                machine.shm_available_bytes, settings, "--max-shm", settings.max_shm_bytes
            ),
            open_files=machine.open_files_limit,
            unsendable=record_of(Failure, probe["batch_failure"]),
            shared=shared_position(target.shared_files),
        )

    def starts_by_copy(self, config: Config) -> bool:
        """Whether its workers get the dataset pickled."""
        return config.num_workers > 0 and self.method(config) in BY_COPY

    def method(self, config: Config) -> str:
        """What the workers of a configuration are started by."""
        return config.start_method or self.start_method

    def fault(self, config: Config) -> Failure | None:
        """Why a configuration can't work; ``None`` to try it. Without workers it always is."""
        if config.num_workers == 0:
            return None
        if self.starts_by_copy(config) and self.unstartable is not None:
            return self.unstartable
        if self.shared is not None and config.num_workers > 1 and self.method(config) == "fork":
            return self.shared
        return (
            self.unsendable
            or _shared_memory(config, self)
            or _memory(config, self)
            or _descriptors(config, self)
        )


def _shared_memory(config: Config, known: Preflight) -> Failure | None:
    """Full queues hold ``num_workers * prefetch_factor + 1`` batches in /dev/shm."""
    batch = _at_batch_size(known.shared_bytes, config, known)
    if batch is None or known.shared_memory is None:
        return None
    need = config.queued_batches * batch
    if need <= known.shared_memory.size:
        return None
    return Failure(
        kind="shared_memory",
        message=f"{_batches(config, batch)} need {format_bytes(need)} of shared memory, and "
        f"{known.shared_memory.text}.",
        hint=failures.MORE_SHM,
    )


def _memory(config: Config, known: Preflight) -> Failure | None:
    """The least that workers need, and full queues; the main process counts for nothing."""
    if known.memory is None:
        return None
    forked = known.method(config) == "fork"
    each = FORKED_WORKER_BYTES if forked else SPAWNED_WORKER_BYTES
    batch = _at_batch_size(known.batch_bytes, config, known) or 0.0
    need = config.num_workers * each + config.queued_batches * batch
    if need <= known.memory.size:
        return None
    return Failure(
        kind="out_of_memory",
        message=f"{config.num_workers} workers of at least {format_bytes(each)} and "
        f"{_batches(config, batch)} need {format_bytes(need)} of memory, and {known.memory.text}.",
        hint=failures.LESS_MEMORY,
    )


def _descriptors(config: Config, known: Preflight) -> Failure | None:
    """By ``file_descriptor``, the main process has two of each tensor open while it takes a batch.

    One belongs to the batch that it still holds, one to the next, which it receives then; a
    worker needs as many to send one.
    """
    strategy = config.sharing_strategy or known.sharing_strategy
    other_size = config.batch_size not in (None, known.batch_size)
    certain = strategy == "file_descriptor" and known.sharing_strategy is not None
    if not certain or other_size or known.descriptors is None or known.open_files is None:
        return None
    need = config.open_files(known.descriptors, batches=2)
    if need <= known.open_files:
        return None
    return Failure(
        kind="file_descriptors",
        message=f"2 batches of {known.descriptors:,} tensors and the queues of "
        f"{counted(config.num_workers, 'worker')} need {need:,} file descriptors, and a process "
        f"may have {known.open_files:,}.",
        hint=failures.MORE_FILES,
    )


def _at_batch_size(size: int | None, config: Config, known: Preflight) -> float | None:
    """Bytes of a batch at the configuration's batch size."""
    if size is None or config.batch_size is None:
        return size
    return size * config.batch_size / known.batch_size if known.batch_size else None


def _batches(config: Config, batch: float) -> str:
    return f"{config.num_workers} x {config.prefetch_factor} + 1 batches of {format_bytes(batch)}"


def _limit(
    available: int | None, settings: SweepSettings, option: str, allowed: int | None
) -> ResourceLimit | None:
    """One rank's share of what is free, or of what all of them are allowed: the smaller one."""
    launched, ranks = max(settings.launch_ranks or (1,)), settings.ranks
    found = []
    if available is not None:
        share = "" if launched == 1 else f" for each of {launched} ranks"
        size = available / launched
        found.append(ResourceLimit(size, f"{format_bytes(size)} is free{share}"))
    if allowed is not None:
        share = "" if ranks == 1 else f" to each of {ranks} ranks"
        size = allowed / ranks
        found.append(ResourceLimit(size, f"{option} leaves {format_bytes(size)}{share}"))
    return min(found, key=lambda limit: limit.size, default=None)
