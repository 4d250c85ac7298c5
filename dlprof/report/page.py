"""A document as one HTML file: nothing is loaded, light or dark as the reader has it.

Charts, plots and timelines are SVG: to scale, with axes, and every whisker as long as it is.

The page is built as a tree of elements, so that no text of a run file can become markup; its style
and its script are the only ones that a browser obeys, by their hashes.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element, SubElement, tostring

from dlprof.report import document as doc
from dlprof.report.text import clean, clean_lines, clean_within, shortened
from dlprof.units import counted, format_duration, format_rate

MOST_ROWS = 500  # of a table: a page of thousands takes seconds to open


def to_html(document: doc.Document) -> str:
    """The whole page."""
    page = Element("html", lang="en")
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    assets = files("dlprof.report") / "assets"
    style = (assets / "page.css").read_text(encoding="utf-8") + stage_rules()
    script = (assets / "page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    title = f"dlprof: {clean(document.title)}"
    SubElement(head, "title").text = title
    body = SubElement(page, "body")
    SubElement(body, "h1").text = title
    answer = SubElement(body, "section", {"class": "answer"})
    for block in document.answer:
        _add(answer, block)
    for section in (*document.pictures, *document.details(), *document.appendix):
        SubElement(body, "h2").text = clean(section.title)
        for block in section.blocks:
            _add(body, block)
    # What is in style and script is no text to escape: it is put in behind the tree is written.
    text = tostring(page, encoding="unicode", method="html")
    text = text.replace("</head>", f"<style>{style}</style></head>", 1)
    text = text.replace("</body>", f"<script>{script}</script></body>", 1)
    return f"<!DOCTYPE html>\n{text}\n"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _add(parent: Element, block: doc.Block) -> None:
    match block:
        case doc.Plot() | doc.Chart():
            parent.append(draw(block))
        case doc.Table():
            _add_table(parent, block)
        case doc.Card():
            made = SubElement(parent, "article", {"class": "card"})
            title = SubElement(made, "h3")
            title.text = clean(block.title)
            if block.code:
                SubElement(title, "span", {"class": "soft"}).text = f" {clean(block.code)}"
            if block.level:
                kind = {"class": f"level {block.tone}"}
                SubElement(title, "span", kind).text = clean(block.level)
            for each in block.blocks:
                _add(made, each)
        case doc.Code():
            frame = SubElement(SubElement(parent, "div", {"class": "block"}), "pre")
            SubElement(frame, "code").text = clean_lines(block.text)
        case doc.Text():
            _add_words(SubElement(parent, "p"), block.words)
        case doc.Items():
            items = SubElement(parent, "ul")
            for words in block.items:
                _add_words(SubElement(items, "li"), words)
        case doc.FactList():
            rows = SubElement(parent, "dl", {"class": "facts"})
            for label, words in block.rows:
                SubElement(rows, "dt").text = clean(label)
                _add_words(SubElement(rows, "dd"), words)


def _add_words(parent: Element, words: doc.Words) -> None:
    for span in doc.spans(words):
        kind: dict[str, str] = {"class": span.tone} if span.tone else {}
        made = SubElement(parent, "a" if span.link else "span", kind)
        if span.link:
            made.set("href", span.link)
        made.text = clean_within(span.text)


def _add_table(parent: Element, table: doc.Table) -> None:
    made = SubElement(SubElement(parent, "div", {"class": "wide"}), "table")
    columns = [column for column in table.columns if column.is_shown]
    kinds = [{"class": "left"} if column.left else {} for column in columns]
    head = SubElement(SubElement(made, "thead"), "tr")
    for column, kind in zip(columns, kinds, strict=True):
        SubElement(head, "th", kind).text = clean(column.title)
    body = SubElement(made, "tbody")
    rows = list(zip(*(column.cells for column in columns), strict=True))
    shown, rest = rows[:MOST_ROWS], rows[MOST_ROWS:]
    for place, cells in enumerate(shown):
        tone = table.tones[place] if table.tones else ""
        row = SubElement(body, "tr", {"class": tone} if tone else {})
        for cell, kind, column in zip(cells, kinds, columns, strict=True):
            made_cell = SubElement(row, "td", kind)
            if column.links:
                made_cell = SubElement(made_cell, "a", href=column.links[place])
            made_cell.text = clean(cell)
    if rest:
        are = "is" if len(rest) == 1 else "are"
        more = f"{counted(len(rest), 'more row')} {are} in the run file (-o run.csv has all)."
        SubElement(parent, "p", {"class": "soft"}).text = more
    if notes := doc.notes_on(columns):
        _add(parent, notes)


_Place = Callable[[float, float], tuple[float, float]]  # from figures to a place in the picture

_WIDTHS = {"broad": 860.0, "narrow": 400.0}
"""Each picture is drawn for wide windows and for phones; the page shows the one that fits."""

_ROW, _THICK, _TOP = 22.0, 14.0, 6.0
_LETTER = 7.3  # width of a letter of 12 px where the font is wide, or has one width for all

_HEIGHT = 300.0
_LEFT = 70.0
_COLORS = {
    "dispatch": "#9d755d",
    "index queue": "#bab0ac",
    "fetch": "#4c78a8",
    "collate": "#f58518",
    "serialize": "#b8a13a",
    "result queue": "#9aa9b8",
    "deserialize": "#72b7b2",
    "pin": "#b279a2",
    "reorder wait": "#e45756",
    "copy to device": "#ff9da6",
    "wait": "#d1495b",
    "step": "#54a24b",
    "free batch": "#54a24b",
    "CPU": "#4c78a8",
    "run-queue delay": "#e0a339",
    "blocked": "#c05a7d",
    "wait for the GIL": "#7a5195",
}
"""A color for each stage, the same in every report."""

_OTHERS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#b8a13a")


def stage_rules() -> str:
    """The style of each stage and series."""
    names = {_stage(name): color for name, color in _COLORS.items()}
    names |= {f"series-{place}": color for place, color in enumerate(_OTHERS)}
    return "".join(
        f".{name} {{ fill: {color}; }} .path.{name} {{ fill: none; stroke: {color}; }}\n"
        for name, color in names.items()
    )


def _stage(name: str) -> str:
    return f"stage-{name.replace(' ', '-')}"


def _kinds(names: Iterable[str]) -> dict[str, str]:
    """A class for each name: that of its stage, or one by its place."""
    others = iter(range(1_000_000))
    return {
        name: _stage(name) if name in _COLORS else f"series-{next(others) % len(_OTHERS)}"
        for name in dict.fromkeys(names)
    }


def draw(block: doc.Chart | doc.Plot) -> Element:
    """A figure with its caption, and the picture in it, once for each kind of window."""
    figure = Element("figure")
    named = (block.title,) if isinstance(block, doc.Plot) else (block.unit, block.label)
    title = ", by ".join(filter(None, named))
    if title:
        SubElement(figure, "figcaption").text = clean(title)
    for kind, width in reversed(_WIDTHS.items()):
        svg = SubElement(figure, "svg")
        if isinstance(block, doc.Plot):
            _draw_plot(svg, block, width)
        else:
            _draw_bars(svg, block, width)
        svg.set("class", kind)
        if kind == "narrow":  # on phones nothing hovers
            for each in list(svg.iter()):
                for said in each.findall("title"):
                    each.remove(said)
        name = Element("title")
        name.text = clean(title) or "chart"
        svg.insert(0, name)
    return figure


def _resize(svg: Element, width: float, height: float) -> None:
    box = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    svg.attrib.update(box, role="img")


def _label(
    svg: Element, text: str, left: float, base: float, anchor: str = "start", kind: str = ""
) -> None:
    place = {"x": f"{left:.1f}", "y": f"{base:.1f}", "text-anchor": anchor}
    SubElement(svg, "text", place | ({"class": kind} if kind else {})).text = clean(text)


def _rectangle(
    svg: Element, left: float, top: float, width: float, kind: str, height: float = _THICK
) -> Element:
    place = {"x": f"{left:.1f}", "y": f"{top:.1f}", "class": kind}
    size = {"width": f"{max(0.0, width):.1f}", "height": f"{height:.1f}"}
    return SubElement(svg, "rect", {**place, **size})


def _path(svg: Element, steps: str, kind: str) -> None:
    SubElement(svg, "path", {"d": steps, "class": kind})


def ticks(low: float, high: float) -> list[float]:
    """Round figures from one to another, about five of them."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next((n * size for n in (1, 2, 5) if n * size >= raw), 10 * size)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _legend(svg: Element, kinds: dict[str, str], left: float, width: float) -> float:
    """Draw it above all else, and say where that is."""
    at, top = left, _TOP
    for name, kind in kinds.items():
        room = 22 + _LETTER * len(name) + 14
        if at + room > width and at > left:
            at, top = left, top + 20
        _rectangle(svg, at, top + 1, 11.0, kind, height=11.0)
        _label(svg, name, at + 16, top + 11)
        at += room
    return top + 20 if kinds else _TOP


