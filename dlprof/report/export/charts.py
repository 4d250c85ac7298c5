"""Horizontal bars as SVG, for the HTML report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from dlprof.report.export.blocks import Bar, Chart
from dlprof.report.text import clean

_WIDTH, _LEFT, _RIGHT = 860.0, 250.0, 110.0
_ROW, _THICK, _TOP = 22.0, 14.0, 6.0
_LEGEND_ROW = 20.0
_ENTRY = 84.0
_COLOURS = 8
_LONGEST_LABEL = 36


def draw(chart: Chart) -> Element:
    """A figure with the chart and its title.

    Args:
        chart: With at least one bar.
    """
    figure = Element("figure")
    SubElement(figure, "figcaption").text = clean(chart.title)
    names = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.pieces if name))
    legend = math.ceil(len(names) / _per_row()) * _LEGEND_ROW
    height = _TOP * 2 + legend + _ROW * len(chart.bars)
    box = {"viewBox": f"0 0 {_WIDTH:g} {height:g}", "width": f"{_WIDTH:g}", "height": f"{height:g}"}
    svg = SubElement(figure, "svg", {**box, "role": "img"})
    SubElement(svg, "title").text = clean(chart.title)
    _add_legend(svg, names)
    longest = max((_reach(bar) for bar in chart.bars), default=0.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest if longest > 0 else 0.0
    for place, bar in enumerate(chart.bars):
        _add_bar(svg, bar, names, scale, top=_TOP + legend + _ROW * place)
    return figure


def _per_row() -> int:
    return int((_WIDTH - _LEFT) // _ENTRY)


def _reach(bar: Bar) -> float:
    """The right end of what is drawn; an interval that reaches far beyond is cut."""
    length = sum(value for _, value in bar.pieces)
    return length if bar.high is None else max(length, min(bar.high, 1.5 * length))


def _add_legend(svg: Element, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        row, column = divmod(place, _per_row())
        left, top = _LEFT + _ENTRY * column, _TOP + _LEGEND_ROW * row
        _rectangle(svg, left, top + 1, 11.0, f"s{place % _COLOURS}", height=11.0)
        _label(svg, name, left + 16, top + 11)


def _add_bar(svg: Element, bar: Bar, names: Sequence[str], scale: float, *, top: float) -> None:
    middle = top + _ROW / 2
    _label(svg, _shortened(bar.label), _LEFT - 8, middle + 4, anchor="end")
    left = _LEFT
    for name, value in bar.pieces:
        kind = f"s{names.index(name) % _COLOURS}" if name else "bar"
        width = value * scale
        drawn = _rectangle(
            svg, left, middle - _THICK / 2, width, f"{kind} marked" if bar.marked else kind
        )
        SubElement(drawn, "title").text = clean(f"{bar.label}: {name or bar.figure}")
        left += width
    if bar.low is not None and bar.high is not None:
        reach = _reach(bar)
        ends = [_LEFT + max(0.0, min(end, reach)) * scale for end in (bar.low, bar.high)]
        path = f"M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}" + "".join(
            f"M{end:.1f} {middle - 4:.1f}V{middle + 4:.1f}" for end in ends
        )
        SubElement(svg, "path", {"d": path, "class": "ends"})
        left = max(left, ends[1])
    _label(svg, bar.figure, left + 8, middle + 4)


def _rectangle(
    svg: Element, left: float, top: float, width: float, kind: str, *, height: float = _THICK
) -> Element:
    place = {"x": f"{left:.1f}", "y": f"{top:.1f}"}
    size = {"width": f"{max(0.0, width):.1f}", "height": f"{height:.1f}"}
    return SubElement(svg, "rect", {**place, **size, "class": kind})


def _label(svg: Element, text: str, left: float, base: float, *, anchor: str = "start") -> None:
    place = {"x": f"{left:.1f}", "y": f"{base:.1f}", "text-anchor": anchor}
    SubElement(svg, "text", place).text = clean(text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 3] + "..."
