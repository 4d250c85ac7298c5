"""What predictions have to say: what settings would give, or what it takes to feed a step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from dlprof.advise.predict.feed import Feed
from dlprof.advise.predict.forecast import Calibrated, Forecast, Row
from dlprof.advise.thresholds import WITHIN
from dlprof.advise.wrong_data import data_findings
from dlprof.records import SCHEMA_VERSION, Config, Estimate, Run
from dlprof.report.document import (
    Bar,
    Block,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Piece,
    Section,
    Span,
    Table,
    Text,
    Tone,
    Words,
    items,
    section,
)
from dlprof.report.findings import findings_json
from dlprof.report.labels import (
    cores_text,
    interval_text,
    percent_text,
    rate_text,
    settings_text,
)
from dlprof.report.snippets import difference
from dlprof.report.sweep import (
    CONFIDENCE,
    MOST_BARS,
    about_file,
    first,
    setting_columns,
    thinned,
    title_of,
)
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


def forecast_report(run: Run, forecast: Forecast, *, whole: bool = False) -> Document:
    """The predictions.

    Args:
        run: What they were predicted from.
        forecast: The predictions.
        whole: Whether rows that say nothing new are shown as well.
    """
    rows = _shown(forecast, whole=whole)
    return Document(
        title=f"Predicted: {title_of(run)}",
        answer=(
            *first(run),
            Facts(tuple(_answer(run, forecast))),
            *_chart(forecast),
        ),
        hints=tuple(_last(run, "every row")),
        details=tuple(_details(forecast, rows)),
    )


def _answer(run: Run, forecast: Forecast) -> Iterator[tuple[str, Words]]:
    where = forecast.hostname + (", not measured there" if forecast.extrapolated else "")
    yield "Predicted", f"{run.header.target.spec} on {where}: {_conditions(forecast)}"
    picked = next((row for row in forecast.rows if row.config == forecast.pick), None)
    if picked is None:
        yield "Recommended", "nothing: no configuration keeps the machine's limits"
    else:
        yield "Recommended", Span(settings_text(picked.config), "strong")
        each = " for each rank" if forecast.conditions.ranks > 1 else ""
        yield "Throughput", rate_text(_rate(picked), _unit(forecast.rows)) + each
        if picked.prediction.wait_fraction is not None:
            yield "Data wait", f"{percent_text(picked.prediction.wait_fraction)} of the time"
        limit = forecast.bounds.get(picked.prediction.bound, "")
        if limit:
            yield "Bottleneck", limit.partition(": ")[2] or limit
    tone = CONFIDENCE[forecast.confidence]
    yield "Certainty", (Span(forecast.confidence, tone), f": {forecast.confidence_reason}")


def _conditions(forecast: Forecast) -> str:
    """Cores, ranks, step and the rest in one line."""
    where = forecast.conditions
    step_s = where.step_s + where.step_cpu_s
    parts = [counted(where.ranks, "rank")] if where.ranks > 1 else []
    parts.append(f"{where.cores:g} {'core' if where.cores == 1 else 'cores'}")
    parts.append(f"a step of {format_duration(step_s)}" if step_s else "no step")
    if where.neighbours:
        parts.append(f"{where.neighbours:.3g} cores busy with other processes")
    if where.speed != 1.0:
        parts.append(f"cores of {where.speed:.2f}x the speed")
    if where.storage_bytes_per_s is not None:
        parts.append(f"storage of {format_bytes(where.storage_bytes_per_s)}/s")
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
    """Over whole epochs where their length is known, as every view has it."""
    if row.measured is not None:
        return row.measured.samples_per_s
    steady = row.prediction.samples_per_s or row.prediction.batches_per_s
    return steady.times(row.speed / row.rate)


def _unit(rows: Sequence[Row]) -> str:
    return "batches/s" if rows[0].prediction.samples_per_s is None else "samples/s"


def _is_default(config: Config) -> bool:
    return config == Config(batch_size=config.batch_size)


def _chart(forecast: Forecast) -> Iterator[Chart]:
    """The best rate by ``num_workers``, that of the recommended its own."""
    found: dict[int, Row] = {}
    for row in sorted(forecast.rows, key=lambda row: (row.config == forecast.pick, row.rate)):
        found[row.config.num_workers] = row
    rows = [found[workers] for workers in sorted(found)]
    best = max(range(len(rows)), key=lambda i: rows[i].rate, default=0)
    kept = {i for i, row in enumerate(rows) if row.config == forecast.pick} | {0, best}
    shown = thinned(rows, kept, range(len(rows)), MOST_BARS - 1)
    if len(shown) > 1:
        bars = tuple(_bar(row, forecast) for row in shown)
        yield Chart(label="workers", unit=_unit(forecast.rows), bars=bars)


def _bar(row: Row, forecast: Forecast) -> Bar:
    rate, mark = _rate(row), ""
    if row.config == forecast.pick:
        mark = " ◀"
    elif _is_default(row.config):
        mark = " default"
    return Bar(
        label=f"{row.config.num_workers}{mark}",
        pieces=(Piece(rate.value),),
        figure=format_rate(rate.value),
        low=rate.low,
        high=rate.high,
        note="measured" if row.measured is not None else "too much" if row.beyond else "",
        tone="good" if row.config == forecast.pick else "",
    )


def _last(run: Run, more: str) -> Iterator[Block]:
    said = about_file(run) if run.path else "Details: -v"
    yield Text(Span(f"{said} ({more})", "soft"))


def _details(forecast: Forecast, rows: Sequence[Row]) -> Iterator[Section]:
    yield from section("Configurations", _table(forecast, rows), items(_about(forecast, rows)))
    yield from section("Assumed", items(forecast.notes))
    yield from section("Calibration", Text(calibrated_text(forecast.calibrated)))


def _table(forecast: Forecast, rows: Sequence[Row]) -> Table:
    predictions = [row.prediction for row in rows]

    def column(title: str, cells: Iterable[str], keep: int | None = None) -> Column:
        return Column(title=title, cells=list(cells), keep=keep)

    limits = [_LIMITS.get(each.bound, each.bound) for each in predictions]
    columns = [
        Column(title="", cells=[_role(row, forecast) for row in rows], left=True, keep=20),
        *setting_columns([row.config for row in rows]),
        column(_unit(rows), (format_rate(_rate(row).value) for row in rows)),
        column("95% CI", (interval_text(_rate(row)) for row in rows), 18),
        column("wait", (percent_text(each.wait_fraction) for each in predictions), 17),
        Column(title="bottleneck", cells=limits, keep=15, left=True),
        column("cores", (cores_text(each.cores) for each in predictions), 8),
        column("memory", (format_bytes(each.pss_bytes) for each in predictions), 7),
        column("shm", (format_bytes(each.shm_bytes) for each in predictions), 4),
        column("1st batch", (format_duration(each.startup_s) for each in predictions), 6),
        column("files", (_count(each.open_files) for each in predictions), 2),
        column("measured", (_measured(row) for row in rows), 16),
    ]
    tones: list[Tone] = ["good" if row.config == forecast.pick else "" for row in rows]
    return Table(tuple(columns), tuple(tones))


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _role(row: Row, forecast: Forecast) -> str:
    if row.config == forecast.pick:
        return "recommended"
    if row.beyond:
        return "too much"
    return "default" if _is_default(row.config) else ""


def _measured(row: Row) -> str:
    return "" if row.measured is None else format_rate(row.measured.samples_per_s.value)


def _about(forecast: Forecast, rows: Sequence[Row]) -> Iterator[Words]:
    """What the rows are."""
    if forecast.pick is not None:
        yield f"recommended: the cheapest {WITHIN} of the best."
    trials = [trial for row in rows if row.measured for trial in row.measured.trials]
    if trials:
        whole = any(row.prediction.epoch_batches_per_s for row in rows)
        over = ", over whole epochs as the predictions are" if whole else ""
        yield f"measured: what {counted(len(trials), 'trial')} of this run gave{over}."
    beyond = next((row for row in rows if row.beyond), None)
    if beyond is not None:
        yield f"too much: {beyond.name} does not keep {beyond.beyond}."
    hidden = len(forecast.rows) - len(rows)
    if hidden:
        verb = "is" if hidden == 1 else "are"
        yield f"{counted(hidden, 'more configuration')} that {verb} no faster: --json shows all."


def calibrated_text(found: Calibrated) -> str:
    """What predictions rest on, one sentence."""
    noun = "batch" if found.batches == 1 else "batches"
    text = f"Predicted from {found.batches:,} {noun} traced on {found.hostname}"
    if found.available_cores is not None:
        text += f" with {cores_text(found.available_cores)} cores available"
    if found.standard_error is not None:
        text += f"; their mean cost is known to ±{percent_text(found.standard_error)}"
    return text + "."


def feed_document(run: Run, feed: Feed) -> str:
    """What ``dlprof predict --feed --json`` prints.

    Args:
        run: What it was predicted from.
        feed: What it takes.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        "target": run.header.target.spec,
        "findings": findings_json(data_findings(run)),
        "answer": feed_text(feed),
        **to_json(feed),
    }
    return json.dumps(document, allow_nan=False, indent=2)


