"""Every example of the documents is run, in a folder as a user would have it."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from readme_blocks import README, ROOT, Block, blocks

from dlprof.saved.document import read_document
from dlprof.settings import resolve_settings

PATIENCE_S = 600
SMALL_SWEEP = {
    "DLPROF_NUM_WORKERS": "0,1",
    "DLPROF_PREFETCH_FACTOR": "2",
    "DLPROF_PERSISTENT_WORKERS": "off",
    "DLPROF_REPEATS": "1",
    "DLPROF_TRIAL_TIME": "300ms",
    "DLPROF_BUDGET": "10m",
    "DLPROF_SEARCH": "model",
}
"""Flags go before the environment, so examples run as written and still end soon. As by default,
sweeps are led by the model, which so few configurations would not be."""

GUIDE = ROOT / "docs" / "guide.md"
BLOCKS = [block for page in (README, GUIDE) for block in blocks(page.read_text(encoding="utf-8"))]
DOCS = sorted({*(ROOT / "docs").glob("*.md")} - {GUIDE})


@pytest.fixture(autouse=True)
def patient() -> None:
    """Take away pytest's limit for a test: these install or sweep, and have limits of their own."""
    faulthandler.cancel_dump_traceback_later()


def _environment(**more: str) -> dict[str, str]:
    """The environment with this interpreter's programs first and no options of dlprof's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLPROF_")}
    programs = str(Path(sys.executable).parent)
    return {**kept, "PATH": os.pathsep.join([programs, kept.get("PATH", "")]), **more}


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program to its end; returns what it printed."""
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def _file_name(block: Block) -> str:
    """The name of the file that an example is, from its first line."""
    match = re.match(r"# ([\w.]+\.(?:py|toml))\n", block.text)
    return match[1] if match else ""


def _run_python(block: Block, folder: Path, environment: Mapping[str, str]) -> None:
    """Write the example to its file and run it: a module of functions runs too."""
    path = folder / (_file_name(block) or f"example_{block.line}.py")
    path.write_text(block.text, encoding="utf-8")
    _run([sys.executable, "-W", "error::UserWarning:dlprof", path.name], folder, environment)


def _read_toml(block: Block, folder: Path) -> None:
    """Read the example as dlprof would."""
    if _file_name(block) == "pyproject.toml":
        place = folder / f"project_{block.line}"
        place.mkdir()
        (place / "pyproject.toml").write_text(block.text, encoding="utf-8")
        settings, origins = resolve_settings({}, environ={}, config_file=None, cwd=place)
        assert settings.target == "my_data.py:Numbers"
        named = tomllib.loads(block.text)["tool"]["dlprof"]
        assert {key for key, origin in origins.items() if origin != "default"} == set(named)
        return
    path = folder / f"settings_{block.line}.toml"
    path.write_text(block.text, encoding="utf-8")
    assert len(read_document(path)) == 1


def test_every_example_of_the_readme_and_the_guide_runs_as_written(tmp_path: Path) -> None:
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = _environment(**SMALL_SWEEP, DLPROF_CACHE_DIR=str(tmp_path / "cache"))
    for block in BLOCKS:
        if block.command:
            continue
        match block.language:
            case "sh":
                _run(["bash", "-euc", block.text], tmp_path, environment)
            case "python":
                _run_python(block, tmp_path, environment)
            case "toml":
                _read_toml(block, tmp_path)
            case other:
                assert other == "console", f"line {block.line}: what is {other!r}?"
    assert '"recommendation"' in (tmp_path / "run.json").read_text(encoding="utf-8")


def test_every_python_and_toml_example_of_the_docs_runs(tmp_path: Path) -> None:
    environment = _environment(**SMALL_SWEEP)
    data = next(block for block in BLOCKS if _file_name(block) == "my_data.py")
    (tmp_path / "my_data.py").write_text(data.text, encoding="utf-8")
    golden = ROOT / "tests" / "data" / "runs" / "golden.dlprof.jsonl"
    (tmp_path / "run.dlprof.jsonl").write_bytes(golden.read_bytes())
    for path in DOCS:
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "python":
                _run_python(block, tmp_path, environment)
            elif block.language == "toml":
                _read_toml(block, tmp_path)
    sweep = ["dlprof", "sweep", "my_loader.py:make_loader", "--json"]
    assert '"num_workers": 1' in _run(sweep, tmp_path, environment)


LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", GUIDE, *DOCS]


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as they are made on the forges."""
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        there = (page.parent / name) if name else page
        assert there.exists(), f"{page.name} links to {name}"
        if anchor:
            assert anchor in _anchors(there.read_text(encoding="utf-8")), f"{name}#{anchor}"
