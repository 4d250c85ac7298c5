"""A small plot of throughput against ``num_workers``, drawn in characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dlprof.report.summary import PICK, Row
from dlprof.units import format_rate

_MOST_BARS = 20
_WIDEST_BAR = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MARK = " <- pick"
_TITLE = "samples/s by num_workers, best of the other settings"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of the plot.

    Attributes:
        num_workers: Which.
        rate: The best samples per second of all configurations with so many workers.
        picked: Whether the pick is among those.
    """

    num_workers: int
    rate: float
    picked: bool


def bars(rows: Iterable[Row]) -> tuple[Bar, ...]:
    """The best rate for each ``num_workers``, in rising order.

    Args:
        rows: From ``summarize``.

    Returns:
        At most 20 bars: where there are more, evenly chosen ones, ends, best and pick among them.
    """
    found: dict[int, Bar] = {}
    for row in rows:
        if row.rate is None:
            continue
        workers = row.config.num_workers
        known = found.get(workers, Bar(num_workers=workers, rate=0.0, picked=False))
        found[workers] = Bar(
            num_workers=workers,
            rate=max(known.rate, row.rate.value),
            picked=known.picked or row.role == PICK,
        )
    return thinned(tuple(found[workers] for workers in sorted(found)))


def thinned(found: Sequence[Bar]) -> tuple[Bar, ...]:
    """At most 20 of the bars: evenly chosen ones, ends, best and pick among them."""
    if len(found) <= _MOST_BARS:
        return tuple(found)
    best = max(range(len(found)), key=lambda i: found[i].rate)
    kept = {i for i, bar in enumerate(found) if bar.picked} | {best}
    evenly = _MOST_BARS - len(kept)
    kept |= {round(i * (len(found) - 1) / (evenly - 1)) for i in range(evenly)}
    return tuple(found[i] for i in sorted(kept))


class ThroughputPlot:
    """Rich renderable: one bar per ``num_workers``."""

    def __init__(self, shown: Sequence[Bar], title: str = _TITLE) -> None:
        """Make the plot.

        Args:
            shown: From ``bars``.
            title: What stands above it.
        """
        self._bars = shown
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._bars:
            return
        yield Text(self._title, style="bold")
        labels = [str(bar.num_workers) for bar in self._bars]
        figures = [format_rate(bar.rate) for bar in self._bars]
        left, right = max(map(len, labels)), max(map(len, figures))
        room = options.max_width - left - right - len(_MARK) - 3
        longest = max(1, min(_WIDEST_BAR, room))
        peak = max(bar.rate for bar in self._bars)
        for bar, label, figure in zip(self._bars, labels, figures, strict=True):
            length = longest * bar.rate / peak
            drawn = drawn_bar(length, ascii_only=options.ascii_only)
            line = Text(f"{label:>{left}} ", no_wrap=True)
            line.append(f"{drawn:<{longest}} ", style="green" if bar.picked else "cyan")
            line.append(f"{figure:>{right}}{_MARK if bar.picked else ''}")
            yield line


def drawn_bar(length: float, *, ascii_only: bool) -> str:
    """A bar of so many cells, in eighths of a cell where the terminal can show them."""
    return _ascii_bar(length) if ascii_only else _block_bar(length)


def _block_bar(length: float) -> str:
    """A bar in eighths of a cell."""
    whole, eighths = divmod(round(length * 8), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _ascii_bar(length: float) -> str:
    return "#" * round(length)
