"""All rules: one for each code, and the configuration that would show whether it is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dlprof.advise.findings import (
    consumer,
    content,
    cores,
    device,
    main_side,
    memory,
    startup,
    threads,
    waiting,
    workers,
)
from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.view import View
from dlprof.advise.wrong_data import DUPLICATED_TITLE, TRUNCATED_TITLE, UNSHARED_TITLE
from dlprof.records import Config, FindingCode


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One cause.

    Attributes:
        code: Which.
        title: It in a few words.
        place: Where it belongs; within one, the dearer comes first.
        rule: Looks for it; ``None`` where it isn't.
        remedy: The configuration worth a trial, which mends it if it is the cause; ``None`` where
            no setting shows it.
    """

    code: FindingCode
    title: str
    place: Place
    rule: Callable[[View], Claim | None]
    remedy: Callable[[View], Config | None] | None = None


TABLE: tuple[Row, ...] = (
    Row("memory.shm", "Shared memory is too small", Place.BROKEN, memory.shared),
    Row("memory.limit", "The setting does not fit into memory", Place.BROKEN, memory.limit),
    Row("memory.growth", "Memory of the workers grows", Place.BROKEN, memory.growth),
    Row("data.truncated", TRUNCATED_TITLE, Place.BROKEN, content.truncated),
    Row("data.duplicated", DUPLICATED_TITLE, Place.BROKEN, content.duplicated),
    Row("data.unshared", UNSHARED_TITLE, Place.FAULT, content.unshared),
    Row("consumer", "The training step is the limit", Place.CONSUMER, consumer.consumer),
    Row(
        "cpu.threads",
        "Threads inside the workers compete for the cores",
        Place.FAULT,
        threads.threads,
        threads.single_threaded,
    ),
    Row("cpu.affinity", "Workers are pinned to too few CPUs", Place.FAULT, cores.affinity),
    Row("cpu.quota", "A CPU quota throttles the loader", Place.FAULT, cores.quota),
    Row(
        "cpu.oversubscribed",
        "The workers want more cores than there are",
        Place.FAULT,
        cores.oversubscribed,
        cores.enough_workers,
    ),
    Row("cpu.neighbours", "Other processes take the cores", Place.BEHIND, cores.neighbours),
    Row(
        "startup",
        "Starting workers costs more than it earns",
        Place.BEHIND,
        startup.startup,
        startup.kept_workers,
    ),
    Row("main.sampler", "The sampler holds the main process up", Place.FAULT, main_side.sampler),
    Row("main.pin", "The pin thread is the limit", Place.FAULT, main_side.pin, main_side.unpinned),
    Row(
        "main.receive",
        "The main process spends its time rebuilding batches",
        Place.FAULT,
        main_side.receive,
        main_side.lighter,
    ),
    Row(
        "transfer.pageable",
        "Copies to the device are unpinned",
        Place.FAULT,
        device.pageable,
        device.pinned_copies,
    ),
    Row(
        "transfer.link",
        "The link to the device is slower than it should be",
        Place.FAULT,
        device.link,
    ),
    Row("gpu.neighbours", "Other processes use the device", Place.BEHIND, device.neighbours),
    Row(
        "order.blocking",
        "Slow samples hold back finished batches",
        Place.FAULT,
        waiting.order,
        waiting.unordered,
    ),
    Row("prefetch.shallow", "Bursts empty the queue", Place.FAULT, waiting.shallow, waiting.deeper),
    Row("lock", "Workers wait for each other", Place.FAULT, waiting.lock),
    Row("collate", "Collating costs the most", Place.FAULT, workers.collate),
    Row(
        "too_few_workers",
        "More workers would pay",
        Place.SETTING,
        workers.too_few_workers,
        workers.more_workers,
    ),
    Row(
        "too_many_workers",
        "Fewer workers would do",
        Place.BEHIND,
        consumer.too_many_workers,
        consumer.fewer_workers,
    ),
    Row("fetch.io", "__getitem__ waits for storage or network", Place.NATURE, workers.fetch_io),
    Row("fetch.cpu", "__getitem__ burns CPU", Place.NATURE, workers.fetch_cpu),
)
"""In the order in which equal causes are told: the rarer and graver first."""


def remedies(view: View) -> Iterator[tuple[FindingCode, Config]]:
    """Configurations worth a trial that the target can have, the gravest cause first, each once."""
    seen, found = {view.config}, view.evidence.integrity
    for row in TABLE:
        config = None if row.remedy is None else row.remedy(view)
        if config is None or config in seen or view.evidence.why_fixed(config):
            continue
        if found.fault(config) is None:
            seen.add(config)
            yield row.code, config
