"""The sections of a report that tell what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dlprof.records import Config, Run
from dlprof.report.export.blocks import Bar, Block, Chart, Table, Text
from dlprof.report.labels import (
    cores_text,
    interval_text,
    percent_text,
    ratio_text,
    settings_text,
)
from dlprof.report.summary import PICK, Row, summarize
from dlprof.report.text import clean
from dlprof.units import MISSING, format_bytes, format_duration, format_rate, with_hint

_MOST_BARS = 24
_MOST_FAILURES = 50

_HEAD = (
    "settings",
    "",
    "samples/s",
    "95 %",
    "relative",
    "wait",
    "start-up",
    "turnover",
    "memory",
    "shm",
    "cores used/had",
    "trials",
    "noisy",
)


def configurations(run: Run) -> Iterator[Block]:
    """Throughput and memory of every configuration, as charts and a table."""
    # Trials that were explained, or measured cold, are slower for that alone.
    plain = tuple(trial for trial in run.trials if trial.purpose == "measure")
    rows = summarize(dataclasses.replace(run, trials=plain))
    if not rows:
        return
    measured = [row for row in rows if row.rate is not None]
    if measured:
        yield _throughput(measured)
    sized = [row for row in measured if row.pss_bytes]
    if sized:
        yield _memory(sized)
    if len(measured) > _MOST_BARS:
        yield Text(text=f"The charts show the fastest {_MOST_BARS} of {len(measured)}.")
    yield Table(head=_HEAD, rows=tuple(map(_cells, rows)), texts=2)


def _throughput(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="samples/s, with 95 % intervals",
        bars=tuple(
            Bar(
                label=_short(row.config),
                pieces=(("", row.rate.value),),
                low=row.rate.low,
                high=row.rate.high,
                figure=format_rate(row.rate.value),
                marked=row.role == PICK,
            )
            for row in rows[:_MOST_BARS]
            if row.rate is not None
        ),
    )


def _memory(rows: Sequence[Row]) -> Chart:
    return Chart(
        title="memory of the process tree (PSS), peak",
        bars=tuple(
            Bar(
                label=_short(row.config),
                pieces=(("", float(row.pss_bytes or 0)),),
                figure=format_bytes(row.pss_bytes),
                marked=row.role == PICK,
            )
            for row in rows[:_MOST_BARS]
        ),
    )


def _short(config: Config) -> str:
    """A configuration as short as a chart needs it: ``w4-p2-pin``."""
    return clean(config.key)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        settings_text(row.config),
        row.role,
        format_rate(row.rate.value if row.rate is not None else None),
        interval_text(row.rate),
        ratio_text(row.relative.value if row.relative is not None else None),
        percent_text(row.wait_fraction),
        format_duration(row.startup_s),
        format_duration(row.epoch_turnover_s),
        format_bytes(row.pss_bytes),
        format_bytes(row.shm_bytes),
        _cores(row),
        str(row.trials),
        str(row.noisy) if row.noisy else "",
    )


def _cores(row: Row) -> str:
    if row.own_cores is None and row.available_cores is None:
        return MISSING
    return f"{cores_text(row.own_cores)}/{cores_text(row.available_cores)}"


def failures(run: Run) -> list[str]:
    """Each kind of failure once for each configuration, with what to do about it.

    What was skipped as it can't work here is among them.
    """
    notes: dict[tuple[str, str], str] = {}
    for trial in run.trials:
        failure = trial.failure
        if failure is None:
            continue
        how = "Skipped" if trial.outcome == "skipped" else "Failed"
        told = with_hint(clean(failure.message), clean(failure.hint))
        note = f"{how}: {settings_text(trial.config)}: {told}"
        notes.setdefault((trial.config.key, failure.kind), f"{note} [{clean(trial.id)}]")
    found = list(notes.values())
    more = len(found) - _MOST_FAILURES
    rest = [f"{more} more that failed or were skipped"] if more > 0 else []
    return [*found[:_MOST_FAILURES], *rest]
