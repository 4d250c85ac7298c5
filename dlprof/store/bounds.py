"""What the figures and names of a configuration may be in a file that may come from elsewhere.

A recommendation passes them on into code that people copy, so that being of the right type is not
enough. Tables of columns must be even, since they are read row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dlprof.records import BatchCosts, Config, Timeline

_MOST = 2**31 - 1
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "start_method": ("fork", "spawn", "forkserver"),
        "sharing_strategy": ("file_descriptor", "file_system"),
    }
)
_LEAST: Mapping[str, int] = MappingProxyType(
    {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "worker_threads": 1}
)


def fault_of(record: Any) -> tuple[str, str] | None:
    """The field of a record that is out of bounds, and the end of a sentence about it."""
    if isinstance(record, BatchCosts | Timeline):
        return _uneven_column(record)
    if not isinstance(record, Config):
        return None
    for name, least in _LEAST.items():
        number = getattr(record, name)
        if number is not None and not least <= number <= _MOST:
            return name, f"is not from {least} to {_MOST}"
    for name, choices in _CHOICES.items():
        if getattr(record, name) not in {None, *choices}:
            return name, f"is none of {', '.join(choices)}"
    return None


def _uneven_column(table: BatchCosts | Timeline) -> tuple[str, str] | None:
    """A column that is neither empty nor as long as the longest."""
    columns = {
        field.name: len(column)
        for field in dataclasses.fields(table)
        if isinstance(column := getattr(table, field.name), tuple)
    }
    longest = max(columns.values())
    uneven = (name for name, length in columns.items() if length not in {0, longest})
    name = next(uneven, None)
    return (
        None if name is None else (name, f"has {columns[name]} entries where others have {longest}")
    )
