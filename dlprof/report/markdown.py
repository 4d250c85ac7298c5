"""A document as Markdown, for a pull request, a wiki or an issue: the answer first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dlprof.report import document as doc
from dlprof.report.text import clean, clean_lines, clean_within

# What CommonMark, GitHub and GitLab act on within a line: emphasis, code, links, HTML, entities,
# tables, struck-out text, mathematics.
_ACTIVE = re.compile(r"[\\`*_\[\]<>&|~$]")
# What makes a list, a rule or a heading of a line that it begins.
_LEADING = re.compile(r"^(\d{0,9})([-+.)=])(?=[\s=-]|$)")
# Addresses, mentions and numbers of issues become links even behind a backslash.
_LINKED = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=[@#])", re.IGNORECASE)

_AROUND = " ,.;:()"  # beside these, emphasis begins and ends whatever it holds

_EMPHASIZED = frozenset({"strong", "good", "warn", "bad"})


def to_markdown(document: doc.Document, *, level: int = 1) -> str:
    """The document: its title, its answer, and its details; no text in it acts."""
    found = [*_heading(document.title, level), *_blocks(document.answer, level + 1)]
    for section in document.details():
        found += [*_heading(section.title, level + 1), *_blocks(section.blocks, level + 2)]
    return "\n\n".join(found) + "\n"


def escaped(text: str) -> str:
    r"""A text from anywhere for within a line: shown as it is, it links and calls nobody.

    >>> escaped("a|b <b> *x* @me")
    'a\\|b \\<b\\> \\*x\\* @\u2060me'
    """
    joiner = "\u2060"  # parts the words of what would be a link, and nobody sees it
    return _LINKED.sub(joiner, _ACTIVE.sub(r"\\\g<0>", clean(text)))


def _heading(title: str, level: int, behind: str = "") -> Iterator[str]:
    if title:
        yield f"{'#' * min(level, 6)} {escaped(title)}{behind}"


def _blocks(blocks: Iterable[doc.Block], level: int) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, doc.Card):
            code = f" {_code(block.code)}" if block.code else ""
            grade = f" ({escaped(block.level)})" if block.level else ""
            yield from _heading(block.title, level, code + grade)
            yield from _blocks(block.blocks, level + 1)
        elif written := "\n".join(_lines(block)):
            yield written


def _lines(block: doc.Block) -> Iterator[str]:
    match block:
        case doc.Text():
            yield _line(block.words)
        case doc.Items():
            yield from (f"- {_line(words)}" for words in block.items)
        case doc.FactList():
            yield from (
                f"- {_line((doc.Styled(name, 'strong'), ': ', *doc.spans(words)))}"
                for name, words in block.rows
            )
        case doc.Code():
            text = clean_lines(block.text).rstrip()
            fence = _fence(text, 3)
            yield from (f"{fence}{block.language}", text, fence) if text else ()
        case doc.Table():
            shown = [column for column in block.columns if column.is_shown]
            rows = zip(*(column.cells for column in shown), strict=True)
            yield from _table(
                [column.title for column in shown], rows, [column.left for column in shown]
            )
            if notes := doc.notes_on(shown):
                yield from ("", *_lines(notes))
        case doc.Chart(kind="lanes"):
            yield from (_line(block.unit), "") if block.unit else ()
            for bar in block.bars:
                pieces = ", ".join(f"{each.name} {each.figure}".strip() for each in bar.pieces)
                yield f"- {_line((doc.Styled(bar.label, 'strong'), f': {pieces}'))}"
        case doc.Chart(bars=[_, *_]):  # what leads to the left of 0 has its sign in the figure
            bars = [(bar.label, bar.figure, _bar(bar, block), bar.note) for bar in block.bars]
            wide = 4 if any(bar.note for bar in block.bars) else 3
            head, left = (block.label, block.unit, "", ""), (True, False, True, True)
            yield from _table(head[:wide], [row[:wide] for row in bars], left)


def _line(words: doc.Words) -> str:
    pieces = [(each, clean_within(each.text)) for each in doc.spans(words)]
    whole = "".join(text for _, text in pieces)
    found, at = [], 0
    for piece, text in pieces:
        before, after = whole[:at][-1:], whole[at + len(text) :][:1]
        apart = all(not each or each in _AROUND for each in (before, after))
        shown = _toned(text, piece.tone, apart=apart)
        found.append(f"[{shown}]({piece.link})" if piece.link else shown)
        at += len(text)
    return _LEADING.sub(r"\1\\\2", "".join(found).strip())


def _toned(text: str, tone: str, *, apart: bool) -> str:
    """A piece of a line, the blanks at its ends kept outside of any emphasis."""
    inner = text.strip(" ")
    if not inner:
        return text
    lead, _, tail = text.partition(inner)
    shown = escaped(inner)
    if apart and tone == "code":
        shown = _code(inner)
    elif apart and tone in _EMPHASIZED:
        shown = f"**{shown}**"
    return f"{lead}{shown}{tail}"


def _code(text: str) -> str:
    text = clean(text)
    fence = _fence(text, 1)
    apart = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{apart}{text}{apart}{fence}"


def _fence(text: str, least: int) -> str:
    """Backticks, more of them than any run within the text."""
    return "`" * max(least, *(len(run) + 1 for run in re.findall("`+", text)), 0)


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[bool]
) -> Iterator[str]:
    rule = ["---" if each else "---:" for _, each in zip(head, left, strict=False)]
    for cells in (map(escaped, head), rule, *(map(escaped, row) for row in rows)) if head else ():
        yield f"| {' | '.join(cells)} |"


def _bar(bar: doc.Bar, chart: doc.Chart) -> str:
    longest = 20
    filled = round(longest * abs(chart.filled(bar)))
    if chart.kind == "share":
        return "█" * filled + "░" * (longest - filled)
    return ("◀" if bar.length < 0 else "") + "█" * filled
