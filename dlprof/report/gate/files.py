"""The files that a check writes for CI systems and services, by format."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from xml.etree import ElementTree as ET

from dlprof.errors import DlprofError
from dlprof.gate.wording import METRICS
from dlprof.records import Estimate
from dlprof.records.gate import CheckReport, GateResult, ViewFigures
from dlprof.report.document import Document, FactList
from dlprof.report.gate.check import (
    check_document,
    check_report,
    fault_report,
    headline,
    not_judged,
    rows,
    sentence,
    short,
    target_name,
    view_text,
)
from dlprof.report.markdown import to_markdown
from dlprof.report.page import to_html
from dlprof.report.text import clean_lines
from dlprof.units import NS


def _figures(check: CheckReport) -> Iterator[tuple[GateResult, ViewFigures, Estimate]]:
    """The change's figures with their intervals: seconds or bytes."""
    for gate in check.target.verdict.gates:
        for view in gate.views:
            value = _shifted(gate, view, view.shift)
            if value is not None:
                low, high = (_shifted(gate, view, end) for end in (view.low, view.high))
                yield gate, view, Estimate(value=value, low=low, high=high)


def _shifted(gate: GateResult, view: ViewFigures, shift: float | None) -> float | None:
    """The base's figure made worse by a shift, on whichever scale it is; never less than none."""
    if view.base is None or shift is None:
        return None
    value = view.base * (1 + shift) if gate.scale == "ratio" else view.base + shift
    return max(0.0, value) if math.isfinite(value) else None


def render_bencher(check: CheckReport) -> str:
    """Bencher Metric Format: seconds as nanoseconds, bytes as bytes, throughput a second."""
    measures: dict[str, dict[str, float]] = {}
    for gate, shown, figure in _figures(check):
        scale = 1.0 if gate.unit == "bytes" else NS
        ends = {"value": figure.value, "lower_value": figure.low, "upper_value": figure.high}
        slug, view = gate.name.replace("_", "-"), shown.view.replace("_", "-")
        if slug == "service":  # Bencher's own slug for the first, of nanoseconds
            slug = "latency" if view == "mean" else f"service-{view}"
        measures[slug] = {key: value * scale for key, value in ends.items() if value is not None}
        if gate.name == "wall" and figure.value > 0:
            measures["throughput"] = {"value": 1 / figure.value}
    found = {target_name(check): measures} if measures else {}
    return json.dumps(found, allow_nan=False, indent=2)


def render_benchmark_action(check: CheckReport) -> str:
    """``customSmallerIsBetter`` of github-action-benchmark."""
    found, name = [], target_name(check)
    for gate, view, figure in _figures(check):
        unit, scale = gate.unit, 1.0
        if unit == "s":
            unit, scale = "ns/sample" if METRICS[gate.name].by_sample else "ns", float(NS)
        entry = {
            "name": f"{name}: {short(gate.label)}{view_text(view)}",
            "unit": unit,
            "value": figure.value * scale,
            "extra": short(gate.explanation),
        }
        if figure.low is not None and figure.high is not None:
            # The longer arm of the interval, as the action shows one.
            arm = max(figure.value - figure.low, figure.high - figure.value)
            entry["range"] = f"± {arm * scale:.6g}"
        found.append(entry)
    return json.dumps(found, allow_nan=False, indent=2)


_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("dlprof_check_seconds", "seconds", "Time of the change, a sample where it is loading."),
    ("dlprof_check_bytes", "bytes", "Memory of the change, peak."),
    ("dlprof_check_shift_ratio", "ratio", "How much worse than the base, as a fraction."),
    ("dlprof_check_failed", "", "1 where the metric failed the check."),
)


