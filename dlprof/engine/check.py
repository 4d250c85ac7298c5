"""A whole check: two sides, quads until the rules decide, and the verdict as a record."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

from dlprof.engine.checking.compared import SidePlan, both_sides
from dlprof.engine.checking.history import recordable
from dlprof.engine.checking.measuring import MeasuredQuads, measure
from dlprof.engine.checking.settings import CheckListener, CheckSettings
from dlprof.engine.checking.sides import Sides, open_sides
from dlprof.engine.preparation import now
from dlprof.gate import checked_target, figures_of, make_check
from dlprof.records.gate import CheckReport


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
            return _report(plans, settings, sides, measured, started_at, time.monotonic() - began_s)


def _report(
    plans: tuple[SidePlan, SidePlan],
    settings: CheckSettings,
    sides: Sides,
    measured: MeasuredQuads,
    started_at: str,
    took_s: float,
) -> CheckReport:
    base, change = plans
    built, compared = sides.built["change"], base.compared
    if base.root != change.root and built.file and built.file == sides.built["base"].file:
        outside = "with the same file of the target, which is outside of it"
        compared = dataclasses.replace(
            compared, note=", ".join(filter(None, (compared.note, outside)))
        )
    blocks = [block for quad in measured.quads for block in quad.blocks if block.side == "change"]
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
        measured_s=took_s,
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
