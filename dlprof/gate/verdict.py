"""All metrics of one target taken together, and what is to be measured next.

And a whole check as one record: raw blocks, rules and verdict, and the way back to the verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dlprof.errors import ExitCode
from dlprof.gate.baseline import comparable, judge_baseline
from dlprof.gate.plan import SIDES
from dlprof.gate.rule import (
    UNCORRECTED_FACTOR,
    GateProgress,
    cores_apart,
    fail_margin,
    fraction_of,
    is_contended,
    judge_gate,
)
from dlprof.gate.signed_rank import MOST_DIFFERENCES, shift_interval
from dlprof.gate.views import cleaned, readings_of
from dlprof.gate.wording import METRICS, amount, percent, stage_line
from dlprof.records.gate import (
    BaselineEntry,
    BaselineRule,
    Block,
    CheckPlan,
    CheckReport,
    Compared,
    GateResult,
    GateRule,
    GateState,
    GateUnit,
    Quad,
    Reach,
    SelfTest,
    Series,
    Side,
    Sight,
    StageShift,
    TargetCheck,
    Verdict,
)
from dlprof.units import counted, format_duration

_SERIES: tuple[Series, ...] = ("load", "start")


class NextLook(NamedTuple):
    """What a check should do now."""

    needed: Mapping[Series, int]
    """Further quads by series until something can be decided; empty where all is."""
    verdict: Verdict  # what is known so far, pending gates counting as inconclusive
    processes: int
    """The pair of processes that is to load them: the second, 1, confirms failures of the first."""


def next_look(
    plan: CheckPlan, history: Sequence[Quad], *, ended: bool = False, hurried: bool = False
) -> NextLook:
    """Whether a check is decided, and if not, how many quads of which series it needs next.

    Where measuring has ended it needs none, and what is undecided stays so. ``hurried``: a failure
    is to go to the second pair of processes as soon as blocks show it, before the next look.
    """
    quads = list(map(cleaned, history))
    progress = [judge_gate(plan, rule, quads, ended=ended, hurried=hurried) for rule in plan.rules]
    verdict = _verdict(plan, quads, progress)
    counts: dict[Series, list[int]] = {series: [] for series in _SERIES}
    confirms = any(each.confirms for each in progress)
    for rule, each in zip(plan.rules, progress, strict=True):
        if each.confirms is not confirms:
            continue  # what a failure of another metric leaves open stays so
        waits = each.needed and (each.result.blocking or not each.usable)
        if waits and verdict.state != "fail":
            counts[rule.series].append(each.needed)
    needed = {series: min(some) for series, some in counts.items() if some}
    return NextLook(needed=needed, verdict=verdict, processes=int(confirms))


def judge(plan: CheckPlan, quads: Sequence[Quad]) -> Verdict:
    """The verdict that follows from the blocks when measuring has ended, now or in a document."""
    return next_look(plan, quads, ended=True).verdict


def _verdict(plan: CheckPlan, quads: Sequence[Quad], progress: Sequence[GateProgress]) -> Verdict:
    """All gates together; the quads are cleaned."""
    gates = [each.result for each in progress]
    state: GateState = "pass"
    if any(gate.state == "fail" for gate in gates):
        state = "fail"
    elif not gates or any(gate.state == "inconclusive" and gate.blocking for gate in gates):
        state = "inconclusive"
    sound = [quad for quad in quads if not any(block.failure for block in quad.blocks)]
    stages = stage_shifts(sound)
    why, unheld = _explanation(state, gates, stages), _unheld(quads)
    # Of the metric that has most: one that is decided counts no further.
    usable: dict[str, int] = dict.fromkeys(_SERIES, 0)
    for rule, each in zip(plan.rules, progress, strict=True):
        usable[rule.series] = max(usable[rule.series], each.usable)
    return Verdict(
        state=state,
        explanation=" ".join(filter(None, (why, unheld if state == "inconclusive" else ""))),
        gates=tuple(gates),
        stages=stages,
        quads=usable,
        error_bound=plan.error_bound,
        notes=(
            *filter(None, [unheld]),
            *_notes(plan, quads, max((each.left_out for each in progress), default=0)),
        ),
    )


def _explanation(
    state: GateState, gates: Sequence[GateResult], stages: Sequence[StageShift]
) -> str:
    """The sentence of the first gate that makes the verdict what it is, and the stage to blame."""
    for gate in gates:
        if gate.state == state and (gate.blocking or state != "inconclusive"):
            in_stages = gate.name in {"service", "receive", "wall"}
            blame = _blame(stages, gate.name) if state != "pass" and in_stages else ""
            return gate.explanation + blame
    return "Nothing was judged."


def _blame(stages: Sequence[StageShift], metric: str) -> str:
    """Which stage got slower the most, and which part of it; empty where none surely did.

    That receiving is slower in ``receive`` says nothing.
    """
    whole = (stage for stage in stages if stage.stage != "startup" and PART not in stage.stage)
    worst = next(whole, None)
    if worst is None or (worst.low_s or 0.0) <= 0:
        return ""
    shift = f"{amount(worst.shift_s, 's')} a sample, from {stage_line(worst)}"
    text = f" Most of it is in {worst.stage}: {shift}"
    parts = (stage for stage in stages if stage.stage.startswith(f"{worst.stage}{PART}"))
    part = next(parts, None)
    if part is None or (part.low_s or 0.0) <= 0:
        return "" if worst.stage == metric else f"{text}."
    return f"{text}, {amount(part.shift_s, 's')} of which in {part.stage.partition(PART)[2]}."


def _notes(plan: CheckPlan, quads: Sequence[Quad], left_out: int) -> tuple[str, ...]:
    notes = []
    if left_out:
        notes.append(
            f"Left out: {counted(left_out, 'ABBA block')}, during which the cores changed their "
            "speed."
        )
    if any(not block.corrected for quad in quads for block in quad.blocks):
        notes.append(
            "Run-queue delay can't be read here, so times are wall times: service time and "
            f"receiving fail only beyond {UNCORRECTED_FACTOR:g} times their limits, and wall "
            "time fails nothing."
        )
    # A few failures are forgiven; but who looks for what got slower wants to know of them.
    for side in SIDES.values():
        blocks = (block for quad in quads for block in quad.blocks if block.side == side)
        if failures := [block.failure for block in blocks if block.failure]:
            notes.append(
                f"{counted(len(failures), 'block')} of the {side} failed, so the blocks paired "
                f"with them do not count: {failures[-1]}"
            )
    if plan.epochs > 1:
        notes.append(
            "The dataset keeps samples in each process's memory, so each block loads the same ones "
            f"in {plan.epochs} epochs, by processes that hold none at first."
        )
    elif plan.keeping:
        notes.append(
            f"Only the {', '.join(plan.keeping)} keeps samples in memory, and blocks load the same "
            "ones again and again: what loading them the first time takes is not compared. Check "
            "with the cache off as well."
        )
    judged = len(plan.rules)
    if judged > 1:
        notes.append(
            f"{judged} metrics were judged; code that lies exactly at all their limits would "
            f"raise a false alarm in at most {percent(plan.error_bound, signed=False)} of checks."
        )
    return tuple(notes)


def _unheld(quads: Sequence[Quad]) -> str:
    """Why the sides shared no cores, which costs time; empty where they did, or were not to."""
    # Where one side can't be held, the check lets both go, and asks no more: few give the reason.
    blocks = [block for quad in quads for block in quad.blocks if block.service_s]
    free = [block for block in blocks if not block.pinned]
    why = next((f"{block.side}: {block.unpinned}" for block in free if block.unpinned), "")
    if not why or 2 * len(free) <= len(blocks):
        return ""
    text = f"The sides were not held to the same cores, whose speeds may differ ({why}"
    apart = cores_apart(quads)
    return f"{text}; {apart})." if apart else f"{text})."


PART = ": "
"""Stands between a stage and a part of it, such as one of the transforms that fetching runs."""

_Value = Callable[[Block], float | None]


def stage_shifts(quads: Sequence[Quad]) -> tuple[StageShift, ...]:
    """Each stage's shift over quads whose blocks all show it, the largest first."""
    load = [quad for quad in quads if quad.series == "load"]
    start = [quad for quad in quads if quad.series == "start"]
    parts = {name for quad in load for block in quad.blocks for name in block.stages_s}
    names = ("fetch", "collate", "receive", *sorted(name for name in parts if PART in name))
    found = [_shift(name, load, _per_sample(name)) for name in names]
    found.append(_shift("startup", start, lambda block: block.startup_s))
    shifts = [shift for shift in found if shift is not None]
    # Seconds of loading or of starting can't be ranked by each other: starts come last.
    return tuple(sorted(shifts, key=lambda shift: (shift.stage == "startup", -shift.shift_s)))


