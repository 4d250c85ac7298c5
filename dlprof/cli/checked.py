"""Where a check's verdict goes: the screen or the document, files, what GitHub reads, exit code."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlprof.cli import streams
from dlprof.errors import FileError

if TYPE_CHECKING:
    from dlprof.records.gate import CheckReport

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "json": "-o",
        "html": "-o",
        "junit": "--junit",
        "markdown": "--markdown",
        "bencher": "--bencher",
        "benchmark_action": "--benchmark-action",
        "openmetrics": "--openmetrics",
    }
)
"""What asks for a file of each format."""


def is_page(output: Path | None) -> bool:
    """Whether the file that ``-o`` names is a page, by its suffix, and no JSON document."""
    return output is not None and output.suffix.lower() in {".html", ".htm"}


def refuse_unwritable(files: Mapping[str, Path | None]) -> None:
    """Refuse files that can't be put where they are to go, before time is spent.

    Args:
        files: Paths by format; ``None`` isn't asked for.

    Raises:
        FileError: Says which.
    """
    from dlprof.files import replaceable

    for path in filter(None, files.values()):
        replaceable(path)


def write_files(check: CheckReport, files: Mapping[str, Path | None]) -> list[FileError]:
    """Write what was asked for; files that are there are replaced.

    Returns:
        Why files could not be written; the others are there all the same.
    """
    from dlprof.files import replace_file
    from dlprof.report.gate.files import RENDERERS

    faults = []
    for written_as, path in files.items():
        if path is None:
            continue
        try:
            # Lone surrogates, which a file name may bring, have no bytes of their own.
            replace_file(path, RENDERERS[written_as](check).encode("utf-8", errors="replace"))
        except FileError as fault:
            faults.append(fault)
    return faults


def tell_github(check: CheckReport, environ: Mapping[str, str], *, fails: bool) -> None:
    """Write what GitHub Actions reads, where the variables name its files.

    A file that can't be written changes nothing of the verdict.

    Args:
        check: The check.
        environ: The environment.
        fails: Whether the check fails the job.
    """
    from dlprof.report.gate.github import render_annotation, render_outputs
    from dlprof.report.gate.markdown import render_summary

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


def show(check: CheckReport, *, as_json: bool, brief: bool = False, verbose: bool = False) -> None:
    """The verdict on stdout."""
    from dlprof.report.gate.check import check_document, check_report

    if as_json:
        streams.write_document(check_document(check), brief=brief)
    else:
        streams.print_result(check_report(check), verbose=verbose)
