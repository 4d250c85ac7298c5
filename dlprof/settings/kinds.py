"""Kinds of option values; each reads a text or a natural TOML or Python value."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlprof.errors import UsageError
from dlprof.units import (
    MAX_VALUES,
    STEP_FORMS,
    StepTime,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_s,
    parse_ints,
    parse_step,
    parse_switches,
    quoted,
)

_NUMBER = re.compile(r"\s*(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What an option's value may be."""

    # Makes the value, or raises a ``UsageError`` that quotes what was given.
    read: Callable[[object], Any]
    allowed: str  # ends the sentence "this option takes ..."
    metavar: str  # what stands for the value in the help; empty for a switch, which takes none
    once: Kind | None = None  # of each value, where there may be several
    unit: str = ""  # what the name of the option's field ends with beside its key


def _wrong(raw: object, what: str) -> UsageError:
    return UsageError(f"{quoted(raw)} is not {what}")


def _several(one: Kind, parse: Callable[[str], Sequence[Any]], allowed: str, metavar: str) -> Kind:
    """Values to try: a text of them, one, or a list; without duplicates, in that order."""

    def read(raw: object) -> tuple[Any, ...]:
        values = parse(raw) if isinstance(raw, str) else raw
        checked = [
            one.read(each) for each in (values if isinstance(values, Sequence) else [values])
        ]
        if not checked:
            raise UsageError("an empty list leaves nothing to try")
        if len(checked) > MAX_VALUES:
            raise UsageError(f"{quoted(raw)} names more than {MAX_VALUES} values")
        return tuple(dict.fromkeys(checked))

    return Kind(read, allowed, metavar, one)


def integers(low: int, high: int) -> Kind:
    """Values to try: ``4``, ``0,2,4``, ``0:16:2``, or a list of numbers."""
    allowed = f"whole numbers from {low} to {high}, such as 4, 2,4,8 or 2:16:2"
    return _several(whole(low, high), parse_ints, allowed, "VALUES")


def switches() -> Kind:
    """Values to try: ``on``, ``off``, ``both``, or a boolean, or a list of booleans."""
    one = dataclasses.replace(switch(), metavar="on|off")
    return _several(one, parse_switches, "on, off or both", "SWITCH")


def names(*choices: str) -> Kind:
    """Values to try, out of a few: one, several with commas, or a list."""
    one = dataclasses.replace(name(*choices), metavar="NAME")
    allowed = f"{one.allowed}, or several of them with commas between"
    return _several(one, lambda raw: raw.split(","), allowed, "NAMES")


