"""JUnit XML, which every CI system shows: a suite per target, a case per metric."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from dlprof.records.gate import CheckReport, GateResult, TargetCheck
from dlprof.report.gate.wording import not_judged, rows, short, target_names


def render_junit(check: CheckReport) -> str:
    """The document. FAIL is a failure, all that could not be told is skipped.

    A failure that was allowed, or that is only a warning, is skipped with the reason.
    """
    suites = ET.Element("testsuites", name="dlprof check")
    for name, target in zip(target_names(check), check.targets, strict=True):
        _suite(suites, check, name, target)
    for key in ("tests", "failures", "skipped"):
        suites.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    suites.set("errors", "0")
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(suites: ET.Element, check: CheckReport, name: str, target: TargetCheck) -> None:
    suite = ET.SubElement(suites, "testsuite", name=name)
    for gate in target.verdict.gates:
        _judged(_case(suite, name, gate.label), check, gate)
    for label, why in not_judged(check).items():
        message = short(f"{label} was not judged: {why}.", 1000)
        ET.SubElement(_case(suite, name, label), "skipped", message=message)
    counts = {"failures": "failure", "skipped": "skipped"}
    suite.set("tests", str(len(suite)))
    for key, tag in counts.items():
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("errors", "0")
    suite.set("time", f"{target.measured_s:.3f}")
    if check.started_at:
        suite.set("timestamp", short(check.started_at).removesuffix("Z"))


def _case(suite: ET.Element, name: str, label: str) -> ET.Element:
    """A case of a target for a metric."""
    return ET.SubElement(
        suite, "testcase", classname=f"dlprof.check.{name}", name=short(label), time="0"
    )


def _judged(case: ET.Element, check: CheckReport, gate: GateResult) -> None:
    message = short(gate.explanation, 1000)
    if gate.state == "fail" and not (check.override or check.warn_only):
        failure = ET.SubElement(case, "failure", message=message, type=gate.reason)
        failure.text = "\n".join((message, *_figures(gate)))
    elif gate.state == "fail":
        reason = f"allowed: {short(check.override)}" if check.override else "only a warning"
        ET.SubElement(case, "skipped", message=f"{message} ({reason})")
    elif gate.state != "pass":
        ET.SubElement(case, "skipped", message=message)
    output = ET.SubElement(case, "system-out")
    output.text = "\n".join((message, *_figures(gate)))


def _figures(gate: GateResult) -> list[str]:
    return [
        f"{row.metric}{row.view}: {row.base} -> {row.change}, {row.shift}; limit {row.limit}"
        for row in rows([gate])
        if gate.views
    ]
