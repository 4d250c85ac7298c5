"""What predictions have to say: what settings would give, or what it takes to feed a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from dlprof.advise.forecast import Calibrated, Feed, Forecast, ForecastRow
from dlprof.advise.thresholds import FED_WAIT_FRACTION, WITHIN
from dlprof.advise.wording import background_text
from dlprof.advise.wrong_data import data_findings
from dlprof.records import RECEIVING, Config, ConfigRate, Estimate, Prediction
from dlprof.report import document as doc
from dlprof.report import sweep
from dlprof.report.documents import json_document
from dlprof.report.labels import (
    IN_TRIALS,
    MOST_BARS,
    Rated,
    certainty,
    cores_text,
    count_text,
    default_named,
    evenly,
    interval_text,
    limit_text,
    percent_text,
    rate_text,
    rates_chart,
    setting_columns,
    step_text,
    value_text,
    wait_parts,
    wait_text,
    whole_text,
)
from dlprof.report.ranks import accelerators_sections, accelerators_text
from dlprof.report.snippets import difference
from dlprof.stats.belief import NEAR
from dlprof.units import MISSING, counted, format_bytes, format_duration, format_rate


def predict_document(found: Forecast | Feed) -> str:
    """What ``dlprof predict --json`` prints."""
    answer = {"answer": feed_text(found)} if isinstance(found, Feed) else {}
    run = found.run
    target, findings = run.header.target.spec, data_findings(run)
    return json_document(found, run_file=run.path, target=target, findings=findings, **answer)


def forecast_report(forecast: Forecast) -> doc.Document:
    """The predictions; of settings that were named, the run may recommend others."""
    run, rows, unit = forecast.run, _shown(forecast), _unit(forecast)
    unit += " a rank" if forecast.ranks > 1 else ""
    rated, whole = [], len(forecast.rows)
    some = "all" if len(rows) == whole else f"{len(rows):,} of"
    for row in forecast.rows:
        known = "measured" if row.measured else ""
        notes = sweep.bar_notes(row.config, forecast.pick, row.ratio, row.beyond, known)
        rated.append(Rated(row.config, _rate(row), ", ".join(notes)))
    # Each that was named is an answer, which no screen leaves out; of a long range some will do.
    asked = "num_workers" in forecast.named
    asked = asked and len({row.config.num_workers for row in forecast.rows}) <= MOST_BARS
    most = MOST_BARS if asked else MOST_BARS - 1
    chart = rates_chart(rated, forecast.pick, run.present, unit=unit, most=most)
    if asked and chart is not None:
        bars = tuple(dataclasses.replace(bar, spare=0) for bar in chart.bars)
        chart = dataclasses.replace(chart, bars=bars)
    return doc.Document(
        title=f"Predicted: {sweep.title_of(run)}",
        answer=(*sweep.first(run), doc.FactList(tuple(_answer(forecast))), *doc.known(chart)),
        hints=doc.hint(f"Details: -v ({some} {counted(whole, 'setting')})"),
        details=lambda: (
            *doc.section("Configurations", *_table(forecast, rows)),
            *doc.section("Resources", *_resources(forecast)),
            *accelerators_sections(forecast.accelerators),
            *doc.section("Assumed", doc.items(forecast.notes)),
            *doc.section("Calibration", doc.Text(_calibrated(forecast.calibrated))),
        ),
    )


def _beyond(rows: Sequence[ForecastRow]) -> str:
    """Which limit the cheapest of what is too much does not keep; empty where all keep theirs."""
    row = next((row for row in rows if row.beyond), None)
    named = "" if row is None else row.config.text_naming("prefetch_factor")
    return "" if row is None else f"{named} does not keep {row.beyond}"


def _answer(forecast: Forecast) -> Iterator[doc.Row]:
    run, unit = forecast.run, _unit(forecast)
    where = forecast.hostname + (", not measured there" if forecast.extrapolated else "")
    picked, alone = next((r for r in forecast.rows if r.config == forecast.pick), None), False
    yield "Predicted", f"for machine {where}: {_conditions(forecast, picked)}"
    if picked is None:
        yield (
            "Recommended",
            f"nothing: {_beyond(forecast.rows) or 'no configuration keeps the limits'}",
        )
    else:
        best = forecast.others.get("recommended")
        others = bool(forecast.named) and (best is None or best.config != forecast.pick)
        depths = sorted({row.config.prefetch_factor or 0 for row in forecast.rows} - {0})
        # Which multiply what was asked for by num_workers.
        by = f", prefetch_factor {' or '.join(map(str, depths))}" if len(depths) > 1 else ""
        among = f"  (of what was asked for{by}; of all settings: dlprof recommend)"
        among = among if others else ""
        name = picked.name if others and by else picked.config.text
        label = "Best" if others else "Recommended"  # which is said of all settings
        rated = {trial.config for trial in run.completed}
        only_one = run.prediction is None and sweep.is_alone(run, picked.config, rated)
        alone = only_one and picked.measured is not None and not others
        if alone:  # as recommend says it
            yield label, sweep.nothing_yet(run, picked.config)
        else:
            yield label, (doc.Styled(name, "strong"), doc.Styled(among, "soft"))
        for row in (row for row in forecast.rows if row.config == forecast.faster):
            ratio = row.ratio.value if row.ratio and not row.ratio.is_wide else None
            ratio = None if _rate(row).is_wide else ratio
            yield sweep.perhaps_faster(row.config, _rate(row), ratio, row.gain_if, unit)
        each = " for each rank" if forecast.ranks > 1 else ""
        yield "Throughput", rate_text(_rate(picked), unit) + each
        yield "Speed-up", _speed_up(forecast, picked)
        if (wait := _wait(picked)) is not None:
            restarts, seen = _restarts(picked.prediction), picked.measured is not None
            step, kept = _step(forecast), run.header.target.keeps_samples
            text = wait_text(wait, restarts, in_trials=seen, step=step, kept=kept)
            yield "Data wait", text
        if limit := _limit(forecast, picked):
            yield "Bottleneck", limit
    if forecast.resources and _shares(forecast):
        yield "Ranks", _runs_out(forecast)
    if forecast.accelerators is not None:
        yield "Utilization", accelerators_text(forecast.accelerators)
    yield certainty(forecast.confidence, forecast.confidence_reason)
    if alone:
        yield from sweep.what_failed(run)


def _speed_up(forecast: Forecast, picked: ForecastRow) -> str:
    """Over the present settings, PyTorch's default, and what is recommended of all settings."""
    pick = picked.config
    default, found = default_named(pick), dict[Config, tuple[ConfigRate, str]]()
    for name, each in forecast.others.items():
        named = sweep.YOURS if name == "present" else f"the recommended {each.config.text}"
        found.setdefault(each.config, (each, default if name == "default" else named))
    if compared := [each for config, each in found.items() if config != pick]:
        # As recommend says it.
        whole = picked.measured is not None and not forecast.named
        sure = forecast.certificate if whole else None
        gains = sweep.gains_text(forecast.run, pick, compared, sure)
        return gains + sweep.if_needed(picked.gain_if, pick, compared[0][0].config, gains)
    if "speedup" in forecast.unavailable:
        return f"not known: {forecast.unavailable['speedup']}"
    return f"none: that is {default}"


