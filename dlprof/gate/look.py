"""One look at one metric: bounds of its shift, and what they decide.

Quads that are left out (``rule``) decide nothing by themselves, but may keep a metric from passing.
Where the change stalls now and then, its own blocks differ more often than those of the base, and
what is left knows nothing of the stalls. The mean shift over all quads, and its standard error,
then have to be within the limit as well. FAIL needs none of that: the bound of false alarms stays.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from dlprof.gate.signed_rank import Shift, shift_interval
from dlprof.gate.views import Reading, base_service_s
from dlprof.gate.wording import METRICS, amount, figure_text, figures_text, percent, sentence
from dlprof.records.gate import (
    CheckPlan,
    GateResult,
    GateRule,
    GateState,
    Quad,
    ReasonCode,
    Side,
    ViewFigures,
)

QUIET_RUN_QUEUE_WAIT = 0.10
"""Share of waiting for a core up to which wall time may fail a check."""

UNCORRECTED_FACTOR = 2.0
"""Where waiting for a core can't be read, a metric fails only beyond this multiple of its limit."""

_CORRECTED = frozenset({"service", "receive"})
"""Metrics that waiting for a core is taken off from."""

_Finding = Literal["slower", "not_slower", "undecided"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A view of the metric, on the scale on which sides are compared.

    Attributes:
        name: Of the view.
        bounds: Of its shift.
        passes_below: What the upper bound is held against.
        fails_above: What the lower bound is held against.
        figures: The same for people.
    """

    name: str
    bounds: Shift
    passes_below: float
    fails_above: float
    figures: ViewFigures


def look_at(
    plan: CheckPlan, rule: GateRule, readings: Sequence[Reading], left_out: Sequence[Reading] = ()
) -> GateResult:
    """What a metric says at a look; ``pending`` tells whether more quads could change it.

    Args:
        plan: The rules of the whole check.
        rule: The metric's.
        readings: Of the usable quads so far, at least one.
        left_out: Of those during which the machine seems to have changed.
    """
    views = [_view(rule, name, readings) for name in rule.views]
    finding, doubt = _finding(views), ""
    if finding == "not_slower":
        doubt = _stalls(rule, views, readings, left_out)
        finding = "undecided" if doubt else finding
    state, reason, blocking, pending = _consequence(plan, rule, readings, finding)
    views.sort(key=lambda view: _distance(view, finding), reverse=True)
    figures = tuple(view.figures for view in views)
    detail = {
        "contended": _crowd(readings),
        "settings_differ": plan.loader_difference,
        "undecided": f"after {len(readings)} ABBA blocks{doubt}",
    }.get(reason, "")
    return GateResult(
        name=rule.name,
        label=METRICS[rule.name].label,
        state=state,
        reason=reason,
        explanation=sentence(rule.name, reason, figures, detail),
        scale=rule.scale,
        unit=METRICS[rule.name].unit,
        views=figures,
        blocking=blocking,
        pending=pending,
    )


def _finding(views: Sequence[_View]) -> _Finding:
    """The rule itself: any view surely beyond its limit, or all surely within, or neither."""
    if any(view.bounds.low > view.fails_above for view in views):
        return "slower"
    if all(view.bounds.high < view.passes_below for view in views):
        return "not_slower"
    return "undecided"


def _stalls(
    rule: GateRule, views: Sequence[_View], readings: Sequence[Reading], left_out: Sequence[Reading]
) -> str:
    """What keeps a metric from passing where the change seems to stall; empty where it doesn't."""
    uneven = sum(each.uneven == "change" for each in left_out)
    if 2 * uneven <= len(left_out):
        return ""
    for view in views:
        shifts = [each.shift(view.name, rule.scale) for each in (*readings, *left_out)]
        mean, error = statistics.fmean(shifts), statistics.stdev(shifts) / math.sqrt(len(shifts))
        if mean + error >= view.passes_below:
            ratio, unit = rule.scale == "ratio", METRICS[rule.name].unit
            whole = percent(fraction_of(mean)) if ratio else amount(mean, unit)
            return (
                f": in {uneven} of the {len(left_out)} that are left out, the change's own blocks "
                f"differ; with these it is {whole}"
            )
    return ""


def _distance(view: _View, finding: _Finding) -> float:
    """How much a view has to do with what was found."""
    if finding == "slower":
        return view.bounds.low - view.fails_above
    return view.bounds.high - view.passes_below


def _consequence(
    plan: CheckPlan, rule: GateRule, readings: Sequence[Reading], finding: _Finding
) -> tuple[GateState, ReasonCode, bool, bool]:
    """State, reason, whether it keeps the check from passing, whether it may still change.

    Wall time says as much of the neighbours and of the settings as of the code. It may fail a
    check only on a machine that isn't crowded and where both loaders are set alike; beside
    neighbours it doesn't hold up a check that it has nothing against.
    """
    if finding == "not_slower":
        return "pass", "not_slower", False, False
    if rule.name == "wall" and plan.loader_difference:
        return "inconclusive", "settings_differ", True, finding == "undecided"
    if rule.name == "wall" and is_contended([reading.quad for reading in readings]):
        return "inconclusive", "contended", finding == "slower", True
    if finding == "slower":
        return "fail", "slower", True, False
    return "inconclusive", "undecided", rule.holds_up, True


def is_contended(quads: Sequence[Quad]) -> bool:
    """Whether processes waited for cores too much, or nobody knows how much."""
    waited = run_queue_wait(quads)
    return waited is None or waited > QUIET_RUN_QUEUE_WAIT


def run_queue_wait(quads: Sequence[Quad]) -> float | None:
    """The median share of waiting for a core, over all blocks that tell."""
    shares = [
        block.run_queue_wait_fraction
        for quad in quads
        for block in quad.blocks
        if block.run_queue_wait_fraction is not None
    ]
    return statistics.median(shares) if shares else None


def _crowd(readings: Sequence[Reading]) -> str:
    waited = run_queue_wait([reading.quad for reading in readings])
    if waited is None:
        return "run-queue delay can't be read here"
    return f"run-queue delay was {percent(waited, signed=False)} of the time"


def _view(rule: GateRule, name: str, readings: Sequence[Reading]) -> _View:
    shifts = [each.shift(name, rule.scale) for each in readings]
    bounds = shift_interval(shifts, rule.alpha, rule.alpha_pass)
    limit = _limit(rule, name, readings)
    widened = limit * _factor(rule, readings)
    to_scale = math.log1p if rule.scale == "ratio" else float
    passes = bounds.high < to_scale(limit)
    return _View(
        name=name,
        bounds=bounds,
        passes_below=to_scale(limit),
        fails_above=to_scale(widened),
        figures=_figures(rule, name, readings, bounds, limit if passes else widened),
    )


def fail_margin(rule: GateRule, readings: Sequence[Reading]) -> float:
    """How much the change would have to be worse still, for the metric to fail at this look.

    Args:
        rule: The metric's.
        readings: Of the usable quads so far, at least one.

    Returns:
        A difference on the scale of the rule; infinite where there are too few quads.
    """
    views = (_view(rule, name, readings) for name in rule.views)
    return min(view.fails_above - view.bounds.low for view in views)


def _factor(rule: GateRule, readings: Sequence[Reading]) -> float:
    corrected = all(block.corrected for each in readings for block in each.quad.blocks)
    return UNCORRECTED_FACTOR if rule.name in _CORRECTED and not corrected else 1.0


def _limit(rule: GateRule, view: str, readings: Sequence[Reading]) -> float:
    """What the change may be worse by: a fraction on the scale ``ratio``, else in the unit."""
    if rule.scale == "ratio":
        return rule.threshold
    limit = max(rule.threshold * _median(readings, view, "base"), rule.floor)
    if rule.service_floor:
        service = [value for each in readings for value in base_service_s(each.quad)]
        limit = max(limit, rule.service_floor * statistics.median(service))
    return limit


def _median(readings: Sequence[Reading], view: str, side: Side) -> float:
    """The median over all blocks of a side."""
    return statistics.median(value for each in readings for value in each.values[view, side])


def _figures(
    rule: GateRule, view: str, readings: Sequence[Reading], bounds: Shift, limit: float
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
        low=low if bounds.k >= 0 else None,
        high=high if bounds.k_high >= 0 else None,
        limit=limit,
        text=figures_text(
            shift, low, high, unit=None if rule.scale == "ratio" else unit, base=base
        ),
        limit_text=(
            percent(limit, signed=False) if rule.scale == "ratio" else figure_text(limit, unit)
        ),
    )


_LARGEST_LOG = 700.0


def fraction_of(log_ratio: float) -> float:
    """How much more a logarithm of a ratio means, as a fraction; finite for any finite one."""
    return math.expm1(min(log_ratio, _LARGEST_LOG)) if log_ratio < math.inf else math.inf
