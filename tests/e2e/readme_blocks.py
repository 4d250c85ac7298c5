"""The examples of a Markdown page: ``python tests/e2e/readme_blocks.py NAME`` prints one command.

Standard library only, so that ``.ci/run`` can use it before anything is installed.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

DOCS = ROOT / "docs"
FINDINGS = ROOT / "dlprof" / "explain"
PAGES = (README, *sorted(DOCS.rglob("*.md")), *sorted(FINDINGS.glob("*.md")))
"""Every page for users."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>command|exits|needs|not run|screen): (?P<value>[^>]+) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: What is behind the fence.
        text: What is in it.
        mark: What the comment before it says of it, if any: ``command`` names it for ``.ci/run``,
            ``exits`` the code that it ends with, ``needs`` a module or program, ``not run`` what
            it needs or where else it is run, ``screen`` what printed it.
        value: What the comment says.
        line: Of its fence.
    """

    language: str
    text: str
    mark: str
    value: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            match["language"],
            match["text"],
            match["mark"] or "",
            match["value"] or "",
            page.count("\n", 0, match.start("language")) + 1,
        )
        for match in _BLOCK.finditer(page)
    ]


def readme_command(name: str) -> str:
    """One of the README's commands, as written there."""
    page = README.read_text(encoding="utf-8")
    (text,) = (block.text.strip() for block in blocks(page) if block.value == name)
    return text


if __name__ == "__main__":
    sys.stdout.write(readme_command(sys.argv[1]) + "\n")
