"""Did it get slower? What a check measures, the rules that it is judged by, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dlprof.late import Shown
from dlprof.records.machine import Machine
from dlprof.records.record import empty, record

CHECK_SCHEMA_VERSION = 1  # of the JSON document of a check; fields may be added without a new one

Side = Literal["base", "change"]
Series = Literal["load", "start"]
Scale = Literal["ratio", "difference"]
GateState = Literal["pass", "fail", "inconclusive", "no_baseline"]
GateName = Literal[
    "service", "receive", "wall", "startup", "epoch_turnover", "memory", "shared_memory"
]
GateUnit = Literal["s", "bytes"]
ReasonCode = Literal[
    "not_slower", "slower", "undecided", "too_few_quads", "unusable_blocks", "zero_time",
    "too_few_batches", "different_data", "not_measured", "contended", "settings_differ",
    "cores_differ", "unconfirmed", "too_few_runs", "spread", "other_machine",
]  # fmt: skip


@record(frozen=True, slots=True, kw_only=True)
class Block:
    """One stretch of loading by one side, as it was measured."""

    side: Side  # which code ran
    # Contention-corrected seconds of each batch (or of each group of consecutive batches): wall in
    # fetching and collating less run-queue delay, in whichever process fetches.
    service_s: tuple[float, ...] = ()
    samples: tuple[int, ...] = ()  # samples of each; as long as ``service_s``
    wall_s: float | None = None  # from the first to the last yield of the block, in the consumer
    # Run-queue delay over that plus CPU time, of all processes.
    run_queue_wait_fraction: float | None = None
    # Whether run-queue delay could be read and was taken off; without it ``service_s`` is wall
    # time.
    corrected: bool = True
    # Contention-corrected seconds of the whole block by stage: ``fetch``, ``collate``, ``receive``
    # (the main process takes and deserializes batches), and of transforms within, as ``fetch:
    # Resize``.
    stages_s: Mapping[str, float] = empty()
    startup_s: float | None = None  # ``iter(loader)`` plus the first ``next()``
    # From the last batch of an epoch to the first of the next.
    epoch_turnover_s: float | None = None
    pss_peak_bytes: float | None = None  # memory of the side's process tree, peak
    shm_peak_bytes: float | None = None  # shared memory, peak
    # The core that each process which fetches was on at the block's end: the main process without
    # workers, else worker after worker. Empty where that isn't known.
    cores: tuple[int, ...] = ()
    pinned: bool = False  # whether they were held there for the whole block
    unpinned: str = ""  # why they weren't, though they were to be; empty where they were not
    failure: str = ""  # why there are no figures; empty where there are


@record(frozen=True, slots=True, kw_only=True)
class Quad:
    """Blocks of both sides that are compared with each other, in the order of measuring."""

    number: int  # from 0 within its series
    series: Series  # ``load`` (steady loading) or ``start`` (starts and epoch restarts)
    # Four as ABBA or BAAB; two in the series ``start``; the one that failed is the last.
    blocks: tuple[Block, ...]
    # Number of the pair of processes that loaded them: 1 for the pair that is to confirm a failure
    # of the first, 0.
    processes: int = 0

    @property
    def order(self) -> str:
        """``A`` for the base and ``B`` for the change, in the order of measuring."""
        return "".join("A" if block.side == "base" else "B" for block in self.blocks)


@record(frozen=True, slots=True, kw_only=True)
class GateRule:
    """What one metric is judged by."""

    name: GateName  # the metric
    series: Series  # which ABBA blocks show it
    views: tuple[str, ...]  # the ways of taking one figure from a block; each is judged by itself
    # Whether sides are compared by the logarithm of their ratio or by their difference.
    scale: Scale
    threshold: float  # what the change may be slower or bigger by, as a fraction of the base
    floor: float = 0.0  # differences below this are never too much, in the metric's unit
    service_floor: float = 0.0  # the same as a fraction of the base's service time
    alpha: float  # probability of error of each view at each look, one-sided
    # The same of the bounds that have to be below the limit to pass; ``alpha`` where it isn't
    # given.
    alpha_pass: float | None = None
    looks: tuple[int, ...]  # after how many ABBA blocks it is judged, in rising order
    # ABBA blocks in which a side differs from itself by more are left out, as the machine changed
    # its speed. As the logarithm of a ratio; ``None`` leaves none out.
    most_change: float | None = None
    holds_up: bool = True  # whether the check waits for it, where it has found nothing
    # Whether it fails only where a second pair of processes fails by itself as well.
    confirmed: bool = False


@record(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """Everything that a verdict follows from, beside the ABBA blocks."""

    rules: tuple[GateRule, ...]  # one per metric
    confidence: float  # that the gate of service time raises no false alarm
    seed: int = 0  # of the random order of blocks
    keeping: tuple[Side, ...] = ()  # sides whose dataset keeps samples in each process's memory
    # How often a block loads the same samples: 1 where they are warm, and 10 by processes that hold
    # none of them at first where all sides keep samples, as a training of ten epochs does.
    epochs: int = 1
    loader_difference: str = ""  # how the loaders' settings differ; empty where they are the same
    # Upper bound of the probability of any false alarm, all metrics together, each of them taken to
    # lie exactly at its limit.
    error_bound: float


@record(frozen=True, slots=True, kw_only=True)
class ViewFigures:
    """How one view of a metric came out; shifts are positive where the change is worse."""

    view: str  # ``mean``, ``low_quartile`` (the lower-quartile batch), or ``value``
    quads: int  # how many ABBA blocks it rests on; in a comparison with a baseline, how many runs
    base: float | None = None  # median of the base's blocks, in the metric's unit
    change: float | None = None  # median of the change's blocks
    # Estimate: a fraction of the base on the scale ``ratio``, else the metric's unit.
    shift: float | None = None
    # Lower end of its interval; ``None`` where there are too few ABBA blocks for one.
    low: float | None = None
    # Upper end. The lower one errs with the rule's ``alpha``, the upper one with its
    # ``alpha_pass``.
    high: float | None = None
    limit: float  # what ``low`` is held against
    text: str = ""  # shift and interval for people, such as ``+9.8% (+8.1 to +11.6%)``
    limit_text: str = ""  # the limit for people


@record(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What one metric says."""

    name: GateName  # the metric
    label: str  # the metric for people
    state: GateState  # its own verdict
    reason: ReasonCode  # why, in one word
    explanation: str  # why, in a sentence for people
    scale: Scale = "ratio"  # how the shifts in ``views`` are meant
    unit: GateUnit = "s"  # of the metric: ``s`` (a sample or a start) or ``bytes``
    views: tuple[ViewFigures, ...] = ()  # the figures; the one that decides comes first
    blocking: bool = True  # whether an ``inconclusive`` here keeps the whole check from passing
    pending: bool = False  # whether more ABBA blocks may still decide it


