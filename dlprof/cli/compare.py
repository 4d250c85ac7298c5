"""``dlprof compare``: why one run is faster than another."""

from __future__ import annotations

from pathlib import Path

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.units import parse_ints, quoted


@options.command(
    kind="Ask a saved run",
    short="--num-workers --best --output --json --verbose",
    examples=(
        "dlprof compare laptop.dlprof.jsonl server.dlprof.jsonl",
        "dlprof compare laptop.dlprof.jsonl server.dlprof.jsonl -o compared.html",
    ),
)
def compare(
    asked: options.Asked,
    *,
    a: Path = options.argument("A run file.", "A"),
    b: Path = options.argument("The other; rates are B over A.", "B"),
    workers: str | None = options.option(
        "Compare only configurations of N workers. Default: the fastest over both runs.",
        "N",
        "--num-workers",
    ),
    best: bool = options.option("Compare the fastest of each run, also where they share settings."),
    output: Path | None = options.WRITTEN,
    force: bool = options.REPLACE,
) -> None:
    """Explain why one run is faster than another.

    Two machines, two commits, two settings: splits the difference into parts that add up, each with
    its evidence. Measures nothing.
    """
    from dlprof import api
    from dlprof.report.compare import comparison_report
    from dlprof.report.documents import json_document
    from dlprof.report.export.formats import READ, format_for, refuse_existing, written

    written_as = format_for(
        "json" if asked.as_json else None, output, prefix="--", formats=(*READ, "json")
    )
    refuse_existing(output, a, b, force=force, prefix="--")
    numbers = [None] if workers is None else parse_ints(workers)
    if len(numbers) != 1:
        raise UsageError(
            f"--num-workers: {quoted(workers)} is more than one number", hint="Give one, such as 4."
        )
    comparison = api.compare(a, b, num_workers=numbers[0], best=best)
    if output is None:
        asked.show(lambda: json_document(comparison), lambda: comparison_report(comparison))
        return
    if written_as == "json":
        text = json_document(comparison) + "\n"
    else:
        text = written(comparison_report(comparison), written_as)
    options.write_file(output, text, quiet=asked.quiet)
