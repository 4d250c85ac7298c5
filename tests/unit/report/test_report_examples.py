"""The run files of the documentation say what the documentation says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import drawn

from dlprof.advise.compare import compare
from dlprof.report.compare import comparison_report
from dlprof.store import read_run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"


def test_the_page_shows_what_the_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = compare(
        read_run("single-box.dlprof.jsonl"),
        read_run("shared-server.dlprof.jsonl"),
    )
    page = (ROOT / "docs" / "concepts" / "comparing.md").read_text(encoding="utf-8")
    assert drawn(comparison_report(found), 80).strip() in page
    assert found.findings[0].code == "cpu.neighbours"


def test_the_quota_hides_behind_the_neighbours() -> None:
    a, b = (read_run(EXAMPLES / f"{name}.dlprof.jsonl") for name in ("single-box", "shared-server"))
    parts = {part.code: part.log_ratio.value for part in compare(a, b).parts}
    assert parts["neighbours"] < 5 * parts["quota"] < 0
