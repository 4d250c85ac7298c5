"""What the GPUs did while trials were measured, in words."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from dlprof.records import GpuUsage, Trial
from dlprof.report.labels import percent_text
from dlprof.report.text import clean
from dlprof.units import MISSING, format_bytes

CARD_HEAD = (
    *("card", "kernels active", "SMs active", "memory", "received/s", "link", "clock", "power"),
    *("held down by", "other processes"),
)


def card_rows(trials: Iterable[Trial]) -> list[tuple[str, ...]]:
    """A row for each card under ``CARD_HEAD``: medians over trials, the peak of the memory.

    Args:
        trials: Those that were measured; of others nothing is known.
    """
    by_card: dict[int, list[GpuUsage]] = {}
    for trial in trials:
        for usage in trial.usage.gpu:
            by_card.setdefault(usage.index, []).append(usage)
    return [_row(usages) for _, usages in sorted(by_card.items())]


def card_text(usage: GpuUsage) -> str:
    """One card in one trial, as far as anything is known of it; else why not."""
    parts = []
    if usage.kernel_active_fraction is not None:
        parts.append(f"kernels {percent_text(usage.kernel_active_fraction)} of the time")
    if usage.memory_used_bytes is not None:
        parts.append(f"{format_bytes(usage.memory_used_bytes)} in use")
    if usage.pcie_rx_bytes_per_s is not None:
        parts.append(f"{format_bytes(usage.pcie_rx_bytes_per_s)}/s received")
    if usage.throttled_fraction and usage.throttle_reasons:
        held = percent_text(usage.throttled_fraction)
        parts.append(f"clocks held down {held} by {clean(', '.join(usage.throttle_reasons))}")
    if usage.other_processes:
        held = format_bytes(usage.other_memory_bytes)
        parts.append(f"{_processes(usage.other_processes)} of others ({held})")
    if not parts:
        return clean(next(iter(usage.unavailable.values()), MISSING))
    return ", ".join(parts)


def _row(usages: Sequence[GpuUsage]) -> tuple[str, ...]:
    held = dict.fromkeys(words for usage in usages for words in usage.throttle_reasons)
    clock = _median(usages, lambda usage: usage.sm_clock_hz)
    power = _median(usages, lambda usage: usage.power_w)
    return (
        f"{usages[-1].index} {clean(usages[-1].name)}",
        percent_text(_median(usages, lambda usage: usage.kernel_active_fraction)),
        percent_text(_median(usages, lambda usage: usage.sm_active_fraction)),
        format_bytes(_most(usages, lambda usage: usage.memory_used_bytes)),
        format_bytes(_median(usages, lambda usage: usage.pcie_rx_bytes_per_s)),
        _link(usages),
        MISSING if clock is None else f"{clock / 1e9:.2f} GHz",
        MISSING if power is None else f"{power:.0f} W",
        clean(", ".join(held)) or MISSING,
        _others(_most(usages, lambda usage: usage.other_processes)),
    )


def _link(usages: Sequence[GpuUsage]) -> str:
    generation = _most(usages, lambda usage: usage.pcie_generation)
    width = _most(usages, lambda usage: usage.pcie_width)
    if generation is None and width is None:
        return MISSING
    return f"gen {generation or MISSING} x{width or MISSING}"


def _others(processes: int | None) -> str:
    return MISSING if processes is None else _processes(processes)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _median(usages: Sequence[GpuUsage], get: Callable[[GpuUsage], float | None]) -> float | None:
    known = [value for usage in usages if (value := get(usage)) is not None]
    return statistics.median(known) if known else None


def _most(usages: Sequence[GpuUsage], get: Callable[[GpuUsage], int | None]) -> int | None:
    return max((value for usage in usages if (value := get(usage)) is not None), default=None)
