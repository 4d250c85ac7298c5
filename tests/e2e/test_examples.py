"""Every example of the README and of the docs is run, and every link leads somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from readme_blocks import DOCS, PAGES, README, ROOT

from examples import QUICK, run_commands, run_examples, with_examples

OF_USERS = [
    pytest.param(page, id=page.stem, marks=() if page in QUICK else pytest.mark.slow)
    for page in with_examples([README, *sorted(DOCS.rglob("*.md"))])
]


@pytest.mark.parametrize("page", OF_USERS)
def test_every_example_runs_as_written(page: Path, tmp_path: Path) -> None:
    run_examples(page, tmp_path)


def test_a_second_attempt_finds_no_run_of_the_first(tmp_path: Path) -> None:
    fails_once = (
        "dlprof() { test ! -e a.dlprof.jsonl; touch a.dlprof.jsonl; echo >> n; "
        '[ "$(wc -l < n)" -gt 1 ]; }\ndlprof profile images\n'
    )
    run_commands(fails_once, tmp_path, os.environ, code=0)


def test_the_last_attempt_has_more_time_than_the_page_gives(tmp_path: Path) -> None:
    run_commands(
        'dlprof() { [ "$*" = "profile --budget 5m x" ]; }\ndlprof profile x --budget 60s\n',
        tmp_path,
        os.environ,
        code=0,
    )


LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
LINKED = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as they are made on the forges."""
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        there = (page.parent / name) if name else page
        assert there.exists(), f"{page.name} links to {name}"
        if anchor:
            assert anchor in _anchors(there.read_text(encoding="utf-8")), f"{name}#{anchor}"
