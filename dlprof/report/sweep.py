"""What ``dlprof sweep`` leaves on the screen: the table, the plot, what to know, what to use."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.advise.thresholds import WITHIN
from dlprof.records import Failure, Integrity, Run, Trial
from dlprof.report.findings import first_lines
from dlprof.report.labels import END_TEXTS, percent_text, settings_text
from dlprof.report.plot import ThroughputPlot, bars
from dlprof.report.recommendation import render_recommendation
from dlprof.report.summary import PICK, PRESENT, TIE, Row, summarise
from dlprof.report.table import RunTable
from dlprof.report.text import clean
from dlprof.units import counted, format_duration, with_hint

_CUT_SHORT = {
    "budget": "the budget ran out",
    "interrupted": "the sweep was interrupted",
    "failed": "nothing more could be measured",
    "decided": "the best is clear without them",
    "complete": "the best is clear without them",
    "noise": "the noise hides what they might gain",
}

_CALL = re.compile(r'^ *File (".+", line [0-9]+, in .+)$', re.MULTILINE)
"""A call in a traceback."""


def render_sweep(run: Run) -> RenderableType:
    """The final screen of a sweep.

    Args:
        run: The finished run.
    """
    rows = summarise(run)
    parts: list[RenderableType] = [*first_lines(run), Text(_headline(run), style="bold")]
    if rows:
        parts += [Text(), RunTable(rows)]
    shown = bars(rows)
    if len(shown) > 1:
        parts += [Text(), ThroughputPlot(shown)]
    notes = [
        *_legend(run, rows),
        *_left_out(run),
        *_skipped(run.trials),
        *_failures(run.trials),
        *_cost(run),
    ]
    parts += [Text(), *(Text(note) for note in notes)]
    if run.recommendation is not None:
        parts += [Text(), render_recommendation(run, run.recommendation, first=False)]
    return Group(*parts)


def _headline(run: Run) -> str:
    header = run.header
    trials = [t for t in run.trials if t.outcome != "skipped" and t.purpose == "measure"]
    configurations = len({trial.config for trial in trials})
    usable = header.machine.usable_cores
    cores = f"{usable:g} usable {'core' if usable == 1 else 'cores'}"
    where = f"{clean(header.target.spec)} on {clean(header.machine.hostname)} ({cores})"
    measured = f"{counted(configurations, 'configuration')}, {counted(len(trials), 'trial')}"
    explained = sum(trial.purpose == "explain" for trial in run.trials)
    if explained and not trials:
        measured = f"{counted(explained, 'explained trial')}, none that compares settings"
    elif run.prediction is not None:
        whole = counted(len(run.prediction.cells), "configuration")
        several = counted(len(trials), "trial")
        measured = f"{whole} predicted, {configurations} measured in {several}"
    return f"{where}: {measured}"


def _legend(run: Run, rows: tuple[Row, ...]) -> list[str]:
    """What the marks mean, as far as they occur."""
    if not rows:
        return []
    roles = {row.role for row in rows}
    header = run.header
    present = header.target.present_settings(has_accelerator=header.accelerator is not None)
    speed = "speed" if header.target.batches_per_epoch is None else "speed over whole epochs"
    notes = []
    if any(row.role == PICK and row.config == present for row in rows):
        notes.append(
            f"pick: recommended, and what the target is set to now; relative: {speed} against it."
        )
    elif PICK in roles:
        notes.append(f"pick: recommended; relative: {speed} against the pick.")
    else:
        notes.append(f"relative: {speed} against the fastest.")
    if PRESENT in roles:
        notes.append("present: what the target's own DataLoader is set to now.")
    if TIE in roles:
        notes.append(f"tie: likely {WITHIN} of the best.")
    if "default" in roles:
        notes.append("default: what PyTorch does when nothing is set.")
    if any(row.copy_s is not None for row in rows):
        notes.append("copy: how long a batch's step waits for its copy to the device.")
    if any(row.predicted is not None for row in rows):
        notes.append("predicted: samples/s by the model, before the configuration was measured.")
    if any(row.noisy for row in rows):
        notes.append("noisy: other programs, a quota or drift make the figures doubtful.")
    return [*notes, *map(clean, header.target.notes)]


def _left_out(run: Run) -> list[str]:
    """What was not measured: left out before anything ran, or never come to."""
    notes = [
        f"Left out: {clean(left.setting)}: {clean(left.reason)}" for left in run.header.left_out
    ]
    return [*notes, *_unmeasured(run)]


def _unmeasured(run: Run) -> list[str]:
    """How many configurations of the plan the sweep never came to, and why."""
    found, plan = Integrity.of(run), run.header.plan
    configs = plan.configs if plan is not None else ()
    planned = {config for config in configs if not found.is_useless(config)}
    missing = planned - {trial.config for trial in run.trials if trial.purpose == "measure"}
    if not missing or _is_led(run):
        return []
    why = "the sweep was cut off" if run.end is None else _CUT_SHORT[run.end.reason]
    verb = "was" if len(missing) == 1 else "were"
    return [f"{len(missing)} of {len(planned)} configurations {verb} not measured: {why}."]


def _is_led(run: Run) -> bool:
    """Whether a model chooses what is measured, so that most of a plan is left out on purpose."""
    plan = run.header.plan
    led = plan is not None and plan.search == "model"
    return run.prediction is not None or (led and not run.completed)


def _skipped(trials: tuple[Trial, ...]) -> list[str]:
    """What can't work here and was not tried: each reason once, with what to do about it."""
    groups: dict[str, list[tuple[Trial, Failure]]] = {}
    for trial in trials:
        if trial.outcome == "skipped" and trial.failure is not None:
            groups.setdefault(trial.failure.kind, []).append((trial, trial.failure))
    notes = []
    for group in groups.values():
        trial, failure = group[0]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        told = f"{settings_text(trial.config)}{more}: {_told(failure)}"
        notes.append(f"Skipped: {told} [{trial.id}]")
    return notes


def _failures(trials: tuple[Trial, ...]) -> list[str]:
    """Each kind of failure once for each configuration, with what to do about it."""
    notes: dict[tuple[str, str], str] = {}
    for trial in trials:
        if trial.failure is None or trial.outcome == "skipped":
            continue
        told = f"{_told(trial.failure)}{_raised_at(trial.failure)}"
        note = f"Failed: {settings_text(trial.config)}: {told} [{trial.id}]"
        notes.setdefault((trial.config.key, trial.failure.kind), note)
    return list(notes.values())


def _told(failure: Failure) -> str:
    return with_hint(clean(failure.message), clean(failure.hint))


def _raised_at(failure: Failure) -> str:
    """Where the user's own code raised what ended a trial, by the end of its traceback."""
    calls = _CALL.findall(failure.stderr_tail) if failure.kind == "worker_exception" else []
    return f" The last call in it: {clean(calls[-1])}." if calls else ""


def _cost(run: Run) -> list[str]:
    """How the sweep ended and what it took."""
    notes = []
    if run.end is not None:
        cost = run.end.cost_s
        outside = cost.overhead / cost.total if cost.total > 0 else None
        notes.append(
            f"Took {format_duration(cost.total)}, {percent_text(outside)} of it outside the"
            f" measured windows; ended because {END_TEXTS[run.end.reason]}."
            if run.end.reason in {"decided", "complete", "budget", "noise"}
            else f"Took {format_duration(cost.total)}; {END_TEXTS[run.end.reason]}."
        )
    if run.truncated:
        notes.append("The run file was cut off; --resume continues it.")
    notes.append(f"Run file: {clean(run.path)}")
    return notes
