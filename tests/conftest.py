"""Which tests are run: those marked slow only where ``SLOW_TESTS`` asks for them."""

from __future__ import annotations

import os
import zlib

import pytest

# Not called DLPROF_…: to dlprof that would be an option it doesn't know.
_WANTED = os.environ.get("SLOW_TESTS", "")


def _is_wanted(name: str) -> bool:
    """Whether a slow test is run: "all" of them, or with "2/4" the third of four shares."""
    if _WANTED in {"", "all"}:
        return bool(_WANTED)
    share, shares = map(int, _WANTED.split("/"))
    return zlib.crc32(name.encode()) % shares == share % shares


def pytest_report_header() -> str:
    """Say which slow tests are run."""
    return f"slow tests: {_WANTED or 'none (SLOW_TESTS=all runs them)'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that aren't wanted."""
    left_out = [
        item for item in items if item.get_closest_marker("slow") and not _is_wanted(item.nodeid)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
