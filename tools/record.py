"""Record the example runs that pages show: ``python tools/record.py [FOLDER]``.

Each is written by the page's own commands, on this machine, which should have nothing else to
do. Write the screens afterwards (``make docs``), and read whether the text still fits them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from readme_blocks import DOCS, blocks  # noqa: E402 - tests are no package

from dlprof.attach import attach  # noqa: E402 - as above
from dlprof.machine import inspect_machine  # noqa: E402 - as above
from dlprof.records.codec import to_json  # noqa: E402 - as above

HOST = "vm"
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
ENVIRONMENT = os.environ | {"PATH": PROGRAMS}  # in which python is this one
RECORDED = {
    "tutorials/first-sweep": {"loader": "loader"},
    "how-to/headroom": {"headroom": "headroom"},
    "tutorials/slow-loader": {"before": "training-before", "why": "why", "after": "training-after"},
}
"""Run files by page, as its commands name them, and as the examples do."""


ATTACHED = ROOT / "tests" / "data" / "attach" / "recorded.json"
"""What looks at the training of ``how-to/attach.md`` saw, which that page is drawn from."""


def record_attached(folder: Path, kept: Path) -> None:
    """Watch that training for 10 s, as ``dlprof attach`` does, and keep what was seen of it.

    Args:
        folder: Where it runs.
        kept: The file.
    """
    page = (DOCS / "how-to/attach.md").read_text(encoding="utf-8")
    script = next(each.text for each in blocks(page) if each.language == "python")
    (folder / "my_slow_training.py").write_text(script, encoding="utf-8")
    command = ["python", "my_slow_training.py", "600"]
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT) as training:
        try:
            time.sleep(15)  # as on the page
            found = attach(training.pid, 10.0)
        finally:
            training.terminate()
    seen = {
        "seen": to_json(found.seen),
        "usage": to_json(found.usage),
        "machine": to_json(inspect_machine()),
    }
    text = json.dumps(seen).replace(platform.node(), HOST)
    kept.write_text(f"{text}\n", encoding="utf-8")


def record(page: str, names: dict[str, str], folder: Path, kept: Path) -> None:
    """Run the commands of a page that write these run files, and keep the files.

    Args:
        page: Of the documentation.
        names: Of the run files, there and here.
        folder: Where the commands run.
        kept: Where the run files go.
    """
    for block in blocks((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        if block.language == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(block.text, encoding="utf-8")
        elif any(f"-o {name}.dlprof.jsonl" in block.text for name in names):
            subprocess.run(["bash", "-euc", block.text], cwd=folder, env=ENVIRONMENT, check=True)
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
    with tempfile.TemporaryDirectory() as folder:
        record_attached(
            Path(folder), ATTACHED if kept == ROOT / "examples" else kept / ATTACHED.name
        )


if __name__ == "__main__":
    main()
