"""Causes: what slows a loader down, what shows it, the fix and the expected speed-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from dlprof.records.config import Config, Estimate
from dlprof.records.record import record

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
    "data.shared_file",
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

WHILE_MEASURED = "while this was measured"
"""In a doubt that concerns all that was measured at the time, whatever is found in it."""


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


LoaderPart = Literal["storage", "host_cpu", "main_process", "barrier", "memory"]


@record(frozen=True, slots=True, kw_only=True)
class WithoutPart:
    """What a loader would give if one part of loading took no time, all else as it is.

    The differential of DS-Analyzer for each part by itself. Parts that are in series hide each
    other, so that the gains of two don't add up.

    Attributes:
        part: ``storage``: waiting in making batches, for storage or a network; ``host_cpu``:
            computing in making and handing over batches; ``main_process``: drawing indices and
            receiving batches; ``barrier``: ranks waiting for slower ones at each step; ``memory``:
            stalls of pages that memory was too small to keep.
        gain: Throughput without it over throughput now.
        source: ``model``, or ``bound`` where that is all there is.
    """

    part: LoaderPart
    gain: Estimate
    source: Literal["model", "bound"]


@record(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a profile found for one configuration.

    Attributes:
        config: What was profiled.
        findings: Ordered by cost; the first is the cause that dlprof would bet on.
        stalls: Of the consumer; ``None`` where that wasn't measured.
        without: What each part of loading costs, the most expensive first; empty where nothing was
            traced.
        trials: Ids of the trials that it rests on.
        notes: What to know about how it was found.
        weight: What the dataset weighs; ``None`` where it was not weighed.
    """

    config: Config
    findings: tuple[Finding, ...] = ()
    stalls: Stalls | None = None
    without: tuple[WithoutPart, ...] = ()
    trials: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weight: DatasetWeight | None = None


Exactness = Literal["exact", "sampled", "at_least"]
StartPhaseName = Literal["server", "create", "process", "imports", "unpickle", "init", "fetch"]


PIPE_BYTES = 64 << 10
"""What a pipe holds: with more, main waits until the worker has read all but that."""


@record(frozen=True, slots=True, kw_only=True)
class AttributeWeight:
    """What one attribute of a dataset weighs.

    Attributes:
        name: The way to it from the dataset: ``samples``, ``dataset.transform.table``.
        type: Its class, and how many entries it has: ``list of 1,281,167 tuple``.
        pickled_bytes: What is sent to each worker by ``spawn`` and ``forkserver``; tensors' data is
            shared and so not part of it.
        pickle_s: Seconds to pickle it, once for each worker.
        unpickle_s: Seconds to unpickle it, in each worker.
        object_bytes: Memory of Python objects: a forked worker copies their pages as it counts
            references. Of a large object only its first page counts.
        objects: How many objects that are.
        flat_bytes: Memory that workers share: data of tensors, arrays, bytes and tables.
        how: ``exact``; ``sampled`` (scaled up from a part of the entries); ``at_least`` (it takes
            longer, or has more, than was waited for).
        failure: Why it can't be pickled; empty if it can.
    """

    name: str
    type: str
    pickled_bytes: float = 0.0
    pickle_s: float = 0.0
    unpickle_s: float = 0.0
    object_bytes: float = 0.0
    objects: float = 0.0
    flat_bytes: float = 0.0
    how: Exactness = "exact"
    failure: str = ""

    @property
    def cost_s(self) -> float:
        """Seconds of a core that it costs with each worker: sent, and then copied page by page."""
        # Copying pages of a forked process moves about 1 GB of memory a second.
        return self.pickle_s + self.unpickle_s + self.object_bytes / 1e9


@record(frozen=True, slots=True, kw_only=True)
class StartPhase:
    """One part of the time from ``iter(loader)`` to the first batch, with one worker.

    Attributes:
        name: ``server`` (starting the fork server, once), ``create`` (main pickles and starts the
            process), ``process`` (until the worker's Python runs), ``imports`` (torch and the
            dataset's module), ``unpickle`` (dataset, collate_fn), ``init`` (torch's set-up,
            ``worker_init_fn``, and ``iter(dataset)`` of an iterable), ``fetch`` (the first batch,
            until main has it).
        wall_s: Seconds, run-queue delay left out.
        cpu_s: CPU seconds of it.
    """

    name: StartPhaseName
    wall_s: float
    cpu_s: float


@record(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """How one worker came to its first batch, by one start method.

    Attributes:
        method: ``fork``, ``forkserver`` or ``spawn``.
        phases: In the order of time.
        sent_bytes: What main pickled for the worker; 0 by ``fork``.
        first_batch_s: Seconds from ``iter(loader)`` to the first batch, as measured; ``None`` where
            the phases were put together from other measurements.
    """

    method: str
    phases: tuple[StartPhase, ...]
    sent_bytes: float = 0.0
    first_batch_s: float | None = None

    def phase(self, name: StartPhaseName) -> StartPhase:
        """One phase; of no length where this method doesn't have it."""
        none = StartPhase(name=name, wall_s=0.0, cpu_s=0.0)
        return next((each for each in self.phases if each.name == name), none)


@record(frozen=True, slots=True, kw_only=True)
class DatasetWeight:
    """What a dataset weighs, attribute by attribute.

    Attributes:
        attributes: The heaviest first; those that weigh next to nothing are left out.
        pickled_bytes: Sum over all attributes, here and below.
        pickle_s: Seconds to pickle it, once for each worker.
        unpickle_s: Seconds to unpickle it, in each worker.
        object_bytes: Memory of Python objects, which forked workers copy.
        flat_bytes: Memory that workers share.
        how: The least exact of the attributes.
        start_method: What the loader's workers start by.
        starts: How one worker came to its first batch, by start method.
        shards: Files or shards that an iterable dataset is split by; ``None`` where it doesn't say.
        took_s: What weighing took.
        unavailable: Why something is missing, by field.
    """

    attributes: tuple[AttributeWeight, ...] = ()
    pickled_bytes: float = 0.0
    pickle_s: float = 0.0
    unpickle_s: float = 0.0
    object_bytes: float = 0.0
    flat_bytes: float = 0.0
    how: Exactness = "exact"
    start_method: str | None = None
    starts: tuple[WorkerStart, ...] = ()
    shards: int | None = None
    took_s: float = 0.0
    unavailable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def sent_s(self) -> float:
        """Seconds that sending all of it to one worker takes."""
        return self.pickle_s + self.unpickle_s

    @property
    def heaviest(self) -> AttributeWeight | None:
        """The attribute to move first; ``None`` where none weighs anything."""
        return self.attributes[0] if self.attributes else None

    def start(self, method: str) -> WorkerStart | None:
        """How a worker starts by a method; ``None`` where that isn't known."""
        return next((each for each in self.starts if each.method == method), None)