def _limit(forecast: Forecast, picked: ForecastRow) -> str:
    bound, wait = picked.prediction.bound, _wait(picked)
    waits = bound == "step" and wait is not None and wait > FED_WAIT_FRACTION
    if not picked.config.num_workers and (waits or bound == "main"):
        return "the main process loads each batch itself"
    _, restarting = wait_parts(0.0, _restarts(picked.prediction))
    if picked.config.num_workers and restarting > 100 - restarting:
        again = ", as workers start again: persistent_workers=True keeps them"
        again = "" if picked.config.persistent_workers else again
        return f"epoch restarts ({restarting}% of the time){again}"
    if waits and wait is not None:
        within, restarting = wait_parts(wait, _restarts(picked.prediction))
        parts = {"the training step": 100 - within - restarting}
        parts[forecast.calibrated.main_work] = within
        (most, share), (rest, less) = sorted(parts.items(), key=lambda part: -part[1])
        does = rest.partition(" ")[0]
        then = f"not loading ({does}: " if most == "the training step" else f"then {rest} ("
        return f"{most} ({share}% of the time), {then}{less}%)"
    text = forecast.bounds.get(bound, "").partition(", and it waits")[0]
    return text.replace(" is the limit", "").replace(" are the limit", "")


def _shares(forecast: Forecast) -> bool:
    return forecast.ranks > 1 or forecast.conditions.storage_bytes_per_s is not None


