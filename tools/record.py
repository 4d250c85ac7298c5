"""Record the example runs that pages show: ``python tools/record.py [FOLDER]``.

Each is written by the page's own commands, on this machine, which should have nothing else to
do. Write the screens afterwards (``make docs``), and read whether the text still fits them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from readme_blocks import DOCS, blocks  # noqa: E402 - tests are no package

HOST = "vm"
RECORDED = {
    "tutorials/first-sweep": {"loader": "loader"},
    "how-to/headroom": {"headroom": "headroom"},
    "tutorials/slow-loader": {"before": "training-before", "why": "why", "after": "training-after"},
}
"""Run files by page, as its commands name them, and as the examples do."""


def record(page: str, names: dict[str, str], folder: Path, kept: Path) -> None:
    """Run the commands of a page that write these run files, and keep the files.

    Args:
        page: Of the documentation.
        names: Of the run files, there and here.
        folder: Where the commands run.
        kept: Where the run files go.
    """
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        if block.language == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(block.text, encoding="utf-8")
        elif any(f"-o {name}.dlprof.jsonl" in block.text for name in names):
            environment = os.environ | {"PATH": programs}
            subprocess.run(["bash", "-euc", block.text], cwd=folder, env=environment, check=True)
    for name, example in names.items():
        text = (folder / f"{name}.dlprof.jsonl").read_text(encoding="utf-8")
        for private, public in ((str(folder), "."), (platform.node(), HOST)):
            text = text.replace(private, public)
        (kept / f"{example}.dlprof.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    """Record all of them."""
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "examples"
    for page, names in RECORDED.items():
        with tempfile.TemporaryDirectory() as folder:
            record(page, names, Path(folder), kept)


if __name__ == "__main__":
    main()
