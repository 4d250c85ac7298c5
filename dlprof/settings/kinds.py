"""Kinds of option values; each reads a text or a natural TOML or Python value."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlprof.errors import UsageError
from dlprof.units import (
    MAX_VALUES,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_s,
    parse_ints,
    parse_switches,
    quoted,
)

_NUMBER = re.compile(r"\s*(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})\s*")
# With a letter for the drive, so that C:\data\steps.py:run is understood.
_CALLABLE = re.compile(r"(?:[A-Za-z]:)?[^:]+:[A-Za-z_][\w.]*")
_DEVICE = re.compile(r"auto|cpu|(?:cuda|xpu|mps|mtia|hpu|npu)(?::[0-9]{1,4})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What an option's value may be.

    Attributes:
        read: Makes the value, or raises a ``UsageError`` that quotes what was given.
        allowed: Ends the sentence "this option takes ...".
        metavar: What stands for the value in the help; empty for a switch, which takes none.
        metavar_once: The same where a command takes one value; empty where nothing differs.
        allowed_once: The same where a command takes one value of those that others may try; empty
            where there is no difference.
    """

    read: Callable[[object], Any]
    allowed: str
    metavar: str
    allowed_once: str = ""
    metavar_once: str = ""


def _wrong(raw: object, what: str) -> UsageError:
    return UsageError(f"{quoted(raw)} is not {what}")


def _within(value: float, low: float, high: float, raw: object) -> None:
    if not low <= value <= high:
        raise UsageError(f"{quoted(raw)} is out of range")


def _is_int(raw: object) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool)


