"""One metric's verdict: PASS, FAIL, look again, or not known.

At each look, every view of the metric gives a one-sided lower and upper bound of its shift
(``signed_rank``). FAIL if the lower bound of any view is above the limit; PASS if the upper bounds
of all views are below it; otherwise look again, and after the last look INCONCLUSIVE. Looks are
taken only at the planned numbers of quads, in their order, whatever else was measured: so the same
blocks always give the same verdict, while they are measured and years later.

Quads during which the machine changed its speed are left out, by a bound that knows nothing of
which side is which: they say little and are far off. The two blocks of a side differ by the
machine alone, whichever side the coin (``plan.order_of``) has given them to, so that what is
left is symmetric about the same shift. Where most would go, or too few to show anything would be
left at the end, all of them count. Code that stalls now and then makes its own blocks differ, too:
what is left out can speak against PASS (``_stalls``). FAIL needs none of that: the bound of false
alarms stays.

Where time is up before the quads could say, and a change is so much slower that no luck of a
process explains it, its blocks may (``_blocks_show``), and less confirms it (``_confirmed``).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dlprof.gate.plan import SIDES
from dlprof.gate.signed_rank import MOST_DIFFERENCES, Shift, least_differences, shift_interval
from dlprof.gate.views import (
    LEAST_BATCHES,
    QuadReading,
    base_service_s,
    cleaned,
    read_quad,
    readings_of,
)
from dlprof.gate.wording import METRICS, amount, figure_text, figures_text, gate_result, percent
from dlprof.records.gate import CheckPlan, GateResult, GateRule, Quad, ReasonCode, Side, ViewFigures


class GateProgress(NamedTuple):
    """Where a metric stands."""

    result: GateResult
    usable: int  # quads that show something of it
    needed: int  # further quads until its next look; 0 where no look could change the result
    left_out: int  # quads that would count, but for the machine that changed during them
    confirms: bool = False
    """Whether it failed in the first pair of processes, and the rest is of the second."""


def judge_gate(
    plan: CheckPlan, rule: GateRule, quads: Sequence[Quad], *, ended: bool, hurried: bool = False
) -> GateProgress:
    """What a metric says after the quads so far.

    Args:
        plan: The rules of the whole check.
        rule: The metric's.
        quads: All that was measured, in the order of measuring; never changed, only added to.
        ended: Whether no more will be measured. The next look is then taken early, with what
            there is, and spends the error that was laid aside for it.
        hurried: Whether the first pair of processes is to load no longer than it takes to show a
            failure, as time would not do for the next look and for a second pair.
    """
    own = [quad for quad in quads if quad.series == rule.series]
    if not rule.confirmed:
        return _progress(plan, rule, own, ended=ended)
    one, second = ([quad for quad in own if bool(quad.processes) is pair] for pair in (False, True))
    first = _progress(plan, rule, one, ended=ended)
    if first.result.state != "fail" and (hurried or second) and len(one) < rule.looks[:3][-1]:
        # In a hurry once a quad, from 5 to 24. These 20 times err in 4 % at most (two views), of
        # which the second pair confirms one in ten (``_WEAK``, two views): 0.4 % of all checks.
        sooner = _progress(plan, rule, one, ended=True, again=True)
        first = sooner if sooner.result.state == "fail" else first
    if first.result.state != "fail":
        return first
    again = _progress(plan, rule, second, ended=ended)
    if again.result.state != "fail" and ended and _confirmed(plan, rule, own, second):
        again = first
    if again.result.state != "fail":
        seen = again.result.views[0].text if again.result.views else "too little"
        result = gate_result(
            *(rule.name, "inconclusive", "unconfirmed", first.result.views, seen),
            scale=rule.scale,
            pending=again.needed > 0,
        )
        again = again._replace(result=result)
    return again._replace(confirms=True)


_LUCK = math.log(2.5)
"""No process was seen to be as much slower for as long as it lives by where its memory happens to
lie: once it was by 113 %. What lies beyond needs no second pair to show again."""

_WEAK = 0.05
"""What a second pair that time cuts short may err with: the first has failed by the rule itself, so
that this bounds no false alarm of noise, only how often it confirms luck of a process."""


def least_to_confirm() -> int:
    """How few ABBA blocks a second pair of processes confirms a failure by."""
    return least_differences(_WEAK)


def _confirmed(
    plan: CheckPlan, rule: GateRule, quads: Sequence[Quad], second: Sequence[Quad]
) -> bool:
    """Whether what the first pair of processes showed stands, though time was up for the second."""
    least = least_to_confirm()
    if len(readings_of(rule, second)) < least:
        first = [quad for quad in quads if not quad.processes]
        return _can_show(rule, first) and _is_beyond_luck(rule, readings_of(rule, first))
    weak = dataclasses.replace(rule, alpha=_WEAK, looks=rule.looks[-1:])
    return _progress(plan, weak, second, ended=True).result.state == "fail"


def _can_show(rule: GateRule, quads: Sequence[Quad]) -> bool:
    """Whether blocks alone can show a metric.

    Both sides load the same data from block to block, so that none finds more of it in the page
    cache. After a block that failed, a loader that goes on in its data is behind the other for as
    long as its process lives, and reads what that has read before: then more shows only in others.
    """
    return rule.scale == "ratio" and not any(block.failure for q in quads for block in q.blocks)


def _is_beyond_luck(rule: GateRule, readings: Sequence[QuadReading]) -> bool:
    """Whether the change is slower than the same code in an unlucky process would be."""
    shifts = ([each.shift(view, rule.scale) for each in readings] for view in rule.views)
    return any(shift_interval(each, _WEAK).estimate > _LUCK for each in shifts if each)


def _blocks_show(rule: GateRule, readings: Sequence[QuadReading]) -> bool:
    """Whether both blocks of the change lie beyond both of the base in too many quads for chance.

    Of four blocks that differ by the machine alone these two are the slowest in one of six quads,
    whichever side the coin has given them to. Cores that stay slow for a while change little of
    that: in one of 5.4 at most (``benchmarks/gate_world.py``). One of four is allowed for, so that
    five quads show it where all are so, and eight of ten where some were disturbed.
    """
    count, chance = len(readings), 0.25
    for view in rule.views if readings else ():
        limit = _view(rule, view, readings).fails_above
        beyond = sum(
            math.log(min(each.values[view, "change"])) - math.log(max(each.values[view, "base"]))
            > limit
            for each in readings
        )
        tail = math.fsum(
            math.comb(count, k) * chance**k * (1 - chance) ** (count - k)
            for k in range(beyond, count + 1)
        )
        if tail <= rule.alpha:
            return True
    return False


def _progress(
    plan: CheckPlan, rule: GateRule, quads: Sequence[Quad], *, ended: bool, again: bool = False
) -> GateProgress:
    """Where a metric stands by quads of one pair of processes, or of any.

    ``again``: a failure has to show again in a second pair, so that luck of this one does no harm.
    """
    walked, least = _walk(plan, rule, quads), least_differences(rule.alpha)
    if ended and len(walked.usable) < least:
        walked.have_all_count()
    result, usable, needed = walked.result, len(walked.usable), 0
    later = [look for look in rule.looks if look > usable]
    if result is None or result.pending:
        nothing = not usable and (ended or set(walked.faults) == {"not_measured"})
        faulty = bool(walked.faulty) and (nothing or walked.has_too_many_faults)
        if not faulty:
            between = result is None or (later and usable not in rule.looks)
            if ended and usable >= least and between:
                result = look_at(plan, rule, walked.usable, walked.left_out)
            # By the error that two looks that are left have, one of which was taken just now.
            undecided = result is None or result.reason == "undecided"
            may_show = ended and undecided and len(later) > 1 and _can_show(rule, quads)
            sure = may_show and (again or _is_beyond_luck(rule, walked.usable))
            if sure and _blocks_show(rule, walked.usable):
                result = look_at(plan, rule, walked.usable, walked.left_out, beyond=True)
            needed = 0 if ended or not later else later[0] - usable
        if faulty or result is None:
            result = _no_verdict(rule, walked, faulty=faulty)
        result = dataclasses.replace(result, pending=needed > 0)
    return GateProgress(result=result, usable=usable, needed=needed, left_out=len(walked.left_out))


@dataclasses.dataclass(slots=True)
class _Walk:
    """What has been met on the way through the quads, in their order."""

    usable: list[QuadReading] = dataclasses.field(default_factory=list)  # readings that count
    left_out: list[QuadReading] = dataclasses.field(default_factory=list)  # those that don't
    all_count: bool = False  # whether most would have been left out, so that none is
    faulty: list[Quad] = dataclasses.field(default_factory=list)  # quads without one
    # Why, and how often.
    faults: collections.Counter[ReasonCode] = dataclasses.field(default_factory=collections.Counter)
    result: GateResult | None = None  # of the last look

    @property
    def has_too_many_faults(self) -> bool:
        """Whether so many quads gave no figures that the others may not be typical."""
        bad = len(self.faulty)
        # Two quads without figures are forgiven in any case, and a quarter of all.
        return bad > max(2, 0.25 * (bad + len(self.usable)))

    def take_in(self, rule: GateRule, reading: QuadReading) -> None:
        """Have a reading count, unless the machine changed during its quad."""
        most, changes = rule.most_change, map(reading.change_within, SIDES.values())
        if self.all_count or most is None or max(changes) <= most:
            self.usable.append(reading)
            return
        self.left_out.append(reading)
        count, out = len(self.usable), len(self.left_out)
        if count + out >= 2 * rule.looks[0] and count < out:
            self.have_all_count()

    def have_all_count(self) -> None:
        self.usable, self.left_out = [*self.usable, *self.left_out], []
        self.all_count = True


def _walk(plan: CheckPlan, rule: GateRule, quads: Sequence[Quad]) -> _Walk:
    """Go through the quads, look where a look is due, and stop at the first that decides."""
    walked, last = _Walk(), rule.looks[-1]
    for quad in quads[:MOST_DIFFERENCES]:
        reading = read_quad(quad, rule)
        if not isinstance(reading, QuadReading):
            walked.faulty.append(quad)
            walked.faults[reading] += 1
            continue
        walked.take_in(rule, reading)
        usable = len(walked.usable)
        # Where all count at last, there may be more of them than the last look wants.
        is_due = usable in rule.looks or usable > last
        if is_due and not walked.has_too_many_faults:
            walked.result = look_at(plan, rule, walked.usable, walked.left_out)
            if not walked.result.pending or usable >= last:
                break
    return walked


def _shift_text(rule: GateRule, shift: float) -> str:
    if rule.scale == "ratio":
        return percent(fraction_of(shift))
    return amount(shift, METRICS[rule.name].unit)


def _no_verdict(rule: GateRule, walked: _Walk, *, faulty: bool) -> GateResult:
    """Before the first look, or where a metric can't be judged: by what most faulty quads lack."""
    reason, detail = walked.faults.most_common(1)[0][0] if faulty else "too_few_quads", ""
    if faulty:
        blocks = (block for quad in map(cleaned, walked.faulty) for block in quad.blocks)
        failure = next((block.failure for block in blocks if block.failure), "")
        alike = "both sides must be measured alike, by stages or by the wait in next()"
        details = {"too_few_batches": str(LEAST_BATCHES), "unusable_blocks": failure or alike}
        detail = details.get(reason, "")
    elif walked.usable:
        # What the first view has shown is too little for an interval.
        shift = statistics.median(each.shift(rule.views[0], rule.scale) for each in walked.usable)
        quads = f"{len(walked.usable)} of {rule.looks[0]} ABBA blocks"
        detail = f"{quads}; so far {_shift_text(rule, shift)}"
    else:
        reason = "not_measured"
    # A metric that nothing was measured of holds nothing up.
    blocking = rule.name == "service" or reason != "not_measured"
    return gate_result(
        rule.name, "inconclusive", reason, (), detail, scale=rule.scale, blocking=blocking
    )


