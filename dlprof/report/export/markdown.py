"""A run as Markdown, for a pull request, a wiki or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlprof.records import Run
from dlprof.report.export.blocks import Block, Bullets, Chart, Code, Table, Text
from dlprof.report.export.content import sections, title_of, with_recommendation

# What CommonMark and GitHub act on within a line: emphasis, code, links, HTML, entities, tables,
# struck-out text, mathematics. Bare addresses and mentions become links by ``://`` and ``@``.
_ACTIVE = re.compile(r"[\\`*_\[\]<>&|~$#]")


def render_markdown(run: Run) -> str:
    """The whole report; what texts of the run hold is shown and never acts.

    Args:
        run: What was measured.
    """
    run = with_recommendation(run)
    lines = [f"# dlprof: {escaped(title_of(run))}", ""]
    for section in sections(run):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            if written := list(_lines(block)):
                lines += [*written, ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    r"""A text that Markdown shows as it is.

    >>> escaped("a|b <b> *x* @me")
    'a\\|b \\<b\\> \\*x\\* @\u2060me'
    """
    shown = _ACTIVE.sub(r"\\\g<0>", text)
    # A word joiner, invisible, keeps an address from becoming a link and a name a mention.
    return shown.replace("://", ":\u2060//").replace("@", "@\u2060").replace("www.", "www\u2060.")


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield escaped(block.text)
        case Bullets():
            yield from (f"- {escaped(item)}" for item in block.items)
        case Code():
            yield from ("````python", *block.lines, "````")
        case Table():
            yield from _table(block)
        case Chart():  # its figures stand in the table
            return


def _table(table: Table) -> Iterator[str]:
    columns = max(map(len, table.rows), default=len(table.head))
    yield _row(table.head or ("",) * columns)
    aligned = [
        "---" if place < table.texts or not table.head else "---:" for place in range(columns)
    ]
    yield "| " + " | ".join(aligned) + " |"
    yield from map(_row, table.rows)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"
