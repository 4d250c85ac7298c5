"""The one place where exceptions turn into sentences and exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

import typer

from dlprof.errors import DlprofError, ExitCode
from dlprof.report.text import clean, clean_lines

# What the argument parser raises for a command line that it can't read. Typer carries the parser
# in a private module since 0.26; this is the public way to its base class.
_ParserError: type[Exception] = typer.BadParameter.__mro__[1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault as the user sees it.

    Attributes:
        kind: The class of the fault, for scripts.
        message: What is wrong, one sentence.
        hint: What to do about it; may be empty.
        exit_code: What the program ends with.
        details: A traceback that helps the user; may be empty.
        failures: See ``DlprofError``.
    """

    kind: str
    message: str
    hint: str
    exit_code: int
    details: str = ""
    failures: tuple[Mapping[str, str | int], ...] = ()


def describe(error: BaseException, *, verbose: bool) -> Fault:
    """What to say about an exception that ended a command.

    Args:
        error: What was raised.
        verbose: Whether to show tracebacks that are not the user's own code's too.

    Returns:
        The fault; anything unforeseen is dlprof's own (exit code 70).
    """
    if isinstance(error, DlprofError):
        return Fault(
            kind=error.kind,
            message=_sentence(error.message),
            hint=error.hint,
            exit_code=error.exit_code,
            details=error.traceback if verbose or error.shows_traceback else "",
            failures=error.failures,
        )
    if isinstance(error, _ParserError):
        return _describe_parser_error(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Fault(
            kind="interrupted",
            message="Interrupted.",
            hint="",
            exit_code=ExitCode.INTERRUPTED,
        )
    place = _missing_place() if isinstance(error, FileNotFoundError) else None
    return place or _describe_own_fault(error, verbose=verbose)


def _missing_place() -> Fault | None:
    """What this process lacks, if it does: the directory that it is in, or one for its files."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return _usage(
            "The working directory does not exist any more.",
            "Change to one that does (cd), and run the command again.",
        )
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return _usage(
            "No directory for temporary files can be written to.",
            "Free room on the disk, or name another directory with TMPDIR.",
        )
    return None


def _usage(message: str, hint: str) -> Fault:
    """What the user can put right by asking differently."""
    return Fault(kind="usage", message=message, hint=hint, exit_code=ExitCode.USAGE)


def _describe_parser_error(error: Exception) -> Fault:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = message.replace("Value error, ", "")  # pydantic's, which parses choices for Typer
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "dlprof"
    return _usage(_sentence(message), f"See {command} --help.")


def _describe_own_fault(error: BaseException, *, verbose: bool) -> Fault:
    ask = "Please report it" if verbose else "Please report it with what DLPROF_DEBUG=1 shows"
    return Fault(
        kind="internal",
        message=f"dlprof has a fault of its own: {type(error).__name__}: {error}",
        hint=f"{ask}, together with the command line.",
        exit_code=ExitCode.INTERNAL,
        details="".join(traceback.format_exception(error)) if verbose else "",
    )


def _sentence(text: str) -> str:
    """The text with a full stop, however its author left it."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def show(fault: Fault, *, as_json: bool) -> None:
    """Show it to the user: sentences on stderr, or with ``as_json`` one document on stdout.

    Args:
        fault: What to show.
        as_json: Whether the command was asked for JSON; details still go to stderr.
    """
    if fault.details:
        sys.stderr.write(clean_lines(fault.details.rstrip()) + "\n")
    if as_json:
        sys.stdout.write(error_document(fault) + "\n")
        sys.stdout.flush()
        return
    sys.stderr.write(f"dlprof: {clean(fault.message)}\n")
    if fault.hint:
        sys.stderr.write(f"  {clean(fault.hint)}\n")


def error_document(fault: Fault) -> str:
    """The JSON document that goes to stdout where a command with ``--json`` failed."""
    # All records are loaded with it, which takes longer than the rest of --help.
    from dlprof.records import SCHEMA_VERSION  # noqa: PLC0415

    error: dict[str, object] = {
        "kind": fault.kind,
        "message": fault.message,
        "hint": fault.hint,
    }
    if fault.failures:
        error["failures"] = fault.failures
    return json.dumps({"schema_version": SCHEMA_VERSION, "error": error})
