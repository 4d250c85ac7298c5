"""TOML files: one sentence for each fault in reading, and writing that keeps what people wrote."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlprof.errors import FileError
from dlprof.units import quoted

if TYPE_CHECKING:
    from tomlkit.items import Table

MAX_FILE_BYTES = 1024 * 1024
"""No settings file of people's is longer; a device or a data file given by mistake is."""

MAX_DEPTH = 32
"""No settings of people's are nested deeper; dotted keys can be, without end."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_MOST_NUMBER = 1e300  # TOML has whole numbers that no float can hold

_NOTE = "dlprof: "
"""What a comment of dlprof's own begins with: the next writer replaces it, and keeps all others."""


class Rule(NamedTuple):
    """What the value of a key must be: in words, and as a test of the value."""

    words: str
    holds: Callable[[Any], bool]


SWITCH = Rule("true or false", lambda value: isinstance(value, bool))


def text_rule(most: int = MAX_FILE_BYTES) -> Rule:
    """A text of at most so many characters."""
    words = "a text" if most == MAX_FILE_BYTES else f"a text of 1 to {most} characters"
    least = 0 if most == MAX_FILE_BYTES else 1
    return Rule(words, lambda value: isinstance(value, str) and least <= len(value) <= most)


def whole_rule(least: int, most: int) -> Rule:
    """A whole number within bounds."""
    return Rule(
        f"a whole number from {least} to {most}",
        lambda value: _is_number(value) and isinstance(value, int) and least <= value <= most,
    )


def number_rule(above: float = -_MOST_NUMBER, most: float = _MOST_NUMBER) -> Rule:
    """A number over one bound and up to the other; neither nan nor infinite."""
    words = "a number" if most == _MOST_NUMBER else f"a number above {above:g}, at most {most:g}"
    return Rule(words, lambda value: _is_number(value) and above < value <= most)


def _is_number(value: object) -> bool:
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
    """Hold a table's keys and values against rules.

    Args:
        table: What was read.
        rules: The keys that it may have, and what their values must be.
        place: The file, as messages name it.
        within: The dotted name of the table; empty for the top one.
        needed: The keys that it must have.
        hint: What to do about a wrong value.

    Raises:
        FileError: A key is unknown or missing, or a value breaks its rule.
    """

    def named(key: str) -> str:
        return f"{place}: {within}.{toml_key(key)}" if within else f"{place}: {toml_key(key)}"

    for key, value in table.items():
        if key not in rules:
            close = difflib.get_close_matches(key, rules, n=1)
            known = f"The keys here are {', '.join(rules)}."
            hint = f"Did you mean {close[0]}? {known}" if close else known
            raise FileError(f"{named(key)} is not a known key", hint=hint)
        if not rules[key].holds(value):
            raise FileError(
                f"{named(key)} must be {rules[key].words}, not {quoted(value)}", hint=hint
            )
    for key in needed:
        if key not in table:
            raise FileError(f"{named(key)} is missing", hint=f"Add it: {rules[key].words}.")


def read_toml(path: Path) -> dict[str, Any]:
    """The file's top table.

    Raises:
        FileError: If the file can't be read, is not a plain file, too long, or not TOML.
    """
    text = read_text(path)
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


