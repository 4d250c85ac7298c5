"""A whole check as one record: raw blocks, rules and verdict, and the way back to the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dlprof.errors import ExitCode
from dlprof.gate.baseline import comparable, judge_baseline
from dlprof.gate.plan import check_plan
from dlprof.gate.verdict import judge
from dlprof.gate.views import cleaned
from dlprof.records.gate import (
    BaselineEntry,
    BaselineRule,
    CheckPlan,
    CheckReport,
    Compared,
    GateState,
    Quad,
    TargetCheck,
    Verdict,
)

_MOST_STORED = 200
"""Entries of a history that a document holds."""

_RANKS: Mapping[GateState, int] = MappingProxyType(
    {"pass": 0, "no_baseline": 1, "inconclusive": 2, "fail": 3}
)


def checked_target(target: str, plan: CheckPlan, quads: Sequence[Quad]) -> TargetCheck:
    """One target's check against another version of the code, judged.

    Args:
        target: TARGET as the user wrote it.
        plan: The rules.
        quads: All that was measured, in the order of measuring.
    """
    return TargetCheck(
        target=target,
        verdict=judge(plan, quads),
        plan=plan,
        quads=tuple(map(cleaned, quads)),
    )


def checked_baseline(
    target: str,
    entry: BaselineEntry,
    history: Sequence[BaselineEntry],
    rule: BaselineRule | None = None,
) -> TargetCheck:
    """One target's check against its stored history, judged.

    Args:
        target: TARGET as the user wrote it.
        entry: The present run.
        history: The stored entries, those of other keys among them.
        rule: How to judge.
    """
    rule = rule or BaselineRule()
    kept = (comparable(history, entry.key) or list(history))[-_MOST_STORED:]
    return TargetCheck(
        target=target,
        verdict=judge_baseline(entry, kept, rule),
        entry=entry,
        recordable=entry,
        history=tuple(kept),
        baseline_rule=rule,
    )


def recomputed(check: TargetCheck) -> Verdict:
    """The verdict that follows from a document's raw figures; equal to the one that it holds.

    Raises:
        ValueError: If the document holds neither blocks with their plan nor a run to compare, or
            a plan that ``make_plan`` could not have made.
    """
    if check.entry is not None:
        return judge_baseline(check.entry, check.history, check.baseline_rule)
    if check.plan is None:
        raise ValueError("the check holds nothing to compute a verdict from")
    check_plan(check.plan)
    return judge(check.plan, check.quads)


def make_check(
    targets: Sequence[TargetCheck], *, base: Compared, change: Compared, override: str = ""
) -> CheckReport:
    """The whole check; further fields are filled in by ``dataclasses.replace``.

    Args:
        targets: At least one; the worst verdict is that of the check.
        base: What was compared with.
        change: What was checked.
        override: Why a regression may pass, as the user gave it.

    Raises:
        ValueError: If there is no target.
    """
    if not targets:
        raise ValueError("a check of no target")
    worst = max(targets, key=lambda each: _RANKS[each.verdict.state])
    return CheckReport(
        state=worst.verdict.state,
        explanation=worst.verdict.explanation,
        targets=tuple(targets),
        base=base,
        change=change,
        override=override,
    )


def exit_code(check: CheckReport, *, fail_inconclusive: bool = False) -> ExitCode:
    """What the program ends with.

    Args:
        check: The check.
        fail_inconclusive: Whether ``--inconclusive fail`` was given.
    """
    if check.state == "no_baseline":
        return ExitCode.NO_BASELINE
    if check.state == "fail":
        excused = check.warn_only or bool(check.override)
        return ExitCode.OK if excused else ExitCode.REGRESSION
    if check.state == "inconclusive" and fail_inconclusive:
        return ExitCode.INCONCLUSIVE
    return ExitCode.OK
