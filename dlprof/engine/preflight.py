"""What can't work here, known before any trial: the rest is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dlprof.records import BY_COPY, Config, Failure, Machine, Target, shared_position
from dlprof.settings import SweepSettings
from dlprof.trial import failures
from dlprof.trial.protocol import record_of
from dlprof.units import counted, format_bytes


class ResourceLimit(NamedTuple):
    """How much a trial may take of something, in bytes, and in words: ``64 MiB is free``."""

    size: float
    text: str


@dataclasses.dataclass(frozen=True)
class Preflight:
    """What the probe and the machine say of what can work: the rest is skipped, with the reason.

    A skipped configuration is never a guess: each sum leaves out whatever may not be needed, so
    that what is skipped would have failed, if not in its short trial then in a training that lets
    the queues fill. All others are tried, and ended when they exceed a limit.
    """

    settings: SweepSettings  # with the limits that all ranks share
    target: Target  # as it was probed
    machine: Machine
    probe: Mapping[str, Any]  # what ``probing.probe`` saw; ``None`` for what isn't known
    threads: int | None = None  # that cgroups let all ranks start
    unstartable: Failure | None = None  # why no worker can be started by spawn or forkserver

    @property
    def start_method(self) -> str:
        """What workers are started by where a configuration doesn't say."""
        own = self.target.own_config or Config()
        found: str = own.start_method or self.probe["start_method"]
        return found

    def starts_by_copy(self, config: Config) -> bool:
        """Whether its workers get the dataset pickled."""
        return config.num_workers > 0 and (config.start_method or self.start_method) in BY_COPY

    def fault(self, config: Config) -> Failure | None:
        """Why a configuration can't work; ``None`` to try it."""
        if config.num_workers == 0:
            return self.target.main_failure
        if self.starts_by_copy(config) and self.unstartable is not None:
            return self.unstartable
        shared = shared_position(self.target.shared_files)
        if shared is not None and config.num_workers > 1 and not self.starts_by_copy(config):
            return shared
        return record_of(Failure, self.probe["batch_failure"]) or next(self._lacks(config), None)

    def _lacks(self, config: Config) -> Iterator[Failure]:
        """What a configuration needs more of than there is."""
        memory, shared = resource_limits(self.settings, self.machine)
        workers = counted(config.num_workers, "worker")

        def batches(size: float) -> str:
            depth = config.prefetch_factor
            return f"{config.num_workers} x {depth} + 1 batches of {format_bytes(size)}"

        # Full queues lie in /dev/shm.
        size = self._at_batch_size("shared_bytes", config)
        need = config.queued_bytes(size) or 0.0
        if size is not None and shared is not None and need > shared.size:
            yield Failure(
                kind="shared_memory",
                message=f"{batches(size)} need {format_bytes(need)} of shared memory, and "
                f"{shared.text}.",
                hint=failures.MORE_SHM,
            )
        # The least that workers need, and full queues; the main process counts for nothing. 11 to
        # 45 MB of a forked worker's own were measured with torch 2.13, and 155 MB where each
        # imports torch again; smaller builds of torch are about.
        each = 100_000_000 if self.starts_by_copy(config) else 11_000_000
        size = self._at_batch_size("least_bytes", config) or 0.0
        need = config.num_workers * each + (config.queued_bytes(size) or 0.0)
        if memory is not None and need > memory.size:
            yield Failure(
                kind="out_of_memory",
                message=f"{workers} of at least {format_bytes(each)} and "
                f"{batches(size)} need {format_bytes(need)} of memory, and {memory.text}.",
                hint=failures.LESS_MEMORY,
            )
        # By ``file_descriptor``, main has two of each tensor open while it takes a batch. One
        # belongs to the batch that it still holds, one to the next, which it receives then; a
        # worker needs as many to send one. Where the target's own code may change how workers
        # share, the probe doesn't know that.
        usual, tensors = self.probe["sharing_strategy"], self.probe["descriptors"]
        other_size = config.batch_size not in (None, self.target.batch_size)
        certain = usual is not None and (config.sharing_strategy or usual) == "file_descriptor"
        limit = self.machine.open_files_limit
        if certain and not other_size and tensors is not None and limit is not None:
            files = config.open_files(tensors, batches=2)
            if files > limit:
                yield Failure(
                    kind="file_descriptors",
                    message=f"2 batches of {tensors:,} tensors and the queues of {workers} need "
                    f"{files:,} file descriptors, and a process may have {limit:,}.",
                    hint=failures.MORE_FILES,
                )
        # A worker has two at least: its own, and the one that puts batches into the queue.
        threads = 2 * config.num_workers
        most = None if self.threads is None else self.threads // self.settings.launched
        if most is not None and threads > most:
            yield Failure(
                kind="start_failed",
                message=f"{workers} need {threads:,} processes and threads, and a cgroup lets "
                f"{most:,} be started.",
                hint=failures.MORE_PROCESSES,
            )

    def _at_batch_size(self, name: str, config: Config) -> float | None:
        """Bytes of a batch at the configuration's batch size, from what the probe has of one."""
        size, probed = self.probe[name], self.target.batch_size
        if size is None or config.batch_size is None:
            return None if size is None else float(size)
        return size * config.batch_size / probed if probed else None


def resource_limits(
    settings: SweepSettings, machine: Machine
) -> tuple[ResourceLimit | None, ResourceLimit | None]:
    """Of memory and of shared memory, one rank's share: of what is free, or is allowed to all."""
    launched, ranks = settings.launched, settings.ranks

    def least(available: int | None, option: str, allowed: int | None) -> ResourceLimit | None:
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

    return (
        least(machine.memory_available_bytes, "--max-ram", settings.max_ram_bytes),
        least(machine.shm_available_bytes, "--max-shm", settings.max_shm_bytes),
    )
