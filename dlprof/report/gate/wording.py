"""What all renderers of a check share: words for states, figures, and texts made short and safe."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dlprof.gate.views import usable_quads
from dlprof.gate.wording import METRICS, VIEW_NAMES, amount, figure_text, stage_line
from dlprof.records.gate import (
    CheckReport,
    Compared,
    GateResult,
    GateState,
    TargetCheck,
    ViewFigures,
)
from dlprof.report.text import clean
from dlprof.units import MISSING

STATE_WORDS: Mapping[GateState, str] = MappingProxyType(
    {
        "pass": "PASS",
        "fail": "FAIL",
        "inconclusive": "INCONCLUSIVE",
        "no_baseline": "NO BASELINE",
    }
)
"""A verdict in words."""

_HEADLINES: Mapping[GateState, str] = MappingProxyType(
    {
        "pass": "Data loading did not get slower",
        "fail": "Data loading got slower",
        "inconclusive": "It is undecided whether data loading got slower",
        "no_baseline": "There is no comparable baseline",
    }
)

_WORST_FIRST: Mapping[GateState, int] = MappingProxyType(
    {"fail": 0, "inconclusive": 1, "no_baseline": 2, "pass": 3}
)
_UNDECIDED = frozenset({"undecided", "too_few_quads", "contended", "spread"})
_NO_CHARACTER = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
# GitHub's runner obeys lines of a job's output that begin with these, blanks aside.
_COMMAND = re.compile(r"(?<!\S)(:|#)(:|#\[)")
MOST_CHARACTERS = 300
"""No text of the user's is shown longer than this."""


def short(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text from anywhere as one line that is safe to show, cut where it is long."""
    line = _COMMAND.sub(r"\1 \2", _NO_CHARACTER.sub("", clean(text)))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def sentence(text: str) -> str:
    """The same of whole sentences, which are longer."""
    return short(text, 1000)


def target_names(check: CheckReport) -> list[str]:
    """A name for each target, short, none empty and none twice."""
    names: dict[str, None] = {}
    numbers: collections.Counter[str] = collections.Counter()
    for target in check.targets:
        name = plain = short(target.target, MOST_CHARACTERS - 8) or "target"
        while name in names:
            numbers[plain] += 1
            name = f"{plain} ({numbers[plain] + 1})"
        names[name] = None
    return list(names)


def named_targets(check: CheckReport) -> list[tuple[str, TargetCheck]]:
    """The targets with their names, the worst verdicts first."""
    pairs = list(zip(target_names(check), check.targets, strict=True))
    return sorted(pairs, key=lambda pair: _WORST_FIRST[pair[1].verdict.state])


def headline(check: CheckReport) -> str:
    """The whole check's verdict as a headline."""
    failed = [
        gate for target in check.targets for gate in target.verdict.gates if gate.state == "fail"
    ]
    if check.state == "fail" and failed and all(gate.unit == "bytes" for gate in failed):
        return "Data loading takes more memory"
    return _HEADLINES[check.state]


def state_word(check: CheckReport) -> str:
    """The whole check's verdict, with what takes its force from it."""
    word = STATE_WORDS[check.state]
    if check.state == "fail" and check.override:
        return f"{word}, allowed"
    return f"{word}, warning only" if check.state == "fail" and check.warn_only else word


def side_text(side: Compared) -> str:
    """One side of the check: ``main (1a2b3c4)``."""
    parts = [short(side.commit, 7 + 3)[:7], short(side.note)]
    inside = ", ".join(part for part in parts if part)
    return f"{short(side.name)} ({inside})" if inside else short(side.name)


class MetricRow(NamedTuple):
    """One view of one metric as texts; only the first of a metric has its verdict, ``state``."""

    metric: str
    view: str
    base: str
    change: str
    shift: str
    limit: str
    state: str


def rows(gates: Sequence[GateResult]) -> Iterator[MetricRow]:
    """The figures of all metrics; a metric without figures has one row of dashes."""
    for gate in gates:
        label = short(gate.label)
        state = STATE_WORDS[gate.state] if gate.reason != "not_measured" else "not measured"
        if not gate.views:
            yield MetricRow(label, "", MISSING, MISSING, MISSING, MISSING, state)
        for view in gate.views:
            base, change = (figure_text(each, gate.unit) for each in (view.base, view.change))
            shift, limit = short(view.text), short(view.limit_text)
            yield MetricRow(label, view_text(view), base, change, shift, limit, state)
            state = ""


def view_text(view: ViewFigures) -> str:
    """A view as an ending to its metric's label; empty where a metric has but one."""
    name = VIEW_NAMES.get(view.view)
    return f" ({name})" if name else ""


def not_judged(check: CheckReport) -> Mapping[str, str]:
    """What was left out: why, by the metric's label."""
    reasons = check.unavailable
    return {m.label: reasons[name] for name, m in METRICS.items() if name in reasons}


def notes(target: TargetCheck) -> list[str]:
    """What people should know of how a target's verdict was found."""
    blocks = (block for quad in target.quads if quad.series == "load" for block in quad.blocks)
    samples = max((sum(block.samples) for block in blocks), default=0)
    if target.length is None or not 0 < samples < target.length:
        return list(target.verdict.notes)
    loaded = f"Blocks load the same {samples:,} of {target.length:,} samples."
    return [loaded, *target.verdict.notes]


def stage_lines(target: TargetCheck) -> list[tuple[str, str]]:
    """Where the time went: stages by name, with a text for each."""
    lines = []
    for stage in target.verdict.stages:
        each = "" if stage.stage == "startup" else " a sample"
        text = f"{amount(stage.shift_s, 's')}{each}, {stage_line(stage)}"
        lines.append((short(stage.stage), text))
    return lines


def advice(check: CheckReport) -> str:
    """What to do now, in a sentence; empty where there is nothing to do."""
    if check.state == "fail" and not check.override:
        accept = "" if check.warn_only else "; --allow-regression REASON accepts it"
        return f"dlprof profile finds why{accept}"
    reasons = {gate.reason for target in check.targets for gate in target.verdict.gates}
    if check.state == "inconclusive" and "unusable_blocks" in reasons:
        return "Fix what kept the blocks from being measured, then check again"
    if check.state == "inconclusive" and reasons & _UNDECIDED:
        if any(map(_has_looks_left, check.targets)):
            return "Give it more time with --budget, or use a quieter machine"
        return "More time won't help: use a quieter machine, or accept more with --fail-above"
    if check.state == "no_baseline":
        return "Record runs on this machine with dlprof baseline update FILE"
    return ""


def _has_looks_left(target: TargetCheck) -> bool:
    """Whether more quads could still decide a metric that is undecided."""
    undecided = {gate.name for gate in target.verdict.gates if gate.reason in _UNDECIDED}
    return any(
        rule.name in undecided and usable_quads(rule, target.quads) < rule.looks[-1]
        for rule in (() if target.plan is None else target.plan.rules)
    )
