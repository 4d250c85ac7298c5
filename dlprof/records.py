"""The types that flow through dlprof: configurations, trials, machines, recommendations, runs.

Plain frozen dataclasses of JSON-like values. Units stand in the names (``_s`` seconds, ``_bytes``,
``_cores`` busy cores, fractions 0 to 1). A figure that could not be had is ``None``, and the
record's ``unavailable`` maps the field's name to the reason; a figure is never 0 for "unknown".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

SCHEMA_VERSION = 1

Outcome = Literal["completed", "crashed", "timed_out", "out_of_memory", "skipped"]
FailureKind = Literal[
    "target_error",
    "worker_exception",
    "worker_signal",
    "worker_exit",
    "out_of_memory",
    "shared_memory",
    "file_descriptors",
    "not_picklable",
    "batch_not_picklable",
    "deadlock",
    "timeout",
    "start_failed",
    "cuda_fork",
    "empty",
    "truncated",
    "inconsistent_batches",
]
Confidence = Literal["high", "medium", "low"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval.

    Attributes:
        value: The best single figure, in the unit of the field that holds it.
        low: Lower end; equal to ``high`` only for an exact figure. ``None`` when the measurement
            was too short to say anything about its own spread.
        high: Upper end; ``None`` as for ``low``.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One setting of every DataLoader argument that a sweep varies, under torch's own names.

    Attributes:
        num_workers: Worker processes; 0 loads in the main process.
        prefetch_factor: Batches sent ahead per worker; ``None`` only at ``num_workers=0``.
        pin_memory: Whether a thread of the main process copies batches to page-locked memory.
        persistent_workers: Whether workers outlive an epoch.
        batch_size: Samples per batch; ``None`` keeps the target's own (a batch sampler,
            ``batch_size=None``, or the size that its DataLoader was built with).
        in_order: Whether batches are yielded in the sampler's order.
        start_method: ``fork``, ``spawn`` or ``forkserver``; ``None`` keeps the target's or the
            platform's own.
        sharing_strategy: ``file_descriptor`` or ``file_system``; ``None`` keeps torch's default.
        worker_threads: Compute threads inside each worker; ``None`` leaves torch's 1 in place.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int | None = None
    in_order: bool = True
    start_method: str | None = None
    sharing_strategy: str | None = None
    worker_threads: int | None = None

    @property
    def batches_in_flight(self) -> int:
        """Batches that can be loading or queued at once: ``num_workers * prefetch_factor``."""
        return self.num_workers * (self.prefetch_factor or 0)

    @property
    def key(self) -> str:
        """A short text that tells configurations apart, stable between runs and versions."""
        parts = [f"w{self.num_workers}"]
        if self.prefetch_factor is not None:
            parts.append(f"p{self.prefetch_factor}")
        if self.pin_memory:
            parts.append("pin")
        if self.persistent_workers:
            parts.append("persistent")
        if self.batch_size is not None:
            parts.append(f"b{self.batch_size}")
        if not self.in_order:
            parts.append("unordered")
        parts += [part for part in (self.start_method, self.sharing_strategy) if part]
        if self.worker_threads is not None:
            parts.append(f"t{self.worker_threads}")
        return "-".join(parts)

    @property
    def cost_key(self) -> tuple[object, ...]:
        """Sorts configurations by what they cost: workers, queued batches, then the rest."""
        return (
            self.num_workers,
            self.prefetch_factor or 0,
            self.pin_memory,
            self.persistent_workers,
            self.batch_size or 0,
            not self.in_order,
            self.start_method or "",
            self.sharing_strategy or "",
            self.worker_threads or 0,
        )

    @property
    def text(self) -> str:
        """The configuration for people, under torch's names, what is at its default left out.

        >>> Config(num_workers=4, prefetch_factor=4, pin_memory=True).text
        'num_workers=4, prefetch_factor=4, pin_memory=True'
        """
        return self.text_naming()

    def text_naming(self, *always: str) -> str:
        """As ``text``, some settings named also at their defaults, where workers give them sense.

        >>> Config(num_workers=4, prefetch_factor=2).text_naming("prefetch_factor")
        'num_workers=4, prefetch_factor=2'
        """
        plain = Config(num_workers=self.num_workers).canonical()
        parts = [f"num_workers={self.num_workers}"]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            named = field.name in always and self.num_workers > 0
            if named or value != getattr(plain, field.name):
                parts.append(f"{field.name}={value}")
        return ", ".join(parts)

    @property
    def turnover_group(self) -> Config:
        """What configurations share whose epochs end alike: how the queues are kept matters not."""
        return dataclasses.replace(
            self,
            prefetch_factor=None,
            pin_memory=False,
            in_order=True,
        )

    def canonical(self) -> Config:
        """The same configuration with every argument that can't matter here at its default.

        At ``num_workers=0`` torch refuses ``prefetch_factor``, ``persistent_workers`` and
        ``multiprocessing_context`` and ignores ``in_order``; sharing and worker threads belong to
        workers. With workers, a ``prefetch_factor`` of ``None`` means torch's default of 2.
        """
        if self.num_workers == 0:
            return Config(pin_memory=self.pin_memory, batch_size=self.batch_size)
        return dataclasses.replace(self, prefetch_factor=self.prefetch_factor or 2)

    def dataloader_kwargs(self) -> dict[str, Any]:
        """The arguments to pass to ``torch.utils.data.DataLoader`` for this configuration.

        Only arguments that the configuration decides; ``sharing_strategy`` and ``worker_threads``
        are no DataLoader arguments and are left to the caller.
        """
        kwargs: dict[str, Any] = {"num_workers": self.num_workers}
        if self.num_workers > 0:
            kwargs["prefetch_factor"] = self.prefetch_factor or 2
            kwargs["persistent_workers"] = self.persistent_workers
            if self.start_method is not None:
                kwargs["multiprocessing_context"] = self.start_method
            if not self.in_order:
                kwargs["in_order"] = False
        kwargs["pin_memory"] = self.pin_memory
        if self.batch_size is not None:
            kwargs["batch_size"] = self.batch_size
        return kwargs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial gave no figures.

    Attributes:
        kind: The class of the fault.
        message: What happened, in one sentence.
        hint: What to change, in one sentence.
        stderr_tail: The last lines that the trial's processes wrote, the user's own traceback
            among them.
    """

    kind: FailureKind
    message: str
    hint: str = ""
    stderr_tail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """What one GPU did during the measured window.

    Attributes:
        index: NVML's index.
        name: The product's name.
        uuid: NVML's UUID, by which CUDA's order is mapped.
        kernel_active_fraction: Share of time in which any kernel ran (NVML's
            ``utilization.gpu``); says nothing of how well the device was used.
        memory_used_bytes: Device memory in use by all processes, peak.
        pcie_rx_bytes_per_s: Bytes from host to device, mean of NVML's 20 ms probes.
        pcie_tx_bytes_per_s: Bytes from device to host.
        unavailable: Reasons for fields that are ``None``.
    """

    index: int
    name: str
    uuid: str
    kernel_active_fraction: float | None = None
    memory_used_bytes: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the trial's processes used, and what the machine had left, in the measured window.

    Attributes:
        own_cpu_cores: CPU seconds per second of the trial's whole process tree.
        available_cpu_cores: Own plus idle cores within the affinity mask and the quota: what the
            trial could have had. Own near available means that the cores are the limit.
        other_cpu_cores: Cores of the affinity mask that other processes kept busy.
        run_queue_wait_fraction: Time runnable but waiting for a core, over that plus CPU time.
            Above about 0.3 the trial is short of cores.
        throttled_fraction: Share of the window in which a cgroup quota held the trial back.
        cpu_pressure_fraction: PSI ``cpu some``: share of time that some task waited for a core.
        io_pressure_fraction: PSI ``io some``.
        memory_pressure_fraction: PSI ``memory some``.
        pss_peak_bytes: Proportional set size, summed over the tree, with full queues; shared
            pages count once.
        shm_peak_bytes: Growth of /dev/shm since before the trial started, peak, with full queues.
        read_bytes_per_s: Bytes fetched from storage.
        cache_hit_fraction: 1 - storage reads / bytes asked for by ``read``; 1 is all from the
            page cache.
        observer_cpu_cores: What the observer itself used.
        gpu: One entry per GPU of the machine; empty where there is none.
    """

    own_cpu_cores: float | None = None
    available_cpu_cores: float | None = None
    other_cpu_cores: float | None = None
    run_queue_wait_fraction: float | None = None
    throttled_fraction: float | None = None
    cpu_pressure_fraction: float | None = None
    io_pressure_fraction: float | None = None
    memory_pressure_fraction: float | None = None
    pss_peak_bytes: int | None = None
    shm_peak_bytes: int | None = None
    read_bytes_per_s: float | None = None
    cache_hit_fraction: float | None = None
    observer_cpu_cores: float | None = None
    gpu: tuple[GpuUsage, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration, measured once in a process of its own.

    Attributes:
        id: Unique within the run, ``t0001`` onwards in the order of measuring.
        config: What was measured, canonical.
        repetition: 0 for the first time that this configuration was measured; also the number
            of the interleaved block, so trials of equal repetition are compared in pairs.
        outcome: Whether there are figures, and if not, why in one word.
        failure: Set unless ``outcome`` is ``completed``.
        samples_per_s: Steady rate at the stated step, start-up and epoch turnover left out.
        batches_per_s: The same in batches.
        bytes_per_s: The same in bytes of tensor data.
        startup_s: ``iter(loader)`` plus the first ``next()``.
        epoch_turnover_s: From the last batch of an epoch to the first of the next; timed once for
            configurations that share a ``turnover_group``.
        wait_fraction: Share of the window in which the consumer waited in ``next()``; only with
            a stated step (without one the consumer does nothing but wait).
        usage: What was used in the measured window.
        noisy: Whether neighbours, a quota or drift make the figures doubtful.
        warnings: Sentences for people.
        unavailable: Reasons for fields (``usage.`` prefixed for usage) that are ``None``.
        started_at: Wall-clock start, ISO 8601, UTC.
        measured_s: Length of the measured window.
        wall_s: Whole cost of the trial, process start to process end.
        window_batches: Batches in the measured window.
        batch_bytes: Mean bytes of tensor data per batch.
        samples_per_batch: Mean samples per full batch in the window.
        whole_epochs: Whether the epochs were too short for a steady state, so that the rates
            cover whole epochs, turnover included.
    """

    id: str
    config: Config
    repetition: int
    outcome: Outcome
    failure: Failure | None = None
    samples_per_s: Estimate | None = None
    batches_per_s: Estimate | None = None
    bytes_per_s: Estimate | None = None
    startup_s: float | None = None
    epoch_turnover_s: float | None = None
    wait_fraction: float | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    noisy: bool = False
    warnings: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    started_at: str = ""
    measured_s: float = 0.0
    wall_s: float = 0.0
    window_batches: int = 0
    batch_bytes: float | None = None
    samples_per_batch: float | None = None
    whole_epochs: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of the machine.

    Attributes:
        index: NVML's index (not CUDA's: map by ``uuid``).
        name: The product's name.
        uuid: NVML's UUID.
        memory_bytes: Device memory.
        pcie_generation: Highest PCIe generation that card and slot support together.
        pcie_width: Highest number of lanes.
        numa_node: NUMA node of its slot; ``None`` on machines with one node.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    numa_node: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine offers to one job.

    Attributes:
        hostname: The host's name.
        platform: Operating system and release.
        cpu_model: CPU model as the system names it.
        logical_cpus: CPUs that the machine has, hyper-threads counted.
        physical_cores: Physical cores; ``None`` where the system doesn't tell.
        affinity_cpus: CPUs that this process may run on (affinity mask and cpuset).
        quota_cores: Tightest CPU quota over all ancestor cgroups; ``None`` for no quota.
        usable_cores: ``min(affinity_cpus, quota_cores)``: what a CPU-bound job can have.
        memory_bytes: Physical memory.
        memory_limit_bytes: Tightest memory limit over all ancestor cgroups; ``None`` for none.
        memory_available_bytes: What can be had now, limits considered.
        swap_used_bytes: Swap in use.
        shm_bytes: Size of /dev/shm.
        shm_available_bytes: Free there now.
        open_files_limit: Soft RLIMIT_NOFILE of this process.
        numa_nodes: NUMA nodes with CPUs.
        gpus: GPUs that NVML lists.
        fingerprint: A key that stays the same for this machine and job allotment between
            reboots and differs where settings would: CPU model, usable cores, memory, GPUs.
        unavailable: Reasons for fields that are ``None`` because they could not be had.
    """

    hostname: str
    platform: str
    cpu_model: str
    logical_cpus: int
    physical_cores: int | None = None
    affinity_cpus: int
    quota_cores: float | None = None
    usable_cores: float
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    shm_bytes: int | None = None
    shm_available_bytes: int | None = None
    open_files_limit: int | None = None
    numa_nodes: int | None = None
    gpus: tuple[GpuInfo, ...] = ()
    fingerprint: str
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is loaded, as far as the run file tells it.

    Attributes:
        spec: TARGET as the user wrote it.
        arguments: ``--arg`` pairs, and the parameters after a built-in's colon.
        kind: ``map`` or ``iterable``.
        dataset: The data set's class, ``module.QualName``.
        length: Samples per epoch; ``None`` where the data set doesn't tell.
        batches_per_epoch: Batches per epoch at ``batch_size``; ``None`` likewise.
        batch_size: The loader's own batch size; ``None`` with a batch sampler or no batching.
        sampler: The sampler's class name.
        fork_safe: Whether trials can be forked from one process that has built the target once;
            false where building it started threads or touched CUDA.
        import_s: Importing and building the target, once.
        own_config: The settings that the target's own DataLoader was built with, canonical;
            ``None`` for a bare data set or a built-in. Its ``in_order`` and ``start_method`` are
            what "keep the target's own" means.
        batch_bytes: Tensor data of one batch, from a disposable probe.
        batch_tensors: Tensors in one batch, from the probe.
        batch_s: Loading one batch in the main process, second batch of the probe.
        batch_cpu_s: CPU time of that; the rest of ``batch_s`` is waiting.
        notes: What the user should know about how the target was taken.
    """

    spec: str
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kind: Literal["map", "iterable"]
    dataset: str
    length: int | None = None
    batches_per_epoch: int | None = None
    batch_size: int | None = None
    sampler: str | None = None
    fork_safe: bool = True
    import_s: float | None = None
    own_config: Config | None = None
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    batch_s: float | None = None
    batch_cpu_s: float | None = None
    notes: tuple[str, ...] = ()

    def present_settings(self, *, has_accelerator: bool) -> Config | None:
        """``own_config`` as a sweep measures it; ``None`` where the target has none.

        The start method is left at ``None``, which keeps the target's own, and without an
        accelerator torch pins nothing whatever ``pin_memory`` says.
        """
        if self.own_config is None:
            return None
        pins = self.own_config.pin_memory and has_accelerator
        return dataclasses.replace(self.own_config, start_method=None, pin_memory=pins)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Settings that the sweep did not measure, and why.

    Attributes:
        setting: Which, such as ``pin_memory=True`` or ``num_workers=64``.
        reason: Why, one sentence.
    """

    setting: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialCost:
    """What a trial is expected to cost, from what the probe saw of the target.

    Attributes:
        overhead_s: Whatever the batches cost: the process, its workers, sending figures back.
        batch_s: One batch, loaded alone.
        batch_cpu_s: CPU time of one batch.
        usable_cores: Cores that all workers share.
    """

    overhead_s: float
    batch_s: float = 0.0
    batch_cpu_s: float = 0.0
    usable_cores: float = 1.0

    def of(self, config: Config, trial_s: float) -> float:
        """Seconds for one trial of a configuration with a window of ``trial_s``.

        A round is the time in which each worker loads a batch. The window has three rounds, or
        as many as three times its length allows, one at least. Beside it, a trial spends two
        rounds without workers (start and turn of the epoch) and four with them (warm-up, and what
        the workers have in hand at the end).
        """
        round_s = max(self.batch_s, self.batch_cpu_s * config.num_workers / self.usable_cores)
        window_s = max(trial_s, min(3 * round_s, max(3 * trial_s, round_s)))
        return self.overhead_s + window_s + (4 if config.num_workers else 2) * round_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep sets out to measure; kept in the run file, so that a resumed sweep goes on.

    Attributes:
        configs: To be measured, in their stable order.
        trial_s: Length of a trial's measured window.
        min_repeats: Blocks before the search may call itself decided.
        max_repeats: Blocks after which it is complete.
        planned_repeats: Blocks that it is likely to take.
        take_turns: Whether, after the first block, configurations of the same steady rate (those
            that differ only in ``persistent_workers``) are measured in turn rather than all in
            each block.
        cost: What trials are expected to cost.
        present: Which of them the target's own DataLoader is set to now; the most important one.
    """

    configs: tuple[Config, ...]
    trial_s: float
    min_repeats: int
    max_repeats: int
    planned_repeats: int
    take_turns: bool
    cost: TrialCost
    present: Config | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The first record of a run file: everything that the trials have in common.

    Attributes:
        schema_version: Version of the file's format.
        run_id: Random, unique.
        started_at: ISO 8601, UTC.
        dlprof_version: Of the program that measured.
        torch_version: Of the torch that was measured.
        python_version: Of the interpreter.
        machine: Where it ran.
        target: What was loaded.
        settings: The sweep's options as resolved, JSON values, enough to resume it.
        accelerator: torch's name of the accelerator (``cuda``, ``mps`` …); ``None`` without one.
        left_out: Settings left out before anything ran.
        plan: What the sweep sets out to measure.
    """

    schema_version: int
    run_id: str
    started_at: str
    dlprof_version: str
    torch_version: str
    python_version: str
    machine: Machine
    target: Target
    settings: Mapping[str, Any]
    accelerator: str | None = None
    left_out: tuple[LeftOut, ...] = ()
    plan: Plan | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One claim of a recommendation, with what proves it.

    Attributes:
        claim: One sentence.
        evidence: Ids of the trials, and the figures compared.
    """

    claim: str
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a configuration should give; each figure is checked by measuring it again.

    Attributes:
        samples_per_s: Steady rate at the stated step.
        wait_fraction: Share of time waiting for data at the stated step.
        pss_bytes: Memory of the whole process tree.
        shm_bytes: Shared memory with full queues.
        startup_s: ``iter`` plus first ``next``.
        epoch_turnover_s: Last batch of an epoch to the first of the next.
    """

    samples_per_s: Estimate
    wait_fraction: float | None = None
    pss_bytes: int | None = None
    shm_bytes: int | None = None
    startup_s: float | None = None
    epoch_turnover_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another configuration worth knowing of.

    Attributes:
        config: Which.
        expected: What it gave.
        relation: ``present`` (what the target's own DataLoader is set to now), ``tie`` (can't be
            told apart from the best), ``fastest``, ``default`` (PyTorch's own), ``slower``.
        speed: Rate relative to the recommended configuration.
    """

    config: Config
    expected: Expected
    relation: Literal["present", "tie", "fastest", "default", "slower"]
    speed: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """What a common rule would have given.

    Attributes:
        name: The rule, as people know it.
        config: What it says for this machine.
        expected_samples_per_s: What that gave when measured; ``None`` where it was not measured.
        unavailable: Why ``expected_samples_per_s`` is ``None``; empty otherwise.
    """

    name: str
    config: Config
    expected_samples_per_s: float | None = None
    unavailable: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits that a recommendation must keep. ``None`` is no limit.

    Attributes:
        max_workers: Workers of one rank's loader.
        max_ram_bytes: Memory of all ranks' process trees together.
        max_shm_bytes: Shared memory of all ranks together.
        ranks: Training processes on the machine, each with a loader of its own.
        step_s: Length of the consumer's step that must be kept fed.
        machine: Name of the machine that the limits are taken from, where it is not the one
            that was measured.
    """

    max_workers: int | None = None
    max_ram_bytes: int | None = None
    max_shm_bytes: int | None = None
    ranks: int = 1
    step_s: float | None = None
    machine: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Settings to use, and why.

    Attributes:
        config: The cheapest configuration that can't be told apart from the best within limits.
        dataloader_kwargs: What to pass to DataLoader.
        expected: What it should give.
        confidence: How sure it is.
        confidence_reason: Why no surer, or what makes it sure; one sentence.
        reasons: Why this and no other, with the trials that prove it.
        alternatives: Others worth knowing: the present settings first, the rest by speed.
        constraints: The limits that were kept.
        rules_of_thumb: What common rules would have given.
        findings: Causes found (empty until a pass that explains has run).
        extrapolated: Whether it is for a machine other than the one that was measured.
    """

    config: Config
    dataloader_kwargs: Mapping[str, Any]
    expected: Expected
    confidence: Confidence
    confidence_reason: str
    reasons: tuple[Reason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    constraints: Constraints = dataclasses.field(default_factory=Constraints)
    rules_of_thumb: tuple[RuleOfThumb, ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    extrapolated: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the sweep's time went, in seconds.

    Attributes:
        measured: Inside measured windows.
        overhead: Everything else.
        total: Both.
    """

    measured: float
    overhead: float
    total: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The last record of a run file that was not cut off.

    Attributes:
        ended_at: ISO 8601, UTC.
        reason: Why the measuring stopped.
        cost_s: Where the time went, this session and resumed ones together.
    """

    ended_at: str
    reason: Literal["decided", "budget", "complete", "interrupted", "failed"]
    cost_s: Cost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run file.

    Attributes:
        path: Where it was read from or is being written to.
        header: What the trials have in common.
        trials: In the order of measuring.
        recommendation: The last one that was written.
        end: Set if the sweep came to an end of its own.
        truncated: Whether the file was cut off in the middle of a record.
    """

    path: str
    header: RunHeader
    trials: tuple[Trial, ...] = ()
    recommendation: Recommendation | None = None
    end: RunEnd | None = None
    truncated: bool = False

    @property
    def completed(self) -> tuple[Trial, ...]:
        """The trials that have figures."""
        return tuple(trial for trial in self.trials if trial.outcome == "completed")
