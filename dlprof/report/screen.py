"""The screen of a saved run: that of the command which wrote it."""

from __future__ import annotations

from rich.console import RenderableType

from dlprof.records import SCRIPT_SPEC, Run
from dlprof.report.export.content import with_recommendation
from dlprof.report.profile import render_profile
from dlprof.report.sweep import render_sweep
from dlprof.report.watched import render_script


def render_run(run: Run) -> RenderableType:
    """What the command that wrote the run left on the terminal.

    Args:
        run: Of a sweep, a profile or a script.
    """
    of_script = run.header.target.spec.startswith(SCRIPT_SPEC)
    if of_script or run.script is not None or run.watched:
        return render_script(run)
    if run.diagnosis is not None:
        return render_profile(run)
    return render_sweep(with_recommendation(run))
