"""The trials of a run as one table: a data frame, CSV or Parquet."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib
import io
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from dlprof.errors import UsageError
from dlprof.records import Config, Run, Trial, Usage
from dlprof.report.text import clean
from dlprof.units import quoted

_RATES = ("samples_per_s", "batches_per_s", "bytes_per_s")
_FIGURES = ("startup_s", "epoch_turnover_s", "wait_fraction")
_REST = (
    "noisy", "whole_epochs", "started_at", "measured_s", "wall_s", "window_batches",
    "samples_per_batch", "batch_bytes", "numa_binding",
)  # fmt: skip
_NUMBERS = (int, float, bool)

_TYPES: Mapping[str, Mapping[type, str]] = {
    "pandas": {str: "string", int: "Int64", float: "float64", bool: "boolean"},
    "polars": {str: "String", int: "Int64", float: "Float64", bool: "Boolean"},
    "pyarrow": {str: "string", int: "int64", float: "float64", bool: "bool_"},
}
"""Libraries that make tables, with their names of a column's type; all know missing values."""


def render_csv(run: Run) -> str:
    """The trials with a line of headings; a figure that is not available is an empty cell."""
    table = _table(run)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(map(_cell, row) for row in zip(*table.values(), strict=True))
    return written.getvalue()


def render_parquet(run: Run) -> bytes:
    """The trials as a Parquet file, by pyarrow or polars."""
    name, library = _first_of("pyarrow", "polars")
    file, frame = io.BytesIO(), _frame(run, name, library)
    if name == "polars":
        frame.write_parquet(file)
    else:
        importlib.import_module("pyarrow.parquet").write_table(frame, file)
    return file.getvalue()


def to_dataframe(run: Run, library: Literal["pandas", "polars"] | None = None) -> Any:
    """The trials as a data frame; see :meth:`dlprof.records.Run.to_dataframe`."""
    if library not in {None, "pandas", "polars"}:
        raise UsageError(
            f"{quoted(library)} makes no data frames here", hint="Give 'pandas' or 'polars'."
        )
    return _frame(run, *_first_of(*(("pandas", "polars") if library is None else (library,))))


def _frame(run: Run, name: str, library: Any) -> Any:
    """The trials as a table of one of the libraries, its columns typed."""
    table, types_in = _table(run), _TYPES[name]
    named = {title: types_in[kind] for title, (_, kind) in _columns().items()}
    if name == "polars":
        schema = {title: getattr(library, kind) for title, kind in named.items()}
        return library.DataFrame(table, schema=schema)
    if name == "pandas":
        made = {title: library.array(cells, dtype=named[title]) for title, cells in table.items()}
        return library.DataFrame(made)
    kinds = {title: getattr(library, kind)() for title, kind in named.items()}
    return library.table({t: library.array(cells, type=kinds[t]) for t, cells in table.items()})


def _first_of(*names: str) -> tuple[str, Any]:
    for name in names:
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError(
        f"{names[0]} is not installed" if len(names) == 1 else f"{' or '.join(names)} is needed",
        hint=f"Install it: pip install {names[0]}",
    )


@functools.cache
def _columns() -> Mapping[str, tuple[str, type]]:
    """Where the values of each column are, from a run or a trial on, and what they are."""
    paths = {
        "run_id": "run.header.run_id",
        "hostname": "run.header.machine.hostname",
        "target": "run.header.target.spec",
        "id": "trial.id",
        **{each.name: f"trial.config.{each.name}" for each in dataclasses.fields(Config)},
        **{name: f"trial.{name}" for name in ("repetition", "purpose", "outcome")},
        "failure_kind": "trial.failure.kind",
        "failure_message": "trial.failure.message",
    }
    for name in _RATES:
        ends = {"": "value", "_low": "low", "_high": "high"}
        paths |= {f"{name}{end}": f"trial.{name}.{field}" for end, field in ends.items()}
    paths |= {name: f"trial.{name}" for name in _FIGURES}
    usage = {each.name: f"trial.usage.{each.name}" for each in dataclasses.fields(Usage)}
    paths |= {f"usage_{name}": path for name, path in usage.items() if _kind(path) in _NUMBERS}
    paths |= {name: f"trial.{name}" for name in (*_REST, "warnings")}
    return {title: (path, _kind(path)) for title, path in paths.items()}


def _kind(path: str) -> Any:
    """What is at the end of a path, by the records' types; several texts are one."""
    start, *names = path.split(".")
    found: Any = {"run": Run, "trial": Trial}[start]
    for name in names:
        hint = typing.get_type_hints(found)[name]
        known = [each for each in typing.get_args(hint) if each is not types.NoneType]
        optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
        found = known[0] if optional else hint
    texts = typing.get_origin(found) is Literal or found == tuple[str, ...]
    return str if texts else found


def _table(run: Run) -> dict[str, list[Any]]:
    return {
        title: [_value(run if path.startswith("run") else trial, path) for trial in run.trials]
        for title, (path, _) in _columns().items()
    }


def _value(found: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        found = None if found is None else getattr(found, name)
    if isinstance(found, tuple):
        found = "; ".join(found)
    if isinstance(found, str):
        return clean(found)
    # What a column of whole numbers holds; no count comes near it.
    return None if isinstance(found, int) and abs(found) > (2**63 - 1) else found


def _cell(value: Any) -> object:
    """A cell that a spreadsheet takes for what it is: a text never counts as a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
    return f"'{value}" if formula else value