def _runs_out(forecast: Forecast) -> str:
    found = forecast.resources[0]
    name = limit_text(found.name)
    if found.ranks is None:
        return f"each is limited by its own {name}, busy {percent_text(found.used)} of the time"
    run, are = ("run", "are") if found.name == "cores" else ("runs", "is")
    such = "such rank" if math.floor(found.ranks.value) == 1 else "such ranks"
    out = f"{run} out first, beyond {rate_text(found.ranks, such, _whole_number)}"
    out = f"{are} not enough for one such rank" if found.ranks.value < 1 else out
    there = f"; the {forecast.nodes:,} nodes have {forecast.ranks:,}" if forecast.nodes > 1 else ""
    return f"the {name} {out}{there}"


def _whole_number(count: float) -> str:
    return f"{math.floor(count):,}"


def _resources(forecast: Forecast) -> Iterator[doc.Block]:
    found = forecast.resources if _shares(forecast) else ()
    if not found:
        return
    shown = {
        "storage": lambda value: f"{format_bytes(value)}/s",
        "bandwidth": lambda value: f"{format_bytes(value)}/s",
        "cores": cores_text,
        "memory": format_bytes,
        "shm": format_bytes,
        "main": percent_text,
    }
    note = f"share that {counted(forecast.ranks, 'rank')} would take, each as fast as alone."
    enough = [_whole_number(each.ranks.value) if each.ranks else MISSING for each in found]
    yield doc.Table(
        (
            doc.Column("", [limit_text(each.name) for each in found], left=True),
            doc.Column("a rank takes", [shown[each.name](each.each) for each in found]),
            doc.Column("there is", [shown[each.name](each.total) for each in found], 10),
            doc.Column("for ranks", enough),
            doc.Column("95% CI", [interval_text(each.ranks, _whole_number) for each in found], 5),
            doc.Column("used", [percent_text(each.used) for each in found], note=note),
        ),
        tuple("bad" if each.used > 1 else "" for each in found),
    )


def _conditions(forecast: Forecast, picked: ForecastRow | None) -> str:
    """Cores, ranks and the rest in one line; the step is beside what is waited for it."""
    where = forecast.conditions
    cores = counted(where.cores, "core") + _idle(forecast, picked)
    if where.neighbours:
        cores += f", {background_text(where.neighbours)}"
    if forecast.ranks > 1:
        cores = f"{counted(where.ranks, 'rank')} on {cores}"
    if forecast.nodes > 1:
        cores = f"{forecast.nodes:,} nodes of {cores}"
    step = _step(forecast)
    parts = [cores] if step and forecast.pick else [cores, f"step {step}" if step else "no step"]
    if where.speed != 1.0:
        parts.append(f"cores of {where.speed:.2f}x the speed")
    if where.storage_bytes_per_s is not None:
        held = f"storage of {format_bytes(where.storage_bytes_per_s * forecast.nodes)}/s"
        if all(each.name != "storage" for each in forecast.resources):
            held += " (no effect: nothing was read from it)"
        parts.append(held)
    return ", ".join(parts)


