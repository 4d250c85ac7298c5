"""A run file from elsewhere never chooses what code is run, and is never written outside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_program import HOSTILE, cuts, flips, fuzz, program
from hypothesis import given
from hypothesis import strategies as st
from sample_run import RUN, write

from dlprof.errors import NothingMeasuredError
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.trial.protocol import BuildRequest

SETTINGS: dict[str, Any] = json.loads(
    json.dumps(
        settings_to_json(
            SweepSettings(
                target="stranger.py:make",
                arguments={"root": "/data"},
                step_callable="stranger:step",
            )
        )
    )
)
VALUES = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 10**30, "", [], {}, [1], ["on"], {"a": "b"}, HOSTILE),
        *(
            "stranger:make",
            "images",
            "images:count=2",
            "imagesx:y",
            "images.py:x",
            " images",
            "\nimages",
        ),
        *("synthetic:wait_ms=1", "os:system", "text:__import__('os')", "auto", "grid", "cuda"),
    ]
) | st.text(max_size=5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BuildRequest]:
    """What was asked to be built, if anything got that far; nothing is built or made."""
    requests: list[BuildRequest] = []

    def bench(request: BuildRequest, **details: Any) -> None:
        requests.append(request)
        raise NothingMeasuredError("Nothing is measured here.")

    monkeypatch.setattr("dlprof.engine.trials.TrialRunner", bench)
    monkeypatch.setattr("dlprof.engine.trials.prepare", lambda *_, **__: None)
    return requests


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text("raise SystemExit('the file was run')\n")
    header = dataclasses.replace(RUN.header, settings=SETTINGS)
    yield write(tmp_path / "run.dlprof.jsonl", dataclasses.replace(RUN, header=header))
    assert {path.name for path in tmp_path.iterdir()} <= {"stranger.py", "run.dlprof.jsonl"}


def resume(run_file: Path, content: bytes, asked: list[BuildRequest], *words: str) -> int:
    run_file.write_bytes(content)
    asked.clear()
    ended = program(["sweep", *words, "--resume", "-q", "-o", run_file.name])
    assert run_file.read_bytes() == content
    for request in asked:
        assert request.target.kind == "builtin"
    assert ended.code == (6 if asked else 2)
    return ended.code


def with_settings(run_file: Path, changes: dict[str, Any]) -> bytes:
    header, *others = run_file.read_bytes().splitlines()
    record = json.loads(header)
    record["settings"] = {**SETTINGS, **changes}
    return b"\n".join([json.dumps(record).encode(), *others]) + b"\n"


def test_what_the_file_names_is_not_run(run_file: Path, asked: list[BuildRequest]) -> None:
    assert resume(run_file, run_file.read_bytes(), asked) == 2
    built_in = with_settings(run_file, {"target": "images", "step_callable": None})
    assert resume(run_file, built_in, asked) == 6
    step = with_settings(run_file, {"target": "images"})
    assert resume(run_file, step, asked) == 2


def test_a_file_cut_anywhere(run_file: Path, asked: list[BuildRequest]) -> None:
    for content in cuts(run_file.read_bytes(), 97):
        resume(run_file, content, asked)


@pytest.mark.slow
def test_a_file_with_a_flipped_bit(run_file: Path, asked: list[BuildRequest]) -> None:
    for content in flips(run_file.read_bytes(), 200):
        resume(run_file, content, asked)


@pytest.mark.slow
@fuzz(250)
@given(changes=st.dictionaries(st.sampled_from(sorted(SETTINGS)), VALUES, min_size=1, max_size=4))
def test_any_settings(run_file: Path, asked: list[BuildRequest], changes: dict[str, Any]) -> None:
    before = run_file.read_bytes()
    resume(run_file, with_settings(run_file, changes), asked)
    run_file.write_bytes(before)
