"""The program's way in and out: run a command, and end every fault with the right exit code."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from dlprof.cli import faults, streams
from dlprof.cli.app import COMMANDS, program
from dlprof.errors import ExitCode

_COMPLETES = "_DLPROF_COMPLETE"
"""The variable by which a shell's completion asks, as Typer names it."""


def main() -> None:
    """Run the program with the process's own arguments and end the process with its exit code."""
    runs_script = sys.argv[1:2] == ["run"]
    # A process can be started with its streams closed; Python then has None in their place.
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the very end
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the program; but a script that is
        # run finds its streams as Python hands them over.
        if isinstance(stream, io.TextIOWrapper) and not runs_script:
            stream.reconfigure(errors=streams.IN_ASCII)
    code = run(sys.argv[1:], os.environ)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if not runs_script:
        # The interpreter looks for garbage once more before it ends: a tenth of a short command.
        gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command.

    Args:
        arguments: The command line behind the program's name.
        environ: Environment variables; ``DLPROF_DEBUG`` asks for tracebacks of dlprof's own faults.

    Returns:
        The exit code, one of ``dlprof.errors.ExitCode``.
    """
    try:
        if _COMPLETES in environ:  # a shell asks what could come next
            program()(prog_name="dlprof")
        code = _invoke(list(arguments))
        streams.flush_stdout()
    except BrokenPipeError:
        # Whoever read stdout has seen enough; that is no fault of the command.
        streams.silence_stdout()
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that maps them all
        with _deaf_to_interrupts():
            fault = faults.describe(error, verbose=_wants_tracebacks(arguments, environ))
            with contextlib.suppress(OSError):
                faults.show(fault, as_json=_has_flag(arguments, "--json"))
        return fault.exit_code
    return code


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """While a fault is told: a second Ctrl-C would end it with a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _invoke(arguments: list[str]) -> int:
    """Parse and run, without Typer's own handling of faults, which ends some of them with 1."""
    first = next(iter(arguments), None)
    command = program(first if first in COMMANDS else None)
    try:
        with command.make_context("dlprof", arguments) as context:
            command.invoke(context)
    except typer.Exit as request:
        return request.exit_code
    return ExitCode.OK


def _has_flag(arguments: Sequence[str], *names: str) -> bool:
    """Whether a flag stands among the arguments, known even where they could not be parsed."""
    taking_values = _options_with_values()
    before = ""
    for word in arguments:
        if word in names:
            return True
        if word == "--" and before not in taking_values:
            return False
        before = word
    return False


def _options_with_values() -> frozenset[str]:
    """Every option that takes the word behind it, whatever that looks like."""
    return frozenset(
        name
        for parameter in _parameters(program())
        if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
        for name in parameter.opts
    )


def _parameters(group: TyperGroup) -> Iterator[Any]:
    """The parameters of all commands, those of groups of commands among them."""
    for command in group.commands.values():
        yield from command.params
        if isinstance(command, TyperGroup):
            yield from _parameters(command)


def _wants_tracebacks(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    return bool(environ.get("DLPROF_DEBUG")) or _has_flag(arguments, "-v", "--verbose")
