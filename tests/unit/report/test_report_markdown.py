"""The writer of Markdown: what a reader of CommonMark makes of it, whatever the texts."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # Rich reads Markdown with it

from dlprof.report.document import (
    Bar,
    Block,
    Card,
    Chart,
    Code,
    Column,
    Document,
    FactList,
    Items,
    Piece,
    Section,
    Styled,
    Table,
    Text,
)
from dlprof.report.markdown import escaped, to_markdown
from dlprof.report.text import clean, clean_lines

JOINER = "\u2060"
TEXTS = st.text(st.characters(codec=None), max_size=40) | st.text(
    "a1 \\`*_[]<>&|~$#@:/.-+=()!w\n\t", max_size=20
)
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown(*blocks: Block, **kind: Any) -> str:
    return to_markdown(Document(title="", answer=blocks), **kind)


def read(markdown: str) -> str:
    """As a reader of Markdown shows it, in HTML, without what parts links."""
    return str(MARKDOWN.render(markdown)).replace(JOINER, "")


def as_html(text: str) -> str:
    return html.escape(text, quote=False).replace('"', "&quot;")


@given(TEXTS)
def test_a_text_is_shown_as_it_is(text: str) -> None:
    line = clean(text)
    assert read(shown(Text(text))) == (f"<p>{as_html(line)}</p>\n" if line else "")


@pytest.mark.slow
@given(TEXTS, TEXTS)
def test_a_text_stays_where_it_is_put(text: str, other: str) -> None:
    """In each place the same elements are read as of a plain word."""
    text, other = f"x{text}", f"{other}x"
    assume(clean(other))  # a control sequence may take all that follows it
    documents = (_everywhere(text, other), _everywhere("word", "other"))
    tags, plain = (re.findall("</?[a-z0-9]+", read(to_markdown(each))) for each in documents)
    emphasis = {"<strong", "</strong", "<code", "</code"}  # left out where it could not end
    assert [each for each in tags if each not in emphasis] == [
        each for each in plain if each not in emphasis
    ]


def _everywhere(text: str, other: str) -> Document:
    """A document with texts in all its places."""
    words = (text, Styled(other, "strong"), Styled(text, "code"), other)
    table = Table(
        (Column(title=text, cells=[other, text], left=True), Column(title="b", cells="12"))
    )
    bar = Bar(label=text, pieces=(Piece(2, text, other),), figure=other, note=text)
    blocks: tuple[Block, ...] = (
        Text(words),
        FactList(((text, words),)),
        Items((words, other)),
        Code(text),
        table,
        Chart(bars=(bar,), label=text, unit=other),
        Chart(bars=(bar,), kind="lanes"),
    )
    card = Card(title=text, code=other, level=text, blocks=blocks)
    return Document(title=text, answer=(*blocks, card), details=lambda: (Section(other, blocks),))


@given(TEXTS)
def test_code_is_copied_as_it_is(text: str) -> None:
    lines = clean_lines(text).rstrip()
    tokens = MARKDOWN.parse(shown(Code(text), Text("behind")))
    assert [(t.content, t.info) for t in tokens if t.type == "fence"] == (
        [(lines + "\n", "python")] if lines else []
    )
    assert "behind" in [t.content for t in tokens if t.type == "inline"]


@pytest.mark.parametrize(
    "text", ["@all", "#12", "owner/name#12", "me@example.com", "https://x.org", "WWW.x.org"]
)
def test_nobody_is_called_and_nothing_linked(text: str) -> None:
    assert escaped(text) != text
    assert escaped(text).replace(JOINER, "") == text


@pytest.mark.parametrize(
    ("words", "markdown"),
    [
        (Styled("high", "good"), "**high**"),
        (("Certainty ", Styled("low", "bad"), ": noise"), "Certainty **low**: noise"),
        ((Styled("x)", "strong"), "y"), "x)y"),
        (("run ", Styled("a`b", "code")), "run ``a`b``"),
        (("kept", Styled("  (yours)", "soft")), "kept  (yours)"),
    ],
)
def test_tones(words: Any, markdown: str) -> None:
    assert shown(Text(words)) == f"{markdown}\n"


def test_the_answer_comes_first_under_the_title() -> None:
    document = Document(
        title="What",
        answer=(FactList((("Do", "this"), ("Why", "that"))), Code("x = 1")),
        details=lambda: (
            Section("More", (Items(("one", "two")), Card(title="A", code="c", level="high"))),
        ),
    )
    assert to_markdown(document, level=2).splitlines() == [
        "## What", "", "- **Do**: this", "- **Why**: that", "",
        "```python", "x = 1", "```", "",
        "### More", "", "- one", "- two", "", "#### A `c` (high)",
    ]  # fmt: skip


def test_a_table_has_the_columns_that_say_something() -> None:
    table = Table(
        (
            Column(title="name", cells=["a", "b"], left=True),
            Column(title="rate", cells=["1", "2"], keep=1),
            Column(title="empty", cells=["-", ""], keep=1),
        )
    )
    assert shown(table).splitlines() == [
        "| name | rate |", "| --- | ---: |", "| a | 1 |", "| b | 2 |",
    ]  # fmt: skip


def test_charts_are_figures_with_bars() -> None:
    bars = tuple(
        Bar(label=f"w{n}", pieces=(Piece(n),), figure=f"{n:+}", note="yours" if n > 0 else "")
        for n in (10, -5)
    )
    assert shown(Chart(bars=bars, label="workers", unit="samples/s")).splitlines() == [
        "| workers | samples/s |  |  |",
        "| --- | ---: | --- | --- |",
        f"| w10 | +10 | {'█' * 20} | yours |",
        f"| w-5 | -5 | ◀{'█' * 10} |  |",
    ]
    share = Bar(label="x", pieces=(Piece(1), Piece(3)), figure="25%")
    assert f"{'█' * 5}{'░' * 15}" in shown(Chart(bars=(share,), kind="share"))
    lane = Bar(label="main", pieces=(Piece(1, "wait", "2 ms"), Piece(1, "step", "3 ms")))
    said = "- **main**: wait 2 ms, step 3 ms\n"
    assert shown(Chart(bars=(lane,), kind="lanes")) == said
    assert shown(Chart(bars=(lane,), unit="a batch", kind="lanes")) == f"a batch\n\n{said}"
    assert shown(Chart(bars=()), Table(()), Text("x")) == "x\n"
