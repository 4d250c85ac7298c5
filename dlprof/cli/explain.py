"""``dlprof explain``: what a finding means, and how it is fixed."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from typing import Annotated

import typer

from dlprof.cli import options, streams


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A finding's code, such as fetch.io. Default: all."),
    ] = None,
    *,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Explain a finding: what it means, how dlprof detects it, and how to fix it.

    Without CODE it lists all of them.
    """
    del quiet, verbose  # taken as by every command; there is no progress to hide or lengthen
    from dlprof.report import explain as pages

    if as_json:
        streams.write_result(pages.codes_document() if code is None else pages.page_document(code))
    elif code is None:
        streams.print_result(pages.codes_report())
    else:
        streams.write_result(pages.page_of(code))
