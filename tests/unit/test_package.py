"""What is installed, and with what."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dlprof

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9a-z.]*")
MODULES = {"nvidia-ml-py": "pynvml", "pillow": "PIL"}
"""Where a library's module has another name than its distribution."""


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    return {_plain(line.partition("==")[0]): line for line in pinned}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[Any]) -> set[str]:
    found = (NAME.match(each) for each in requirements if isinstance(each, str))
    return {_plain(match[0]) for match in found if match}


def test_constraints_are_names_and_versions_only() -> None:
    for line in _pins().values():
        assert PIN.fullmatch(line), line


def test_constraints_pin_everything_that_the_project_names() -> None:
    project = _project()
    wanted = _names(project["project"]["dependencies"])
    for group in project["dependency-groups"].values():
        wanted |= _names(group)
    assert wanted <= set(_pins())


def test_constraints_pin_what_those_need_in_turn() -> None:
    pins = _pins()
    for name in pins:
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # not every environment has the tools of every group
        here = [each for each in required if ";" not in each]
        assert _names(here) <= set(pins), name


def test_the_package_declares_what_it_imports() -> None:
    declared = {MODULES.get(name, name) for name in _names(_project()["project"]["dependencies"])}
    imported: set[str] = set()
    for path in (ROOT / "dlprof").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    given = {"dlprof", "pytest"}  # pytest itself loads the plugin that imports it
    assert imported - sys.stdlib_module_names - given <= declared


def test_a_share_of_slow_tests_that_is_none_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wanted in ("1", "4/0", "some"):
        monkeypatch.setenv("SLOW_TESTS", wanted)
        is_wanted = runpy.run_path(str(ROOT / "tests" / "conftest.py"))["_is_wanted"]
        with pytest.raises(pytest.UsageError, match=f"SLOW_TESTS={wanted}: give all"):
            is_wanted("a test")


def test_every_dependency_is_used() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "dlprof").rglob("*.py"))
    for name in _names(_project()["project"]["dependencies"]):
        module = MODULES.get(name, name)
        assert re.search(rf"(?:import|from) {module}\b|import_module\(\"{module}\"\)", source), name


def test_the_version_is_that_of_the_distribution() -> None:
    assert dlprof.__version__ == importlib.metadata.version("dlprof")


def test_public_names_are_there() -> None:
    for name in dlprof.__all__:
        assert getattr(dlprof, name)
    assert set(dlprof.__all__) >= {"sweep", "recommend", "load_run", "kwargs_for"}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'profil'"):
        dlprof.profil  # noqa: B018 - being read is the test


def test_the_package_is_typed() -> None:
    assert (ROOT / "dlprof" / "py.typed").is_file()


def test_files_name_no_machine_and_no_registry() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "constraints.txt",
        ROOT / "pyproject.toml",
        ROOT / ".ci/run",
    ]
    for path in [*pages, *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"--index-url|--find-links|file://|/opt/|/root/|/home/", text), path
