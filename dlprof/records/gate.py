"""Did it get slower? What a check measures, the rules that it is judged by, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from dlprof.records.machine import Machine
from dlprof.records.record import record

CHECK_SCHEMA_VERSION = 1
"""Of the JSON document of a check; fields may be added without a new one."""

Side = Literal["base", "change"]
Series = Literal["load", "start"]
Scale = Literal["ratio", "difference"]
GateState = Literal["pass", "fail", "inconclusive", "no_baseline"]
GateName = Literal[
    "service", "receive", "wall", "startup", "epoch_turnover", "memory", "shared_memory"
]
ReasonCode = Literal[
    "not_slower",
    "slower",
    "undecided",
    "too_few_quads",
    "unusable_blocks",
    "zero_time",
    "too_few_batches",
    "different_data",
    "not_measured",
    "contended",
    "settings_differ",
    "cores_differ",
    "unconfirmed",
    "too_few_runs",
    "spread",
    "other_machine",
]


@record(frozen=True, slots=True, kw_only=True)
class Block:
    """One stretch of loading by one side, as it was measured.

    Attributes:
        side: Which code ran.
        service_s: Contention-corrected seconds of each batch (or of each group of consecutive
            batches): wall in fetching and collating less run-queue delay, in whichever process
            fetches.
        samples: Samples of each; as long as ``service_s``.
        wall_s: From the first to the last yield of the block, in the consumer.
        run_queue_wait_fraction: Run-queue delay over that plus CPU time, of all processes.
        corrected: Whether run-queue delay could be read and was taken off; without it
            ``service_s`` is wall time.
        stages_s: Contention-corrected seconds of the whole block by stage: ``fetch``,
            ``collate``, ``receive`` (the main process takes and deserializes batches), and of
            transforms within, as ``fetch: Resize``.
        startup_s: ``iter(loader)`` plus the first ``next()``.
        epoch_turnover_s: From the last batch of an epoch to the first of the next.
        pss_peak_bytes: Memory of the side's process tree, peak.
        shm_peak_bytes: Shared memory, peak.
        cores: The core that each process which fetches was on at the block's end: the main process
            without workers, else worker after worker. Empty where that isn't known.
        pinned: Whether they were held there for the whole block.
        unpinned: Why they weren't, though they were to be; empty where they were not.
        failure: Why there are no figures; empty where there are.
    """

    side: Side
    service_s: tuple[float, ...] = ()
    samples: tuple[int, ...] = ()
    wall_s: float | None = None
    run_queue_wait_fraction: float | None = None
    corrected: bool = True
    stages_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    startup_s: float | None = None
    epoch_turnover_s: float | None = None
    pss_peak_bytes: float | None = None
    shm_peak_bytes: float | None = None
    cores: tuple[int, ...] = ()
    pinned: bool = False
    unpinned: str = ""
    failure: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Quad:
    """Blocks of both sides that are compared with each other, in the order of measuring.

    Attributes:
        number: From 0 within its series.
        series: ``load`` (steady loading) or ``start`` (starts and epoch restarts).
        blocks: Four as ABBA or BAAB; two in the series ``start``; the one that failed is the last.
        processes: Number of the pair of processes that loaded them: 1 for the pair that is to
            confirm a failure of the first, 0.
    """

    number: int
    series: Series
    blocks: tuple[Block, ...]
    processes: int = 0

    @property
    def order(self) -> str:
        """``A`` for the base and ``B`` for the change, in the order of measuring."""
        return "".join("A" if block.side == "base" else "B" for block in self.blocks)


@record(frozen=True, slots=True, kw_only=True)
class GateRule:
    """What one metric is judged by.

    Attributes:
        name: The metric.
        series: Which ABBA blocks show it.
        views: The ways of taking one figure from a block; each is judged by itself.
        scale: Whether sides are compared by the logarithm of their ratio or by their difference.
        threshold: What the change may be slower or bigger by, as a fraction of the base.
        floor: Differences below this are never too much, in the metric's unit.
        service_floor: The same as a fraction of the base's service time.
        alpha: Probability of error of each view at each look, one-sided.
        alpha_pass: The same of the bounds that have to be below the limit to pass; ``alpha`` where
            it isn't given.
        looks: After how many ABBA blocks it is judged, in rising order.
        most_change: ABBA blocks in which a side differs from itself by more are left out, as the
            machine changed its speed. As the logarithm of a ratio; ``None`` leaves none out.
        holds_up: Whether the check waits for it, where it has found nothing.
        confirmed: Whether it fails only where a second pair of processes fails by itself as well.
    """

    name: GateName
    series: Series
    views: tuple[str, ...]
    scale: Scale
    threshold: float
    floor: float = 0.0
    service_floor: float = 0.0
    alpha: float
    alpha_pass: float | None = None
    looks: tuple[int, ...]
    most_change: float | None = None
    holds_up: bool = True
    confirmed: bool = False


@record(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """Everything that a verdict follows from, beside the ABBA blocks.

    Attributes:
        rules: One per metric.
        confidence: That the gate of service time raises no false alarm.
        seed: Of the random order of blocks.
        loader_difference: How the loaders' settings differ; empty where they are the same.
        error_bound: Upper bound of the probability of any false alarm, all metrics together, each
            of them taken to lie exactly at its limit.
    """

    rules: tuple[GateRule, ...]
    confidence: float
    seed: int = 0
    loader_difference: str = ""
    error_bound: float


@record(frozen=True, slots=True, kw_only=True)
class ViewFigures:
    """How one view of a metric came out; shifts are positive where the change is worse.

    Attributes:
        view: ``mean``, ``low_quartile`` (the lower-quartile batch), or ``value``.
        quads: How many ABBA blocks it rests on; in a comparison with a baseline, how many runs.
        base: Median of the base's blocks, in the metric's unit.
        change: Median of the change's blocks.
        shift: Estimate: a fraction of the base on the scale ``ratio``, else the metric's unit.
        low: Lower end of its interval; ``None`` where there are too few ABBA blocks for one.
        high: Upper end. The lower one errs with the rule's ``alpha``, the upper one with its
            ``alpha_pass``.
        limit: What ``low`` is held against.
        text: Shift and interval for people, such as ``+9.8% (+8.1 to +11.6%)``.
        limit_text: The limit for people.
    """

    view: str
    quads: int
    base: float | None = None
    change: float | None = None
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float
    text: str = ""
    limit_text: str = ""


@record(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What one metric says.

    Attributes:
        name: The metric.
        label: The metric for people.
        state: Its own verdict.
        reason: Why, in one word.
        explanation: Why, in a sentence for people.
        scale: How the shifts in ``views`` are meant.
        unit: Of the metric: ``s`` (a sample or a start) or ``bytes``.
        views: The figures; the one that decides comes first.
        blocking: Whether an ``inconclusive`` here keeps the whole check from passing.
        pending: Whether more ABBA blocks may still decide it.
    """

    name: GateName
    label: str
    state: GateState
    reason: ReasonCode
    explanation: str
    scale: Scale = "ratio"
    unit: str = "s"
    views: tuple[ViewFigures, ...] = ()
    blocking: bool = True
    pending: bool = False


