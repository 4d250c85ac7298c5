"""The adapter of ``docs/how-to/loaders.md``: installed as its page says, found, and used."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from readme_blocks import DOCS, blocks

from dlprof.store import read_run
from examples import SMALL_SWEEP

PAGE = DOCS / "how-to" / "loaders.md"


@pytest.mark.slow
def test_the_adapter_of_the_page_is_found_by_its_entry_point(tmp_path: Path) -> None:
    found = blocks(PAGE.read_text(encoding="utf-8"))
    for block in found:
        if block.language == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    (metadata,) = (tomllib.loads(block.text) for block in found if block.language == "text")
    ((package, where),) = metadata["project"]["entry-points"]["dlprof.loaders"].items()
    folder = tmp_path / "feeder-1.0.dist-info"  # what pip writes
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: feeder\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[dlprof.loaders]\n{package} = {where}\n")

    (commands,) = (block.text.splitlines() for block in found if block.language == "sh")
    environment = {**os.environ, **SMALL_SWEEP, "PYTHONPATH": str(tmp_path)}
    environment["DLPROF_CACHE_DIR"] = str(tmp_path / "cache")
    shown = [
        subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for command in commands
    ]
    target = read_run(tmp_path / "loader.dlprof.jsonl").header.target
    assert target.fixed["pin_memory"] == "a Feeder pins nothing"
    assert target.fixed["prefetch_factor"] == "Feeder takes no prefetch_factor"
    assert all("batches = feeder.loader(processes=" in each for each in shown)
