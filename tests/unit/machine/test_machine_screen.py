"""What ``dlprof machine`` shows, at several widths and as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from golden import check_golden, drawn

from dlprof.errors import UsageError
from dlprof.machine.core_speed import UNPINNED, SpeedProbe
from dlprof.machine.inspection import inspect_machine
from dlprof.machine.neighbours import Neighbours, Overview, UserCpu, survey
from dlprof.machine.nvidia import GpuReader
from dlprof.machine.profiles import (
    MachineProfile,
    known_profiles,
    read_profile,
    save_profile,
)
from dlprof.records import CoreSpeeds
from dlprof.report.documents import json_document
from dlprof.report.machine import machine_report, profile_report

_DATA = Path(__file__).parents[2] / "data" / "machine"
_SPEED = CoreSpeeds(
    median=16310.4,
    low=11020.0,
    high=19807.5,
    unit="thousand steps/s of Python 3.12",
    slow_fraction=0.416,
)
_PROFILES = Path(__file__).parents[3] / "dlprof" / "machine" / "known"


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
    missing = {"busy_cores": "the system doesn't say", "cpu_pressure_fraction": "no figures"}
    machine = inspect_machine(_DATA / "old-kernel", gpus=reader)
    return Overview(
        machine=dataclasses.replace(machine, physical_cores=None, open_files_limit=None),
        quota_cgroup=None,
        memory_limit_cgroup=None,
        neighbours=Neighbours(watched_s=1.0, unavailable=missing),
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_shared_server(width: int) -> None:
    text = drawn(machine_report(_shared_server()), width)
    check_golden(f"machine-{width}.txt", text)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 16 or width < 80


@pytest.mark.parametrize("width", [60, 80, 200])
def test_all_of_the_shared_server(width: int) -> None:
    text = drawn(machine_report(_shared_server()), width, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    if width == 80:
        check_golden("machine-verbose.txt", text)


def test_a_machine_that_says_little() -> None:
    shown = machine_report(_silent_machine())
    check_golden("machine-silent.txt", drawn(shown, 80, verbose=True))


def test_what_the_usable_cores_follow_from_is_said() -> None:
    overview = _shared_server()
    text = " ".join(drawn(machine_report(overview), 80).split())
    assert "Free cores 12 of 24 usable, as 36 of 48 allowed CPUs are busy" in text
    quota = "CPU quota of cgroup /user.slice/user-1004.slice: 24"
    assert f"Usable 24 cores of 96 CPUs ({quota}, CPU affinity: 48)" in text
    free = dataclasses.replace(
        overview.machine, affinity_cpus=8, usable_cores=8.0, quota_cores=24.0
    )
    text = " ".join(drawn(machine_report(dataclasses.replace(overview, machine=free)), 80).split())
    assert f"Usable 8 cores of 96 CPUs (CPU affinity: 8, {quota})" in text


def test_nobody_plans_for_cores_of_which_none_is_free() -> None:
    overview = _shared_server()
    full = dataclasses.replace(overview.neighbours, free_cores=0.2)
    text = drawn(machine_report(dataclasses.replace(overview, neighbours=full)), 80)
    assert "  To do          wait: others slow what you measure" in text


def test_a_quiet_machine_is_called_so() -> None:
    overview = _shared_server()
    quiet = dataclasses.replace(
        overview.neighbours, users=(), busy_cores=0.2, free_cores=47.8, unseen_cores=0.0, gpus=()
    )
    shown = machine_report(dataclasses.replace(overview, neighbours=quiet))
    text = drawn(shown, 80, verbose=True)
    assert "nearly all of 24 usable" in text
    assert "not visible" not in text


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (((0, 0.0, 1), (0, 0.0, 1)), "2 of 2; busiest: 0 processes, 1.0 GiB in use, kernels"),
        (
            ((0, 0.0, 1), (2, 0.4, 1)),
            "1 of 2; busiest: 2 processes, 1.0 GiB in use, kernels active 40%",
        ),
        (
            ((None, None, 1), (None, None, 1)),
            "not known; busiest: 1.0 GiB in use, activity not known",
        ),
        # Another container's: its processes aren't shown.
        (((0, 0.0, 1), (0, 0.0, 20)), "1 of 2; busiest: 0 processes, 20.0 GiB in use"),
    ],
)
def test_cards_are_free_where_nobody_computes(
    use: tuple[tuple[int | None, float | None, int], ...], said: str
) -> None:
    overview = _shared_server()
    cards = tuple(
        dataclasses.replace(
            card,
            processes=processes,
            kernel_active_fraction=active,
            memory_used_bytes=used_gib << 30,
        )
        for card, (processes, active, used_gib) in zip(overview.neighbours.gpus, use, strict=True)
    )
    shown = dataclasses.replace(overview.neighbours, gpus=cards)
    text = drawn(machine_report(dataclasses.replace(overview, neighbours=shown)), 200)
    assert f"Free GPUs      {said}" in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_profile(width: int) -> None:
    profile = read_profile(_PROFILES / "8x-titan-rtx-shared.toml")
    check_golden(f"machine-profile-{width}.txt", drawn(profile_report(profile), width))


@pytest.mark.parametrize("profile", [*known_profiles()], ids=lambda profile: profile.name)
def test_a_profile_fits_a_screen_and_details_have_its_sources(profile: MachineProfile) -> None:
    assert len(drawn(profile_report(profile), 80).splitlines()) <= 16
    whole = " ".join(drawn(profile_report(profile), 200, verbose=True).split())
    assert all(said in whole for said in (*profile.source_url, *profile.notes))
    assert "-v" not in whole.split()


def test_names_of_others_are_text_and_never_act() -> None:
    overview = _shared_server()
    hostile = UserCpu(user="[red]\x1b[31mx\x07\n", cpu_cores=3, processes=1)
    neighbours = dataclasses.replace(overview.neighbours, users=(hostile,))
    machine = dataclasses.replace(overview.machine, hostname="\x1b]0;t\x07[bold]h")
    shown = dataclasses.replace(overview, neighbours=neighbours, machine=machine)
    text = drawn(machine_report(shown), 80)
    assert "[red]x" in text
    assert "[bold]h" in text
    assert "\x1b" not in text


def test_one_json_document() -> None:
    document = json.loads(json_document(_shared_server()))
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
    profile = read_profile(_PROFILES / "2080ti-box.toml")
    document = json.loads(json_document(profile=profile, machine=profile.to_machine()))
    assert document["profile"]["gpus"][0]["memory_gib"] == 11
    assert document["machine"]["logical_cpus"] == 16


def test_what_was_found_is_a_profile_that_is_read_again(tmp_path: Path) -> None:
    machine = _shared_server().machine
    profile = MachineProfile.of(machine, dt.date(2026, 11, 23))
    save_profile(tmp_path / "saved.toml", profile)
    read = read_profile(tmp_path / "saved.toml")
    assert read == profile
    again = read.to_machine()
    assert again.core_speed == machine.core_speed
    assert again.usable_cores == machine.usable_cores
    assert again.gpus[0].name == machine.gpus[0].name
    assert len(again.gpus) == len(machine.gpus)
    assert "16,310 thousand steps/s of Python 3.12" in drawn(profile_report(read), 120)


def test_a_machine_that_shows_little_makes_a_profile_too(tmp_path: Path) -> None:
    machine = dataclasses.replace(_silent_machine().machine, hostname="", cpu_model="")
    profile = MachineProfile.of(machine, dt.date(2026, 11, 23))
    save_profile(tmp_path / "saved.toml", profile)
    assert read_profile(tmp_path / "saved.toml") == profile


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
    assert UNPINNED in drawn(machine_report(overview), 200, verbose=True)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
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
