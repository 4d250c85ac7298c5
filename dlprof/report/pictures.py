"""What only a page shows of a run: throughput, the model, batches over time, every trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from dlprof.records import ConfigRate, Explanation, GpuInfo, Recommendation, Run, Trial, UsageSample
from dlprof.report.cards import CARD_HEAD, card_rows
from dlprof.report.document import (
    Bar,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Lane,
    Picture,
    Pictures,
    Piece,
    Plot,
    Point,
    Series,
    Table,
    Text,
    Timeline,
    Words,
)
from dlprof.report.export.batches import batches, since_first
from dlprof.report.labels import (
    END_TEXTS,
    STAGES,
    cores_text,
    interval_text,
    percent_text,
    rate_text,
    settings_text,
)
from dlprof.report.snippets import render_lightning, render_python, render_toml, trainer_arguments
from dlprof.units import MISSING, format_bytes, format_duration, format_rate

_MOST_BATCHES = 200
_MOST_TRIALS = 1000
_MOST_POINTS = 400


def with_pictures(document: Document, run: Run) -> Document:
    """A document with what only a page shows.

    Args:
        document: On the run.
        run: What was measured, with its recommendation.
    """
    advice = run.recommendation
    pictures = [
        Pictures("Throughput", tuple(_throughput(run, advice))),
        Pictures("Where a batch's time goes", tuple(_stages(run.explanations))),
        Pictures("Batches over time", tuple(_timeline(run))),
    ]
    appendix = [
        Pictures("Use these settings", tuple(_snippets(run, advice))),
        Pictures("CPU and GPU over time", tuple(_usage(run))),
        Pictures("Memory", tuple(_memory(run))),
        Pictures("GPUs", tuple(_gpus(run))),
        Pictures("Trials", tuple(_trials(run))),
        Pictures("Machine and run", (Facts(tuple(_facts(run))),)),
    ]
    return dataclasses.replace(
        document,
        pictures=tuple(each for each in pictures if each.blocks),
        appendix=tuple(each for each in appendix if each.blocks),
    )


def _snippets(run: Run, advice: Recommendation | None) -> Iterator[Picture]:
    if advice is None:
        return
    yield Text("Python")
    yield Code(render_python(run, advice))
    yield Text("Lightning")
    yield Code(render_lightning(run, advice))
    yield Text("Hugging Face Trainer")
    yield Code(trainer_arguments(advice.config))
    yield Text("TOML")
    yield Code(render_toml(run, advice), "toml")


def _throughput(run: Run, advice: Recommendation | None) -> Iterator[Picture]:
    """Rates over workers, the model as lines, trials' configurations as points."""
    rates = () if advice is None else advice.rates
    measured = [each for each in rates if each.measured]
    if len({each.config.num_workers for each in rates}) < 2 or advice is None:
        return
    yield Plot(
        title="samples/s by num_workers: predictions as lines, measurements as points",
        x="num_workers",
        y="samples/s",
        series=(
            *_lines(run),
            Series(
                "measured, 95% CI",
                tuple(_point(each, advice) for each in measured[:_MOST_POINTS]),
            ),
        ),
    )
    cells = {} if run.prediction is None else {c.config: c for c in run.prediction.cells}
    both = [(cells[each.config], each) for each in measured if each.config in cells]
    if len(both) > 1:
        yield Plot(
            title="Model check: measured over predicted samples/s; on the line they agree",
            x="predicted samples/s",
            y="measured samples/s",
            diagonal=True,
            series=(
                Series(
                    "configurations",
                    tuple(
                        Point(
                            x=cell.samples_per_s.value,
                            y=each.samples_per_s.value,
                            low=each.samples_per_s.low,
                            high=each.samples_per_s.high,
                            label=f"{settings_text(each.config)}: {rate_text(each.samples_per_s)}",
                        )
                        for cell, each in both[:_MOST_POINTS]
                    ),
                ),
            ),
        )


