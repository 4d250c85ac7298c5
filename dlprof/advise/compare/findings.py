"""The parts that slow the slower side, as findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dlprof.advise.compare.parts import Part, PartCode
from dlprof.records import Estimate, Finding, FindingCode, Fix, Severity

_LEAST_LOSS = 0.02
"""Parts that cost less of the rate are no findings."""

_HIGH, _MEDIUM = 0.25, 0.05

_CODES: Mapping[PartCode, tuple[FindingCode, str]] = MappingProxyType(
    {
        "cpu": ("fetch.cpu", "Make __getitem__ cheaper, or take a machine with faster cores."),
        "cores": ("cpu.affinity", "Let the job run on more CPUs: affinity mask, cpuset, taskset."),
        "quota": ("cpu.quota", "Raise the CPU quota of the job's cgroup or container."),
        "neighbours": ("cpu.neighbours", "Move the neighbours, or reserve cores for this job."),
        "storage": ("fetch.io", "Bring the data to faster storage or into memory, or add workers."),
        "receive": ("main.receive", "Send fewer and larger tensors per batch."),
        "copy": ("transfer.link", "Pin memory, and look at the link with dlprof transfer."),
        "step": ("consumer", "The step is the limit; the loader is not what to change."),
    }
)


def findings(parts: Sequence[Part], slower: str, trials: Sequence[str]) -> tuple[Finding, ...]:
    """One finding for each part that slows the slower side, by what it costs.

    Args:
        parts: Of the comparison.
        slower: ``a`` or ``b``.
        trials: Ids of the slower side's trials.
    """
    sign = -1 if slower == "b" else 1
    losses = [(1 - math.exp(-max(0.0, sign * part.log_ratio.value)), part) for part in parts]
    losses.sort(key=lambda row: -row[0])
    return tuple(
        _finding(part, cost, sign, trials)
        for cost, part in losses
        if cost >= _LEAST_LOSS and part.code in _CODES
    )


def _finding(part: Part, cost: float, sign: int, trials: Sequence[str]) -> Finding:
    code, advice = _CODES[part.code]
    ends = [end for end in (part.log_ratio.low, part.log_ratio.high) if end is not None]
    unsure = bool(ends) and min(sign * end for end in ends) <= 0
    return Finding(
        code=code,
        severity=_severity(cost),
        title=part.title,
        explanation=part.explanation,
        evidence={"a": part.a, "b": part.b, "trials": list(trials)},
        fix=Fix(text=advice),
        predicted_gain=None if part.alone is None else Estimate(value=part.alone),
        cost=cost,
        doubtful="Its interval reaches to no difference." if unsure else "",
    )


def _severity(cost: float) -> Severity:
    if cost >= _HIGH:
        return "high"
    return "medium" if cost >= _MEDIUM else "low"
