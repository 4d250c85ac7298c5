"""All findings of one configuration, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from dlprof.advise.findings.claims import Claim, Place, fixed, severity_of
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.table import TABLE
from dlprof.advise.findings.view import View
from dlprof.advise.findings.whole import competes, crowds, loop_gain, script_gain, starts_s
from dlprof.advise.findings.workers import MORE_PAY
from dlprof.advise.wrong_data import REPEATED
from dlprof.records import Config, Estimate, Finding, FindingCode, Fix
from dlprof.units import format_duration

_CERTAIN: frozenset[FindingCode] = frozenset(
    {
        *("cpu.neighbours", "cpu.quota", "cpu.affinity"),
        *("memory.growth", "memory.limit", "memory.shm", "data.duplicated", "data.truncated"),
    }
)
"""Causes that a disturbed machine doesn't put in doubt, or that are the disturbance itself."""

WRONG_DATA: frozenset[FindingCode] = frozenset({"data.duplicated", "data.truncated"})
_CLEARLY = 1.1
_AS_GOOD = 0.95
"""Speed with fewer workers from which they are worth it for the memory that they don't take."""

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
    elif any(claim.finding.code in WRONG_DATA for claim in found):
        # Rates of wrong data are none: what would make it come faster is no advice.
        found = [claim for claim in found if claim.place is Place.BROKEN]
    claims = sorted(_agreeing(found), key=lambda each: (each.place, -each.finding.cost))
    placed = [(claim.place, finding) for claim, finding in _falling(_merged(claims))]
    graded = (_graded(each, view, place) for place, each in placed)
    return tuple(_doubted(each, view) for each in graded if each is not None)


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


def _merged(claims: Sequence[Claim]) -> list[Claim]:
    """The claims with each change of settings once: what asks for the same is one finding."""
    kept: list[Claim] = []
    for claim in claims:
        place = next((n for n, each in enumerate(kept) if _same_fix(each, claim)), None)
        if place is None:
            kept.append(claim)
        else:
            kept[place] = _joined(kept[place], claim)
    return kept


def _same_fix(one: Claim, two: Claim) -> bool:
    first, second = one.finding.fix, two.finding.fix
    if first is None or second is None or not first.dataloader_kwargs:
        return False
    return first.dataloader_kwargs == second.dataloader_kwargs


def _joined(first: Claim, second: Claim) -> Claim:
    """The first with what the second says; that workers are too few is no cause by itself."""
    one, two = first.finding, second.finding
    title = two.title if one.code == "too_few_workers" else one.title
    finding = dataclasses.replace(
        one,
        title=title,
        explanation=f"{one.explanation} {two.explanation}",
        evidence={
            **one.evidence,
            **{k: v for k, v in two.evidence.items() if k not in one.evidence},
        },
    )
    return dataclasses.replace(first, finding=finding)


def _falling(claims: Iterable[Claim]) -> list[tuple[Claim, Finding]]:
    """The findings with the costs that are left to them behind those before."""
    findings: list[tuple[Claim, Finding]] = []
    for claim in claims:
        finding = claim.finding
        before = findings[-1][1].cost if findings else 0.0
        if finding.cost > before > 0:
            finding = dataclasses.replace(finding, cost=before, severity=severity_of(before))
        findings.append((claim, finding))
    return findings


