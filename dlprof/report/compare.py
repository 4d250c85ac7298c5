"""Two runs compared, as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dlprof.advise.compare import Comparison, Part, SideInfo
from dlprof.records import SCHEMA_VERSION, Estimate
from dlprof.report.labels import rate_text, settings_text
from dlprof.report.layout import INDENT, Hanging, bullet
from dlprof.report.text import clean
from dlprof.store.codec import to_json
from dlprof.units import MISSING

_BAR = 12
_FULL_BAR = 1.0
"""Natural logarithm that fills a bar if no part is larger."""

_LEAST_COLUMNS = 2


def compare_document(comparison: Comparison) -> str:
    """What ``dlprof compare --json`` prints.

    Args:
        comparison: What was found.
    """
    document = {"schema_version": SCHEMA_VERSION, **to_json(comparison)}
    return json.dumps(document, allow_nan=False, indent=2)


def render_comparison(comparison: Comparison) -> RenderableType:
    """The comparison for a terminal or a pipe.

    Args:
        comparison: What was found.
    """
    lines: list[RenderableType] = [
        Hanging("", Text(clean(comparison.verdict), style="bold")),
        Text(),
        *_sides(comparison),
        Hanging(INDENT, Text(clean(comparison.pairing))),
        Text(),
        PartsTable(comparison.parts),
        Text(),
        *(
            bullet(Text(f"{part.title}: {clean(part.explanation)}"))
            for part in comparison.parts
            if part.code != "remainder"
        ),
    ]
    unknown = [
        bullet(Text(f"{clean(title)}: {clean(why)}")) for title, why in comparison.unknown.items()
    ]
    lines += _section("Not told by these runs; what they make is in the remainder", unknown)
    lines += _section("Doubts", [bullet(Text(clean(doubt))) for doubt in comparison.doubts])
    return Group(*lines)


def _section(title: str, items: Sequence[RenderableType]) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *items] if items else []


def _sides(comparison: Comparison) -> Iterable[RenderableType]:
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        yield Hanging(f"{INDENT}{name}  ", Text(_side(side)))


def _side(side: SideInfo) -> str:
    noisy = f", {side.noisy} of {len(side.trials)} trials noisy" if side.noisy else ""
    return (
        f"{clean(side.target)} on {clean(side.hostname)} ({clean(side.cpu_model)}),"
        f" {settings_text(side.config)}: {rate_text(side.samples_per_s)}{noisy}"
        f" [{clean(side.run_file)}]"
    )


class PartsTable:
    """Rich renderable: the factors, which multiply to the whole, as far as there is room."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Make the table.

        Args:
            parts: Of the comparison.
        """
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = _rows(self._parts)
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        shown = len(widths)
        while shown > _LEAST_COLUMNS and sum(w + 2 for w in widths[:shown]) > options.max_width:
            shown -= 1
        for place, row in enumerate(rows):
            cells = [f"{row[0]:<{widths[0]}}"]
            cells += [f"{text:>{widths[k]}}" for k, text in enumerate(row[1:4], start=1)]
            line = "  ".join([*cells, row[4]][:shown]).rstrip()
            style = "bold" if place in {0, len(rows) - 1} else ""
            yield Text(INDENT + line, style=style, no_wrap=True, overflow="ignore")


def _rows(parts: Sequence[Part]) -> list[list[str]]:
    """Heading, parts and the whole: title, factor, interval, logarithm and a bar of that."""
    logs = [part.log_ratio.value for part in parts]
    full = max([_FULL_BAR, *map(abs, logs)])
    rows = [
        [
            part.title,
            factor_text(part.factor.value),
            interval(part.factor),
            f"{part.log_ratio.value:+.3f}",
            _bar(part.log_ratio.value / full),
        ]
        for part in parts
    ]
    whole = ["B over A", factor_text(_product(parts)), "", f"{sum(logs):+.3f}", ""]
    return [["part", "factor", "95 %", "log", f"{'slower':>{_BAR}}|faster"], *rows, whole]


def _product(parts: Sequence[Part]) -> float:
    """The product of all factors."""
    product = 1.0
    for part in parts:
        product *= part.factor.value
    return product


def factor_text(value: float) -> str:
    """A factor such as ``0.52x``, with more digits where it is very small or large."""
    return f"{value:.2f}x" if 0.095 <= value < 99.5 else f"{value:.2g}x"


def interval(estimate: Estimate) -> str:
    """The interval of a factor; ``-`` where there is none."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{estimate.low:.2f}-{estimate.high:.2f}"


def _bar(share: float) -> str:
    """A bar to the left for what slows, to the right for what speeds up."""
    length = round(abs(share) * _BAR)
    left, right = ("#" * length, "") if share < 0 else ("", "#" * length)
    return f"{left:>{_BAR}}|{right}"
