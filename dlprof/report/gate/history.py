"""A baseline as people read it, and as a JSON document."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.gate import comparable
from dlprof.gate.wording import percent, seconds_text
from dlprof.records.gate import BaselineEntry, BaselineKey, BaselineRule
from dlprof.report.gate.wording import short
from dlprof.report.layout import INDENT, Hanging
from dlprof.store.codec import to_json
from dlprof.units import MISSING

BASELINE_SCHEMA_VERSION = 1
"""Of the JSON document; fields may be added without a new one."""

_METRIC = "service.mean"
_MOST_ROWS = 10


def baseline_document(name: str, history: Sequence[BaselineEntry]) -> str:
    """What ``dlprof baseline show --json`` prints.

    Args:
        name: The file's.
        history: All its entries.
    """
    document = {
        "schema_version": BASELINE_SCHEMA_VERSION,
        "file": name,
        "keys": [{"key": key, "runs": runs} for key, runs in _by_key(history)],
    }
    return json.dumps(to_json(document), allow_nan=False, indent=2)


def render_baseline(name: str, history: Sequence[BaselineEntry]) -> RenderableType:
    """The runs by what they can be compared with, the last ones of each.

    Args:
        name: The file's.
        history: All its entries.
    """
    groups = list(_by_key(history))
    runs = _counted(len(history), "run")
    of = f" of {_counted(len(groups), 'kind')}" if len(groups) > 1 else ""
    parts: list[RenderableType] = [Text(f"{short(name)}: {runs}{of}", style="bold")]
    for key, group in groups:
        parts += _group(key, group)
    return Group(*parts)


def _by_key(
    history: Sequence[BaselineEntry],
) -> Iterator[tuple[BaselineKey, list[BaselineEntry]]]:
    """The runs of each key, oldest first, in the order of the file."""
    for key in dict.fromkeys(entry.key for entry in history):
        yield key, comparable(history, key)


def _group(key: BaselineKey, runs: Sequence[BaselineEntry]) -> Iterator[RenderableType]:
    yield Text()
    yield Text(f"{short(key.target)}, {short(key.config)}")
    where = f"{key.cpu_model}, {key.available_cores:g} cores, {key.os}"
    versions = f"Python {key.python}, torch {key.torch}"
    yield Hanging(INDENT, Text(short(f"{where}, {versions}"), "dim"))
    figures = [each.figures[_METRIC] for each in runs if _is_figure(each)]
    middle = statistics.median(figures) if figures else None
    left_out = len(runs) - _MOST_ROWS
    if left_out > 0:
        yield Text(f"{INDENT}{_counted(left_out, 'earlier run')} not shown", style="dim")
    for run in itertools.islice(runs, max(0, left_out), None):
        yield Text(f"{INDENT}{_row(run, middle)}")
    least = BaselineRule().least_runs
    if len(runs) < least:
        more = _counted(least - len(runs), "more run")
        yield Hanging(INDENT, Text(f"{more} needed before a run can be judged.", "yellow"))


def _row(run: BaselineEntry, middle: float | None) -> str:
    commit = short(run.commit)[:7] or MISSING
    when = short(run.recorded_at, 40)
    if middle is None or not _is_figure(run):
        return f"{when}  {commit:<7}  {MISSING}"
    value = run.figures[_METRIC]
    return f"{when}  {commit:<7}  {seconds_text(value):>9} a sample  {percent(value / middle - 1)}"


def _is_figure(run: BaselineEntry) -> bool:
    return 0 < run.figures.get(_METRIC, math.nan) < math.inf


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