def feed_text(feed: Feed) -> str:
    """The answer in one line."""
    ranks = counted(feed.ranks, "rank")
    step = format_duration(feed.step_s)
    workers = counted(round(feed.workers.value), "worker")
    cores = counted(round(feed.cores.value), "core")
    if feed.ranks > 1:
        workers = f"{workers} a rank"
        cores = f"{cores} in all"
    rate = feed.batch_bytes_per_s
    bytes_ = "" if rate is None else f" and {format_bytes(rate)}/s"
    takes = "takes" if feed.reached else "can't be done; the closest is"
    return f"Feeding {ranks} at a step of {step} {takes} {workers}, {cores}{bytes_}"


def feed_report(run: Run, feed: Feed) -> Document:
    """What it takes to feed a training step.

    Args:
        run: What it was predicted from.
        feed: What it takes.
    """
    return Document(
        title=f"Feeding a step: {title_of(run)}",
        answer=(
            *first(run),
            Text(Span(f"{feed_text(feed)}.", "strong")),
            Facts(tuple(_feed_rows(feed))),
            Code(difference(feed.config, None, run.header.target.call)),
        ),
        hints=tuple(_last(run, "what it rests on")),
        details=(
            *section("Needs", Facts(tuple(_needs(feed)))),
            *section("Assumed", items(feed.notes)),
            *section("Calibration", Text(calibrated_text(feed.calibrated))),
        ),
    )


