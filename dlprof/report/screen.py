"""What a saved run has to say, as the command that wrote it said it: to show, or as a file."""

from __future__ import annotations

import dataclasses

from dlprof.records import SCRIPT_SPEC, Run
from dlprof.report.document import Document
from dlprof.report.profile import profile_report
from dlprof.report.script import script_report
from dlprof.report.sweep import sweep_report, with_recommendation


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


def render_html(run: Run) -> str:
    """A run as one HTML file, with all that can be seen of it.

    Args:
        run: Of a sweep, a profile or a script.
    """
    from dlprof.report.page import to_html  # noqa: PLC0415 - a screen does without
    from dlprof.report.pictures import with_pictures  # noqa: PLC0415 - as above

    run = with_recommendation(run)
    return to_html(with_pictures(run_report(run), run))


def render_markdown(run: Run) -> str:
    """A run as Markdown.

    Args:
        run: Of a sweep, a profile or a script.
    """
    from dlprof.report.markdown import to_markdown  # noqa: PLC0415 - a screen does without

    document = run_report(run)
    return to_markdown(dataclasses.replace(document, title=f"dlprof: {document.title}"))


def _is_cut_off_script(run: Run) -> bool:
    """Whether a script's process ended before anything of it was written.

    A module that is called ``run`` makes a target that begins alike, with settings of a sweep.
    """
    return run.header.target.spec.startswith(SCRIPT_SPEC) and not run.header.settings
