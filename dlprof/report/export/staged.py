"""The section of a report that tells what explaining passes saw."""

from __future__ import annotations

from collections.abc import Iterator

from dlprof.records import AGE_STAGES, Explanation, Run, Stage, Stalls
from dlprof.report.export.blocks import Bar, Block, Chart, Table, Text
from dlprof.report.labels import cores_text, percent_text, settings_text
from dlprof.report.text import clean
from dlprof.units import format_bytes, format_duration

_MOST_SHOWN = 8
_MOST_WORKERS = 64

_STAGE_HEAD = ("stage", "mean", "median", "95th", "longest", "CPU", "waiting for a core", "waiting")
_WORKER_HEAD = ("worker", "batches", "busy", "CPU cores", "threads", "CPUs", "grows per batch")


def explained(run: Run) -> Iterator[Block]:
    """The stages of each explained configuration, its samples, transforms and workers."""
    shown = run.explanations[-_MOST_SHOWN:]
    staged = [each for each in shown if _age(each) > 0]
    if staged:
        yield Chart(
            title="from a worker's taking a batch up to its being yielded",
            bars=tuple(_bar(each) for each in staged),
        )
    if run.diagnosis is not None and run.diagnosis.stalls is not None:
        yield Text(text=_stalls(run.diagnosis.stalls))
    for each in shown:
        yield from _one(each)


def _age(explanation: Explanation) -> float:
    return sum(s.mean_s for s in explanation.stages if s.name in AGE_STAGES and s.mean_s > 0)


def _bar(explanation: Explanation) -> Bar:
    stages = [stage for name in AGE_STAGES if (stage := explanation.stage(name)) is not None]
    return Bar(
        label=clean(explanation.config.key),
        pieces=tuple((stage.name, max(0.0, stage.mean_s)) for stage in stages),
        figure=format_duration(_age(explanation)),
    )


def _stalls(stalls: Stalls) -> str:
    text = f"Preparing batches stalls the consumer {percent_text(stalls.prep_fraction)} of the time"
    if stalls.fetch_fraction is None:
        return f"{text}."
    return f"{text}; fetching from storage, {percent_text(stalls.fetch_fraction)}."


def _one(explanation: Explanation) -> Iterator[Block]:
    wait = percent_text(explanation.wait_fraction)
    yield Text(
        text=f"{settings_text(explanation.config)} [{clean(explanation.trial_id)}]:"
        f" {explanation.batches:,} batches in {format_duration(explanation.window_s)},"
        f" the consumer waited {wait} of the time."
    )
    if explanation.stages:
        yield Table(head=_STAGE_HEAD, rows=tuple(map(_stage_cells, explanation.stages)))
    samples = explanation.samples
    if samples is not None:
        yield Text(
            text=f"A sample took {format_duration(samples.mean_s)} on average, the median"
            f" {format_duration(samples.median_s)}, one in a hundred more than"
            f" {format_duration(samples.p99_s)}, the longest {format_duration(samples.max_s)}."
        )
    if explanation.transforms:
        rows = [
            (clean(each.name), format_duration(each.mean_s), percent_text(each.share))
            for each in explanation.transforms
        ]
        yield Table(head=("transform", "mean", "of fetching"), rows=tuple(rows))
    if explanation.workers:
        yield _workers(explanation)


def _stage_cells(stage: Stage) -> tuple[str, ...]:
    figures = (
        stage.mean_s,
        stage.median_s,
        stage.p95_s,
        stage.max_s,
        stage.cpu_s,
        stage.run_queue_s,
        stage.io_s,
    )
    return (stage.name, *map(format_duration, figures))


def _workers(explanation: Explanation) -> Table:
    rows = [
        (
            str(each.worker),
            f"{each.batches:,}",
            percent_text(each.busy_fraction),
            cores_text(each.cpu_cores),
            "-" if each.threads is None else str(each.threads),
            "-" if each.affinity_cpus is None else str(each.affinity_cpus),
            format_bytes(each.pss_growth_bytes_per_batch),
        )
        for each in explanation.workers[:_MOST_WORKERS]
    ]
    return Table(head=_WORKER_HEAD, rows=tuple(rows))
