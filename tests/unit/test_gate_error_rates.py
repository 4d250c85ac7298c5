"""How often the rule errs, by simulation; ``benchmarks/gate_rule.py`` does it at length."""

from __future__ import annotations

import dataclasses
import importlib
import random
from collections import Counter
from typing import Any

import pytest

from dlprof.gate.plan import LOOKS, make_plan
from dlprof.gate.signed_rank import shift_interval
from dlprof.gate.verdict import judge

SESSIONS = 20


@pytest.fixture
def bench() -> Any:
    return importlib.import_module("gate_rule")


def verdicts(bench: Any, world: str, slowdown: str) -> Counter[str]:
    cell = bench.cell(getattr(bench, world), getattr(bench, slowdown), SESSIONS)
    return Counter(cell.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["QUIET", "CROWDED"])
@pytest.mark.parametrize("slowdown", ["NONE", "WITHIN", "LIMIT"])
def test_what_keeps_the_limit_never_fails(bench: Any, world: str, slowdown: str) -> None:
    found = verdicts(bench, world, slowdown)
    assert found["fail"] == 0
    if slowdown == "NONE":
        assert found["pass"] >= 0.9 * SESSIONS


@pytest.mark.parametrize(
    "world", ["QUIET", "CROWDED", pytest.param("DRIFTING", marks=pytest.mark.slow)]
)
def test_ten_percent_are_caught_and_never_passed(bench: Any, world: str) -> None:
    found = verdicts(bench, world, "UNIFORM")
    assert found["pass"] == 0
    assert found["fail"] >= 0.9 * SESSIONS


@pytest.mark.parametrize("world", ["QUIET", pytest.param("SWITCHING", marks=pytest.mark.slow)])
def test_five_percent_are_caught_where_three_are_the_limit(bench: Any, world: str) -> None:
    assert verdicts(bench, world, "FINE")["fail"] >= 0.95 * SESSIONS


def test_a_slow_tail_is_caught_too(bench: Any) -> None:
    found = verdicts(bench, "QUIET", "TAIL")
    assert found["fail"] == SESSIONS


@pytest.mark.slow
def test_over_all_looks_the_error_keeps_its_bound() -> None:
    """A shift that lies exactly at the limit, one view: Bonferroni allows 5 in 1000."""
    (rule,) = make_plan(gates=()).rules
    coin, sessions = random.Random(7), 1500
    wrong: Counter[str] = Counter()
    for _ in range(sessions):
        differences = [coin.gauss(0, 1) for _ in range(LOOKS[-1])]
        bounds = [shift_interval(differences[:look], rule.alpha) for look in rule.looks]
        wrong["fail"] += any(each.low > 0 for each in bounds)
        wrong["pass"] += any(each.high < 0 for each in bounds)
    assert 0 < wrong["fail"] <= 0.005 * sessions * 1.5
    assert 0 < wrong["pass"] <= 0.005 * sessions * 1.5


@pytest.mark.parametrize(
    "world",
    [
        "DRIFTING",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("CROWDED", "SWITCHING", "ODD")),
    ],
)
def test_checks_that_time_cuts_short_fail_nothing_at_the_limit(bench: Any, world: str) -> None:
    """However few their quads: a part of the error of the looks that are left is spent on them."""
    plan, failed, right = make_plan(gates=()), 0, 0
    for seed in range(60):
        for slowdown in (bench.LIMIT, bench.Slowdown(name="3x", mean=2.0)):
            machine = bench.Machine(getattr(bench, world), slowdown, f"cut {world} {seed}")
            quads = [machine.quad(number, seed) for number in range(5 + seed % 10)]
            failure = judge(plan, quads).state == "fail"
            failed += failure and slowdown is bench.LIMIT
            right += failure and slowdown is not bench.LIMIT
    assert failed == 0
    assert right >= 55


def test_blocks_that_differ_by_the_machine_alone_lie_apart_in_few_quads(bench: Any) -> None:
    """One of six by chance; one of four is what ``_blocks_show`` allows for."""
    heavy = dataclasses.replace(
        bench.SWITCHING, name="heavy", service_sd=0.4, drift_sd=0.1, outliers=0.02
    )
    for world in (bench.QUIET, bench.DRIFTING, bench.SWITCHING, heavy):
        machine, apart, count = bench.Machine(world, bench.NONE, "apart"), 0, 300
        for number in range(count):
            means: dict[str, list[float]] = {"base": [], "change": []}
            for block in machine.quad(number, 1).blocks:
                means[block.side].append(sum(block.service_s))
            apart += min(means["change"]) > max(means["base"])
        assert apart < 0.25 * count


def test_others_rules_know_a_clear_case(bench: Any) -> None:
    rules = importlib.import_module("others_rules").RULES
    base = [1.0 + 0.001 * place for place in range(20)]
    for rule in rules.values():
        assert rule(base, [1.3 * each for each in base])
        assert not rule(base, base)


def test_goals_are_held_cell_by_cell(bench: Any) -> None:
    def cell(slowdown: Any, **verdicts: int) -> Any:
        return bench.Cell(
            hurried=False,
            world=bench.QUIET.name,
            slowdown=slowdown.name,
            mean=slowdown.mean,
            sessions=100,
            verdicts=verdicts,
            quads=10,
            most_quads=20,
        )

    good = [cell(bench.NONE, **{"pass": 100}), cell(bench.UNIFORM, fail=99, inconclusive=1)]
    assert bench.is_reached(good)
    assert not bench.is_reached([cell(bench.WITHIN, fail=2)])
    assert not bench.is_reached([cell(bench.UNIFORM, fail=98, inconclusive=2)])
    assert not bench.is_reached([cell(bench.TAIL, **{"pass": 3})])
    report = bench.report_on(good, [("a rule", *["0.0"] * 8)])
    assert report.passed
    assert len(report.tables[1].columns) == 9
