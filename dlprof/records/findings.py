"""Causes: what slows a loader down, what shows it, the fix and the expected speed-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from dlprof.records.config import Config, Estimate
from dlprof.records.record import record
from dlprof.records.weight import DatasetWeight

FindingCode = Literal[
    "consumer",
    "fetch.cpu",
    "fetch.io",
    "collate",
    "main.receive",
    "main.pin",
    "main.sampler",
    "order.blocking",
    "prefetch.shallow",
    "lock",
    "too_few_workers",
    "too_many_workers",
    "cpu.oversubscribed",
    "cpu.threads",
    "cpu.affinity",
    "cpu.quota",
    "cpu.neighbours",
    "startup",
    "dataset.heavy",
    "memory.growth",
    "memory.limit",
    "memory.shm",
    "data.duplicated",
    "data.truncated",
    "data.unshared",
    "workers.unfed",
    "transfer.pageable",
    "transfer.link",
    "gpu.neighbours",
    "step.slowed",
]
Severity = Literal["high", "medium", "low", "info"]


@record(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to change.

    Attributes:
        text: One sentence.
        dataloader_kwargs: DataLoader arguments to set; empty where the fix is something else.
        code: A line or a few to paste, where there is something to paste.
        call: How ``dataloader_kwargs`` are set in the framework that the loader is written for;
            empty where that is ``DataLoader(dataset, ...)``.
    """

    text: str
    dataloader_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    code: str = ""
    call: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, as a hypothesis with its evidence.

    Attributes:
        code: Which cause.
        severity: By what it costs: ``high`` from a quarter of the throughput, ``medium`` from a
            twentieth, ``low`` below; ``info`` costs nothing now. A cause that neither ends the run
            nor spoils its data is ``high`` only where its gain is certain.
        title: The cause in a few words.
        explanation: How it slows this loader down, in a sentence or two with the figures.
        evidence: The figures that show it, by name with unit, and ids of trials.
        fix: What to change; ``None`` where nothing should be.
        predicted_gain: Throughput with the fix over throughput now (1.4: 40% more): measured
            where the fix was tried, else from the model or a bound (``gain_from`` in the evidence);
            ``None`` where it isn't known.
        script_gain: Time of the whole script now over its time with the fix, of a script that was
            watched; ``None`` elsewhere, and where it can't be computed.
        cost: Share of the run's time that the cause takes, 0 to 1, by which findings are ordered.
        doubtful: Why the finding may be wrong, such as a noisy window; empty where nothing is
            known against it.
    """

    code: FindingCode
    severity: Severity
    title: str
    explanation: str
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fix: Fix | None = None
    predicted_gain: Estimate | None = None
    script_gain: Estimate | None = None
    cost: float = 0.0
    doubtful: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Why the consumer waits, by the differential of DS-Analyzer (Mohan et al., VLDB 2021).

    Attributes:
        resident_s: Seconds a batch with a batch that is in memory already: step and copy alone.
        warm_s: Seconds a batch with the dataset's files in the page cache.
        cold_s: Seconds a batch with the page cache dropped; ``None`` where that wasn't measured.
        prep_fraction: ``max(0, warm - resident) / (cold or warm)``: share of time lost to
            preparing batches.
        fetch_fraction: ``max(0, cold - warm) / cold``: share lost to fetching from storage.
    """

    resident_s: float
    warm_s: float
    cold_s: float | None = None
    prep_fraction: float
    fetch_fraction: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a profile found for one configuration.

    Attributes:
        config: What was profiled.
        findings: Ordered by cost; the first is the cause that dlprof would bet on.
        stalls: Of the consumer; ``None`` where that wasn't measured.
        trials: Ids of the trials that it rests on.
        notes: What to know about how it was found.
        weight: What the dataset weighs; ``None`` where it was not weighed.
    """

    config: Config
    findings: tuple[Finding, ...] = ()
    stalls: Stalls | None = None
    trials: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weight: DatasetWeight | None = None
