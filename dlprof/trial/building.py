"""What the process that builds a target answers: the target described, or why there is none."""

from __future__ import annotations

import dataclasses

from dlprof.errors import DlprofError, FileError, TargetError, UsageError
from dlprof.records import Config, LoaderCall, Target
from dlprof.trial.failures import ended, last_lines
from dlprof.trial.log import TrialLog
from dlprof.trial.protocol import Message
from dlprof.units import format_duration

_ERRORS: dict[str, type[DlprofError]] = {
    "target": TargetError,
    "usage": UsageError,
    "file": FileError,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A target as the process that built it describes it.

    Attributes:
        target: For the run header.
        versions: ``torch`` and ``python``.
        fork_hazard: Why trials can't be forked from that process; empty if they can.
    """

    target: Target
    versions: dict[str, str]
    fork_hazard: str = ""


class BuilderDiedError(TargetError):
    """The process that was building the target ended before it had said anything."""

    def __init__(self, status: int, log: TrialLog) -> None:
        super().__init__(
            f"The process that builds the target died: it {ended(status)}.",
            hint="Import the target in a Python of your own to see why; the kernel's "
            "out-of-memory killer may have ended it.",
            traceback=last_lines(log.text()),
        )


def _error_of(message: Message) -> DlprofError:
    """The error that building raised, raised again here."""
    error = message["error"]
    kind = _ERRORS.get(error["kind"], TargetError)
    return kind(error["message"], hint=error["hint"], traceback=error["traceback"])


def built_of(message: Message) -> Built:
    """The target that a process tells of.

    Raises:
        DlprofError: It could not be built.
    """
    if message["event"] == "build_failed":
        raise _error_of(message)
    target = dict(message["target"])
    target["notes"] = tuple(target["notes"])
    if target["own_config"] is not None:
        target["own_config"] = Config(**target["own_config"])
    target["call"] = LoaderCall(**target["call"])
    return Built(
        target=Target(**target),
        versions=message["versions"],
        fork_hazard=message.get("fork_hazard", ""),
    )


def too_slow(patience_s: float, log: TrialLog) -> TargetError:
    """The error of a target whose building takes too long; the log's end shows where it stands."""
    return TargetError(
        f"Building the target did not end within {format_duration(patience_s)}.",
        hint="Raise --timeout if it takes that long; the stack shows what it waits for.",
        traceback=last_lines(log.text()),
    )