def _draw_bars(svg: Element, chart: doc.Chart, width: float) -> None:
    kinds = _kinds(p.name for bar in chart.bars for p in bar.pieces if p.name)
    rows = _ROW * len(chart.bars)
    labels = [shortened(bar.label, round(width / 20)) for bar in chart.bars]
    left = 16 + _LETTER * max(map(len, labels), default=0)
    behind = ["  ".join(filter(None, (bar.figure, bar.note))) for bar in chart.bars]
    right = width - 16 - _LETTER * max(map(len, behind), default=0)
    # Share of a picture that its bars keep: what is behind them gives way.
    if right - left < 0.3 * width:
        behind = [bar.figure for bar in chart.bars]
        right = width - 16 - _LETTER * max(map(len, behind), default=0)
    top = _legend(svg, kinds, left, width)
    _resize(svg, width, top + _TOP + rows + _ROW)
    shares = chart.kind == "share"  # whose bars are all of one length
    ends = [0.0, *(e for b in chart.bars for e in (b.length, b.low, b.high) if e is not None)]
    ends = [0.0, 1.0] if shares else ends
    low, high = min(ends), max(ends)
    scale = (right - left) / (high - low) if high > low else 0.0
    zero = left - low * scale
    shown = format_duration if chart.kind == "timeline" else format_rate
    for tick in ticks(low, high):
        at = zero + tick * scale
        _path(svg, f"M{at:.1f} {top:.1f}V{top + rows:.1f}", "grid")
        if chart.kind == "timeline" or (chart.kind == "bars" and not kinds):
            _label(svg, shown(tick), at, top + rows + 14, "middle", "soft")
    for place, bar in enumerate(chart.bars):
        middle = top + _ROW * (place + 0.5)
        _label(svg, labels[place], left - 8, middle + 4, "end")
        tone = bar.tone
        if chart.kind == "signed":
            tone = tone or ("bad" if bar.length < 0 else "good")
        by = scale / (bar.length or 1.0) if shares else scale
        _bar(svg, dataclasses.replace(bar, tone=tone), kinds, zero, by, middle)
        _label(svg, behind[place], right + 10, middle + 4)