UNCORRECTED_FACTOR = 2.0
"""Where waiting for a core can't be read, a metric fails only beyond this multiple of its limit."""


class _MetricView(NamedTuple):
    """A view of the metric, on the scale on which sides are compared."""

    name: str
    bounds: Shift
    passes_below: float  # what the upper bound is held against
    fails_above: float  # what the lower bound is held against
    figures: ViewFigures  # the same for people


def look_at(
    plan: CheckPlan,
    rule: GateRule,
    readings: Sequence[QuadReading],
    left_out: Sequence[QuadReading] = (),
    *,
    beyond: bool = False,
) -> GateResult:
    """What a metric says at a look; ``pending`` says whether more quads could change it.

    ``beyond``: the blocks themselves show that the change is beyond its limit.
    """
    views = [_view(rule, name, readings) for name in rule.views]
    # The rule itself: any view surely beyond its limit, or all surely within, or neither.
    slower = beyond or any(view.bounds.low > view.fails_above for view in views)
    within = not slower and all(view.bounds.high < view.passes_below for view in views)
    doubt = _stalls(rule, views, readings, left_out) if within else ""
    # First the view that has most to do with what was found.
    views.sort(
        key=lambda view: (
            view.bounds.low - view.fails_above if slower else view.bounds.high - view.passes_below
        ),
        reverse=True,
    )
    made = functools.partial(
        gate_result, rule.name, views=[view.figures for view in views], scale=rule.scale
    )
    if within and not doubt:
        return made("pass", "not_slower", blocking=False, pending=False)
    # Wall time says as much of the neighbors and of the settings as of the code. It may fail a
    # check only on a machine that isn't crowded and where both loaders are set alike; beside
    # neighbors it doesn't hold up a check that it has nothing against. And no time fails a check
    # whose sides never shared a core: one core may be the slower one.
    quads, unsure = [each.quad for each in readings], functools.partial(made, "inconclusive")
    if rule.name == "wall" and plan.loader_difference:
        detail = plan.loader_difference
        return unsure("settings_differ", detail=detail, blocking=True, pending=not slower)
    if rule.name == "wall" and is_contended(quads):
        waited = run_queue_wait(quads)
        said = "can't be read here"
        if waited is not None:
            said = f"was {percent(waited, signed=False)} of the time"
        detail = f"run-queue delay {said}"
        return unsure("contended", detail=detail, blocking=slower, pending=True)
    if slower and METRICS[rule.name].unit == "s" and (apart := cores_apart(quads)):
        return unsure("cores_differ", detail=apart, blocking=True, pending=True)
    if slower:
        return made("fail", "slower", blocking=True, pending=False)
    order = " (base, change, change, base)" if rule.series == "load" else ""
    detail = f"after {len(readings)} ABBA blocks{order}{doubt}"
    return unsure("undecided", detail=detail, blocking=rule.holds_up, pending=True)


