"""One metric's verdict: PASS, FAIL, look again, or can't tell.

At each look, every view of the metric gives a one-sided lower and upper bound of its shift
(``signed_rank``). FAIL if the lower bound of any view is above the limit; PASS if the upper bounds
of all views are below it; otherwise look again, and after the last look INCONCLUSIVE. Looks are
taken only at the planned numbers of quads, in their order, whatever else was measured: so the same
blocks always give the same verdict, while they are measured and years later.

Quads during which the machine changed its speed are left out, by a bound that knows nothing of
which side is which: they say little and are far off. The two blocks of a side differ by the
machine alone, whichever side the coin (``design.order_of``) has given them to, so that what is
left is symmetric about the same shift. Where most would go, or too few to tell anything would be
left at the end, all of them count. Code that stalls now and then makes its own blocks differ, too:
what is left out can speak against PASS (``look``).
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from dlprof.gate.look import fraction_of, look_at
from dlprof.gate.signed_rank import MOST_DIFFERENCES, least_differences
from dlprof.gate.views import LEAST_BATCHES, Reading, cleaned, read_quad
from dlprof.gate.wording import METRICS, amount, percent, sentence
from dlprof.records.gate import CheckPlan, GateResult, GateRule, Quad, ReasonCode

_FORGIVEN_SHARE = 0.25
_FORGIVEN = 2
"""Quads without figures that are forgiven, as a share of all and in any case."""

_Faults = Mapping[ReasonCode, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateProgress:
    """Where a metric stands.

    Attributes:
        result: What it says.
        usable: Quads that tell something of it.
        needed: Further quads until its next look; 0 where no look could change the result.
        left_out: Quads that would tell, but for the machine that changed meanwhile.
    """

    result: GateResult
    usable: int
    needed: int
    left_out: int = 0


def judge_gate(
    plan: CheckPlan, rule: GateRule, quads: Sequence[Quad], *, ended: bool
) -> GateProgress:
    """What a metric says after the quads so far.

    Args:
        plan: The rules of the whole check.
        rule: The metric's.
        quads: All that was measured, in the order of measuring; never changed, only added to.
        ended: Whether no more will be measured. The next look is then taken early, with what
            there is, and spends the error that was laid aside for it.
    """
    walked = _walk(plan, rule, [quad for quad in quads if quad.series == rule.series])
    if ended and not _can_tell(rule, len(walked.usable)):
        _have_all_count(walked)
    progress = _progress(plan, rule, walked, ended=ended)
    return dataclasses.replace(progress, left_out=len(walked.left_out))


def _progress(plan: CheckPlan, rule: GateRule, walked: _Walk, *, ended: bool) -> GateProgress:
    result, usable = walked.result, len(walked.usable)
    if result is not None and not result.pending:
        return GateProgress(result=result, usable=usable, needed=0)
    if _are_decisive(walked.faults, usable, ended=ended):
        return _settled(_without_figures(rule, walked), usable)
    later = [look for look in rule.looks if look > usable]
    if ended and later and usable not in rule.looks and _can_tell(rule, usable):
        result = look_at(plan, rule, walked.usable, walked.left_out)
    if ended or not later:
        return _settled(result or _too_few(rule, walked.usable), usable)
    result = dataclasses.replace(result or _too_few(rule, walked.usable), pending=True)
    return GateProgress(result=result, usable=usable, needed=later[0] - usable)


@dataclasses.dataclass(slots=True)
class _Walk:
    """What has been met on the way through the quads, in their order.

    Attributes:
        usable: Readings that count.
        left_out: Those that don't.
        all_count: Whether most would have been left out, so that none is.
        faulty: Quads without one.
        faults: Why, and how often.
        result: Of the last look.
    """

    usable: list[Reading] = dataclasses.field(default_factory=list)
    left_out: list[Reading] = dataclasses.field(default_factory=list)
    all_count: bool = False
    faulty: list[Quad] = dataclasses.field(default_factory=list)
    faults: collections.Counter[ReasonCode] = dataclasses.field(default_factory=collections.Counter)
    result: GateResult | None = None


def _walk(plan: CheckPlan, rule: GateRule, quads: Sequence[Quad]) -> _Walk:
    """Go through the quads, look where a look is due, and stop at the first that decides."""
    walked, last = _Walk(), rule.looks[-1]
    for quad in quads[:MOST_DIFFERENCES]:
        reading = read_quad(quad, rule)
        if not isinstance(reading, Reading):
            walked.faulty.append(quad)
            walked.faults[reading] += 1
            continue
        _take_in(walked, rule, reading)
        usable = len(walked.usable)
        # Where all count at last, there may be more of them than the last look wants.
        is_due = usable in rule.looks or usable > last
        if is_due and not _too_many(walked.faults, usable):
            walked.result = look_at(plan, rule, walked.usable, walked.left_out)
            if not walked.result.pending or usable >= last:
                break
    return walked


def _take_in(walked: _Walk, rule: GateRule, reading: Reading) -> None:
    """Have a reading count, unless the machine changed during its quad."""
    most = rule.most_change
    if walked.all_count or most is None or reading.change_within <= most:
        walked.usable.append(reading)
        return
    walked.left_out.append(reading)
    count, out = len(walked.usable), len(walked.left_out)
    if count + out >= 2 * rule.looks[0] and count < out:
        _have_all_count(walked)


def _have_all_count(walked: _Walk) -> None:
    walked.usable, walked.left_out = [*walked.usable, *walked.left_out], []
    walked.all_count = True


def _settled(result: GateResult, usable: int) -> GateProgress:
    """A result that nothing more will change."""
    final = dataclasses.replace(result, pending=False)
    return GateProgress(result=final, usable=usable, needed=0)


def _are_decisive(faults: _Faults, usable: int, *, ended: bool) -> bool:
    """Whether what quads lack is all that can be told of a metric."""
    if not faults or _too_many(faults, usable):
        return bool(faults)
    return not usable and (ended or set(faults) == {"not_measured"})


def _too_many(faults: _Faults, usable: int) -> bool:
    """Whether so many quads gave no figures that the others may not be typical."""
    bad = sum(faults.values())
    return bad > max(_FORGIVEN, _FORGIVEN_SHARE * (bad + usable))


def _can_tell(rule: GateRule, usable: int) -> bool:
    return usable >= least_differences(rule.alpha)


def _too_few(rule: GateRule, readings: Sequence[Reading]) -> GateResult:
    """Before the first look; a metric that nothing was measured of holds nothing up."""
    if not readings:
        return _no_verdict(rule, "not_measured", "")
    quads = f"{len(readings)} of {rule.looks[0]} ABBA blocks"
    return _no_verdict(rule, "too_few_quads", f"{quads}; so far {_so_far(rule, readings)}")


def _so_far(rule: GateRule, readings: Sequence[Reading]) -> str:
    """What the rule's first view has shown, which is too little for an interval."""
    shift = statistics.median(each.shift(rule.views[0], rule.scale) for each in readings)
    if rule.scale == "ratio":
        return percent(fraction_of(shift))
    return amount(shift, METRICS[rule.name].unit)


def _without_figures(rule: GateRule, walked: _Walk) -> GateResult:
    """Why a metric can't be judged, by what most of its faulty quads lack."""
    ((reason, _),) = walked.faults.most_common(1)
    detail = {
        "too_few_batches": str(LEAST_BATCHES),
        "unusable_blocks": _first_failure(walked.faulty) or "both sides must be measured alike",
    }.get(reason, "")
    return _no_verdict(rule, reason, detail)


def _first_failure(quads: Sequence[Quad]) -> str:
    failures = (block.failure for quad in map(cleaned, quads) for block in quad.blocks)
    return next(filter(None, failures), "")


def _no_verdict(rule: GateRule, reason: ReasonCode, detail: str) -> GateResult:
    metric = METRICS[rule.name]
    return GateResult(
        name=rule.name,
        label=metric.label,
        state="inconclusive",
        reason=reason,
        explanation=sentence(rule.name, reason, (), detail),
        scale=rule.scale,
        unit=metric.unit,
        blocking=rule.name == "service" or reason != "not_measured",
    )
