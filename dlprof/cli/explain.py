"""``dlprof explain``: what a finding means, and how it is fixed."""

from __future__ import annotations

import shutil
import sys

from dlprof.cli import options


@options.command(
    kind="Machine", short="--json", examples=("dlprof explain fetch.io", "dlprof explain")
)
def explain(
    asked: options.Asked,
    *,
    code: str | None = options.argument(
        "A finding's code, such as fetch.io. Default: all.", "CODE", required=False
    ),
) -> None:
    """Explain a finding and its fix.

    Without CODE it lists all of them.
    """
    from dlprof.report import explain as pages

    if code is None or asked.as_json:
        asked.show(lambda: pages.explain_document(code), pages.codes_report)
    else:
        page = pages.page_of(code)
        if sys.stdout.isatty():  # else it stays Markdown as it was written
            page = pages.folded(page, shutil.get_terminal_size().columns)
        options.write_result(page)
