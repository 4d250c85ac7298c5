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
from dlprof.advise.findings.claims import Claim
from dlprof.advise.findings.view import View
from dlprof.records import Config, FindingCode


def _none(view: View) -> Config | None:
    """No setting shows it: ``view`` is not looked at."""
    del view
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cause.

    Attributes:
        code: Which.
        rule: Looks for it; ``None`` where it isn't.
        remedy: The configuration worth a trial, which mends it if it is the cause.
    """

    code: FindingCode
    rule: Callable[[View], Claim | None]
    remedy: Callable[[View], Config | None] = _none


TABLE: tuple[Row, ...] = (
    Row(code="memory.shm", rule=memory.shared),
    Row(code="memory.limit", rule=memory.limit),
    Row(code="memory.growth", rule=memory.growth),
    Row(code="data.truncated", rule=content.truncated),
    Row(code="data.duplicated", rule=content.duplicated),
    Row(code="data.unshared", rule=content.unshared),
    Row(code="consumer", rule=consumer.consumer),
    Row(code="cpu.threads", rule=threads.threads, remedy=threads.single_threaded),
    Row(code="cpu.affinity", rule=cores.affinity),
    Row(code="cpu.quota", rule=cores.quota),
    Row(code="cpu.oversubscribed", rule=cores.oversubscribed, remedy=cores.enough_workers),
    Row(code="cpu.neighbours", rule=cores.neighbours),
    Row(code="startup", rule=startup.startup, remedy=startup.kept_workers),
    Row(code="main.sampler", rule=main_side.sampler),
    Row(code="main.pin", rule=main_side.pin, remedy=main_side.unpinned),
    Row(code="main.receive", rule=main_side.receive, remedy=main_side.lighter),
    Row(code="transfer.pageable", rule=device.pageable, remedy=device.pinned_copies),
    Row(code="transfer.link", rule=device.link),
    Row(code="gpu.neighbours", rule=device.neighbours),
    Row(code="order.blocking", rule=waiting.order, remedy=waiting.unordered),
    Row(code="prefetch.shallow", rule=waiting.shallow, remedy=waiting.deeper),
    Row(code="lock", rule=waiting.lock),
    Row(code="collate", rule=workers.collate),
    Row(code="too_few_workers", rule=workers.too_few_workers, remedy=workers.more_workers),
    Row(code="too_many_workers", rule=consumer.too_many_workers, remedy=consumer.fewer_workers),
    Row(code="fetch.io", rule=workers.fetch_io),
    Row(code="fetch.cpu", rule=workers.fetch_cpu),
)
"""In the order in which equal causes are told: the rarer and graver first."""


def remedies(view: View) -> Iterator[tuple[FindingCode, Config]]:
    """Configurations worth a trial that the target can have, the gravest cause first, each once."""
    seen, found = {view.config}, view.evidence.integrity
    for row in TABLE:
        config = row.remedy(view)
        if config is None or config in seen or view.evidence.why_fixed(config):
            continue
        if found.fault(config) is None:
            seen.add(config)
            yield row.code, config
