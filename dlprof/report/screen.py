"""The screen of a saved run: that of the command which wrote it."""

from __future__ import annotations

from dlprof.records import SCRIPT_SPEC, Run
from dlprof.report.document import Document
from dlprof.report.profile import profile_report
from dlprof.report.script import script_report
from dlprof.report.sweep import sweep_report


def run_report(run: Run) -> Document:
    """What the command that wrote the run has to say of it.

    Args:
        run: Of a sweep, a profile or a script.
    """
    if run.script is not None or run.watched or _is_cut_off_script(run):
        return script_report(run)
    if run.diagnosis is not None:
        return profile_report(run)
    return sweep_report(run)


def _is_cut_off_script(run: Run) -> bool:
    """Whether a script's process ended before anything of it was written.

    A module that is called ``run`` makes a target that begins alike, with settings of a sweep.
    """
    return run.header.target.spec.startswith(SCRIPT_SPEC) and not run.header.settings
