"""A check as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.records.gate import CheckReport, GateState, TargetCheck
from dlprof.report.gate.wording import (
    STATE_WORDS,
    advice,
    headline,
    named_targets,
    not_judged,
    notes,
    short,
    side_text,
    stage_lines,
    state_word,
)
from dlprof.report.layout import INDENT, Hanging, bullet
from dlprof.units import format_duration

_STYLES: Mapping[GateState, str] = MappingProxyType(
    {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "no_baseline": "yellow"}
)
_MOST_TEXT = 1000


def render_check(check: CheckReport) -> RenderableType:
    """The verdict, what it rests on, and what to do."""
    took = sum(target.measured_s for target in check.targets)
    parts: list[RenderableType] = [
        Text(f"{state_word(check)}: ", style=_STYLES[check.state]).append(
            headline(check), style="bold"
        ),
        Hanging("", Text(f"{side_text(check.change)} against {side_text(check.base)}")),
    ]
    for name, target in named_targets(check):
        parts += _target(name, target)
    parts += [*_notes(not_judged(check).values()), *_remarks(check)]
    if took:
        parts += [Text(), Text(f"Measured for {format_duration(took)}.", style="dim")]
    return Group(*parts)


def _target(name: str, target: TargetCheck) -> list[RenderableType]:
    verdict = target.verdict
    parts: list[RenderableType] = [
        Text(),
        Text(f"{name}  ", style="bold").append(
            STATE_WORDS[verdict.state], style=_STYLES[verdict.state]
        ),
    ]
    told = [gate for gate in verdict.gates if gate.reason != "not_measured" or gate.blocking]
    width = max((len(STATE_WORDS[gate.state]) for gate in told), default=0)
    for gate in told:
        word = STATE_WORDS[gate.state]
        line = Text(short(gate.explanation, _MOST_TEXT), style=_style(gate.state))
        parts.append(Hanging(f"{INDENT}{word:<{width}}  ", line))
    return [*parts, *_stages(target), *_notes(notes(target))]


def _style(state: GateState) -> str:
    """The style of a metric's sentence: what is as it should be stays plain."""
    return "" if state == "pass" else _STYLES[state]


def _stages(target: TargetCheck) -> list[RenderableType]:
    lines = stage_lines(target)
    if not lines:
        return []
    width = max(len(stage) for stage, _ in lines)
    heading = Text(f"{INDENT}Where the time went", style="dim")
    return [heading, *(Hanging(f"{INDENT}{stage:<{width}}  ", Text(text)) for stage, text in lines)]


def _notes(texts: Iterable[str]) -> list[RenderableType]:
    return [bullet(Text(short(text, _MOST_TEXT), style="dim")) for text in texts]


def _remarks(check: CheckReport) -> list[RenderableType]:
    remarks = [f"Allowed by --allow-regression: {short(check.override)}"] if check.override else []
    remarks += [advice(check)] if advice(check) else []
    return [Text(), *(Hanging("", Text(remark)) for remark in remarks)] if remarks else []
