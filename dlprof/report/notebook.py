"""What a notebook shows of a result: its page, in a frame of its own.

In a frame neither styles the other, and nothing of the page acts on the notebook.
"""

from __future__ import annotations

import html

from dlprof.advise.compare import Comparison
from dlprof.records import Recommendation, Run
from dlprof.report.compare import comparison_report
from dlprof.report.document import Code, Document, Facts, Span, Words, items, section
from dlprof.report.labels import percent_text, rate_text
from dlprof.report.page import to_html
from dlprof.report.screen import render_html
from dlprof.report.snippets import difference
from dlprof.report.sweep import certainty
from dlprof.units import MISSING, format_bytes, format_duration

_FRAME = (
    '<iframe srcdoc="{page}" sandbox="allow-scripts" allow="clipboard-write" title="dlprof" '
    'style="width: 100%; height: {height}; resize: vertical; border: 0"></iframe>'
)


def notebook_html(shown: Run | Recommendation | Comparison) -> str:
    """The markup of a run, a recommendation or a comparison.

    Args:
        shown: What the last line of a cell gave.
    """
    height = "40rem" if isinstance(shown, Run) else "24rem"
    return _FRAME.format(page=html.escape(_page(shown)), height=height)


def _page(shown: Run | Recommendation | Comparison) -> str:
    if isinstance(shown, Run):
        return render_html(shown)
    if isinstance(shown, Comparison):
        return to_html(comparison_report(shown))
    expected = shown.expected
    rows: tuple[tuple[str, Words], ...] = (
        ("Recommended", Span(shown.config.text, "strong")),
        ("Throughput", rate_text(expected.samples_per_s)),
        ("Data wait", percent_text(expected.wait_fraction)),
        ("Memory", format_bytes(expected.pss_bytes)),
        ("First batch", format_duration(expected.startup_s)),
        certainty(shown),
    )
    known = tuple(row for row in rows if row[1] != MISSING)
    return to_html(
        Document(
            title="recommended settings",
            answer=(Facts(known), Code(difference(shown.config, None))),
            details=tuple(section("Why", items(reason.claim for reason in shown.reasons))),
        )
    )
