"""Machine profiles: those that come along, and every wrong one."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.errors import FileError
from dlprof.machine.profiles import GpuProfile, MachineProfile, parse_profile, read_profile

_PROFILES = Path(__file__).parents[3] / "configs" / "machines"
_SPEED = {"median": 2.0, "low": 1.0, "high": 3.0, "unit": "steps/s"}
_LEAST = {"name": "box", "description": "A box.", "logical_cpus": 16}


@pytest.mark.parametrize("path", sorted(_PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_profiles_that_come_along_are_valid(path: Path) -> None:
    profile = read_profile(path)
    assert profile.name.replace(".", "-") == path.stem
    assert profile.source
    assert profile.gpus
    assert profile.to_machine().gpus


def test_the_machines_of_the_field_are_there() -> None:
    stems = {path.stem for path in _PROFILES.glob("*.toml")}
    assert {
        "2080ti-box",
        "8x-titan-rtx-shared",
        "dgx-h100",
        "8x-a100",
        "4090-box",
        "aws-p3-16xlarge",
        "aws-p4d-24xlarge",
        "aws-p5-48xlarge",
        "aws-g5-xlarge",
    } <= stems


@pytest.mark.parametrize(
    ("stem", "cpus_per_gpu"),
    [
        ("aws-p3-2xlarge", 8),
        ("aws-p3-16xlarge", 8),
        ("aws-p4d-24xlarge", 12),
        ("aws-p5-48xlarge", 24),
        ("aws-g5-xlarge", 4),
        ("8x-titan-rtx-shared", 12),
    ],
)
def test_cpus_per_gpu(stem: str, cpus_per_gpu: int) -> None:
    machine = read_profile(_PROFILES / f"{stem}.toml").to_machine()
    assert machine.logical_cpus == cpus_per_gpu * len(machine.gpus)


def test_a_profile_with_nothing_but_what_it_must_have() -> None:
    machine = parse_profile(_LEAST, "x.toml").to_machine()
    assert machine.usable_cores == 16
    assert machine.memory_bytes is None
    assert machine.unavailable["memory_bytes"] == "the machine profile doesn't say"
    assert machine.gpus == ()


def test_a_profile_as_a_machine() -> None:
    profile = MachineProfile(
        name="n",
        description="d",
        cpu_model="AMD EPYC 7R32",
        logical_cpus=8,
        memory_gib=61,
        shm_gib=0.5,
        gpus=(GpuProfile(model="A", count=2, memory_gib=24), GpuProfile(model="B")),
    )
    machine = profile.to_machine()
    assert [(card.index, card.name) for card in machine.gpus] == [(0, "A"), (1, "A"), (2, "B")]
    assert machine.memory_bytes == 61 << 30
    assert machine.shm_bytes == 1 << 29
    assert machine.fingerprint.startswith("amd-epyc-7r32-8c-64g-3gpu-")


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ({"memry_gib": 1}, "memry_gib is not a key", "memory_gib"),
        ({"gpus": [{"model": "x", "memory": 1}]}, "gpus[0].memory is not a key", "memory_gib"),
        ({"gpus": [{}]}, "gpus[0].model is missing", "model"),
        ({"gpus": 3}, "gpus should be", ""),
        ({"gpus": [{"model": ""}]}, "gpus[0].model should have", "can't be left out"),
        ({"gpus": [3]}, "gpus[0] should be", ""),
        ({"gpus": [{"model": "x", "count": 0}]}, "gpus[0].count should be", "Leave the key out"),
        ({"gpus": [{"model": "x", "pcie_generation": 99}]}, "gpus[0].pcie_generation", ""),
        ({"logical_cpus": -1}, "-1 is not", "can't be left out"),
        ({"logical_cpus": True}, "True is not", ""),
        ({"logical_cpus": "16"}, "'16' is not", ""),
        ({"logical_cpus": 2.5}, "2.5 is not", "can't be left out"),
        ({"logical_cpus": 10**30}, "logical_cpus should be", ""),
        ({"memory_gib": float("inf")}, "inf is not", "Leave the key out"),
        ({"memory_gib": float("nan")}, "nan is not", ""),
        ({"memory_gib": dt.date(2020, 1, 1)}, "memory_gib should be", ""),
        ({"base_ghz": 3600.0}, "base_ghz should be", ""),
        ({"core_speed": 20000}, "core_speed should be", ""),
        ({"core_speed": {"median": 1.0}}, "core_speed.low is missing", "unit"),
        ({"core_speed": {**_SPEED, "mean": 1}}, "core_speed.mean is not a key", "median"),
        ({"core_speed": {**_SPEED, "low": 0.0}}, "core_speed.low should be", ""),
        ({"core_speed": {**_SPEED, "low": 9.0}}, "core_speed.median is 2", "--save"),
        ({"notes": "x"}, "notes should be", ""),
        ({"name": ""}, "name should have", "can't be left out"),
        ({"physical_cores": 32}, "physical_cores is 32", "never the smaller"),
    ],
)
def test_a_wrong_profile_is_one_sentence(wrong: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_profile({**_LEAST, **wrong}, "mine.toml")
    assert caught.value.message.startswith("mine.toml: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert hint in caught.value.hint


@pytest.mark.parametrize("key", sorted(_LEAST))
def test_what_must_be_there(key: str) -> None:
    document = {name: value for name, value in _LEAST.items() if name != key}
    with pytest.raises(FileError, match=f"the key {key} is missing"):
        parse_profile(document, "mine.toml")


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"[[" * 3000, b"[1, 2]"])
def test_a_file_that_is_no_profile(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    with pytest.raises(FileError):
        read_profile(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(FileError, match=str(path)):
            read_profile(path)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_KEYS = st.sampled_from(["name", "logical_cpus", "gpus", "notes", "memory_gib", "source", "x"])


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES))
def test_any_document_is_a_profile_or_a_file_error(document: dict[str, Any]) -> None:
    with contextlib.suppress(FileError):
        assert parse_profile({**_LEAST, **document}, "any.toml").to_machine().usable_cores > 0
