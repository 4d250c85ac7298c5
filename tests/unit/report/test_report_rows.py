"""The table of trials: the same rows as a data frame, as CSV and as Parquet."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import math
import sys
from typing import Any

import pytest
from example_runs import HOSTILE, example_run, hostile_run

import dlprof
from dlprof.errors import UsageError
from dlprof.records import Run, Usage
from dlprof.report.export.rows import render_csv, render_parquet
from dlprof.report.text import clean

LIBRARIES = ("pandas", "polars")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    """What makes a data frame, if it is installed."""
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(params=["pyarrow", "polars"])
def parquet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What writes Parquet, alone, and can read it."""
    found = pytest.importorskip(request.param)
    if request.param == "polars":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return found


def _rows(run: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv(run))))


def _columns(frame: Any) -> dict[str, list[Any]]:
    """The values of a data frame, ``None`` where one is missing."""
    found = {name: frame[name].tolist() for name in frame.columns} if hasattr(frame, "iloc") else {}
    found = found or frame.to_dict(as_series=False)
    return {name: [_or_none(value) for value in values] for name, values in found.items()}


def _or_none(value: Any) -> Any:
    return None if not isinstance(value, str) and str(value) in {"<NA>", "nan"} else value


def _as_csv(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_a_row_has_what_the_trial_has() -> None:
    run = example_run()
    for row, trial in zip(_rows(run), run.trials, strict=True):
        assert row["id"] == trial.id
        assert row["purpose"] == trial.purpose
        assert row["pin_memory"] == str(trial.config.pin_memory).lower()
        rate = trial.samples_per_s
        assert row["samples_per_s_high"] == ("" if rate is None else str(rate.high))
        assert row["failure_kind"] == ("" if trial.failure is None else trial.failure.kind)


def test_a_data_frame_has_the_rows_of_the_csv(library: Any) -> None:
    run = example_run()
    columns = _columns(run.to_dataframe(library))
    rows = _rows(run)
    assert list(columns) == list(rows[0])
    for name, values in columns.items():
        assert [_as_csv(value) for value in values] == [row[name] for row in rows], name


def test_columns_have_types_whatever_they_hold(library: Any) -> None:
    run = example_run()
    failed = dataclasses.replace(run.trials[0], samples_per_s=None, usage=Usage())
    several = run.to_dataframe(library)
    for trials in ((), (failed,)):
        few = dataclasses.replace(run, trials=trials).to_dataframe(library)
        assert list(few.dtypes) == list(several.dtypes)
        assert len(few) == len(trials)
    kinds = {str(several[name].dtype).lower() for name in ("num_workers", "usage_shm_peak_bytes")}
    assert kinds == {"int64"}
    assert str(several["samples_per_s"].dtype).lower() == "float64"
    assert str(several["noisy"].dtype).lower() == "boolean"
    assert str(several["outcome"].dtype).lower() == "string"


def test_parquet_keeps_values_and_types(parquet: Any) -> None:
    run = example_run()
    written = io.BytesIO(render_parquet(run))
    if parquet.__name__ == "polars":
        read = parquet.read_parquet(written).to_dict(as_series=False)
    else:
        read = importlib.import_module("pyarrow.parquet").read_table(written).to_pydict()
    rows = _rows(run)
    for name, values in read.items():
        assert [_as_csv(value) for value in values] == [row[name] for row in rows], name
    assert {type(value) for value in read["samples_per_s"]} <= {float, type(None)}
    assert {type(value) for value in read["pin_memory"]} == {bool}


def test_texts_of_anybody_are_shown_and_never_act(library: Any) -> None:
    run = hostile_run()
    torn = dataclasses.replace(run.trials[0], warnings=(HOSTILE, "\udcff"), id="=1+1")
    run = dataclasses.replace(run, trials=(torn,))
    row = _columns(run.to_dataframe(library))
    assert row["warnings"] == [clean(f"{HOSTILE}; \udcff")]
    assert row["id"] == ["=1+1"]
    assert _rows(run)[0]["id"] == "'=1+1"


def test_a_number_that_no_column_holds_is_missing(library: Any) -> None:
    run = example_run()
    huge = dataclasses.replace(run.trials[0], usage=Usage(pss_peak_bytes=2**63, own_cpu_cores=1e60))
    frame = dataclasses.replace(run, trials=(huge,)).to_dataframe(library)
    columns = _columns(frame)
    assert columns["usage_pss_peak_bytes"] == [None]
    assert math.isclose(columns["usage_own_cpu_cores"][0], 1e60)


def test_pandas_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARIES:
        pytest.importorskip(name)
    run = example_run()
    assert type(run.to_dataframe()).__module__.startswith("pandas")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert type(run.to_dataframe()).__module__.startswith("polars")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (None, "pandas or polars is needed. Install it: pip install pandas"),
        ("polars", "polars is not installed. Install it: pip install polars"),
    ],
)
def test_without_a_library_it_says_which_to_install(
    asked: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError) as caught:
        example_run().to_dataframe(asked)
    assert str(caught.value) == message


def test_parquet_needs_a_library_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="pyarrow or polars is needed"):
        dlprof.report(example_run(), "trials.parquet")


def test_another_library_is_refused() -> None:
    asked: Any = "dask"
    with pytest.raises(UsageError, match=r"'dask' makes no data frames here\. Give 'pandas' or"):
        example_run().to_dataframe(asked)
