"""What a machine offers to one job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.records.record import empty, record

_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Of one lane, by PCIe generation."""


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """What a PCIe link allows each way; ``None`` where that isn't known.

    GT/s x lanes x 128/130 / 8, and 8/10 instead of 128/130 up to generation 2 (PCIe's line codes).
    """
    rate = None if generation is None else _GIGATRANSFERS.get(generation)
    if rate is None or generation is None or not width:
        return None
    coding = 0.8 if generation <= 2 else 128 / 130
    return rate * width * coding / 8 * 1e9


@record(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of the machine."""

    index: int  # NVML's index (not CUDA's: map by ``uuid``)
    name: str  # the product's name
    uuid: str  # NVML's UUID
    memory_bytes: int | None = None  # device memory
    # Highest PCIe generation that card and slot support together.
    pcie_generation: int | None = None
    pcie_width: int | None = None  # highest number of lanes
    numa_node: int | None = None  # NUMA node of its slot; ``None`` on machines with one node
    # CUDA's index in a process with this environment; ``None`` where the card is hidden from it, or
    # where the environment alone doesn't show it.
    cuda_index: int | None = None

    @property
    def link_bytes_per_s(self) -> float | None:
        """What the link to the host allows each way; ``None`` where it isn't known."""
        return link_bytes_per_s(self.pcie_generation, self.pcie_width)


@record(frozen=True, slots=True, kw_only=True)
class CoreSpeeds:
    """How fast the cores of a machine are, by a fixed piece of work."""

    # Of the cores, each in the mean over time, in thousands of steps of a fixed Python loop in a
    # second of CPU time.
    median: float
    low: float  # the slowest core
    high: float  # the fastest core
    # Of these three. It names the version of Python, which the work's speed depends on: speeds of
    # one unit compare machines, others don't.
    unit: str
    # Share of time in which a core took over 1.3 times as long as when it was quick; ``None`` if
    # not known.
    slow_fraction: float | None = None

    @staticmethod
    def unit_of(python_version: str) -> str:
        """The unit of what that version of Python measures.

        >>> CoreSpeeds.unit_of("3.12.4")
        'thousand steps/s of Python 3.12'
        """
        return f"thousand steps/s of Python {'.'.join(python_version.split('.')[:2])}"


@record(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine offers to one job."""

    hostname: str  # the host's name
    platform: str  # operating system and release
    cpu_model: str  # CPU model as the system names it
    logical_cpus: int  # CPUs that the machine has, hyper-threads counted
    physical_cores: int | None = None  # physical cores; ``None`` where the system doesn't report it
    # Clock rate that all cores hold together, GHz; ``None`` where the system doesn't report it, as
    # where only the model's name has it.
    base_ghz: float | None = None
    affinity_cpus: int  # CPUs that this process may run on (affinity mask and cpuset)
    # Tightest CPU quota over all ancestor cgroups; ``None`` for no quota.
    quota_cores: float | None = None
    usable_cores: float  # ``min(affinity_cpus, quota_cores)``: what a CPU-bound job can have
    memory_bytes: int | None = None  # physical memory
    # Tightest memory limit over all ancestor cgroups; ``None`` for none.
    memory_limit_bytes: int | None = None
    memory_available_bytes: int | None = None  # what is available now, limits considered
    swap_used_bytes: int | None = None  # swap in use
    shm_bytes: int | None = None  # size of /dev/shm
    shm_available_bytes: int | None = None  # free there now
    # Tightest limit of reads from a device over all ancestor cgroups; ``None`` for none.
    read_limit_bytes_per_s: float | None = None
    open_files_limit: int | None = None  # soft RLIMIT_NOFILE of this process
    numa_nodes: int | None = None  # NUMA nodes with CPUs
    # How fast its cores are; in runs each trial has that of its own window (``usage.core_speed``),
    # and this is ``None``.
    core_speed: CoreSpeeds | None = None
    gpus: tuple[GpuInfo, ...] = ()  # GPUs that NVML lists
    # A key that stays the same for this machine and job allotment between reboots and differs where
    # settings would: CPU model, usable cores, memory, GPUs.
    fingerprint: str
    # Reasons for fields that are ``None`` because they are not available.
    unavailable: Mapping[str, str] = empty()

    @property
    def memory_size_bytes(self) -> int | None:
        """What a job can have of memory at most: all there is, or the limit."""
        sizes = (self.memory_limit_bytes, self.memory_bytes)
        return min((size for size in sizes if size), default=None)

    @property
    def spare_cpus(self) -> float:
        """CPUs that a quota leaves to nobody here: others' threads run on them first."""
        return max(0.0, self.affinity_cpus - self.usable_cores)

    def shared_by(self, ranks: int, cpus: int | None = None) -> Machine:
        """What one of several ranks can count on beside the others.

        All of them together may run on ``cpus``, where this is what one of them sees, which may
        have been bound to some; ``None`` where its affinity mask is that of all.
        """
        if ranks <= 1:
            return self
        # A mask may name CPUs that are offline.
        whole = max(self.affinity_cpus, min(cpus or 0, self.logical_cpus))
        quota = None if self.quota_cores is None else self.quota_cores / ranks
        own = min(self.affinity_cpus, whole / ranks)

        def part(size: int | None) -> int | None:
            return None if size is None else size // ranks

        reads = self.read_limit_bytes_per_s
        return dataclasses.replace(
            self,
            logical_cpus=max(1, whole // ranks),
            affinity_cpus=max(1, int(own)),
            quota_cores=quota,
            usable_cores=own if quota is None else min(own, quota),
            memory_available_bytes=part(self.memory_available_bytes),
            shm_available_bytes=part(self.shm_available_bytes),
            read_limit_bytes_per_s=reads and reads / ranks,
        )
