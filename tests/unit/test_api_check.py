"""``dlprof.check``: the check as a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_fakes import Opened

import dlprof
from dlprof.engine.checking.compared import CheckSettings
from dlprof.errors import UsageError
from dlprof.settings import parse_option


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[CheckSettings, Any]]:
    """What checks against other code were asked; nothing is measured."""
    found: list[tuple[CheckSettings, Any]] = []

    def run_check(settings: CheckSettings, **rest: Any) -> str:
        found.append((settings, rest["cwd"]))
        return "the report"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlprof.engine.check.run_check", run_check)
    return found


def test_what_is_given_is_what_is_checked(
    asked: list[tuple[CheckSettings, Any]], tmp_path: Path
) -> None:
    report: object = dlprof.check(
        "data.py:make",
        against="main",
        fail_above=0.1,
        allow_regression="meant",
        directory=tmp_path / "sub",
        progress=False,
        num_workers=2,
        budget="30s",
    )
    assert report == "the report"
    ((settings, cwd),) = asked
    assert (settings.against, settings.fail_above) == ("main", 0.1)
    assert settings.override == "meant"
    assert (settings.sweep.num_workers, settings.sweep.budget_s) == ((2,), 30.0)
    assert cwd == tmp_path / "sub"


def test_a_check_takes_a_minute_unless_asked(asked: list[tuple[CheckSettings, Any]]) -> None:
    dlprof.check("data.py:make", progress=False)
    assert asked[0][0].sweep.budget_s == 60.0


def test_a_baseline_only_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[tuple[CheckSettings, Any]]
) -> None:
    monkeypatch.setattr("dlprof.engine.checking.history.open_sides", Opened())
    report = dlprof.check("data.py:make", baseline=tmp_path / "loading.jsonl", progress=False)
    assert report.state == "no_baseline"
    assert report.warn_only
    assert not asked


@pytest.mark.parametrize(
    "given", [{"cold_cache": True}, {"step_time": "5ms"}, {"make_load": "cores=2"}]
)
def test_what_no_check_goes_by_is_refused(
    asked: list[tuple[CheckSettings, Any]], given: dict[str, Any]
) -> None:
    """A file's may be there for sweeps."""
    (name,) = given
    with pytest.raises(UsageError, match=f"takes no {name}"):
        dlprof.check("data.py:make", progress=False, **given)
    assert not asked
    Path("pyproject.toml").write_text("[tool.dlprof]\ncold_cache = true\n")
    dlprof.check("data.py:make", progress=False)
    assert len(asked) == 1


def test_two_bases_are_refused() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        dlprof.check("data.py:make", against="main", baseline="loading.jsonl")


def test_a_live_object_is_refused() -> None:
    target: Any = object()
    with pytest.raises(UsageError, match="live object"):
        dlprof.check(target)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"fail_above": 5}, "fail_above: 5 may mean 5% or 500%"),
        ({"fail_above": 1}, "fail_above: 1 may mean 1% or 100%"),
        ({"fail_above": 0}, "fail_above: 0 is out of range"),
        ({"fail_above": "1001%"}, "fail_above: '1001%' is out of range"),
        ({"confidence": 99}, "confidence: 99 may mean 99% or 9900%"),
        ({"confidence": 1.0}, "confidence: 1.0 may mean 1% or 100%"),
        ({"confidence": float("nan")}, "confidence: nan is out of range"),
        ({"confidence": True}, "confidence: True is not a share"),
        ({"fail_above": float("inf")}, "fail_above: inf is out of range"),
    ],
)
def test_what_is_no_share_or_may_be_two_is_refused_at_once(
    asked: list[tuple[CheckSettings, Any]], given: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UsageError) as caught:
        dlprof.check("data.py:make", progress=False, **given)
    assert fault in caught.value.message
    assert caught.value.hint
    assert not asked


@pytest.mark.parametrize(
    ("given", "share"),
    [(0.05, 0.05), ("5%", 0.05), ("5", 0.05), ("0.05", 0.05), ("1", 0.01), ("1000%", 10.0)],
)
def test_a_share_is_one_whether_python_or_the_command_line_gives_it(
    asked: list[tuple[CheckSettings, Any]], given: float | str, share: float
) -> None:
    dlprof.check("data.py:make", progress=False, fail_above=given)
    assert asked[0][0].fail_above == pytest.approx(share)
    assert parse_option("fail_above", str(given)) == pytest.approx(share)


def test_what_python_takes_as_a_number_is_the_same_as_a_text() -> None:
    for number in (0.001, 0.05, 0.5, 0.999):
        assert parse_option("fail_above", number) == parse_option("fail_above", f"{number}")
