"""Options that say where settings are wanted, for commands that answer from a saved run."""
# ruff: noqa: PLC0415 - imported when a command runs, so that --help answers at once

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlprof.settings.options import ELSEWHERE_PANEL, option_named, parse_option

if TYPE_CHECKING:
    from dlprof.advise.situation import Situation
    from dlprof.machine.profiles import MachineProfile
    from dlprof.records import Run

PLACE = ("cores", "assume_background", "speed")
"""Keys of the options that describe it."""

MachineFile = Annotated[
    Path | None,
    typer.Option(
        "--machine",
        metavar="NAME|FILE",
        help="Answer for a machine of dlprof machine --list, or that a TOML file describes.",
        rich_help_panel=ELSEWHERE_PANEL,
    ),
]


def profile_of(path: Path | None) -> MachineProfile | None:
    """The machine that ``--machine`` names; ``None`` without one.

    Raises:
        FileError: There is none of that name, or the file can't be read or is no profile.
    """
    if path is None:
        return None
    from dlprof.machine.profiles import read_profile

    return read_profile(path)


def situation_of(run: Run, given: Mapping[str, Any], machine: Path | None) -> Situation:
    """What the options ask of a run together.

    Args:
        run: The run.
        given: ``ranks``, ``step_time``, ``storage_limit`` and those of a place, as far as given.
        machine: What ``--machine`` names.

    Raises:
        UsageError: A value is none, or out of range, or the run holds no calibration.
        FileError: There is no such machine, or its file can't be read or is no profile.
    """
    from dlprof.advise.situation import Situation
    from dlprof.records import Constraints

    profile = profile_of(machine)
    step_s = read(given, "step_time")
    return Situation.of(
        run,
        Constraints(
            ranks=read(given, "ranks") or 1,
            step_s=(step_s or 0.0) if "step_time" in given else None,
            **place_in(given),
        ),
        None if profile is None else profile.to_machine(),
        ghz=None if profile is None else profile.base_ghz,
        storage_bytes_per_s=read(given, "storage_limit"),
    )


def place_in(given: Mapping[str, Any]) -> dict[str, Any]:
    """The cores that are asked for, as fields of ``Constraints``."""
    return {option_named(key).field: read(given, key) for key in PLACE}


def read(given: Mapping[str, Any], key: str) -> Any:
    """The value of an option; ``None`` where it wasn't given.

    Raises:
        UsageError: It is none, or out of range.
    """
    return parse_option(key, given[key]) if key in given else None
