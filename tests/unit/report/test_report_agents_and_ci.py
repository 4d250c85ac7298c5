"""The action, the component and the pages for agents: their commands are run against stand-ins."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from example_runs import example_run
from gate_samples import failing_check
from profiled_runs import profiled_run

from dlprof.cli.app import program
from dlprof.report.check import check_document, render_outputs
from dlprof.report.documents import brief_document, profile_document, sweep_document

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "action.yml"
COMPONENT = ROOT / "templates" / "dlprof.yml"
PAGES = (ROOT / "llms.txt", ROOT / "skills" / "dlprof" / "SKILL.md")
GIVEN = {
    "target": "my data.py:make_loader",
    "against": "origin/main",
    "args": "--num-workers 2 --fail-above 10%",
    "job-name": "data loading",
    "package": "git+https://git.example/dlprof@v1",
}
STAND_IN = """\
#!/bin/bash
if [ "$1" = -c ]; then exit 1; fi  # there is no torch yet
for word in "${0##*/}" "$@"; do printf '%s\\0' "$word" >>"$LOG"; done
printf '\\n' >>"$LOG"
"""


def documents(path: Path) -> list[Any]:
    """What YAML has in a file; the library comes with the tests' group."""
    return list(importlib.import_module("yaml").safe_load_all(path.read_text(encoding="utf-8")))


def commands_of(script: str, folder: Path, environ: dict[str, str]) -> list[list[str]]:
    """The commands that a script runs, with stand-ins that write down their words."""
    for name in ("dlprof", "python", "pip"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(log), **environ}
    subprocess.run(["bash", "-eu", "-c", script], env=environ, check=True, timeout=60)
    return [line.split("\0")[:-1] for line in log.read_text().splitlines()]


def understood(words: list[str]) -> dict[str, Any]:
    """The options of a command of dlprof's, as its own parser reads them."""
    group = program()
    assert words[0] == "dlprof"
    command = group.get_command(click.Context(group), words[1])
    assert command is not None
    context = command.make_context("dlprof", words[2:])
    found: dict[str, Any] = context.params
    return found


def test_the_action_declares_what_it_uses() -> None:
    (action,) = documents(ACTION)
    text = ACTION.read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    assert all("description" in each for each in action["inputs"].values())
    steps = action["runs"]["steps"]
    assert all("uses" in step or {"run", "shell"} <= set(step) for step in steps)
    names = {step["id"] for step in steps if "id" in step}
    written = set(re.findall(r"^(\w+)<<", render_outputs(failing_check()), flags=re.MULTILINE))
    for output in action["outputs"].values():
        step, name = re.findall(r"steps\.(\w+)\.outputs\.(\w+)", output["value"])[0]
        assert step in names
        assert name in written


@pytest.mark.parametrize("against", ["", "origin/main"])
def test_the_action_installs_and_checks(tmp_path: Path, against: str) -> None:
    (action,) = documents(ACTION)
    given = {name: each.get("default", "") for name, each in action["inputs"].items()}
    given |= GIVEN | {"against": against}
    ran = []
    for step in action["runs"]["steps"]:
        if "run" in step:
            environ = {
                name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], value)
                for name, value in step["env"].items()
            }
            ran = commands_of(step["run"], tmp_path, {"GITHUB_ACTION_PATH": "/action", **environ})
    installs, check = ran[:-1], ran[-1]
    assert installs[0][:5] == ["python", "-m", "pip", "install", "torch"]
    assert installs[1] == ["python", "-m", "pip", "install", "/action"]
    params = understood(check)
    assert params["target"] == "my data.py:make_loader"
    assert (params["against"] or "") == against
    assert (params["num_workers"], params["fail_above"]) == ("2", "10%")
    assert params["budget"] == given["budget"]


def test_the_component_installs_and_checks(tmp_path: Path) -> None:
    head, jobs = documents(COMPONENT)
    inputs = head["spec"]["inputs"]
    used = set(re.findall(r"\$\[\[ inputs\.([\w-]+) \]\]", COMPONENT.read_text(encoding="utf-8")))
    assert used == set(inputs)
    given = {name: (each or {}).get("default", "") for name, each in inputs.items()} | GIVEN
    (job,) = jobs.values()
    lines = [
        re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda m: given[m[1]], line)
        for line in job["script"]
    ]
    *installs, check = commands_of("\n".join(lines), tmp_path, {})
    torch = "https://download.pytorch.org/whl/cpu"
    assert [words[-1] for words in installs] == [torch, GIVEN["package"]]
    params = understood(check)
    assert params["target"] == "my data.py:make_loader"
    assert str(params["junit"]) == job["artifacts"]["reports"]["junit"]
    assert str(params["openmetrics"]) == job["artifacts"]["reports"]["metrics"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_pages_for_agents_name_what_there_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    inline = re.findall(r"`(dlprof [a-z]+[^`\n]*)`", text)
    words = [shlex.split(line) for line in (*blocks, *inline)]
    assert {each[1] for each in words} >= {"sweep", "profile", "recommend", "explain", "doctor"}
    for command in words:
        understood(command)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / link).exists(), link


def test_the_skill_names_keys_that_brief_documents_have() -> None:
    text = PAGES[1].read_text(encoding="utf-8")
    known = set[str]()
    for document in (
        sweep_document(example_run()),
        profile_document(profiled_run()),
        check_document(failing_check()),
    ):
        brief = json.loads(brief_document(document))
        known |= {*brief, *brief.get("expected", ()), *brief.get("findings", [{}])[0]}
    named = set(re.findall(r"`((?:[a-z]+_)+[a-z]+)`", text)) | {"findings", "expected", "reasons"}
    assert named - {"num_workers", "prefetch_factor"} <= known


def test_the_skill_says_when_it_is_of_use() -> None:
    _, head, _ = PAGES[1].read_text(encoding="utf-8").split("---\n", 2)
    skill = importlib.import_module("yaml").safe_load(head)
    assert skill["name"] == PAGES[1].parent.name
    assert "Use it when" in skill["description"]
    assert len(skill["description"]) < 1024
