"""What a profile has to say: the bottleneck, the fix, what that brings; then where time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dlprof.advise.recommend import ConfigSummary, summarize
from dlprof.advise.thresholds import WORTH_TRYING
from dlprof.advise.wording import inside
from dlprof.records import (
    USELESS,
    Diagnosis,
    Estimate,
    Explanation,
    Run,
    Stage,
    StageName,
    Stalls,
    Trial,
    WithoutPart,
    WorkerCosts,
)
from dlprof.report import document as doc
from dlprof.report.findings import answer, cards, more_findings
from dlprof.report.labels import (
    STAGES,
    about_file,
    cores_text,
    count_text,
    gpu_text,
    interval_text,
    limit_text,
    percent_text,
    rate_text,
    ratio_text,
    stages_of,
    used_text,
    value_text,
)
from dlprof.report.ranks import ranks_facts, ranks_sections
from dlprof.report.sweep import CUT_OFF, first, title_of, what_failed
from dlprof.stats.belief import NEAR
from dlprof.units import MISSING, counted, format_bytes, format_duration, format_rate

_WORKERS: tuple[StageName, ...] = ("pick_up", "fetch", "collate", "serialise")
_MAIN: tuple[StageName, ...] = ("queue", "rebuild", "pin", "hold_up", "copy", "wait", "step")
_QUEUES: frozenset[StageName] = frozenset({"pick_up", "queue", "hold_up"})
"""Where batches lie, rather than being worked on."""


def profile_report(run: Run) -> doc.Document:
    """What a profile found."""
    diagnosis = run.diagnosis
    # That no figure shows a cause must not read as "nothing is wrong".
    if diagnosis is None or not (run.completed or run.explanations or run.findings):
        why = "the run holds no diagnosis" if diagnosis is None else "nothing could be measured"
        rows: list[doc.Row] = [("Bottleneck", f"not known: {why}"), *what_failed(run)]
        answer = (doc.FactList((*rows, *_cut_off(run))),)
        return doc.Document(title=title_of(run), answer=answer, hints=_last(run))
    plain = [trial for trial in run.completed if trial.config == diagnosis.config]
    tried = (each for each in (*plain, *run.trials[:1]) if each.outcome == "completed")
    measured = next(tried, None)
    return doc.Document(
        title=title_of(run),
        answer=(
            *first(run, found=run.traced is not None),  # else findings are all that there is
            doc.FactList(tuple(_answer(run, diagnosis, measured))),
            *doc.known(_lanes(run.traced, stages_of(run))),
        ),
        hints=_last(run),
        details=lambda: _details(run, diagnosis, measured),
    )


def _answer(run: Run, diagnosis: Diagnosis, measured: Trial | None) -> Iterator[doc.Row]:
    traced = run.traced
    row, rate, unit = _rate(run, diagnosis, measured)
    said = "" if rate is None else f": {rate_text(rate, unit)}"
    given = sorted(t.samples_per_s.value for t in row.seen.trials if t.samples_per_s) if row else []
    wide = rate is not None and rate.low is not None and rate.low < (1 - USELESS) * rate.value
    if rate is not None and wide and any(not NEAR < rate.value / each < 1 / NEAR for each in given):
        # An estimate without an interval may lie outside of all that its trials gave.
        said += f"; measured: {'-'.join(dict.fromkeys(map(format_rate, (given[0], given[-1]))))}"
    if said and measured is not None and measured.purpose == "explain":
        said += " (traced)"  # the budget held no trial without
    keeps = row is not None and run.header.target.keeps_samples
    if rate is not None and keeps:
        said += ", over 10 epochs: trials show the first"
    yield "Profiled", f"{diagnosis.config.text}{said}"
    yield from ranks_facts(run, diagnosis.config, None if row is None else row.rate)
    wait = None if measured is None else measured.wait_fraction
    wait = wait if row is None else row.wait_fraction
    # As it was asked for, else as it was traced.
    asked, step = run.header.settings.get("step_s"), traced.stage("step") if traced else None
    step_s = asked if isinstance(asked, float) and asked > 0 else step.mean_s if step else 0.0
    if step_s <= 0 and not run.header.settings.get("step_callable"):
        wait = None  # what does nothing only waits
    period_s = None
    if rate is not None and rate.value > 0 and measured is not None:
        size = measured.samples_per_batch if unit == "samples/s" else 1.0
        period_s = None if size is None else size / rate.value
    if wait is not None and period_s is not None and keeps:  # the trial's is of the first epoch
        wait = max(0.0, 1.0 - step_s / period_s)
    if diagnosis.findings or (traced is not None and traced.hooked):
        yield from answer(diagnosis.findings, wait, workers=diagnosis.config.num_workers)
    else:  # that batches were not traced must not read as "nothing is wrong"
        own = [] if traced else [*diagnosis.notes]
        own = [each for each in own if each not in run.header.target.notes]
        untraced = "no batch could be traced through its stages"
        why = next((each for each in own if "traced" in each), untraced)
        yield "Bottleneck", f"not known: {inside(why)}"
    if wait is not None:
        yield "Data wait", _wait(wait, step_s, period_s, traced)
    yield from what_failed(run)
    if run.end is not None:  # whose diagnosis is written with it
        yield from _cut_off(run)


def _cut_off(run: Run) -> Iterator[doc.Row]:
    """That it rests on less than it would: no later command measures the rest."""
    if (ended := CUT_OFF.get(None if run.end is None else run.end.reason)) is not None:
        yield "Cut off", f"the profile {ended}; run it once more"


def _rate(
    run: Run, diagnosis: Diagnosis, measured: Trial | None
) -> tuple[ConfigSummary | None, Estimate | None, str]:
    """What all trials of the configuration show, its one rate, and the unit of that."""
    row = next((each for each in summarize(run) if each.seen.config == diagnosis.config), None)
    if (row is None or row.rate is None) and measured is not None:
        return row, measured.batches_per_s, "batches/s"  # a batch's samples aren't known
    return row, None if row is None else row.rate, "samples/s"


def _wait(wait: float, step_s: float, period_s: float | None, traced: Explanation | None) -> str:
    parts = [f"step {format_duration(step_s)}"] if step_s > 0 else []
    if period_s is not None:
        parts.append(f"{format_duration(period_s)} a batch")
        stages = {} if traced is None else {each.name: each.mean_s for each in traced.stages}
        there_s = stages.get("wait", 0.0) + stages.get("step", 0.0)
        # That traced batches took longer than the others, or less long.
        if abs(there_s - period_s) > 0.1 * period_s and there_s > 0:
            parts.append(f"{format_duration(there_s)} while traced")
    return f"{percent_text(wait)} of the time" + (f" ({', '.join(parts)})" if parts else "")


def _lanes(traced: Explanation | None, called: Mapping[str, str]) -> doc.Chart | None:
    """A batch's way: what a worker does with it, what the main process does."""
    if traced is None:
        return None
    known = {stage.name: stage for stage in traced.stages}
    several = traced.config.num_workers
    worker = "worker" if several == 1 else f"worker 0-{several - 1}"
    alone: tuple[StageName, ...] = ("dispatch", "fetch", "collate", "pin", "copy", "wait", "step")
    bars = []
    for label, names in {worker: _WORKERS, "main": _MAIN}.items() if several else [("main", alone)]:
        stages = (known[name] for name in names if name in known and known[name].mean_s > 0)
        pieces = [doc.Piece(s.mean_s, called[s.name], format_duration(s.mean_s)) for s in stages]
        if pieces:
            bars.append(doc.Bar(label=label, pieces=tuple(pieces)))
    return doc.chart(bars, unit="mean time per batch", kind="lanes")


