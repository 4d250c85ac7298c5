"""What a dataset weighs: what starting a worker sends it, and what workers come to copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from dlprof.records.record import record

Exactness = Literal["exact", "sampled", "at_least"]
StartPhaseName = Literal["server", "create", "process", "imports", "unpickle", "init", "fetch"]

COPIED_BYTES_PER_S = 1e9
"""Memory that copying pages of a forked process moves in a second, by which objects are weighed
against pickled bytes."""

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
        return self.pickle_s + self.unpickle_s + self.object_bytes / COPIED_BYTES_PER_S


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
    def heaviest(self) -> AttributeWeight | None:
        """The attribute to move first; ``None`` where none weighs anything."""
        return self.attributes[0] if self.attributes else None

    def start(self, method: str) -> WorkerStart | None:
        """How a worker starts by a method; ``None`` where that isn't known."""
        return next((each for each in self.starts if each.method == method), None)
