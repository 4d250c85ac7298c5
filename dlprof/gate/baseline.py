"""Stored history: is a run worse than the last runs on the same kind of machine?

A baseline knows nothing of what the machine did while the run was measured, so it advises where
``dlprof check --against`` decides. The rule: with ``y`` the logarithm of a figure, and median and
spread ``s`` of the last ``K`` runs, it is worse if ``y - median`` is above
``max(ln(1 + T), t(K - 1, 0.99) * s * sqrt(1 + 1 / K))``: Student's one-sided prediction bound for
one more run. ``s`` counts as 1 % at least, since a few equal runs don't prove that none differs.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from dlprof.gate.look import fraction_of
from dlprof.gate.plan import ALL_GATES
from dlprof.gate.wording import METRICS, VIEW_NAMES, percent, sentence
from dlprof.records.gate import (
    BaselineEntry,
    BaselineKey,
    BaselineRule,
    GateName,
    GateResult,
    GateState,
    ReasonCode,
    Verdict,
    ViewFigures,
)
from dlprof.stats import t_quantile

JUDGED: tuple[GateName, ...] = ("service",)
"""What a baseline is held against by default: wall time differs between machines of one model by
far more than code does."""

MOST_ENTRIES = 50
"""Entries of one key that a file keeps; older ones go when a new one is added."""

_BLIND_FACTOR = 2.0
"""A history whose spread could hide a slowdown of this many thresholds can't pass a run."""


def comparable(history: Iterable[BaselineEntry], key: BaselineKey) -> list[BaselineEntry]:
    """The entries that a run with this key may be compared with, oldest first."""
    return sorted(
        (entry for entry in history if entry.key == key),
        key=lambda entry: (entry.recorded_at, entry.commit),
    )


def key_difference(history: Iterable[BaselineEntry], key: BaselineKey) -> str:
    """In what the key differs from the most alike one of the history, in words.

    Entries of other targets are the last to be named; empty without any entry.
    """
    differences = [_key_fields(entry.key, key) for entry in history]
    closest = min(differences, key=lambda names: ("target" in names, len(names)), default={})
    return ", ".join(f"{name} {was} instead of {now}" for name, (was, now) in closest.items())


_WORDS: Mapping[str, str] = MappingProxyType(
    {"cpu_model": "CPU model", "available_cores": "available cores", "os": "OS"}
)


def _key_fields(stored: BaselineKey, key: BaselineKey) -> dict[str, tuple[object, object]]:
    """The fields in which two keys differ, with the stored value and the present one."""
    pairs = (
        (field.name, getattr(stored, field.name), getattr(key, field.name))
        for field in dataclasses.fields(BaselineKey)
    )
    return {_WORDS.get(name, name): (was, now) for name, was, now in pairs if was != now}


def judge_baseline(
    entry: BaselineEntry,
    history: Iterable[BaselineEntry],
    rule: BaselineRule | None = None,
    metrics: Collection[GateName] = JUDGED,
) -> Verdict:
    """What the stored history says of a run.

    Args:
        entry: The run.
        history: All stored entries, in any order; those with another key are left out.
        rule: How to judge.
        metrics: What to judge; each view by itself.

    Returns:
        A verdict whose state is ``no_baseline`` where the history has too few runs that can be
        compared; its explanation says which part of the key differs.
    """
    rule = rule or BaselineRule()
    stored = list(history)
    before = [other for other in comparable(stored, entry.key) if other != entry]
    if not before:
        return _no_baseline("other_machine", _nothing_comparable(stored, entry.key))
    if len(before) < rule.least_runs:
        have = f"{len(before)} comparable run{'s' if len(before) > 1 else ''} stored"
        return _no_baseline("too_few_runs", f"{have}, {rule.least_runs} are needed")
    gates = [
        _judge_metric(name, entry, before[-rule.runs :], rule)
        for name in ALL_GATES
        if name in metrics
    ]
    state = _worst(gate.state for gate in gates)
    return Verdict(
        state=state,
        explanation=next(gate.explanation for gate in gates if gate.state == state),
        gates=tuple(gates),
        error_bound=(1 - rule.confidence) * sum(len(gate.views) for gate in gates),
        notes=(f"Compared with {min(len(before), rule.runs)} earlier runs on this machine.",),
    )


