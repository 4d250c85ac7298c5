"""The program's way in and out: run a command, and end every fault with the right exit code.

This is the one place where exceptions turn into sentences and exit codes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import os
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from dlprof.cli.app import COMPLETES, program
from dlprof.cli.commands import IN_ASCII, silence_stdout, taking_values
from dlprof.errors import DlprofError, ExitCode, InterruptedSweepError, UsageError
from dlprof.report.text import clean, clean_lines


def main() -> None:
    """Run the program with the process's own arguments and end the process with its exit code."""
    runs_script = sys.argv[1:2] == ["run"]
    # A process can be started with its streams closed; Python then has None in their place.
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # open to the very end
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the program; but a script that is
        # run finds its streams as Python passes them on.
        if isinstance(stream, io.TextIOWrapper) and not runs_script:
            stream.reconfigure(errors=IN_ASCII)
    code = run(sys.argv[1:], os.environ)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if not runs_script:
        # The interpreter looks for garbage once more before it ends: a tenth of a short command.
        gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command; its exit code, one of ``dlprof.errors.ExitCode``."""
    code: int = ExitCode.OK
    try:
        if environ.get(COMPLETES):  # a shell asks what could come next
            from dlprof.cli import completion  # rarely wanted

            return completion.answer(environ[COMPLETES])
        command = program()
        try:
            # Click's own way in ends some faults with 1.
            with command.make_context("dlprof", list(arguments)) as context:
                command.invoke(context)
        except click.exceptions.Exit as request:
            code = request.exit_code
        sys.stdout.flush()  # now, where a reader that went away can still be dealt with
    except BrokenPipeError:
        # Whoever read stdout has seen enough; that is no fault of the command.
        silence_stdout()
    except (Exception, KeyboardInterrupt) as error:  # the one place that maps them all
        with _deaf_to_interrupts():
            flags = _flags(arguments)
            verbose = bool(environ.get("DLPROF_DEBUG") or flags & {"-v", "--verbose"})
            fault = describe(error, verbose=verbose)
            if arguments[:1] == ["check"]:  # GitHub says, too, why it ended without a verdict
                from dlprof.cli.check import report_to_github

                report_to_github(fault, os.environ, fails=True)
            words = {*flags, *map("=".join, itertools.pairwise(arguments))}
            # Of a script it takes a file, or is the script's own, as stdout is.
            as_json = bool(words & {"--json", "--format=json"}) and arguments[:1] != ["run"]
            with contextlib.suppress(OSError):
                show(fault, as_json=as_json, verbose=verbose)
        return fault.exit_code
    return code


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """While a fault is reported: a second Ctrl-C would end it with a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _flags(arguments: Sequence[str]) -> set[str]:
    """The words that may be flags, known even where the arguments could not be parsed."""
    commands = _commands(program())
    with_values = {flag for _, each in commands for flag in taking_values(each.params)}
    found: set[str] = set()
    before = ""
    for word in arguments:
        if word == "--" and before not in with_values:
            break
        found.add(word)
        before = word
    return found


def _commands(group: click.Group, name: str = "dlprof") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {word}")
        elif command is not None:
            yield f"{name} {word}", command


def _there(command: click.Command) -> list[click.Parameter]:
    """What a command takes, without options that are gone, which only say so."""
    return [each for each in command.params if not hasattr(each, "hidden") or each.help]


class _OwnFaultError(DlprofError):
    """What nobody expected."""

    kind = "internal"


def describe(error: BaseException, *, verbose: bool) -> DlprofError:
    """What to say about an exception that ended a command."""
    if isinstance(error, DlprofError):
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "dlprof"
        hint = f"See {command} --help."
        if isinstance(error, click.NoSuchOption) and context is not None:
            from difflib import get_close_matches  # where something is wrong

            flag, own = error.option_name, _there(context.command)
            # By their words: the dashes alone would make any two alike.
            mine = {o.lstrip("-"): o for p in own for o in (*p.opts, *p.secondary_opts)}
            word = flag.lstrip("-")  # where one is all but typed, none that is less like it
            close = get_close_matches(word, mine, cutoff=0.8) or get_close_matches(word, mine)
            near = [mine[each] for each in close]
            error = click.NoSuchOption(flag, possibilities=near, ctx=context)
            known = ((name, each.opts) for name, c in _commands(program()) for each in _there(c))
            if others := [name for name, opts in known if flag in opts]:
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
    sys.stderr.write(_folded(f"dlprof: {clean(message)}"))
    if fault.hint:
        sys.stderr.write(_folded(f"  {clean(fault.hint)}"))


def _folded(text: str) -> str:
    """A paragraph as lines of the terminal, no word cut; one line where stderr is none.

    A command that ends it has a line of its own to be copied, however long.
    """
    if not sys.stderr.isatty():
        return f"{text}\n"
    found = re.match(r"(.*: )((?:\w+ .*-m )?dlprof .*[^.])\Z", text)  # as a launcher starts ranks
    said, command = found.groups() if found and ". " not in found[2] else (text, "")
    lines = textwrap.wrap(
        said,
        width=max(20, os.get_terminal_size(2).columns or 80),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([*lines, *([f"  {command}"] if command else [])]) + "\n"