def _stalls(
    rule: GateRule,
    views: Sequence[_MetricView],
    readings: Sequence[QuadReading],
    left_out: Sequence[QuadReading],
) -> str:
    """What keeps a metric from passing where the change seems to stall; empty where it doesn't."""
    uneven = sum(each.change_within("change") > each.change_within("base") for each in left_out)
    if 2 * uneven <= len(left_out):
        return ""
    for view in views:
        shifts = [each.shift(view.name, rule.scale) for each in (*readings, *left_out)]
        mean, error = statistics.fmean(shifts), statistics.stdev(shifts) / math.sqrt(len(shifts))
        if mean + error >= view.passes_below:
            return (
                f": in {uneven} of the {len(left_out)} that are left out, the change's own blocks "
                f"differ; with these it is {_shift_text(rule, mean)}"
            )
    return ""


def cores_apart(quads: Sequence[Quad]) -> str:
    """Which cores each side ran on more than the other, where that could make a difference.

    If cores differ in speed by some random amount of variance 1 each, the sides differ for no other
    reason by an amount of variance d, the sum of squared differences of the shares of blocks on
    each core. It is 2 where each side keeps to a core of its own, 0 where they share all alike.

    Returns:
        Such as ``the base ran on core 0 and the change on core 1``; empty where d is small, or the
        cores are unknown.
    """
    share: dict[Side, dict[int, float]] = {}
    for side in SIDES.values():
        blocks = (block for quad in quads for block in quad.blocks if block.side == side)
        ran = collections.Counter(core for block in blocks for core in block.cores)
        share[side] = {core: count / ran.total() for core, count in ran.items()}
    base, change = share["base"], share["change"]
    more = {core: base.get(core, 0.0) - change.get(core, 0.0) for core in sorted({*base, *change})}
    # As of two cores where each side spends three quarters of its blocks on one of its own.
    if not base or not change or sum(each**2 for each in more.values()) <= 0.5:
        return ""
    ours, theirs = (
        ", ".join(str(core) for core, by in more.items() if sign * by > 0) for sign in (1, -1)
    )
    return f"the base ran on core {ours} and the change on core {theirs}"


