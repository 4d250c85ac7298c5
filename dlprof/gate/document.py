"""A whole check as one record: raw blocks, rules and verdict, and the way back to the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dlprof.errors import ExitCode
from dlprof.gate.baseline import comparable, judge_baseline
from dlprof.gate.rule import fail_margin, fraction_of, is_contended
from dlprof.gate.verdict import judge
from dlprof.gate.views import cleaned, readings_of
from dlprof.gate.wording import METRICS, percent
from dlprof.records.gate import (
    BaselineEntry,
    BaselineRule,
    CheckPlan,
    CheckReport,
    Compared,
    GateRule,
    Quad,
    Reach,
    SelfTest,
    Sight,
    TargetCheck,
)
from dlprof.units import format_duration


def checked_target(target: str, plan: CheckPlan, quads: Sequence[Quad]) -> TargetCheck:
    """One target's check against another version of the code, judged."""
    return TargetCheck(
        target=target, verdict=judge(plan, quads), plan=plan, quads=tuple(map(cleaned, quads))
    )


def checked_baseline(
    target: str,
    entry: BaselineEntry,
    history: Sequence[BaselineEntry],
    rule: BaselineRule | None = None,
) -> TargetCheck:
    """One target's check against its stored history, judged."""
    rule = rule or BaselineRule()
    # Entries of a history that a document holds.
    kept = (comparable(history, entry.key) or list(history))[-200:]
    return TargetCheck(
        target=target,
        verdict=judge_baseline(entry, kept, rule),
        entry=entry,
        recordable=entry,
        history=tuple(kept),
        baseline_rule=rule,
    )


def make_check(
    target: TargetCheck, *, base: Compared, change: Compared, **more: Any
) -> CheckReport:
    """The whole check; ``more`` are further fields of it."""
    return CheckReport(
        state=target.verdict.state,
        explanation=target.verdict.explanation,
        targets=(target,),
        base=base,
        change=change,
        **more,
    )


def exit_code(check: CheckReport, *, fail_inconclusive: bool = False) -> ExitCode:
    """What the program ends with."""
    if check.state == "no_baseline":
        return ExitCode.NO_BASELINE
    if check.state == "fail" and not (check.warn_only or check.override):
        return ExitCode.REGRESSION
    undecided = check.state == "inconclusive" and fail_inconclusive
    return ExitCode.INCONCLUSIVE if undecided else ExitCode.OK


def sights(plan: CheckPlan, quads: Sequence[Quad]) -> tuple[Sight, ...]:
    """What each look of the service time would have caught, had the change been slower.

    Returns:
        One entry per look that there are quads for.
    """
    rule = next(rule for rule in plan.rules if rule.name == "service")
    readings = readings_of(rule, quads)
    return tuple(
        Sight(look, fraction_of(fail_margin(rule, readings[:look])))
        for look in rule.looks
        if look <= len(readings)
    )


def _reach(rule: GateRule, quads: Sequence[Quad]) -> Reach:
    """How much worse a metric would have to be, at the last look that there are quads for."""
    metric = METRICS[rule.name]
    unit = "" if rule.scale == "ratio" else metric.unit
    readings = readings_of(rule, quads)
    looks = [look for look in rule.looks if look <= len(readings)]
    worse, reason = None, ""
    if not looks:
        reason = "too little was measured"
    elif rule.name == "wall" and is_contended([reading.quad for reading in readings]):
        reason = "run-queue delay is too high"
    else:
        margin = fail_margin(rule, readings[: looks[-1]])
        worse = fraction_of(margin) if rule.scale == "ratio" else margin
        if not math.isfinite(worse):
            worse, reason = None, "too little was measured"
        elif worse <= 0:
            worse, reason = None, "the same code fails it"
    return Reach(name=rule.name, label=metric.label, worse=worse, unit=unit, reason=reason)


def make_self_test(same: TargetCheck, slowed: TargetCheck, injected: float) -> SelfTest:
    """What the two checks say of the machine; versions are filled in by ``dataclasses.replace``.

    Raises:
        ValueError: A check holds no plan.
    """
    if same.plan is None:
        raise ValueError("a self-test needs checks of two sides")
    return SelfTest(
        trusted=same.verdict.state == "pass" and slowed.verdict.state == "fail",
        explanation=" ".join(_sentences(same, slowed, injected)),
        injected=injected,
        same=same,
        slowed=slowed,
        # What fails already at the same code says nothing of how small a slowdown is detected.
        sights=() if same.verdict.state == "fail" else sights(same.plan, same.quads),
        reach=tuple(_reach(rule, same.quads) for rule in same.plan.rules),
    )


def _sentences(same: TargetCheck, slowed: TargetCheck, injected: float) -> Iterator[str]:
    after = f"after {format_duration(same.measured_s)}"
    match same.verdict.state:
        case "pass":
            yield f"The same code passed against itself {after}."
        case "fail":
            yield "The same code failed against itself: don't trust a failure on this machine."
            yield same.verdict.explanation
        case _:
            yield f"The same code could not be distinguished from slower code {after}."
            yield same.verdict.explanation
    slower = f"Code made slower by {percent(injected, signed=False)}"
    after = f"after {format_duration(slowed.measured_s)}"
    match slowed.verdict.state:
        case "fail":
            yield f"{slower} failed {after}."
        case "pass":
            yield f"{slower} passed: a check does not detect that much on this machine."
        case _:
            yield f"{slower} could not be distinguished from equal code {after}."
            yield slowed.verdict.explanation
