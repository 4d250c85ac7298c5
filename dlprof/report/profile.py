"""What ``dlprof profile`` shows: where a batch's time goes, where batches pile up, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.records import (
    Diagnosis,
    Explanation,
    Run,
    SampleCosts,
    Stage,
    Stalls,
    TransformCost,
    Trial,
    WorkerCosts,
)
from dlprof.report.cards import card_text
from dlprof.report.findings import first_lines, render_findings
from dlprof.report.fitting import FittingTable, TextColumn
from dlprof.report.labels import cores_text, percent_text, rate_text, settings_text
from dlprof.report.layout import INDENT, Hanging, bullet
from dlprof.report.pipeline import Pipeline
from dlprof.report.text import clean
from dlprof.units import MISSING, counted, format_bytes, format_duration

_MOST_SLOWEST = 5
_MOST_WORKERS = 8
_MOST_TRANSFORMS = 12


def render_profile(run: Run) -> RenderableType:
    """The final screen of a profile.

    Args:
        run: The finished profile.
    """
    diagnosis = run.diagnosis
    if diagnosis is None:
        return Text("The run holds no diagnosis.")
    wrong = any(each.code.startswith("data.") for each in diagnosis.findings)
    if not run.completed and not run.explanations and not wrong:
        # Findings need figures: that there are none must not read as "nothing is wrong".
        return Group(
            Hanging("", Text("Nothing could be measured, so no cause can be told.")),
            Hanging("", Text(f"Run file: {clean(run.path)}")),
        )
    mine = [each for each in run.explanations if each.config == diagnosis.config]
    plain = [trial for trial in run.completed if trial.config == diagnosis.config]
    shown = plain[0] if plain else next(iter(run.trials), None)
    command = f"dlprof report {shlex.quote(clean(run.path))} -o trace.perfetto.json"
    return Group(
        *(first_lines(run) if mine else []),  # else findings are all that there is
        render_diagnosis(diagnosis, mine[-1] if mine else None, shown),
        Text(),
        *(Hanging("", Text(note)) for note in _cost(run)),
        *([Text(f"{INDENT}{command}", style="cyan", no_wrap=True)] if _has_picture(run) else []),
    )


def _cost(run: Run) -> list[str]:
    """What the profile took, and where it is kept."""
    took = []
    if run.end is not None:
        trials = counted(len(run.trials), "trial")
        took.append(f"Took {format_duration(run.end.cost_s.total)} for {trials}.")
    picture = "; a picture of each batch, for ui.perfetto.dev:" if _has_picture(run) else ""
    return [*took, f"Run file: {clean(run.path)}{picture}"]


def _has_picture(run: Run) -> bool:
    """Whether batches were followed, so that a trace can be drawn of them."""
    return any(timeline.batch for timeline in run.timelines)


def render_diagnosis(
    diagnosis: Diagnosis, explained: Explanation | None, trial: Trial | None
) -> RenderableType:
    """The whole profile for a terminal or a pipe.

    Args:
        diagnosis: What was found.
        explained: Of the configuration; ``None`` where it could not be explained.
        trial: A plain trial of it, whose rate is shown; ``None`` where there is none.
    """
    parts: list[RenderableType] = [
        Hanging("", Text(f"Where the time goes: {settings_text(diagnosis.config)}", style="bold"))
    ]
    parts += [
        Hanging(f"{INDENT}{name:<11} ", Text(text))
        for name, text in (*_rates(trial), *_stalls(diagnosis.stalls))
    ]
    if explained is not None:
        parts += _explained(explained)
    parts += [Text(), Text("Why", style="bold"), _why(diagnosis, explained)]
    if diagnosis.notes:
        parts += [Text(), Text("Notes", style="bold")]
        parts += [bullet(Text(clean(note))) for note in diagnosis.notes]
    return Group(*parts)


def _why(diagnosis: Diagnosis, explained: Explanation | None) -> RenderableType:
    """The findings; that batches were not followed must not read as "nothing is wrong"."""
    if diagnosis.findings or (explained is not None and explained.hooked):
        return render_findings(diagnosis.findings)
    return Hanging(INDENT, Text("No batch was followed through its stages: no cause can be told."))


def _rates(trial: Trial | None) -> list[tuple[str, str]]:
    if trial is None or trial.outcome != "completed":
        return []
    rate = trial.samples_per_s
    shown = rate_text(rate) if rate else rate_text(trial.batches_per_s, "batches/s")
    rows = [("throughput", shown)]
    if trial.wait_fraction is not None:
        rows.append(("data wait", f"{percent_text(trial.wait_fraction)} of the time"))
    usage = trial.usage
    if usage.own_cpu_cores is not None:
        cores = f"{cores_text(usage.own_cpu_cores)} used of "
        cores += f"{cores_text(usage.available_cpu_cores)} to be had"
        if usage.other_cpu_cores:
            cores += f", {cores_text(usage.other_cpu_cores)} taken by others"
        rows.append(("cores", cores))
    if usage.cache_hit_fraction is not None:
        rows.append(("page cache", f"{percent_text(usage.cache_hit_fraction)} of reads"))
    return rows + [(f"GPU {gpu.index}", card_text(gpu)) for gpu in usage.gpu]


def _stalls(stalls: Stalls | None) -> list[tuple[str, str]]:
    if stalls is None:
        return []
    text = f"{percent_text(stalls.prep_fraction)} preparing batches"
    if stalls.fetch_fraction is not None:
        text += f", {percent_text(stalls.fetch_fraction)} fetching from storage"
    times = [f"{format_duration(stalls.resident_s)} the step alone"]
    times.append(f"{format_duration(stalls.warm_s)} from the page cache")
    if stalls.cold_s is not None:
        times.append(f"{format_duration(stalls.cold_s)} from storage")
    return [("stalls", f"{text} (a batch: {', '.join(times)})")]


def _explained(explained: Explanation) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if explained.stages:
        parts += _section("Stages, per batch", stage_table(explained.stages))
    if explained.waiting_batches:
        title = "Where batches are, on average"
        parts += _section(title, Pipeline(explained.waiting_batches))
    if explained.samples is not None and explained.samples.count:
        parts += _section("Single samples", *_samples(explained.samples))
    if explained.transforms:
        parts += _section("Transforms, per call", _transforms(explained.transforms))
    if explained.workers:
        parts += _section("Workers", *_workers(explained.workers))
    missing = [
        bullet(Text(f"{clean(name)}: {clean(reason)}"))
        for name, reason in explained.unavailable.items()
    ]
    return parts + (_section("Not told", *missing) if missing else [])


def _section(title: str, *items: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *items]


def stage_table(stages: Sequence[Stage]) -> FittingTable:
    """The stages, with as many of their figures as there is room for."""
    whole_s = sum(stage.mean_s for stage in stages if stage.name in ("wait", "step"))
    rows = [(stage, clean(stage.name).replace("_", " ")) for stage in stages]

    def column(title: str, figure: Callable[[Stage], float | None], keep: int) -> TextColumn:
        cells = [format_duration(figure(stage)) for stage in stages]
        return TextColumn(title=title, cells=cells, keep=keep)

    shares = [percent_text(s.mean_s / whole_s) if whole_s > 0 else MISSING for s in stages]
    return FittingTable(
        [
            TextColumn(title="stage", cells=[name for _, name in rows], left=True),
            TextColumn(title="mean", cells=[format_duration(s.mean_s) for s in stages]),
            TextColumn(title="of period", cells=shares, keep=5),
            column("median", lambda stage: stage.median_s, 1),
            column("p95", lambda stage: stage.p95_s, 9),
            column("max", lambda stage: stage.max_s, 4),
            column("CPU", lambda stage: stage.cpu_s, 8),
            column("no core", lambda stage: stage.run_queue_s, 6),
            column("waiting", lambda stage: stage.io_s, 7),
        ]
    )


def _samples(samples: SampleCosts) -> list[RenderableType]:
    text = (
        f"{samples.count:,} timed: mean {format_duration(samples.mean_s)}, median "
        f"{format_duration(samples.median_s)}, p95 {format_duration(samples.p95_s)}, p99 "
        f"{format_duration(samples.p99_s)}, longest {format_duration(samples.max_s)}"
    )
    lines: list[RenderableType] = [Hanging(INDENT, Text(text))]
    slowest = list(samples.slowest.items())[:_MOST_SLOWEST]
    if slowest:
        named = ", ".join(f"{clean(name)} ({format_duration(s)})" for name, s in slowest)
        lines.append(Hanging(INDENT, Text(f"slowest: {named}")))
    return lines


def _transforms(transforms: Sequence[TransformCost]) -> FittingTable:
    shown = transforms[:_MOST_TRANSFORMS]
    return FittingTable(
        [
            TextColumn(title="transform", cells=[clean(t.name) for t in shown], left=True),
            TextColumn(title="mean", cells=[format_duration(t.mean_s) for t in shown]),
            TextColumn(title="of fetch", cells=[percent_text(t.share) for t in shown]),
        ]
    )


def _workers(workers: Sequence[WorkerCosts]) -> list[RenderableType]:
    shown = workers[:_MOST_WORKERS]
    table = FittingTable(
        [
            TextColumn(title="worker", cells=[str(w.worker) for w in shown]),
            TextColumn(title="batches", cells=[f"{w.batches:,}" for w in shown]),
            TextColumn(title="busy", cells=[percent_text(w.busy_fraction) for w in shown]),
            TextColumn(title="cores", cells=[cores_text(w.cpu_cores) for w in shown], keep=4),
            TextColumn(title="threads", cells=[_count(w.threads) for w in shown], keep=3),
            TextColumn(title="CPUs", cells=[_count(w.affinity_cpus) for w in shown], keep=2),
            TextColumn(
                title="growth/batch",
                cells=[format_bytes(w.pss_growth_bytes_per_batch) for w in shown],
                keep=1,
            ),
        ]
    )
    more = len(workers) - len(shown)
    return [table, *([Hanging(INDENT, Text(f"and {more} more"))] if more > 0 else [])]


def _count(count: int | None) -> str:
    return MISSING if count is None else f"{count:,}"
