"""Runs the examples of a page, in a folder as a user would have it."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from readme_blocks import DOCS, ROOT, Block, blocks

from dlprof.saved import read_document
from dlprof.settings.resolve import resolve_settings

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

FIRST = DOCS / "tutorials" / "first-sweep.md"
LONGER = {"checking", "comparing", "predicting", "profiling"}  # of concepts, and of the reference
LONGER |= {"python", "reports", "targets", "transfer"}
QUICK = [
    page
    for folder in ("concepts", "reference")
    for page in (DOCS / folder).glob("*.md")
    if page.stem not in LONGER
]
"""Pages whose examples are run with every change: what takes seconds."""

TO_RUN = {"python", "sh", "toml"}


def _environment(**more: str) -> dict[str, str]:
    """The environment with this interpreter's programs first."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]), **more}


def _run(
    command: list[str], folder: Path, environment: Mapping[str, str], *, code: int = 0
) -> None:
    """Run a program to its end, which is with this exit code."""
    result = _ended(command, folder, environment)
    assert result.returncode == code, f"{command}\n{result.stdout}\n{result.stderr}"


def run_commands(text: str, folder: Path, environment: Mapping[str, str], *, code: int) -> None:
    """Run commands, and again where their budget may have been too small for a busy machine.

    Profiles have half of theirs at first, and checks and profiles more than theirs in the end, also
    where the page names it. What commands left in the background ends with them, and the runs of a
    failed attempt go.
    """
    text = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + text
    less = re.sub(r"(?m)^dlprof profile(?!.*--budget)", r"\g<0> --budget 15s", text)
    unbound = re.sub(r"(?m)^(dlprof (?:check|profile)\b.*?) --budget \S+", r"\1", text)
    more = re.sub(r"(?m)^dlprof (?:check|profile)\b", r"\g<0> --budget 5m", unbound)
    *attempts, last = dict.fromkeys((less, text, more))
    before = {*folder.glob("*.dlprof.jsonl")}
    for attempt in attempts:
        if _ended(["bash", "-euc", attempt], folder, environment).returncode == code:
            return
        for run in {*folder.glob("*.dlprof.jsonl")} - before:  # which no command replaces
            run.unlink()
    _run(["bash", "-euc", last], folder, environment, code=code)


def _ended(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """How a program ended."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _file_name(block: Block) -> str:
    """The name of the file that an example is, from its first line."""
    match = re.match(r"# ([\w.]+\.(?:py|toml))\n", block.text)
    return match[1] if match else ""


def _is_run(block: Block) -> bool:
    """Whether the example can be run here."""
    if block.mark in {"command", "not run"}:
        return False
    if block.mark != "needs":
        return True
    return bool(importlib.util.find_spec(block.value) or shutil.which(block.value))


def _run_python(block: Block, folder: Path, environment: Mapping[str, str]) -> None:
    """Write the example to its file and run it: a module of functions runs too."""
    path = folder / (_file_name(block) or f"example_{block.line}.py")
    path.write_text(block.text, encoding="utf-8")
    compile(block.text, path.name, "exec")
    if _is_run(block):
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


_CLONE = """
git init --quiet --initial-branch main before && cd before
git config user.name you && git config user.email you@example.org
git add my_data.py && git commit --quiet --message "Load numbers" && git tag v1.4
cd .. && git clone --quiet before work && cd work && git switch --quiet --create change
"""


def _prepare(folder: Path) -> Path:
    """What the pages take for granted: a run, the project's own examples, and my_data.py.

    That is in a clone, which is given back, on a branch beside main. Beside the clone are what it
    is a clone of, and an environment.
    """
    shown = blocks(FIRST.read_text(encoding="utf-8"))
    data = next(block for block in shown if _file_name(block) == "my_data.py")
    (folder / "before").mkdir()
    (folder / "before" / "my_data.py").write_text(data.text, encoding="utf-8")
    (folder / "old-env").symlink_to(sys.prefix)
    _run(["bash", "-euc", _CLONE], folder, _environment())
    golden = ROOT / "tests" / "data" / "runs" / "golden.dlprof.jsonl"
    (folder / "work" / "run.dlprof.jsonl").write_bytes(golden.read_bytes())
    for name in ("configs", "examples"):
        (folder / "work" / name).symlink_to(ROOT / name)
    return folder / "work"


def run_examples(page: Path, folder: Path) -> None:
    """Run every example of a page as it is written."""
    faulthandler.cancel_dump_traceback_later()  # commands that sweep have limits of their own
    folder = _prepare(folder)
    environment = _environment(**SMALL_SWEEP, DLPROF_CACHE_DIR=str(folder / "cache"))
    for block in blocks(page.read_text(encoding="utf-8")):
        match block.language:
            case "sh" if _is_run(block):
                code = int(block.value) if block.mark == "exits" else 0
                run_commands(block.text, folder, environment, code=code)
            case "python":
                _run_python(block, folder, environment)
            case "toml":
                _read_toml(block, folder)
            case _:
                pass


def with_examples(pages: Iterable[Path]) -> list[Path]:
    """The pages that have examples to run."""
    return [
        page
        for page in pages
        if any(block.language in TO_RUN for block in blocks(page.read_text(encoding="utf-8")))
    ]