@record(frozen=True, slots=True, kw_only=True)
class StageShift:
    """Where the time went: one stage of both sides. It explains a verdict and decides none.

    Attributes:
        stage: ``fetch``, ``collate`` or ``receive``, or a part of one, as ``fetch: Resize``;
            ``startup`` of the series ``start``.
        base_s: Median contention-corrected seconds a sample (of a start: seconds).
        change_s: The same of the change.
        shift_s: How much slower the change is.
        low_s: Lower end of its interval; ``None`` where there are too few ABBA blocks for one.
        high_s: Upper end.
    """

    stage: str
    base_s: float
    change_s: float
    shift_s: float
    low_s: float | None = None
    high_s: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Did it get slower?

    Attributes:
        state: ``fail`` if any gate failed, else ``inconclusive`` if one that matters could not be
            decided, else ``pass``.
        explanation: Why, in a sentence for people.
        gates: One result per metric, in the order of the rules.
        stages: Where the time went.
        quads: Usable ABBA blocks by series.
        error_bound: Upper bound of the probability of a false alarm, see ``CheckPlan``.
        notes: What people should know of how it was found.
    """

    state: GateState
    explanation: str
    gates: tuple[GateResult, ...] = ()
    stages: tuple[StageShift, ...] = ()
    quads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    error_bound: float | None = None
    notes: tuple[str, ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class BaselineKey:
    """What must be equal for figures to be comparable; never a measured clock rate.

    Attributes:
        target: TARGET as the user wrote it, with its arguments.
        cpu_model: As the system names it.
        available_cores: What the job may use.
        os: Operating system and release.
        python: Version, major and minor.
        torch: Version.
        config: ``Config.key`` of the loader's settings.
        data: Fingerprint of the data.
    """

    target: str
    cpu_model: str
    available_cores: float
    os: str
    python: str
    torch: str
    config: str
    data: str


@record(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """One run, kept to be compared with later ones.

    Attributes:
        key: What it can be compared with.
        recorded_at: ISO 8601, UTC.
        commit: What was measured; empty where that isn't known.
        figures: By metric and view, such as ``service.mean``: seconds a sample, seconds or bytes.
    """

    key: BaselineKey
    recorded_at: str
    commit: str = ""
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class BaselineRule:
    """What a run is judged by against a stored history.

    Attributes:
        runs: How many of the last runs are looked at.
        least_runs: With fewer there is no verdict.
        threshold: What a figure may be worse by at least, as a fraction.
        confidence: Of the prediction bound, one-sided.
        least_spread: Spread of the logarithm between runs that is assumed at least.
    """

    runs: int = 10
    least_runs: int = 5
    threshold: float = 0.05
    confidence: float = 0.99
    least_spread: float = 0.01


@record(frozen=True, slots=True, kw_only=True)
class Compared:
    """One side of a check, for people.

    Attributes:
        name: A git ref, a directory, a Python, or ``working tree``.
        commit: Full commit id; empty where there is none.
        note: What to know of it, such as uncommitted changes.
    """

    name: str
    commit: str = ""
    note: str = ""


@record(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """One target: raw blocks, the rules, and the verdict that follows from them.

    Attributes:
        target: TARGET as the user wrote it.
        verdict: Recomputable from the rest.
        plan: The rules; ``None`` for a comparison with a baseline.
        quads: All that was measured, in the order of measuring.
        entry: The present run, in a comparison with a baseline.
        history: The entries that it was compared with.
        baseline_rule: How.
        recordable: The change as a baseline would keep it; ``None`` where it wasn't measured.
        source_file: Where the target is defined, relative to the repository; empty if not known.
        source_line: Line there, from 1.
        measured_s: Wall seconds that the measuring took.
        length: Samples of the dataset; ``None`` where that isn't known.
    """

    target: str
    verdict: Verdict
    plan: CheckPlan | None = None
    quads: tuple[Quad, ...] = ()
    entry: BaselineEntry | None = None
    history: tuple[BaselineEntry, ...] = ()
    baseline_rule: BaselineRule | None = None
    recordable: BaselineEntry | None = None
    source_file: str = ""
    source_line: int | None = None
    measured_s: float = 0.0
    length: int | None = None


@record(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A whole check: what ``dlprof check --json`` prints.

    Attributes:
        schema_version: Of this document.
        state: The target's verdict.
        explanation: The verdict's.
        targets: The one that was checked.
        base: What was compared with.
        change: What was checked.
        override: The reason given for letting a regression pass; empty where none was given.
        warn_only: Whether a failure is only reported.
        started_at: ISO 8601, UTC.
        dlprof_version: Version.
        python_version: Version.
        torch_version: Version.
        machine: What was measured on.
        unavailable: Why something is missing, by field.
    """

    schema_version: int = CHECK_SCHEMA_VERSION
    state: GateState
    explanation: str
    targets: tuple[TargetCheck, ...]
    base: Compared
    change: Compared
    override: str = ""
    warn_only: bool = False
    started_at: str = ""
    dlprof_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    machine: Machine | None = None
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def target(self) -> TargetCheck:
        """What was checked."""
        return self.targets[0]