def is_contended(quads: Sequence[Quad]) -> bool:
    """Whether processes waited for cores too much, or nobody knows how much."""
    waited = run_queue_wait(quads)
    # Share of waiting for a core up to which wall time may fail a check.
    return waited is None or waited > 0.10


def run_queue_wait(quads: Sequence[Quad]) -> float | None:
    """The median share of waiting for a core, over all blocks that have it."""
    shares = [
        block.run_queue_wait_fraction
        for quad in quads
        for block in quad.blocks
        if block.run_queue_wait_fraction is not None
    ]
    return statistics.median(shares) if shares else None


def _view(rule: GateRule, name: str, readings: Sequence[QuadReading]) -> _MetricView:
    shifts = [each.shift(name, rule.scale) for each in readings]
    bounds = shift_interval(shifts, rule.alpha, rule.alpha_pass)
    limit = _limit(rule, name, readings)
    corrected = all(block.corrected for each in readings for block in each.quad.blocks)
    # Run-queue delay is taken off from service time and receiving alone.
    uncorrected = rule.name in {"service", "receive"} and not corrected
    widened = limit * (UNCORRECTED_FACTOR if uncorrected else 1.0)
    to_scale = math.log1p if rule.scale == "ratio" else float
    passes = bounds.high < to_scale(limit)
    return _MetricView(
        name=name,
        bounds=bounds,
        passes_below=to_scale(limit),
        fails_above=to_scale(widened),
        figures=_figures(rule, name, readings, bounds, limit if passes else widened),
    )


