"""What a saved run has to say, as the command that wrote it said it: to show, or as a file.

Any document becomes a file here, whatever it is on.
"""
# ruff: noqa: PLC0415 - a screen does without what files need

from __future__ import annotations

import dataclasses

from dlprof.advise.recommend import with_recommendation
from dlprof.records import Run
from dlprof.report.document import Document
from dlprof.report.profile import profile_report
from dlprof.report.script import script_report
from dlprof.report.sweep import sweep_report


def run_report(run: Run) -> Document:
    """What the command that wrote the run has to say of it."""
    if run.is_script:
        return script_report(run)
    # A profile that was cut off has no diagnosis yet; what it lacks for good is a sweep's plan.
    explains = run.header.plan is None and any(trial.purpose == "explain" for trial in run.trials)
    return profile_report(run) if run.diagnosis is not None or explains else sweep_report(run)


def render_html(run: Run) -> str:
    """A run as one HTML file, with all that can be seen of it."""
    from dlprof.report.pictures import with_pictures

    run = with_recommendation(run)
    return written(with_pictures(run_report(run), run), "html")


def written(document: Document, written_as: str) -> str:
    """A document as a file.

    Args:
        document: What it says.
        written_as: ``html``, ``markdown``, or ``text``: the screen with its details.
    """
    if written_as == "html":
        from dlprof.report.page import to_html

        return to_html(document)
    if written_as == "markdown":
        from dlprof.report.markdown import to_markdown

        return to_markdown(dataclasses.replace(document, title=f"dlprof: {document.title}"))
    from dlprof.report.terminal import plain_text

    return plain_text(document, width=120, verbose=True) + "\n"
