"""What a notebook shows of a result: its page, in a frame of its own.

In a frame neither styles the other, and nothing of the page acts on the notebook.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any

from dlprof.advise.compare import Comparison
from dlprof.advise.forecast import Feed, Forecast
from dlprof.late import Shown
from dlprof.machine.neighbours import Overview
from dlprof.machine.profiles import MachineProfile
from dlprof.records import Recommendation, Run, WatchedLoader
from dlprof.records.gate import CheckReport
from dlprof.records.transfer import Transfers
from dlprof.report import document as doc
from dlprof.report.check import check_report
from dlprof.report.compare import comparison_report
from dlprof.report.export.formats import render_html
from dlprof.report.labels import certainty
from dlprof.report.machine import machine_report, profile_report
from dlprof.report.page import to_html
from dlprof.report.predict import feed_report, forecast_report
from dlprof.report.script import loader_report
from dlprof.report.snippets import difference
from dlprof.report.sweep import expected_of
from dlprof.report.transfer import transfer_report


def notebook_html(shown: Shown) -> str:
    """The markup of what the last line of a cell gave."""
    if isinstance(shown, Run):
        page, height = render_html(shown), "40rem"
    else:
        fill = next(fill for kind, fill in _REPORTS.items() if isinstance(shown, kind))
        page, height = to_html(fill(shown)), "24rem"
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" '
        'allow="clipboard-write" title="dlprof" '
        f'style="width: 100%; height: {height}; resize: vertical; border: 0"></iframe>'
    )


def _recommendation(advice: Recommendation) -> doc.Document:
    rows: tuple[doc.Row, ...] = (
        ("Recommended", doc.Styled(advice.config.text, "strong")),
        *((name.capitalize(), words) for name, words in expected_of(advice)),
        certainty(advice.confidence, advice.confidence_reason),
    )
    return doc.Document(
        title="recommended settings",
        answer=doc.known(doc.facts(rows), doc.Code(difference(advice.config))),
        details=lambda: doc.section("Why", doc.items(each.claim for each in advice.reasons)),
    )


_REPORTS: Mapping[type, Callable[[Any], doc.Document]] = {
    CheckReport: check_report,
    Comparison: comparison_report,
    Feed: feed_report,
    Forecast: forecast_report,
    MachineProfile: profile_report,
    Overview: machine_report,
    Recommendation: _recommendation,
    Transfers: transfer_report,
    WatchedLoader: loader_report,
}
"""What fills the document of each kind of result but a run, which has its page."""
