"""What ``--json`` says of runs in which everything failed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest
from builders import config, failed, header, run, trial

from dlprof.advise.recommend import recommend
from dlprof.cli.entry import run as dlprof
from dlprof.cli.options import Asked
from dlprof.cli.profile import show
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import Failure
from dlprof.store import RunWriter

SHM = Failure(kind="shared_memory", message="Too little shared memory.", hint="Give more.")
TRIALS = (
    failed(config(0), "KeyError: 3", trial_id="t0001"),
    failed(config(1), outcome="skipped", failure=SHM, trial_id="t0002"),
    failed(config(2), outcome="skipped", failure=SHM, trial_id="t0003"),
)
FAILURES = [
    {"kind": "shared_memory", "message": "Too little shared memory.", "count": 2},
    {"kind": "worker_signal", "message": "KeyError: 3", "count": 1},
]


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_recommend_carries_the_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.dlprof.jsonl"
    with RunWriter.create(path, header()) as writer:
        for each in TRIALS:
            writer.append(each)
    assert dlprof(["recommend", str(path), "--json"], {}) == 6
    error = shown(capsys)["error"]
    assert error["kind"] == "nothing_measured"
    assert error["failures"] == FAILURES


def test_a_profile_is_shown_with_the_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = run(TRIALS[:1])
    asked = Asked(given={}, as_json=True, brief=False, quiet=False, verbose=False)
    with pytest.raises(click.exceptions.Exit) as ended:
        show(asked, profile, tmp_path)
    assert ended.value.exit_code == 6
    document = shown(capsys)
    assert document["error"]["failures"] == FAILURES[1:]
    assert document["error"]["kind"] == "nothing_measured"
    assert len(document["trials"]) == 1
    with pytest.raises(NothingMeasuredError) as caught:
        show(dataclasses.replace(asked, as_json=False), profile, tmp_path)
    assert list(caught.value.failures) == FAILURES[1:]

    capsys.readouterr()
    show(asked, run([trial(config(0), 100.0)]), tmp_path)
    assert "error" not in shown(capsys)


def test_other_faults_have_no_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert dlprof(["sweep", "imagse", "--json"], {}) == 2
    assert set(shown(capsys)["error"]) == {"kind", "message", "hint"}
    assert UsageError("No.").document == {"kind": "usage", "message": "No.", "hint": ""}


def test_from_python_too() -> None:
    with pytest.raises(NothingMeasuredError) as caught:
        recommend(run(TRIALS))
    assert list(caught.value.failures) == FAILURES


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sweep", "--max-wait", "2%"], "dlprof predict has it. See dlprof sweep --help."),
        # No command has what is gone, nor is it what was meant.
        (["recommend", "--method", "maxplus"], "'--method'.\n  See dlprof recommend --help."),
        (["sweep", "--bugdet", "1m"], "'--bugdet'. Did you mean '--budget'?\n"),
        (["sweep", "--max-rm", "1"], "'--max-rm'. Did you mean '--max-ram'?\n"),
        (["sweep", "--max-mem", "1"], "(Did you mean one of: '--max-ram', '--max-shm'?)\n"),
        # Nothing but the dashes is alike.
        (["predict", "--set", "1"], "'--set'.\n  See dlprof predict --help."),
        (["check", "--step-time", "1ms"], "dlprof sweep and dlprof recommend have it."),
        (["sweep", "--nonsense"], "  See dlprof sweep --help."),
    ],
)
def test_an_option_of_another_command_is_named_with_it(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dlprof(words, {}) == 2
    assert hint in capsys.readouterr().err


def test_a_target_file_that_is_not_there_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing torch takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlprof.engine.trials.TrialRunner", None)
    assert dlprof(["sweep", "my_data.py:make"], {}) == 2
    assert "There is no file 'my_data.py'" in capsys.readouterr().err
