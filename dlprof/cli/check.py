"""``dlprof check``: did data loading get slower?"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlprof.cli import options
from dlprof.cli.entry import show
from dlprof.errors import DlprofError, ExitCode, FileError, UsageError
from dlprof.settings.options import CHECKED, SWEPT, parse_option

if TYPE_CHECKING:
    from dlprof.records.gate import CheckReport

BUDGET = options.varied("budget", text="How long it may take in all.", default="60s")

_COMPARED = "Comparison"

_file = functools.partial(options.option, panel="Files for CI")


@options.command(
    *options.LOADED,
    *SWEPT,
    BUDGET,
    *("seed", "timeout", *CHECKED),
    once=True,
    screen=("as_json", "brief", "quiet", "verbose"),
    kind="CI",
    short="--against --baseline --num-workers --budget --fail-above --inconclusive "
    "--allow-regression --output --junit --json",
    examples=("dlprof check my_data.py:make_loader --against main", "dlprof check --self-test"),
)
def check(  # noqa: PLR0913 - a command has as many parameters as it has options of its own
    asked: options.Asked,
    *,
    against: str | None = options.option(
        "A git ref or a directory. Default: the merge base with the upstream's default "
        "branch, or with the one that the pull request goes to.",
        "REF",
        panel=_COMPARED,
    ),
    against_python: str | None = options.option(
        "Another environment's python: did its packages load faster?", "PATH", panel=_COMPARED
    ),
    baseline: Path | None = options.option(
        "Compare with the stored history of dlprof baseline; it only warns, unless "
        "--regression fail is given.",
        panel=_COMPARED,
    ),
    self_test: bool = options.option(
        "Compare the code with itself, then with itself made slower: what a verdict takes on "
        "this machine, and how long does it take?",
        panel=_COMPARED,
    ),
    config: Path | None = options.CONFIG,
    output: Path | None = _file("The JSON document; a page where FILE ends in .html.", "", "-o"),
    junit: Path | None = _file("JUnit XML."),
    markdown: Path | None = _file("A Markdown comment."),
    bencher: Path | None = _file("Bencher's BMF."),
    benchmark_action: Path | None = _file("customSmallerIsBetter of github-action-benchmark."),
    openmetrics: Path | None = _file("OpenMetrics text."),
    design: str | None = options.option("", hidden=True),
) -> None:
    """Fail CI if data loading got slower.

    Measures two versions of the code interleaved until the verdict is certain. Exit code 3 is a
    regression, 0 is none. With --baseline it measures one, and compares it with earlier runs on
    this machine.
    """
    if design is not None:
        raise UsageError(
            "--design is gone: the sides are always interleaved, on the same cores",
            hint="Leave it out; --no-pin lets the sides choose their cores.",
        )
    files = {
        "html" if is_page(output) else "json": output,
        "junit": junit,
        "markdown": markdown,
        "bencher": bencher,
        "benchmark_action": benchmark_action,
        "openmetrics": openmetrics,
    }
    swept = {key: text for key, text in asked.given.items() if key not in CHECKED}
    rule = {key: parse_option(key, asked.given[key]) for key in CHECKED if key in asked.given}
    fails = rule.get("inconclusive") == "fail"
    warns = rule.get("regression", "fail" if baseline is None else "warn") == "warn"
    for flag, other in (("--against", against), ("--against-python", against_python)):
        options.refuse_two({flag: other, "--baseline": baseline, "--self-test": self_test})
    for name, path in files.items():
        flag = "-o" if path is output else f"--{name.replace('_', '-')}"
        options.refuse_two({"--self-test": self_test, flag: path})
    from dlprof.engine.checking.compared import for_check
    from dlprof.settings.resolve import config_files

    settings = dataclasses.replace(
        for_check(*options.resolve(swept, config)),
        against=against,
        against_python=against_python,
        override=rule.get("allow_regression", ""),
        **{key: rule[key] for key in ("fail_above", "confidence", "pin") if key in rule},
    )
    make_way(files, read=(baseline, *config_files(os.environ, config, Path.cwd()), settings.source))
    with options.listening(asked) as listener:
        if self_test:
            from dlprof.engine.check import run_self_test

            test = run_self_test(settings, listener=listener)
        else:
            settings = dataclasses.replace(settings, warn_only=warns)
            if baseline is None:
                from dlprof.engine.check import run_check

                report = run_check(settings, listener=listener)
            else:
                from dlprof.engine.checking.history import check_baseline

                report = check_baseline(settings, baseline, listener=listener)
    from dlprof.report.check import check_document, check_report, self_test_report

    if self_test:
        asked.show(lambda: check_document(test), lambda: self_test_report(test))
        # A machine that can't be trusted is no fault of the code.
        untrusted = fails and not test.trusted
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE if untrusted else ExitCode.OK)
    from dlprof.gate.verdict import exit_code

    code = exit_code(report, fail_inconclusive=fails)
    unwritten = write_files(report, files)
    report_to_github(report, os.environ, fails=code is not ExitCode.OK)
    asked.show(lambda: check_document(report), lambda: check_report(report))
    for fault in unwritten:  # the verdict was expensive: it is shown all the same
        show(fault, as_json=False)
        code = code or fault.exit_code
    raise click.exceptions.Exit(code)


def is_page(output: Path | None) -> bool:
    """Whether the file that ``-o`` names is a page, by its suffix, and no JSON document."""
    return output is not None and output.suffix.lower() in {".html", ".htm"}


def make_way(files: Mapping[str, Path | None], *, read: tuple[Path | None, ...] = ()) -> None:
    """Remove what an earlier check wrote there: one that ends without a verdict leaves none."""
    from dlprof.files import replaceable, write_fault

    written = [replaceable(path) for path in filter(None, files.values())]
    used: list[int | Path] = [1, 2, *filter(None, read)]
    in_use = []
    for each in used:
        with contextlib.suppress(OSError):  # there is none
            in_use.append(os.stat(each))  # a descriptor has no path
    for path in written:
        if path.exists() and any(os.path.samestat(path.stat(), there) for there in in_use):
            raise UsageError(f"The check itself uses {path}", hint="Write to another file.")
        if written.count(path) > 1:
            raise UsageError(f"Two formats go to {path}", hint="Give each a file of its own.")
    for path in written:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise write_fault(path, error) from None


def write_files(check: CheckReport, files: Mapping[str, Path | None]) -> list[FileError]:
    """Write what was asked for, over files that are there; says why some could not be written."""
    from dlprof.report.check import RENDERERS

    unwritten = []
    for written_as, path in files.items():
        try:
            if path is not None:
                options.write_file(path, RENDERERS[written_as](check), quiet=True)
        except FileError as fault:
            unwritten.append(fault)
    return unwritten


def report_to_github(
    check: CheckReport | DlprofError, environ: Mapping[str, str], *, fails: bool
) -> None:
    """Write what GitHub Actions reads, where the variables name its files.

    A file that can't be written changes nothing of the verdict.
    """
    from dlprof.report.check import render_annotation, render_outputs, render_summary

    for name, render in (
        ("GITHUB_STEP_SUMMARY", render_summary),
        ("GITHUB_OUTPUT", render_outputs),
    ):
        if environ.get(name):
            with contextlib.suppress(OSError), Path(environ[name]).open("ab") as file:
                file.write(render(check).encode("utf-8", errors="replace"))
    annotation = render_annotation(check, fails=fails)
    if annotation and environ.get("GITHUB_ACTIONS") == "true":
        with contextlib.suppress(OSError):
            # The runner reads both streams, and stdout belongs to the result.
            sys.stderr.write(annotation + "\n")
            sys.stderr.flush()
