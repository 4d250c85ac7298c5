"""What a report tells, apart from how it is written: sections of text, tables and charts.

All texts are cleaned of control sequences here; escaping them for HTML or Markdown is left to what
writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dlprof.advise.limits import stored_limits
from dlprof.advise.recommend import recommend
from dlprof.advise.wrong_data import said_first
from dlprof.errors import DlprofError
from dlprof.records import Finding, GpuInfo, Recommendation, Run
from dlprof.report.cards import CARD_HEAD, card_rows
from dlprof.report.export.blocks import Block, Bullets, Code, Section, Table, Text
from dlprof.report.export.loops import watched
from dlprof.report.export.measured import configurations, failures
from dlprof.report.export.staged import explained
from dlprof.report.findings import known_gain
from dlprof.report.labels import END_TEXTS, percent_text, rate_text, settings_text
from dlprof.report.snippets import loader_call
from dlprof.report.text import clean
from dlprof.units import MISSING, format_bytes, format_duration


def with_recommendation(run: Run) -> Run:
    """The run with a recommendation, as ``dlprof recommend`` draws it where the sweep keeps none.

    One of an earlier version, without rates, was drawn by other rules.
    """
    kept = run.recommendation is not None and run.recommendation.rates
    if kept or run.diagnosis is not None:
        return run
    try:
        found = recommend(run, stored_limits(run.header.settings))
        return dataclasses.replace(run, recommendation=found)
    except DlprofError:  # nothing measured, or nothing within the limits: there is none
        return run


def title_of(run: Run) -> str:
    """What the report is called."""
    return f"{clean(run.header.target.spec)} on {clean(run.header.machine.hostname)}"


def sections(run: Run) -> list[Section]:
    """Everything that a report tells of a run, in its order; empty sections left out.

    Args:
        run: From ``with_recommendation``.
    """
    found = [
        Section(title="Before all else", blocks=tuple(_first(run))),
        Section(title="Recommended settings", blocks=tuple(_recommended(run.recommendation))),
        Section(title="Findings", blocks=tuple(_findings(run))),
        Section(title="Loaders of the script", blocks=tuple(watched(run))),
        Section(title="Configurations", blocks=tuple(configurations(run))),
        Section(title="Where a batch's time goes", blocks=tuple(explained(run))),
        Section(title="GPUs meanwhile", blocks=tuple(_cards(run))),
        Section(title="Failures and what was left out", blocks=tuple(_missing(run))),
        Section(title="Machine and run", blocks=tuple(_facts(run))),
    ]
    return [section for section in found if section.blocks]


def _first(run: Run) -> Iterator[Block]:
    for text in said_first(run):
        yield Text(text=clean(text))


def _recommended(advice: Recommendation | None) -> Iterator[Block]:
    if advice is None:
        return
    # Made anew from the configuration, whose values are held to what a loader takes: the arguments
    # as the file has them may be anything.
    yield Code(lines=tuple(loader_call(advice.config.dataloader_kwargs())))
    expected = advice.expected
    rows = [("throughput", rate_text(expected.samples_per_s))]
    if expected.wait_fraction is not None:
        rows.append(("data wait", f"{percent_text(expected.wait_fraction)} of the time"))
    rows += [
        ("memory", format_bytes(expected.pss_bytes)),
        ("shared memory", format_bytes(expected.shm_bytes)),
        ("start-up", format_duration(expected.startup_s)),
        ("epoch turnover", format_duration(expected.epoch_turnover_s)),
        ("confidence", f"{advice.confidence}: {clean(advice.confidence_reason)}"),
    ]
    yield Table(rows=tuple(row for row in rows if row[1] != MISSING))
    if advice.reasons:
        yield Bullets(items=tuple(clean(reason.claim) for reason in advice.reasons))


def _findings(run: Run) -> Iterator[Block]:
    if run.diagnosis is None:
        return
    yield Text(text=f"Of {settings_text(run.diagnosis.config)}:")
    if not run.diagnosis.findings and run.script is None:  # of a script, the notes say why
        yield Text(text="Nothing was found that slows it down.")
    for finding in run.diagnosis.findings:
        yield Bullets(items=(_finding(finding),))
    if run.diagnosis.notes:
        yield Bullets(items=tuple(map(clean, run.diagnosis.notes)))


def _finding(finding: Finding) -> str:
    title = clean(finding.title).rstrip(".")
    text = f"{finding.code} ({finding.severity}): {title}. {clean(finding.explanation)}"
    if finding.fix is not None:
        text += f" Fix: {clean(finding.fix.text)}"
    if finding.predicted_gain is not None:
        text += f" Gain: {known_gain(finding)}."
    return f"{text} Doubtful: {clean(finding.doubtful)}" if finding.doubtful else text


def _cards(run: Run) -> Iterator[Block]:
    rows = card_rows(trial for trial in run.completed if trial.purpose == "measure")
    if rows:
        yield Table(head=CARD_HEAD, rows=tuple(rows))


def _missing(run: Run) -> Iterator[Block]:
    items = failures(run)
    items += [f"Left out: {clean(one.setting)}: {clean(one.reason)}" for one in run.header.left_out]
    if run.truncated:
        items.append("The run file was cut off.")
    if items:
        yield Bullets(items=tuple(items))


def _facts(run: Run) -> Iterator[Block]:
    header, machine = run.header, run.header.machine
    quota = MISSING if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    rows = [
        ("started", clean(header.started_at)),
        ("target", f"{clean(header.target.spec)} ({clean(header.target.dataset)})"),
        ("CPU", clean(machine.cpu_model)),
        ("usable cores", f"{machine.usable_cores:g} of {machine.logical_cpus}"),
        ("CPU quota", quota),
        ("memory", format_bytes(machine.memory_bytes)),
        ("shared memory", format_bytes(machine.shm_bytes)),
        ("GPUs", _gpus(machine.gpus)),
        ("system", clean(machine.platform)),
        ("versions", _versions(run)),
        ("took", MISSING if run.end is None else format_duration(run.end.cost_s.total)),
        ("ended because", MISSING if run.end is None else END_TEXTS[run.end.reason]),
        ("run file", clean(run.path) or MISSING),
    ]
    yield Table(rows=tuple(row for row in rows if row[1] != MISSING))


def _gpus(gpus: Sequence[GpuInfo]) -> str:
    return ", ".join(clean(gpu.name) for gpu in gpus) or MISSING


def _versions(run: Run) -> str:
    header = run.header
    return (
        f"dlprof {clean(header.dlprof_version)}, torch {clean(header.torch_version)}, "
        f"Python {clean(header.python_version)}"
    )
