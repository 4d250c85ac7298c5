"""A command that has no directory to work in says so, and takes it for no fault of dlprof's own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dlprof.cli import entry
from dlprof.cli.entry import run
from dlprof.errors import ExitCode


@pytest.mark.parametrize(
    "arguments", [["sweep", "--print-config"], ["profile"], ["check"]], ids=lambda words: words[0]
)
def test_a_working_directory_that_was_removed(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert run(arguments, {}) == ExitCode.USAGE
    errors = capsys.readouterr().err
    assert "working directory" in errors
    assert "report" not in errors


def _nowhere() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", _nowhere)
    fault = entry.describe(FileNotFoundError(2, "No usable temporary directory"), verbose=False)

    assert fault.exit_code == ExitCode.USAGE
    assert "TMPDIR" in fault.hint


def test_another_missing_file_is_a_fault_of_its_own() -> None:
    fault = entry.describe(FileNotFoundError(2, "No such file"), verbose=False)

    assert fault.exit_code == ExitCode.INTERNAL
