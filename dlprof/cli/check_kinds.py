"""What ``dlprof check`` compares with: another version, stored history, or the code with itself."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlprof.cli import streams
from dlprof.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dlprof.engine.checking.settings import CheckListener, CheckSettings
    from dlprof.records.gate import CheckReport
    from dlprof.records.self_test import SelfTest


def refuse_two(given: Mapping[str, object]) -> None:
    """Refuse more than one of several options that exclude each other.

    Args:
        given: Their values by flag; what is empty or ``None`` was not given.

    Raises:
        UsageError: Names the first two.
    """
    flags = [flag for flag, value in given.items() if value]
    if len(flags) > 1:
        raise UsageError(
            f"{flags[0]} and {flags[1]} exclude each other", hint="Leave one of the two out."
        )


def checker(
    baseline: Path | None,
) -> Callable[[CheckSettings, CheckListener], CheckReport]:
    """What runs the check: against a baseline where one is named, else against other code."""
    if baseline is None:
        from dlprof.engine.check import run_check

        return lambda settings, listener: run_check(settings, listener=listener)
    from dlprof.engine.checking.history import check_baseline

    return lambda settings, listener: check_baseline(settings, baseline, listener=listener)


def show_self_test(test: SelfTest, *, as_json: bool, verbose: bool) -> None:
    """The self-test on stdout."""
    from dlprof.report.gate.self_test import self_test_document, self_test_report

    if as_json:
        streams.write_result(self_test_document(test))
    else:
        streams.print_result(self_test_report(test), verbose=verbose)


def self_test_code(test: SelfTest, *, fail_inconclusive: bool) -> ExitCode:
    """What a self-test ends with: a machine that can't be trusted is no fault of the code."""
    return ExitCode.INCONCLUSIVE if fail_inconclusive and not test.trusted else ExitCode.OK
