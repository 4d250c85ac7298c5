"""Machine profiles: those that come along, and every wrong one."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.errors import FileError
from dlprof.machine import profiles
from dlprof.machine.profiles import (
    GpuProfile,
    MachineProfile,
    known_profiles,
    parse_profile,
    read_profile,
    save_profile,
)

_SPEED = {"median": 2.0, "low": 1.0, "high": 3.0, "unit": "steps/s"}
_LEAST = {"name": "box", "description": "A box.", "logical_cpus": 16}


_KNOWN = sorted(Path(profiles.__file__).with_name("known").glob("*.toml"))
_ABOUT = {"name", "description", "source", "source_url", "read_on", "unsourced", "notes"}


@pytest.mark.parametrize("path", _KNOWN, ids=lambda path: path.stem)
def test_a_profile_that_comes_along_says_where_each_figure_is_from(path: Path) -> None:
    profile = read_profile(path)
    assert profile.source
    assert profile.source_url
    assert all(url.startswith("https://") for url in profile.source_url)
    assert dt.date.fromisoformat(profile.read_on or "") <= dt.datetime.now(dt.UTC).date()

    text = path.read_text(encoding="utf-8")
    figures, _, cards = text.partition("[[gpus]]")
    line = r"(?m)^(\w+) = (?!\[)[^#\n]+(?:# (.+))?$"
    beside = {name: why for name, why in re.findall(line, figures) if name not in _ABOUT}
    beside |= {f"gpus.{name}": why for name, why in re.findall(line, cards)}
    known = {name for name, value in dataclasses.asdict(profile).items() if value is not None}
    assert {name for name in beside if "." not in name} == known - _ABOUT - {"gpus"}

    pages = {name: re.match(r"\[(\d(?:, \d)*)\]", why) for name, why in beside.items()}
    cited = {int(page) for each in pages.values() if each for page in each[1].split(", ")}
    assert cited == set(range(1, len(profile.source_url) + 1)), "by its place in source_url"
    assumed = {name for name, each in pages.items() if not each}
    assert assumed == set(profile.unsourced)
    assert all(re.match(r"assumed: \w", beside[name]) for name in assumed)


def test_a_profile_that_comes_along_is_read_by_its_name() -> None:
    names = [profile.name for profile in known_profiles()]
    assert len(set(names)) == len(names)
    assert names == sorted(names)
    for name in names:
        assert read_profile(Path(name)).name == name
    assert read_profile(Path("aws-p4d-24xlarge")).name == "aws-p4d.24xlarge"


def test_a_file_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dgx-h100").write_text('name = "mine"\ndescription = "d"\nlogical_cpus = 2\n')
    assert read_profile(Path("dgx-h100")).name == "mine"


def test_a_name_that_nobody_knows_gets_a_suggestion() -> None:
    with pytest.raises(
        FileError, match="'dgx-h10' is neither a machine that dlprof knows"
    ) as error:
        read_profile(Path("dgx-h10"))
    assert error.value.hint == "Did you mean dgx-h100? dlprof machine --list shows the names."
    with pytest.raises(FileError, match=r"There is no file dgx-h100\.toml"):
        read_profile(Path("dgx-h100.toml"))
    with pytest.raises(FileError, match="is neither a machine"):
        read_profile(Path("x" * 300))  # no file can have that name, and the system says so


def test_what_is_no_profile_says_what_writes_one(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"machine": {}}')  # what dlprof machine --json prints
    with pytest.raises(FileError, match="is not valid TOML") as error:
        read_profile(path)
    assert error.value.hint.endswith("dlprof machine --save FILE writes one on that machine.")


def test_the_machines_of_the_field_are_there() -> None:
    assert {
        "2080ti-box",
        "8x-titan-rtx-shared",
        "dgx-h100",
        "8x-a100",
        "4090-box",
        "aws-p3.16xlarge",
        "aws-p4d.24xlarge",
        "aws-p5.48xlarge",
        "aws-g5.xlarge",
    } <= {profile.name for profile in known_profiles()}


def test_a_profile_is_saved_into_a_file_whose_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    profile = MachineProfile(name="box", description="A box.", logical_cpus=8)
    save_profile(path, profile)
    path.write_text(path.read_text().replace("= 8", "= 8 # of 16") + "# under my desk\n")
    save_profile(path, dataclasses.replace(profile, logical_cpus=4, memory_gib=16))
    assert path.read_text() == (
        'name = "box"\ndescription = "A box."\nlogical_cpus = 4 # of 16\n# under my desk\n'
        "memory_gib = 16\n"
    )
    path.write_text("not TOML")
    with pytest.raises(FileError, match="is not valid TOML"):
        save_profile(path, profile)
    assert path.read_text() == "not TOML"


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
    machine = read_profile(Path(stem)).to_machine()
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
        ({"memry_gib": 1}, "memry_gib is not a known key", "Did you mean memory_gib?"),
        ({"gpus": [{"model": "x", "memory": 1}]}, "gpus[0].memory is not a known", "memory_gib"),
        ({"gpus": [{}]}, "gpus[0].model is missing", "a text"),
        ({"gpus": 3}, "gpus must be a list of tables, not 3", ""),
        ({"gpus": [{"model": ""}]}, "gpus[0].model must be a text of 1 to 500 characters", ""),
        ({"gpus": [3]}, "gpus must be a list of tables, not [3]", ""),
        ({"gpus": [{"model": "x", "count": 0}]}, "gpus[0].count must be", "leave the key out"),
        ({"gpus": [{"model": "x", "pcie_generation": 99}]}, "gpus[0].pcie_generation must", ""),
        ({"logical_cpus": -1}, "logical_cpus must be a whole number from 1 to 100000, not -1", ""),
        ({"logical_cpus": True}, "not True", ""),
        ({"logical_cpus": "16"}, "not '16'", ""),
        ({"logical_cpus": 2.5}, "not 2.5", "Correct it"),
        ({"logical_cpus": 10**30}, "logical_cpus must be", ""),
        ({"memory_gib": float("inf")}, "not inf", "leave the key out"),
        ({"memory_gib": float("nan")}, "not nan", ""),
        ({"memory_gib": dt.date(2020, 1, 1)}, "memory_gib must be a number above 0", ""),
        ({"base_ghz": 3600.0}, "base_ghz must be a number above 0, at most 100", ""),
        ({"core_speed": 20000}, "core_speed must be a table", ""),
        ({"core_speed": {"median": 1.0}}, "core_speed.low is missing", "a number"),
        ({"core_speed": {**_SPEED, "mean": 1}}, "core_speed.mean is not a known key", "median"),
        ({"core_speed": {**_SPEED, "low": 0.0}}, "core_speed.low must be", ""),
        ({"core_speed": {**_SPEED, "slow_fraction": 2}}, "must be a number from 0 to 1", ""),
        ({"core_speed": {**_SPEED, "low": 9.0}}, "core_speed.median is 2", "--save"),
        ({"notes": "x"}, "notes must be a list of texts, not 'x'", ""),
        ({"unsourced": [3]}, "unsourced must be a list of texts", ""),
        ({"name": ""}, "name must be a text", ""),
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
    with pytest.raises(FileError, match=f"mine.toml: {key} is missing"):
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


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES))
def test_any_document_is_a_profile_or_a_file_error(document: dict[str, Any]) -> None:
    with contextlib.suppress(FileError):
        assert parse_profile({**_LEAST, **document}, "any.toml").to_machine().usable_cores > 0
