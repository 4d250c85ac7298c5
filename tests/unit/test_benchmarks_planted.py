"""How the benchmark of planted causes counts; nothing is planted here."""

from __future__ import annotations

import functools
import importlib
from typing import Any, get_args

import pytest

from dlprof.records import Config, FindingCode

NEED_A_DEVICE = {"main.pin", "transfer.pageable", "transfer.link", "gpu.neighbours"}


@pytest.fixture
def planted() -> Any:
    return importlib.import_module("planted")


@pytest.fixture
def gains() -> Any:
    return importlib.import_module("planted_gains")


def found(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "evidence": {}, "cost": 0.5, "fix": None, "predicted_gain": None, **more}


def test_every_code_is_planted_twice_and_every_loader_exists(planted: Any) -> None:
    codes = [case.code for case in planted.CASES]
    assert len(codes) >= 40
    assert len(planted.HEALTHY) == 20
    known = set(get_args(FindingCode))
    # What no profile says first of all can't be planted.
    assert set(codes) == known - NEED_A_DEVICE - {"data.unshared", "step.slowed"}
    assert all(codes.count(code) >= 2 for code in codes)
    targets = importlib.import_module("planted_targets")
    for case in planted.CASES:
        assert callable(getattr(targets, case.target or case.name))
    assert set(targets.FIXED) <= {case.name for case in planted.CASES}


def test_what_comes_first_counts(planted: Any) -> None:
    case = next(each for each in planted.CASES if each.code == "lock")
    assert planted.Answer(case=case, findings=[found("lock"), found("fetch.io")]).right
    assert not planted.Answer(case=case, findings=[found("fetch.io"), found("lock")]).right
    assert not planted.Answer(case=case).right
    assert not planted.Answer(case=case, findings=[found("lock")], error="it did not end").right


def test_a_healthy_loader_may_be_warned_of_a_crowd_that_is_there(planted: Any) -> None:
    case = planted.HEALTHY[0]
    crowd = found("cpu.neighbours", evidence={"other_cpu_cores": 1.2})
    alone = found("cpu.neighbours", evidence={"other_cpu_cores": 0.1})
    assert planted.Answer(case=case).right
    assert planted.Answer(case=case, findings=[crowd, found("consumer")]).right
    assert not planted.Answer(case=case, findings=[alone]).right
    assert not planted.Answer(case=case, findings=[found("collate")]).right


def test_the_report_holds_causes_healthy_loaders_and_gains_to_their_goals(
    planted: Any, gains: Any
) -> None:
    lock = next(each for each in planted.CASES if each.code == "lock")
    right = planted.Answer(case=lock, findings=[found("lock")])
    wrong = planted.Answer(case=lock, findings=[found("fetch.io")])
    well = planted.Answer(case=planted.HEALTHY[0], findings=[found("consumer")])
    true = gains.TrueGain(
        case="lock_file", code="lock", predicted=2.0, low=1.5, high=2.5, source="bound", true=1.9
    )
    far = gains.TrueGain(
        case="lock_file", code="lock", predicted=2.0, low=1.5, high=2.5, source="bound", true=4.0
    )
    assert (true.honest, far.honest) == (True, False)
    report = functools.partial(planted.report, name="planted", title="Planted bottlenecks")
    assert report([right, well], [true], beside=False).passed
    assert not report([right, well], [far], beside=False).passed
    assert not report([right] * 9 + [wrong], [], beside=False).passed
    assert report([right] * 9 + [wrong], [], beside=True).passed
    assert planted.confusion([right, wrong]).rows == [["lock", "2", "1", "1 x fetch.io"]]


def test_a_fix_is_applied_as_the_finding_has_it(gains: Any) -> None:
    by_name = 'torch.multiprocessing.set_sharing_strategy("file_system")'
    fix = {"dataloader_kwargs": {"num_workers": 4}, "code": by_name}
    changed = gains._settings(fix)
    assert changed == {"num_workers": 4, "sharing_strategy": "file_system"}
    after = gains._changed(Config(), changed)
    assert (after.num_workers, after.prefetch_factor) == (4, 2)
    assert gains._settings({"dataloader_kwargs": None}) == {}


def test_a_finding_without_a_gain_has_none_to_measure(planted: Any, gains: Any) -> None:
    case = planted.CASES[0]
    assert gains.measure_gain(case, []) is None
    assert gains.measure_gain(case, [found("memory.growth")]) is None
