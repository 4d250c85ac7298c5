"""What is written where the encoding of stdout lacks characters, as in a redirect on Windows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlprof.cli import options
from dlprof.report.document import Document, Text

EXAMPLE = Path(__file__).parents[3] / "examples" / "shared-server.dlprof.jsonl"
NOTE = "each sample waits 4 µs ± 1 µs … café"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """An example that leaves something out for a reason beyond ASCII."""
    first, *rest = EXAMPLE.read_text(encoding="utf-8").splitlines()
    header = json.loads(first)
    header["left_out"][0]["reason"] = NOTE
    path = tmp_path / "run.dlprof.jsonl"
    path.write_text("\n".join([json.dumps(header), *rest]) + "\n", encoding="utf-8")
    return path


def report(path: Path, encoding: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "report", "-v", path.name],
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"},
        cwd=path.parent,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout


def test_ascii_output_has_ascii_forms(run_file: Path) -> None:
    text = report(run_file, "ascii").decode("ascii")
    assert "2 <  " in text
    assert "?" not in text
    assert "each sample waits 4 us +/- 1 us ... caf\\xe9" in text


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_what_an_encoding_has_stays_as_it_is(run_file: Path, encoding: str) -> None:
    text = report(run_file, encoding).decode(encoding)
    assert "2 <  " in text
    assert "4 µs ± 1 µs" in text
    assert "café" in text


def test_utf_8_has_blocks(run_file: Path) -> None:
    text = report(run_file, "utf-8").decode()
    assert "2 ◀  " in text
    assert NOTE in text


def test_a_width_of_0_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some terminals report it, and scripts pass it on as COLUMNS."""
    monkeypatch.setenv("COLUMNS", "0")
    options.print_result(Document(title="", answer=(Text("the answer"),)))
    assert capsys.readouterr().out == "  the answer\n"


def test_a_report_of_a_script_is_ascii_where_stderr_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams are as Python hands them over."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "__stderr__", io.TextIOWrapper(raw, encoding="ascii"))
    options.print_report(Document(title="", answer=(Text("waits 4 µs"),)))
    assert raw.getvalue() == b"\n  waits 4 us\n"