def render_openmetrics(check: CheckReport) -> str:
    """OpenMetrics text, for ``artifacts:reports:metrics`` of GitLab and for Prometheus."""
    samples: dict[str, list[str]] = {name: [] for name, _, _ in _FAMILIES}
    target = target_name(check)
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

    def add(family: str, value: object, **labels: str) -> None:
        known = {"target": target, **labels}
        named = (f'{name}="{short(text).translate(escaped)}"' for name, text in known.items())
        samples[family].append(f"{family}{{{','.join(named)}}} {value!r}")

    for gate, view, figure in _figures(check):
        labels = {"metric": gate.name, "view": view.view}
        unit = "bytes" if gate.unit == "bytes" else "seconds"
        add(f"dlprof_check_{unit}", figure.value, **labels)
        if gate.scale == "ratio":
            add("dlprof_check_shift_ratio", view.shift, **labels)
    for gate in check.target.verdict.gates:
        add("dlprof_check_failed", int(gate.state == "fail"), metric=gate.name)
    lines: list[str] = []
    for name, unit, text in _FAMILIES:
        if samples[name]:
            lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else [])]
            lines += [f"# HELP {name} {text}", *samples[name]]
    return "\n".join([*lines, "# EOF", ""])


def render_junit(check: CheckReport) -> str:
    """The document. FAIL is a failure, all that is undecided is skipped.

    A failure that was allowed, or that is only a warning, is skipped with the reason.
    """
    suites, name = ET.Element("testsuites", name="dlprof check"), target_name(check)
    suite = ET.SubElement(suites, "testsuite", name=name)
    for gate in check.target.verdict.gates:
        _judged(_case(suite, name, gate.label), check, gate)
    for label, why in not_judged(check).items():
        message = sentence(f"{label} was not judged: {why}.")
        ET.SubElement(_case(suite, name, label), "skipped", message=message)
    suite.set("time", f"{check.target.measured_s:.3f}")
    if check.started_at:
        suite.set("timestamp", short(check.started_at).removesuffix("Z"))
    counted = {"tests": "testcase", "failures": "failure", "skipped": "skipped"}
    for each in (suite, suites):
        for key, tag in counted.items():
            each.set(key, str(len(each.findall(f".//{tag}"))))
        each.set("errors", "0")
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: ET.Element, name: str, label: str) -> ET.Element:
    case = {"classname": f"dlprof.check.{name}", "name": short(label), "time": "0"}
    return ET.SubElement(suite, "testcase", case)


def _judged(case: ET.Element, check: CheckReport, gate: GateResult) -> None:
    message = sentence(gate.explanation)
    figures = [
        f"{metric}{view}: {base} -> {change}, {shift}; limit {limit}"
        for metric, view, base, change, shift, limit, _ in rows([gate] if gate.views else [])
    ]
    text = "\n".join((message, *figures))
    if gate.state == "fail" and not (check.override or check.warn_only):
        ET.SubElement(case, "failure", message=message, type=gate.reason).text = text
    elif gate.state == "fail":
        reason = f"allowed: {short(check.override)}" if check.override else "only a warning"
        ET.SubElement(case, "skipped", message=f"{message} ({reason})")
    elif gate.state != "pass":
        ET.SubElement(case, "skipped", message=message)
    ET.SubElement(case, "system-out").text = text


MOST_SUMMARY_BYTES = 1024 * 1024 - 4096
"""GitHub takes 1024 kB for the summary of a step, other tools' lines among them."""

MOST_COMMENT_BYTES = 64_000  # GitHub takes 65,536 characters for a comment

MARKER = "<!-- dlprof check -->"
"""First line of a comment, by which the next run finds it to replace it."""


def render_summary(check: CheckReport | DlprofError) -> str:
    """What goes to ``$GITHUB_STEP_SUMMARY``."""
    whole = fault_report(check) if isinstance(check, DlprofError) else check_report(check)
    head = to_markdown(dataclasses.replace(whole, details=tuple), level=2)
    return head + _details(whole, MOST_SUMMARY_BYTES - len(head.encode()))


