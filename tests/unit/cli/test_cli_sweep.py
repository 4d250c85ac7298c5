from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import blocks, config
from builders import run as made_run

from dlprof.cli import BEGAN_S
from dlprof.cli.entry import run
from dlprof.records import Cost, RunEnd
from dlprof.settings import SweepSettings
from dlprof.settings.resolve import DEFAULT_ORIGIN
from dlprof.trial.nodes import Ranks


class FakeSweep:
    """Takes the place of the sweep and keeps what it was called with."""

    def __init__(self) -> None:
        self.settings = SweepSettings()
        self.options: dict[str, Any] = {}
        self.end: RunEnd | None = None

    def run_sweep(self, settings: SweepSettings, **options: Any) -> Any:
        self.settings, self.options = settings, options
        measured = made_run(blocks({config(0): (100.0, 101.0), config(2): (180.0, 183.0)}))
        options["listener"].planned(measured.header, [], None)
        return dataclasses.replace(measured, end=self.end)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSweep:
    monkeypatch.chdir(tmp_path)
    made = FakeSweep()
    monkeypatch.setattr("dlprof.engine.run_sweep", made.run_sweep)
    return made


def test_flags_reach_the_sweep(fake: FakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "sweep data.py:make --arg root=/data --arg size=64 --num-workers 0,2:4 --pin-memory both"
        " --step-time 12ms --budget 2m --no-shuffle --max-ram 4GiB --cold-cache -o out.jsonl"
        " --force"
    )
    assert run(arguments.split(), {}) == 0
    settings = fake.settings
    assert settings.target == "data.py:make"
    assert settings.arguments == {"root": "/data", "size": "64"}
    assert settings.num_workers == (0, 2, 3, 4)
    assert settings.pin_memory == (False, True)
    assert settings.step_s == 0.012
    assert settings.budget_s == 120
    assert settings.shuffle is False
    assert settings.max_ram_bytes == 4 << 30
    assert settings.cold_cache is True
    assert fake.options["output"] == Path("out.jsonl")
    assert fake.options["origins"]["budget"] == "--budget"
    assert (fake.options["resume"], fake.options["force"]) == (False, True)
    out, err = capsys.readouterr()
    assert "  Recommended  num_workers=2" in out
    assert "0 configurations" in err


def test_what_is_not_given_stays_at_its_default(fake: FakeSweep) -> None:
    assert run(["sweep", "-q"], {}) == 0
    assert fake.settings == SweepSettings()
    assert fake.options["output"].name.startswith("images-")


def test_json_is_one_document_on_stdout(
    fake: FakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


def test_quiet_leaves_stderr_empty(fake: FakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "-q"], {}) == 0
    assert capsys.readouterr().err == ""


def test_print_config_measures_nothing(
    fake: FakeSweep, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["sweep", "--print-config", "--budget", "30s"], {}) == 0
    written = tmp_path / "again.toml"
    written.write_text(capsys.readouterr().out, encoding="utf-8")
    assert fake.options == {}
    assert run(["sweep", "-q", "--config", str(written)], {}) == 0
    assert fake.settings.budget_s == 30


def test_print_config_is_no_json(fake: FakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--print-config", "--json"], {}) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "--print-config writes TOML, and --json asks for JSON."
    assert fake.options == {}


def test_resume_takes_the_file_that_is_named(fake: FakeSweep) -> None:
    assert run(["sweep", "-q", "--resume", "-o", "old.jsonl"], {}) == 0
    assert fake.options["resume"] is True
    assert set(fake.options["origins"].values()) == {DEFAULT_ORIGIN}


def test_what_flags_name_is_distinguished_from_defaults(fake: FakeSweep) -> None:
    words = ["sweep", "-q", "--resume", "-o", "old.jsonl", "--budget", "90s", "--arg", "a=b"]
    assert run(words, {}) == 0
    origins = fake.options["origins"]
    assert {key for key, origin in origins.items() if origin != DEFAULT_ORIGIN} == {"budget", "arg"}


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_interrupted_sweep_shows_what_it_has_and_says_so(
    fake: FakeSweep, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    cost = Cost(measured=1.0, overhead=0.5, total=1.5)
    fake.end = RunEnd(ended_at="2026-01-01T00:00:00Z", reason="interrupted", cost_s=cost)
    assert run(["sweep", "-q", *flags], {}) == 130
    assert "interrupted" in capsys.readouterr().out


@pytest.mark.parametrize("began_s", [12.5, None])
def test_the_budget_counts_from_the_program_s_start(fake: FakeSweep, began_s: float | None) -> None:
    where = contextvars.copy_context()
    where.run(BEGAN_S.set, began_s)
    assert where.run(run, ["sweep", "-q"], {}) == 0
    assert fake.options["began_s"] == pytest.approx(began_s, abs=10.0)


def test_the_budget_is_not_spent_on_ranks_that_come_late(
    fake: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def gather(*_: object) -> Iterator[Ranks]:
        time.sleep(0.1)
        yield Ranks()

    monkeypatch.setattr("dlprof.engine.ranks.gather_ranks", gather)
    where = contextvars.copy_context()
    where.run(BEGAN_S.set, 12.5)
    assert where.run(run, ["sweep", "-q"], {}) == 0
    assert fake.options["began_s"] >= 12.6
