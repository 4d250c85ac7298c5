"""The options of ``dlprof check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlprof.cli.options import varied

BUDGET = varied("budget", text="How long it may take in all.", default="60s")

_COMPARED = "Comparison"
_RULE = "Verdict"
_FILES = "Files for CI"

Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="REF",
        help="A git ref or a directory. Default: the merge base with the upstream's default "
        "branch, or with the one that the pull request goes to.",
        rich_help_panel=_COMPARED,
    ),
]
AgainstPython = Annotated[
    str | None,
    typer.Option(
        "--against-python",
        metavar="PATH",
        help="Another environment's python: did its packages load faster?",
        rich_help_panel=_COMPARED,
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Compare with the stored history of dlprof baseline; it only warns, unless "
        "--regression fail is given.",
        rich_help_panel=_COMPARED,
    ),
]
SelfTest = Annotated[
    bool,
    typer.Option(
        "--self-test",
        help="Compare the code with itself, then with itself made slower: what a verdict takes on "
        "this machine, and how long does it take?",
        rich_help_panel=_COMPARED,
    ),
]
FailAbove = Annotated[
    str | None,
    typer.Option(
        "--fail-above",
        metavar="SHARE",
        help="How much slower loading may get. Default: 5%.",
        rich_help_panel=_RULE,
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option(
        "--confidence",
        metavar="SHARE",
        help="How surely code that is slower by just that doesn't fail. Default: 99.",
        rich_help_panel=_RULE,
    ),
]
Inconclusive = Annotated[
    str | None,
    typer.Option(
        "--inconclusive",
        metavar="warn|fail",
        help="What an inconclusive check ends with. Default: warn.",
        rich_help_panel=_RULE,
    ),
]
Regression = Annotated[
    str | None,
    typer.Option(
        "--regression",
        metavar="fail|warn",
        help="What to make of a regression. Default: fail; with --baseline: warn.",
        rich_help_panel=_RULE,
    ),
]
Pin = Annotated[
    bool,
    typer.Option(
        "--pin/--no-pin",
        help="Hold both sides to the same cores, one after another. Default: --pin.",
        rich_help_panel=_RULE,
    ),
]
DesignOption = Annotated[str | None, typer.Option("--design", hidden=True)]
AllowRegression = Annotated[
    str | None,
    typer.Option(
        "--allow-regression",
        metavar="REASON",
        help="Let a failure pass; the reason is recorded.",
        rich_help_panel=_RULE,
    ),
]
Document = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="The JSON document; a page where FILE ends in .html.",
        rich_help_panel=_FILES,
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="JUnit XML.", rich_help_panel=_FILES),
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE", help="A Markdown comment.", rich_help_panel=_FILES),
]
Bencher = Annotated[
    Path | None,
    typer.Option("--bencher", metavar="FILE", help="Bencher's BMF.", rich_help_panel=_FILES),
]
BenchmarkAction = Annotated[
    Path | None,
    typer.Option(
        "--benchmark-action",
        metavar="FILE",
        help="customSmallerIsBetter of github-action-benchmark.",
        rich_help_panel=_FILES,
    ),
]
OpenMetrics = Annotated[
    Path | None,
    typer.Option("--openmetrics", metavar="FILE", help="OpenMetrics text.", rich_help_panel=_FILES),
]
