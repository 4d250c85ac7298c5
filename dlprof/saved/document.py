"""The settings file as TOML: what it may hold, read strictly, written for people.

Its values go into ``DataLoader(...)``, so only known keys with values of the right type pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlprof.errors import FileError
from dlprof.tomlfile import (
    SWITCH,
    TABLE,
    TEXT,
    Rule,
    check_table,
    number_rule,
    read_text,
    read_toml,
    toml_key,
    whole_rule,
)

VERSION = 1
"""Of the file's format."""

_NEW = f"""\
# Settings for torch.utils.data.DataLoader, one entry for each machine and target.
# Written by: dlprof recommend RUN --save FILE
# Used by:    DataLoader(dataset, **dlprof.kwargs_for("FILE"))

version = {VERSION}
"""


_NUMBER = number_rule()
_COUNT = whole_rule(1, 1_000_000_000)
_NAMES = ("fork", "spawn", "forkserver")

KWARGS: Mapping[str, Rule] = MappingProxyType(
    {
        "num_workers": whole_rule(0, 4096),
        "prefetch_factor": _COUNT,
        "pin_memory": SWITCH,
        "persistent_workers": SWITCH,
        "in_order": SWITCH,
        "batch_size": _COUNT,
        "multiprocessing_context": Rule(" or ".join(_NAMES), lambda value: value in _NAMES),
    }
)
_ABOUT_ENTRY: Mapping[str, Rule] = MappingProxyType(
    {
        "saved_at": TEXT,
        "confidence": TEXT,
        "ranks": _COUNT,
        "sharing_strategy": TEXT,
        "worker_threads": _COUNT,
        "expected": Rule(
            "a table of numbers",
            lambda value: isinstance(value, Mapping) and all(map(_NUMBER.holds, value.values())),
        ),
    }
)
_ABOUT_MACHINE: Mapping[str, Rule] = MappingProxyType(
    {"hostname": TEXT, "cpu": TEXT, "usable_cores": _NUMBER}
)


def read_document(path: Path) -> dict[str, dict[str, Any]]:
    """The machines of a settings file, under their fingerprints.

    Each is a table as it is written: what says to people which machine it is, and in ``target`` the
    tables of its targets, under TARGET as the user wrote it.

    Raises:
        FileError: If the file can't be read or holds anything else.
    """
    content = read_toml(path)
    version = content.pop("version", VERSION)
    _check(path, {"version": version}, {"version": _COUNT})
    if version > VERSION:
        raise FileError(
            f"{path} was written by a newer dlprof (version {version}; this one reads {VERSION})",
            hint="Upgrade dlprof: pip install --upgrade dlprof",
        )
    _check(path, content, {"machine": TABLE})
    machines: dict[str, dict[str, Any]] = content.get("machine", {})
    _check(path, machines, dict.fromkeys(machines, TABLE), "machine")
    for fingerprint, table in machines.items():
        where = f"machine.{toml_key(fingerprint)}"
        _check(path, table, {**_ABOUT_MACHINE, "target": TABLE}, where)
        targets = table.get("target", {})
        _check(path, targets, dict.fromkeys(targets, TABLE), f"{where}.target")
        for spec, entry in targets.items():
            _check_entry(path, entry, f"{where}.target.{toml_key(spec)}")
    return machines


def _check_entry(path: Path, entry: Mapping[str, Any], where: str) -> None:
    _check(path, entry, {**KWARGS, **_ABOUT_ENTRY}, where, needed=("num_workers",))
    if entry["num_workers"] == 0:
        for key in ("prefetch_factor", "multiprocessing_context", "persistent_workers"):
            if entry.get(key):
                raise FileError(
                    f"{path}: {where}.{key} needs a num_workers above 0",
                    hint="Remove it, or raise num_workers.",
                )


def kwargs_in(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``DataLoader`` in a target's table."""
    return {key: value for key, value in entry.items() if key in KWARGS}


def _check(
    path: Path,
    table: Mapping[str, Any],
    rules: Mapping[str, Rule],
    where: str = "",
    needed: Sequence[str] = (),
) -> None:
    hint = "Correct the file, or remove it and save the settings again."
    check_table(table, rules, place=str(path), within=where, needed=needed, hint=hint)


def revised_document(
    path: Path, machines: Mapping[str, Any], notes: Mapping[tuple[str, ...], Sequence[str]]
) -> str:
    """The settings file for these machines, with the comments and the order that it has now.

    Raises:
        FileError: If the file can't be changed without losing some of it.
    """
    # It takes longer to load than all that training scripts need of this module.
    from dlprof.tomledit import revised_toml  # noqa: PLC0415

    text = read_text(path) if path.exists() else _NEW
    values = {"version": VERSION, "machine": machines}
    places: dict[tuple[str, ...], Sequence[str]] = {
        ("machine", fingerprint, "target", spec): lines
        for (fingerprint, spec), lines in notes.items()
    }
    try:
        return revised_toml(text, values, places)
    except ValueError:
        raise FileError(
            f"{path} is laid out in a way that dlprof can't add to without losing some of it",
            hint="Give each table its own [header] once, or save to another file.",
        ) from None
