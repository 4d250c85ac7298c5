"""Predictions as people and programs read them, told apart from what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.advise.choice import WITHIN
from dlprof.advise.predict import Calibrated, Forecast, Row
from dlprof.advise.wrong_data import data_findings
from dlprof.records import SCHEMA_VERSION, Config, Estimate, Run
from dlprof.report.findings import findings_json, first_lines
from dlprof.report.fitting import FittingTable, TextColumn
from dlprof.report.labels import cores_text, interval_text, percent_text, rate_text
from dlprof.report.layout import Hanging
from dlprof.report.plot import Bar, ThroughputPlot, thinned
from dlprof.report.text import clean
from dlprof.stats import NEAR
from dlprof.store.codec import to_json
from dlprof.units import (
    MISSING,
    counted,
    format_bytes,
    format_duration,
    format_rate,
)

_MOST_ROWS = 66
_LIMITS = {
    "step": "step",
    "workers": "workers",
    "cores": "cores",
    "main": "main process",
    "pin": "pin thread",
    "storage": "storage",
    "order": "order",
}
_OTHER_SETTINGS = {
    "pin_memory": "pin",
    "persistent_workers": "persist",
    "in_order": "in order",
    "start_method": "start",
    "sharing_strategy": "sharing",
    "worker_threads": "threads",
}
"""Shown where rows differ in them: measured ones may, that are predicted beside the rest."""


def forecast_document(run: Run, forecast: Forecast) -> str:
    """What ``dlprof predict --json`` prints.

    Args:
        run: What it was predicted from.
        forecast: The predictions.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        "target": run.header.target.spec,
        "findings": findings_json(data_findings(run)),
        **to_json(forecast),
    }
    return json.dumps(document, allow_nan=False, indent=2)


def render_forecast(run: Run, forecast: Forecast, *, whole: bool = False) -> RenderableType:
    """The predictions for a terminal or a pipe.

    Args:
        run: What they were predicted from.
        forecast: The predictions.
        whole: Whether rows that say nothing new are shown as well.
    """
    rows = _shown(forecast, whole=whole)
    parts: list[RenderableType] = [
        *first_lines(run),
        Hanging("", Text(_headline(run, forecast), style="bold")),
        Hanging("", Text(_conditions(forecast))),
        Text(),
        _table(forecast, rows),
        Text(),
    ]
    found = _bars(forecast)
    if len(found) > 1:
        title = f"predicted {_unit(forecast.rows)} by num_workers, best of the other settings"
        parts += [ThroughputPlot(found, title), Text()]
    parts += [Hanging("", note) for note in _notes(run, forecast, rows)]
    return Group(*parts)


def _headline(run: Run, forecast: Forecast) -> str:
    elsewhere = ", which was not measured" if forecast.extrapolated else ""
    target, host = clean(run.header.target.spec), clean(forecast.hostname)
    return f"Predicted for {target} on {host}{elsewhere}"


def _conditions(forecast: Forecast) -> str:
    """Cores, ranks, step and the rest in one line."""
    where = forecast.conditions
    step_s = where.step_s + where.step_cpu_s
    parts = [
        f"{where.cores:g} {'core' if where.cores == 1 else 'cores'}",
        counted(where.ranks, "rank"),
        f"a step of {format_duration(step_s)}" if step_s else "no step",
    ]
    if where.neighbours:
        parts.append(f"{where.neighbours:g} cores busy with others")
    if where.speed != 1.0:
        parts.append(f"cores of {where.speed:.2f}x the speed")
    if where.storage_bytes_per_s is not None:
        parts.append(f"storage that gives {format_bytes(where.storage_bytes_per_s)}/s")
    return ", ".join(parts)


def _shown(forecast: Forecast, *, whole: bool) -> list[Row]:
    """The rows that say something: of like ones that are as fast, only the cheapest."""
    rows = list(forecast.rows) if whole else list(_telling(forecast))
    if len(rows) <= _MOST_ROWS:
        return rows
    places = {round(i * (len(rows) - 1) / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)}
    kept = {i for i, row in enumerate(rows) if row.config == forecast.pick or row.measured}
    return [rows[i] for i in sorted(places | kept)]


def _telling(forecast: Forecast) -> Iterator[Row]:
    best: dict[int, float] = {}
    for row in forecast.rows:
        workers = row.config.num_workers
        faster = row.rate * NEAR > best.get(workers, 0.0)
        best[workers] = max(best.get(workers, 0.0), row.rate)
        if faster or row.config == forecast.pick or row.measured is not None:
            yield row


def _rate(row: Row) -> Estimate:
    """Over whole epochs where their length is known, as what was measured is told."""
    steady = row.prediction.samples_per_s or row.prediction.batches_per_s
    return steady.times(row.speed / row.rate)


def _unit(rows: Sequence[Row]) -> str:
    return "batches/s" if rows[0].prediction.samples_per_s is None else "samples/s"


