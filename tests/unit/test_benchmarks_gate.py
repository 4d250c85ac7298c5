"""The campaign of the gate: its plan, its arithmetic and its goals; nothing is measured here."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from gate_samples import confirmed, load_quads

from dlprof.gate.plan import make_plan


@pytest.fixture
def tables() -> Any:
    return importlib.import_module("gate_tables")


@pytest.fixture
def campaign(tables: Any) -> Any:
    return importlib.import_module("gate_campaign")


def sessions(tables: Any, verdicts: dict[str, str], seconds: float = 10.0) -> list[Any]:
    """As many sessions of each kind as the goals ask for, each on processes of its own."""
    return [
        tables.Session(
            kind=kind.name,
            crowded=crowded,
            workers=2,
            verdict=verdicts.get(kind.name, "pass" if kind.is_harmless else "fail"),
            failed=(),
            undecided=(),
            quads=10,
            seconds=seconds,
            waited=0.1,
            others=("t test at 95 % (pyperf)",),
            pair=number,
            shift=0.01,
        )
        for kind in tables.KINDS
        for crowded in (False, True)
        for number in range(kind.wanted[crowded])
    ]


@pytest.mark.parametrize(
    ("verdicts", "reached"),
    [
        ({}, True),
        ({"none": "fail"}, False),
        ({"uniform CPU 10 %": "inconclusive"}, False),
        ({"CPU 5 %, --fail-above 3 %": "inconclusive"}, False),
        ({"collate 20 %": "inconclusive"}, True),
        ({"collate 20 %": "pass"}, False),
        ({"none": "inconclusive"}, False),
        ({"none, sides apart": "inconclusive"}, True),
        ({"none, sides apart": "fail"}, False),
    ],
)
def test_the_goals_are_held_against_each_kind(
    tables: Any, verdicts: dict[str, str], *, reached: bool
) -> None:
    assert tables.is_reached(tables.cells_of(sessions(tables, verdicts))) is reached


def test_slow_verdicts_miss_the_goal(tables: Any) -> None:
    assert tables.is_reached(tables.cells_of(sessions(tables, {}, seconds=30.0))) is False


def test_few_sessions_reach_nothing_and_miss_nothing(tables: Any) -> None:
    assert tables.is_reached(tables.cells_of(sessions(tables, {})[::20])) is None
    quiet = [each for each in sessions(tables, {}) if not each.crowded]
    assert tables.is_reached(tables.cells_of(quiet)) is None


def test_the_tables_have_a_row_for_each_kind_and_machine(tables: Any) -> None:
    report = tables.report_on(sessions(tables, {}))
    ours, others = report.tables
    assert len(ours.rows) == len(others.rows) == 2 * len(tables.KINDS)
    assert others.rows[0][2:] == ("0.0", "0.0", "0.0", "100.0", "0.0", "0.0")


def test_each_round_has_all_kinds_on_both_kinds_of_machine(campaign: Any, tables: Any) -> None:
    size = sum(2 * kind.share * len(kind.workers) for kind in tables.KINDS)
    planned = list(itertools.islice(campaign.schedule(1, budget_s=60.0), 2 * size))
    for part in (planned[:size], planned[size:]):
        counts = collections.Counter((each.kind.name, each.crowded, each.workers) for each in part)
        assert counts["none", True, 0] == counts["none", False, 2] == 1
        assert counts["none, sides apart", True, 0] == 2
        assert counts["start-up +1 s", True, 2] == 1
    assert len({each.seed for each in planned}) == len(planned)


def test_a_session_shows_what_all_rules_say_of_its_blocks(campaign: Any, tables: Any) -> None:
    planned = next(campaign.schedule(7, budget_s=60.0))
    plan = make_plan(gates=())
    session = campaign.ended_session(planned, plan, confirmed(load_quads(11, 0.2)), 12.345)
    assert (session.verdict, session.failed, session.seconds) == ("fail", ("service",), 12.35)
    assert session.pair == 7
    assert session.shift == pytest.approx(0.2, abs=0.1)
    assert set(session.others) <= set(importlib.import_module("others_rules").RULES)
    assert "mean more than 10 % up" in session.others


def test_sessions_are_read_back(campaign: Any, tables: Any, tmp_path: Path) -> None:
    made = sessions(tables, {})[:3]
    path = tmp_path / "gate_campaign.json"
    assert campaign.earlier(path) == []
    data = {"sessions": [dataclasses.asdict(each) for each in made]}
    path.write_text(json.dumps({"data": data}))
    assert campaign.earlier(path) == made
