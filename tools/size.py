"""How large dlprof is: lines as they are, docstrings, templates and scripts included.

``python tools/size.py`` prints each room and the whole; with names of packages or modules, such as
``advise search stats model engine/foretelling``, their sum alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "dlprof"
COUNTED = {".py", ".html", ".css", ".js", ".sh", ".toml"}


def lines(path: Path) -> int:
    """Lines of a file, or of all that a folder holds."""
    if path.is_dir():
        return sum(lines(each) for each in path.iterdir() if each.name != "__pycache__")
    return len(path.read_text().splitlines()) if path.suffix in COUNTED else 0


def find(name: str) -> Path:
    """The folder or module of a name."""
    folder = ROOT / name
    return folder if folder.is_dir() else folder.with_suffix(".py")


def main() -> None:
    """Print the figures."""
    names = sys.argv[1:]
    if names:
        print(f"{sum(lines(find(name)) for name in names):,}")
        return
    for path in sorted(ROOT.iterdir()):
        if count := lines(path):
            print(f"{count:8,}  {path.name}")
    print(f"{lines(ROOT):8,}  in all")


if __name__ == "__main__":
    main()
