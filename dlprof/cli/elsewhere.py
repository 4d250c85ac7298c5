"""Options that say where settings are wanted, for commands that answer from a saved run."""
# ruff: noqa: PLC0415 - imported when a command runs, so that --help answers at once

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlprof.errors import UsageError
from dlprof.units import parse_bytes, quoted

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

_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")
_MOST_CORES = 100_000.0
_MOST_SPEED = 100.0
_LEAST = 0.01


def number(
    flag: str, text: str | None, *, low: float, high: float, example: str = "8"
) -> float | None:
    """A number that an option was given; ``None`` where it wasn't.

    Raises:
        UsageError: It is none, or out of range.
    """
    if text is None:
        return None
    value = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    if not low <= value <= high:
        raise UsageError(
            f"{flag}: {quoted(text)} is not a number from {low:g} to {high:g}",
            hint=f"Give one, such as {flag} {example}.",
        )
    return value


def cores_of(text: str | None) -> float | None:
    """``--cores``; a part of a core counts, as quotas have it."""
    return number("--cores", text, low=_LEAST, high=_MOST_CORES)


def neighbours_of(text: str | None) -> float | None:
    """``--assume-background``."""
    return number("--assume-background", text, low=0.0, high=_MOST_CORES, example="12")


def speed_of(text: str | None) -> float | None:
    """``--speed``."""
    return number("--speed", text, low=_LEAST, high=_MOST_SPEED, example="0.8")


def storage_limit_of(text: str | None) -> float | None:
    """Bytes a second from ``2GB/s``; the ``/s`` may be left out.

    Raises:
        UsageError: It is no size, or nothing.
    """
    if text is None:
        return None
    hint = "Give a size a second, such as --storage-limit 2GB/s."
    try:
        size = parse_bytes(text.strip().removesuffix("/s"))
    except UsageError as error:
        raise UsageError(f"--storage-limit: {error.message}", hint=hint) from None
    if not size:
        raise UsageError("--storage-limit: storage that gives nothing feeds nobody", hint=hint)
    return float(size)


def share_of(flag: str, text: str | None) -> float | None:
    """A share of time from ``2%`` or ``0.02``.

    Raises:
        UsageError: It is none, or not between 0 and 1.
    """
    if text is None:
        return None
    bare = text.strip()
    digits = bare.removesuffix("%").strip()
    value = float(digits) if _NUMBER.fullmatch(digits) else math.nan
    value = value / 100 if bare.endswith("%") else value
    if not 0 < value < 1:
        raise UsageError(
            f"{flag}: {quoted(text)} is not a share of time", hint=f"Give one, such as {flag} 2%."
        )
    return value


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
            ranks=_option("ranks", ranks) or 1,
            step_s=None if step_time is None else _option("step_time", step_time) or 0.0,
            cores=cores_of(cores),
            neighbours=neighbours_of(neighbours),
            speed=speed_of(speed),
        ),
        None if profile is None else profile.to_machine(),
        ghz=None if profile is None else profile.base_ghz,
        storage_bytes_per_s=storage_limit_of(storage_limit),
    )


def _option(key: str, text: str | None) -> Any:
    """The value of an option that a sweep has too."""
    if text is None:
        return None
    from dlprof.settings import parse_option

    return parse_option(key, text)
