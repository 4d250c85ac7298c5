"""The README for PyPI, where a path leads nowhere: its links and pictures with the whole address.

Everything else about the package is in ``pyproject.toml``, the project's address too.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def with_addresses(page: str, repository: str) -> str:
    """A page whose links to files of the project work anywhere.

    Args:
        page: Markdown with paths in links, and in the attributes of pictures.
        repository: The project's address.
    """
    page = re.sub(r"\]\((?!\w+:|#)", f"]({repository}/blob/main/", page)
    return re.sub(r'(src|srcset)="(?!\w+:)', rf'\1="{repository}/raw/main/', page)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=with_addresses(readme, project["urls"]["Repository"]),
        long_description_content_type="text/markdown",
    )