@record(frozen=True, slots=True)
class Sight:
    """The smallest slowdown that a look would have called a failure.

    Attributes:
        quads: After how many ABBA blocks.
        slowdown: Of the service time, as a fraction.
    """

    quads: int
    slowdown: float


@record(frozen=True, slots=True, kw_only=True)
class Reach:
    """How much worse a metric would have to be for a check like this one to fail.

    Attributes:
        name: The metric.
        label: The metric for people.
        worse: A fraction, or an amount in ``unit``; ``None`` where it can't fail a check here.
        unit: ``""`` for a fraction, ``s`` or ``bytes``.
        reason: Why it can't fail one here; empty where it can.
    """

    name: GateName
    label: str
    worse: float | None
    unit: str = ""
    reason: str = ""


@record(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The same code against itself, and against itself made slower.

    Attributes:
        schema_version: Of this document.
        trusted: Whether equal code passed and slower code failed.
        explanation: What came out, in a sentence or two for people.
        injected: How much slower the slower code was, as a fraction of the service time.
        same: The same code on both sides.
        slowed: The same code with the slowdown on the side of the change.
        sights: What each look at the same code would have caught.
        reach: The same for every metric, at the last look.
        started_at: ISO 8601, UTC.
        dlprof_version: Version.
        python_version: Version.
        torch_version: Version.
        machine: What was measured on.
    """

    schema_version: int = 1
    trusted: bool
    explanation: str
    injected: float
    same: TargetCheck
    slowed: TargetCheck
    sights: tuple[Sight, ...] = ()
    reach: tuple[Reach, ...] = ()
    started_at: str = ""
    dlprof_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    machine: Machine | None = None
