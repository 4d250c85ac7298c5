"""The limits of ``recommend`` from the texts of its flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dlprof.errors import UsageError
from dlprof.machine.profiles import machine_from_profile, read_profile
from dlprof.records import Constraints, Machine
from dlprof.units import parse_bytes, parse_duration_s, quoted

_Value = TypeVar("_Value", int, float)


def read_constraints(
    *,
    max_workers: str | None,
    max_ram: str | None,
    max_shm: str | None,
    ranks: str | None,
    step_time: str | None,
) -> Constraints:
    """The limits that a recommendation must keep.

    Args:
        max_workers: Workers of one rank's loader; ``None`` is no limit.
        max_ram: Memory of all ranks together.
        max_shm: Shared memory of all ranks together.
        ranks: Training processes on the machine; ``None`` is 1.
        step_time: Length of a training step; ``None`` is the step that was measured.

    Raises:
        UsageError: For a text that is no such value, or a value out of range.
    """
    return Constraints(
        max_workers=_read("--max-workers", max_workers, _whole_number, least=0),
        max_ram_bytes=_read("--max-ram", max_ram, parse_bytes, least=1),
        max_shm_bytes=_read("--max-shm", max_shm, parse_bytes, least=0),
        ranks=_read("--ranks", ranks, _whole_number, least=1) or 1,
        step_s=_read("--step-time", step_time, parse_duration_s, least=0.0),
    )


def _read(
    flag: str, text: str | None, parse: Callable[[str], _Value], *, least: _Value
) -> _Value | None:
    """The value of one flag, with the flag's name in front of whatever is wrong with it."""
    if text is None:
        return None
    try:
        value = parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", hint=error.hint) from None
    if value < least:
        raise UsageError(f"{flag} is {quoted(text)}", hint=f"Give a value of at least {least}.")
    return value


def _whole_number(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or len(text) > 9:
        raise UsageError(f"{quoted(text)} is not a whole number", hint="Give a number such as 4.")
    return int(text)


def read_machine(path: Path) -> Machine:
    """The machine that a profile describes, as far as limits need it.

    Raises:
        FileError: If the file can't be read or is no machine profile.
    """
    return machine_from_profile(read_profile(path))
