"""Stored history: is a run worse than the last runs on the same kind of machine?

A baseline knows nothing of what the machine did while the run was measured, so it advises where
``dlprof check --against`` decides. The rule: with ``y`` the logarithm of a figure, and median and
spread ``s`` of the last ``K`` runs, it is worse if ``y - median`` is above
``max(ln(1 + T), t(K - 1, 0.99) * s * sqrt(1 + 1 / K))``: Student's one-sided prediction bound for
one more run. ``s`` counts as 1 % at least, since a few equal runs don't prove that none differs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlprof.errors import FileError, refuse_newer
from dlprof.gate.rule import fraction_of
from dlprof.gate.views import block_value
from dlprof.gate.wording import VIEW_NAMES, figures_text, gate_result, percent
from dlprof.records import Config, Machine
from dlprof.records.codec import MismatchError, from_json
from dlprof.records.gate import (
    BaselineEntry,
    BaselineKey,
    BaselineRule,
    Block,
    CheckPlan,
    GateResult,
    GateState,
    ReasonCode,
    Verdict,
    ViewFigures,
)
from dlprof.stats.intervals import t_quantile
from dlprof.units import counted


def comparable(history: Iterable[BaselineEntry], key: BaselineKey) -> list[BaselineEntry]:
    """The entries that a run with this key may be compared with, oldest first."""
    return sorted(
        (entry for entry in history if entry.key == key),
        key=lambda entry: (entry.recorded_at, entry.commit),
    )


_WORDS = {
    "cpu_model": "CPU model",
    "available_cores": "available cores",
    "os": "OS",
    "config": "settings",
    "data": "the dataset's class, length or batch size, fingerprint",
}


def key_difference(history: Iterable[BaselineEntry], key: BaselineKey) -> str:
    """In what the key differs from the most alike one of the history, in words.

    Entries of other targets are the last to be named; empty without any entry.
    """
    now = dataclasses.asdict(key)
    differences = [
        {name: was for name, was in dataclasses.asdict(entry.key).items() if was != now[name]}
        for entry in history
    ]
    closest = min(differences, key=lambda names: ("target" in names, len(names)), default={})
    texts = {"config": Config.text_of}
    said = ((name, texts.get(name, str), was) for name, was in closest.items())
    return ", ".join(
        f"{_WORDS.get(name, name)} {text(was)} instead of {text(now[name])}"
        for name, text, was in said
    )


def shortage(
    history: Sequence[BaselineEntry], key: BaselineKey, rule: BaselineRule | None = None
) -> str:
    """Why a run with this key can't be judged by the history; empty where it can."""
    rule = rule or BaselineRule()
    count = len(comparable(history, key))
    if count >= rule.least_runs:
        return ""
    if count:
        return f"{counted(count, 'comparable run')} stored, {rule.least_runs} are needed"
    if not history:
        return "the baseline is empty"
    alike = key_difference(history, key)
    return f"the baseline holds other runs only; the most alike differs in {alike}"


def judge_baseline(
    entry: BaselineEntry, history: Iterable[BaselineEntry], rule: BaselineRule | None = None
) -> Verdict:
    """What the stored history says of a run: of its service time alone.

    Wall time differs between machines of one model by far more than code does.

    Returns:
        A verdict whose state is ``no_baseline`` where the history has too few runs that can be
        compared; its explanation says which part of the key differs.
    """
    rule = rule or BaselineRule()
    before = [other for other in history if other != entry]
    detail = shortage(before, entry.key, rule)
    before = comparable(before, entry.key)
    if detail:
        reason: ReasonCode = "too_few_runs" if before else "other_machine"
        return Verdict(
            state="no_baseline",
            explanation=f"The baseline has too few comparable runs: {detail}.",
            gates=(gate_result("service", "no_baseline", reason, (), detail),),
        )
    gate = _judge_service(entry, before[-rule.runs :], rule)
    return Verdict(
        state=gate.state,
        explanation=gate.explanation,
        gates=(gate,),
        error_bound=(1 - rule.confidence) * len(gate.views),
        notes=(f"Compared with {min(len(before), rule.runs)} earlier runs on this machine.",),
    )


_REASONS: Mapping[GateState, ReasonCode] = {
    "fail": "slower",
    "inconclusive": "spread",
    "pass": "not_slower",
}
"""Of a metric in a state, the gravest first."""


def _judge_service(
    entry: BaselineEntry, before: Sequence[BaselineEntry], rule: BaselineRule
) -> GateResult:
    """The service time, by every view of it that enough earlier runs have."""
    views: list[tuple[GateState, ViewFigures]] = []
    for view in VIEW_NAMES:
        # Of those whose logarithm can be taken.
        found = [each.figures.get(f"service.{view}", 0.0) for each in (entry, *before)]
        log, *logs = [math.log(f) if 0 < f < math.inf else None for f in found]
        known = [each for each in logs if each is not None]
        if log is not None and len(known) >= rule.least_runs:
            views.append(_judge_view(view, log, known, rule))
    if not views:
        return gate_result("service", "inconclusive", "not_measured")
    views.sort(key=lambda view: list(_REASONS).index(view[0]))
    state, worst = views[0]
    detail = f"earlier runs vary so much that only a slowdown beyond {worst.limit_text} would show"
    figures = [figures for _, figures in views]
    return gate_result("service", state, _REASONS[state], figures, detail)


