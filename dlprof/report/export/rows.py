"""A run as CSV: one row per trial, every figure in a column of its own."""

from __future__ import annotations

import csv
import dataclasses
import io

from dlprof.records import Config, Estimate, Run, Trial, Usage
from dlprof.report.text import clean

_RATES = ("samples_per_s", "batches_per_s", "bytes_per_s")
_FIGURES = ("startup_s", "epoch_turnover_s", "wait_fraction")
_REST = (
    "noisy",
    "whole_epochs",
    "started_at",
    "measured_s",
    "wall_s",
    "window_batches",
    "samples_per_batch",
    "batch_bytes",
)
_SETTINGS = tuple(field.name for field in dataclasses.fields(Config))
_USAGE = tuple(field.name for field in dataclasses.fields(Usage) if field.name != "gpu")


def render_csv(run: Run) -> str:
    """The trials with a line of headings; a figure that could not be had is an empty cell.

    Args:
        run: What was measured.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    rows = [_row(run, trial) for trial in run.trials]
    writer.writerow(_row(run, _NO_TRIAL) if not rows else rows[0])
    for row in rows:
        writer.writerow([_cell(value) for value in row.values()])
    return written.getvalue()


_NO_TRIAL = Trial(id="", config=Config(), repetition=0, outcome="skipped")


def _row(run: Run, trial: Trial) -> dict[str, object]:
    failure = trial.failure
    row: dict[str, object] = {
        "run_id": run.header.run_id,
        "hostname": run.header.machine.hostname,
        "target": run.header.target.spec,
        "id": trial.id,
        **{name: getattr(trial.config, name) for name in _SETTINGS},
        "repetition": trial.repetition,
        "outcome": trial.outcome,
        "failure_kind": None if failure is None else failure.kind,
        "failure_message": None if failure is None else failure.message,
    }
    for name in _RATES:
        estimate: Estimate | None = getattr(trial, name)
        row[name] = None if estimate is None else estimate.value
        row[f"{name}_low"] = None if estimate is None else estimate.low
        row[f"{name}_high"] = None if estimate is None else estimate.high
    row |= {name: getattr(trial, name) for name in _FIGURES}
    row |= {f"usage_{name}": getattr(trial.usage, name) for name in _USAGE}
    row |= {name: getattr(trial, name) for name in _REST}
    return row | {"warnings": "; ".join(trial.warnings)}


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes for what it is: a text never counts as a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
