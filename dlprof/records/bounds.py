"""What the figures and names of a configuration may be in a file that may come from elsewhere.

A recommendation passes them on into code that people copy, so that being of the right type is not
enough. Tables of columns must be even, since they are read row by row. Numbers must be such that
figures made of a few of them are still finite: no reader of a record has to fear an overflow. A
calibration is used at once, so that its figures must be such as batches can have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dlprof.records import (
    BatchCosts,
    Calibration,
    Config,
    Constraints,
    CoreSpeeds,
    Estimate,
    Machine,
    PredictedCell,
    Timeline,
)

_MOST = 2**31 - 1
_LARGEST_INTEGER = 2**64
"""No count of bytes or of nanoseconds comes near it; it fits a float."""
_LARGEST = 1e60
"""Far above every figure and every interval's end, and its fourth power is finite."""
_SMALLEST = 1e-60
"""What lies nearer to 0 than this, and is not 0, was not measured."""
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "start_method": ("fork", "spawn", "forkserver"),
        "sharing_strategy": ("file_descriptor", "file_system"),
    }
)
_LEAST: Mapping[str, int] = MappingProxyType(
    {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "worker_threads": 1}
)
_POSITIVE: Mapping[type, Sequence[str]] = MappingProxyType(
    {
        Machine: ("usable_cores",),
        Constraints: ("ranks", "nodes"),
        CoreSpeeds: ("low", "median", "high"),
        PredictedCell: ("samples_per_s",),
    }
)


def fault_of(record: Any) -> tuple[str, str] | None:
    """The field of a record that is out of bounds, and the end of a sentence about it."""
    if isinstance(record, BatchCosts | Timeline):
        return _uneven_column(record)
    if isinstance(record, Config):
        return _faulty_setting(record)
    if isinstance(record, Calibration):
        return _faulty_cost(record)
    for kind, names in _POSITIVE.items():
        if isinstance(record, kind):
            figures = {name: getattr(record, name) for name in names}
            values = {n: f.value if isinstance(f, Estimate) else f for n, f in figures.items()}
            name = next((name for name, value in values.items() if value <= 0), None)
            return None if name is None else (name, "is not above 0")
    return None


def _faulty_cost(record: Calibration) -> tuple[str, str] | None:
    """A figure that no batch has, and that nothing could be predicted from."""
    for name in ("samples_per_batch", "core_speed"):
        value = getattr(record, name)
        if value is not None and value <= 0:
            return name, "is not above 0"
    for field in dataclasses.fields(record):
        if any(number < 0 for number in _numbers(getattr(record, field.name))):
            return field.name, "has a figure below 0"
    return None


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a field, however deep."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, BatchCosts):
        for column in dataclasses.fields(value):
            yield from getattr(value, column.name)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)


def number_fault(number: float) -> str | None:
    """The end of a sentence about a number, whole or not, that no record may hold."""
    if isinstance(number, int):
        return None if -_LARGEST_INTEGER <= number <= _LARGEST_INTEGER else "is too large"
    if not math.isfinite(number):
        return "is not a finite number"
    if number == 0 or _SMALLEST <= abs(number) <= _LARGEST:
        return None
    return "is too large" if abs(number) > 1 else "is too close to 0"


def _faulty_setting(record: Config) -> tuple[str, str] | None:
    """A setting that DataLoader does not take."""
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
