"""Causes: what slows a loader down, what shows it, the fix and the expected speed-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dlprof.records.config import Config, Estimate
from dlprof.records.record import empty, record

FindingCode = Literal[
    "consumer", "fetch.cpu", "fetch.io", "collate", "main.receive", "main.pin", "main.sampler",
    "order.blocking", "prefetch.shallow", "lock", "too_few_workers", "too_many_workers",
    "cpu.oversubscribed", "cpu.threads", "cpu.affinity", "cpu.quota", "cpu.neighbours", "startup",
    "dataset.heavy", "memory.growth", "memory.limit", "memory.shm", "memory.faults",
    "data.shared_file", "data.duplicated", "data.truncated", "data.unshared", "workers.unfed",
    "transfer.pageable", "transfer.link", "gpu.neighbours", "step.slowed",
]  # fmt: skip
Severity = Literal["high", "medium", "low", "info"]

WHILE_MEASURED = "while this was measured"
"""In a doubt that concerns all that was measured at the time, whatever is found in it."""


@record(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to change."""

    text: str  # one sentence
    # DataLoader arguments to set; empty where the fix is something else.
    dataloader_kwargs: Mapping[str, Any] = empty()
    code: str = ""  # a line or a few to paste, where there is something to paste
    # How ``dataloader_kwargs`` are set in the framework that the loader is written for; empty where
    # that is ``DataLoader(dataset, ...)``.
    call: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, as a hypothesis with its evidence."""

    code: FindingCode  # which cause
    # By what it costs: ``high`` from a quarter of the throughput, ``medium`` from a twentieth,
    # ``low`` below; ``info`` costs nothing now. A cause that neither ends the run nor spoils its
    # data is ``high`` only where its gain is certain.
    severity: Severity
    title: str  # the cause in a few words
    explanation: str  # how it slows this loader down, in a sentence or two with the figures
    # The figures that show it, by name with unit, and ids of trials.
    evidence: Mapping[str, Any] = empty()
    fix: Fix | None = None  # what to change; ``None`` where nothing should be
    # Throughput with the fix over throughput now (1.4: 40% more): measured where the fix was tried,
    # else from the model or a bound (``gain_from`` in the evidence); ``None`` where it isn't known.
    predicted_gain: Estimate | None = None
    # Time of the whole script now over its time with the fix, of a script that was watched;
    # ``None`` elsewhere, and where it can't be computed.
    script_gain: Estimate | None = None
    # Share of the run's time that the cause takes, 0 to 1, by which findings are ordered.
    cost: float = 0.0
    # Why the finding may be wrong, such as a noisy window; empty where nothing is known against it.
    doubtful: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Why the consumer waits, by the differential of DS-Analyzer (Mohan et al., VLDB 2021)."""

    resident_s: float  # seconds a batch with a batch that is in memory already: step and copy alone
    warm_s: float  # seconds a batch with the dataset's files in the page cache
    # Seconds a batch with the page cache dropped; ``None`` where that wasn't measured.
    cold_s: float | None = None
    # ``max(0, warm - resident) / (cold or warm)``: share of time lost to preparing batches.
    prep_fraction: float
    # ``max(0, cold - warm) / cold``: share lost to fetching from storage.
    fetch_fraction: float | None = None


LoaderPart = Literal["storage", "host_cpu", "main_process", "barrier", "memory"]


@record(frozen=True, slots=True, kw_only=True)
class WithoutPart:
    """What a loader would give if one part of loading took no time, all else as it is.

    The differential of DS-Analyzer for each part by itself. Parts that are in series hide each
    other, so that the gains of two don't add up.
    """

    # ``storage``: waiting in making batches, for storage or a network; ``host_cpu``: computing in
    # making and handing over batches; ``main_process``: drawing indices and receiving batches;
    # ``barrier``: ranks waiting for slower ones at each step; ``memory``: stalls of pages that
    # memory was too small to keep.
    part: LoaderPart
    gain: Estimate  # throughput without it over throughput now
    source: Literal["model", "bound"]  # ``model``, or ``bound`` where that is all there is


