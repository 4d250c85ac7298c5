"""What one configuration, measured once, gave: figures, use of the machine, or a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from dlprof.records.config import Config, Estimate
from dlprof.records.record import empty, record

Purpose = Literal["measure", "explain", "cold", "lever", "scaling", "binding"]
NumaMode = Literal["node", "socket", "exclusive", "core-complex"]
"""What ``torchrun --numa-binding`` takes."""

Outcome = Literal["completed", "crashed", "timed_out", "out_of_memory", "skipped"]


FailureKind = Literal[
    "target_error", "worker_exception", "worker_signal", "worker_exit", "out_of_memory",
    "shared_memory", "file_descriptors", "not_picklable", "batch_not_picklable", "deadlock",
    "timeout", "start_failed", "cuda_fork", "empty", "duplicated", "truncated", "shared_file",
    "inconsistent_batches",
]  # fmt: skip


CUT_SHORT_SIGN = "the warm-up was cut short"
"""How the warning of a trial begins whose window may hold batches of its warm-up."""

UNEVEN_SIGN = "training that synchronizes every step hangs at its end"
"""In the warning of a trial of which one rank has more batches an epoch than another."""


@record(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial gave no figures."""

    kind: FailureKind  # the class of the fault
    message: str  # what happened, in one sentence
    hint: str = ""  # what to change, in one sentence
    # The last lines that the trial's processes wrote, the user's own traceback among them.
    stderr_tail: str = ""
    # Batches that the epoch had given when loading raised; ``None`` where that is not known.
    batches: int | None = None


