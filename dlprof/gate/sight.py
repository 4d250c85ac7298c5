"""What a gate can see on this machine: for ``dlprof check --self-test``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dlprof.gate.look import fail_margin, fraction_of, is_contended
from dlprof.gate.views import Reading, read_quad
from dlprof.gate.wording import METRICS, percent
from dlprof.records.gate import CheckPlan, GateRule, Quad, TargetCheck
from dlprof.records.self_test import Reach, SelfTest, Sight
from dlprof.units import format_duration


def sights(plan: CheckPlan, quads: Sequence[Quad]) -> tuple[Sight, ...]:
    """What each look of the service time would have caught, had the change been slower.

    Args:
        plan: The rules.
        quads: Of both sides running the same code.

    Returns:
        One entry per look that there are quads for.
    """
    rule = next(rule for rule in plan.rules if rule.name == "service")
    readings = _readings(rule, quads)
    return tuple(
        Sight(look, fraction_of(fail_margin(rule, readings[:look])))
        for look in rule.looks
        if look <= len(readings)
    )


def reach_of(plan: CheckPlan, quads: Sequence[Quad]) -> tuple[Reach, ...]:
    """How much worse each metric would have to be, at the last look that there are quads for.

    Args:
        plan: The rules.
        quads: Of both sides running the same code.
    """
    return tuple(_reach(rule, quads) for rule in plan.rules)


def _readings(rule: GateRule, quads: Sequence[Quad]) -> list[Reading]:
    found = (read_quad(quad, rule) for quad in quads if quad.series == rule.series)
    return [reading for reading in found if isinstance(reading, Reading)]


def _reach(rule: GateRule, quads: Sequence[Quad]) -> Reach:
    metric = METRICS[rule.name]
    unit = "" if rule.scale == "ratio" else metric.unit
    readings = _readings(rule, quads)
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
    return Reach(name=rule.name, label=metric.label, worse=worse, unit=unit, reason=reason)


def make_self_test(same: TargetCheck, slowed: TargetCheck, injected: float) -> SelfTest:
    """What the two checks say of the machine; versions are filled in by ``dataclasses.replace``.

    Args:
        same: The same code on both sides.
        slowed: The same code, the change made slower.
        injected: By how much, as a fraction of the service time.

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
        sights=sights(same.plan, same.quads),
        reach=reach_of(same.plan, same.quads),
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
