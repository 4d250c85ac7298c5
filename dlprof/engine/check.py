"""A whole check: two sides, quads until the rules decide, and the verdict as a record.

And the check checked: the same code against itself, then against itself made slower.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlprof.engine.checking.compared import SidePlan, both_sides
from dlprof.engine.checking.history import lone_side, recordable, too_quick
from dlprof.engine.checking.measuring import measure
from dlprof.engine.checking.settings import CheckListener, CheckSettings
from dlprof.engine.checking.sides import Sides, open_sides
from dlprof.engine.preparation import now
from dlprof.gate import checked_target, figures_of, make_check, make_self_test
from dlprof.records.gate import CheckReport, Compared, Quad, SelfTest, TargetCheck


def run_check(
    settings: CheckSettings,
    *,
    listener: CheckListener,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> CheckReport:
    """Check the working directory against what the settings name.

    ``environ`` is where CI systems say what a change is to be merged into.

    Returns:
        The verdict, and all that it follows from.

    Raises:
        DlprofError: An input can't be used, or a side can't be built or loaded from.
    """
    began_s = time.monotonic()
    with both_sides(settings, environ, cwd or Path.cwd()) as plans:
        started_at = now()
        with open_sides(plans, settings, listener) as sides:
            measured = measure(sides, settings, listener, clock=time.monotonic, began_s=began_s)
            base, change = plans
            built, compared = sides.built["change"], base.compared
            if base.root != change.root and built.file and built.file == sides.built["base"].file:
                outside = "with the same file of the target, which is outside of it"
                compared = dataclasses.replace(
                    compared, note=", ".join(filter(None, (compared.note, outside)))
                )
            blocks = [
                block for quad in measured.quads for block in quad.blocks if block.side == "change"
            ]
            figures = figures_of(measured.plan, blocks)
            path, source = Path(built.file).resolve(), ""
            if built.file and path.is_relative_to(change.root):  # as annotations name it
                source = path.relative_to(change.root).as_posix()
            kept = recordable(change, sides, settings, started_at=started_at, figures=figures)
            target = dataclasses.replace(
                checked_target(settings.sweep.target, measured.plan, measured.quads),
                source_file=source,
                source_line=built.line,
                recordable=kept if figures else None,
                measured_s=time.monotonic() - began_s,
                length=built.target.length,
            )
            return make_check(
                target,
                base=compared,
                change=change.compared,
                override=settings.override,
                warn_only=settings.warn_only,
                unavailable=measured.unavailable,
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

    Raises:
        DlprofError: The target can't be built or loaded from, or takes no time.
    """
    started_at = now()
    change = lone_side(settings, (cwd or Path.cwd()).resolve())
    base = dataclasses.replace(change, side="base", compared=Compared(name="the same code"))

    def checked(against: SidePlan) -> tuple[TargetCheck, Sides, float]:
        """One check; also its sides, ended, and the service time of a batch of the base."""
        began_s = clock()
        with open_sides((base, against), settings, listener) as sides:
            measured = measure(sides, settings, listener, clock=clock, began_s=began_s)
        check = checked_target(settings.sweep.target, measured.plan, measured.quads)
        check = dataclasses.replace(check, measured_s=clock() - began_s)
        return check, sides, _batch_s(measured.quads, sides)

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
    """What the base takes for a batch, in seconds of service time.

    Raises:
        NothingMeasuredError: No block was measured.
    """
    blocks = (block for quad in quads for block in quad.blocks if block.side == "base")
    costs = [sum(block.service_s) / sides.batches for block in blocks if block.service_s]
    batch_s = statistics.median(costs) if costs else 0.0
    if batch_s <= 0:
        raise too_quick()
    return batch_s
