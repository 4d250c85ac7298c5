"""Whether pinning is tried, and where trials' batches go."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlprof.engine.trials import copy_settings
from dlprof.errors import UsageError
from dlprof.records import Machine, Target
from dlprof.search.space import Space, build_space
from dlprof.settings import SweepSettings
from dlprof.settings.resolve import resolve_settings

_GIB = 1 << 30
_TARGET = Target(spec="data.py:train", kind="map", dataset="data.Numbers", length=1 << 16)


def _space(free_bytes: int, swapped_bytes: int = 0, **settings: Any) -> Space:
    machine = Machine(
        hostname="box",
        platform="Linux",
        cpu_model="CPU",
        logical_cpus=4,
        affinity_cpus=4,
        usable_cores=4.0,
        memory_bytes=64 * _GIB,
        memory_available_bytes=free_bytes,
        swap_used_bytes=swapped_bytes,
        fingerprint="box",
    )
    return build_space(SweepSettings(**settings), _TARGET, machine, has_accelerator=True)


def test_pinning_is_tried_where_there_is_memory() -> None:
    space = _space(50 * _GIB)
    assert {config.pin_memory for config in space.configs} == {False, True}
    assert not [each for each in space.left_out if "pin_memory" in each.setting]


def test_pinning_is_left_out_with_the_reason_where_memory_is_short() -> None:
    space = _space(2 * _GIB)
    assert {config.pin_memory for config in space.configs} == {False}
    (left,) = [each for each in space.left_out if each.setting == "pin_memory=True"]
    assert "can't be swapped out" in left.reason


def test_pinning_is_left_out_where_the_machine_swaps_for_want_of_memory() -> None:
    (left,) = [
        each for each in _space(15 * _GIB, 2 * _GIB).left_out if "pin_memory" in each.setting
    ]
    assert "2.0 GiB swapped out" in left.reason
    # Nobody asked again for what was swapped out once, or hardly anything was.
    for once in (_space(16 * _GIB, 2 * _GIB), _space(15 * _GIB, _GIB)):
        assert True in {config.pin_memory for config in once.configs}


def test_who_names_pinning_gets_it() -> None:
    space = _space(2 * _GIB, pin_memory=(True,))
    assert True in {config.pin_memory for config in space.configs}


def test_batches_go_to_the_accelerator_or_the_device_that_is_named() -> None:
    settings = SweepSettings(copy_ahead=True, step_s=0.01, step_on="device")
    assert copy_settings(settings, "cuda") == {
        "device": "cuda",
        "copy_ahead": True,
        "step_on": "device",
    }
    named = dataclasses.replace(settings, device="cuda:1")
    assert copy_settings(named, "cuda")["device"] == "cuda:1"
    assert copy_settings(SweepSettings(), None)["device"] == "cpu"


@pytest.mark.parametrize(
    ("changes", "option"),
    [({"copy_ahead": True}, "copy_ahead"), ({"step_s": 0.1, "step_on": "device"}, "step_on")],
)
def test_what_needs_a_device_is_refused_without_one(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} = .* needs an accelerator"):
        copy_settings(SweepSettings(**changes), None)


def test_a_step_on_the_device_needs_its_length(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="where step_time passes"):
        resolve_settings({"step_on": "device"}, environ={}, config_file=None, cwd=tmp_path)
