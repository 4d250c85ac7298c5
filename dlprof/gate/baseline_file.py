"""The baseline as text: JSON lines that people can read and git can merge.

One line per entry, sorted by key and time. A new entry adds a line, and where there are too many of
its key the oldest line goes; no other line ever changes, so that two branches that both record runs
merge without conflict or with one that is solved by keeping all lines.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from dlprof.errors import FileError
from dlprof.gate.baseline import MOST_ENTRIES
from dlprof.records.gate import BaselineEntry, BaselineKey

VERSION = 1
"""Of a line's format."""

MOST_CHARACTERS = 16 * 1024 * 1024
"""No baseline is longer: tens of thousands of entries."""

_VERSION_KEY = "dlprof_baseline"
_CONFLICTS = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
_HINT = "Correct or remove that line."


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """A line as it stands, and what it says."""

    text: str
    entry: BaselineEntry

    @property
    def place(self) -> tuple[object, ...]:
        """Where it stands in a sorted file."""
        return (*dataclasses.astuple(self.entry.key), self.entry.recorded_at, self.entry.commit)


def parse_baseline(text: str, name: str) -> list[BaselineEntry]:
    """The entries of a baseline, in the order of their lines; doubles from a merge once.

    Args:
        text: What the file holds.
        name: The file's, for messages.

    Raises:
        FileError: If a line can't be understood.
    """
    return [line.entry for line in _lines(text, name)]


def add_entry(
    text: str, entry: BaselineEntry, name: str, *, most_entries: int = MOST_ENTRIES
) -> str:
    """The file's text with one more entry, and without the oldest of its key beyond a number.

    Args:
        text: What the file holds; empty for a new one.
        entry: The run to keep.
        name: The file's, for messages.
        most_entries: Entries of one key that are kept.

    Raises:
        FileError: If a line of the file can't be understood.
        ValueError: If a figure of the entry is not a finite number.
    """
    new = _Line(render_entry(entry), entry)
    lines = [line for line in _lines(text, name) if line.place != new.place]
    lines = sorted([*lines, new], key=lambda line: line.place)
    same = [line for line in lines if line.entry.key == entry.key]
    dropped = {line.place for line in same[:-most_entries]}
    return "".join(f"{line.text}\n" for line in lines if line.place not in dropped)


def render_entry(entry: BaselineEntry) -> str:
    """One line, ASCII, without its end; equal entries give equal lines.

    Raises:
        ValueError: If a figure is not a finite number.
    """
    key = dataclasses.asdict(entry.key)
    fields = {
        _VERSION_KEY: VERSION,
        "recorded_at": entry.recorded_at,
        "commit": entry.commit,
        "figures": {name: float(entry.figures[name]) for name in sorted(entry.figures)},
        "key": {**key, "available_cores": float(entry.key.available_cores)},
    }
    return json.dumps(fields, allow_nan=False)


def _lines(text: str, name: str) -> list[_Line]:
    if len(text) > MOST_CHARACTERS:
        raise FileError(
            f"{name} is too long for a baseline", hint="Give the path of a baseline of dlprof's."
        )
    seen: dict[tuple[object, ...], _Line] = {}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare:
            parsed = _Line(bare, _entry(bare, f"{name}, line {number}"))
            seen.setdefault(parsed.place, parsed)
    return list(seen.values())


def _entry(line: str, where: str) -> BaselineEntry:
    if line.startswith(_CONFLICTS):
        raise FileError(
            f"{where}: the file holds a merge conflict",
            hint="Remove the markers and keep the lines of both sides; their order doesn't matter.",
        )
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise FileError(f"{where} is not JSON", hint=_HINT) from None
    if not isinstance(data, dict) or not isinstance(data.get(_VERSION_KEY), int):
        raise FileError(f"{where} is not an entry of a baseline", hint=_HINT)
    if data[_VERSION_KEY] > VERSION:
        raise FileError(
            f"{where} was written by a newer dlprof "
            f"(version {data[_VERSION_KEY]}; this one reads {VERSION})",
            hint="Upgrade dlprof: pip install --upgrade dlprof",
        )
    try:
        return BaselineEntry(
            key=_key(data["key"]),
            recorded_at=_text(data["recorded_at"]),
            commit=_text(data.get("commit", "")),
            figures=_figures(data["figures"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        fault = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{where} {fault}", hint=_HINT) from None


def _key(data: Any) -> BaselineKey:
    if not isinstance(data, dict):
        raise TypeError("has a key that is not a table")
    fields = {field.name: data[field.name] for field in dataclasses.fields(BaselineKey)}
    cores = _number(fields.pop("available_cores"))
    return BaselineKey(
        available_cores=cores, **{name: _text(value) for name, value in fields.items()}
    )


def _figures(data: Any) -> dict[str, float]:
    if not isinstance(data, dict):
        raise TypeError("has figures that are not a table")
    return {_text(name): _number(value) for name, value in data.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"holds {str(value)[:40]!r} where a text belongs")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise TypeError(f"holds {str(value)[:40]!r} where a number belongs")
    if not math.isfinite(value):
        raise ValueError("holds a number that is not finite")
    return float(value)
