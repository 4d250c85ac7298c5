"""Figures for services that keep them: Bencher, github-action-benchmark, GitLab, Prometheus."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from dlprof.records.gate import CheckReport, GateName, GateResult, ViewFigures
from dlprof.report.gate.wording import short, target_names, view_text

_NS = 1e9
_MEASURES: Mapping[tuple[GateName, str], str] = MappingProxyType(
    {
        ("service", "mean"): "latency",
        ("service", "low_quartile"): "service-low-quartile",
        ("receive", "value"): "receive",
        ("wall", "value"): "wall",
        ("startup", "value"): "startup",
        ("epoch_turnover", "value"): "epoch-turnover",
        ("memory", "value"): "memory",
        ("shared_memory", "value"): "shared-memory",
    }
)
"""Bencher's slugs: its own ``latency`` (nanoseconds) for the service time a sample."""

_BY_SAMPLE = frozenset({"service", "receive", "wall"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of the change.

    Attributes:
        target: The target's name.
        gate: The metric.
        view: The view.
        value: The base's figure and the estimated shift: seconds or bytes.
        low: With the lower end of the shift; ``None`` where there is none.
        high: With the upper end.
    """

    target: str
    gate: GateResult
    view: ViewFigures
    value: float
    low: float | None
    high: float | None


def _figures(check: CheckReport) -> Iterator[_Figure]:
    for target, checked in zip(target_names(check), check.targets, strict=True):
        for gate in checked.verdict.gates:
            for view in gate.views:
                value = _shifted(gate, view, view.shift)
                if value is not None and (gate.name, view.view) in _MEASURES:
                    low, high = (_shifted(gate, view, end) for end in (view.low, view.high))
                    yield _Figure(
                        target=target, gate=gate, view=view, value=value, low=low, high=high
                    )


def _shifted(gate: GateResult, view: ViewFigures, shift: float | None) -> float | None:
    """The base's figure made worse by a shift, on whichever scale it is; never less than none."""
    if view.base is None or shift is None:
        return None
    value = view.base * (1 + shift) if gate.scale == "ratio" else view.base + shift
    return max(0.0, value) if math.isfinite(value) else None


def render_bencher(check: CheckReport) -> str:
    """Bencher Metric Format: seconds as nanoseconds, bytes as bytes, throughput a second."""
    document: dict[str, dict[str, dict[str, float]]] = {}
    for figure in _figures(check):
        measures = document.setdefault(figure.target, {})
        scale = 1.0 if figure.gate.unit == "bytes" else _NS
        ends = {"value": figure.value, "lower_value": figure.low, "upper_value": figure.high}
        measures[_MEASURES[figure.gate.name, figure.view.view]] = {
            key: value * scale for key, value in ends.items() if value is not None
        }
        if figure.gate.name == "wall" and figure.value > 0:
            measures["throughput"] = {"value": 1 / figure.value}
    return _json(document)


def render_benchmark_action(check: CheckReport) -> str:
    """``customSmallerIsBetter`` of github-action-benchmark."""
    return _json(
        [
            {
                "name": f"{figure.target}: {short(figure.gate.label)}{view_text(figure.view)}",
                "unit": _unit(figure.gate),
                "value": figure.value * (1 if figure.gate.unit == "bytes" else _NS),
                "extra": short(figure.gate.explanation),
            }
            | _range(figure)
            for figure in _figures(check)
        ]
    )


def _unit(gate: GateResult) -> str:
    if gate.unit == "bytes":
        return "bytes"
    return "ns/sample" if gate.name in _BY_SAMPLE else "ns"


def _range(figure: _Figure) -> dict[str, str]:
    """The longer arm of the interval, as the action shows one."""
    if figure.low is None or figure.high is None:
        return {}
    arm = max(figure.value - figure.low, figure.high - figure.value)
    return {"range": f"± {arm * (1 if figure.gate.unit == 'bytes' else _NS):.6g}"}


def _json(document: object) -> str:
    return json.dumps(document, allow_nan=False, indent=2)


_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("dlprof_check_seconds", "seconds", "Time of the change, a sample where it is loading."),
    ("dlprof_check_bytes", "bytes", "Memory of the change, peak."),
    ("dlprof_check_shift_ratio", "ratio", "How much worse than the base, as a fraction."),
    ("dlprof_check_failed", "", "1 where the metric failed the check."),
)


def render_openmetrics(check: CheckReport) -> str:
    """OpenMetrics text, for ``artifacts:reports:metrics`` of GitLab and for Prometheus."""
    samples: dict[str, list[str]] = {name: [] for name, _, _ in _FAMILIES}
    for figure in _figures(check):
        labels = _labels(figure)
        family = "dlprof_check_bytes" if figure.gate.unit == "bytes" else "dlprof_check_seconds"
        samples[family].append(f"{family}{labels} {figure.value!r}")
        if figure.gate.scale == "ratio":
            ratio = f"dlprof_check_shift_ratio{labels} {figure.view.shift!r}"
            samples["dlprof_check_shift_ratio"].append(ratio)
    for target, checked in zip(target_names(check), check.targets, strict=True):
        for gate in checked.verdict.gates:
            labels = _label_text(target=target, metric=gate.name)
            failed = int(gate.state == "fail")
            samples["dlprof_check_failed"].append(f"dlprof_check_failed{labels} {failed}")
    lines: list[str] = []
    for name, unit, text in _FAMILIES:
        if samples[name]:
            lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else [])]
            lines += [f"# HELP {name} {text}", *samples[name]]
    return "\n".join([*lines, "# EOF", ""])


def _labels(figure: _Figure) -> str:
    return _label_text(target=figure.target, metric=figure.gate.name, view=figure.view.view)


def _label_text(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_label(value)}"' for name, value in labels.items()) + "}"


def _label(value: str) -> str:
    """As OpenMetrics escapes the values of labels."""
    return short(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
