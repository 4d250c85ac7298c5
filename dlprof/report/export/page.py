"""A run as one HTML file: nothing is loaded, nothing runs, light or dark as the reader has it.

The page is built as a tree of elements, so that no text of a run file can become markup.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from dlprof.records import Run
from dlprof.report.export.blocks import Block, Bullets, Chart, Code, Table, Text
from dlprof.report.export.charts import draw
from dlprof.report.export.content import sections, title_of, with_recommendation
from dlprof.report.text import clean

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6b7b; --line: #d8dee5;
  --paper: #ffffff; --bar: #7fa8d1; --mark: #2f9e6e; --ends: #1c2733;
  --s0: #4c78a8; --s1: #f58518; --s2: #54a24b; --s3: #b8a13a;
  --s4: #e45756; --s5: #72b7b2; --s6: #9d755d; --s7: #b279a2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --soft: #9aa9b8; --line: #36424e;
  --paper: #151b21; --bar: #4a76a3; --mark: #3cb583; --ends: #e3e9ef; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } .text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
pre { background: color-mix(in srgb, var(--ink) 6%, transparent); padding: .7rem 1rem;
  border-radius: .4rem; overflow-x: auto; }
li, p { overflow-wrap: anywhere; } figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .9rem; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.bar { fill: var(--bar); } .marked { fill: var(--mark); }
.ends { stroke: var(--ends); stroke-width: 1.5; fill: none; }
"""
_STYLE += "".join(f".s{place} {{ fill: var(--s{place}); }}\n" for place in range(8))


def render_html(run: Run) -> str:
    """The whole report.

    Args:
        run: What was measured.
    """
    run = with_recommendation(run)
    title = f"dlprof: {title_of(run)}"
    page = Element("html", lang="en")
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    # Should a browser ever see something to load or run in it, it may not.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    _said(head, "title", title)
    _said(head, "style", _STYLE)
    body = SubElement(page, "body")
    _said(body, "h1", title)
    for section in sections(run):
        _said(body, "h2", section.title)
        for block in section.blocks:
            _add(body, block)
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _said(parent: Element, tag: str, text: str, **attributes: str) -> Element:
    made = SubElement(parent, tag, attributes)
    made.text = text
    return made


def _add(body: Element, block: Block) -> None:
    match block:
        case Text():
            _said(body, "p", clean(block.text))
        case Bullets():
            items = SubElement(body, "ul")
            for item in block.items:
                _said(items, "li", clean(item))
        case Code():
            _said(SubElement(body, "pre"), "code", "\n".join(block.lines))
        case Table():
            _add_table(body, block)
        case Chart():
            body.append(draw(block))


def _add_table(body: Element, table: Table) -> None:
    made = SubElement(SubElement(body, "div", {"class": "wide"}), "table")
    if table.head:
        row = SubElement(SubElement(made, "thead"), "tr")
        for place, cell in enumerate(table.head):
            _said(row, "th", cell, **_kind(table, place))
    rows = SubElement(made, "tbody")
    for cells in table.rows:
        row = SubElement(rows, "tr")
        for place, cell in enumerate(cells):
            _said(row, "td", clean(cell), **_kind(table, place))


def _kind(table: Table, place: int) -> dict[str, str]:
    return {"class": "text"} if place < table.texts or not table.head else {}
