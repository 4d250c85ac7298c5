"""The workflows of docs/ci.md: they are YAML, and dlprof understands every command in them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from typing import Any

import pytest
from readme_blocks import ROOT

from dlprof.cli.app import program

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(yaml|sh|console)\n(.*?)```", PAGE, flags=re.DOTALL)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]


def commands() -> list[list[str]]:
    """Every command of dlprof's in the page's blocks; one folded over lines as YAML joins it."""
    text = "\n".join(text for _, text in BLOCKS)
    text = re.sub(r"\n +(?=--|\$\{\{|&& )", " ", text)
    # An expression of the runner's: what it gives where its condition holds.
    text = re.sub(r"\$\{\{.*?'(--.*?)'.*?\}\}", r"\1", text)
    lines = re.findall(r"^[\s$-]*dlprof (.*)$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_there_are_commands_to_try() -> None:
    assert len(YAML) == 3
    assert len(commands()) >= 8


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_dlprof_understands_every_command(words: list[str]) -> None:
    command: Any = program()
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    assert command.make_context("dlprof", words)


@pytest.mark.parametrize("text", YAML)
def test_workflows_are_yaml(text: str) -> None:
    assert "\t" not in text
    assert not re.search(r"^(?:  )* \S", text, flags=re.MULTILINE), "indented by two blanks each"
    if importlib.util.find_spec("yaml") is not None:
        assert importlib.import_module("yaml").safe_load(text)
