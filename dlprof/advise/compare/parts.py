"""What a comparison says: the types of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from dlprof.records import Config, Estimate, Finding

PartCode = Literal[
    "cpu",
    "cores",
    "quota",
    "neighbours",
    "storage",
    "receive",
    "copy",
    "step",
    "settings",
    "remainder",
]

TITLES: Mapping[PartCode, str] = {
    "cpu": "CPU time per sample",
    "cores": "cores to be had",
    "quota": "CPU quota",
    "neighbours": "neighbours",
    "storage": "waiting for storage",
    "receive": "receiving and pinning",
    "copy": "copies to the device",
    "step": "the training step",
    "settings": "the settings",
    "remainder": "the remainder",
}
"""In the order in which they are told where they are of one size."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideInfo:
    """One of the two runs, as far as the comparison used it.

    Attributes:
        run_file: Its path.
        hostname: Its machine.
        cpu_model: CPU model as the system names it.
        started_at: ISO 8601, UTC.
        target: TARGET as the user wrote it.
        config: The configuration that was compared.
        samples_per_s: Its rate: geometric mean over its trials, with the interval by their spread.
        trials: Ids of its trials.
        noisy: How many of those are doubtful.
    """

    run_file: str
    hostname: str
    cpu_model: str
    started_at: str
    target: str
    config: Config
    samples_per_s: Estimate
    trials: tuple[str, ...]
    noisy: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the difference.

    Attributes:
        code: Which.
        title: It in words.
        log_ratio: What it adds to ``ln(rate of B / rate of A)``; all parts add up to that.
        factor: ``exp`` of it: all factors multiply to the ratio of the rates.
        explanation: The figures of both sides in one sentence.
        a: Figures of A, by name with unit.
        b: Figures of B.
        alone: Rate of the slower side if only this were as on the other, over its rate now, by
            the closed form; ``None`` for the remainder and for settings that were measured.
    """

    code: PartCode
    title: str
    log_ratio: Estimate
    factor: Estimate
    explanation: str
    a: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    b: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alone: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Why one run is faster than another.

    Attributes:
        a: The first run.
        b: The second run.
        pairing: Which configurations were compared, and why these; one sentence.
        ratio: Rate of B over rate of A.
        verdict: The difference and its biggest part, in a sentence or two.
        parts: Largest first, the remainder last.
        unknown: Parts that the runs don't tell, and what would tell them; what they hold is in
            the remainder.
        doubts: What stands against the comparison, one sentence each.
        findings: What slows the slower side, ordered by cost.
    """

    a: SideInfo
    b: SideInfo
    pairing: str
    ratio: Estimate
    verdict: str
    parts: tuple[Part, ...]
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
