"""How single figures and configurations read: short texts that every renderer shares."""

from __future__ import annotations

from typing import Any

from dlprof.records import Config, Estimate
from dlprof.units import MISSING, format_rate


def settings_text(config: Config) -> str:
    """A configuration under torch's names, defaults left out.

    >>> settings_text(Config(num_workers=4, prefetch_factor=2, pin_memory=True))
    'num_workers=4, prefetch_factor=2, pin_memory=True'
    """
    parts: list[tuple[str, Any]] = [("num_workers", config.num_workers)]
    if config.prefetch_factor is not None:
        parts.append(("prefetch_factor", config.prefetch_factor))
    parts += [
        (name, True)
        for name in ("pin_memory", "persistent_workers")
        if getattr(config, name) is True
    ]
    if not config.in_order:
        parts.append(("in_order", False))
    parts += [
        (name, getattr(config, name))
        for name in ("batch_size", "start_method", "sharing_strategy", "worker_threads")
        if getattr(config, name) is not None
    ]
    return ", ".join(f"{name}={value}" for name, value in parts)


def interval_text(estimate: Estimate | None) -> str:
    """The 95 % interval of a rate, such as ``1,190-1,280``; ``-`` where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return MISSING
    return f"{format_rate(estimate.low)}-{format_rate(estimate.high)}"


def rate_text(estimate: Estimate | None, unit: str = "samples/s") -> str:
    """A rate with its unit and interval: ``1,234 samples/s (1,190-1,280)``."""
    if estimate is None:
        return MISSING
    interval = interval_text(estimate)
    text = f"{format_rate(estimate.value)} {unit}"
    return text if interval == MISSING else f"{text} ({interval})"


def ratio_text(ratio: float | None) -> str:
    """A speed relative to another: ``0.98x``, ``12.3x``; ``-`` for a missing one."""
    if ratio is None:
        return MISSING
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:,.1f}x"


def percent_text(fraction: float | None) -> str:
    """A fraction of 0 to 1 as ``12 %``; something below half a percent as ``< 1 %``."""
    if fraction is None:
        return MISSING
    return "< 1 %" if 0 < fraction < 0.005 else f"{fraction * 100:.0f} %"


def cores_text(cores: float | None) -> str:
    """A number of cores, such as ``1.9`` or ``12``; ``-`` for a missing one."""
    if cores is None:
        return MISSING
    return f"{cores:.1f}" if cores < 9.95 else f"{cores:.0f}"