def render_comment(check: CheckReport) -> str:
    """A comment on a pull or merge request: five lines, all else folded away."""
    whole = check_report(check)
    facts, *folded = whole.answer
    if isinstance(facts, FactList):  # the title says the verdict, the table the other metrics
        left_out = FactList(tuple(row for row in facts.rows if row[0] == "Left out"))
        folded = [*([left_out] if left_out.rows else []), *folded]
        above = {"Verdict", "Also fails", "Left out"}
        unfolded = (row for row in facts.rows if row[0] not in above)
        facts = FactList(tuple(unfolded))
    answer = to_markdown(Document(title=whole.title, answer=(facts,)), level=3)
    drawn = f"\n{to_markdown(Document(title='', answer=tuple(folded)))}" if folded else ""
    head = f"{MARKER}\n{answer}\n<details><summary>Details</summary>\n{drawn}"
    end = "\n</details>\n"
    return head + _details(whole, MOST_COMMENT_BYTES - len((head + end).encode())) + end


def _details(whole: Document, most_bytes: int) -> str:
    """The details, where the place takes them: texts of the user's can be long."""
    parts = (Document(title=each.title, answer=each.blocks) for each in whole.details())
    text = "".join(f"\n{to_markdown(part, level=3)}" for part in parts)
    more = "\nThe details are in the JSON document.\n"
    return text if len(text.encode()) <= most_bytes else more


def render_annotation(check: CheckReport | DlprofError, *, fails: bool) -> str:
    """One workflow command that marks the target's line; empty for a check that passed."""
    level = "error" if fails else "warning"
    if isinstance(check, DlprofError):
        return f"::{level} title=dlprof::{_data(sentence(str(check)))}"
    if check.state == "pass":
        return ""
    target = check.target
    properties = {"title": f"dlprof: {headline(check)}"}
    if target.source_file:
        place = {"file": short(target.source_file)}
        if target.source_line is not None:
            place["line"] = str(target.source_line)
        properties = place | properties
    message = sentence(check.explanation)
    if check.override and check.state == "fail":
        message += f" Allowed: {short(check.override)}"
    values = {key: _data(value) for key, value in properties.items()}  # with more that is escaped
    listed = ",".join(
        f"{key}={value.replace(':', '%3A').replace(',', '%2C')}" for key, value in values.items()
    )
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner unescapes what stands behind the second ``::``."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def render_outputs(
    check: CheckReport | DlprofError,
    delimiter: Callable[[], str] = lambda: f"ghadelimiter_{secrets.token_hex(16)}",
) -> str:
    """Lines for ``$GITHUB_OUTPUT``, from which later steps read the verdict."""
    lines = []
    for name, value in _outputs(check).items():
        text = clean_lines(value)[:10_000]
        while (end := delimiter()) in text:
            continue
        lines.append(f"{name}<<{end}\n{text}\n{end}\n")
    return "".join(lines)


_OUTPUTS = ("verdict", "explanation", "target", "metric", "slower", "slower_low", "slower_high")


def _outputs(check: CheckReport | DlprofError) -> Mapping[str, str]:
    if isinstance(check, DlprofError):
        return dict.fromkeys(_OUTPUTS, "") | {"verdict": "error", "explanation": str(check)}
    state = check.state
    fitting = [gate for gate in check.target.verdict.gates if gate.state == state]
    # An undecided metric that nobody waits for decides nothing.
    decisive = next((gate for gate in fitting if gate.blocking or state != "inconclusive"), None)
    view = decisive.views[0] if decisive and decisive.views else None
    ratio = view if decisive and decisive.scale == "ratio" else None
    ends = (ratio.shift, ratio.low, ratio.high) if ratio else (None, None, None)
    shifts = ("" if each is None else f"{each:.6f}" for each in ends)
    metric = decisive.name if decisive else ""
    figures = (state, check.explanation, target_name(check), metric, *shifts)
    return dict(zip(_OUTPUTS, figures, strict=True))


RENDERERS: Mapping[str, Callable[[CheckReport], str]] = {
    "json": lambda check: check_document(check) + "\n",
    "html": lambda check: to_html(check_report(check)),
    "junit": render_junit,
    "markdown": render_comment,
    "bencher": render_bencher,
    "benchmark_action": render_benchmark_action,
    "openmetrics": render_openmetrics,
}
"""What makes the text of each format."""
