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
    if run.script is not None or run.watched or _is_cut_off_script(run):
        return render_script(run)
    if run.diagnosis is not None:
        return render_profile(run)
    return render_sweep(with_recommendation(run))


def _is_cut_off_script(run: Run) -> bool:
    """Whether a script's process ended before anything of it was written.

    A module that is called ``run`` makes a target that begins alike, with settings of a sweep.
    """
    return run.header.target.spec.startswith(SCRIPT_SPEC) and not run.header.settings
