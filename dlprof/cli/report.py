"""``dlprof report``: a saved run as HTML, Markdown, CSV, JSON or a trace; an index of several."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.report.export import formats
from dlprof.report.export.formats import FORMATS, READ, format_for, refuse_existing


@options.command(
    kind="Ask a saved run",
    short="--output --format --force --json --verbose",
    examples=(
        "dlprof report RUN -o report.html",
        "dlprof report RUN -o trials.csv",
        "dlprof report *.dlprof.jsonl -o index.html",
    ),
)
def report(
    asked: options.Asked,
    *,
    runs: tuple[Path, ...] = options.argument(
        "A run file; of several, an index.", "RUN...", nargs=-1, required=True
    ),
    output_format: str | None = options.option(
        "How it is written. Default: by the suffix of -o, else text.", "|".join(FORMATS), "--format"
    ),
    output: Path | None = options.WRITTEN,
    force: bool = options.REPLACE,
) -> None:
    """Write a run as HTML, Markdown, CSV, JSON or a trace.

    HTML is one file that loads nothing; CSV and Parquet have a row per trial; a trace for
    ui.perfetto.dev needs a run file of dlprof profile or dlprof run. Several runs make a table;
    with -o FILE.html it has a page for each run beside it.
    """
    elsewhere = output_format not in {None, "json"}
    options.refuse_two({"--json": asked.as_json, f"--format {output_format}": elsewhere})
    from dlprof.store import read_run

    written_as = format_for("json" if asked.as_json else output_format, output, prefix="--")
    refuse_existing(output, *runs, force=force, prefix="--")
    if len(runs) > 1:
        _index(runs, written_as, output, force=force, quiet=asked.quiet)
        return
    measured = read_run(runs[0])
    if output is not None:
        written = formats.render_as(measured, written_as)
        options.write_file(output, written, quiet=asked.quiet)
    elif written_as == "text":
        options.print_result(formats.run_report(measured), verbose=asked.verbose)
    else:
        options.write_result(formats.render_as(measured, written_as).decode())


def _index(
    runs: Sequence[Path], written_as: str, output: Path | None, *, force: bool, quiet: bool
) -> None:
    from dlprof.report.index import index_report, index_row, page_names
    from dlprof.store import read_run

    if written_as not in READ:
        raise UsageError(
            f"A {written_as} file holds one run, and {len(runs)} are given",
            hint="Give one, or -o index.html for a table of all with a page for each.",
        )
    names = page_names(runs, output.name) if output is not None and written_as == "html" else []
    pages = [output.with_name(name) for name in names] if output is not None else []
    for page in pages:
        refuse_existing(page, *runs, force=force, prefix="--")
    rows = []
    with contextlib.ExitStack() as undone:  # of an index that a damaged run ends no page stays
        for place, run in enumerate(runs):
            measured = read_run(run)
            rows.append(index_row(measured))
            if pages:  # written as they are read: many runs need not be in memory at once
                options.write_file(pages[place], formats.render_as(measured, "html"), quiet=True)
                if not force:  # one that it replaced would be lost
                    undone.callback(pages[place].unlink, missing_ok=True)
        undone.pop_all()
    index = index_report(rows, names)
    if output is not None:
        also = f", and a page for each of {len(pages)} runs beside it" if pages else ""
        options.write_file(output, formats.written(index, written_as), quiet=quiet, also=also)
    elif written_as == "text":
        options.print_result(index)
    else:
        options.write_result(formats.written(index, written_as))
