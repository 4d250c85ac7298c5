"""``dlprof compare``: why one run is faster than another."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlprof.cli import options, streams


def compare(  # noqa: PLR0913 - a command has as many parameters as it has options
    a: Annotated[Path, typer.Argument(metavar="A", help="A run file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other; rates are B over A.")],
    *,
    workers: Annotated[
        str | None,
        typer.Option(
            "--num-workers",
            metavar="N",
            help="Compare only configurations of N workers. Default: the fastest over both runs.",
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Compare the fastest of each run, also where they share settings."
        ),
    ] = False,
    output: options.Written = None,
    force: options.Replace = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say why one run is faster than another: two machines, two commits, two settings.

    Splits the difference into parts that add up, each with its evidence. Measures nothing.
    """
    from dlprof.advise.compare import compare as split
    from dlprof.report.compare import compare_document, comparison_report
    from dlprof.report.export.formats import READ, check_output, format_for
    from dlprof.store import read_run

    asked = "json" if as_json else None
    written_as = format_for(asked, output, prefix="--", formats=(*READ, "json"))
    if output is not None:
        for run in (a, b):
            check_output(output, run, force=force, prefix="--")
    number = None if workers is None else _one_number(workers)
    comparison = split(read_run(a), read_run(b), num_workers=number, best=best)
    if output is None and not as_json:
        streams.print_result(comparison_report(comparison), verbose=verbose)
        return
    if written_as == "json":
        text = compare_document(comparison) + "\n"
    else:
        from dlprof.report.screen import written

        text = written(comparison_report(comparison), written_as)
    if output is None:
        streams.write_result(text)
    else:
        streams.write_file(output, text.encode("utf-8", errors="replace"), quiet=quiet)


def _one_number(text: str) -> int:
    from dlprof.errors import UsageError
    from dlprof.units import parse_ints, quoted

    numbers = parse_ints(text)
    if len(numbers) != 1:
        raise UsageError(
            f"--num-workers: {quoted(text)} is more than one number", hint="Give one, such as 4."
        )
    return numbers[0]
