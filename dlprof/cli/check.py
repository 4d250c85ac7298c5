"""``dlprof check``: did data loading get slower?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import dataclasses
import os
from typing import Any

import typer

from dlprof.cli import (
    check_kinds,
    check_options,
    checked,
    faults,
    options,
    streams,
)
from dlprof.cli.measuring import resolve, signals_while_measuring
from dlprof.errors import ExitCode, UsageError
from dlprof.units import quoted


@options.takes(*options.LOADED, *options.SWEPT, check_options.BUDGET, "seed", "timeout", once=True)
def check(  # noqa: PLR0913 - a command has as many parameters as it has options
    given: options.Given,
    *,
    against: check_options.Against = None,
    against_python: check_options.AgainstPython = None,
    baseline: check_options.Baseline = None,
    self_test: check_options.SelfTest = False,
    fail_above: check_options.FailAbove = None,
    confidence: check_options.Confidence = None,
    inconclusive: check_options.Inconclusive = None,
    regression: check_options.Regression = None,
    pin: check_options.Pin = True,
    design: check_options.DesignOption = None,
    allow_regression: check_options.AllowRegression = None,
    config: options.ConfigFile = None,
    output: check_options.Document = None,
    junit: check_options.Junit = None,
    markdown: check_options.Markdown = None,
    bencher: check_options.Bencher = None,
    benchmark_action: check_options.BenchmarkAction = None,
    openmetrics: check_options.OpenMetrics = None,
    as_json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say whether data loading got slower than in another version of the code.

    Measures both versions interleaved until the verdict is certain. Exit code 3 is a regression, 0
    is none. With --baseline it measures one, and compares it with earlier runs on this machine.
    """
    streams.check_brief(brief=brief, as_json=as_json)
    if design is not None:
        raise UsageError(
            "--design is gone: the sides are always interleaved, on the same cores",
            hint="Leave it out; --no-pin lets the sides choose their cores.",
        )
    files = {
        "html" if checked.is_page(output) else "json": output,
        "junit": junit,
        "markdown": markdown,
        "bencher": bencher,
        "benchmark_action": benchmark_action,
        "openmetrics": openmetrics,
    }
    fails = _choice("--inconclusive", inconclusive, ("warn", "fail")) == "fail"
    fail_or_warn = ("fail", "warn") if baseline is None else ("warn", "fail")
    warns = _choice("--regression", regression, fail_or_warn) == "warn"
    for flag, other in (("--against", against), ("--against-python", against_python)):
        check_kinds.refuse_two({flag: other, "--baseline": baseline, "--self-test": self_test})
    for name, path in files.items():
        check_kinds.refuse_two({"--self-test": self_test, checked.FLAGS[name]: path})
    checked.refuse_unwritable(files)
    from dlprof.engine.checking.settings import for_check
    from dlprof.gate import exit_code
    from dlprof.report.gate.live import open_check_listener

    settings = for_check(
        *resolve(given, config),
        against=against,
        against_python=against_python,
        override=_reason(allow_regression),
        pin=pin,
        **_shares(fail_above, confidence),
    )
    if self_test:
        from dlprof.engine.checking.self_test import run_self_test

        with signals_while_measuring(), open_check_listener(quiet=quiet) as listener:
            test = run_self_test(settings, listener=listener)
        check_kinds.show_self_test(test, as_json=as_json, verbose=verbose)
        raise typer.Exit(check_kinds.self_test_code(test, fail_inconclusive=fails))
    settings = dataclasses.replace(settings, warn_only=warns)
    run = check_kinds.checker(baseline)
    with signals_while_measuring(), open_check_listener(quiet=quiet) as listener:
        report = run(settings, listener)
    code = exit_code(report, fail_inconclusive=fails)
    unwritten = checked.write_files(report, files)
    checked.tell_github(report, os.environ, fails=code is not ExitCode.OK)
    checked.show(report, as_json=as_json, brief=brief, verbose=verbose)
    for fault in unwritten:  # the verdict was dearer than the files: it is told all the same
        faults.show(faults.describe(fault, verbose=False), as_json=False)
        code = code or fault.exit_code
    raise typer.Exit(code)


def _choice(flag: str, given: str | None, choices: tuple[str, ...]) -> str:
    """What was chosen; the first where nothing was."""
    if given is not None and given not in choices:
        raise UsageError(
            f"{flag}: {quoted(given)} is no choice", hint=f"Give {' or '.join(choices)}."
        )
    return given or choices[0]


def _reason(given: str | None) -> str:
    if given is not None and not given.strip():
        raise UsageError(
            "--allow-regression has no reason", hint="Say why loading may get slower; it is kept."
        )
    return given or ""


def _shares(fail_above: str | None, confidence: str | None) -> dict[str, Any]:
    """The limit and the confidence, as far as they were given."""
    from dlprof.settings.percent import confidence_of, fail_above_of

    found: dict[str, Any] = {}
    if fail_above is not None:
        found["fail_above"] = fail_above_of(fail_above, "--fail-above")
    if confidence is not None:
        found["confidence"] = confidence_of(confidence, "--confidence")
    return found
