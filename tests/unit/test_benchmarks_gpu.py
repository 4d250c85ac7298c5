"""The benchmark of the device, without one: how it judges."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


@pytest.fixture
def gpu() -> Any:
    return importlib.import_module("gpu")


@pytest.mark.parametrize(
    ("name", "mine", "other", "expected"),
    [
        ("a loop timed by device events", 12.0e9, 12.2e9, True),
        ("a loop timed by device events", 12.0e9, 12.5e9, False),
        ("torch.utils.benchmark", 12.0e9, 9e9, None),
        ("nvbandwidth", 12.0e9, 12.5e9, True),
        ("nvbandwidth", 11.0e9, 12.5e9, False),
        ("nvbandwidth", 11.0e9, None, None),
    ],
)
def test_copies_are_held_against_others(
    gpu: Any, name: str, mine: float, other: float | None, *, expected: bool | None
) -> None:
    assert gpu._copied(name, mine, other, 1 << 28).passed is expected


def test_pinned_copies_count_where_there_are_any(gpu: Any) -> None:
    cells = [
        {"bytes": 8, "memory": "pageable", "bytes_per_s": 9.0},
        {"bytes": 8, "memory": "pinned", "bytes_per_s": 5.0},
        {"bytes": 4, "memory": "pinned", "bytes_per_s": 7.0},
    ]
    assert gpu._rate_of({"devices": [{"cells": cells}]}, 8) == 5.0
    assert gpu._rate_of({"devices": [{"cells": cells[:1]}]}, 8) == 9.0
    assert gpu._rate_of({"devices": [{"cells": []}]}, 8) is None


def test_exposure_is_held_against_a_difference(gpu: Any) -> None:
    assert gpu._exposed("x", [0.0041, 0.0040], 0.004).passed
    assert not gpu._exposed("x", [0.005], 0.004).passed
    assert gpu._exposed("x", [], 0.004).passed is None
    assert gpu._exposed("x", [0.004], -0.001).passed is None


def test_without_nvbandwidth_there_is_no_figure_of_it(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.shutil, "which", lambda _name: None)
    assert gpu.nvbandwidth() is None


def test_the_report_fails_with_any_result(gpu: Any) -> None:
    good = gpu.Result(what="a", dlprof="1", other="1", ratio="1", passed=True)
    open_ = gpu.Result(what="b", dlprof="1", other="-", ratio="-", passed=None)
    bad = gpu.Result(what="c", dlprof="1", other="2", ratio="0.5", passed=False)
    assert gpu.report([good, open_], "cuda:0", 100.0).passed
    assert not gpu.report([good, bad], "cuda:0", 100.0).passed
    assert not gpu.report([good], "cuda:0", 500.0).passed
