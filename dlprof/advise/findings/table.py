"""All rules: one for each code, and the configuration that would show whether it is right.

But for those of wrong data, which a run shows by itself (``advise/wrong_data.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dlprof.advise.findings import (
    cores,
    device,
    heavy,
    main_side,
    memory,
    startup,
    unfed,
    waiting,
    workers,
)
from dlprof.advise.findings.claims import Claim, Place
from dlprof.advise.findings.view import View
from dlprof.records import Config, FindingCode


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One cause.

    Attributes:
        code: Which.
        place: Where it belongs; within one, the dearer comes first.
        rule: Looks for it; ``None`` where it isn't.
        remedy: The configuration worth a trial, which mends it if it is the cause; ``None`` where
            no setting shows it.
    """

    code: FindingCode
    place: Place
    rule: Callable[[View], Claim | None]
    remedy: Callable[[View], Config | None] | None = None


TABLE: tuple[Row, ...] = (
    Row("memory.shm", Place.BROKEN, memory.shared),
    Row("memory.limit", Place.BROKEN, memory.limit),
    Row("memory.growth", Place.BROKEN, memory.growth),
    Row("workers.unfed", Place.BROKEN, unfed.unfed),
    Row("consumer", Place.CONSUMER, workers.consumer),
    Row("cpu.threads", Place.FAULT, cores.threads, cores.single_threaded),
    Row("cpu.affinity", Place.FAULT, cores.affinity),
    Row("cpu.quota", Place.FAULT, cores.quota),
    Row("cpu.oversubscribed", Place.FAULT, cores.oversubscribed, cores.enough_workers),
    Row("cpu.neighbours", Place.BEHIND, cores.neighbours),
    Row("dataset.heavy", Place.BEHIND, heavy.heavy),
    Row("startup", Place.BEHIND, heavy.starting, startup.kept_workers),
    Row("main.sampler", Place.FAULT, main_side.sampler),
    Row("main.pin", Place.FAULT, main_side.pin, main_side.unpinned),
    Row("main.receive", Place.FAULT, main_side.receive, main_side.lighter),
    Row("transfer.pageable", Place.FAULT, device.pageable, device.pinned_copies),
    Row("transfer.link", Place.FAULT, device.link),
    Row("gpu.neighbours", Place.BEHIND, device.neighbours),
    Row("order.blocking", Place.FAULT, waiting.order, waiting.unordered),
    Row("prefetch.shallow", Place.FAULT, waiting.shallow, waiting.deeper),
    Row("lock", Place.FAULT, waiting.lock),
    Row("collate", Place.FAULT, workers.collate),
    Row("too_few_workers", Place.SETTING, workers.too_few_workers, workers.more_workers),
    Row("too_many_workers", Place.BEHIND, workers.too_many_workers, workers.fewer_workers),
    Row("fetch.io", Place.NATURE, workers.fetch_io),
    Row("fetch.cpu", Place.NATURE, workers.fetch_cpu),
)
"""In the order in which equal causes are told: the rarer and graver first."""


_BESIDE_STEP: frozenset[FindingCode] = frozenset(
    {"too_many_workers", "transfer.pageable", "transfer.link"}
)
"""What matters even where the consumer's step is the limit, beside what ends the run: waste, and
copies that make the step itself longer."""


def rows(view: View) -> Iterator[Row]:
    """The causes that come into question."""
    fed = view.limit == "consumer"
    for row in TABLE:
        if not fed or row.place <= Place.CONSUMER or row.code in _BESIDE_STEP:
            yield row


def remedies(view: View) -> list[Config]:
    """Configurations worth a trial that the target can have, the gravest cause first, each once."""
    asked = (None if row.remedy is None else row.remedy(view) for row in rows(view))
    return [
        config
        for config in dict.fromkeys(each for each in asked if each is not None)
        if config != view.config and not view.evidence.why_fixed(config)
        if view.evidence.integrity.fault(config) is None
    ]
