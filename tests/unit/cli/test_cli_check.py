"""The options of ``dlprof check`` and what it shows."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gate_samples
import pytest

from dlprof.cli import check as checked
from dlprof.cli.entry import run
from dlprof.errors import FileError, UsageError
from dlprof.records.gate import CheckReport
from dlprof.report.check import RENDERERS
from dlprof.report.live import PlainListener, open_listener
from dlprof.settings import parse_option


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fail-above", "much"], "--fail-above: 'much' is not a share"),
        (["--fail-above", "0"], "--fail-above: '0' is out of range"),
        (["--confidence", "100"], "--confidence: '100' is out of range"),
        (["--inconclusive", "pass"], "--inconclusive: 'pass' is not a choice here"),
        (["--design", "duet"], "--design is gone"),
        (["--allow-regression", " "], "--allow-regression: ' ' is not a reason"),
        (["--num-workers", "0,2"], "--num-workers has 2 values"),
        (["--junit", "no/such/folder/file"], "There is no folder no/such/folder"),
        (["--against", "./nowhere"], "--against ./nowhere: there is no such directory"),
    ],
)
def test_bad_options_are_refused(
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", "synthetic", "--json", *words], {}) == 2
    assert expected in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("text", "expected"), [("5%", 0.05), ("0.05", 0.05), ("5", 0.05), ("0.5%", 0.005), ("1", 0.01)]
)
def test_shares_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert parse_option("fail_above", text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-5%", "5%%", "1e400"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_option("fail_above", text)


@pytest.fixture
def failed() -> CheckReport:
    return gate_samples.failing_check()


def test_files_of_all_formats(failed: CheckReport, tmp_path: Path) -> None:
    files: dict[str, Path | None] = {name: tmp_path / name for name in RENDERERS}
    files["json"] = None
    checked.make_way(files)
    assert not checked.write_files(failed, files)
    assert {path.name for path in tmp_path.iterdir()} == set(RENDERERS) - {"json"}


@pytest.mark.parametrize(
    ("name", "is_page"), [("a.HTML", True), ("a.htm", True), ("a.json", False)]
)
def test_a_page_by_the_suffix(name: str, is_page: bool) -> None:
    assert checked.is_page(Path(name)) is is_page


def test_the_page_of_a_check(failed: CheckReport) -> None:
    page = RENDERERS["html"](failed)
    assert page.startswith("<!DOCTYPE html>")
    assert "Data loading got slower" in page
    assert "Details: -v" not in page


def test_a_file_that_cannot_be_written_costs_no_other(failed: CheckReport, tmp_path: Path) -> None:
    files = {"junit": tmp_path, "markdown": tmp_path / "comment.md"}
    (fault,) = checked.write_files(failed, files)
    assert fault.message == f"{tmp_path} is a folder"
    assert (tmp_path / "comment.md").exists()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        checked.make_way({"junit": tmp_path})


def test_two_formats_need_two_files(tmp_path: Path) -> None:
    checked.make_way({"json": tmp_path / "a", "junit": tmp_path / "b", "html": None})
    with pytest.raises(UsageError, match="Two formats go to"):
        checked.make_way({"json": tmp_path / "a", "junit": tmp_path / "." / "a"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py:make", "-o", "train.py"], "The check itself uses"),
        (["train.py:make", "-o", "link"], "The check itself uses"),
        (["synthetic", "-o", "pyproject.toml"], "The check itself uses"),
        (["synthetic", "--config", "own.toml", "--junit", "own.toml"], "The check itself uses"),
        (["synthetic", "--baseline", "old.jsonl", "-o", "old.jsonl"], "The check itself uses"),
        (["synthetic", "-o", "old.json", "--junit", "pyproject.toml"], "The check itself uses"),
        (["synthetic", "-o", "old.json", "--num-workers", "1,2"], "--num-workers has 2"),
        (["train.py", "-o", "old.json"], "does not say what to take"),
        (["synthetic", "-o", "old.json", "--junit", "nowhere/a.xml"], "There is no folder"),
    ],
)
def test_what_is_read_is_not_removed_nor_anything_where_the_usage_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "pyproject.toml", "own.toml", "old.json", "old.jsonl"):
        Path(name).touch()
    Path("link").symlink_to("train.py")
    there = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(["check", *words], {}) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == there


def test_settings_that_are_named_otherwise_are_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a variable, or in a folder above."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    files = [Path("own.toml"), tmp_path / "pyproject.toml"]
    for path in files:
        path.touch()
    monkeypatch.setenv("DLPROF_CONFIG", "own.toml")
    for path in files:
        assert run(["check", "synthetic", "-o", str(path)], {}) == 2
        assert "The check itself uses" in capsys.readouterr().err
        assert path.exists()


def test_the_file_that_stdout_goes_to_is_kept(tmp_path: Path) -> None:
    words = ("-m", "dlprof", "check", "synthetic", "-o", "/dev/stdout", "--against", "./nowhere")
    with (tmp_path / "said.txt").open("w") as file:
        done = subprocess.run(
            [sys.executable, *words], stdout=file, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "The check itself uses" in done.stderr
    assert (tmp_path / "said.txt").exists()


def test_a_check_without_a_verdict_leaves_none_of_before_and_says_so_to_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for name, path in files.items():
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    old = [tmp_path / "old.json", tmp_path / "old.xml"]
    for path in old:
        path.write_text("PASS")
    words = ["-o", str(old[0]), "--junit", str(old[1]), "--against", "./nowhere"]
    assert run(["check", "synthetic", *words], {}) == 2
    assert not any(path.exists() for path in old)
    assert "ERROR: Data loading was not checked" in files["GITHUB_STEP_SUMMARY"].read_text()
    assert re.search(
        r"^verdict<<(\w+)\nerror\n\1$", files["GITHUB_OUTPUT"].read_text(), re.MULTILINE
    )
    shown = capsys.readouterr().err
    assert "::error title=dlprof::--against ./nowhere: there is no such directory" in shown


@pytest.mark.parametrize("words", [["--no-such-option"], ["a", "b"], ["synthetic", "--brief"]])
def test_github_hears_of_options_that_can_t_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    output = tmp_path / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    assert run(["check", "--help"], {}) == 0
    assert not output.exists()
    assert run(["check", *words], {}) == 2
    assert output.read_text().count("\nerror\n") == 1


def test_github_reads_its_files_and_one_annotation(
    failed: CheckReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(tmp_path / "no" / "folder"),
    }
    checked.report_to_github(failed, environ, fails=True)
    assert summary.read_text().startswith("before\n")
    assert capsys.readouterr().err.count("::error ") == 1

    checked.report_to_github(failed, {}, fails=True)
    assert capsys.readouterr().err == ""


def test_a_line_comes_now_and_then_where_lines_stay() -> None:
    stream = io.StringIO()
    with PlainListener(stream) as progress:
        progress.message("building data.py:make")
        for second in range(25):
            progress.quads({"load": second, "start": 1}, None, float(second), 60.0)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "building data.py:make",
        "10 ABBA blocks, 1 start of each side, 10 s of at most 1 min",
        "20 ABBA blocks, 1 start of each side, 20 s of at most 1 min",
    ]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    open_listener(quiet=True).message("one")
    assert capsys.readouterr().err == ""
    open_listener(quiet=False).message("one")
    assert capsys.readouterr().err == f"one{os.linesep if os.name == 'nt' else chr(10)}"