def _lines(run: Run) -> Iterator[Series]:
    """The best prediction by workers, a line for each prefetch factor."""
    cells = () if run.prediction is None else run.prediction.cells
    for prefetch in sorted({cell.config.prefetch_factor or 0 for cell in cells}):
        best: dict[int, Point] = {}
        for cell in cells:
            workers = cell.config.num_workers
            if (cell.config.prefetch_factor or 0) not in {prefetch, 0}:
                continue
            rate = cell.epoch_samples_per_s or cell.samples_per_s.value
            if workers not in best or rate > best[workers].y:
                said = f"{settings_text(cell.config)}: {format_rate(rate)} samples/s, predicted"
                best[workers] = Point(x=workers, y=rate, label=said)
        points = tuple(best[workers] for workers in sorted(best))
        if prefetch and len(points) > 1:
            yield Series(f"predicted, prefetch_factor={prefetch}", points, line=True)


def _point(each: ConfigRate, advice: Recommendation) -> Point:
    rate = each.samples_per_s
    return Point(
        x=each.config.num_workers,
        y=rate.value,
        low=rate.low,
        high=rate.high,
        label=f"{settings_text(each.config)}: {rate_text(rate)}",
        tone="good" if each.config == advice.config else "",
    )


def _stages(explanations: Sequence[Explanation]) -> Iterator[Chart]:
    """CPU time, run-queue delay and blocked time of each stage that knows them apart."""
    for traced in explanations[-1:]:
        bars = []
        for stage in traced.stages:
            known = {
                "CPU": stage.cpu_s,
                "run-queue delay": stage.run_queue_s,
                "blocked": stage.io_s,
            }
            pieces = tuple(
                Piece(seconds, name, format_duration(seconds))
                for name, seconds in known.items()
                if seconds is not None and seconds > 0
            )
            name = STAGES[stage.name]
            whole = (Piece(max(0.0, stage.mean_s), name, format_duration(stage.mean_s)),)
            figure = format_duration(stage.mean_s)
            bars.append(Bar(label=name, pieces=pieces or whole, figure=figure))
        if bars:
            yield Chart(bars=tuple(bars), label="stage", unit="seconds a batch")


def _timeline(run: Run) -> Iterator[Timeline]:
    """The first batches of the last traced trial: workers, receiving, the consumer."""
    for recorded in [each for each in run.timelines if each.batch][-1:]:
        lanes: dict[int, tuple[str, list[tuple[float, float, str, str]]]] = {}
        shown = 0
        for batch in batches(since_first(recorded)):
            if shown >= _MOST_BATCHES:
                break
            shown += 1
            for each in batch.slices:
                if each.track is not None:
                    lane = lanes.setdefault(each.track, (batch.tracks[each.track], []))
                    name = STAGES.get(each.name, each.name)
                    lane[1].append((each.begin_s, each.end_s, name, f"batch {batch.number}"))
        if lanes:
            yield Timeline(
                title=f"{shown} of {len(recorded.batch)} batches",
                lanes=tuple(
                    Lane(label=lanes[track][0], spans=tuple(lanes[track][1]))
                    for track in sorted(lanes)
                ),
            )