def _per_sample(stage: str) -> _Value:
    def value(block: Block) -> float | None:
        seconds, samples = block.stages_s.get(stage), sum(block.samples)
        return seconds / samples if seconds is not None and samples else None

    return value


def _shift(name: str, quads: Sequence[Quad], value: _Value) -> StageShift | None:
    rows = [row for quad in quads if (row := _sides(quad, value)) is not None]
    if not rows:
        return None
    rows = rows[-MOST_DIFFERENCES:]  # of two pairs of processes, the second's first of all
    # The intervals of stages are 95 % each.
    shift = shift_interval([change - base for base, change in rows], 0.025)
    return StageShift(
        stage=name,
        base_s=statistics.median(base for base, _ in rows),
        change_s=statistics.median(change for _, change in rows),
        shift_s=shift.estimate,
        low_s=shift.low if math.isfinite(shift.low) else None,
        high_s=shift.high if math.isfinite(shift.high) else None,
    )


def _sides(quad: Quad, value: _Value) -> tuple[float, float] | None:
    """The means of both sides of a quad; ``None`` where a block has no such figure."""
    figures: dict[Side, list[float]] = {"base": [], "change": []}
    for block in quad.blocks:
        figure = value(block)
        if figure is None:
            return None
        figures[block.side].append(figure)
    if not all(figures.values()):
        return None
    base, change = (sum(some) / len(some) for some in figures.values())
    return (base, change) if math.isfinite(base) and math.isfinite(change) else None


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
    """What each look of the service time would have caught, as far as there are quads for it."""
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
    unit: Literal["", GateUnit] = "" if rule.scale == "ratio" else metric.unit
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
    """What the two checks say of the machine; versions are filled in by ``dataclasses.replace``."""
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
