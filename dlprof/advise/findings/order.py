"""The diagnosis of one configuration: all findings in their order, and why the consumer waits."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from dlprof.advise.findings.claims import Claim, Place, changed, fix_of, fixed
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.gains import AS_GOOD
from dlprof.advise.findings.script import competes, crowds, script_gain, starts_s
from dlprof.advise.findings.table import Row, rows
from dlprof.advise.findings.view import OTHERS, View
from dlprof.advise.findings.workers import MORE_PAY
from dlprof.advise.thresholds import PAYS
from dlprof.advise.wording import as_fast, between, severity_of
from dlprof.advise.wrong_data import REPEATED, found_in
from dlprof.records import (
    NEVER_ASKED,
    SOME_SHARED,
    Config,
    Diagnosis,
    Estimate,
    Finding,
    FindingCode,
    Fix,
    Stalls,
    Trial,
)
from dlprof.units import format_duration

Placed = tuple[Place, Finding]

_CERTAIN: frozenset[FindingCode] = frozenset(
    {
        *("cpu.neighbours", "cpu.quota", "cpu.affinity"),
        *("memory.growth", "memory.limit", "memory.shm", "data.duplicated", "data.truncated"),
        "workers.unfed",
    }
)
"""Causes that a disturbed machine doesn't put in doubt, or that are the disturbance itself."""

WRONG_DATA: frozenset[FindingCode] = frozenset({"data.duplicated", "data.truncated"})
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
        stalls=_stalls(evidence),
        trials=tuple(trial.id for trial in evidence.trials()),
        notes=tuple(notes),
        weight=evidence.weight,
    )


def _stalls(evidence: Evidence) -> Stalls | None:
    """The consumer's stalls by the differential of DS-Analyzer (Mohan et al., VLDB 2021).

    Returns:
        ``None`` without a step: a consumer that takes no time only waits.
    """
    explained = evidence.explained(evidence.config)
    step = None if explained is None else explained.stage("step")
    resident_s = step.mean_s if step is not None else evidence.step_s or None
    warm_s = _batch_s(evidence.plain("present"))
    if not evidence.has_step or resident_s is None or warm_s is None:
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
    """Seconds a batch, the middle of some trials."""
    rates = [trial.batches_per_s.value for trial in trials if trial.batches_per_s is not None]
    return statistics.median(1 / rate for rate in rates) if rates else None


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """All causes that the evidence shows, the one to bet on first.

    Where the consumer is the limit nothing else is told but what ends the run or is wasted; or, in
    its place, that its batches come to the device too slowly. Each next finding can't cost more
    than the one before it leaves, so that ``cost`` falls.

    Args:
        evidence: Of one configuration.
    """
    view, integrity = View.of(evidence), evidence.integrity
    claims = ((row, row.rule(view)) for row in rows(view))
    stated = (_stated(view, row, claim) for row, claim in claims if claim is not None)
    found = [each for each in stated if integrity.allows(each[1], view.config)]
    for each in found_in(evidence.trials(), integrity, view.workers):
        if each.code != "workers.unfed":  # a rule of its own knows which
            place = Place.BROKEN if each.code in WRONG_DATA else Place.FAULT
            found.append((place, each))
    codes = {finding.code for _, finding in found}
    if "workers.unfed" in codes:  # which is why there are too many
        found = [each for each in found if each[1].code != "too_many_workers"]
    if "consumer" not in codes and not codes.isdisjoint(WRONG_DATA):
        # Rates of wrong data are none: what would make it come faster is no advice.
        found = [each for each in found if each[0] is Place.BROKEN]
    elif not codes.isdisjoint(_COPIES):
        found = [each for each in found if each[1].code != "consumer"]
    ordered = sorted(_agreeing(found), key=lambda each: (each[0], -each[1].cost))
    graded = (_graded(each, view, place) for place, each in _falling(_merged(ordered)))
    return tuple(_doubted(each, view) for each in graded if each is not None)


def _stated(view: View, row: Row, claim: Claim) -> Placed:
    """The finding that a claim is, its trials among its evidence, and its place."""
    seen, gain = view.evidence, claim.gain
    evidence = view.figures(claim.figures, claim.given) | {"trials": [*view.trial_ids]}
    if gain is not None:
        step = format_duration(seen.step_s)
        where = f"at a step of {step}" if seen.step_s > 0 else "with this step"
        where = where if seen.has_step else "without a step"
        where = where if seen.script is None else "in this loop"
        evidence |= {"gain_from": gain.source, "gain_trials": [*gain.trials], "gain_at": where}
    cost = min(1.0, max(0.0, claim.cost))
    return row.place if claim.place is None else claim.place, Finding(
        code=row.code,
        severity=severity_of(cost),
        title=claim.title,
        explanation=claim.explanation,
        evidence=evidence,
        fix=fix_of(view, claim),
        predicted_gain=None if gain is None else gain.estimate,
        cost=cost,
    )


def _agreeing(found: Sequence[Placed]) -> list[Placed]:
    """Without the lesser of two that contradict each other: more workers, and fewer."""
    gains = {
        each.code: each.predicted_gain.value if each.predicted_gain else 1.0 for _, each in found
    }
    more, fewer = gains.get("too_few_workers"), gains.get("too_many_workers")
    if more is None or fewer is None:
        return list(found)
    wrong = "too_few_workers" if fewer > PAYS * more else "too_many_workers"
    return [each for each in found if each[1].code != wrong]