@record(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a profile found for one configuration."""

    config: Config  # what was profiled
    # Ordered by cost; the first is the cause that dlprof would bet on.
    findings: tuple[Finding, ...] = ()
    stalls: Stalls | None = None  # of the consumer; ``None`` where that wasn't measured
    # What each part of loading costs, the most expensive first; empty where nothing was traced.
    without: tuple[WithoutPart, ...] = ()
    trials: tuple[str, ...] = ()  # ids of the trials that it rests on
    notes: tuple[str, ...] = ()  # what to know about how it was found
    # What the dataset weighs; ``None`` where it was not weighed.
    weight: DatasetWeight | None = None


Exactness = Literal["exact", "sampled", "at_least"]
StartPhaseName = Literal["server", "create", "process", "imports", "unpickle", "init", "fetch"]


PIPE_BYTES = 64 << 10
"""What a pipe holds: with more, main waits until the worker has read all but that."""


@record(frozen=True, slots=True, kw_only=True)
class AttributeWeight:
    """What one attribute of a dataset weighs."""

    name: str  # the way to it from the dataset: ``samples``, ``dataset.transform.table``
    type: str  # its class, and how many entries it has: ``list of 1,281,167 tuple``
    # What is sent to each worker by ``spawn`` and ``forkserver``; tensors' data is shared and so
    # not part of it.
    pickled_bytes: float = 0.0
    pickle_s: float = 0.0  # seconds to pickle it, once for each worker
    unpickle_s: float = 0.0  # seconds to unpickle it, in each worker
    # Memory of Python objects: a forked worker copies their pages as it counts references. Of a
    # large object only its first page counts.
    object_bytes: float = 0.0
    objects: float = 0.0  # how many objects that are
    flat_bytes: float = 0.0  # memory that workers share: data of tensors, arrays, bytes and tables
    # ``exact``; ``sampled`` (scaled up from a part of the entries); ``at_least`` (it takes longer,
    # or has more, than was waited for).
    how: Exactness = "exact"
    failure: str = ""  # why it can't be pickled; empty if it can

    @property
    def cost_s(self) -> float:
        """Seconds of a core that it costs with each worker: sent, and then copied page by page."""
        # Copying pages of a forked process moves about 1 GB of memory a second.
        return self.pickle_s + self.unpickle_s + self.object_bytes / 1e9


@record(frozen=True, slots=True, kw_only=True)
class StartPhase:
    """One part of the time from ``iter(loader)`` to the first batch, with one worker."""

    # ``server`` (starting the fork server, once), ``create`` (main pickles and starts the process),
    # ``process`` (until the worker's Python runs), ``imports`` (torch and the dataset's module),
    # ``unpickle`` (dataset, collate_fn), ``init`` (torch's set-up, ``worker_init_fn``, and
    # ``iter(dataset)`` of an iterable), ``fetch`` (the first batch, until main has it).
    name: StartPhaseName
    wall_s: float  # seconds, run-queue delay left out
    cpu_s: float  # CPU seconds of it


@record(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """How one worker came to its first batch, by one start method."""

    method: str  # ``fork``, ``forkserver`` or ``spawn``
    phases: tuple[StartPhase, ...]  # in the order of time
    sent_bytes: float = 0.0  # what main pickled for the worker; 0 by ``fork``
    # Seconds from ``iter(loader)`` to the first batch, as measured; ``None`` where the phases were
    # put together from other measurements.
    first_batch_s: float | None = None

    def phase(self, name: StartPhaseName) -> StartPhase:
        """One phase; of no length where this method doesn't have it."""
        none = StartPhase(name=name, wall_s=0.0, cpu_s=0.0)
        return next((each for each in self.phases if each.name == name), none)


@record(frozen=True, slots=True, kw_only=True)
class DatasetWeight:
    """What a dataset weighs, attribute by attribute."""

    # The heaviest first; those that weigh next to nothing are left out.
    attributes: tuple[AttributeWeight, ...] = ()
    pickled_bytes: float = 0.0  # sum over all attributes, here and below
    pickle_s: float = 0.0  # seconds to pickle it, once for each worker
    unpickle_s: float = 0.0  # seconds to unpickle it, in each worker
    object_bytes: float = 0.0  # memory of Python objects, which forked workers copy
    flat_bytes: float = 0.0  # memory that workers share
    how: Exactness = "exact"  # the least exact of the attributes
    start_method: str | None = None  # what the loader's workers start by
    starts: tuple[WorkerStart, ...] = ()  # how one worker came to its first batch, by start method
    # Files or shards that an iterable dataset is split by; ``None`` where it doesn't say.
    shards: int | None = None
    # Seconds of a sample that is far from the one asked for before, the least of three; ``None``
    # where single samples could not be asked for in time.
    far_sample_s: float | None = None
    # Seconds of a sample that follows the one before, as those of a block do that is read at once:
    # the most at three places, but for one of five at each.
    next_sample_s: float | None = None
    took_s: float = 0.0  # what weighing took
    unavailable: Mapping[str, str] = empty()  # why something is missing, by field

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
