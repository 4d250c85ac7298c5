"""Latency and bandwidth from the times of copies of several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlprof.records.transfer import CopyMode, LinkFit, Memory
from dlprof.stats import median_interval

_FEWEST_SIZES = 3


def line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """``(latency_s, s_per_byte)`` of the line through times of copies.

    Least squares of the *relative* errors, so that the small sizes, which alone tell the latency,
    count as much as the large ones. A latency below 0 is none: the line then goes through 0.

    Args:
        points: ``(bytes, seconds)``, both positive, of at least two sizes.

    Raises:
        ValueError: There are fewer than two sizes.
    """
    rows = [(1 / seconds, size / seconds) for size, seconds in points]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, sa, sb = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError("a line needs two different sizes")
    latency_s = (sa * bb - sb * ab) / determinant
    if latency_s <= 0:
        return 0.0, sb / bb
    return latency_s, (sb * aa - sa * ab) / determinant


def fit(
    memory: Memory, mode: CopyMode, passes: Sequence[Sequence[tuple[int, float]]]
) -> LinkFit | None:
    """The line of one way to copy, with intervals over passes that each measured all sizes.

    Args:
        memory: Of the copies.
        mode: Of the copies.
        passes: ``(bytes, seconds per copy)`` of each size, for each pass.

    Returns:
        The fit; ``None`` with fewer than three sizes, or where no line with a bandwidth fits.
    """
    lines = []
    for points in passes:
        if len({size for size, _ in points}) < _FEWEST_SIZES:
            return None
        latency_s, s_per_byte = line(points)
        if s_per_byte > 0:
            lines.append((latency_s, 1 / s_per_byte))
    if not lines:
        return None
    latency = median_interval([each for each, _ in lines])
    bandwidth = median_interval([each for _, each in lines])
    return LinkFit(
        memory=memory,
        mode=mode,
        latency_s=latency,
        bytes_per_s=bandwidth,
        worst_error=_worst_error(passes, latency.value, bandwidth.value),
    )


def _worst_error(
    passes: Sequence[Sequence[tuple[int, float]]], latency_s: float, bytes_per_s: float
) -> float:
    times: dict[int, list[float]] = {}
    for points in passes:
        for size, seconds in points:
            times.setdefault(size, []).append(seconds)
    medians = {size: median_interval(each).value for size, each in times.items()}
    return max(
        abs((latency_s + size / bytes_per_s) / seconds - 1) for size, seconds in medians.items()
    )
