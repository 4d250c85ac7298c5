"""How a gate's figures read: one sentence that says what came out, with the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dlprof.records.gate import (
    GateName,
    GateResult,
    GateState,
    GateUnit,
    ReasonCode,
    StageShift,
    ViewFigures,
)
from dlprof.units import MISSING, NS, format_bytes, format_duration, scale_bytes


class Metric(NamedTuple):
    """A metric's name for people, its unit, and whether it is by the sample."""

    label: str
    unit: GateUnit = "s"
    by_sample: bool = False


METRICS: Mapping[GateName, Metric] = {
    "service": Metric("Service time", by_sample=True),
    "receive": Metric("Receiving batches", by_sample=True),
    "wall": Metric("Wall time", by_sample=True),
    "startup": Metric("Time to first batch"),
    "epoch_turnover": Metric("Epoch restart"),
    "memory": Metric("Peak memory", "bytes"),
    "shared_memory": Metric("Peak shared memory", "bytes"),
}
"""What people read for each metric."""

VIEW_NAMES: Mapping[str, str] = {
    "mean": "mean",
    "low_quartile": "lower-quartile batch",
    "value": "",
}
"""What people read for each view; empty where there is only one."""


_LONG_S = 99.95  # from which on times are shown in minutes and more

_SCALES = ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (_LONG_S, 1.0, "s"))
"""Of times below so many seconds: how often their unit goes into a second, and its name."""


def percent(fraction: float, *, signed: bool = True) -> str:
    """A fraction as ``+9.8%``; whole where it is large.

    >>> percent(0.0977), percent(-0.004), percent(12.0), percent(0.05, signed=False)
    ('+9.8%', '-0.4%', '+1,200%', '5%')
    >>> percent(0.9996, signed=False), percent(12.0, signed=False)
    ('100%', '1,200%')
    """
    hundred = max(-1e6, min(1e6, 100 * fraction))
    if not signed:
        return f"{hundred:.3g}%" if hundred < 999.5 else f"{hundred:,.0f}%"
    if abs(hundred) < 0.05:
        return "0.0%"
    return f"{hundred:+,.1f}%" if abs(hundred) < 99.95 else f"{hundred:+,.0f}%"


def seconds_text(seconds: float) -> str:
    """A time with three digits, since differences of a few percent are to be seen.

    >>> seconds_text(0.0123456), seconds_text(4.2e-06), seconds_text(2), seconds_text(100)
    ('12.3 ms', '4.20 µs', '2.00 s', '1 min 40 s')
    """
    if not 0 < abs(seconds) < _LONG_S:
        return format_duration(seconds)
    factor, unit, decimals = _scale_seconds(abs(seconds))
    return f"{factor * seconds:.{decimals}f} {unit}"


def _scale_seconds(size: float) -> tuple[float, str, int]:
    factor, name = next(((f, n) for below, f, n in _SCALES if 0 < size < below), (1.0, "s"))
    return factor, name, max(0, 2 - math.floor(math.log10(max(1, factor * size * 1.0005))))


def _scale_bytes(size: float) -> tuple[float, str, int]:
    each, name, decimals = scale_bytes(size)
    return 1 / each, name, decimals


class Unit(NamedTuple):
    """How figures of a unit are written."""

    text: Callable[[float], str]  # one for people
    # What figures up to some size are shown in: their factor, its name, and decimals.
    scale: Callable[[float], tuple[float, str, int]]
    headline: str  # what it means where only metrics of this unit fail
    base: str  # its name in OpenMetrics
    help: str  # what OpenMetrics says of figures in it
    fine: str  # what tools get that show whole numbers best
    factor: int  # how many of these it has


UNITS: Mapping[GateUnit, Unit] = {
    "s": Unit(
        text=seconds_text,
        scale=_scale_seconds,
        headline="Data loading got slower",
        base="seconds",
        help="Time of the change, a sample where it is loading.",
        fine="ns",
        factor=NS,
    ),
    "bytes": Unit(
        text=format_bytes,
        scale=_scale_bytes,
        headline="Data loading takes more memory",
        base="bytes",
        help="Memory of the change, peak.",
        fine="bytes",
        factor=1,
    ),
}


