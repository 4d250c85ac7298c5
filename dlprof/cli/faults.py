"""The one place where exceptions turn into sentences and exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import click

from dlprof.errors import DlprofError, InterruptedSweepError, UsageError
from dlprof.report.text import clean, clean_lines


class _OwnFaultError(DlprofError):
    """What nobody foresaw."""

    kind = "internal"


def describe(error: BaseException, *, verbose: bool) -> DlprofError:
    """What to say about an exception that ended a command."""
    if isinstance(error, DlprofError):
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "dlprof"
        hint = f"See {command} --help."
        if isinstance(error, click.NoSuchOption) and (others := _with_option(error.option_name)):
            hint = f"{' and '.join(others[:2])} {'have' if others[1:] else 'has'} it. {hint}"
        return UsageError(error.format_message(), hint=hint)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return InterruptedSweepError("Interrupted.")
    if isinstance(error, FileNotFoundError):
        try:
            Path.cwd()
        except FileNotFoundError:
            return UsageError(
                "The working directory does not exist any more.",
                hint="Change to one that does (cd), and run the command again.",
            )
        import tempfile  # with all that compresses, which takes a while

        try:
            tempfile.gettempdir()
        except FileNotFoundError:
            return UsageError(
                "No directory for temporary files can be written to.",
                hint="Free room on the disk, or name another directory with TMPDIR.",
            )
    ask = "Please report it" if verbose else "Please report it with what DLPROF_DEBUG=1 shows"
    return _OwnFaultError(
        f"dlprof has a fault of its own: {type(error).__name__}: {error}",
        hint=f"{ask}, together with the command line.",
        traceback="".join(traceback.format_exception(error)),
    )


def _with_option(flag: str) -> list[str]:
    """The commands that take an option."""
    from dlprof.cli.app import program  # which loads them all

    group = program()
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return [
        f"dlprof {name}"
        for name, command in commands.items()
        if command is not None and any(flag in each.opts for each in command.params)
    ]


def show(fault: DlprofError, *, as_json: bool, verbose: bool = False) -> None:
    """Show it to the user: sentences on stderr, or with ``as_json`` one document on stdout."""
    message = fault.message
    if not message.endswith((".", "!", "?", "?)")):
        message += "."
    if fault.traceback and (verbose or fault.shows_traceback):
        sys.stderr.write(clean_lines(fault.traceback.rstrip()) + "\n")
    if as_json:
        # All records are loaded with it, which takes longer than the rest of --help.
        from dlprof.records import SCHEMA_VERSION

        error = {**fault.document, "message": message}
        sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, "error": error}) + "\n")
        sys.stdout.flush()
        return
    sys.stderr.write(f"dlprof: {clean(message)}\n")
    if fault.hint:
        sys.stderr.write(f"  {clean(fault.hint)}\n")