def _graded(finding: Finding, view: View, place: Place) -> Finding | None:
    """The finding with what it brings to the whole script, and as grave as its gain is sure.

    A change by which the script loses time is not advised; fewer workers are no cause then.
    """
    config = fixed(view.config, finding.fix)
    gain, script, doubt = finding.predicted_gain, None, ""
    if view.evidence.script is not None and config is not None:
        script = script_gain(view, config)
        if script is None:
            gain = None if competes(view, config) else gain
            doubt = _unknown(view, config)
        else:
            gain = loop_gain(view, config)
    judged = script or gain
    if config is not None and judged is not None and place is not Place.BROKEN:
        least = _AS_GOOD if config.num_workers < view.workers else 1.0
        fewer = finding.code == "too_many_workers"
        if judged.value < least and fewer and view.evidence.script is not None:
            return None
        if judged.value < least and not fewer:
            title = finding.title + (" in a longer script" if finding.title == MORE_PAY else "")
            fix = _not_paying(view, config, judged)
            finding = dataclasses.replace(finding, title=title, fix=fix)
            gain = script = None
    unseen = "" if config is None else view.sharing_unseen(config)
    if unseen and finding.fix is not None and finding.fix.dataloader_kwargs:
        text = f"{finding.fix.text} {REPEATED.format(unseen)}"
        finding = dataclasses.replace(finding, fix=dataclasses.replace(finding.fix, text=text))
    severity = finding.severity
    known = [each for each in (gain, script) if each is not None]
    lows = [each.value if each.low is None else each.low for each in known]
    sure = bool(known) and min(lows) > 1
    sure = sure and not doubt and not unseen and not crowds(view)
    if severity == "high" and place is not Place.BROKEN and not sure:
        severity = "medium"
    return dataclasses.replace(
        finding, severity=severity, predicted_gain=gain, script_gain=script, doubtful=doubt
    )


def _changed(view: View, config: Config) -> str:
    """The arguments in which a configuration differs from the present one."""
    now = view.config.dataloader_kwargs()
    kwargs = config.dataloader_kwargs()
    return ", ".join(f"{name}={each!r}" for name, each in kwargs.items() if now.get(name) != each)


def _not_paying(view: View, config: Config, gain: Estimate) -> Fix:
    """Instead of a change by which time is lost: that it doesn't pay, why, and what would."""
    script = view.evidence.script
    if script is None:
        text = f"{_changed(view, config)} does not pay: it gives {gain.value:.2f}x."
        return Fix(text=text)
    text = f"{_changed(view, config)} would make the whole script {gain.value:.2f}x as fast"
    if config.num_workers <= view.workers:
        return Fix(text=f"{text}: it does not pay.")
    starts = format_duration(starts_s(view, script, config))
    persist, several = config.persistent_workers, script.loader.epochs > 1
    pays = ["longer epochs" if not persist else "more epochs"]
    pays += ["persistent_workers=True"] if several and not persist else []
    pays += [] if (config.start_method or script.start_method) == "fork" else ["workers by fork"]
    return Fix(
        text=f"No more workers pay in a script this short: {text}, as starting them takes "
        f"{starts} of it. What would change that: {', '.join(pays)}."
    )


def _unknown(view: View, config: Config) -> str:
    """Why nobody can compute what a change brings to a script, and how to find out."""
    told = _changed(view, config)
    if competes(view, config):
        why = (
            "The step computes in several threads on the cores that workers would take, so it "
            "slows down by what can't be computed: this is about loading alone"
        )
        also = ", once as it is and once with torch.set_num_threads(1)"
    else:
        why = (
            "Waits for this loader are not a part of the script's time by themselves: this is "
            "about its own wait alone"
        )
        also = ""
    return f"{why}. Run the script with {told}{also}, and compare how long it takes."


def _how(view: View) -> str:
    """What was seen of a disturbance."""
    if view.others >= _OTHERS:
        return (
            "The machine was disturbed while this was measured: others kept "
            f"{view.others:.1f} of {view.cores:g} cores busy."
        )
    if view.disagrees:
        return (
            "The machine was disturbed while this was measured: trials of the same settings "
            f"differ by {view.unsteady:.1f}x."
        )
    return "Batches came unevenly while this was measured."


def _doubted(finding: Finding, view: View) -> Finding:
    """The finding with what speaks against it."""
    if finding.code in _CERTAIN:
        return finding
    doubts = [*filter(None, [finding.doubtful]), *view.evidence.conditions]
    if view.is_noisy:
        doubts.append(_how(view))
    return dataclasses.replace(finding, doubtful=" ".join(doubts)) if doubts else finding
