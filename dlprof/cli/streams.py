"""Results go to stdout, whoever reads it and whenever they stop."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from dlprof.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

    from dlprof.report.document import Document


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler: dlprof's own characters in ASCII, any other as its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    forms = {"µ": "u", "μ": "u", "±": "+/-", "…": "..."}
    text = "".join(forms.get(each, each) for each in error.object[error.start : error.end])
    return text.encode("ascii", "backslashreplace").decode(), error.end


IN_ASCII = "dlprof-in-ascii"
"""Name of the error handler for streams whose encoding lacks a character."""
codecs.register_error(IN_ASCII, _in_ascii)


def write_result(text: str) -> None:
    """Write a result to stdout as it is, with one line end behind it."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        raise FileError(
            f"The result can't be written to stdout: {error.strerror}",
            hint="The run file is kept; dlprof recommend shows it again.",
        ) from None


def write_file(path: Path, written: str | bytes, *, quiet: bool, also: str = "") -> None:
    """Write a result to a file, and say so on stderr, and what else was written."""
    from dlprof.files import replace_file  # most results go to stdout

    if isinstance(written, str):
        # Lone surrogates, which a file name may bring, have no bytes of their own.
        written = written.encode("utf-8", errors="replace")
    replace_file(path, written)
    if not quiet:
        sys.stderr.write(f"Written: {path}{also}\n")


def print_result(document: Document, *, verbose: bool = False) -> None:
    """Print a document to stdout, as wide and as colorful as stdout allows."""
    write_result(_rendered(document, sys.stdout, verbose=verbose))


def print_report(document: Document) -> None:
    """Print a document to the process's stderr, wherever ``sys.stderr`` leads by now.

    Raises:
        OSError: It takes no more.
        ValueError: It is closed.
    """
    stream = sys.__stderr__
    if stream is not None:
        encoding = _encoding(stream)
        text = _rendered(document, stream).encode(encoding, IN_ASCII).decode(encoding)
        stream.write(f"\n{text}\n")
        stream.flush()


def _rendered(document: Document, stream: TextIO, *, verbose: bool = False) -> str:
    from rich.console import Console  # --help and --json answer without it

    from dlprof.report.terminal import rendered  # as above

    there = Console(file=stream, markup=False, highlight=False, emoji=False)
    # Rich itself ends the program with 1 where the reader has gone, and fails where a stream is
    # full: it renders for the stream, but not to it.
    console = Console(
        # By whose encoding Rich and dlprof choose blocks or ASCII.
        file=io.TextIOWrapper(io.BytesIO(), encoding=_encoding(stream)),
        width=there.width,
        color_system="auto" if there.color_system else None,
        force_terminal=there.is_terminal,
        no_color=there.no_color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    return rendered(document, console, verbose=verbose)


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def silence_stdout() -> None:
    """Drop what is still buffered for a reader that is gone.

    Without it the interpreter flushes once more at its end, fails, and exits with 120.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
