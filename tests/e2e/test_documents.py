"""The documents say what the code says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
from readme_blocks import PAGES, ROOT

import dlprof
from dlprof.errors import ExitCode
from dlprof.records import SCHEMA_VERSION

DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    "command",
    [
        "reference.py --check",
        "pictures.py --check",
        pytest.param("words.py docs README.md dlprof/explain", marks=pytest.mark.slow),
    ],
)
def test_pages_are_as_the_tools_have_them(command: str) -> None:
    tool, *words = command.split()
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_site_s_header_names_the_project() -> None:
    config = SimpleNamespace(nav=[])
    runpy.run_path(str(ROOT / "tools" / "pages.py"))["on_config"](config)
    assert config.repo_name == "dlprof"  # without a name the header said "None"
    assert config.repo_url.endswith("/dlprof")


def test_every_exit_code_is_explained() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"\b{code.value}\b", page), code


OTHERS = {
    "--cpus",
    "--cpus-per-task",
    "--help-all",
    "--epochs",
    "--gres",
    "--initial-branch",
    "--install-completion",
    "--lr",
    "--message",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--shm-size",
    "--time",
}
"""Flags of Docker, Slurm and others, and the help's own."""


def test_every_flag_that_a_page_names_exists() -> None:
    reference = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`(--[a-z-]+)`", reference)) | {"--help", "--version"}
    plugin = (ROOT / "dlprof" / "integrations" / "pytest_plugin.py").read_text(encoding="utf-8")
    known |= set(re.findall(r'"(--dlprof-[a-z]+)"', plugin))
    known |= OTHERS
    for page in (*PAGES, ROOT / "ARCHITECTURE.md"):
        lines = [
            line
            for line in page.read_text(encoding="utf-8").splitlines()
            if not re.search(
                r"\b(?:pip|ruff|mypy|reference\.py|docker|srun|numactl|torchrun|uv|uvx)\b",
                line,
            )
        ]
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(lines)))
        assert found <= known, f"{page.name}: {sorted(found - known)}"


def test_the_changelog_has_this_version() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert dlprof.__version__ in page
    assert f"schema version {SCHEMA_VERSION}" in page