def _merged(found: Sequence[Placed]) -> list[Placed]:
    """With each change of settings once: what asks for the same is one finding.

    The first one says what the second says as well; that workers are too few is no cause by itself.
    """
    kept: list[Placed] = []
    for place, two in found:
        asked = two.fix.dataloader_kwargs if two.fix else {}
        fixes = [each.fix.dataloader_kwargs if each.fix else {} for _, each in kept]
        if not asked or asked not in fixes:
            kept.append((place, two))
            continue
        same = fixes.index(asked)
        first, one = kept[same]
        joined = dataclasses.replace(
            one,
            title=two.title if one.code == "too_few_workers" else one.title,
            explanation=f"{one.explanation} {two.explanation}",
            evidence={**one.evidence, **two.evidence, **one.evidence},
        )
        kept[same] = first, joined
    return kept


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
    gain, script, doubt, fix = finding.predicted_gain, None, "", finding.fix
    watched = view.evidence.script is not None
    if watched and config is not None:
        script = script_gain(view, config)
        if script is None:
            gain = None if competes(view, config) else gain
            doubt = _unknown(view, config)
        else:
            gain = script_gain(view, config, loop=True)
    judged = script or gain
    if config is not None and judged is not None and place is not Place.BROKEN:
        least = AS_GOOD if config.num_workers < view.workers else 1.0
        fewer = finding.code == "too_many_workers"
        if judged.value < least and fewer and watched:
            return None
        if judged.value < least and not fewer:
            title = finding.title + (" in a longer script" if finding.title == MORE_PAY else "")
            finding = dataclasses.replace(finding, title=title)
            fix, gain, script = _not_paying(view, config, judged), None, None
    unseen = "" if config is None else _sharing_unseen(view, config)
    if unseen and fix is not None and fix.dataloader_kwargs:
        fix = dataclasses.replace(fix, text=f"{fix.text} {REPEATED.format(unseen)}")
    lows = [each.value if each.low is None else each.low for each in (gain, script) if each]
    sure = min(lows, default=0.0) > 1 and not (doubt or unseen or crowds(view))
    if finding.severity == "high" and place is not Place.BROKEN and not sure:
        finding = dataclasses.replace(finding, severity="medium")
    return dataclasses.replace(
        finding, fix=fix, predicted_gain=gain, script_gain=script, doubtful=doubt
    )


def _changed(view: View, config: Config) -> str:
    """The arguments in which a configuration differs from the present one."""
    return ", ".join(f"{name}={each!r}" for name, each in changed(view.config, config).items())


def _not_paying(view: View, config: Config, gain: Estimate) -> Fix:
    """Instead of a change by which time is lost: that it doesn't pay, why, and what would."""
    script = view.evidence.script
    if script is None:
        shown = f"{gain.value:.2f}x{between(gain)}"
        return Fix(text=f"{_changed(view, config)} shows no gain: {shown}.")
    text = f"{_changed(view, config)} would make the whole script {as_fast(gain)}"
    if config.num_workers <= view.workers:
        return Fix(text=f"{text}: it shows no gain.")
    starts = format_duration(starts_s(view, script, config))
    persist, several = config.persistent_workers, script.loader.epochs > 1
    pays = ["longer epochs" if not persist else "more epochs"]
    pays += ["persistent_workers=True"] if several and not persist else []
    pays += [] if (config.start_method or script.start_method) == "fork" else ["workers by fork"]
    return Fix(
        text=f"More workers don't pay in a script this short: {text}, as starting them takes "
        f"{starts} of it. What would change that: {', '.join(pays)}."
    )


def _unknown(view: View, config: Config) -> str:
    """Why nobody can compute what a change brings to a script, and how to find out."""
    told = _changed(view, config)
    if competes(view, config):
        why = (
            "The step computes in several threads on the cores that workers would take. How "
            "much that slows it down can't be predicted: this gain is that of loading alone"
        )
        also = ", once as it is and once with torch.set_num_threads(1)"
    else:
        why = (
            "Waits for this loader overlap with other work of the script: this gain is that of "
            "its own wait alone"
        )
        also = ""
    return f"{why}. Run the script with {told}{also}, and compare how long it takes."


def _sharing_unseen(view: View, config: Config) -> str:
    """Why it isn't known whether more workers share samples out; empty where it may be."""
    seen, script = view.evidence, view.evidence.script
    if seen.target.kind != "iterable" or config.num_workers <= max(1, view.workers):
        return ""
    unshared = seen.integrity.unshared
    right = (each for each in seen.trials() if each.failure is None and each.id not in unshared)
    asks = None if script is None else script.loader.asks_worker
    if asks or any(trial.config.num_workers > 1 for trial in right):
        return ""
    never, same = (sign in unshared.values() for sign in (NEVER_ASKED, SOME_SHARED))
    if script is not None:  # in workers that are not forked nobody looked
        forked = (view.config.start_method or script.start_method) == "fork"
        never = asks is False and (forked or not view.workers)
    if same and not never:
        return "gave some of the same samples in several workers"
    return "never asks get_worker_info()" if never else "wasn't seen with several workers"


def _doubted(finding: Finding, view: View) -> Finding:
    """The finding with what speaks against it."""
    if finding.code in _CERTAIN:
        return finding
    doubts = [finding.doubtful] if finding.doubtful else []
    disturbed = "The machine was disturbed while this was measured:"
    if view.is_noisy and view.others >= OTHERS * view.cores:
        kept = f"other processes kept {view.others:.1f} of {view.cores:g} cores busy"
        doubts.append(f"{disturbed} {kept}.")
    elif view.is_noisy and view.disagrees:
        doubts.append(f"{disturbed} trials of the same settings differ by {view.unsteady:.1f}x.")
    elif view.is_noisy:
        doubts.append("Batches came unevenly while this was measured.")
    return dataclasses.replace(finding, doubtful=" ".join(doubts)) if doubts else finding