def _idle(forecast: Forecast, picked: ForecastRow | None) -> str:
    """Why more workers than cores may pay: these are not busy all the time."""
    if picked is None or forecast.ranks > 1 or picked.prediction.bound == "cores":
        return ""
    used, workers = picked.prediction.cores, picked.config.num_workers
    cores = sum(each.total for each in forecast.resources if each.name == "cores")
    more = workers > forecast.conditions.cores and used is not None and used < 0.9 * cores
    return f" ({cores_text(used)} busy with {counted(workers, 'worker')})" if more else ""


def _step(forecast: Forecast) -> str:
    where = forecast.conditions
    step_s = where.step_s + where.step_cpu_s
    return step_text(step_s, where.step_spread) if step_s else ""


def _shown(forecast: Forecast) -> list[ForecastRow]:
    """The rows that say something: of like ones that are as fast, only the cheapest."""
    rows, best = [], dict[int, float]()
    whole = forecast.named not in {(), ("num_workers",)}  # each was asked for
    for row in forecast.rows:
        workers = row.config.num_workers
        faster = row.speed * NEAR > best.get(workers, 0.0)
        best[workers] = max(best.get(workers, 0.0), row.speed)
        if whole or faster or row.config == forecast.pick or row.measured is not None:
            rows.append(row)
    kept = [i for i, row in enumerate(rows) if row.config == forecast.pick or row.measured]
    return [rows[i] for i in sorted({*evenly(range(len(rows)), 66), *kept})]


def _rate(row: ForecastRow) -> Estimate:
    """The one that every view has; in batches where their samples are not known."""
    return row.samples_per_s or row.prediction.batches_per_s.times(row.speed / row.rate)


def _wait(row: ForecastRow) -> float | None:
    """What is waited at that rate: measured where the rate is."""
    seen = None if row.measured is None else row.measured.wait_fraction
    return row.prediction.wait_fraction if seen is None else seen


def _restarts(found: Prediction) -> float:
    """Share of all time that restarting epochs takes, which the rate counts."""
    steady = found.batches_per_s.value
    return max(0.0, 1.0 - (found.epoch_batches_per_s or steady) / steady)


def _unit(forecast: Forecast) -> str:
    known = forecast.rows[0].prediction.samples_per_s is not None
    return "samples/s" if known else "batches/s"


def _table(forecast: Forecast, rows: Sequence[ForecastRow]) -> Iterator[doc.Block]:
    found = [row.prediction for row in rows]
    rates = [_rate(row) for row in rows]
    measured = [value_text(r.measured.samples_per_s) if r.measured else "" for r in rows]
    trials = counted(sum(len(row.measured.trials) for row in rows if row.measured), "trial")
    whole = any(row.measured and row.prediction.epoch_batches_per_s for row in rows)
    over = ", over whole epochs as the predictions are" if whole else ""
    roles = [f"recommended: the cheapest {WITHIN} of the best."] if forecast.pick else []
    if beyond := _beyond(rows):
        roles.append(f"too much: {beyond}.")
    seen = any(row.measured and row.measured.wait_fraction is not None for row in rows)
    waited = f"in epochs; where measured, {IN_TRIALS}" if seen else "in epochs."
    marks = {Config(batch_size=row.config.batch_size): "default" for row in rows}
    marks |= {row.config: "too much" for row in rows if row.beyond}
    marks |= {} if forecast.pick is None else {forecast.pick: "recommended"}
    names = [marks.get(row.config, "") for row in rows]
    columns = (
        doc.Column("", names, 20, left=True, note=" ".join(roles)),
        *setting_columns([row.config for row in rows]),
        doc.Column(_unit(forecast), [format_rate(rate.value) for rate in rates]),
        doc.Column("95% CI", [interval_text(rate) for rate in rates], 18),
        doc.Column("wait", [percent_text(_wait(row)) for row in rows], 17, note=waited),
        doc.Column("bottleneck", [limit_text(p.bound) for p in found], 15, left=True),
        doc.Column("cores", [cores_text(each.cores) for each in found], 8),
        doc.Column("memory", [format_bytes(each.pss_bytes) for each in found], 7),
        doc.Column("shm", [format_bytes(each.shm_bytes) for each in found], 4),
        doc.Column("1st batch", [format_duration(each.startup_s) for each in found], 6),
        doc.Column("files", [count_text(each.open_files) for each in found], 2),
        doc.Column("measured", measured, 16, note=f"what {trials} of this run gave{over}."),
    )
    yield doc.Table(columns, tuple("good" if r.config == forecast.pick else "" for r in rows))
    if hidden := len(forecast.rows) - len(rows):
        yield doc.Items((f"{counted(hidden, 'more configuration')}: --json shows all.",))


