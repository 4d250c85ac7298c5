"""Errors of the user's own code, cut down to what the user wrote; objects' names and attributes."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import traceback
import types
from pathlib import Path
from typing import Any

from dlprof.errors import TargetError, UsageError

OWN = str(Path(__file__).parents[1]) + os.sep
"""What the file names of dlprof's own frames begin with."""
GUARD = 'Put what the script runs under `if __name__ == "__main__":`'
NOT_A_SCRIPT = "Name what makes the loader; a training script is profiled by dlprof run SCRIPT."
"""What to do about a target that is a whole training."""


def refuse_old_torch(version: str) -> None:
    """Refuse a torch that dlprof can't work with; installers may put one beside it.

    Said before anything else is asked of it, or the user's own code would be blamed.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < (2, 6):
        raise UsageError(
            f"dlprof needs torch 2.6 or newer, and this environment has {version}",
            hint="pip install 'torch>=2.6'",
        )


def user_traceback(error: BaseException) -> str:
    """The traceback as Python would print it, without dlprof's frames and the import system's."""
    report = traceback.TracebackException.from_exception(error)
    _cut(report)
    return "".join(report.format())[-8192:]


def without_own_lines(text: str) -> str:
    """A text without the frames of dlprof's, where it is a traceback, as a worker sends it."""
    if f'  File "{OWN}' not in text:
        return text
    kept, inside = [], False
    for line in text.split("\n"):
        if not line.startswith("    "):  # what stands further in belongs to the frame above
            inside = line.startswith(f'  File "{OWN}')
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def target_fault(said: str, error: BaseException, hint: str) -> TargetError:
    """What the user's own code raised as an error of the target: behind ``said``, in one line."""
    return TargetError(f"{said} {one_line(error)}", hint=hint, traceback=user_traceback(error))


def raised_outside(error: BaseException) -> bool:
    """Whether code that is neither dlprof's nor the import system's was running."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(not _is_import_system(frame) and not _is_own(frame) for frame in frames)


def type_name(found: object) -> str:
    """``module.QualName`` of an object's class, or of a class itself."""
    cls = found if isinstance(found, type) else type(found)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"{module}{cls.__qualname__}"


def own_attributes(found: Any, *, of_python: bool = False) -> dict[str, Any]:
    """What an object has as its own, by name: past its properties and its ``__getattr__``.

    Also what those of C's classes hold, as a partial its function and a method its object; with
    ``of_python`` not, as a function's globals are no part of a batch.
    """
    held: dict[Any, Any] = {}
    with contextlib.suppress(AttributeError, TypeError):
        held |= object.__getattribute__(found, "__dict__")
    kind: Any = type(found)
    for name, slot in _slots_of(kind, of_python=of_python):
        with contextlib.suppress(AttributeError):
            held[name] = slot.__get__(found)
    return {str(name): each for name, each in held.items()}


@functools.lru_cache(maxsize=256)
def _slots_of(
    kind: type[Any], *, of_python: bool
) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    own = (
        vars(base).items() for base in kind.__mro__ if not of_python or "__slots__" in vars(base)
    )
    slots = (slot for each in own for slot in each)
    return tuple(each for each in slots if isinstance(each[1], types.MemberDescriptorType))


def one_line(error: BaseException) -> str:
    """``TypeName: first line of the message``, cut where it is very long."""
    name = type(error).__name__
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an exception's own __str__ may be as wrong as all else
        lines = []
    return f"{name}: {lines[0][:300]}" if lines else name


def _cut(report: traceback.TracebackException) -> None:
    frames = [frame for frame in report.stack if not _is_import_system(frame)]
    while frames and _is_own(frames[0]):
        frames.pop(0)
    report.stack = traceback.StackSummary.from_list(frames)
    for linked in (report.__cause__, report.__context__):
        if linked is not None:
            _cut(linked)


def _is_import_system(frame: traceback.FrameSummary) -> bool:
    name = frame.filename.replace("\\", "/")
    return name.startswith("<frozen importlib") or name.endswith("/importlib/__init__.py")


def _is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(OWN)
