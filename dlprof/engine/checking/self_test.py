"""The check checked: the same code against itself, then against itself made slower."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dlprof.engine.checking.compared import SidePlan
from dlprof.engine.checking.history import lone_side
from dlprof.engine.checking.measuring import measure
from dlprof.engine.checking.settings import CheckListener, CheckSettings
from dlprof.engine.checking.sides import Sides, open_sides
from dlprof.engine.preparation import now
from dlprof.errors import NothingMeasuredError
from dlprof.gate import checked_target, make_self_test
from dlprof.records.gate import Compared, Quad, SelfTest, TargetCheck


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
        raise NothingMeasuredError(
            "The blocks took less time than the clock can resolve",
            hint="Choose a target that does more.",
        )
    return batch_s