def _usage(run: Run) -> Iterator[Plot]:
    """What the trials and everybody else used, in the order of measuring."""
    began = _moment(run.header.started_at)
    found: dict[str, list[Point]] = {}
    for trial in run.trials[:: len(run.trials) // _MOST_POINTS + 1]:
        started = _moment(trial.started_at)
        if began is None or started is None:
            continue
        whole = UsageSample(
            at_s=trial.wall_s,
            own_cpu_cores=trial.usage.own_cpu_cores,
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
                    said = f"{trial.id} {settings_text(trial.config)}: {value:.2f}, {name}"
                    found.setdefault(name, []).append(Point(x=at_s, y=value, label=said))
    if any(len(points) > 1 for points in found.values()):
        yield Plot(
            title="busy cores while trials ran",
            x="seconds since the run began",
            y="cores",
            series=tuple(
                Series(name, tuple(points[:: len(points) // _MOST_POINTS + 1]), line=True)
                for name, points in found.items()
            ),
        )


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _memory(run: Run) -> Iterator[Chart]:
    """The largest peak of each number of workers."""
    peaks: dict[int, int] = {}
    for trial in run.completed:
        size = trial.usage.pss_peak_bytes
        if size:
            workers = trial.config.num_workers
            peaks[workers] = max(size, peaks.get(workers, 0))
    if len(peaks) > 1:
        yield Chart(
            label="workers",
            unit="peak memory of the process tree (PSS)",
            bars=tuple(
                Bar(
                    label=str(n), pieces=(Piece(peaks[n], "memory"),), figure=format_bytes(peaks[n])
                )
                for n in sorted(peaks)
            ),
        )


def _gpus(run: Run) -> Iterator[Table]:
    rows = card_rows(trial for trial in run.completed if trial.purpose == "measure")
    if rows:
        columns = zip(CARD_HEAD, zip(*rows, strict=True), strict=True)
        yield Table(tuple(Column(title=head, cells=cells) for head, cells in columns))


def _trials(run: Run) -> Iterator[Picture]:
    """Every trial as it was measured."""
    shown = run.trials[:_MOST_TRIALS]
    if not shown:
        return
    rates = [trial.samples_per_s or trial.batches_per_s for trial in shown]

    def column(title: str, cells: Iterable[str], *, left: bool = False) -> Column:
        return Column(title=title, cells=list(cells), left=left)

    yield Table(
        (
            column("trial", (trial.id for trial in shown), left=True),
            column("settings", (settings_text(trial.config) for trial in shown), left=True),
            column("purpose", (_purpose(trial) for trial in shown), left=True),
            column("outcome", map(_outcome, shown), left=True),
            column("rate", (format_rate(rate.value if rate else None) for rate in rates)),
            column("95% CI", map(interval_text, rates)),
            column("wait", (percent_text(trial.wait_fraction) for trial in shown)),
            column("cores", (cores_text(trial.usage.own_cpu_cores) for trial in shown)),
            column("available", (cores_text(trial.usage.available_cpu_cores) for trial in shown)),
            column("memory", (format_bytes(trial.usage.pss_peak_bytes) for trial in shown)),
            column("window", (format_duration(trial.measured_s) for trial in shown)),
            column("", ("noisy" if trial.noisy else "" for trial in shown), left=True),
        )
    )
    if len(shown) < len(run.trials):
        yield Text(f"{len(run.trials) - len(shown):,} more trials are in the run file.")


def _outcome(trial: Trial) -> str:
    return trial.outcome if trial.failure is None else f"{trial.outcome}: {trial.failure.message}"


def _purpose(trial: Trial) -> str:
    return {"explain": "traced", "lever": "extra setting"}.get(trial.purpose, trial.purpose)


def _facts(run: Run) -> Iterator[tuple[str, Words]]:
    header, machine = run.header, run.header.machine
    quota = MISSING if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    rows = [
        ("started", header.started_at),
        ("target", f"{header.target.spec} ({header.target.dataset})"),
        ("CPU", machine.cpu_model),
        ("usable cores", f"{machine.usable_cores:g} of {machine.logical_cpus}"),
        ("CPU quota", quota),
        ("memory", format_bytes(machine.memory_bytes)),
        ("shared memory", format_bytes(machine.shm_bytes)),
        ("GPUs", _names(machine.gpus)),
        ("system", machine.platform),
        ("versions", _versions(run)),
        ("took", MISSING if run.end is None else format_duration(run.end.cost_s.total)),
        ("ended", "cut off" if run.end is None else END_TEXTS[run.end.reason]),
        ("run file", PurePath(run.path).name or MISSING),
    ]
    yield from (row for row in rows if row[1] != MISSING)


def _versions(run: Run) -> str:
    header = run.header
    return (
        f"dlprof {header.dlprof_version}, torch {header.torch_version}, "
        f"Python {header.python_version}"
    )


def _names(gpus: Sequence[GpuInfo]) -> str:
    return ", ".join(gpu.name for gpu in gpus) or MISSING