def _table(forecast: Forecast, rows: Sequence[Row]) -> FittingTable:
    predictions = [row.prediction for row in rows]

    def column(title: str, cells: Iterable[str], keep: int | None = None) -> TextColumn:
        return TextColumn(title=title, cells=list(cells), keep=keep)

    columns = [
        TextColumn(title="", cells=[_role(row, forecast) for row in rows], left=True, keep=20),
        column("workers", (str(row.config.num_workers) for row in rows)),
        column("prefetch", (_text(row.config.prefetch_factor) for row in rows), 19),
        *_other_settings(rows),
        column(_unit(rows), (format_rate(_rate(row).value) for row in rows)),
        column("95 %", (interval_text(_rate(row)) for row in rows), 18),
        column("wait", (percent_text(each.wait_fraction) for each in predictions), 17),
        TextColumn(
            title="limit",
            cells=[_LIMITS.get(each.bound, clean(each.bound)) for each in predictions],
            keep=15,
            left=True,
        ),
        column("cores", (cores_text(each.cores) for each in predictions), 8),
        column("memory", (format_bytes(each.pss_bytes) for each in predictions), 7),
        column("shm", (format_bytes(each.shm_bytes) for each in predictions), 4),
        column("start-up", (format_duration(each.startup_s) for each in predictions), 6),
        column("files", (_text(each.open_files) for each in predictions), 2),
        column("measured", (_measured(row) for row in rows), 16),
    ]
    return FittingTable([each for each in columns if each.keep is None or any(each.cells)])


def _other_settings(rows: Sequence[Row]) -> Iterator[TextColumn]:
    for name, title in _OTHER_SETTINGS.items():
        values = [getattr(row.config, name) for row in rows]
        if len(set(values)) > 1:
            yield TextColumn(title=title, cells=[_text(value) for value in values])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else clean(str(value))


def _role(row: Row, forecast: Forecast) -> str:
    if row.config == forecast.pick:
        return "pick"
    if row.beyond:
        return "too much"
    return "default" if row.config == Config(batch_size=row.config.batch_size) else ""


def _measured(row: Row) -> str:
    if row.measured is None:
        return ""
    return format_rate(row.measured.samples_per_s.value)


def _bars(forecast: Forecast) -> tuple[Bar, ...]:
    found: dict[int, Bar] = {}
    for row in forecast.rows:
        workers = row.config.num_workers
        known = found.get(workers)
        found[workers] = Bar(
            num_workers=workers,
            rate=max(_rate(row).value, known.rate if known else 0.0),
            picked=row.config == forecast.pick or (known is not None and known.picked),
        )
    return thinned([found[workers] for workers in sorted(found)])


def _notes(run: Run, forecast: Forecast, rows: Sequence[Row]) -> Iterator[Text]:
    if forecast.pick is None:
        yield Text("No configuration here keeps the machine's limits.")
    else:
        picked = next(row for row in forecast.rows if row.config == forecast.pick)
        yield Text(
            f"pick: the cheapest {WITHIN} of the best: {rate_text(_rate(picked), _unit(rows))}"
            + (" for each rank." if forecast.conditions.ranks > 1 else ".")
        )
    yield Text(f"confidence {forecast.confidence}: {clean(forecast.confidence_reason)}.")
    for name, words in forecast.bounds.items():
        if any(row.prediction.bound == name for row in rows):
            yield Text(f"limit {_LIMITS.get(name, name)}: {words.partition(': ')[2] or words}.")
    yield from map(Text, _about_rows(forecast, rows))
    for note in forecast.notes:
        yield Text(f"Assumed: {clean(note)}.")
    yield Text(calibrated_text(forecast.calibrated))
    yield Text(f"Run file: {clean(run.path)}")


def _about_rows(forecast: Forecast, rows: Sequence[Row]) -> Iterator[str]:
    trials = [trial for row in rows if row.measured for trial in row.measured.trials]
    if trials:
        whole = any(row.prediction.epoch_batches_per_s for row in rows)
        over = ", over whole epochs as the predictions are" if whole else ""
        yield f"measured: what {counted(len(trials), 'trial')} of this run gave{over}."
    beyond = next((row for row in rows if row.beyond), None)
    if beyond is not None:
        yield f"too much: {clean(beyond.name)} does not keep {clean(beyond.beyond)}."
    hidden = len(forecast.rows) - len(rows)
    if hidden:
        verb = "is" if hidden == 1 else "are"
        yield f"{counted(hidden, 'more configuration')} that {verb} no faster: --json shows all."


def calibrated_text(found: Calibrated) -> str:
    """What predictions rest on, one sentence."""
    noun = "batch" if found.batches == 1 else "batches"
    text = f"Predicted from {found.batches:,} {noun} calibrated on {clean(found.hostname)}"
    if found.available_cores is not None:
        text += f" with {cores_text(found.available_cores)} cores to be had"
    if found.standard_error is not None:
        text += f"; their mean cost is known to ±{percent_text(found.standard_error)}"
    return text + "."
