"""``dlprof compare``: why one run is faster than another."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlprof.cli import options, streams


def compare(
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
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say why one run is faster than another: two machines, two commits, two settings.

    Splits the difference into parts that add up, each with its evidence. Measures nothing.
    """
    del quiet  # taken as by every command; there is no progress to hide
    from dlprof.advise.compare import compare as split
    from dlprof.report.compare import compare_document, comparison_report
    from dlprof.store import read_run

    number = None if workers is None else _one_number(workers)
    comparison = split(read_run(a), read_run(b), num_workers=number, best=best)
    if as_json:
        streams.write_result(compare_document(comparison))
    else:
        streams.print_result(comparison_report(comparison), verbose=verbose)


def _one_number(text: str) -> int:
    from dlprof.errors import UsageError
    from dlprof.units import parse_ints, quoted

    numbers = parse_ints(text)
    if len(numbers) != 1:
        raise UsageError(
            f"--num-workers: {quoted(text)} is more than one number", hint="Give one, such as 4."
        )
    return numbers[0]
