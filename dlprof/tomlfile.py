"""TOML files: one sentence for each fault in reading, and the values that are written."""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlprof.errors import FileError, did_you_mean
from dlprof.files import read_text
from dlprof.units import quoted

MAX_FILE_BYTES = 1024 * 1024  # no settings file of people's is longer

MAX_DEPTH = 32  # no settings of people's are nested deeper; dotted keys can be, without end


class Rule(NamedTuple):
    """What the value of a key must be: in words, and as a test of the value."""

    words: str
    holds: Callable[[Any], bool]


TEXT = Rule("a text", lambda value: isinstance(value, str))
SWITCH = Rule("true or false", lambda value: isinstance(value, bool))
TABLE = Rule("a table", lambda value: isinstance(value, Mapping))


def whole_rule(least: int, most: int) -> Rule:
    """A whole number within bounds."""
    return Rule(
        f"a whole number from {least} to {most}",
        lambda value: is_number(value) and isinstance(value, int) and least <= value <= most,
    )


def number_rule(above: float = -math.inf, most: float = math.inf) -> Rule:
    """A number over one bound and up to the other; neither nan nor infinite."""
    words = "a number" if most == math.inf else f"a number above {above:g}, at most {most:g}"
    # TOML has whole numbers that no float can hold.
    most = min(most, sys.float_info.max)
    return Rule(words, lambda value: is_number(value) and above < value <= most)


def is_number(value: object) -> bool:
    """Whether it is a number; a switch is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_table(
    table: Mapping[str, Any],
    rules: Mapping[str, Rule],
    *,
    place: str,
    within: str = "",
    needed: Collection[str] = (),
    hint: str = "Correct the file.",
) -> None:
    """Hold a table's keys and values against the rules of those that it may have.

    Messages name the file by its ``place``, and ``within`` it the table by its dotted name.
    """

    def named(key: str) -> str:
        return f"{place}: {within}.{toml_key(key)}" if within else f"{place}: {toml_key(key)}"

    for key, value in table.items():
        if key not in rules:
            known = f"{did_you_mean(key, rules)} The keys here are {', '.join(rules)}.".lstrip()
            raise FileError(f"{named(key)} is not a known key", hint=known)
        if not rules[key].holds(value):
            raise FileError(
                f"{named(key)} must be {rules[key].words}, not {quoted(value)}", hint=hint
            )
    for key in needed:
        if key not in table:
            raise FileError(f"{named(key)} is missing", hint=f"Add it: {rules[key].words}.")


def read_toml(path: Path) -> dict[str, Any]:
    """The file's top table."""
    text = read_toml_text(path)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Deep nesting and numbers of thousands of digits fail outside TOMLDecodeError.
        reason = (
            str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a value is too large"
        )
        raise FileError(f"{path} is not valid TOML: {reason}", hint="Correct the file.") from None
    if not _is_shallow(content):
        raise FileError(
            f"{path} holds tables within tables, more than {MAX_DEPTH} deep",
            hint="Correct the file.",
        )
    return content


def _is_shallow(content: object) -> bool:
    """Whether all that goes through a value one level after the other will come to its end."""
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    return not any(isinstance(value, dict | list) for value in level)


def read_toml_text(path: Path) -> str:
    """The text of a TOML file of people's."""
    hint = "Give the path of a TOML file."
    return read_text(path, "a TOML file", most=MAX_FILE_BYTES, hint=hint)


def toml_key(key: str) -> str:
    """The key as it may stand left of ``=`` or between brackets."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def toml_value(value: object) -> str:
    """A text, number, switch, or a list or table of these, as TOML on one line.

    Raises:
        TypeError: For anything that TOML can't hold, ``None`` and non-finite numbers among it.
    """
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"TOML has no way to write {value!r}")


def _toml_string(text: str) -> str:
    """A basic string, which no terminal acts on: JSON's escapes are TOML's."""
    encodable = text.encode("utf-8", "replace").decode()
    quoted = json.dumps(encodable, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
