"""The pages of the findings: what a code means, how it is detected, and how it is fixed."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from dlprof.errors import UsageError, did_you_mean
from dlprof.report.document import Document, FactList, Row, Styled, Text
from dlprof.report.documents import json_document
from dlprof.units import quoted

_PAGES = Path(__file__).parents[1] / "explain"
_COMMENT = re.compile(r"^<!--.*-->\n", re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# Lines that belong together: no heading, no table, and an item of a list by itself.
_PARAGRAPH = re.compile(r"^(?![#|]).+(?:\n(?!- |[#|]).+)*", re.MULTILINE)
_SUMMARY = re.compile(r"# .*\n+((?:.+\n)+)")


@functools.cache
def _pages() -> Mapping[str, str]:
    """All pages by code, without the comments that say how their examples are tested."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_PAGES.glob("*.md"))}
    return {code: _COMMENT.sub("", text) for code, text in texts.items()}


def explained_codes() -> Mapping[str, str]:
    """Every code that has a page, with what it means in one line."""
    return {code: _summary(text) for code, text in _pages().items()}


def page_of(code: str) -> str:
    """The page of a finding's code, Markdown."""
    if code not in _pages():
        parts = [each for each in _pages() if code.lower() in each.split(".")]
        near = f"Did you mean {' or '.join(parts)}?" if parts else did_you_mean(code, _pages())
        raise UsageError(
            f"{quoted(code)} is not the code of a finding",
            hint=f"{near} dlprof explain lists all codes.".lstrip(),
        )
    return _pages()[code]


def folded(page: str, width: int) -> str:
    """A page as a terminal of so many columns shows it, no word cut; code and tables stay."""

    def fold(found: re.Match[str]) -> str:
        text = " ".join(found[0].split())
        indent = "  " if text.startswith("- ") else ""
        return textwrap.fill(
            text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    parts = _CODE.split(page)
    return "".join(p if p.startswith("```") else _PARAGRAPH.sub(fold, p) for p in parts)


def explained(code: str) -> Styled:
    """What shows a finding's page, and its address below the project's documentation."""
    link = f"{_site()}/findings/{code}/" if _site() else ""
    return Styled(f"dlprof explain {code}", "code", link)


@functools.cache
def _site() -> str:
    """The ``Documentation`` of the package's metadata, from ``[project.urls]`` of pyproject.toml.

    Without one commands stand alone, as a link would lead nowhere.
    """
    import importlib.metadata  # with all of email and zipfile, where most screens show no card

    try:
        urls = importlib.metadata.metadata("dlprof").get_all("Project-URL", [])
    except importlib.metadata.PackageNotFoundError:  # run from its source
        urls = []
    known: dict[str, str] = dict(url.split(", ", 1) for url in urls)
    return known.get("Documentation", "").rstrip("/")


def explain_document(code: str | None) -> str:
    """What ``dlprof explain --json`` prints of a code, or of all."""
    if code is not None:
        text = page_of(code)
        return json_document(code=code, summary=_summary(text), text=text)
    codes = [{"code": code, "summary": text} for code, text in explained_codes().items()]
    return json_document(codes=codes)


def codes_report() -> Document:
    """All codes, one line each."""
    rows: tuple[Row, ...] = tuple(explained_codes().items())
    return Document(title="Findings", answer=(Text(Styled("Findings", "strong")), FactList(rows)))


def _summary(page: str) -> str:
    """The paragraph behind the heading, as one line without marks."""
    found = _SUMMARY.match(page)
    return " ".join(found[1].replace("`", "").split()) if found else ""