def _nothing_comparable(stored: Sequence[BaselineEntry], key: BaselineKey) -> str:
    if not stored:
        return "the baseline is empty"
    return (
        f"the baseline holds other runs only; the most alike differs in {_difference(stored, key)}"
    )


def _difference(stored: Sequence[BaselineEntry], key: BaselineKey) -> str:
    return key_difference(stored, key) or "nothing: it is this very run"


def _no_baseline(reason: ReasonCode, detail: str) -> Verdict:
    gate = _result("service", "no_baseline", reason, (), detail)
    text = f"There is no comparable baseline: {detail}."
    return Verdict(state="no_baseline", explanation=text, gates=(gate,))


def _worst(states: Iterable[GateState]) -> GateState:
    ranks: Mapping[GateState, int] = {"fail": 3, "inconclusive": 2, "no_baseline": 1, "pass": 0}
    return max(states, key=ranks.__getitem__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A figure held against those of earlier runs.

    Attributes:
        state: What it says by itself.
        figures: For people.
    """

    state: GateState
    figures: ViewFigures


_REASONS: Mapping[GateState, ReasonCode] = MappingProxyType(
    {"fail": "slower", "pass": "not_slower", "inconclusive": "spread"}
)


def _judge_metric(
    name: GateName, entry: BaselineEntry, before: Sequence[BaselineEntry], rule: BaselineRule
) -> GateResult:
    """One metric; every view of it that enough earlier runs have."""
    views = []
    for view in VIEW_NAMES:
        key = f"{name}.{view}"
        logs = [math.log(other.figures[key]) for other in before if _has(other, key)]
        if _has(entry, key) and len(logs) >= rule.least_runs:
            views.append(_judge_view(view, math.log(entry.figures[key]), logs, rule))
    if not views:
        return _result(name, "inconclusive", "not_measured", (), "")
    state = _worst(view.state for view in views)
    views.sort(key=lambda view: view.state != state)
    limit = views[0].figures.limit_text
    detail = f"earlier runs vary so much that only a slowdown beyond {limit} would show"
    return _result(name, state, _REASONS[state], [view.figures for view in views], detail)


def _has(entry: BaselineEntry, key: str) -> bool:
    """Whether an entry has a figure whose logarithm can be taken."""
    figure = entry.figures.get(key)
    return figure is not None and 0 < figure < math.inf


def _judge_view(name: str, log: float, logs: Sequence[float], rule: BaselineRule) -> _View:
    """One figure against the same of earlier runs, as logarithms."""
    runs = len(logs)
    middle = statistics.median(logs)
    spread = max(rule.least_spread, statistics.stdev(logs))
    bound = t_quantile(rule.confidence, runs - 1) * spread * math.sqrt(1 + 1 / runs)
    threshold = math.log1p(rule.threshold)
    limit, shift = max(threshold, bound), log - middle
    state: GateState = "inconclusive"
    if shift > limit:
        state = "fail"
    elif shift <= threshold and limit <= math.log1p(_BLIND_FACTOR * rule.threshold):
        state = "pass"
    figures = ViewFigures(
        view=name,
        quads=runs,
        base=math.exp(middle),
        change=math.exp(log),
        shift=fraction_of(shift),
        low=fraction_of(shift - bound),
        high=fraction_of(shift + bound),
        limit=fraction_of(limit),
        text=f"{percent(fraction_of(shift))} on the median of {runs} runs",
        limit_text=percent(fraction_of(limit), signed=False),
    )
    return _View(state=state, figures=figures)


def _result(
    name: GateName,
    state: GateState,
    reason: ReasonCode,
    views: Sequence[ViewFigures],
    detail: str,
) -> GateResult:
    return GateResult(
        name=name,
        label=METRICS[name].label,
        state=state,
        reason=reason,
        explanation=sentence(name, reason, views, detail),
        unit=METRICS[name].unit,
        views=tuple(views),
    )
