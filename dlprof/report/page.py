"""A document as one HTML file: nothing is loaded, light or dark as the reader has it.

The page is built as a tree of elements, so that no text of a run file can become markup; its style
and its script are the only ones that a browser obeys, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from xml.etree.ElementTree import Element, SubElement, tostring

from dlprof.report import document as doc
from dlprof.report.svg import draw, stage_rules
from dlprof.report.text import clean, clean_lines, clean_within

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
            _add_card(parent, block)
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


def _add_card(parent: Element, card: doc.Card) -> None:
    made = SubElement(parent, "article", {"class": "card"})
    title = SubElement(made, "h3")
    title.text = clean(card.title)
    if card.code:
        SubElement(title, "span", {"class": "soft"}).text = f" {clean(card.code)}"
    if card.level:
        SubElement(title, "span", {"class": f"level {card.tone}"}).text = clean(card.level)
    for block in card.blocks:
        _add(made, block)


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
        more = f"{len(rest):,} more rows are in the run file (-o run.csv has all)."
        SubElement(parent, "p", {"class": "soft"}).text = more
    if notes := doc.notes_on(columns):
        _add(parent, notes)
