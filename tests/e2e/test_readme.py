"""The README's first command as written, on a clean copy; it takes minutes."""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from readme_blocks import ROOT, readme_command

PATIENCE_S = 1500
LEFT_BEHIND = (".git", ".venv", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis")
OURS = ("DLPROF_", "PYTHON", "VIRTUAL_ENV")


@pytest.fixture(autouse=True)
def patient() -> None:
    """Take away pytest's limit for a test: these install or sweep, and have limits of their own."""
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.slow
def test_the_first_command_ends_with_a_recommendation(tmp_path: Path) -> None:
    copy = tmp_path / "dlprof"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND, "*.dlprof.jsonl"))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(OURS)
    } | {"DLPROF_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        ["bash", "-euc", readme_command("run")],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("  Recommended  num_workers=")
    assert "  loader = DataLoader(dataset, ..., num_workers=" in result.stdout
    (run,) = copy.glob("images-*.dlprof.jsonl")
    saved = subprocess.run(
        [copy / ".venv" / "bin" / "dlprof", "recommend", run, "--format", "python"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    compile(saved.stdout, "settings.py", "exec")
