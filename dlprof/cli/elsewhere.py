"""Options that say where settings are wanted, for commands that answer from a saved run."""
# ruff: noqa: PLC0415 - imported when a command runs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dlprof.advise.situation import Situation
    from dlprof.machine.profiles import MachineProfile
    from dlprof.records import Run

PLACE = "Elsewhere"
"""The heading of these options in a command's help."""

MachineFile = Annotated[
    Path | None,
    typer.Option(
        "--machine",
        metavar="NAME|FILE",
        help="Answer for a machine of dlprof machine --list, or that a TOML file describes.",
        rich_help_panel=PLACE,
    ),
]
Cores = Annotated[
    str | None,
    typer.Option(
        "--cores",
        metavar="N",
        help="Cores for all ranks together. Default: the machine's.",
        rich_help_panel=PLACE,
    ),
]
Neighbours = Annotated[
    str | None,
    typer.Option(
        "--assume-background",
        "--neighbours",  # its earlier name
        metavar="CORES",
        help="Cores that other processes keep busy.",
        rich_help_panel=PLACE,
    ),
]
Speed = Annotated[
    str | None,
    typer.Option(
        "--speed",
        metavar="X",
        help="Speed of a core relative to the measured machine, such as 0.8. "
        "Default: by CPU model and clock.",
        rich_help_panel=PLACE,
    ),
]
StorageLimit = Annotated[
    str | None,
    typer.Option(
        "--storage-limit",
        metavar="SIZE/s",
        help="What the storage gives to all ranks together, such as 2GB/s.",
        rich_help_panel=PLACE,
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


def situation_of(
    run: Run,
    *,
    machine: Path | None,
    cores: str | None,
    ranks: str | None,
    step_time: str | None,
    storage_limit: str | None,
    neighbours: str | None,
    speed: str | None,
) -> Situation:
    """What the options ask of a run together.

    Raises:
        UsageError: A value is none, or out of range, or the run holds no calibration.
        FileError: There is no such machine, or its file can't be read or is no profile.
    """
    from dlprof.advise.situation import Situation
    from dlprof.records import Constraints

    profile = profile_of(machine)
    return Situation.of(
        run,
        Constraints(
            ranks=option("ranks", ranks) or 1,
            step_s=None if step_time is None else option("step_time", step_time) or 0.0,
            cores=option("cores", cores),
            neighbours=option("assume_background", neighbours),
            speed=option("speed", speed),
        ),
        None if profile is None else profile.to_machine(),
        ghz=None if profile is None else profile.base_ghz,
        storage_bytes_per_s=option("storage_limit", storage_limit),
    )


def option(key: str, text: str | None) -> Any:
    """The value of an option; ``None`` where it wasn't given.

    Raises:
        UsageError: It is none, or out of range.
    """
    if text is None:
        return None
    from dlprof.settings import parse_option

    return parse_option(key, text)
