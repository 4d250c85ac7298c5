"""Findings as people read them, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.advise.wrong_data import said_first
from dlprof.records import Estimate, Finding, Fix, Run
from dlprof.report.labels import cores_text, percent_text
from dlprof.report.layout import INDENT, Hanging
from dlprof.report.text import clean, clean_lines
from dlprof.store.codec import to_json
from dlprof.units import format_bytes, format_duration, format_rate

_SEVERITY_STYLES = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
_DEEP = INDENT * 2
_LABEL_WIDTH = 8
_SOURCES = {
    "measured": "measured here",
    "model": "by the model",
    "bound": "by reckoning",
}
_NO_FIGURES = frozenset({"trials", "gain_from", "gain_at", "gain_trials", "seen_in"})


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as the contract writes them, in their order."""
    return [to_json(finding) for finding in findings]


def first_lines(run: Run) -> list[RenderableType]:
    """What is said before all else: settings whose data is wrong, or that fail."""
    told = said_first(run)
    lines: list[RenderableType] = [Hanging("", Text(clean(text), style="red")) for text in told]
    return [*lines, Text()] if lines else []


def render_findings(findings: Sequence[Finding]) -> RenderableType:
    """All findings, the cause to bet on first; a sentence where there are none."""
    if not findings:
        return Hanging(
            INDENT, Text("Nothing stands out: no cause was found that is worth mending.")
        )
    parts: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        if parts:
            parts.append(Text())
        parts += _finding(number, finding)
    return Group(*parts)


def _finding(number: int, finding: Finding) -> list[RenderableType]:
    title = Text(clean(finding.title), style="bold")
    title.append(f"  {clean(finding.code)}", style="dim")
    title.append(f"  {finding.severity}", style=_SEVERITY_STYLES[finding.severity])
    lines: list[RenderableType] = [
        Hanging(f"{number}. ".rjust(len(_DEEP)), title),
        Hanging(_DEEP, Text(clean(finding.explanation))),
    ]
    lines += _labelled("evidence", evidence_text(finding.evidence))
    if finding.fix is not None:
        lines += _fix(finding.fix)
    lines += _labelled("gain", gain_text(finding.predicted_gain, finding.evidence))
    lines += _labelled("script", _script_text(finding.script_gain))
    lines += _labelled("doubt", clean(finding.doubtful), style="yellow")
    return lines


def _labelled(label: str, text: str, style: str = "") -> list[RenderableType]:
    if not text:
        return []
    return [Hanging(f"{_DEEP}{label:<{_LABEL_WIDTH}}  ", Text(text, style=style))]


def _fix(fix: Fix) -> list[RenderableType]:
    lines = _labelled("fix", clean(fix.text))
    code = [] if not fix.dataloader_kwargs else [_call(fix.dataloader_kwargs)]
    code += clean_lines(fix.code).splitlines()
    room = _DEEP + " " * (_LABEL_WIDTH + 2)
    lines += [
        Text(room + line, style="green", no_wrap=True, overflow="ignore") if line else Text()
        for line in code
    ]
    return lines


def _call(kwargs: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{clean(str(name))}={_literal(v)}" for name, v in kwargs.items())
    return f"DataLoader(dataset, ..., {arguments})"


def _literal(value: object) -> str:
    return clean(repr(value))


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The figures by name, with the trials that they come from."""
    figures = [
        f"{_name(name)} {_figure(name, value)}"
        for name, value in evidence.items()
        if name not in _NO_FIGURES and value is not None and not isinstance(value, Mapping)
    ]
    trials = evidence.get("trials")
    ids = [clean(str(trial)) for trial in trials] if isinstance(trials, list | tuple) else []
    told = [f"[{', '.join(ids)}]"] if ids else []
    return " ".join([*([", ".join(figures)] if figures else []), *told])


_UNITS = {
    "_bytes_per_s": lambda value: f"{format_bytes(value)}/s",
    "_bytes_per_batch": format_bytes,
    "_per_s": format_rate,
    "_bytes": format_bytes,
    "_fraction": percent_text,
    "_cores": cores_text,
    "_s": format_duration,
}


def _name(name: str) -> str:
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    shown = name.removesuffix(unit) if unit in {"_s", "_bytes"} else name
    return clean(shown.replace("_", " "))


def _figure(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return clean(str(value))
    if name.startswith("share") or name.endswith("_share") or "share_of" in name:
        return percent_text(value)
    unit = next((unit for unit in _UNITS if name.endswith(unit)), None)
    if unit is not None:
        return _UNITS[unit](value)
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _script_text(gain: Estimate | None) -> str:
    """What the fix would bring to the whole script."""
    return "" if gain is None else f"{_ratio_text(gain)} as fast as now, from start to end"


def _ratio_text(gain: Estimate) -> str:
    unsure = gain.low is not None and gain.high is not None and gain.low < 1 <= gain.high
    text = f"{'no sure gain, ' if unsure else ''}{gain.value:.2f}x"
    if gain.low is not None and gain.high is not None:
        text += f" ({gain.low:.2f}-{gain.high:.2f})"
    return text


def gain_text(gain: Estimate | None, evidence: Mapping[str, Any]) -> str:
    """What the fix would bring, and how that is known; empty where it isn't.

    A gain whose interval holds 1 may as well be none, and is not promised.
    """
    if gain is None:
        return ""
    source = _SOURCES.get(str(evidence.get("gain_from")), "")
    trials = evidence.get("gain_trials")
    ids = [clean(str(trial)) for trial in trials] if isinstance(trials, list | tuple) else []
    told = f" [{', '.join(ids)}]" if ids else ""
    at = clean(str(evidence.get("gain_at") or ""))
    where = f" {at}" if at else ""
    known = f", {source}" if source else ""
    return f"{_ratio_text(gain)} of the throughput now{where}{known}{told}"
