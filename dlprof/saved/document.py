"""The settings file as TOML: what it may hold, read strictly, written for people.

Its values go into ``DataLoader(...)``, so only known keys with values of the right type pass.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlprof.errors import FileError
from dlprof.tomlfile import read_toml, toml_key, toml_value
from dlprof.units import quoted

VERSION = 1
"""Of the file's format."""

_TITLE = """\
# Settings for torch.utils.data.DataLoader, one entry for each machine and target.
# Written by: dlprof recommend RUN --save FILE
# Used by:    DataLoader(dataset, **dlprof.kwargs_for("FILE"))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What was saved for one target on one machine.

    Attributes:
        kwargs: Arguments of ``DataLoader``.
        about: When and how surely it was found, what it should give, and settings that are no
            arguments of ``DataLoader``.
    """

    kwargs: Mapping[str, Any]
    about: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class MachineEntry:
    """What was saved for one machine.

    Attributes:
        about: Tells people which machine it is.
        targets: Under TARGET as the user wrote it.
    """

    about: Mapping[str, Any]
    targets: Mapping[str, Entry]


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # TOML has nan and inf, and whole numbers that no float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_whole(low: int) -> _Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_worker_count(value: Any) -> bool:
    return _is_whole(0)(value) and value <= 4096


def _is_expectation(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_number(figure) for figure in value.values())


KWARGS: Mapping[str, _Check] = MappingProxyType(
    {
        "num_workers": _is_worker_count,
        "prefetch_factor": _is_whole(1),
        "pin_memory": _is_switch,
        "persistent_workers": _is_switch,
        "in_order": _is_switch,
        "batch_size": _is_whole(1),
        "multiprocessing_context": lambda value: value in ("fork", "spawn", "forkserver"),
    }
)
_ABOUT_ENTRY: Mapping[str, _Check] = MappingProxyType(
    {
        "saved_at": _is_text,
        "confidence": _is_text,
        "ranks": _is_whole(1),
        "sharing_strategy": _is_text,
        "worker_threads": _is_whole(1),
        "expected": _is_expectation,
    }
)
_ABOUT_MACHINE: Mapping[str, _Check] = MappingProxyType(
    {"hostname": _is_text, "cpu": _is_text, "usable_cores": _is_number}
)


def read_document(path: Path) -> dict[str, MachineEntry]:
    """The machines of a settings file, under their fingerprints.

    Raises:
        FileError: If the file can't be read or holds anything else.
    """
    content = read_toml(path)
    version = content.pop("version", VERSION)
    if not _is_whole(1)(version):
        raise _wrong(path, "version", version)
    if version > VERSION:
        raise FileError(
            f"{path} was written by a newer dlprof (version {version}; this one reads {VERSION})",
            hint="Upgrade dlprof: pip install --upgrade dlprof",
        )
    _check(path, content, {"machine": lambda value: isinstance(value, Mapping)})
    return {
        fingerprint: _machine(path, table, f"machine.{toml_key(fingerprint)}")
        for fingerprint, table in content.get("machine", {}).items()
    }


def _machine(path: Path, table: object, where: str) -> MachineEntry:
    about = _table(path, table, where)
    targets = _table(path, about.pop("target", {}), f"{where}.target")
    _check(path, about, _ABOUT_MACHINE, where)
    return MachineEntry(
        about,
        {
            spec: _entry(path, entry, f"{where}.target.{toml_key(spec)}")
            for spec, entry in targets.items()
        },
    )


def _entry(path: Path, table: object, where: str) -> Entry:
    values = _table(path, table, where)
    _check(path, values, {**KWARGS, **_ABOUT_ENTRY}, where)
    entry = Entry(
        {key: value for key, value in values.items() if key in KWARGS},
        {key: value for key, value in values.items() if key in _ABOUT_ENTRY},
    )
    if "num_workers" not in entry.kwargs:
        raise FileError(f"{path}: {where} has no num_workers", hint=_HINT)
    if entry.kwargs["num_workers"] == 0:
        for key in ("prefetch_factor", "multiprocessing_context", "persistent_workers"):
            if entry.kwargs.get(key):
                raise FileError(
                    f"{path}: {where}.{key} needs a num_workers above 0",
                    hint="Remove it, or raise num_workers.",
                )
    return entry


_HINT = "Correct the file, or remove it and save the settings again."


def _table(path: Path, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(path, where, value)
    return dict(value)


def _check(
    path: Path, values: Mapping[str, Any], checks: Mapping[str, _Check], where: str = ""
) -> None:
    for key, value in values.items():
        name = f"{where}.{key}".lstrip(".")
        if key not in checks:
            close = difflib.get_close_matches(key, checks, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(checks)}."
            raise FileError(f"{path}: {name} is not known in a settings file", hint=hint)
        if not checks[key](value):
            raise _wrong(path, name, value)


def _wrong(path: Path, where: str, value: object) -> FileError:
    return FileError(f"{path}: {where} can't be {quoted(value)}", hint=_HINT)


def render_document(machines: Mapping[str, MachineEntry]) -> str:
    """The settings file for these machines."""
    lines = [_TITLE, f"version = {VERSION}"]
    for fingerprint, machine in machines.items():
        where = f"machine.{toml_key(fingerprint)}"
        lines += ["", f"[{where}]", *_pairs(machine.about)]
        for spec, entry in machine.targets.items():
            lines += ["", f"[{where}.target.{toml_key(spec)}]"]
            lines += [*_pairs(entry.kwargs), *_pairs(entry.about)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items())
