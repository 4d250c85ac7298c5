"""``dlprof report``: a saved run as HTML, Markdown, CSV, JSON or a Perfetto trace."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import options, streams
from dlprof.errors import UsageError
from dlprof.units import quoted

if TYPE_CHECKING:
    from dlprof.records import Run

FORMATS = ("text", "html", "markdown", "csv", "json", "perfetto")

_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        ".perfetto.json": "perfetto",
        ".trace.json": "perfetto",
        ".html": "html",
        ".htm": "html",
        ".md": "markdown",
        ".markdown": "markdown",
        ".csv": "csv",
        ".json": "json",
    }
)
"""The longest that fits counts."""


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

    HTML is one file that loads nothing; CSV has a row per trial; a trace for ui.perfetto.dev needs
    a run file of dlprof profile or dlprof run.
    """
    written_as = _format(output_format, output, as_json=as_json)
    from dlprof.store import read_run

    if output is not None:
        _check_output(output, run, force=force)
    measured = read_run(run)
    if output is None and written_as == "text":
        from dlprof.report.screen import run_report

        streams.print_result(run_report(measured), verbose=verbose)
        return
    text = _rendered(measured, written_as)
    if output is None:
        streams.write_result(text)
        return
    from dlprof.files import replace_file

    # Lone surrogates, which a file name or a traceback may bring, have no bytes of their own.
    replace_file(output, text.encode("utf-8", errors="replace"))
    if not quiet:
        typer.echo(f"Written: {output}", err=True)


def _format(given: str | None, output: Path | None, *, as_json: bool) -> str:
    """How it is to be written: what was asked for, or what the suffix says."""
    if given is not None and given not in FORMATS:
        raise UsageError(
            f"--format: {quoted(given)} is no format", hint=f"Give one of {', '.join(FORMATS)}."
        )
    if as_json and given not in {None, "json"}:
        raise UsageError(
            f"--json and --format {given} exclude each other", hint="Leave one of the two out."
        )
    if given is not None or as_json:
        return given or "json"
    if output is None:
        return FORMATS[0]
    name = output.name.lower()
    found = [written_as for suffix, written_as in _SUFFIXES.items() if name.endswith(suffix)]
    if not found:
        raise UsageError(
            f"-o: the suffix of {quoted(output.name)} names no format",
            hint=f"Give --format, or one of {', '.join(_SUFFIXES)}.",
        )
    return found[0]


def _check_output(output: Path, run: Path, *, force: bool) -> None:
    """Refuse before reading what would be refused after it, and never replace the run itself."""
    if not output.exists():
        return
    if run.exists() and output.samefile(run):
        raise UsageError(
            f"-o names the run file itself, {output}", hint="Give another path for the report."
        )
    if not force:
        raise UsageError(f"{output} already exists", hint="Give another path, or --force.")


def _rendered(run: Run, written_as: str) -> str:
    match written_as:
        case "html":
            from dlprof.report.screen import render_html

            return render_html(run)
        case "markdown":
            from dlprof.report.screen import render_markdown

            return render_markdown(run)
        case "csv":
            from dlprof.report.export.rows import render_csv

            return render_csv(run)
        case "json":
            from dlprof.report.export.document import render_json

            return render_json(run)
        case "perfetto":
            from dlprof.report.export.trace import render_perfetto

            return render_perfetto(run)
        case _:
            return _plain(run)


def _plain(run: Run) -> str:
    """The screen as plain text, for a file."""
    from rich.console import Console

    from dlprof.report.screen import run_report
    from dlprof.report.terminal import Screen

    console = Console(width=120, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(Screen(run_report(run), verbose=True), crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