def _judge_view(
    name: str, log: float, logs: Sequence[float], rule: BaselineRule
) -> tuple[GateState, ViewFigures]:
    """One figure against the same of earlier runs, as logarithms."""
    runs = len(logs)
    middle = statistics.median(logs)
    spread = max(rule.least_spread, statistics.stdev(logs))
    bound = t_quantile(rule.confidence, runs - 1) * spread * math.sqrt(1 + 1 / runs)
    threshold = math.log1p(rule.threshold)
    limit, shift = max(threshold, bound), log - middle
    about, low, high = map(fraction_of, (shift, shift - bound, shift + bound))
    state: GateState = "inconclusive"
    if shift > limit:
        state = "fail"
    # A history whose spread could hide a slowdown of this many thresholds can't pass a run.
    elif shift <= threshold and limit <= math.log1p(2.0 * rule.threshold):
        state = "pass"
    return state, ViewFigures(
        view=name,
        quads=runs,
        base=math.exp(middle),
        change=math.exp(log),
        shift=about,
        low=low,
        high=high,
        limit=fraction_of(limit),
        text=f"{figures_text(about, low, high, unit=None, base=None)} vs {runs} runs",
        limit_text=percent(fraction_of(limit), signed=False),
    )


def figures_of(plan: CheckPlan, blocks: Iterable[Block]) -> dict[str, float]:
    """The figures of a run for a baseline: medians over one side's blocks, by metric and view."""
    blocks = list(blocks)
    figures = {}
    for rule in plan.rules:
        for view in rule.views:
            found = (block_value(block, rule, view) for block in blocks)
            values = [value for value in found if value is not None]
            if values:
                figures[f"{rule.name}.{view}"] = statistics.median(values)
    return figures


def baseline_key(
    machine: Machine, *, target: str, python: str, torch: str, config: Config, data: str
) -> BaselineKey:
    """The key of a run: what must be equal for its figures to be comparable.

    Of versions that change with every security update only the first two numbers count, as of
    the kernel; of torch all do.
    """
    return BaselineKey(
        target=target,
        cpu_model=machine.cpu_model,
        available_cores=round(machine.usable_cores, 2),
        os=_two_numbers(machine.platform),
        python=_two_numbers(python),
        torch=torch,
        config=config.canonical().key,
        data=data,
    )


def _two_numbers(version: str) -> str:
    """A version without what follows its second number: ``Linux 6.1`` of ``Linux 6.1.99-5``."""
    match = re.match(r"\D*\d+(?:\.\d+)?", version)
    return match[0] if match else version


VERSION = 1  # of a line's format

_VERSION_KEY = "dlprof_baseline"
_HINT = "Correct or remove that line."


def parse_baseline(text: str, name: str) -> list[BaselineEntry]:
    """The entries of a baseline, in the order of their lines; doubles from a merge once."""
    return [entry for _, entry in _lines(text, name).values()]


def add_entry(text: str, entry: BaselineEntry, name: str, *, most_entries: int = 50) -> str:
    """The file's text with one more entry, and without the oldest of its key beyond a number."""
    lines = _lines(text, name)
    lines[_place(entry)] = render_entry(entry), entry
    same = [place for place in sorted(lines) if lines[place][1].key == entry.key]
    dropped = {*same[:-most_entries]}
    return "".join(f"{lines[place][0]}\n" for place in sorted(lines) if place not in dropped)


def render_entry(entry: BaselineEntry) -> str:
    """One line, ASCII, without its end; equal entries give equal lines."""
    key = dataclasses.asdict(entry.key)
    fields = {
        _VERSION_KEY: VERSION,
        "recorded_at": entry.recorded_at,
        "commit": entry.commit,
        "figures": {name: float(entry.figures[name]) for name in sorted(entry.figures)},
        "key": {**key, "available_cores": float(entry.key.available_cores)},
    }
    return json.dumps(fields, allow_nan=False)


def _place(entry: BaselineEntry) -> tuple[Any, ...]:
    return (*dataclasses.astuple(entry.key), entry.recorded_at, entry.commit)


def _lines(text: str, name: str) -> dict[tuple[Any, ...], tuple[str, BaselineEntry]]:
    """Each line as it is, and what it says, by its place in a sorted file."""
    found: dict[tuple[Any, ...], tuple[str, BaselineEntry]] = {}
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if line:
            entry = _entry(line, f"{name}, line {number}")
            found.setdefault(_place(entry), (line, entry))
    return found


def _entry(line: str, where: str) -> BaselineEntry:
    if line.startswith(("<<<<<<<", "=======", ">>>>>>>", "|||||||")):
        raise FileError(
            f"{where}: the file holds a merge conflict",
            hint="Remove the markers and keep the lines of both sides; their order doesn't matter.",
        )
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise FileError(f"{where} is not JSON", hint=_HINT) from None
    if not isinstance(data, dict) or not isinstance(data.get(_VERSION_KEY), int):
        raise FileError(f"{where} is not an entry of a baseline", hint=_HINT)
    refuse_newer(where, data[_VERSION_KEY], VERSION)
    try:
        entry = from_json(BaselineEntry, data)
    except MismatchError as error:
        raise FileError(f"{where}: {error}", hint=_HINT) from None
    for view in VIEW_NAMES:
        if entry.figures.get(f"service.{view}", 1.0) <= 0:  # no run of dlprof's has it
            raise FileError(f"{where}: service.{view} is not above 0", hint=_HINT)
    return entry
