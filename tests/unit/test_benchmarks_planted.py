"""The suite of planted causes: complete, and counted right."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from dlprof.records import Config, FindingCode

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NEED_A_DEVICE = {"main.pin", "transfer.pageable", "transfer.link", "gpu.neighbours"}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("planted")
    for name in ("planted", "planted_targets", "common"):
        sys.modules.pop(name, None)


def test_every_code_that_needs_no_device_is_planted_twice(planted: Any) -> None:
    counts = Counter(case.code for case in planted.CASES)
    assert set(get_args(FindingCode)) - set(counts) == NEED_A_DEVICE
    assert min(counts.values()) >= 2
    assert len(planted.CASES) >= 40
    assert len(planted.HEALTHY) >= 20


def test_every_case_has_its_target(planted: Any) -> None:
    for case in (*planted.CASES, *planted.HEALTHY):
        assert hasattr(planted.planted_targets, case.target or case.name)
    names = [case.name for case in (*planted.CASES, *planted.HEALTHY)]
    assert len(set(names)) == len(names)


def _finding(code: str, **evidence: object) -> dict[str, Any]:
    return {"code": code, "cost": 0.5, "evidence": evidence, "fix": None, "predicted_gain": None}


def test_answers_are_counted(planted: Any) -> None:
    case, well = planted.CASES[2], planted.HEALTHY[0]
    answers = [
        planted.Answer(case=case, findings=[_finding("fetch.cpu"), _finding("lock")]),
        planted.Answer(case=case, findings=[_finding("lock")]),
        planted.Answer(case=case, error="it did not end"),
        planted.Answer(case=well, findings=[_finding("consumer")]),
        planted.Answer(case=well, findings=[_finding("cpu.neighbours", other_cpu_cores=1.5)]),
        planted.Answer(case=well, findings=[_finding("cpu.neighbours", other_cpu_cores=0.1)]),
        planted.Answer(case=well, findings=[_finding("collate")]),
    ]
    assert [answer.right for answer in answers] == [True, False, False, True, True, False, False]
    rows = planted.confusion(answers).rows
    assert rows == [["fetch.cpu", "3", "1", "1 x lock, 1 x error"]]
    made = planted.report(answers, [], beside=False)
    assert not made.passed
    assert made.notes[0] == "1 of 3 planted causes came first"
    assert made.notes[1] == "2 of 4 healthy loaders raised another finding than `consumer`"


def test_fixes_become_configurations(planted: Any) -> None:
    more = planted._changed(Config(), {"num_workers": 2})
    assert more == Config(num_workers=2, prefetch_factor=2)
    two = Config(num_workers=2, prefetch_factor=2)
    fork = planted._changed(two, {"multiprocessing_context": "fork"})
    assert fork.start_method == "fork"
    assert planted._changed(two, {"num_workers": 0}) == Config()