def _feed_rows(feed: Feed) -> Iterator[tuple[str, Words]]:
    everyone = f", {feed.ranks} ranks together" if feed.ranks > 1 else ""
    yield "Data wait", _fed(feed)
    yield "Workers", f"{_whole(feed.workers)}{' for each rank' if feed.ranks > 1 else ''}"
    busy = f"{cores_text(feed.busy_cores)} busy on average{everyone}"
    yield "Cores", f"{_whole(feed.cores)}; {busy}; {_cores_there(feed)}"
    yield "Storage", _storage(feed, everyone)
    rate = feed.prediction.samples_per_s
    if rate is not None:
        yield "Throughput", rate_text(rate) + (" for each rank" if feed.ranks > 1 else "")
    yield (
        "Certainty",
        (Span(feed.confidence, CONFIDENCE[feed.confidence]), f": {feed.confidence_reason}"),
    )


def _fed(feed: Feed) -> str:
    asked, allowed = percent_text(feed.asked_wait_fraction), percent_text(feed.max_wait_fraction)
    wait = f"{percent_text(feed.prediction.wait_fraction)} of the time"
    if feed.max_wait_fraction <= feed.asked_wait_fraction:
        return f"{wait}: fed, as that is less than {asked}"
    beyond = feed.least_wait_fraction > feed.asked_wait_fraction
    loaders = "no loader keeps" if beyond else "hardly any loader keeps"
    return (
        f"{wait}: {loaders} it below {asked}, as receiving batches alone takes "
        f"{percent_text(feed.least_wait_fraction)}; {allowed} is allowed here"
    )


def _cores_there(feed: Feed) -> str:
    there = f"the {feed.machine_cores:g} of {feed.hostname}"
    wait = percent_text(feed.machine_wait_fraction)
    verdict = "are enough" if feed.enough else f"are not enough: the step would wait {wait}"
    return f"{there} {verdict}" + (" (not measured there)" if feed.extrapolated else "")


def _needs(feed: Feed) -> Iterator[tuple[str, Words]]:
    everyone = f", {feed.ranks} ranks together" if feed.ranks > 1 else ""
    yield "storage", _storage(feed, everyone)
    if feed.batch_bytes_per_s is not None:
        yield "batches", f"{format_bytes(feed.batch_bytes_per_s)}/s{everyone}"
    if feed.pss_bytes is not None:
        yield "memory", format_bytes(feed.pss_bytes) + everyone
    if feed.shm_bytes is not None:
        yield "shared memory", format_bytes(feed.shm_bytes) + everyone


def _storage(feed: Feed, everyone: str) -> str:
    rate = feed.storage_bytes_per_s
    if rate is None:
        return "not known: what batches read was not measured"
    if rate < 1:
        return "nothing: the traced batches came from the page cache, or from no file"
    return f"{format_bytes(rate)}/s{everyone}"


def _whole(estimate: Estimate) -> str:
    text = f"{estimate.value:,.0f}"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text
    return f"{text} ({estimate.low:,.0f}-{estimate.high:,.0f})"
