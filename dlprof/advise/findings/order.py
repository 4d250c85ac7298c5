"""The diagnosis of one configuration: all findings in their order, and why the consumer waits."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from dlprof.advise.findings.claims import Claim, Place, fixed
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.table import TABLE, Row
from dlprof.advise.findings.view import View
from dlprof.advise.findings.whole import competes, crowds, loop_gain, script_gain, starts_s
from dlprof.advise.findings.workers import MORE_PAY
from dlprof.advise.wording import factor, severity_of
from dlprof.advise.wrong_data import REPEATED
from dlprof.records import Config, Diagnosis, Estimate, Finding, FindingCode, Fix, Stalls, Trial
from dlprof.units import format_duration

Placed = tuple[Place, Finding]

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


def diagnose(evidence: Evidence, notes: Sequence[str] = ()) -> Diagnosis:
    """What the evidence says of one configuration.

    Args:
        evidence: Everything that was measured.
        notes: What people should know of the way it was measured.
    """
    return Diagnosis(
        config=evidence.config,
        findings=find(evidence),
        stalls=stalls_of(evidence),
        trials=tuple(trial.id for trial in evidence.trials()),
        notes=tuple(notes),
    )


def stalls_of(evidence: Evidence) -> Stalls | None:
    """The consumer's stalls by the differential of DS-Analyzer (Mohan et al., VLDB 2021).

    Returns:
        ``None`` without a step: a consumer that takes no time only waits.
    """
    if not evidence.has_step:
        return None
    explained = evidence.explained(evidence.config)
    step = None if explained is None else explained.stage("step")
    resident_s = step.mean_s if step is not None else evidence.step_s or None
    warm_s = _batch_s(evidence.plain("present"))
    if resident_s is None or warm_s is None:
        return None
    cold_s = _batch_s(evidence.plain("cold"))
    longest_s = max(warm_s, cold_s or 0.0)
    return Stalls(
        resident_s=resident_s,
        warm_s=warm_s,
        cold_s=cold_s,
        prep_fraction=max(0.0, warm_s - resident_s) / longest_s,
        fetch_fraction=None if cold_s is None else max(0.0, cold_s - warm_s) / longest_s,
    )


def _batch_s(trials: Sequence[Trial]) -> float | None:
    """Seconds a batch, the geometric middle of some trials."""
    rates = [trial.batches_per_s.value for trial in trials if trial.batches_per_s is not None]
    logs = [math.log(rate) for rate in rates if rate > 0]
    return math.exp(-statistics.median(logs)) if logs else None


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
    claims = ((row, row.rule(view)) for row in TABLE)
    stated = (_stated(view, row, claim) for row, claim in claims if claim is not None)
    found = [each for each in stated if integrity.allows(each[1], view.config)]
    codes = {finding.code for _, finding in found}
    if "consumer" in codes:
        copies = not codes.isdisjoint(_COPIES)
        told = (_BESIDE_CONSUMER | _COPIES) - ({"consumer"} if copies else set())
        found = [each for each in found if each[0] is Place.BROKEN or each[1].code in told]
    elif not codes.isdisjoint(WRONG_DATA):
        # Rates of wrong data are none: what would make it come faster is no advice.
        found = [each for each in found if each[0] is Place.BROKEN]
    ordered = sorted(_agreeing(found), key=lambda each: (each[0], -each[1].cost))
    falling = _falling(_merged(ordered))
    graded = (_graded(each, view, place) for place, each in falling)
    return tuple(_doubted(each, view) for each in graded if each is not None)


def _stated(view: View, row: Row, claim: Claim) -> Placed:
    """The finding that a claim is, its trials among its evidence, and its place."""
    trials = [*view.trial_ids]
    if view.explained is not None:
        trials.append(view.explained.trial_id)
    evidence: dict[str, Any] = {**claim.figures, "trials": list(dict.fromkeys(trials))}
    gain = claim.gain
    if gain is not None:
        evidence["gain_from"] = gain.source
        evidence["gain_trials"] = list(gain.trials)
        evidence["gain_at"] = _gain_at(view)
    cost = min(1.0, max(0.0, claim.cost))
    return row.place if claim.place is None else claim.place, Finding(
        code=row.code,
        severity=severity_of(cost),
        title=claim.title,
        explanation=claim.explanation,
        evidence=evidence,
        fix=claim.fix,
        predicted_gain=None if gain is None else gain.estimate,
        cost=cost,
    )


def _gain_at(view: View) -> str:
    """Where a gain is one."""
    evidence = view.evidence
    if evidence.script is not None:
        return "in this loop"
    if not evidence.has_step:
        return "without a step"
    if evidence.step_s > 0:
        return f"at a step of {format_duration(evidence.step_s)}"
    return "with this step"


def _agreeing(found: Sequence[Placed]) -> list[Placed]:
    """Without the lesser of two that contradict each other: more workers, and fewer."""
    gains = {
        each.code: each.predicted_gain.value if each.predicted_gain else 1.0 for _, each in found
    }
    more, fewer = gains.get("too_few_workers"), gains.get("too_many_workers")
    if more is None or fewer is None:
        return list(found)
    wrong = "too_few_workers" if fewer > _CLEARLY * more else "too_many_workers"
    return [each for each in found if each[1].code != wrong]


def _merged(found: Sequence[Placed]) -> list[Placed]:
    """With each change of settings once: what asks for the same is one finding."""
    kept: list[Placed] = []
    for place, finding in found:
        asked = finding.fix.dataloader_kwargs if finding.fix else {}
        fixes = [each.fix.dataloader_kwargs if each.fix else {} for _, each in kept]
        if asked and asked in fixes:
            same = fixes.index(asked)
            kept[same] = kept[same][0], _joined(kept[same][1], finding)
        else:
            kept.append((place, finding))
    return kept


def _joined(one: Finding, two: Finding) -> Finding:
    """The first with what the second says; that workers are too few is no cause by itself."""
    return dataclasses.replace(
        one,
        title=two.title if one.code == "too_few_workers" else one.title,
        explanation=f"{one.explanation} {two.explanation}",
        evidence={**one.evidence, **two.evidence, **one.evidence},
    )


def _falling(found: Iterable[Placed]) -> list[Placed]:
    """The findings with the costs that are left to them behind those before."""
    kept: list[Placed] = []
    for place, finding in found:
        before = kept[-1][1].cost if kept else 0.0
        cost = before if finding.cost > before > 0 else finding.cost
        kept.append((place, dataclasses.replace(finding, cost=cost, severity=severity_of(cost))))
    return kept


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
        return Fix(text=f"{_changed(view, config)} shows no gain: {factor(gain)}.")
    text = f"{_changed(view, config)} would make the whole script {factor(gain)} as fast"
    if config.num_workers <= view.workers:
        return Fix(text=f"{text}: it shows no gain.")
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