def _bar(
    svg: Element, bar: doc.Bar, kinds: dict[str, str], zero: float, scale: float, middle: float
) -> None:
    at = zero
    tone = f"{bar.tone}-fill" if bar.tone in {"good", "warn", "bad"} else "bar"
    for piece in bar.pieces:
        width = piece.length * scale
        if piece.begin is not None:  # what takes no time is seen, too
            at, width = zero + piece.begin * scale, max(0.4, width)
        kind = kinds.get(piece.name, tone)
        start = at if width >= 0 else at + width
        drawn = _rectangle(svg, start, middle - _THICK / 2, abs(width), kind)
        said = " ".join(filter(None, (bar.label, piece.name, piece.figure or bar.figure)))
        SubElement(drawn, "title").text = clean(said)
        at += width
    if bar.low is not None and bar.high is not None:
        left, end = zero + bar.low * scale, zero + bar.high * scale
        caps = "".join(f"M{x:.1f} {middle - 4:.1f}V{middle + 4:.1f}" for x in (left, end))
        _path(svg, f"M{left:.1f} {middle:.1f}H{end:.1f}{caps}", "whisker")


def _draw_plot(svg: Element, plot: doc.Plot, width: float) -> None:
    kinds = _kinds(each.name for each in plot.series)
    top = _legend(svg, kinds, _LEFT, width) + 16
    _resize(svg, width, top + _HEIGHT + 44)
    points = [point for each in plot.series for point in each.points]
    rates = [point.y for point in points]
    ends = [end for y in rates for end in (y.value, y.low, y.high) if end is not None]
    xs = [point.x for point in points] or [0.0]
    if plot.diagonal:
        xs = ends = [*xs, *ends]
    x_range, y_range = _range(xs), _range([0.0, *ends])
    bottom, right = top + _HEIGHT, width - 20

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return _LEFT + across * (right - _LEFT), bottom - up * _HEIGHT

    for tick in ticks(*y_range):
        _path(svg, f"M{_LEFT:.1f} {at(0, tick)[1]:.1f}H{right:.1f}", "grid")
        _label(svg, format_rate(tick), _LEFT - 6, at(0, tick)[1] + 4, "end", "soft")
    for tick in ticks(*x_range):
        _path(svg, f"M{at(tick, 0)[0]:.1f} {top:.1f}V{bottom:.1f}", "grid")
        _label(svg, f"{tick:,g}", at(tick, 0)[0], bottom + 16, "middle", "soft")
    _label(svg, plot.x, right, bottom + 34, "end", "soft")
    _label(svg, plot.y, _LEFT, top - 6, "start", "soft")
    if plot.diagonal:
        low, high = max(x_range[0], y_range[0]), min(x_range[1], y_range[1])
        (x1, y1), (x2, y2) = at(low, low), at(high, high)
        _path(svg, f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", "grid")
    for each in plot.series:
        if each.line and len(each.points) > 1:
            steps = "L".join("{:.1f} {:.1f}".format(*at(p.x, p.y.value)) for p in each.points)
            _path(svg, f"M{steps}", f"path {kinds[each.name]}")
            if width < _WIDTHS["broad"]:  # its points are there to be hovered
                continue
        for point in each.points:
            _point(svg, point, at, kinds[each.name], small=each.line)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _point(svg: Element, point: doc.Point, at: _Place, kind: str, *, small: bool) -> None:
    x, y = at(point.x, point.y.value)
    if point.y.low is not None and point.y.high is not None:
        ends = [at(point.x, end)[1] for end in (point.y.low, point.y.high)]
        caps = "".join(f"M{x - 4:.1f} {end:.1f}H{x + 4:.1f}" for end in ends)
        _path(svg, f"M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}{caps}", "whisker")
    radius = "2.2" if small else "4.5"
    tone = f"{point.tone}-fill" if point.tone in {"good", "warn", "bad"} else kind
    circle = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius, "class": f"shape {tone}"}
    SubElement(SubElement(svg, "circle", circle), "title").text = clean(point.label)
