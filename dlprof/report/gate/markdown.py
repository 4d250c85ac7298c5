"""A check as Markdown: the summary of a job and the comment on a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dlprof.records.gate import CheckReport, TargetCheck
from dlprof.report.gate.wording import (
    STATE_WORDS,
    advice,
    headline,
    named_targets,
    not_judged,
    notes,
    rows,
    short,
    side_text,
    stage_lines,
    state_word,
)
from dlprof.units import format_duration

MOST_SUMMARY_BYTES = 1024 * 1024 - 4096
"""GitHub takes 1024 kB for the summary of a step, other tools' lines among them."""

MOST_COMMENT_BYTES = 64_000
"""GitHub takes 65,536 characters for a comment."""

MARKER = "<!-- dlprof check -->"
"""First line of a comment, by which the next run finds it to replace it."""

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$&])")
_LINKED = re.compile(r"([@#])")


def render_summary(check: CheckReport) -> str:
    """What goes to ``$GITHUB_STEP_SUMMARY``."""
    return _fitted(check, MOST_SUMMARY_BYTES)


def render_comment(check: CheckReport) -> str:
    """A comment on a pull or merge request."""
    return f"{MARKER}\n{_fitted(check, MOST_COMMENT_BYTES - len(MARKER) - 1)}"


def escaped(text: str) -> str:
    """A text from anywhere as Markdown that shows it as it is, and links and calls nobody."""
    return _LINKED.sub(r"\1<!-- -->", _SPECIAL.sub(r"\\\1", short(text)))


def _fitted(check: CheckReport, most_bytes: int) -> str:
    """The whole text, with as many targets, worst first, as the place takes."""
    parts = ["\n".join(_head(check)) + "\n"]
    end = f"\n{_foot(check)}\n"
    targets = named_targets(check)
    room = most_bytes - _size(parts[0]) - _size(end) - _size(_more(len(targets)))
    for place, (name, target) in enumerate(targets):
        section = "\n".join(("", *_target(name, target), ""))
        room -= _size(section)
        if room < 0:
            parts.append(_more(len(targets) - place))
            break
        parts.append(section)
    return "".join((*parts, end))


def _size(text: str) -> int:
    return len(text.encode())


def _more(count: int) -> str:
    return f"\n{count} more targets are in the JSON document.\n"


def _head(check: CheckReport) -> list[str]:
    lines = [
        f"## {state_word(check)}: {headline(check)}",
        "",
        escaped(check.explanation),
        "",
        f"{escaped(side_text(check.change))} against {escaped(side_text(check.base))}.",
    ]
    for sentence in not_judged(check).values():
        lines += ["", escaped(sentence)]
    if check.override:
        lines += ["", f"Allowed by --allow-regression: {escaped(check.override)}"]
    if advice(check):
        lines += ["", advice(check)]
    return lines


def _target(name: str, target: TargetCheck) -> list[str]:
    verdict = target.verdict
    table = [(r.metric, r.base, r.change, r.shift, r.limit, r.state) for r in rows(verdict.gates)]
    lines = [
        f"### {escaped(name)}: {STATE_WORDS[verdict.state]}",
        "",
        *_table(("metric", "base", "change", "worse by", "limit", "verdict"), table),
    ]
    stages = stage_lines(target)
    if stages:
        lines += ["", *_table(("stage", "change"), stages)]
    open_gates = [gate for gate in verdict.gates if gate.state != "pass"]
    remarks = [gate.explanation for gate in open_gates if gate.reason != "not_measured"]
    remarks += notes(target)
    if remarks:
        lines += ["", *(f"- {escaped(remark)}" for remark in remarks)]
    return lines


def _table(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    texts = [columns, rule, *([escaped(cell) for cell in row] for row in cells)]
    return [f"| {' | '.join(row)} |" for row in texts]


def _foot(check: CheckReport) -> str:
    where = escaped(check.machine.cpu_model) if check.machine else "an unknown machine"
    cores = f", {check.machine.usable_cores:g} cores" if check.machine else ""
    took = sum(target.measured_s for target in check.targets)
    versions = f"dlprof {escaped(check.dlprof_version)}, torch {escaped(check.torch_version)}"
    time = f"; measured for {format_duration(took)}" if took else ""
    return f"<sub>{versions}; {where}{cores}{time}</sub>"