@record(frozen=True, slots=True, kw_only=True)
class StageShift:
    """Where the time went: one stage of both sides. It explains a verdict and decides none."""

    # ``fetch``, ``collate`` or ``receive``, or a part of one, as ``fetch: Resize``; ``startup`` of
    # the series ``start``.
    stage: str
    base_s: float  # median contention-corrected seconds a sample (of a start: seconds)
    change_s: float  # the same of the change
    shift_s: float  # how much slower the change is
    # Lower end of its interval; ``None`` where there are too few ABBA blocks for one.
    low_s: float | None = None
    high_s: float | None = None  # upper end


@record(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Did it get slower?"""

    # ``fail`` if any gate failed, else ``inconclusive`` if one that matters could not be decided,
    # else ``pass``.
    state: GateState
    explanation: str  # why, in a sentence for people
    gates: tuple[GateResult, ...] = ()  # one result per metric, in the order of the rules
    stages: tuple[StageShift, ...] = ()  # where the time went
    quads: Mapping[str, int] = empty()  # usable ABBA blocks by series
    # Upper bound of the probability of a false alarm, see ``CheckPlan``.
    error_bound: float | None = None
    notes: tuple[str, ...] = ()  # what people should know of how it was found


@record(frozen=True, slots=True, kw_only=True)
class BaselineKey:
    """What must be equal for figures to be comparable; never a measured clock rate."""

    target: str  # TARGET as the user wrote it, with its arguments
    cpu_model: str  # as the system names it
    available_cores: float  # what the job may use
    os: str  # operating system and release
    python: str  # version, major and minor
    torch: str  # version
    config: str  # ``Config.key`` of the loader's settings
    data: str  # fingerprint of the data


@record(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """One run, kept to be compared with later ones."""

    key: BaselineKey  # what it can be compared with
    recorded_at: str  # ISO 8601, UTC
    commit: str = ""  # what was measured; empty where that isn't known
    # By metric and view, such as ``service.mean``: seconds a sample, seconds or bytes.
    figures: Mapping[str, float] = empty()


@record(frozen=True, slots=True, kw_only=True)
class BaselineRule:
    """What a run is judged by against a stored history."""

    runs: int = 10  # how many of the last runs are looked at
    least_runs: int = 5  # with fewer there is no verdict
    threshold: float = 0.05  # what a figure may be worse by at least, as a fraction
    confidence: float = 0.99  # of the prediction bound, one-sided
    least_spread: float = 0.01  # spread of the logarithm between runs that is assumed at least


@record(frozen=True, slots=True, kw_only=True)
class Compared:
    """One side of a check, for people."""

    name: str  # a git ref, a directory, a Python, or ``working tree``
    commit: str = ""  # full commit id; empty where there is none
    note: str = ""  # what to know of it, such as uncommitted changes


@record(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """One target: raw blocks, the rules, and the verdict that follows from them."""

    target: str  # TARGET as the user wrote it
    verdict: Verdict  # recomputable from the rest
    plan: CheckPlan | None = None  # the rules; ``None`` for a comparison with a baseline
    quads: tuple[Quad, ...] = ()  # all that was measured, in the order of measuring
    entry: BaselineEntry | None = None  # the present run, in a comparison with a baseline
    history: tuple[BaselineEntry, ...] = ()  # the entries that it was compared with
    baseline_rule: BaselineRule | None = None  # how
    # The change as a baseline would keep it; ``None`` where it wasn't measured.
    recordable: BaselineEntry | None = None
    # Where the target is defined, relative to the repository; empty if not known.
    source_file: str = ""
    source_line: int | None = None  # line there, from 1
    measured_s: float = 0.0  # wall seconds that the measuring took
    # Wall seconds that a check would do with, as far as is known: up to the next look, and for a
    # second pair of processes to confirm a failure. ``None`` where more time decides nothing.
    needed_s: float | None = None
    length: int | None = None  # samples of the dataset; ``None`` where that isn't known


@record(frozen=True, slots=True, kw_only=True)
class CheckReport(Shown):
    """A whole check: what ``dlprof check --json`` prints."""

    schema_version: int = CHECK_SCHEMA_VERSION  # of this document
    state: GateState  # the target's verdict
    explanation: str  # the verdict's
    targets: tuple[TargetCheck, ...]  # the one that was checked
    base: Compared  # what was compared with
    change: Compared  # what was checked
    override: str = ""  # the reason given for letting a regression pass; empty where none was given
    warn_only: bool = False  # whether a failure is only reported
    started_at: str = ""  # ISO 8601, UTC
    dlprof_version: str = ""  # version
    python_version: str = ""  # version
    torch_version: str = ""  # version
    machine: Machine | None = None  # what was measured on
    unavailable: Mapping[str, str] = empty()  # why something is missing, by field

    @property
    def target(self) -> TargetCheck:
        """What was checked."""
        return self.targets[0]


@record(frozen=True, slots=True)
class Sight:
    """The smallest slowdown that a look would have called a failure."""

    quads: int  # after how many ABBA blocks
    slowdown: float  # of the service time, as a fraction


@record(frozen=True, slots=True, kw_only=True)
class Reach:
    """How much worse a metric would have to be for a check like this one to fail."""

    name: GateName  # the metric
    label: str  # the metric for people
    # A fraction, or an amount in ``unit``; ``None`` where it can't fail a check here.
    worse: float | None
    unit: Literal["", GateUnit] = ""  # ``""`` for a fraction, ``s`` or ``bytes``
    reason: str = ""  # why it can't fail one here; empty where it can


@record(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The same code against itself, and against itself made slower."""

    schema_version: int = 1  # of this document
    trusted: bool  # whether equal code passed and slower code failed
    explanation: str  # what came out, in a sentence or two for people
    injected: float  # how much slower the slower code was, as a fraction of the service time
    same: TargetCheck  # the same code on both sides
    slowed: TargetCheck  # the same code with the slowdown on the side of the change
    sights: tuple[Sight, ...] = ()  # what each look at the same code would have caught
    reach: tuple[Reach, ...] = ()  # the same for every metric, at the last look
    started_at: str = ""  # ISO 8601, UTC
    dlprof_version: str = ""  # version
    python_version: str = ""  # version
    torch_version: str = ""  # version
    machine: Machine | None = None  # what was measured on
