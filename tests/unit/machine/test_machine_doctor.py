"""What the doctor says of machines that lack something, and of one that lacks nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from golden import drawn

from dlprof.cli.entry import run
from dlprof.machine import doctor
from dlprof.machine.doctor import Check, SystemFacts, examine, look
from dlprof.machine.neighbours import Neighbours
from dlprof.machine.nvidia import GpuReader
from dlprof.records import GpuInfo, Machine
from dlprof.report.documents import json_document
from dlprof.report.machine import doctor_report

DATA = Path(__file__).parents[2] / "data" / "machine"
GIB = 1 << 30
HEALTHY = Machine(
    hostname="box",
    platform="Linux 6.8",
    cpu_model="CPU",
    logical_cpus=16,
    affinity_cpus=16,
    usable_cores=16.0,
    memory_bytes=64 * GIB,
    memory_available_bytes=60 * GIB,
    shm_bytes=32 * GIB,
    shm_available_bytes=31 * GIB,
    open_files_limit=65_536,
    gpus=(GpuInfo(index=0, name="NVIDIA H200", uuid="a"),),
    fingerprint="box",
)
FACTS = SystemFacts(
    machine=HEALTHY,
    cpu_count=16,
    shm_writable=True,
    hard_open_files=1_048_576,
    torch="2.13.0",
    gpu_devices=1,
    temporary="/var/tmp",
    clock="tsc",
)


def facts(**changes: Any) -> SystemFacts:
    """The healthy machine with a difference, in its ``Machine`` or beside it."""
    names = {field.name for field in dataclasses.fields(Machine)}
    inner = {name: value for name, value in changes.items() if name in names}
    outer = {name: value for name, value in changes.items() if name not in names}
    return dataclasses.replace(FACTS, machine=dataclasses.replace(HEALTHY, **inner), **outer)


def amiss(looked_at: SystemFacts) -> list[Check]:
    return [check for check in examine(looked_at) if check.state != "ok"]


def test_a_healthy_machine_has_nothing_amiss() -> None:
    assert amiss(FACTS) == []
    assert len(examine(FACTS)) == 10
    assert not any(check.advice for check in examine(FACTS))


@pytest.mark.parametrize(
    ("changes", "name", "state", "finding", "advice"),
    [
        ({"shm_bytes": 64 << 20}, "shared memory", "problem", "holds 64.0 MiB", "--shm-size=8g"),
        ({"shm_bytes": None}, "shared memory", "problem", "There is no", "num_workers=0"),
        ({"shm_writable": False}, "shared memory", "problem", "can't be written", "mode=1777"),
        ({"shm_available_bytes": 100 << 20}, "shared memory", "warning", "100 MiB of", "emptyDir"),
        ({"open_files_limit": 1024}, "open files", "warning", "1,024 files", "ulimit -n 1048576"),
        (
            {"open_files_limit": 1024, "hard_open_files": 1024},
            "open files",
            "warning",
            "takes one",
            "Call torch.multiprocessing.set_sharing_strategy",
        ),
        ({"affinity_cpus": 4, "usable_cores": 4.0}, "cores", "warning", "allows 4", "4 cores"),
        (
            {"affinity_cpus": 8, "quota_cores": 2.5, "usable_cores": 2.5},
            "cores",
            "warning",
            "of this process its affinity allows 8 and a cgroup's quota allows 2.5.",
            "2.5 cores",
        ),
        ({"memory_limit_bytes": 8 * GIB}, "memory", "warning", "allows 8.0 GiB", "limit"),
        ({"start_method": "forkserver"}, "start method", "warning", "picklable", "in a module"),
        ({"python": (3, 14, 4)}, "Python", "warning", "3.14.4: A program may hang", "3.14.5"),
        ({"python": (3, 12, 11)}, "Python", "warning", "issues/146313", "3.13.14"),
        ({"torch": "2.6.0", "gpus": (), "gpu_devices": 0}, "torch", "warning", "in_order", "2.7."),
        ({"torch": "2.5.1+cu124"}, "torch", "problem", "needs torch 2.6 or newer", "pip install"),
        ({"torch": None}, "torch", "problem", "not installed", "environment"),
        ({"torch": "2.13.0+cpu"}, "torch", "warning", "CPU alone", "pytorch.org"),
        ({"gpus": ()}, "GPU driver", "problem", "has 1 device file, but", "--gpus all"),
        (
            {"gpus": (), "gpu_devices": 0, "torch": "2.13.0+rocm7.2"},
            "GPU driver",
            "warning",
            "AMD's GPUs, and dlprof sees none",
            "pip install amdsmi",
        ),
        ({"others": ("~/x/dlprof",)}, "dlprof on PATH", "warning", "~/x/dlprof", "python -m"),
        ({"temporary": None}, "temporary files", "problem", "No directory", "TMPDIR"),
        ({"temporary": "/" + "x" * 80}, "temporary files", "problem", "too long", "shorter"),
        ({"clock": "hpet"}, "clock", "warning", "hpet", "clocksource=tsc"),
    ],
)
def test_what_is_amiss_is_named_with_what_to_do(
    changes: dict[str, Any],
    name: str,
    state: str,
    finding: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("multiprocessing.util._get_base_temp_dir", raising=False)
    (check,) = amiss(facts(**changes))
    assert (check.name, check.state) == (name, state)
    assert finding in check.finding
    assert advice in check.advice
    assert check.finding.endswith(".")
    assert check.advice.endswith(".")


@pytest.mark.parametrize(
    "changes",
    [
        {"shm_bytes": None, "system": "darwin"},
        {"start_method": "spawn", "system": "darwin"},
        {"open_files_limit": 256, "system": "darwin"},  # its tensors go by name
        {"python": (3, 12, 11), "system": "win32"},
        {"python": (3, 13, 14)},
        {"gpus": (), "gpu_devices": 0, "torch": "2.13.0+cpu"},
        {"memory_limit_bytes": 128 * GIB},
        {"clock": None},
        {"open_files_limit": None},
    ],
)
def test_what_is_as_it_should_be_is_left_alone(changes: dict[str, Any]) -> None:
    assert amiss(facts(**changes)) == []


def test_faults_of_one_version_are_findings_of_their_own() -> None:
    found = amiss(facts(python=(3, 13, 10)))
    assert [check.advice for check in found] == [
        "Use Python 3.13.14.",
        "Use Python 3.13.13.",
        "Use Python 3.13.11.",
    ]


SLOW, SPARSE, PINNED = "142324", "153143", ["91252", "81794"]


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.6.0a0", [SLOW, SPARSE, *PINNED]),  # as the release that it leads to
        ("2.6.0", [SLOW, SPARSE, *PINNED]),
        ("2.6", [SLOW, SPARSE, *PINNED]),
        ("2.6.1+cu124", [SLOW, SPARSE, *PINNED]),
        ("2.6.0+cpu", [SLOW]),  # a build that uses no GPU
        ("2.7.0rc1", [SPARSE, *PINNED]),
        ("2.7.0.dev20250310+cu126", [SPARSE, *PINNED]),
        ("2.7.1", [SPARSE, *PINNED]),
        ("2.8.0", PINNED),
        ("2.12.1+rocm7.2", PINNED),
        ("2.13.0a0+git1234", []),
        ("2.13.0", []),
        ("2.20.0", []),
        ("3.0", []),
        ("of my own", []),
    ],
)
def test_faults_of_a_torch_are_those_of_its_release(version: str, known: list[str]) -> None:
    found = [each for each in amiss(facts(torch=version)) if "CPU alone" not in each.finding]
    assert [each.name for each in found] == ["torch"] * len(known)
    assert [each.finding.rstrip(").").rpartition("/")[2] for each in found] == known
    assert all(each.finding.startswith(f"{version}: ") for each in found)


def test_faults_of_pinning_need_a_gpu() -> None:
    found = amiss(facts(torch="2.6.0", gpus=(), gpu_devices=0))
    assert [each.finding.rstrip(").").rpartition("/")[2] for each in found] == [SLOW]


def test_a_fault_of_forked_workers_is_none_where_there_is_no_fork() -> None:
    found = amiss(facts(torch="2.6.0", system="win32"))
    named = [each.finding.rstrip(").").rpartition("/")[2] for each in found if each.name == "torch"]
    assert named == [SLOW, *PINNED]


def test_each_fault_ends_and_names_where_it_is_described() -> None:
    for fault in (*doctor._OF_PYTHON, *doctor._OF_TORCH):
        assert fault.first < fault.until
        assert re.fullmatch(r"github\.com/[\w-]+/\w+/(issues|pull)/\d+", fault.source)
        assert not fault.finding.endswith(".")


def test_a_container_is_looked_at_through_its_files() -> None:
    found = look(DATA / "docker-v2-quota", gpus=GpuReader(FakeNvml()))
    assert found.machine.quota_cores == 2.5
    assert found.machine.shm_bytes is None
    assert found.clock is None
    assert found.python >= (3, 11, 0)
    assert "cores" in {check.name for check in amiss(found)}


def test_a_processor_with_amd_s_graphics_is_no_gpu_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("kfd", "nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    assert look(tmp_path, gpus=GpuReader(FakeNvml())).gpu_devices == 1


def test_other_programs_of_this_name_are_found_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home/bin", "own", "linked"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("home/bin", "own"):
        (tmp_path / name / "dlprof").write_text("#!/bin/sh\n")
        (tmp_path / name / "dlprof").chmod(0o755)
    (tmp_path / "linked" / "dlprof").symlink_to(tmp_path / "own" / "dlprof")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / n) for n in ("linked", "home/bin")))
    monkeypatch.setattr("sys.executable", str(tmp_path / "own" / "python"))
    assert look(gpus=GpuReader(FakeNvml())).others == ("~/bin/dlprof",)


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert look(gpus=GpuReader(FakeNvml())).temporary is None


def test_the_screen_and_the_document_hold_every_check() -> None:
    checks = examine(facts(open_files_limit=1024, shm_bytes=64 << 20, others=("\x1b[31mx",)))
    screen = drawn(doctor_report(checks, "dlprof 1 on Linux"), 80)
    assert screen.splitlines()[0] == "  dlprof 1 on Linux"
    assert screen.rstrip().endswith("1 problem, 2 warnings found.")
    assert "\x1b" not in screen
    assert all(check.name in screen for check in checks)
    assert "No problem found." in drawn(doctor_report(examine(FACTS), ""), 80)
    document = json.loads(json_document(system="dlprof 1 on Linux", checks=checks))
    assert [each["state"] for each in document["checks"]] == [check.state for check in checks]


def test_the_program_ends_with_0_whatever_it_finds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "look", lambda: facts(shm_bytes=None))
    assert run(["doctor", "--json"], {}) == 0
    states = {each["state"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "problem" in states
    assert run(["doctor"], {}) == 0
    assert "1 problem found." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("busy", "load", "state", "said"),
    [
        (0.3, 0.2, "ok", "keep 0.3 of 16 cores busy."),
        (8.0, 9.0, "warning", "keep 8.0 of 16 cores busy: rates"),
        (16.0, 104.0, "warning", "16.0 of 16 cores busy and more wait for one (load 104.0): rates"),
    ],
)
def test_the_load_of_other_processes_is_said(
    busy: float, load: float, state: str, said: str
) -> None:
    seen = Neighbours(watched_s=0.5, busy_cores=busy, load_1m=load)
    (check,) = (each for each in examine(facts(others_use=seen)) if each.name == "load")
    assert check.state == state
    assert said in check.finding
    assert ("dlprof machine" in check.advice) is (state == "warning")


def test_where_the_load_cannot_be_seen_nothing_is_said_of_it() -> None:
    for seen in (None, Neighbours(watched_s=0.5)):
        assert "load" not in [each.name for each in examine(facts(others_use=seen))]
