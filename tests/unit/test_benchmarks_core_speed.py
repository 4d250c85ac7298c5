"""The benchmark of the cores' speed: its arithmetic."""

from __future__ import annotations

import importlib
import itertools
import math
import random
from typing import Any

import pytest


@pytest.fixture
def core_speed() -> Any:
    return importlib.import_module("core_speed")


def repeats(core_speed: Any, left: float) -> Any:
    """Rates that follow the speed with an exponent of 0.8, but for what is left."""
    rng = random.Random(4)
    speeds = [math.log(rng.choice((1.0, 1.8))) for _ in range(400)]
    pairs = [(speed, 0.8 * speed + rng.gauss(0, left)) for speed in speeds]
    return core_speed.Repeats(load="x, 2 workers", pairs=pairs, probe_cores=[0.01, 0.02])


def test_what_the_speed_explains_is_taken_off_the_scatter(core_speed: Any) -> None:
    found = repeats(core_speed, 0.04)
    assert found.exponent == pytest.approx(0.8, abs=0.02)
    assert found.left == pytest.approx(0.04, rel=0.1)
    assert found.explained > 0.95
    assert found.spread > 0.2


def test_what_a_probe_costs_is_reported_with_its_error(core_speed: Any) -> None:
    found = core_speed.Lost(load="x", log_ratios=[math.log(0.99), math.log(0.97)] * 8, cores=[])
    assert found.value == pytest.approx(0.02, abs=0.001)
    assert found.error == pytest.approx(0.0026, abs=0.0002)


@pytest.mark.parametrize(
    ("left", "ratio", "cores", "passed"),
    [
        (0.04, 1.0, 0.009, True),
        (0.08, 1.0, 0.009, False),
        (0.04, 0.98, 0.009, False),
        (0.04, 1.0, 0.012, False),
    ],
)
def test_goals(core_speed: Any, left: float, ratio: float, cores: float, *, passed: bool) -> None:
    rng = random.Random(1)
    ratios = [math.log(ratio) + rng.gauss(0, 0.001) for _ in range(100)]
    report = core_speed.report_on(
        [repeats(core_speed, left)],
        [core_speed.Lost(load="x", log_ratios=ratios, cores=[0.005, cores, 0.02])],
    )
    assert f"{100 * cores:.2f}" in report.tables[1].rows[0]
    assert report.passed is passed
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)


@pytest.mark.slow
def test_loads_do_their_work(core_speed: Any) -> None:
    for work in (core_speed.computing, core_speed.sleeping):
        assert len(list(itertools.islice(work(), 2))) == 2
    found = core_speed.lost("x", core_speed.sleeping, 1, 0.01, 2, 0.05)
    assert found.log_ratios
    assert all(0 < cores < 1 for cores in found.cores)