def _last(run: Run) -> doc.Hints:
    traced = any(timeline.batch for timeline in run.timelines)
    timeline = ("a timeline", "-o trace.perfetto.json") if traced else ()
    return about_file(run, more_findings(run.findings), *timeline)


def _details(run: Run, diagnosis: Diagnosis, measured: Trial | None) -> Iterator[doc.Section]:
    yield from doc.section("Findings", *cards(diagnosis.findings))
    yield from ranks_sections(run, diagnosis.config)
    _, rate, unit = _rate(run, diagnosis, measured)
    if diagnosis.without and rate is not None:
        yield doc.Section("Without one part", tuple(_without(diagnosis.without, rate, unit)))
    yield from doc.section("Use of the machine", doc.facts(_usage(measured, diagnosis.stalls)))
    if run.traced is not None:
        yield from stage_sections(run.traced, called=stages_of(run))
    yield from doc.section("Notes", doc.items(diagnosis.notes))
    if run.end is not None:
        took = f"{format_duration(run.end.cost_s.total)} for {counted(len(run.trials), 'trial')}"
        yield from doc.section("Profile", doc.Text(took))


def _without(found: Sequence[WithoutPart], rate: Estimate, unit: str) -> Iterator[doc.Block]:
    rates = [each.gain.times(rate.value) for each in found]
    gains = ["unclear" if e.gain.is_wide else ratio_text(e.gain.value) for e in found]
    yield doc.Table(
        (
            doc.Column("without", [limit_text(each.part) for each in found], left=True),
            doc.Column(unit, [value_text(each) for each in rates]),
            doc.Column("95% CI", [interval_text(each) for each in rates]),
            doc.Column("gain", gains, note=_IF_FREE),
        )
    )
    if all(each.gain.value < WORTH_TRYING for each in found):
        yield doc.Items(("No part of loading is the limit by itself.",))


_IF_FREE = "predicted, if that part took no time and all else stayed as it is."


