"""All findings of one configuration, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from dlprof.advise.findings.claims import Claim, Place, severity_of
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.table import TABLE
from dlprof.advise.findings.view import View
from dlprof.records import Finding, FindingCode

_CERTAIN: frozenset[FindingCode] = frozenset(
    {
        *("cpu.neighbours", "cpu.quota", "cpu.affinity"),
        *("memory.growth", "memory.limit", "memory.shm", "data.duplicated", "data.truncated"),
    }
)
"""Causes that a disturbed machine doesn't put in doubt, or that are the disturbance itself."""

_CLEARLY = 1.1
_OTHERS = 0.3
"""Cores of others, below which it is not they who disturb."""

_BESIDE_CONSUMER: frozenset[FindingCode] = frozenset({"consumer", "too_many_workers"})
_COPIES: frozenset[FindingCode] = frozenset({"transfer.pageable", "transfer.link"})
"""What makes the consumer's own part shorter, so that it is not the limit yet."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """All causes that the evidence shows, the one to bet on first.

    Where the consumer is the limit nothing else is told but what ends the run or is wasted; or, in
    its place, that its batches come to the device too slowly. Each next finding can't cost more
    than the one before it leaves, so that ``cost`` falls.

    Args:
        evidence: Of one configuration.
    """
    view = View.of(evidence)
    integrity = evidence.integrity
    found = [
        claim
        for row in TABLE
        if (claim := row.rule(view)) is not None and integrity.allows(claim.finding, view.config)
    ]
    if any(claim.finding.code == "consumer" for claim in found):
        copies = any(claim.finding.code in _COPIES for claim in found)
        told = (_BESIDE_CONSUMER | _COPIES) - ({"consumer"} if copies else set())
        found = [c for c in found if c.place is Place.BROKEN or c.finding.code in told]
    claims = sorted(_agreeing(found), key=lambda each: (each.place, -each.finding.cost))
    return tuple(_doubted(finding, view) for finding in _falling(claims))


def _agreeing(claims: Sequence[Claim]) -> list[Claim]:
    """Without the lesser of two that contradict each other: more workers, and fewer."""
    gains = {
        claim.finding.code: gain.value if (gain := claim.finding.predicted_gain) else 1.0
        for claim in claims
    }
    more, fewer = gains.get("too_few_workers"), gains.get("too_many_workers")
    if more is None or fewer is None:
        return list(claims)
    wrong = "too_few_workers" if fewer > _CLEARLY * more else "too_many_workers"
    return [claim for claim in claims if claim.finding.code != wrong]


def _falling(claims: Iterable[Claim]) -> list[Finding]:
    """The findings with the costs that are left to them behind those before."""
    findings: list[Finding] = []
    for claim in claims:
        finding = claim.finding
        if findings and finding.cost > findings[-1].cost > 0:
            cost = findings[-1].cost
            finding = dataclasses.replace(finding, cost=cost, severity=severity_of(cost))
        findings.append(finding)
    return findings


def _how(view: View) -> str:
    if view.others < _OTHERS and view.disagrees:
        return f"trials of the same settings differ by {view.unsteady:.1f}x"
    return f"others kept {view.others:.1f} of {view.cores:g} cores busy"


def _doubted(finding: Finding, view: View) -> Finding:
    """The finding with what speaks against it, where nothing has been said yet."""
    if finding.doubtful or finding.code in _CERTAIN:
        return finding
    doubts = list(view.evidence.conditions)
    if view.is_noisy:
        doubts.append(f"The machine was disturbed while this was measured: {_how(view)}.")
    return dataclasses.replace(finding, doubtful=" ".join(doubts)) if doubts else finding