def name(*choices: str) -> Kind:
    """One out of a few."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw.strip() not in choices:
            raise _wrong(raw, "a choice here")
        return raw.strip()

    *others, last = choices
    return Kind(read, f"{', '.join(others)} or {last}", "|".join(choices))


def _amount(
    parse: Callable[[str], object],
    what: str,
    within: tuple[float, float],
    allowed: str,
    metavar: str,
    *,
    of: type[int | float] = float,
    beyond: str = "is out of range",
    unit: str = "",
) -> Kind:
    """One number within limits; what ``parse`` makes no number of a text is refused.

    Errors say ``what`` it should be, or that a number ``beyond`` the limits is none.
    """

    def read(raw: object) -> Any:
        value = parse(raw) if isinstance(raw, str) else raw
        plain = isinstance(value, int if of is int else int | float)
        if not plain or isinstance(value, bool) or value in {math.inf, -math.inf}:
            raise _wrong(raw, what)
        number: Any = value
        if not within[0] <= number <= within[1]:  # also where it is nan
            raise UsageError(f"{quoted(raw)} {beyond}")
        return of(number)

    return Kind(read, allowed, metavar, unit=unit)


def whole(low: int, high: int) -> Kind:
    """One whole number."""

    def parse(raw: str) -> object:
        return int(raw) if re.fullmatch(r"\s*[0-9]{1,15}\s*", raw) else raw

    allowed = f"a whole number from {low} to {high}"
    return _amount(parse, "a whole number", (low, high), allowed, "N", of=int)


def _number(raw: str) -> object:
    return float(raw) if _NUMBER.fullmatch(raw) else raw


def number(low: float, high: float, example: str) -> Kind:
    """One number, of which a part may count."""
    what = f"a number from {low:g} to {high:g}"
    allowed = f"{what}, such as {example}"
    return _amount(_number, what, (low, high), allowed, "N", beyond=f"is not {what}")


def share() -> Kind:
    """A share of a whole between 0 and 1: ``0.02``, or a text such as ``2%``."""

    def parse(raw: str) -> object:
        value = _number(raw.strip().removesuffix("%"))
        return value / 100 if isinstance(value, float) and raw.strip().endswith("%") else value

    within = math.nextafter(0, 1), math.nextafter(1, 0)
    allowed = "a share above 0 and below 1, such as 2% or 0.02"
    return _amount(parse, "a share", within, allowed, "SHARE", beyond="is not a share")


def percent(low: float, high: float, example: str) -> Kind:
    """A share of a whole that may be above 1: ``5%``, ``0.05``, or as a text also ``5``."""

    def read(raw: object) -> float:
        text = str(raw).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            raise _wrong(raw, "a share") from None
        if not isinstance(raw, str) and 1 <= number < math.inf:
            # As a text it is meant in percent; as a number it may be a fraction.
            raise UsageError(f"{quoted(raw)} may mean {number:g}% or {100 * number:g}%")
        value = number / 100 if text.endswith("%") or number >= 1 else number
        if not low <= value <= high:
            raise UsageError(f"{quoted(raw)} is out of range")
        return value

    limits = f"from {100 * low:.3g}% to {100 * high:.6g}%"
    return Kind(read, f"a share {limits}, such as '{example}'", "SHARE")


def rate() -> Kind:
    """Bytes a second, or a text such as ``2GB/s`` or ``2GBps``, whose end may be left out."""

    def parse(raw: str) -> float:
        return float(parse_bytes(raw.strip().removesuffix("/s").removesuffix("ps")))

    what = "a size a second above 0"
    within, allowed = (math.nextafter(0, 1), sys.float_info.max), f"{what}, such as 2GB/s"
    return _amount(parse, what, within, allowed, "SIZE/s", beyond=f"is not {what}")


def duration(low: float, high: float, example: str) -> Kind:
    """Seconds, or a text with a unit."""
    # A lower limit as it may be given: figures for people end at a hundredth of a millisecond.
    least = f"{low * 1e6:g} µs" if low < 1e-5 else format_duration(low)
    allowed = f"a duration from {least} to {format_duration(high)}, such as {example}"
    return _amount(parse_duration_s, "a duration", (low, high), allowed, "TIME", unit="_s")


def step(low: float, high: float, example: str) -> Kind:
    """Seconds, a text with a unit, or steps that differ, such as ``normal:50ms,5ms``."""
    plain = duration(low, high, example)

    def read(raw: object) -> float:
        value = parse_step(raw) if isinstance(raw, str) else raw
        if not isinstance(value, StepTime):
            seconds: float = plain.read(value if isinstance(raw, str) and ":" in raw else raw)
            return seconds
        if not low <= value <= value * max(value.shape) <= high:
            raise UsageError(f"{quoted(raw)} is out of range")
        return value

    return Kind(read, f"{plain.allowed}, or steps that differ: {STEP_FORMS}", plain.metavar)


_LOADS = {"cores": number(0.01, 1024, "12"), "memory": rate(), "reads": rate()}


def load() -> Kind:
    """What keeps the machine busy: ``cores=12``, ``memory=10GB/s``, ``reads=500MB/s``."""

    def read(raw: object) -> Mapping[str, float]:
        parts = raw if isinstance(raw, Mapping) else arguments().read(str(raw).replace(",", " "))
        if not parts or not parts.keys() <= _LOADS.keys():
            raise _wrong(raw, "a load")
        return {name: _LOADS[name].read(value) for name, value in parts.items()}

    allowed = (
        "cores=12, memory=10GB/s and reads=500MB/s, those that are wanted, with commas between"
    )
    return Kind(read, allowed, "cores=N,...")


def size(low: int, high: int) -> Kind:
    """Bytes, or a text with a unit."""
    limits = f"from {format_bytes(low)} to {format_bytes(high)}"
    allowed = f"a size {limits}, such as 16GiB or 512MB"
    return _amount(parse_bytes, "a size", (low, high), allowed, "SIZE", of=int, unit="_bytes")


def switch() -> Kind:
    """One switch: ``on``, ``off`` or a boolean."""

    def read(raw: object) -> bool:
        values = parse_switches(raw) if isinstance(raw, str) else (raw,)
        if len(values) != 1 or not isinstance(values[0], bool):
            raise _wrong(raw, "on or off")
        return values[0]

    return Kind(read, "on or off", "")


def text(pattern: str, what: str, allowed: str, metavar: str) -> Kind:
    """A text that follows a pattern, without blanks around it."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(pattern, raw.strip(), flags=re.DOTALL):
            raise _wrong(raw, what)
        return raw.strip()

    return Kind(read, allowed, metavar)


def arguments() -> Kind:
    """Arguments for the target's callable: ``key=value`` texts, or a table."""

    def read(raw: object) -> Mapping[str, str]:
        if isinstance(raw, Mapping):
            pairs = [(key, _argument(value)) for key, value in raw.items()]
        else:
            try:
                words = shlex.split(raw) if isinstance(raw, str) else raw
            except ValueError:
                raise UsageError(
                    f"{quoted(raw)} has a quotation mark without its partner"
                ) from None
            if not isinstance(words, Sequence):
                raise _wrong(raw, "a list of key=value")
            pairs = []
            for word in words:
                if not isinstance(word, str) or "=" not in word:
                    raise _wrong(word, "key=value")
                key, _, value = word.partition("=")
                pairs.append((key.strip(), value))
        read: dict[str, str] = {}
        for key, value in pairs:
            if not isinstance(key, str) or not key.isidentifier():
                raise _wrong(key, "the name of an argument")
            if key in read:
                raise UsageError(f"{quoted(key)} is given twice")
            read[key] = value
        return read

    return Kind(read, 'key=value, in TOML a table such as { root = "data" }', "KEY=VALUE")


def _argument(raw: object) -> str:
    """The text of a table's value, as it would have been typed after ``--arg key=``."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise _wrong(raw, "a finite number")
    if not isinstance(raw, str | int | float):
        raise _wrong(raw, "a text, a number or a switch")
    return str(raw)
