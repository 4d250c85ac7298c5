"""What can go wrong, and the exit code that each kind of fault ends the program with."""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Mapping
from typing import Self


class ExitCode(enum.IntEnum):
    """Exit codes that scripts and CI jobs rely on.

    Never 1: a Python traceback ends with 1, and a broken installation must not read as a verdict.
    """

    meaning: str  # as the help and its page in the docs say it

    def __new__(cls, code: int, meaning: str) -> Self:
        """Join a code with what it means."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    OK = 0, "Done; the check passed."
    USAGE = 2, "An option, a configuration, a file or the target can't be used."
    REGRESSION = 3, "The check failed: data loading got slower."
    INCONCLUSIVE = (
        4,
        "The check is inconclusive, with --inconclusive fail; or --self-test saw too little.",
    )
    NO_BASELINE = 5, "There is no comparable baseline."
    NOTHING_MEASURED = 6, "Nothing could be measured."
    INTERNAL = 70, "A fault of dlprof's own."
    INTERRUPTED = 130, "Interrupted; what was measured is kept."


def did_you_mean(typed: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Asks for the names nearest to what was typed, or for the only one that it is a part of.

    Empty where none is as near as ``cutoff``.

    >>> did_you_mean("num_worker", ["num_workers", "seed"])
    'Did you mean num_workers?'
    >>> did_you_mean("titan", ["8x-titan-rtx-shared", "4090-box"])
    'Did you mean 8x-titan-rtx-shared?'
    """
    from difflib import get_close_matches  # where something is wrong

    names = list(known)
    same = [name for name in names if name.lower() == typed.lower()]
    close = same or get_close_matches(typed, names, most, cutoff)
    within = [name for name in names if typed and typed in name]
    close = close or (within if len(within) == 1 else [])
    return f"Did you mean {' or '.join(close)}?" if close else ""


class DlprofError(Exception):
    """A fault with one sentence of what is wrong and one of what to do about it.

    Args:
        message: What is wrong, one sentence, naming the value that the user gave.
        hint: What to do about it, one sentence; empty where the message says it already.
        traceback: What the user's own code, or the processes that it ran in, wrote; mostly empty.
        failures: Kind and message of each trial that failed or was skipped, where that is why.

    Attributes:
        failures: Each different one once, most frequent first: ``kind``, ``message``, ``count``.
        shows_traceback: Whether ``traceback`` is the user's own code's, which shows where the fault
            lies, so that it is shown without being asked for.
    """

    kind = "error"
    exit_code = ExitCode.INTERNAL
    shows_traceback = False

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        traceback: str = "",
        failures: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.failures: tuple[Mapping[str, str | int], ...] = tuple(
            {"kind": kind, "message": text, "count": count}
            for (kind, text), count in collections.Counter(failures).most_common()
        )
        self.message = message
        self.hint = hint
        self.traceback = traceback

    def __str__(self) -> str:
        """What is wrong and what to do about it, as tracebacks and logs show it.

        >>> str(FileError("The disk is full", hint="Free some space."))
        'The disk is full. Free some space.'
        """
        stop = "" if not self.hint or self.message.endswith((".", "!", "?")) else "."
        return f"{self.message}{stop} {self.hint}".rstrip()

    @property
    def document(self) -> dict[str, object]:
        """As scripts read it: ``kind``, ``message``, ``hint``, and ``failures`` where there are."""
        found: dict[str, object] = {"kind": self.kind, "message": self.message, "hint": self.hint}
        return found | ({"failures": list(self.failures)} if self.failures else {})


class UsageError(DlprofError):
    """An option, argument or configuration value that can't be used."""

    kind = "usage"
    exit_code = ExitCode.USAGE


class FileError(DlprofError):
    """A file of the user's that can't be read, written or understood."""

    kind = "file"
    exit_code = ExitCode.USAGE


def refuse_newer(what: object, version: int, known: int) -> None:
    """Refuse what a later version of dlprof wrote.

    Args:
        what: Names the file, or the place in it.
        version: Of the format, as it says itself.
        known: The last one that is read.
    """
    if version > known:
        raise FileError(
            f"{what} was written by a newer dlprof "
            f"(version {version}; this one reads up to {known})",
            hint="Upgrade dlprof, from where you installed it.",
        )


def read_fault(path: object, error: OSError) -> FileError:
    """The sentence for what the system said when a file was opened or read."""
    hint = "Check the path and its permissions."
    return FileError(f"{path} can't be read: {error.strerror}", hint=hint)


class TargetError(DlprofError):
    """A TARGET that can't be resolved, called or loaded from; ``message`` says which part."""

    kind = "target"
    exit_code = ExitCode.USAGE
    shows_traceback = True


class BaseTargetError(TargetError):
    """A TARGET that works in the change, and not in what it is checked against."""


class NothingMeasuredError(DlprofError):
    """Every trial failed or none could be started."""

    kind = "nothing_measured"
    exit_code = ExitCode.NOTHING_MEASURED


class BaseNotMeasuredError(NothingMeasuredError):
    """What the change is checked against can't be loaded from, and the change can."""


class InterruptedSweepError(DlprofError):
    """The user ended the measuring; what was measured is kept."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED
