"""Sides of a check in errors: which one it is, and whether two can be compared at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dlprof.engine.checking.compared import NO_SUBMODULES, SidePlan
from dlprof.errors import BaseTargetError, DlprofError, TargetError, UsageError
from dlprof.records.gate import Side
from dlprof.trial.side import BuiltSide

_NEEDED = "What is checked has to work in the base too."
_UNTRACKED = "Files that git doesn't track, such as data, are named by absolute paths."

_NO_MODULE = "No module named"
_SUBMODULES = (
    "The base is checked out without its submodules: check against a directory that has them, with "
    "--against DIRECTORY."
)


def side_name(plan: SidePlan) -> str:
    """A side for people: ``The base (main, 1a2b3c4)``."""
    compared = plan.compared
    commit = f", {compared.commit[:7]}" if compared.commit else ""
    return f"The {plan.side} ({compared.name}{commit})"


def error_of_side(plan: SidePlan, error: DlprofError) -> DlprofError:
    """The same error, with the name of the side that has it."""
    hint = error.hint
    if plan.side == "base" and not isinstance(error, UsageError):
        hint = _hint_of_base(plan, error)
    kind = type(error)
    if plan.side == "base" and isinstance(error, TargetError):
        kind = BaseTargetError
    return kind(f"{side_name(plan)}: {error.message}", hint=hint, traceback=error.traceback)


def _hint_of_base(plan: SidePlan, error: DlprofError) -> str:
    """What to do about an error that the base has, which may lack more than it seems."""
    bare = NO_SUBMODULES in plan.compared.note
    if bare and _NO_MODULE in error.message:
        return _SUBMODULES
    parts = (error.hint, _NEEDED, _SUBMODULES if bare else "")
    untracked = _UNTRACKED if plan.compared.commit else ""
    return " ".join(filter(None, (*parts, untracked)))


def refuse_unlike(plans: Mapping[Side, SidePlan], built: Mapping[Side, BuiltSide]) -> None:
    """Refuse sides that load different data, or the same code in spite of all.

    Args:
        plans: What the sides are.
        built: What they told of their targets; nothing is refused of one alone.

    Raises:
        TargetError: They load different data.
        UsageError: The base's code comes from the change's directory.
    """
    if len(built) < 2:
        return
    base, change = built["base"], built["change"]
    lengths = (base.target.length, change.target.length)
    if None not in lengths and lengths[0] != lengths[1]:
        names = [f"t{side_name(plan)[1:]}" for plan in (plans["base"], plans["change"])]
        raise TargetError(
            f"The two sides load different data: {names[0]} has {lengths[0]} samples, "
            f"{names[1]} has {lengths[1]}",
            hint="Give both the same data, by --arg for example.",
        )
    there, here = plans["base"].root, plans["change"].root
    if there == here or not base.file:
        return
    file = Path(base.file).resolve()
    if file.is_relative_to(here) and not file.is_relative_to(there):
        raise UsageError(
            f"Both sides load the same code: the base takes {file} from the working tree",
            hint="The package is installed so that it points there; name the target by its "
            "file, as path/to/file.py:attr.",
        )