def _calibrated(found: Calibrated) -> str:
    text = f"Predicted from {counted(found.batches, 'batch')} traced on {found.hostname}"
    if found.available_cores is not None:
        text += f" with {cores_text(found.available_cores)} cores available"
    if found.standard_error is not None:
        text += f"; their mean cost is known to ±{percent_text(found.standard_error)}"
    return text + "."


def feed_text(feed: Feed) -> str:
    """The answer in one line."""
    a_rank, in_all = (" a rank", " in all") if feed.ranks > 1 else ("", "")
    in_all = " a node" if feed.nodes > 1 else in_all
    workers = counted(round(feed.workers.value), "worker") + a_rank
    cores = counted(round(feed.cores.value), "core") + in_all
    takes = "takes" if feed.reached else "can't be done; the closest is"
    if feed.reached and not _is_fed(feed):
        never = feed.least_wait_fraction > feed.asked_wait_fraction
        asked, can = percent_text(feed.asked_wait_fraction), "can't" if never else "can hardly"
        takes = f"with at most {asked} data wait (--max-wait) {can} be done; the closest is"
    ranks = counted(feed.ranks, "rank")
    ranks += f" on each of {feed.nodes:,} nodes" if feed.nodes > 1 else ""
    what = f"Feeding {ranks} at a step of {format_duration(feed.step_s)}"
    if feed.run.header.target.keeps_samples:  # later ones load little of them
        what += " in a first epoch"
    said = f"{what} {takes} {workers}, {cores}"
    here = feed.recommended.num_workers if feed.recommended else feed.config.num_workers
    if here == feed.config.num_workers:
        return said
    if _settings_of(feed) is not feed.config:
        why = "where more workers give no measurable gain"
        return f"{said}; num_workers={here} is recommended on {feed.hostname}, {why}"
    mine = f"{counted(feed.machine_cores, 'core')} of {feed.hostname}"
    return f"{said}; on the {mine}, num_workers={here} is recommended"


def _settings_of(feed: Feed) -> Config:
    """The settings to paste: where the machine has the cores that it takes, what is recommended."""
    best = feed.recommended
    if best is None or feed.machine_cores < feed.cores.value:
        return feed.config
    return best if best.num_workers < feed.config.num_workers else feed.config


def feed_report(feed: Feed) -> doc.Document:
    """What it takes to feed a training step."""
    run = feed.run
    everyone = f", {feed.ranks} ranks together" if feed.ranks > 1 else ""
    everyone += " on each node" if feed.nodes > 1 else ""
    sizes = {"memory": feed.pss_bytes, "shared memory": feed.shm_bytes}
    needs = [(n, format_bytes(v) + everyone) for n, v in sizes.items() if v is not None]
    return doc.Document(
        title=f"Feeding a step: {sweep.title_of(run)}",
        answer=(
            *sweep.first(run),
            doc.Text(doc.Styled(f"{feed_text(feed)}.", "strong")),
            doc.FactList(tuple(_feed_rows(feed, everyone))),
            doc.Code(difference(_settings_of(feed), run)),
        ),
        hints=doc.hint("Details: -v (what it rests on)"),
        details=lambda: (
            *doc.section("Needs", doc.facts(needs)),
            *doc.section("Assumed", doc.items(feed.notes)),
            *doc.section("Calibration", doc.Text(_calibrated(feed.calibrated))),
        ),
    )


