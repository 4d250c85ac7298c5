"""What a notebook shows of a result: its page, in a frame of its own.

In a frame neither styles the other, and nothing of the page acts on the notebook.
"""

from __future__ import annotations

import html

from dlprof.advise.compare import Comparison
from dlprof.records import Recommendation, Run
from dlprof.report import document as doc
from dlprof.report.compare import comparison_report
from dlprof.report.export.formats import render_html
from dlprof.report.page import to_html
from dlprof.report.snippets import difference
from dlprof.report.sweep import certainty, expected_of


def notebook_html(shown: Run | Recommendation | Comparison) -> str:
    """The markup of what the last line of a cell gave."""
    height = "40rem" if isinstance(shown, Run) else "24rem"
    page = render_html(shown) if isinstance(shown, Run) else to_html(_document(shown))
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" '
        'allow="clipboard-write" title="dlprof" '
        f'style="width: 100%; height: {height}; resize: vertical; border: 0"></iframe>'
    )


def _document(shown: Recommendation | Comparison) -> doc.Document:
    if isinstance(shown, Comparison):
        return comparison_report(shown)
    rows: tuple[doc.Row, ...] = (
        ("Recommended", doc.Styled(shown.config.text, "strong")),
        *((name.capitalize(), words) for name, words in expected_of(shown)),
        certainty(shown),
    )
    return doc.Document(
        title="recommended settings",
        answer=doc.known(doc.facts(rows), doc.Code(difference(shown.config, None))),
        details=lambda: doc.section("Why", doc.items(each.claim for each in shown.reasons)),
    )
