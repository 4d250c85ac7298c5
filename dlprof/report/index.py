"""Several runs in one table: what each was of, and what came out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import quote

from dlprof.advise.recommend import summarize, with_recommendation
from dlprof.records import Estimate, Run
from dlprof.report.document import Column, Document, FactList, Table, spans
from dlprof.report.export.formats import run_report
from dlprof.report.labels import interval_text, value_text
from dlprof.report.sweep import is_alone
from dlprof.report.text import shortened
from dlprof.units import MISSING


def page_names(runs: Sequence[Path], index: str) -> list[str]:
    """A file name for each run's page, none twice and none the index's."""
    taken, names = {index.casefold()}, []
    for path in runs:
        stem, number = run_name(path), 1
        name = f"{stem}.html"
        while name.casefold() in taken:  # the same folder may not distinguish cases
            number += 1
            name = f"{stem}-{number}.html"
        taken.add(name.casefold())
        names.append(name)
    return names


def run_name(path: PurePath) -> str:
    """A run file's name without its ending."""
    return re.sub(r"(\.dlprof)?\.jsonl\Z", "", path.name) or "run"


def index_row(run: Run) -> tuple[str, ...]:
    """What an index says of a run, whatever wrote it; all that need be kept of it."""
    run = with_recommendation(run)
    found, rate = _found(run)
    header = run.header
    names = (run_name(Path(run.path)), header.target.spec, header.machine.hostname)
    started = header.started_at[:16].replace("T", " ")
    name, target, host = (shortened(each, 60) for each in names)
    return (name, found, value_text(rate), interval_text(rate), target, host, started)


def _found(run: Run) -> tuple[str, Estimate | None]:
    """The answer in a few words, as the run's own screen has it, and the rate that goes with it."""
    if run.recommendation is not None:
        advice = run.recommendation
        only = "only " if is_alone(run, advice.config, advice.rates) else ""
        return f"{only}{advice.config.text}", advice.expected.samples_per_s
    lists = (each for each in run_report(run).answer if isinstance(each, FactList))
    said = dict(row for each in lists for row in each.rows)
    found = said.get("Data wait" if run.watched else "Bottleneck", said.get("Recommended", MISSING))
    rate = None
    if run.diagnosis is not None and not run.watched:
        rates = {each.config: each.rate for each in summarize(run)}
        rate = rates.get(run.diagnosis.config)
    return spans(found)[0].text, rate


def index_report(rows: Sequence[tuple[str, ...]], pages: Sequence[str] = ()) -> Document:
    """The index."""
    name, found, rate, interval, target, machine, started = zip(*rows, strict=True)
    columns = (
        Column("run", name, left=True, links=[f"./{quote(page)}" for page in pages]),
        Column("recommended, or found", found, left=True),
        Column("samples/s", rate, 5),
        Column("95% CI", interval, 4),
        Column("target", target, 2, left=True),
        Column("machine", machine, 1, left=True),
        Column("started (UTC)", started, 3, left=True),
    )
    return Document(title=f"{len(rows)} runs", answer=(Table(columns),))