def _feed_rows(feed: Feed, everyone: str) -> Iterator[doc.Row]:
    yield "Data wait", _fed(feed)
    each = " for each rank" if feed.ranks > 1 else ""
    yield "Workers", f"{whole_text(feed.workers)}{each}"
    busy = f"{cores_text(feed.busy_cores)} busy on average{everyone}"
    wait = percent_text(feed.machine_wait_fraction)
    share, restarts = feed.prediction.wait_fraction, _restarts(feed.prediction)
    wait += " in epochs" if share is not None and wait_parts(share, restarts)[1] else ""
    few = "too few" if feed.machine_cores < feed.cores.value else "not the limit"
    verdict = "enough" if feed.enough else f"{few}, data wait would be {wait} there"
    there = f"{feed.hostname} has {feed.machine_cores:g}: {verdict}"
    there += " (not measured there)" if feed.extrapolated else ""
    yield "Cores", f"{whole_text(feed.cores)} for peaks; {busy}; {there}"
    if (read := feed.storage_bytes_per_s) is None:
        yield "Storage", "not known: what batches read was not measured"
    elif read < 1:
        memory = "traced batches came from the page cache (memory), or from no file"
        yield "Storage", f"not known: {memory}; data beyond the RAM there is read as well"
    else:
        yield "Storage", f"{format_bytes(read)}/s{everyone}"
    if feed.samples_per_s is not None:
        size = feed.batch_bytes_per_s
        moved = "" if size is None else f"; batches of {format_bytes(size)}/s{everyone}"
        yield "Throughput", f"{rate_text(feed.samples_per_s)}{each}{moved}"
    yield certainty(feed.confidence, feed.confidence_reason)


_LEAST_BOUNDS: Mapping[str, str] = {
    "workers": "more workers give no more: they may share a limit, such as the rate of a server, "
    "or an epoch has no more batches",
    "lock": "workers wait for each other",
    "storage": "storage gives no more",
}


def _is_fed(feed: Feed) -> bool:
    asked, wait = feed.asked_wait_fraction, feed.prediction.wait_fraction
    if feed.max_wait_fraction <= asked or wait is None:
        return feed.max_wait_fraction <= asked
    return wait <= asked or percent_text(wait) == percent_text(asked)  # as it is shown


def _fed(feed: Feed) -> str:
    asked = percent_text(feed.asked_wait_fraction)
    share, restarts = feed.prediction.wait_fraction, _restarts(feed.prediction)
    kept = feed.run.header.target.keeps_samples
    wait = MISSING if share is None else wait_text(share, restarts, kept=kept)
    # Restarts are shown apart, which no number of workers avoids.
    wait += "; in epochs" if share is not None and wait_parts(share, restarts)[1] else ":"
    if _is_fed(feed):
        return f"{wait} the step counts as fed up to {asked} (--max-wait)"
    beyond = feed.least_wait_fraction > feed.asked_wait_fraction
    loaders = "no loader keeps" if beyond else "hardly any loader keeps"
    least = percent_text(feed.least_wait_fraction)
    takes = f"receiving batches alone takes {least}"
    if (work := feed.calibrated.main_work) != RECEIVING:
        takes = f"{work} and receiving batches take {least}"
    takes = _LEAST_BOUNDS.get(feed.least_bound, takes)
    return f"{wait} {loaders} it below {asked} (--max-wait), as {takes}"