@record(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """What one GPU did during the measured window."""

    index: int  # NVML's index
    name: str  # the product's name
    uuid: str  # NVML's UUID, by which CUDA's order is mapped
    # Share of time in which any kernel ran (NVML's ``utilization.gpu``); says nothing of how well
    # the device was used.
    kernel_active_fraction: float | None = None
    memory_used_bytes: int | None = None  # device memory in use by all processes, peak
    # Bytes from host to device: by GPM over the whole window, else the mean of NVML's 20 ms probes.
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None  # bytes from device to host
    # PCIe generation of the link, the highest seen: an idle link drops to 1.
    pcie_generation: int | None = None
    pcie_width: int | None = None  # lanes of the link, the most seen
    # Share of multiprocessors that had work (GPM; Hopper and later).
    sm_active_fraction: float | None = None
    sm_occupancy_fraction: float | None = None  # active warps over the most that there can be (GPM)
    sm_clock_hz: float | None = None  # clock rate of the multiprocessors, mean
    # Share of the samples in which power or heat held the clocks down.
    throttled_fraction: float | None = None
    throttle_reasons: tuple[str, ...] = ()  # what did, in words
    power_w: float | None = None  # power that the card drew, mean
    # Processes that computed on it when the trial had just begun and had not yet reached a device:
    # those of others.
    other_processes: int | None = None
    other_memory_bytes: int | None = None  # device memory that they held, summed
    # Processes that computed on it at the window's end, the trial's own among them.
    processes: int | None = None
    samples: int = 0  # how often it was asked in the window
    # What asking took of a core; part of ``Usage.observer_cpu_cores``.
    sampler_cpu_cores: float | None = None
    unavailable: Mapping[str, str] = empty()  # reasons for fields that are ``None``


@record(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the trial's processes used, and what the machine had left, in the measured window."""

    own_cpu_cores: float | None = None  # CPU seconds per second of the trial's whole process tree
    # Own plus idle cores within the affinity mask and the quota: what the trial could have had. Own
    # near available means that the cores are the limit.
    available_cpu_cores: float | None = None
    # Cores that the trial gets if it wants all: Linux gives each session or cgroup the same share,
    # however many threads it has. ``None`` where others are in its own, each thread alike.
    fair_cpu_cores: float | None = None
    # Cores of the affinity mask that other processes kept busy, or other machines on the same host.
    other_cpu_cores: float | None = None
    stolen_cpu_cores: float | None = None  # the part of it that a hypervisor gave to other machines
    # Threads of other processes that ran or were runnable, on the whole machine, mean over looks
    # five times a second: how many cores others would use. Of a script, by the load average.
    other_runnable: float | None = None
    # Threads of the main process that ran or were runnable, mean: near 1 it is what sets the rate,
    # however many workers there are.
    main_runnable: float | None = None
    # Run-queue delay over that plus CPU time. Above about 0.3 the trial is short of cores.
    run_queue_wait_fraction: float | None = None
    # Share of the window in which a cgroup quota throttled the trial.
    throttled_fraction: float | None = None
    # PSI ``cpu some``: share of time in which a task had to wait for a CPU.
    cpu_pressure_fraction: float | None = None
    io_pressure_fraction: float | None = None  # PSI ``io some``
    memory_pressure_fraction: float | None = None  # PSI ``memory some``
    # Proportional set size, summed over the tree, with full queues; shared pages count once.
    pss_peak_bytes: int | None = None
    # Growth of /dev/shm since before the trial started, peak, with full queues.
    shm_peak_bytes: int | None = None
    read_bytes_per_s: float | None = None  # bytes fetched from storage
    # 1 - storage reads / bytes asked for by ``read``; 1 is all from the page cache.
    cache_hit_fraction: float | None = None
    # Thousands of steps of a fixed Python loop that a core did in a second of CPU time, mean over
    # the cores by how busy they were: a virtual core changes its speed.
    core_speed: float | None = None
    # What the main process's first thread did, shares of looks fifty times a second (``running``,
    # ``queue`` for a batch or indices, ``gil``, ``disk``, ``child gzip`` while a child process of
    # that name computes, …), where batches were traced and a wait for the GIL can be seen; else
    # empty.
    main_waits: Mapping[str, float] = empty()
    worker_waits: Mapping[str, float] = empty()  # the same of the workers'
    observer_cpu_cores: float | None = None  # what the observer itself used
    gpu: tuple[GpuUsage, ...] = ()  # one entry per GPU of the machine; empty where there is none

    def taken_cores(self, usable_cores: float) -> float:
        """Cores that others kept busy of those that it may use.

        On a large machine others use what a quota leaves to nobody here, and take nothing by it.
        """
        # Without a quota both are the same figure, but for the rounding of differences.
        lacked = round(usable_cores - (self.available_cpu_cores or 0.0), 9)
        return max(0.0, min(self.other_cpu_cores or 0.0, lacked))

    def runnable(self, cores: float | None) -> float:
        """Threads that keep so many cores busy and wait for one as long as its own: all that could.

        By that share they wait in the run queue, and run for the rest.
        """
        return (cores or 0.0) / max(0.01, 1 - (self.run_queue_wait_fraction or 0.0))

    def is_crowded(self, usable_cores: float) -> bool:
        """Whether others kept so many of these cores busy that the trial felt it.

        That is where it had a run-queue delay. dlprof's own supervisor and observer take a few
        hundredths of a core.
        """
        waited = self.run_queue_wait_fraction
        felt = waited is None or waited > 0.05
        return felt and self.taken_cores(usable_cores) > 0.15 * usable_cores


@record(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """What was used at one time, on average since the time before."""

    at_s: float  # seconds since the trial started
    own_cpu_cores: float | None = None  # as in ``Usage``; of all ranks on a machine together
    other_cpu_cores: float | None = None  # as in ``Usage``
    # Mean ``kernel_active_fraction`` of the machine's GPUs; ``None`` where there is none.
    gpu_active_fraction: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """What one rank did in a trial in which several loaded at once, or in a script of several.

    In a script it is of the loader that costs its ranks the most, and of one rank against those of
    the same machine.
    """

    rank: int  # its number, from 0
    host: str  # the machine that it ran on
    samples_per_s: Estimate | None = None  # its own steady rate, of its own samples
    batches_per_s: Estimate | None = None  # the same in batches
    # ``iter(loader)`` plus the first ``next()``; all ranks begin at once.
    startup_s: float | None = None
    wait_fraction: float | None = None  # as in ``Trial``
    # Share of the window in which it waited at the barrier of a step for slower ranks; ``None``
    # without one. In a script: in its steps, for batches of other ranks that came later than its
    # own; ``None`` where its ranks don't go step by step.
    barrier_fraction: float | None = None
    # In a script, share of the time in which the other ranks waited in their steps for its batch,
    # mean over them; ``None`` likewise.
    held_up_fraction: float | None = None
    # In a script, share of its batches for which it waited less than a twentieth of the step's
    # time.
    ready_fraction: float | None = None
    epoch_batches: int | None = None  # batches of its epoch, by its loader's own word
    # CPU seconds per second of its process tree; here and below ``None`` where the observer doesn't
    # say.
    own_cpu_cores: float | None = None
    # Cores that it may use and other processes kept busy, those of other ranks left out.
    other_cpu_cores: float | None = None
    run_queue_wait_fraction: float | None = None  # as in ``Usage``, of its process tree
    read_bytes_per_s: float | None = None  # bytes that it fetched from storage
    # In a script, CPU seconds that fetching and collating a batch takes, mean of the first batches,
    # which were followed; ``None`` where they were not.
    fetch_cpu_s: float | None = None
    fetch_run_queue_s: float | None = None  # run-queue delay in that
    fetch_io_s: float | None = None  # seconds blocked in that
    # In a script, the CPUs that it may use; empty where that isn't known.
    cpus: tuple[int, ...] = ()
    # The NUMA node that all its CPUs are of; ``None`` for CPUs of several, or of the only one.
    numa_node: int | None = None
    loader: str = ""  # in a script, the name of the loader

    @property
    def pace(self) -> float:
        """Batches a second if it waited for no other rank; 0 where no rate is known.

        Ranks that pass each step together have one rate, and one of them sets it.
        """
        return 0.0 if self.batches_per_s is None else self.batches_per_s.value * self.freed

    @property
    def freed(self) -> float:
        """Its rate without a barrier, over what it has: 1 where it waits for no other rank."""
        return 1 / max(1e-9, 1 - (self.barrier_fraction or 0.0))


@record(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration, measured once in a process of its own.

    Where several ranks load at once, its figures are those of one rank: rates of the slowest, whose
    pace a synchronized training keeps (times the number of ranks is what all give together), the
    longest start and epoch restart, and of ``usage`` one rank's share (cores, memory, bytes over
    the number of ranks), as if one loader had been measured on its share of the machine.
    """

    id: str  # unique within the run, ``t0001`` onwards in the order of measuring
    config: Config  # what was measured, canonical
    # 0 for the first time that this configuration was measured; also the number of the interleaved
    # block, so trials of equal repetition are compared in pairs.
    repetition: int
    outcome: Outcome  # whether there are figures, and if not, why in one word
    # ``measure`` for a figure that is compared with others; ``explain`` for a traced trial, which
    # tracing slows down; ``cold`` for one without the page cache in a run whose others have it;
    # ``lever`` for a setting beside the swept ones, and the recommended configuration, interleaved
    # with it; ``scaling`` for the recommended configuration by another number of ranks; ``binding``
    # for it with ranks bound to NUMA nodes, and without, interleaved.
    purpose: Purpose = "measure"
    failure: Failure | None = None  # set unless ``outcome`` is ``completed``
    # Steady rate at the stated step, without the time to first batch and epoch restarts.
    samples_per_s: Estimate | None = None
    batches_per_s: Estimate | None = None  # the same in batches
    bytes_per_s: Estimate | None = None  # the same in bytes of tensor data
    startup_s: float | None = None  # ``iter(loader)`` plus the first ``next()``
    # From the last batch of an epoch to the first of the next; timed once for configurations that
    # share a ``turnover_group``.
    epoch_turnover_s: float | None = None
    # Share of the window in which the consumer waited in ``next()``; only with a stated step
    # (without one the consumer does nothing but wait).
    wait_fraction: float | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)  # what was used in the measured window
    # What was used as it went on, from the measured window's begin to the trial's end: twice a
    # second where it is short, and never more than 60 samples.
    usage_over_time: tuple[UsageSample, ...] = ()
    noisy: bool = False  # whether other processes, a quota or drift make the figures doubtful
    warnings: tuple[str, ...] = ()  # sentences for people
    # Reasons for fields (``usage.`` prefixed for usage) that are ``None``.
    unavailable: Mapping[str, str] = empty()
    started_at: str = ""  # wall-clock start, ISO 8601, UTC
    measured_s: float = 0.0  # length of the measured window
    wall_s: float = 0.0  # whole cost of the trial, process start to process end
    window_batches: int = 0  # batches in the measured window
    # Samples in them, counted batch by batch; ``None`` where they can't be counted.
    window_samples: int | None = None
    batch_bytes: float | None = None  # mean bytes of tensor data per batch
    samples_per_batch: float | None = None  # mean samples per batch in the window
    # Samples in a whole epoch that it saw, first to last batch; ``None`` where none ended or they
    # can't be counted.
    epoch_samples: int | None = None
    # Workers that gave a batch at least; ``None`` where that was not seen.
    fed_workers: int | None = None
    # Seconds that the batches before the window took beyond what they take at the steady rate: paid
    # once per training run. ``None`` where there is no steady rate.
    transient_s: float | None = None
    # Whether the epochs were too short for a steady state, so that the rates cover whole epochs,
    # restarts included.
    whole_epochs: bool = False
    # Copying batches to the device; ``None`` where they stayed on the CPU.
    copies: Copies | None = None
    # What each of several ranks did; empty where one loader was measured by itself.
    ranks: tuple[RankFigures, ...] = ()
    # What ranks and their workers were bound to, as ``torchrun --numa-binding`` names it; ``None``
    # where they were not.
    numa_binding: NumaMode | None = None

    @property
    def has_rate(self) -> bool:
        """Whether it can be compared: it ended, and gave samples."""
        rate = self.samples_per_s
        return self.outcome == "completed" and rate is not None and rate.value > 0

    @property
    def node_usage(self) -> Usage:
        """Its ``usage`` with the cores and bytes of all ranks on one machine, which share it."""
        paces = [(each.samples_per_s.value, each.host) for each in self.ranks if each.samples_per_s]
        host = min(paces)[1] if paces else (self.ranks[0].host if self.ranks else "")
        here = sum(each.host == host for each in self.ranks)  # the figures are the slowest one's
        if here <= 1:
            return self.usage
        names = ("own_cpu_cores", "available_cpu_cores", "read_bytes_per_s")
        known = ((name, getattr(self.usage, name)) for name in names)
        return dataclasses.replace(
            self.usage, **{name: here * share for name, share in known if share is not None}
        )

    @property
    def together_samples_per_s(self) -> Estimate | None:
        """What all ranks give together where each waits for the slowest."""
        rate = self.samples_per_s
        return None if rate is None else rate.times(max(1, len(self.ranks)))


def undisturbed(trials: Iterable[Trial]) -> list[Trial]:
    """Those of some trials that nothing disturbed; all of them where none is such."""
    some = [*trials]
    return [trial for trial in some if not trial.noisy] or some


@record(frozen=True, slots=True, kw_only=True)
class PinCosts:
    """What ``pin_memory=True`` cost in one trial."""

    # CPU seconds per batch of the thread that pins (``pt_data_pin``).
    thread_cpu_s: float | None = None
    thread_run_queue_s: float | None = None  # run-queue delay of that thread, seconds per batch
    # Page-locked memory that torch's allocator held at the window's end; blocks are rounded up to
    # powers of two.
    pinned_bytes: int | None = None
    # Seconds in the driver's allocation of such memory since the process began.
    alloc_s: float | None = None
    allocations: int | None = None  # how many of those there were
    unavailable: Mapping[str, str] = empty()  # reasons for fields that are ``None``


@record(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copying a trial's batches to the device, means over the batches of the window."""

    device: str  # torch's name of it
    batches: int  # batches copied in the window
    timed: int = 0  # those that the figures are of: every few, because device events cost time
    bytes: float | None = None  # bytes copied per batch
    copy_s: float | None = None  # seconds that a batch's copy took on the device, by device events
    # Part of that in which the step had to wait for the copy; near ``copy_s`` means that nothing is
    # overlapped, near 0 that copies cost no throughput.
    exposed_s: float | None = None
    hidden_s: float | None = None  # the rest of ``copy_s``
    blocked_s: float | None = None  # seconds in which the copy itself blocked the consuming thread
    pinned_fraction: float | None = None  # share of the bytes that came in page-locked memory
    # Whether a batch was copied by a side stream while the one before was worked on.
    prefetched: bool = False
    pin: PinCosts | None = None  # what pinning cost; ``None`` without ``pin_memory``
    uuid: str = ""  # by which NVML knows it; empty where torch doesn't report it
    # Device memory that torch's allocator held in the trial's process at the window's end; on
    # Apple's GPUs the only figure of their memory.
    held_bytes: int | None = None
    unavailable: Mapping[str, str] = empty()  # reasons for fields that are ``None``
