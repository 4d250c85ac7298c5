"""Changing TOML that people own: values change, their comments, order and style stay.

tomlkit takes longer to load than most commands run; import this where a file is written.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Comment, InlineTable, Table, Whitespace

from dlprof.tomlfile import is_number, toml_key, toml_value

_NOTE = "dlprof: "
"""What a comment of dlprof's own begins with: the next writer replaces it, and keeps all others."""


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
    wanted = _encodable(values)
    try:
        document = tomlkit.parse(text)
        _settle(document, wanted)
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


def _settle(table: Any, values: Mapping[str, Any]) -> None:
    """Give a table of tomlkit's these values; what has them already stays as it is written."""
    for key in [key for key in table if key not in values]:
        table.remove(key)
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), Mapping):
            if not value and isinstance(table[key], Table) and table[key].is_super_table():
                table.remove(key)  # no header of its own: it would go with what it held
                _add(table, key, value)
            _settle(table[key], value)
        elif key not in table:
            _add(table, key, value)
        elif table[key] != value:
            table[key] = _item_in(table, value)


def _add(table: Any, key: str, value: object) -> None:
    item = _item_in(table, value)
    name, _ = tomlkit.key_value(f"{toml_key(key)}=0")
    name.sep = " = "
    if isinstance(item, Table | AoT) and len(table) and not table.as_string().endswith("\n\n"):
        table.add(tomlkit.nl())
    table.append(name, item)


def _item_in(table: Any, value: Any) -> Any:
    """A value to stand in a table; what is on one line can't hold tables with headers."""
    if isinstance(table, InlineTable):
        return tomlkit.value(toml_value(value))
    return _item(value)


def _item(value: Any) -> Any:
    """A value as tomlkit holds it; a table has a header of its own, or all of it are figures."""
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
    return isinstance(value, Mapping) and not all(map(is_number, value.values()))


def _annotate(document: Any, keys: Sequence[str], lines: Sequence[str]) -> None:
    """Put dlprof's comments at the head of a table, in place of those that it put there before."""
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
        is_note = item.as_string().strip().startswith(f"# {_NOTE}")
        if name is not None:
            new.append(name, item)
        elif isinstance(item, Comment | Whitespace) and not is_note:
            new.add(item)
    parent[last] = new
