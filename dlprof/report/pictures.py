"""What only a page shows of a run: throughput, the model, batches over time, every trial."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import PurePath

from dlprof.records import (
    ConfigRate,
    Estimate,
    GpuUsage,
    Recommendation,
    Run,
    Trial,
    UsageSample,
)
from dlprof.report import document as doc
from dlprof.report.export.trace import batches, since_first
from dlprof.report.labels import (
    END_TEXTS,
    cores_text,
    evenly,
    interval_text,
    percent_text,
    processes_text,
    purpose_text,
    rate_text,
    stages_of,
    value_text,
)
from dlprof.report.snippets import render_lightning, render_python, render_toml, trainer_arguments
from dlprof.units import MISSING, format_bytes, format_duration, format_rate


def with_pictures(document: doc.Document, run: Run) -> doc.Document:
    """A document with what only a page shows."""
    advice = run.recommendation
    return dataclasses.replace(
        document,
        pictures=(
            *doc.section("Throughput", *_throughput(run, advice)),
            *doc.section("Where a batch's time goes", *_stages(run)),
            *doc.section("Batches over time", *_timeline(run)),
        ),
        appendix=(
            *doc.section("Use these settings", *_snippets(run, advice)),
            *doc.section("CPU and GPU over time", *_usage(run)),
            *doc.section("GPUs", gpus_table(run.completed)),
            *doc.section("Trials", _trials(run)),
            *doc.section("Machine and run", doc.facts(_facts(run))),
        ),
    )


def _snippets(run: Run, advice: Recommendation | None) -> Iterator[doc.Block]:
    if advice is not None:
        yield from (doc.Text("Python"), doc.Code(render_python(run, advice)))
        yield from (doc.Text("Lightning"), doc.Code(render_lightning(run, advice)))
        yield from (doc.Text("Hugging Face Trainer"), doc.Code(trainer_arguments(advice.config)))
        yield from (doc.Text("TOML"), doc.Code(render_toml(run, advice), "toml"))


def _throughput(run: Run, advice: Recommendation | None) -> Iterator[doc.Block]:
    rates = () if advice is None else advice.rates
    measured = [each for each in rates if each.measured]
    if len({each.config.num_workers for each in rates}) < 2 or advice is None:
        return
    shown = evenly(measured, 400)
    points = (_point(each, each.config.num_workers, advice) for each in shown)
    lines = tuple(_lines(run))
    drawn = "predictions as lines, measurements as points" if lines else "measurements"
    yield doc.Plot(
        title=f"samples/s by num_workers: {drawn}",
        x="num_workers",
        y="samples/s",
        series=(*lines, doc.Series("measured, 95% CI", tuple(points))),
    )
    cells = {} if run.prediction is None else {c.config: c for c in run.prediction.cells}
    both = [(cells[each.config], each) for each in shown if each.config in cells]
    if len(both) > 1:
        points = (_point(each, cell.samples_per_s.value) for cell, each in both)
        yield doc.Plot(
            title="Model check: measured over predicted samples/s; on the line they agree",
            x="predicted samples/s",
            y="measured samples/s",
            diagonal=True,
            series=(doc.Series("configurations", tuple(points)),),
        )


def _point(each: ConfigRate, x: float, advice: Recommendation | None = None) -> doc.Point:
    label = f"{each.config.text}: {rate_text(each.samples_per_s)}"
    picked = advice is not None and each.config == advice.config
    return doc.Point(x, each.samples_per_s, label, "good" if picked else "")


def _lines(run: Run) -> Iterator[doc.Series]:
    cells = () if run.prediction is None else run.prediction.cells
    for prefetch in sorted({cell.config.prefetch_factor or 0 for cell in cells}):
        best: dict[int, doc.Point] = {}
        for cell in cells:
            workers = cell.config.num_workers
            if (cell.config.prefetch_factor or 0) not in {prefetch, 0}:
                continue
            rate = cell.epoch_samples_per_s or cell.samples_per_s.value
            if workers not in best or rate > best[workers].y.value:
                # Not the one rate of the run for it, which trials of others correct.
                before = "by the model, before anything was measured"
                said = f"{cell.config.text}: {format_rate(rate)} samples/s {before}"
                best[workers] = doc.Point(workers, Estimate(value=rate), said)
        points = tuple(best[workers] for workers in sorted(best))
        if prefetch and len(points) > 1:
            yield doc.Series(f"predicted, prefetch_factor={prefetch}", points, line=True)


def _stages(run: Run) -> Iterator[doc.Chart]:
    bars, traced, called = [], run.traced, stages_of(run)
    for stage in () if traced is None else traced.stages:
        name, figure = called[stage.name], format_duration(stage.mean_s)
        io_s = stage.io_s if stage.gil_s is None else (stage.io_s or 0.0) - stage.gil_s
        spent = {"CPU": stage.cpu_s, "run-queue delay": stage.run_queue_s, "blocked": io_s}
        spent["wait for the GIL"] = stage.gil_s
        pieces = tuple(
            doc.Piece(seconds, kind, format_duration(seconds))
            for kind, seconds in spent.items()
            # What the consumer's stages last is not its CPU time.
            if seconds is not None and seconds > 0 and stage.name not in {"wait", "step"}
        )
        whole = (doc.Piece(max(0.0, stage.mean_s), name, figure),)
        bars.append(doc.Bar(label=name, pieces=pieces or whole, figure=figure))
    if bars and traced is not None:
        unit = f"seconds a batch, traced with {traced.config.text}"
        yield doc.Chart(bars=tuple(bars), label="stage", unit=unit)


def _timeline(run: Run) -> Iterator[doc.Chart]:
    """The first batches of the traced trial that is shown: workers, receiving, the consumer."""
    known, called = [each for each in run.timelines if each.batch], stages_of(run)
    own = [each for each in known if run.traced and each.trial_id == run.traced.trial_id]
    for recorded in (own or known)[-1:]:
        shown = list(itertools.islice(batches(since_first(recorded)), 200))
        begun_s = min((s.begin_s for b in shown for s in b.slices if s.track), default=0.0)
        done: dict[tuple[int, str], list[doc.Piece]] = {}
        for batch in shown:
            for each in batch.slices:
                if each.track is not None:
                    lasted_s = each.end_s - each.begin_s
                    said = f"{format_duration(lasted_s)}, batch {batch.number}"
                    name = called.get(each.name, each.name)
                    piece = doc.Piece(lasted_s, name, said, each.begin_s - begun_s)
                    done.setdefault(each.track, []).append(piece)
        bars = [doc.Bar(label=track[1], pieces=tuple(done[track])) for track in sorted(done)]
        if bars:
            unit = f"{len(shown)} of {len(recorded.batch)} batches"
            yield doc.Chart(bars=tuple(bars), unit=unit, kind="timeline")


def _usage(run: Run) -> Iterator[doc.Plot]:
    most_looks = 150  # of each line
    began = _moment(run.header.started_at)
    found: dict[str, list[doc.Point]] = {}
    for trial in evenly(run.trials, most_looks):
        started = _moment(trial.started_at)
        if began is None or started is None:
            continue
        whole = UsageSample(
            at_s=trial.wall_s,
            own_cpu_cores=trial.node_usage.own_cpu_cores,
            other_cpu_cores=trial.usage.other_cpu_cores,
        )
        for each in trial.usage_over_time or (whole,):
            at_s = (started - began).total_seconds() + each.at_s
            shown = {
                "these trials": each.own_cpu_cores,
                "other processes": each.other_cpu_cores,
                "GPUs, 1 is all of them": each.gpu_active_fraction,
            }
            for name, value in shown.items():
                if value is not None:
                    said = f"{trial.id} {trial.config.text}: {value:.2f}, {name}"
                    found.setdefault(name, []).append(doc.Point(at_s, Estimate(value=value), said))
    if any(len(points) > 1 for points in found.values()):
        yield doc.Plot(
            title="busy cores while trials ran",
            x="seconds since the run began",
            y="cores",
            series=tuple(
                doc.Series(name, tuple(evenly(points, most_looks)), line=True)
                for name, points in found.items()
            ),
        )


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def gpus_table(trials: Iterable[Trial]) -> doc.Table | None:
    """A row for each card: medians over trials, the peak of the memory; ``None`` without cards."""
    by_card: dict[int, list[GpuUsage]] = {}
    for trial in trials:
        for usage in trial.usage.gpu:
            by_card.setdefault(usage.index, []).append(usage)
    if not by_card:
        return None
    cards = [by_card[index] for index in sorted(by_card)]
    reasons = ((text for usage in usages for text in usage.throttle_reasons) for usages in cards)

    def column(
        title: str, name: str, shown: Callable[[float], str], *, most: bool = False
    ) -> doc.Column:
        known = ([v for u in usages if (v := getattr(u, name)) is not None] for usages in cards)
        kind: Callable[[list[float]], float] = max if most else statistics.median
        return doc.Column(title, [shown(kind(each)) if each else MISSING for each in known])

    links = [column("", f"pcie_{name}", str, most=True).cells for name in ("generation", "width")]
    pairs = zip(*links, strict=True)
    lanes = [MISSING if g == w == MISSING else f"gen {g} x{w}" for g, w in pairs]
    return doc.Table(
        (
            doc.Column("card", [f"{usages[-1].index} {usages[-1].name}" for usages in cards]),
            column("kernels active", "kernel_active_fraction", percent_text),
            column("SMs active", "sm_active_fraction", percent_text),
            column("memory", "memory_used_bytes", format_bytes, most=True),
            column("received/s", "pcie_rx_bytes_per_s", format_bytes),
            doc.Column("link", lanes),
            column("clock", "sm_clock_hz", lambda hz: f"{hz / 1e9:.2f} GHz"),
            column("power", "power_w", "{:.0f} W".format),
            doc.Column("held down by", [", ".join(dict.fromkeys(r)) or MISSING for r in reasons]),
            column(
                "other processes", "other_processes", lambda n: processes_text(int(n)), most=True
            ),
        )
    )


def _trials(run: Run) -> doc.Table | None:
    shown = run.trials
    if not shown:
        return None
    rates = [trial.samples_per_s or trial.batches_per_s for trial in shown]
    usages = [trial.usage for trial in shown]
    outcomes = [t.outcome + (f": {t.failure.message}" if t.failure else "") for t in shown]
    return doc.Table(
        (
            doc.Column("trial", [trial.id for trial in shown], left=True),
            doc.Column("settings", [trial.config.text for trial in shown], left=True),
            doc.Column("purpose", [purpose_text(trial) for trial in shown], left=True),
            doc.Column("outcome", outcomes, left=True),
            doc.Column("rate", [value_text(rate) for rate in rates]),
            doc.Column("95% CI", [interval_text(rate) for rate in rates]),
            doc.Column("wait", [percent_text(trial.wait_fraction) for trial in shown]),
            doc.Column("cores", [cores_text(usage.own_cpu_cores) for usage in usages]),
            doc.Column("available", [cores_text(usage.available_cpu_cores) for usage in usages]),
            doc.Column("memory", [format_bytes(usage.pss_peak_bytes) for usage in usages]),
            doc.Column("window", [format_duration(trial.measured_s) for trial in shown]),
            doc.Column("", ["noisy" if trial.noisy else "" for trial in shown], left=True),
        )
    )


def _facts(run: Run) -> Iterator[doc.Row]:
    header, machine = run.header, run.header.machine
    versions = {"dlprof": header.dlprof_version, "torch": header.torch_version}
    versions["Python"] = header.python_version
    yield "started", header.started_at
    yield "target", f"{header.target.spec} ({header.target.dataset})"
    yield "CPU", machine.cpu_model
    yield "usable cores", f"{machine.usable_cores:g} of {machine.logical_cpus}"
    if machine.quota_cores is not None:
        yield "CPU quota", f"{machine.quota_cores:g} cores"
    yield "memory", format_bytes(machine.memory_bytes)
    yield "shared memory", format_bytes(machine.shm_bytes)
    yield "GPUs", ", ".join(gpu.name for gpu in machine.gpus) or MISSING
    yield "system", machine.platform
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "ranks", f"{header.launched} that loaded at once" if header.launched > 1 else MISSING
    yield "took", MISSING if run.end is None else format_duration(run.end.cost_s.total)
    yield "ended", "cut off" if run.end is None else END_TEXTS[run.end.reason]
    yield "run file", PurePath(run.path).name or MISSING