def stage_line(stage: StageShift) -> str:
    """What a stage took and takes, such as ``2.00 ms to 2.20 ms``.

    The change's figure is the base's and the shift: medians of each side may differ the other way.
    """
    change_s = stage.base_s + stage.shift_s
    change_s = change_s if change_s > 0 else stage.change_s
    return f"{seconds_text(stage.base_s)} to {seconds_text(change_s)}"


def figure_text(value: float | None, unit: GateUnit) -> str:
    """A figure in its unit; ``-`` for a missing one."""
    return MISSING if value is None else UNITS[unit].text(value)


def amount(value: float, unit: GateUnit) -> str:
    """A difference in its unit with its sign: ``+1.00 s``, ``-12.0 MiB``."""
    text = figure_text(abs(value), unit)
    if text in {"0 s", "0 B"}:
        return text
    return f"{'-' if value < 0 else '+'}{text}"


def figures_text(
    shift: float, low: float, high: float, *, unit: GateUnit | None, base: float | None
) -> str:
    """A shift with its interval: ``+9.8% (+8.1 to +11.6%)``, ``+1.0 MiB (-1.1 to +2.5 MiB)``.

    An end is not finite where there is none. ``unit`` is ``None`` for fractions; before an amount
    is its percentage of the ``base``, as it is the amount that limits are in.
    """
    known = math.isfinite(low) and math.isfinite(high)
    if unit is None:
        ends = f" ({percent(low).removesuffix('%')} to {percent(high)})" if known else ""
        return f"{percent(shift)}{ends}"
    text = amount(shift, unit)
    if known:  # all in the unit of the largest
        factor, name, decimals = UNITS[unit].scale(max(abs(shift), abs(low), abs(high)))
        figures = (round(factor * each, decimals) for each in (shift, low, high))
        one, least, most = (f"{each:+,.{decimals}f}" if each else "0" for each in figures)
        text = f"{one} {name} ({least} to {most} {name})"
    if base is not None and base > 0 and math.isfinite(shift / base):
        text = f"{percent(shift / base)}, {text}"
    return text


def gate_result(
    name: GateName,
    state: GateState,
    reason: ReasonCode,
    views: Sequence[ViewFigures] = (),
    detail: str = "",
    **more: Any,
) -> GateResult:
    """What a metric says, with its sentence; ``more`` are further fields of the result."""
    metric = METRICS[name]
    first = {"figures": views[0].text, "limit": views[0].limit_text} if views else {}
    view = VIEW_NAMES.get(views[0].view) if views else ""
    label = f"{metric.label} ({view})" if view else metric.label
    return GateResult(
        name=name,
        label=metric.label,
        state=state,
        reason=reason,
        explanation=_SENTENCES[reason].format(label=label, detail=detail, **first),
        unit=metric.unit,
        views=tuple(views),
        **more,
    )


_SENTENCES: Mapping[ReasonCode, str] = {
    "not_slower": "{label}: {figures}, within the limit of {limit}.",
    "slower": "{label}: {figures}, beyond the limit of {limit}.",
    "undecided": ("{label}: {figures} can't be distinguished from the limit of {limit} {detail}."),
    "contended": (
        "{label}: {figures} against a limit of {limit}, but {detail}, so it can't decide."
    ),
    "settings_differ": (
        "{label}: {figures} against a limit of {limit}, but the loader's settings differ "
        "({detail}), so it can't decide."
    ),
    "cores_differ": (
        "{label}: {figures} against a limit of {limit}, but {detail}, whose speeds may "
        "differ, so it can't decide."
    ),
    "unconfirmed": (
        "{label}: {figures}, beyond the limit of {limit}, in one pair of processes, but a "
        "second pair shows {detail}, so it can't decide."
    ),
    "too_few_quads": "{label}: too little was measured, {detail}.",
    "not_measured": "{label} was not measured.",
    "unusable_blocks": "{label}: too many blocks gave no figures ({detail}).",
    "zero_time": (
        "{label}: the blocks took less time than the clock can resolve; "
        "choose a target that does more, or longer blocks."
    ),
    "too_few_batches": (
        "{label}: blocks of fewer than {detail} batches are too short; make them longer."
    ),
    "different_data": (
        "{label}: the two sides loaded different numbers of samples, so they can't be "
        "compared; make both load the same data."
    ),
    "too_few_runs": "{label}: {detail}.",
    "other_machine": "{label}: {detail}.",
    "spread": "{label}: {figures} against a limit of {limit}, but {detail}.",
}
