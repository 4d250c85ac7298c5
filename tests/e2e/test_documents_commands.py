"""Every command of dlprof's in the pages is one that it understands; every workflow is YAML."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from readme_blocks import DOCS, PAGES, ROOT, blocks

from dlprof.cli.app import program

COMMAND = re.compile(r"(?:^|[\s$(]|-m )dlprof (?P<words>[^\n;|&>#)]*)", flags=re.MULTILINE)
SHOWN = {"", "dockerfile", "py", "python", "text", "toml"}
"""Languages of blocks that hold no commands; ``py`` is of signatures, which aren't run."""

YAML = [
    block.text
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"))
    if block.language == "yaml"
]


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command in the pages' blocks, each once."""
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.language not in SHOWN:
                text = re.sub(r" ?\\\n +", " ", block.text)
                # Lines folded as YAML joins them, and the runner's expressions as where they hold.
                text = re.sub(r"\n +(?=--|\$\{\{|&& )", " ", text)
                text = re.sub(r"\$\{\{.*?'(--.*?)'.*?\}\}", r"\1", text)
                # What the shell puts in: a number does for all of it.
                for inner in (r"\$\([^()]*\)", r"\$\(\([^()]*\)\)", r"\$\w+"):
                    text = re.sub(inner, "8", text)
                for match in COMMAND.finditer(text):
                    yield tuple(shlex.split(match["words"], comments=True))


@pytest.mark.parametrize("words", sorted(set(commands())), ids=" ".join)
def test_dlprof_understands_every_command(words: tuple[str, ...]) -> None:
    command: Any = program()
    while isinstance(command, click.Group) and words:  # bare, it shows its help
        command = command.get_command(click.Context(command), words[0])
        words = words[1:]
    assert command.make_context("dlprof", list(words))


def test_there_are_commands_to_try() -> None:
    ci = (DOCS / "how-to" / "ci.md").read_text(encoding="utf-8")
    assert len(set(commands())) >= 80
    assert ci.count("```yaml") == 3


@pytest.mark.parametrize("text", YAML)
def test_workflows_are_yaml(text: str) -> None:
    assert "\t" not in text
    assert not re.search(r"^(?:  )* \S", text, flags=re.MULTILINE), "indented by two blanks each"
    if importlib.util.find_spec("yaml") is not None:
        assert importlib.import_module("yaml").safe_load(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_says_what_it_needs_or_where_it_is_run(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.mark == "not run":
            needs = re.match(r"it needs (?:Docker$|two machines; )", block.value)
            elsewhere = re.findall(r"tests/\S+\.py", block.value)
            assert needs or elsewhere or block.value == "the command below starts it", block.line
            assert all((ROOT / name).exists() for name in elsewhere), block.line


def test_languages_are_known() -> None:
    known = SHOWN | {"console", "sh", "yaml"}
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            assert block.language in known, f"{page.relative_to(ROOT)} line {block.line}"
