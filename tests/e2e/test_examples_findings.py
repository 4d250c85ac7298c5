"""Every example of the findings' pages is run: what shows a cause, and its fix.

Apart from the other pages, as tests are shared out to processes by their files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import FINDINGS

from examples import run_examples, with_examples

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "page", with_examples(sorted(FINDINGS.glob("*.md"))), ids=lambda page: page.stem
)
def test_every_example_runs_as_written(page: Path, tmp_path: Path) -> None:
    run_examples(page, tmp_path)
