"""What ``dlprof baseline show`` has to say, and its JSON document."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence

from dlprof.gate import comparable
from dlprof.gate.wording import percent, seconds_text
from dlprof.records.codec import to_json
from dlprof.records.gate import BaselineEntry, BaselineKey, BaselineRule
from dlprof.report import document as doc
from dlprof.report.gate.wording import short
from dlprof.units import MISSING, counted

BASELINE_SCHEMA_VERSION = 1
"""Of the JSON document; fields may be added without a new one."""

_METRIC = "service.mean"
_MOST_BARS = 7
_MOST_ROWS = 50
_TO_THE_MINUTE = len("2026-01-01T00:00")


def baseline_document(name: str, history: Sequence[BaselineEntry]) -> str:
    """What ``dlprof baseline show --json`` prints of a file and all its entries."""
    keys = [{"key": key, "runs": runs} for key, runs in _by_key(history)]
    document = {"schema_version": BASELINE_SCHEMA_VERSION, "file": name, "keys": keys}
    return json.dumps(to_json(document), allow_nan=False, indent=2)


def baseline_report(name: str, history: Sequence[BaselineEntry]) -> doc.Document:
    """The latest run beside those it can be compared with; the details have all kinds of runs."""
    kinds = list(_by_key(history))
    of = f" of {counted(len(kinds), 'kind')}" if len(kinds) > 1 else ""
    rows: list[tuple[str, doc.Words]] = [
        ("Baseline", f"{short(name)}: {counted(len(history), 'run')}{of}")
    ]
    chart: list[doc.Text | doc.Chart] = []
    if history:
        key = history[-1].key
        runs = comparable(history, key)
        rows += [("Latest", _name(key)), *_kind(key, runs)]
        chart = list(_chart(runs, _MOST_BARS))
    return doc.Document(
        title=f"Baseline {short(name)}",
        answer=(doc.Facts(tuple(rows)), *chart),
        hints=doc.hint("Details: -v"),
        details=tuple(
            doc.Section(_name(key), (doc.Facts(tuple(_kind(key, runs))), *_chart(runs, _MOST_ROWS)))
            for key, runs in kinds
        ),
    )


def _by_key(
    history: Sequence[BaselineEntry],
) -> Iterator[tuple[BaselineKey, list[BaselineEntry]]]:
    """The runs of each key, oldest first, in the order of the file."""
    for key in dict.fromkeys(entry.key for entry in history):
        yield key, comparable(history, key)


def _name(key: BaselineKey) -> str:
    return f"{short(key.target)}, {short(key.config)}"


def _kind(key: BaselineKey, runs: Sequence[BaselineEntry]) -> Iterator[tuple[str, doc.Words]]:
    """Where a kind of runs was measured, and whether there are enough of them."""
    where = f"{key.cpu_model}, {key.available_cores:g} cores, {key.os}"
    yield "Machine", short(f"{where}, Python {key.python}, torch {key.torch}")
    least = BaselineRule().least_runs
    if len(runs) < least:
        more = counted(least - len(runs), "more run")
        yield "Missing", doc.Span(f"{more} needed before a run can be judged", "warn")


def _chart(runs: Sequence[BaselineEntry], most: int) -> Iterator[doc.Text | doc.Chart]:
    """Service time of the last runs, each against the median of all."""
    figures = [each.figures[_METRIC] for each in runs if _is_figure(each)]
    middle = statistics.median(figures) if figures else math.nan
    left_out = max(0, len(runs) - most)
    if left_out:
        yield doc.Text(doc.Span(f"{counted(left_out, 'earlier run')} not shown", "soft"))
    bars = tuple(_bar(run, middle) for run in runs[left_out:])
    yield doc.Chart(label="run", unit="a sample", bars=bars)


def _bar(run: BaselineEntry, middle: float) -> doc.Bar:
    when, commit = short(run.recorded_at)[:_TO_THE_MINUTE].replace("T", " "), short(run.commit)[:7]
    if not _is_figure(run):
        return doc.Bar(label=when, pieces=(), figure=MISSING, note=commit)
    value = run.figures[_METRIC]
    against = f"{percent(value / middle - 1)} {commit}".strip()
    return doc.Bar.of(when, value, seconds_text(value), against)


def _is_figure(run: BaselineEntry) -> bool:
    return 0 < run.figures.get(_METRIC, math.nan) < math.inf
