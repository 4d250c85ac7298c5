"""``dlprof baseline``, ``check --baseline`` and ``check --self-test`` as they are typed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from check_fakes import Opened

from dlprof.cli.entry import run
from dlprof.errors import ExitCode, FileError

FILE, TARGET = "loading.jsonl", "data.py:make"


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """Nothing is loaded; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    made = Opened()
    monkeypatch.setattr("dlprof.engine.checking.history.open_sides", made)
    monkeypatch.setattr("dlprof.engine.check.open_sides", made)
    return made


def dlprof(*words: str) -> int:
    return run([*words, "-q"], {})


def history(runs: int) -> None:
    for _ in range(runs):
        assert dlprof("baseline", "update", FILE, TARGET) == ExitCode.OK


def slower(factor: float) -> None:
    """Makes the history say that loading was so many times as slow as now."""
    lines = []
    for line in Path(FILE).read_text().splitlines():
        entry = json.loads(line)
        entry["figures"] = {name: factor * value for name, value in entry["figures"].items()}
        lines.append(json.dumps(entry))
    Path(FILE).write_text("\n".join(lines))


def test_update_measures_and_shows_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["baseline", "update", FILE, TARGET], {}) == ExitCode.OK
    said = capsys.readouterr().out
    assert "1 run of data.py:make on this kind of machine; check --baseline judges from 5" in said
    assert run(["baseline", "update", FILE, TARGET, "--json"], {}) == ExitCode.OK
    (added,) = json.loads(capsys.readouterr().out)["added"]
    assert added["comparable_runs"] == 2
    assert added["entry"]["key"]["target"] == TARGET


def test_show_lists_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    history(2)
    assert run(["baseline", "show", FILE], {}) == ExitCode.OK
    assert "loading.jsonl: 2 runs" in capsys.readouterr().out
    assert run(["baseline", "show", FILE, "--json"], {}) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["keys"][0]["runs"]) == 2


def test_a_check_without_comparable_runs_ends_with_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert dlprof("check", TARGET, "--baseline", FILE) == ExitCode.NO_BASELINE
    out = capsys.readouterr().out
    assert "the baseline is empty" in out
    assert "vs loading.jsonl (there is no such file)" in out
    history(5)
    other = ("check", TARGET, "--arg", "size=2", "--baseline", FILE)
    assert dlprof(*other) == ExitCode.NO_BASELINE
    out = " ".join(capsys.readouterr().out.split())
    assert "differs in target data.py:make instead of data.py:make size=2" in out


@pytest.mark.parametrize(
    ("factor", "options", "code"),
    [
        (1.0, (), ExitCode.OK),
        (0.5, (), ExitCode.OK),
        (0.5, ("--regression", "fail"), ExitCode.REGRESSION),
        (0.5, ("--regression", "fail", "--allow-regression", "meant"), ExitCode.OK),
        (0.5, ("--regression", "fail", "--fail-above", "2000%"), None),
    ],
)
def test_a_regression_warns_unless_it_is_to_fail(
    factor: float, options: tuple[str, ...], code: ExitCode | None
) -> None:
    history(5)
    slower(factor)
    wanted = ExitCode.USAGE if code is None else code
    assert dlprof("check", TARGET, "--baseline", FILE, *options) == wanted


def test_a_verdict_is_reported_although_a_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise FileError("The disk is full", hint="Free some space.")

    history(5)
    slower(0.5)
    monkeypatch.setattr("dlprof.files.replace_file", refuse)
    words = ("check", TARGET, "--baseline", FILE, "-o", "run.json")
    assert dlprof(*words, "--regression", "fail") == ExitCode.REGRESSION
    assert dlprof(*words) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert "FAIL" in shown.out
    assert shown.err.count("dlprof: The disk is full.\n  Free some space.\n") == 2


def test_a_history_that_cannot_be_kept_is_refused_before_it_is_measured(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dlprof("baseline", "update", "nowhere/loading.jsonl", TARGET) == ExitCode.USAGE
    assert "There is no folder nowhere" in capsys.readouterr().err.replace(f"{Path.cwd()}/", "")
    assert not opened.sides


def test_a_document_that_is_a_pipe_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert dlprof("baseline", "update", FILE, "--from", "pipe") == ExitCode.USAGE
    assert "pipe is not a plain file" in capsys.readouterr().err


def test_the_run_of_a_check_is_recorded_from_its_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dlprof("check", TARGET, "--baseline", FILE, "-o", "run.json")
    assert dlprof("baseline", "update", FILE, "--from", "run.json") == ExitCode.OK
    assert dlprof("baseline", "update", FILE, "--from", "run.json") == ExitCode.OK
    capsys.readouterr()
    run(["baseline", "show", FILE], {})
    assert "loading.jsonl: 1 run\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({}, ""),
        ({"state": "fail"}, "run.json holds a check that failed"),
        ({"state": "fail", "override": "meant"}, ""),
        (
            {"change": {"name": "working tree", "note": "with uncommitted changes"}},
            "run.json was measured with uncommitted changes",
        ),
    ],
)
def test_a_run_that_is_no_measure_for_later_ones_is_kept_with_a_warning(
    changes: dict[str, object], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dlprof("check", TARGET, "--baseline", FILE, "-o", "run.json")
    document = json.loads(Path("run.json").read_text())
    Path("run.json").write_text(json.dumps(document | changes))
    capsys.readouterr()
    assert dlprof("baseline", "update", FILE, "--from", "run.json") == ExitCode.OK
    shown = capsys.readouterr().err
    assert warning in shown
    assert ("warning" in shown) == bool(warning)
    assert Path(FILE).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file run.json"),
        (b"\xff", "isn't text"),
        (b"{}", "is no document of a check"),
    ],
)
def test_other_documents_are_refused(
    content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("run.json").write_bytes(content)
    assert dlprof("baseline", "update", FILE, "--from", "run.json") == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not Path(FILE).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("baseline", "show", FILE),
        ("baseline", "show", 300 * "a"),
        ("baseline", "update", FILE, TARGET, "--from", "run.json"),
        ("check", TARGET, "--baseline", FILE, "--against", "main"),
        ("check", TARGET, "--baseline", FILE, "--self-test"),
        ("check", TARGET, "--self-test", "--against-python", "python3"),
        ("check", TARGET, "--self-test", "--junit", "x.xml"),
        ("check", TARGET, "--baseline", FILE, "--regression", "maybe"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    words: tuple[str, ...], opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dlprof(*words) == ExitCode.USAGE
    assert capsys.readouterr().out == ""
    assert not opened.sides, "refused before anything is loaded"


def test_a_faulty_baseline_is_refused_before_time_is_spent(opened: Opened) -> None:
    Path(FILE).write_text("no JSON\n")
    assert dlprof("check", TARGET, "--baseline", FILE) == ExitCode.USAGE
    assert dlprof("baseline", "update", FILE, TARGET) == ExitCode.USAGE
    assert not opened.sides


def test_a_self_test_shows_whether_checks_can_be_trusted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert dlprof("check", TARGET, "--self-test") == ExitCode.OK
    assert "TRUSTED: checks on this machine" in capsys.readouterr().out
    assert dlprof("check", TARGET, "--self-test", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["trusted"] is True


def test_a_machine_that_can_not_be_trusted_fails_only_where_asked(opened: Opened) -> None:
    opened.noise = 0.5
    assert dlprof("check", TARGET, "--self-test") == ExitCode.OK
    strict = ("check", TARGET, "--self-test", "--inconclusive", "fail")
    assert dlprof(*strict) == ExitCode.INCONCLUSIVE