def _unique(raw: object, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values without duplicates, in the order given."""
    if not values:
        raise UsageError("an empty list leaves nothing to try")
    if len(values) > MAX_VALUES:
        raise UsageError(f"{quoted(raw)} names more than {MAX_VALUES} values")
    return tuple(dict.fromkeys(values))


def integers(low: int, high: int) -> Kind:
    """Values to try: ``4``, ``0,2,4``, ``0:16:2``, or a list of numbers."""

    def read(raw: object) -> tuple[int, ...]:
        if isinstance(raw, str):
            values: Sequence[Any] = parse_ints(raw)
        else:
            values = raw if isinstance(raw, Sequence) else [raw]
        for value in values:
            if not _is_int(value):
                raise _wrong(raw, "a list of whole numbers")
            _within(value, low, high, value)
        return _unique(raw, values)

    limits = f"from {low} to {high}"
    return Kind(
        read,
        f"whole numbers {limits}, such as 4, 2,4,8 or 2:16:2",
        "VALUES",
        allowed_once=f"a whole number {limits}",
        metavar_once="N",
    )


def switches() -> Kind:
    """Values to try: ``on``, ``off``, ``both``, or a boolean, or a list of booleans."""

    def read(raw: object) -> tuple[bool, ...]:
        if isinstance(raw, str):
            return parse_switches(raw)
        values = raw if isinstance(raw, Sequence) else [raw]
        if not all(isinstance(value, bool) for value in values):
            raise _wrong(raw, "a switch")
        return _unique(raw, values)

    return Kind(read, "on, off or both", "SWITCH", allowed_once="on or off", metavar_once="on|off")


def names(*choices: str) -> Kind:
    """Values to try, out of a few: one, several with commas, or a list."""

    def read(raw: object) -> tuple[str, ...]:
        values = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(values, Sequence):
            raise _wrong(raw, "a list of names")
        return _unique(raw, [_choose(value, choices) for value in values])

    one = _either(choices)
    several = f"{one}, or several of them with commas between"
    return Kind(read, several, "NAMES", allowed_once=one, metavar_once="NAME")


def name(*choices: str) -> Kind:
    """One out of a few."""
    return Kind(lambda raw: _choose(raw, choices), _either(choices), "|".join(choices))


def _choose(raw: object, choices: Sequence[str]) -> str:
    if not isinstance(raw, str) or raw.strip() not in choices:
        raise _wrong(raw, "a choice here")
    return raw.strip()


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def whole(low: int, high: int) -> Kind:
    """One whole number."""

    def read(raw: object) -> int:
        digits = isinstance(raw, str) and re.fullmatch(r"\s*[0-9]{1,15}\s*", raw)
        value = int(digits[0]) if digits else raw
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(raw, "a whole number")
        _within(value, low, high, raw)
        return value

    return Kind(read, f"a whole number from {low} to {high}", "N")


def number(low: float, high: float, example: str) -> Kind:
    """One number, of which a part may count."""
    allowed = f"a number from {low:g} to {high:g}"

    def read(raw: object) -> float:
        value = _number(raw)
        if not low <= value <= high:  # also where it is none
            raise _wrong(raw, allowed)
        return value

    return Kind(read, f"{allowed}, such as {example}", "N")


def share() -> Kind:
    """A share of a whole between 0 and 1: ``0.02``, or a text such as ``2%``."""

    def read(raw: object) -> float:
        percent = isinstance(raw, str) and raw.strip().endswith("%")
        value = _number(raw.strip().removesuffix("%") if isinstance(raw, str) else raw)
        value = value / 100 if percent else value
        if not 0 < value < 1:
            raise _wrong(raw, "a share")
        return value

    return Kind(read, "a share above 0 and below 1, such as 2% or 0.02", "SHARE")


def rate() -> Kind:
    """Bytes a second, or a text such as ``2GB/s``, of which the ``/s`` may be left out."""

    def read(raw: object) -> float:
        if isinstance(raw, str):
            value = float(parse_bytes(raw.strip().removesuffix("/s")))
        else:
            value = _number(raw)
        if not 0 < value < math.inf:
            raise _wrong(raw, "a size a second above 0")
        return value

    return Kind(read, "a size a second above 0, such as 2GB/s", "SIZE/s")


def _number(raw: object) -> float:
    """A number or a text of one; ``nan``, which is within no limits, for anything else."""
    if isinstance(raw, str):
        return float(raw) if _NUMBER.fullmatch(raw) else math.nan
    return _seconds(raw) if _is_int(raw) or isinstance(raw, float) else math.nan


def duration(low: float, high: float, example: str) -> Kind:
    """Seconds, or a text with a unit."""

    def read(raw: object) -> float:
        if isinstance(raw, str):
            value = parse_duration_s(raw)
        elif _is_int(raw) or (isinstance(raw, float) and math.isfinite(raw)):
            value = _seconds(raw)
        else:
            raise _wrong(raw, "a duration")
        _within(value, low, high, raw)
        return value

    limits = f"from {_least_text(low)} to {format_duration(high)}"
    return Kind(read, f"a duration {limits}, such as {example}", "TIME")


def _least_text(seconds: float) -> str:
    """A lower limit as it may be given: figures for people end at a hundredth of a millisecond."""
    return f"{seconds * 1e6:g} µs" if seconds < 1e-5 else format_duration(seconds)


def _seconds(raw: Any) -> float:
    try:
        return float(raw)
    except OverflowError:
        raise UsageError(f"{quoted(raw)} is out of range") from None


def size(low: int, high: int) -> Kind:
    """Bytes, or a text with a unit."""

    def read(raw: object) -> int:
        value = parse_bytes(raw) if isinstance(raw, str) else raw
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(raw, "a size")
        _within(value, low, high, raw)
        return value

    limits = f"from {format_bytes(low)} to {format_bytes(high)}"
    return Kind(read, f"a size {limits}, such as 16GiB or 512MB", "SIZE")


def switch() -> Kind:
    """One switch: ``on``, ``off`` or a boolean."""

    def read(raw: object) -> bool:
        values = parse_switches(raw) if isinstance(raw, str) else (raw,)
        if len(values) != 1 or not isinstance(values[0], bool):
            raise _wrong(raw, "on or off")
        return values[0]

    return Kind(read, "on or off", "")


def target() -> Kind:
    """What to load; whether it is there is found out where it is loaded."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip():
            raise _wrong(raw, "a target")
        return raw.strip()

    allowed = "images, package.module:attr, path/to/file.py:attr or another built-in name"
    return Kind(read, allowed, "TARGET")


def _pattern(pattern: re.Pattern[str], what: str, allowed: str, metavar: str) -> Kind:
    def read(raw: object) -> str:
        if not isinstance(raw, str) or not pattern.fullmatch(raw.strip()):
            raise _wrong(raw, what)
        return raw.strip()

    return Kind(read, allowed, metavar)


def function() -> Kind:
    """A function by name; that it exists is found out where it is imported."""
    return _pattern(
        _CALLABLE,
        "the name of a function",
        "module:function or path/to/file.py:function",
        "MODULE:FUNCTION",
    )


def device() -> Kind:
    """A device by torch's name; that it is there is found out where it is used."""
    allowed = "auto, cpu, or an accelerator such as cuda, cuda:0 or mps"
    return _pattern(_DEVICE, "a device", allowed, "DEVICE")


def arguments() -> Kind:
    """Arguments for the target's callable: ``key=value`` texts, or a table."""

    def read(raw: object) -> Mapping[str, str]:
        if isinstance(raw, Mapping):
            pairs = [(key, _argument(value)) for key, value in raw.items()]
        else:
            pairs = [_pair(item) for item in (_words(raw) if isinstance(raw, str) else _items(raw))]
        for key, _ in pairs:
            if not isinstance(key, str) or not key.isidentifier():
                raise _wrong(key, "the name of an argument")
        repeated = {key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1}
        if repeated:
            raise UsageError(f"{quoted(min(repeated))} is given twice")
        return dict(pairs)

    return Kind(read, 'key=value, in TOML a table such as { root = "data" }', "KEY=VALUE")


def _words(raw: str) -> list[str]:
    try:
        return shlex.split(raw)
    except ValueError:
        raise UsageError(f"{quoted(raw)} has a quotation mark without its partner") from None


def _items(raw: object) -> Sequence[object]:
    if not isinstance(raw, Sequence):
        raise _wrong(raw, "a list of key=value")
    return raw


def _pair(raw: object) -> tuple[str, str]:
    if not isinstance(raw, str) or "=" not in raw:
        raise _wrong(raw, "key=value")
    key, _, value = raw.partition("=")
    return key.strip(), value


def _argument(raw: object) -> str:
    """The text of a table's value, as it would have been typed after ``--arg key=``."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise _wrong(raw, "a finite number")
    if not isinstance(raw, str | int | float):
        raise _wrong(raw, "a text, a number or a switch")
    return str(raw)