def fail_margin(rule: GateRule, readings: Sequence[QuadReading]) -> float:
    """How much the change would have to be worse still, for the metric to fail at this look.

    Returns:
        A difference on the scale of the rule; infinite where there are too few quads.
    """
    views = (_view(rule, name, readings) for name in rule.views)
    return min(view.fails_above - view.bounds.low for view in views)


def _limit(rule: GateRule, view: str, readings: Sequence[QuadReading]) -> float:
    """What the change may be worse by: a fraction on the scale ``ratio``, else in the unit."""
    if rule.scale == "ratio":
        return rule.threshold
    limit = max(rule.threshold * _median(readings, view, "base"), rule.floor)
    if rule.service_floor:
        service = [value for each in readings for value in base_service_s(each.quad)]
        limit = max(limit, rule.service_floor * statistics.median(service))
    return limit


def _median(readings: Sequence[QuadReading], view: str, side: Side) -> float:
    return statistics.median(value for each in readings for value in each.values[view, side])


def _figures(
    rule: GateRule, view: str, readings: Sequence[QuadReading], bounds: Shift, limit: float
) -> ViewFigures:
    """A view's figures in their unit; a fraction for a logarithm of a ratio."""
    base = _median(readings, view, "base")
    unit = METRICS[rule.name].unit
    low, high, shift = bounds.low, bounds.high, bounds.estimate
    if rule.scale == "ratio":
        low, high, shift = (fraction_of(each) for each in (low, high, shift))
    return ViewFigures(
        view=view,
        quads=len(readings),
        base=base,
        change=_median(readings, view, "change"),
        shift=shift,
        low=low if math.isfinite(bounds.low) else None,
        high=high if math.isfinite(bounds.high) else None,
        limit=limit,
        text=figures_text(
            shift, low, high, unit=None if rule.scale == "ratio" else unit, base=base
        ),
        limit_text=(
            percent(limit, signed=False) if rule.scale == "ratio" else figure_text(limit, unit)
        ),
    )


def fraction_of(log_ratio: float) -> float:
    """How much more a logarithm of a ratio means, as a fraction; finite for any finite one."""
    return math.expm1(min(log_ratio, 700.0)) if log_ratio < math.inf else math.inf
