"""What ``dlprof machine`` shows, at several widths and as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import os
import tomllib
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from rich.console import Console, RenderableType

from dlprof.errors import UsageError
from dlprof.machine.core_speed import UNPINNED, SpeedProbe
from dlprof.machine.gpus import GpuReader
from dlprof.machine.inspection import inspect_machine
from dlprof.machine.neighbours import Neighbours, UserCpu
from dlprof.machine.overview import Overview, survey
from dlprof.machine.profiles import MachineProfile, known_profiles, parse_profile, read_profile
from dlprof.records import CoreSpeeds
from dlprof.report.machine import (
    machine_document,
    profile_document,
    profiles_document,
    render_machine,
    render_profile,
    render_profiles,
)

_DATA = Path(__file__).parents[2] / "data" / "machine"
_SPEED = CoreSpeeds(
    median=16310.4,
    low=11020.0,
    high=19807.5,
    unit="thousand steps/s of Python 3.12",
    slow_fraction=0.416,
)
_TODAY = dt.date(2026, 1, 5)


def _drawn(renderable: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _check(name: str, text: str) -> None:
    path = _DATA / "screens" / name
    if os.environ.get("DLPROF_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def _shared_server() -> Overview:
    reader = GpuReader(FakeNvml())
    users = [("maria", 23.71, 18), ("chen", 11.02, 9), ("root", 1.3, 41), ("x1004", 0.5, 1)]
    users += [("ops", 0.2, 3), ("ana", 0.04, 1), ("bo", 0.02, 2)]
    return Overview(
        machine=dataclasses.replace(
            inspect_machine(_DATA / "server-96t", gpus=reader),
            open_files_limit=1024,
            quota_cores=24.0,
            usable_cores=24.0,
            core_speed=_SPEED,
            affinity_cpus=48,
            shm_bytes=200 << 30,
            shm_available_bytes=190 << 30,
        ),
        quota_cgroup="/user.slice/user-1004.slice",
        memory_limit_cgroup="/user.slice/user-1004.slice",
        neighbours=Neighbours(
            watched_s=1.0,
            busy_cores=39.4,
            idle_cores=56.1,
            free_cores=11.9,
            stolen_cores=0.5,
            runnable=44,
            load_1m=37.21,
            cpu_pressure_fraction=0.123,
            io_pressure_fraction=0.001,
            memory_pressure_fraction=0.0,
            users=tuple(
                UserCpu(user=name, cpu_cores=cores, processes=count) for name, cores, count in users
            ),
            unseen_cores=2.6,
            gpus=reader.neighbours(),
        ),
    )


def _silent_machine() -> Overview:
    reader = GpuReader(FakeNvml(count=0))
    missing = {"busy_cores": "the system doesn't tell", "cpu_pressure_fraction": "no figures"}
    machine = inspect_machine(_DATA / "old-kernel", gpus=reader)
    return Overview(
        machine=dataclasses.replace(machine, physical_cores=None, open_files_limit=None),
        quota_cgroup=None,
        memory_limit_cgroup=None,
        neighbours=Neighbours(watched_s=1.0, unavailable=missing),
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_shared_server(width: int) -> None:
    text = _drawn(render_machine(_shared_server()), width)
    assert max(map(len, text.splitlines())) <= width
    _check(f"server-{width}.txt", text)


def test_a_machine_that_tells_little() -> None:
    _check("silent-80.txt", _drawn(render_machine(_silent_machine()), 80))


def test_a_quiet_machine_is_called_so() -> None:
    overview = _shared_server()
    quiet = dataclasses.replace(
        overview.neighbours, users=(), busy_cores=0.2, free_cores=47.8, unseen_cores=0.0, gpus=()
    )
    text = _drawn(render_machine(dataclasses.replace(overview, neighbours=quiet)), 80)
    assert "Nearly all of the 24 usable cores were free." in text
    assert "not visible" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_profile(width: int) -> None:
    profile = read_profile(Path("8x-titan-rtx-shared"))
    _check(f"profile-{width}.txt", _drawn(render_profile(profile), width))


def test_names_of_others_are_text_and_never_act() -> None:
    overview = _shared_server()
    hostile = UserCpu(user="[red]\x1b[31mx\x07\n", cpu_cores=3, processes=1)
    neighbours = dataclasses.replace(overview.neighbours, users=(hostile,))
    machine = dataclasses.replace(overview.machine, hostname="\x1b]0;t\x07[bold]h")
    shown = dataclasses.replace(overview, neighbours=neighbours, machine=machine)
    text = _drawn(render_machine(shown), 80)
    assert "[red]x" in text
    assert "[bold]h" in text
    assert "\x1b" not in text


def test_one_json_document() -> None:
    document = json.loads(machine_document(_shared_server()))
    assert document["schema_version"] == 1
    assert document["machine"]["usable_cores"] == 24
    assert document["machine"]["core_speed"] == {
        "median": 16310.4,
        "low": 11020.0,
        "high": 19807.5,
        "unit": "thousand steps/s of Python 3.12",
        "slow_fraction": 0.416,
    }
    assert document["quota_cgroup"] == "/user.slice/user-1004.slice"
    assert document["neighbours"]["users"][0] == {
        "user": "maria",
        "cpu_cores": 23.71,
        "processes": 18,
    }
    assert document["neighbours"]["gpus"][1]["processes"] == 2


def test_a_profile_as_json() -> None:
    profile = read_profile(Path("2080ti-box"))
    document = json.loads(profile_document(profile))
    assert document["profile"]["gpus"][0]["memory_gib"] == 11
    assert document["machine"]["logical_cpus"] == 16


def test_the_machines_that_are_known_by_name() -> None:
    profiles = tuple(known_profiles())
    lines = _drawn(render_profiles(profiles), 80).splitlines()
    assert len(lines) == len(profiles) + 2
    assert any(line.split()[0] == "dgx-h100" for line in lines)
    listed = json.loads(profiles_document(profiles))["profiles"]
    assert [each["name"] for each in listed] == [profile.name for profile in profiles]


def test_what_was_found_is_a_profile_that_is_read_again() -> None:
    machine = _shared_server().machine
    profile = MachineProfile.of(machine, _TODAY)
    read = parse_profile(tomllib.loads(profile.to_toml()), "saved.toml")
    assert read == profile
    again = read.to_machine()
    assert again.core_speed == machine.core_speed
    assert again.usable_cores == machine.usable_cores
    assert again.gpus[0].name == machine.gpus[0].name
    assert len(again.gpus) == len(machine.gpus)
    assert "16,310 thousand steps/s of Python 3.12" in _drawn(render_profile(read), 120)


def test_a_machine_that_tells_little_makes_a_profile_too() -> None:
    machine = dataclasses.replace(_silent_machine().machine, hostname="", cpu_model="")
    profile = MachineProfile.of(machine, _TODAY)
    assert parse_profile(tomllib.loads(profile.to_toml()), "saved.toml") == profile


def test_where_the_speed_is_not_known_is_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    overview = survey(
        1.0,
        root=_DATA / "docker-v2-quota",
        gpus=GpuReader(FakeNvml()),
        speed=SpeedProbe(cpus=[0]),
        sleep=lambda _: None,
    )
    assert overview.machine.core_speed is None
    assert overview.machine.unavailable["core_speed"] == UNPINNED
    assert UNPINNED in _drawn(render_machine(overview), 200)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 3601.0])
def test_a_time_that_nobody_watches_for(seconds: float) -> None:
    with pytest.raises(UsageError, match="--seconds"):
        survey(seconds, sleep=lambda _: None)


def test_a_survey_of_a_container() -> None:
    overview = survey(
        1.0,
        root=_DATA / "docker-v2-quota",
        gpus=GpuReader(FakeNvml()),
        sleep=lambda _: None,
    )
    assert overview.machine.quota_cores == 2.5
    assert overview.quota_cgroup == "/"
    assert overview.memory_limit_cgroup == "/"
    assert [card.processes for card in overview.neighbours.gpus] == [1, 2]
