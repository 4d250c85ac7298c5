"""How a gate's figures read: one sentence that says what came out, with the figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dlprof.records.gate import GateName, ReasonCode, ViewFigures
from dlprof.units import format_bytes, format_duration

_MOST_PERCENT = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name and unit.

    Attributes:
        label: For people.
        unit: ``s`` or ``bytes``.
    """

    label: str
    unit: str = "s"


METRICS: Mapping[GateName, Metric] = MappingProxyType(
    {
        "service": Metric("Service time"),
        "receive": Metric("Receiving batches"),
        "wall": Metric("Wall time"),
        "startup": Metric("Start-up"),
        "epoch_turnover": Metric("Epoch turnover"),
        "memory": Metric("Peak memory", "bytes"),
        "shared_memory": Metric("Peak shared memory", "bytes"),
    }
)
"""What people read for each metric."""

VIEW_NAMES: Mapping[str, str] = MappingProxyType(
    {"mean": "mean", "low_quartile": "lower-quartile batch", "value": ""}
)
"""What people read for each view; empty where there is only one."""


def percent(fraction: float, *, signed: bool = True) -> str:
    """A fraction as ``+9.8 %``; whole where it is large.

    >>> percent(0.0977), percent(-0.004), percent(12.0), percent(0.05, signed=False)
    ('+9.8 %', '-0.4 %', '+1,200 %', '5 %')
    """
    hundred = max(-_MOST_PERCENT, min(_MOST_PERCENT, 100 * fraction))
    if not signed:
        return f"{hundred:.3g} %"
    if abs(hundred) < 0.05:
        return "0.0 %"
    return f"{hundred:+,.1f} %" if abs(hundred) < 99.95 else f"{hundred:+,.0f} %"


def seconds_text(seconds: float) -> str:
    """A time with three digits, since differences of a few percent are to be seen.

    >>> seconds_text(0.0123456), seconds_text(4.2e-06), seconds_text(2), seconds_text(100)
    ('12.3 ms', '4.20 us', '2.00 s', '1 min 40 s')
    """
    for below, factor, unit in ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms"), (99.95, 1, "s")):
        if 0 < abs(seconds) < below:
            scaled = factor * seconds
            decimals = max(0, 2 - math.floor(math.log10(max(1, abs(scaled) * 1.0005))))
            return f"{scaled:.{decimals}f} {unit}"
    return format_duration(seconds)


def figure_text(value: float | None, unit: str) -> str:
    """A figure in its unit; ``-`` for a missing one."""
    if value is None or unit == "bytes":
        return format_bytes(value)
    return seconds_text(value)


def amount(value: float, unit: str) -> str:
    """A difference in its unit with its sign: ``+1.00 s``, ``-12.0 MiB``."""
    text = figure_text(abs(value), unit)
    if text in {"0 s", "0 B"}:
        return text
    return f"{'-' if value < 0 else '+'}{text}"


def figures_text(
    shift: float, low: float, high: float, *, unit: str | None, base: float | None
) -> str:
    """A shift with its interval: ``+9.8 % (+8.1 to +11.6 %)``.

    Args:
        shift: The estimate.
        low: Lower end; not finite where there is none.
        high: Upper end, likewise.
        unit: Of the figures; ``None`` for fractions.
        base: The base's figure, for the percentage beside an amount.
    """
    if unit is None:
        ends = f"{percent(low).removesuffix(' %')} to {percent(high)}"
        return f"{percent(shift)} ({ends})" if _known(low, high) else percent(shift)
    text = amount(shift, unit)
    if _known(low, high):
        text += f" ({amount(low, unit)} to {amount(high, unit)})"
    if base is not None and base > 0 and math.isfinite(shift / base):
        text += f", {percent(shift / base)}"
    return text


def _known(low: float, high: float) -> bool:
    return math.isfinite(low) and math.isfinite(high)


def sentence(name: GateName, reason: ReasonCode, views: Sequence[ViewFigures], detail: str) -> str:
    """Why a gate says what it says.

    Args:
        name: The metric.
        reason: Why.
        views: The figures, the deciding one first; may be empty.
        detail: What a reason needs beside the figures.
    """
    label = METRICS[name].label
    figures, limit = (views[0].text, views[0].limit_text) if views else ("", "")
    if views and VIEW_NAMES.get(views[0].view):
        label += f" ({VIEW_NAMES[views[0].view]})"
    return _SENTENCES[reason](label, figures, limit, detail)


_Sentence = Callable[[str, str, str, str], str]


def _undecided(label: str, figures: str, limit: str, detail: str) -> str:
    return f"{label}: {figures} can't be told from the limit of {limit} {detail}."


_SENTENCES: Mapping[ReasonCode, _Sentence] = MappingProxyType(
    {
        "not_slower": lambda label, figures, limit, _: (
            f"{label}: {figures}, within the limit of {limit}."
        ),
        "slower": lambda label, figures, limit, _: (
            f"{label}: {figures}, beyond the limit of {limit}."
        ),
        "undecided": _undecided,
        "contended": lambda label, figures, limit, detail: (
            f"{label}: {figures} against a limit of {limit}, but {detail}, so it can't decide."
        ),
        "settings_differ": lambda label, figures, limit, detail: (
            f"{label}: {figures} against a limit of {limit}, but the loader's settings differ "
            f"({detail}), so it can't decide."
        ),
        "too_few_quads": lambda label, _, __, detail: f"{label}: measured too little, {detail}.",
        "not_measured": lambda label, *_: f"{label} was not measured.",
        "unusable_blocks": lambda label, _, __, detail: (
            f"{label}: too many blocks gave no figures ({detail})."
        ),
        "zero_time": lambda label, *_: (
            f"{label}: the blocks took no time that the clock can tell; "
            "choose a target that does more, or longer blocks."
        ),
        "too_few_batches": lambda label, _, __, detail: (
            f"{label}: blocks of fewer than {detail} batches are too short; make them longer."
        ),
        "different_data": lambda label, *_: (
            f"{label}: the two sides loaded different numbers of samples, so they can't be "
            "compared; make both load the same data."
        ),
        "too_few_runs": lambda label, _, __, detail: f"{label}: {detail}.",
        "other_machine": lambda label, _, __, detail: f"{label}: {detail}.",
        "spread": lambda label, figures, limit, detail: (
            f"{label}: {figures} against a limit of {limit}, but {detail}."
        ),
    }
)
