"""A whole check: two sides, quads until the rules decide, and the verdict as a record.

And the check checked: the same code against itself, then against itself made slower.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dlprof.engine.checking.compared import CheckListener, CheckSettings, SidePlan, both_sides
from dlprof.engine.checking.history import lone_side, recordable, too_quick
from dlprof.engine.checking.sides import Sides, open_sides
from dlprof.engine.trials import now
from dlprof.errors import DlprofError, UsageError
from dlprof.gate.baseline import figures_of
from dlprof.gate.plan import ALL_GATES, loader_difference, make_plan, order_of
from dlprof.gate.verdict import checked_target, make_check, make_self_test, next_look
from dlprof.records.gate import (
    CheckPlan,
    CheckReport,
    Compared,
    Quad,
    SelfTest,
    Series,
    TargetCheck,
)
from dlprof.units import duration_option, format_duration

_STARTS: tuple[str, ...] = ("startup", "epoch_turnover")


def run_check(
    settings: CheckSettings,
    *,
    listener: CheckListener,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> CheckReport:
    """Check the working directory against what the settings name.

    ``environ`` is where CI systems say what a change is to be merged into.
    """
    began_s = time.monotonic()
    with both_sides(settings, environ, cwd or Path.cwd()) as plans:
        started_at = now()
        with open_sides(plans, settings, listener) as sides:
            plan, quads, unavailable = measure(sides, listener, began_s=began_s)
            base, change = plans
            built, compared = sides.built["change"], base.compared
            if base.root != change.root and built.file and built.file == sides.built["base"].file:
                outside = "with the same file of the target, which is outside of it"
                compared = dataclasses.replace(
                    compared, note=", ".join(filter(None, (compared.note, outside)))
                )
            blocks = [block for quad in quads for block in quad.blocks if block.side == "change"]
            figures = figures_of(plan, blocks)
            path, source = Path(built.file).resolve(), ""
            if built.file and path.is_relative_to(change.root):  # as annotations name it
                source = path.relative_to(change.root).as_posix()
            kept = recordable(change, sides, started_at=started_at, figures=figures)
            took_s = time.monotonic() - began_s
            target = checked_target(settings.sweep.target, plan, quads)
            undecided = target.verdict.state == "inconclusive"
            target = dataclasses.replace(
                target,
                source_file=source,
                source_line=built.line,
                recordable=kept if figures else None,
                measured_s=took_s,
                needed_s=_needed_s(plan, quads, sides, took_s) if undecided else None,
                length=built.target.length,
            )
            return make_check(
                target,
                base=compared,
                change=change.compared,
                override=settings.override,
                warn_only=settings.warn_only,
                unavailable=unavailable,
                **sides.provenance(started_at),
            )


def run_self_test(
    settings: CheckSettings,
    *,
    listener: CheckListener,
    cwd: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SelfTest:
    """Find out what checks of a target can detect on this machine.

    Each of the two checks has the whole budget, as checks have it.
    """
    started_at = now()
    change = lone_side(settings, (cwd or Path.cwd()).resolve())
    base = dataclasses.replace(change, side="base", compared=Compared(name="the same code"))

    def checked(against: SidePlan) -> tuple[TargetCheck, Sides, float]:
        """One check; also its sides, ended, and the service time of a batch of the base."""
        began_s = clock()
        with open_sides((base, against), settings, listener) as sides:
            plan, quads, _ = measure(sides, listener, clock=clock, began_s=began_s)
        check = checked_target(settings.sweep.target, plan, quads)
        check = dataclasses.replace(check, measured_s=clock() - began_s)
        return check, sides, _batch_s(quads, sides)

    listener.message("the same code against itself")
    same, sides, batch_s = checked(change)
    # The slowdown is this multiple of the limit: one that a check has to find.
    injected = 2.0 * settings.fail_above
    listener.message(f"the same code, {100 * injected:g}% slower")
    request = dataclasses.replace(change.request, delay_s=injected * batch_s)
    slowed, _, _ = checked(dataclasses.replace(change, request=request))
    test = make_self_test(same, slowed, injected)
    return dataclasses.replace(test, **sides.provenance(started_at))


def _batch_s(quads: Sequence[Quad], sides: Sides) -> float:
    """What the base takes for a batch, in seconds of service time."""
    blocks = (block for quad in quads for block in quad.blocks if block.side == "base")
    costs = [sum(block.service_s) / sides.batches for block in blocks if block.service_s]
    batch_s = statistics.median(costs) if costs else 0.0
    if batch_s <= 0:
        raise too_quick()
    return batch_s


def measure(
    sides: Sides,
    listener: CheckListener,
    *,
    began_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[CheckPlan, tuple[Quad, ...], Mapping[str, str]]:
    """Measure quads until the rules decide, or the budget is spent.

    Returns:
        The rules, the quads in the order of measuring, and why a metric wasn't measured, by name.
    """
    left_s = sides.settings.sweep.budget_s - (clock() - began_s)
    plan = _plan(sides)
    _refuse_slow(plan, sides, left_s)
    batch_s = sides.block_s / sides.batches
    # Stamps cost about a fifth of that.
    if batch_s < 200e-6:
        listener.message(
            f"a batch takes only {format_duration(batch_s)}, and timing it is part of that; "
            "larger batches are timed better"
        )
    unavailable: dict[str, str] = {}
    # Whether the first looks of both series are within the budget.
    starts_s = sum(sides.starts_s.values()) * _first_look(plan, "start")
    first_s = starts_s + _load_s(plan, sides)
    starts_last = not (first_s + sides.confirming_s <= left_s)
    if not (first_s <= left_s) and not _starts_differ(plan, sides):
        reason = (
            f"a start takes {format_duration(sides.start_s)} here, and "
            f"{_first_look(plan, 'start')} of each side are needed: give more --budget"
        )
        unavailable = dict.fromkeys(_STARTS, reason)
        plan = _plan(sides, without=_STARTS)
        listener.message(f"time to first batch is not measured: {reason}")
    quads = _quads(sides, plan, listener, lambda: clock() - began_s, starts_last=starts_last)
    return plan, quads, unavailable


def _starts_differ(plan: CheckPlan, sides: Sides) -> bool:
    """Whether the change started so much later, that once, that it has to be looked into."""
    rule = next(rule for rule in plan.rules if rule.name == "startup")
    base_s = sides.starts_s.get("base", 0.0)
    allowed_s = max(rule.threshold * base_s, rule.floor)
    return sides.starts_s.get("change", 0.0) - base_s > allowed_s


def _load_s(plan: CheckPlan, sides: Sides) -> float:
    """What blocks of loading take up to their first look."""
    return sides.block_s * 2 * 2 * _first_look(plan, "load")


def _plan(sides: Sides, without: tuple[str, ...] = ()) -> CheckPlan:
    settings = sides.settings
    return make_plan(
        fail_above=settings.fail_above,
        gates=[name for name in ALL_GATES if name not in without],
        confidence=settings.confidence,
        seed=settings.sweep.seed,
        loader_difference=loader_difference(sides.configs["base"], sides.configs["change"]),
        in_main=not any(config.num_workers for config in sides.configs.values()),
        keeping=sides.keeping,
        epochs=sides.epochs,
    )


def _first_look(plan: CheckPlan, series: Series) -> int:
    return min(rule.looks[0] for rule in plan.rules if rule.series == series)


def _refuse_slow(plan: CheckPlan, sides: Sides, left_s: float) -> None:
    """Refuse a target of which no verdict is to be expected within the budget."""
    need_s = _load_s(plan, sides)
    # A check whose first look would take so many times what is left is not begun.
    if need_s <= 4.0 * max(0.0, left_s):
        return
    budget_s = sides.settings.sweep.budget_s
    whole_s = budget_s - left_s + need_s
    enough = duration_option(1.5 * whole_s)
    quota = sides.machine.quota_cores
    throttled = "" if quota is None or quota >= 1 else f"; a CPU quota leaves {quota:.2g} cores"
    raise UsageError(
        f"The target is too slow for --budget {format_duration(budget_s)}: a block of "
        f"{sides.batches} batches takes {format_duration(sides.block_s)}{_unequal(sides)}, and a "
        f"verdict needs {format_duration(whole_s)} at the least, of which building and warming up "
        f"took {format_duration(budget_s - left_s)}{throttled}",
        hint=f"Give --budget {enough}, or smaller batches with --batch-size.",
    )


def _unequal(sides: Sides) -> str:
    """That the change alone is so slow, where the blocks that were tried show so.

    The base is tried first, so that caches which were cold can't be why the change took longer.
    """
    took = sides.tried_s.get("load", {})
    base_s, change_s = took.get("base", 0.0), took.get("change", 0.0)
    # Blocks of two sides that differ by less may do so by chance.
    if not base_s or change_s < 2.0 * base_s:
        return ""
    return f" in the change, {change_s / base_s:.3g} times as long as in the base"


def _quads(
    sides: Sides,
    plan: CheckPlan,
    listener: CheckListener,
    elapsed_s: Callable[[], float],
    *,
    starts_last: bool,
) -> tuple[Quad, ...]:
    """Measure quad after quad, until the rules decide or the next would be beyond the budget.

    Where the first pair of processes would leave no time for the second, it loads no longer than
    it takes to show a failure: else a clear one could never be confirmed.
    """
    quads, budget_s = list[Quad](), sides.settings.sweep.budget_s
    done: dict[Series, int] = {"load": 0, "start": 0}
    took_s = sides.took_s
    look = next_look(plan, quads)
    while look.needed:
        if look.processes and not (quads and quads[-1].processes):
            if elapsed_s() + sides.build_s > budget_s:
                return tuple(quads)
            listener.message("slower; confirming it in a second pair of processes")
            try:
                sides.renew()
            except DlprofError as error:  # what was measured stays, and is unconfirmed
                listener.message(f"there is no second pair of processes: {error.message}")
                return tuple(quads)
        turns = [*_in_turns(look.needed, starts_last=starts_last)]
        for place, series in enumerate(turns, 1):
            began_s = elapsed_s()
            if began_s + took_s[series] > budget_s:
                return tuple(quads)
            order = order_of(plan.seed, series, done[series])
            quad = sides.quad(order, series, done[series])
            quads.append(dataclasses.replace(quad, processes=look.processes))
            sides.refuse_failing()
            done[series] += 1
            if not quads[-1].blocks[-1].failure:  # which is long, and says nothing of the next
                took_s[series] = elapsed_s() - began_s
            listener.quads(done, look, elapsed_s(), budget_s)
            rest_s = math.fsum(map(sides.expected_s, turns[place:]))
            late_s = elapsed_s() + rest_s + sides.confirming_s
            if look.processes or late_s <= budget_s or elapsed_s() + sides.build_s > budget_s:
                continue
            if (sooner := next_look(plan, quads, hurried=True)).processes:
                look = sooner
                break
        else:
            look = next_look(plan, quads)
    return tuple(quads)


def _needed_s(plan: CheckPlan, quads: Sequence[Quad], sides: Sides, took_s: float) -> float | None:
    """The budget that the next look would do with, and a second pair to confirm what it finds."""
    look = next_look(plan, quads)
    if not look.needed:
        return None
    more_s = math.fsum(sides.expected_s(series) * count for series, count in look.needed.items())
    begun = any(quad.processes for quad in quads)
    # Half as much again, since machines change.
    return 1.5 * (took_s + more_s + (0.0 if begun else sides.confirming_s))


def _in_turns(needed: Mapping[Series, int], *, starts_last: bool) -> Iterator[Series]:
    """What to measure up to the next look: both series see the same moments, if there is time."""
    if starts_last and "load" in needed:
        needed = {"load": needed["load"]}
    for place in range(max(needed.values())):
        for series, count in needed.items():
            if place < count:
                yield series