def _usage(trial: Trial | None, stalls: Stalls | None) -> Iterator[doc.Row]:
    if trial is not None:
        usage = trial.node_usage  # what others used is seen of the whole machine
        yield f"cores{', all ranks of a machine' if len(trial.ranks) > 1 else ''}", used_text(usage)
        if usage.cache_hit_fraction is not None:
            yield "page cache", f"{percent_text(usage.cache_hit_fraction)} of reads"
        yield from ((f"GPU {gpu.index}", gpu_text(gpu)) for gpu in usage.gpu)
    if stalls is not None:
        text = f"{percent_text(stalls.prep_fraction)} preparing batches"
        if stalls.fetch_fraction is not None:
            text += f", {percent_text(stalls.fetch_fraction)} fetching from storage"
        spent = {"the step alone": stalls.resident_s, "from the page cache": stalls.warm_s}
        spent |= {} if stalls.cold_s is None else {"from storage": stalls.cold_s}
        times = ", ".join(f"{format_duration(each_s)} {name}" for name, each_s in spent.items())
        yield "data stalls", f"{text} (a batch: {times})"


def stage_sections(
    traced: Explanation, of: str = "", called: Mapping[str, str] = STAGES
) -> Iterator[doc.Section]:
    """Where a batch's time goes, and where batches pile up; ``of`` names the loader of several."""
    if traced.stages:
        yield from doc.section(f"Stages, per batch{of}", _stages(traced.stages, called))
    yield from doc.section("Where batches are, on average", _places(traced))
    if traced.samples is not None and traced.samples.count:
        found, slowest = traced.samples, [*traced.samples.slowest.items()][:5]
        spread = {"mean": found.mean_s, "median": found.median_s, "p95": found.p95_s}
        spread |= {"p99": found.p99_s, "longest": found.max_s}
        times = ", ".join(f"{name} {format_duration(each_s)}" for name, each_s in spread.items())
        named = ", ".join(f"{name} ({format_duration(each_s)})" for name, each_s in slowest)
        lines = (f"{found.count:,} timed: {times}", *([f"slowest: {named}"] if slowest else []))
        yield from doc.section("Single samples", doc.Items(lines))
    if shown := traced.transforms[:12]:
        columns = (
            doc.Column("transform", [each.name for each in shown], left=True),
            doc.Column("mean", [format_duration(each.mean_s) for each in shown]),
            doc.Column("of fetch", [percent_text(each.share) for each in shown]),
        )
        yield from doc.section("Transforms, per call", doc.Table(columns))
    if traced.workers:
        yield from doc.section("Workers", *_workers(traced.workers))
    missing = (f"{name}: {reason}" for name, reason in traced.unavailable.items())
    yield from doc.section("Not recorded", doc.items(missing))


def _stages(stages: Sequence[Stage], called: Mapping[str, str]) -> doc.Table:
    whole_s = sum(stage.mean_s for stage in stages if stage.name in {"wait", "step"})
    shares = [percent_text(s.mean_s / whole_s) if whole_s > 0 else MISSING for s in stages]
    times = [("median", "median_s", 1), ("p95", "p95_s", 9), ("max", "max_s", 4)]
    times += [("CPU", "cpu_s", 8), ("run-queue delay", "run_queue_s", 6), ("blocked", "io_s", 7)]
    times += [("of it for the GIL", "gil_s", 7)] if any(stage.gil_s for stage in stages) else []
    return doc.Table(
        (
            doc.Column("stage", [called[stage.name] for stage in stages], left=True),
            doc.Column("mean", [format_duration(stage.mean_s) for stage in stages]),
            doc.Column("of period", shares, 5),
            *(
                doc.Column(title, [format_duration(getattr(stage, name)) for stage in stages], keep)
                for title, name, keep in times
            ),
        )
    )


def _places(traced: Explanation) -> doc.Chart | None:
    """How many batches are at each place of their way; where they pile up is said."""
    way: tuple[StageName, ...] = (*_WORKERS, *_MAIN)
    found = [(name, traced.waiting_batches[name]) for name in way if name in traced.waiting_batches]
    lying = [(count, name) for name, count in found if name in _QUEUES]
    most, pile = max(lying, default=(0.0, None))
    bars = []
    for name, count in found:
        # Fewer batches than this are on their way, not piling up.
        note = "piles up" if name == pile and most >= 1.0 else ""
        tone: doc.Tone = "warn" if name in _QUEUES else ""
        bars.append(doc.Bar.of(STAGES[name], count, f"{count:.1f}", note, tone))
    return doc.chart(bars, "stage", "batches")


def _workers(workers: Sequence[WorkerCosts]) -> Iterator[doc.Block]:
    shown = workers[:64]
    growth = [format_bytes(each.pss_growth_bytes_per_batch) for each in shown]
    yield doc.Table(
        (
            doc.Column("worker", [str(each.worker) for each in shown]),
            doc.Column("batches", [f"{each.batches:,}" for each in shown]),
            doc.Column("busy", [percent_text(each.busy_fraction) for each in shown]),
            doc.Column("cores", [cores_text(each.cpu_cores) for each in shown], 4),
            doc.Column("threads", [count_text(each.threads) for each in shown], 3),
            doc.Column("CPUs", [count_text(each.affinity_cpus) for each in shown], 2),
            doc.Column("growth/batch", growth, 1),
        )
    )
    if len(shown) < len(workers):
        yield doc.Items((counted(len(workers) - len(shown), "more worker"),))