def read_text(path: Path) -> str:
    """The text of a file of people's.

    Raises:
        FileError: If the file can't be read, is not a plain file, too long, or not UTF-8.
    """
    try:
        if not path.exists():
            raise FileError(f"There is no file {path}", hint="Give the path of a TOML file.")
        if not path.is_file():
            raise FileError(f"{path} is not a file", hint="Give the path of a TOML file.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FileError(
            f"{path} can't be read: {error.strerror}", hint="Check the path and its permissions."
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise FileError(
            f"{path} is longer than {MAX_FILE_BYTES} bytes", hint="Give the path of a TOML file."
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise FileError(
            f"{path} is not valid TOML: it is not UTF-8 text", hint="Give the path of a TOML file."
        ) from None


def toml_key(key: str) -> str:
    """The key as it may stand left of ``=`` or between brackets."""
    return key if _BARE_KEY.fullmatch(key) else _toml_string(key)


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


def revised_toml(
    text: str, values: Mapping[str, Any], notes: Mapping[tuple[str, ...], Sequence[str]]
) -> str:
    """A document changed to hold these values, with its comments, its order and its style.

    Args:
        text: The document; empty for a new one.
        values: All that it is to hold: keys that aren't among them go.
        notes: What dlprof has to say of tables, under their keys from the top. It becomes comments
            at their heads, in place of the comments that dlprof wrote there before.

    Raises:
        ValueError: The document is written in a way that can't be changed without loss.
    """
    import tomlkit  # noqa: PLC0415 - most runs write no file of people's
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415 - as above

    wanted = _encodable(values)
    try:
        document = tomlkit.parse(text)
        _settle(document, wanted, ())
        for keys, lines in notes.items():
            _annotate(document, [_encodable(key) for key in keys], lines)
        revised = document.as_string().rstrip("\n") + "\n"
        if tomllib.loads(revised) == wanted:
            return revised
    except (TOMLKitError, ValueError, LookupError, TypeError, AttributeError) as error:
        # Where a table's parts are scattered over the file, tomlkit loses its way.
        raise ValueError("tomlkit can't change this document") from error
    raise ValueError("the changed document would not hold these values")


def _encodable(value: Any) -> Any:
    """The value as it is read back: what UTF-8 can't hold becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def _settle(table: Any, values: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Give a table of tomlkit's these values; what has them already stays as it is written."""
    for key in [key for key in table if key not in values]:
        table.remove(key)
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), Mapping):
            _settle(table[key], value, (*path, key))
        elif key not in table:
            _add(table, key, value)
        elif table[key] != value:
            table[key] = _item(value)


def _add(table: Any, key: str, value: object) -> None:
    import tomlkit  # noqa: PLC0415 - as where it is called

    item = _item(value)
    name, _ = tomlkit.key_value(f"{toml_key(key)}=0")
    name.sep = " = "
    if _has_header(value) and len(table) and not table.as_string().endswith("\n\n"):
        table.add(tomlkit.nl())
    table.append(name, item)


def _item(value: Any) -> Any:
    """A value as tomlkit holds it; a table has a header of its own, or all of it are figures."""
    import tomlkit  # noqa: PLC0415 - as where it is called

    if not _has_header(value):
        return tomlkit.value(toml_value(value))
    if not isinstance(value, Mapping):
        tables = tomlkit.aot()
        for each in value:
            tables.append(_item(each))
        return tables
    table = tomlkit.table()
    for key, item in sorted(value.items(), key=lambda pair: _has_header(pair[1])):
        _add(table, key, item)
    return table


def _has_header(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(each, Mapping) and _has_header(each) for each in value
        )
    return isinstance(value, Mapping) and not all(map(_is_number, value.values()))


def _annotate(document: Any, keys: Sequence[str], lines: Sequence[str]) -> None:
    """Put dlprof's comments at the head of a table, in place of those that it put there before."""
    import tomlkit  # noqa: PLC0415 - as where it is called
    from tomlkit.items import Comment, Whitespace  # noqa: PLC0415 - as where it is called

    *above, last = keys
    parent = document
    for key in above:
        parent = parent[key]
    old: Table = parent[last]
    new = tomlkit.table()
    for line in lines:
        printable = "".join(each if each.isprintable() else " " for each in _encodable(line))
        new.add(tomlkit.comment(_NOTE + printable))
    for name, item in old.value.body:
        if name is not None:
            new.append(name, item)
        elif isinstance(item, Comment | Whitespace) and not _is_note(item.as_string()):
            new.add(item)
    parent[last] = new


def _is_note(written: str) -> bool:
    return written.strip().startswith(f"# {_NOTE}")
