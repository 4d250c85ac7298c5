"""``dlprof report``: a saved run as HTML, Markdown, CSV, JSON or a Perfetto trace."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import UsageError
from dlprof.report.export.formats import FORMATS, check_output, format_for, render_as


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run file.")],
    *,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="How it is written. Default: by the suffix of -o, else text.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to. Default: stdout."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output file if it exists.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a saved run for people and other programs.

    HTML is one file that loads nothing; CSV and Parquet have a row per trial; a trace for
    ui.perfetto.dev needs a run file of dlprof profile or dlprof run.
    """
    if as_json and output_format not in {None, "json"}:
        raise UsageError(
            f"--json and --format {output_format} exclude each other",
            hint="Leave one of the two out.",
        )
    from dlprof.store import read_run

    written_as = format_for("json" if as_json else output_format, output, prefix="--")
    if output is not None:
        check_output(output, run, force=force, prefix="--")
    measured = read_run(run)
    if output is None and written_as == "text":
        from dlprof.report.screen import run_report

        streams.print_result(run_report(measured), verbose=verbose)
        return
    written = render_as(measured, written_as)
    if output is None:
        streams.write_result(written.decode())
        return
    from dlprof.files import replace_file

    replace_file(output, written)
    if not quiet:
        typer.echo(f"Written: {output}", err=True)
