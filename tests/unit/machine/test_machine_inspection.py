"""What recorded machines offer, and the keys that settings are kept under."""

from __future__ import annotations

import dataclasses
import doctest
import shutil
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.machine import cgroups, inspect_machine, inspection, procfs
from dlprof.machine.launchers import launcher_of
from dlprof.machine.nvidia import GpuReader
from dlprof.records import Machine

_RECORDED = Path(__file__).parents[2] / "data" / "machine"
_GIB = 1 << 30


def _inspect(name: str, cards: int = 0) -> Machine:
    return inspect_machine(_RECORDED / name, gpus=GpuReader(FakeNvml(count=cards)))


def _facts(machine: Machine) -> tuple[object, ...]:
    return (
        machine.logical_cpus,
        machine.physical_cores,
        machine.affinity_cpus,
        machine.quota_cores,
        machine.usable_cores,
        machine.numa_nodes,
    )


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("server-96t", (96, 48, 96, None, 96.0, 2)),
        ("docker-v2-quota", (16, 8, 16, 2.5, 2.5, 1)),
        ("docker-v1-nested", (12, 12, 8, 1.5, 1.5, None)),
        ("kubernetes", (32, 16, 32, 6.5, 6.5, 1)),
        # The mask of WSL names 64 CPUs, of which 32 are there.
        ("wsl", (32, 16, 32, None, 32.0, 1)),
        ("old-kernel", (8, 4, 8, None, 8.0, 1)),
        ("graviton", (4, 4, 4, None, 4.0, 1)),
    ],
)
def test_cores_of_recorded_machines(name: str, facts: tuple[object, ...]) -> None:
    assert _facts(_inspect(name)) == facts


def test_the_shared_server_in_full() -> None:
    machine = _inspect("server-96t", cards=2)
    assert machine.hostname == "titan01"
    assert machine.platform == "Linux 5.15.0-122-generic"
    assert machine.memory_bytes == 395846132 * 1024
    assert machine.memory_limit_bytes == 192 * _GIB
    assert machine.memory_available_bytes == (192 - 48 + 12) * _GIB
    assert machine.swap_used_bytes == 1 * _GIB
    assert len(machine.gpus) == 2
    assert machine.fingerprint == "intel-xeon-platinum-8168-2.70ghz-96c-192g-2gpu-6cb91298"


def test_what_is_missing_has_a_reason_and_what_is_not_set_has_none() -> None:
    machine = _inspect("old-kernel")
    assert machine.memory_available_bytes is None
    assert machine.quota_cores is None
    assert "MemAvailable" not in machine.unavailable
    assert {"memory_available_bytes", "swap_used_bytes", "shm_bytes", "gpus"} <= set(
        machine.unavailable
    )
    assert "quota_cores" not in machine.unavailable


def test_a_machine_without_proc_still_counts_cpus(tmp_path: Path) -> None:
    machine = inspect_machine(tmp_path, gpus=GpuReader(FakeNvml()))
    assert machine.logical_cpus >= 1
    assert machine.usable_cores >= 1
    assert machine.memory_bytes is None
    assert "memory_bytes" in machine.unavailable


@pytest.mark.parametrize(
    ("mask", "online", "count"),
    [
        ("0-3", 8, 4),
        ("0-63", 8, 8),  # some of them offline
        ("2-3,8,11", 4, 4),  # the host's numbers, where lxcfs numbers CPUs again
        ("8-11", 4, 4),
    ],
)
def test_cpus_of_a_mask(tmp_path: Path, mask: str, online: int, count: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = [f"cpu{cpu} 1 0 0 1 0 0 0 0 0 0" for cpu in range(online)]
    (tmp_path / "proc/stat").write_text("\n".join(lines) + "\n")
    (tmp_path / "proc/self/status").write_text(f"Cpus_allowed_list:\t{mask}\n")
    assert inspect_machine(tmp_path, gpus=GpuReader(FakeNvml())).affinity_cpus == count


@pytest.mark.parametrize(
    ("lists", "cpus", "node"),
    [
        (("0-3", "4-7"), {4, 5}, 1),
        (("0-3", "4-7"), {3, 4}, None),  # not bound to one
        (("0-3", "4-7"), (), None),
        (("0-7",), {4, 5}, None),  # there is no other
    ],
)
def test_the_numa_node_of_cpus(
    tmp_path: Path, lists: tuple[str, ...], cpus: set[int], node: int | None
) -> None:
    for number, listed in enumerate(lists):
        place = tmp_path / f"sys/devices/system/node/node{number}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(listed)
    assert inspection.numa_node_of(cpus, tmp_path) == node


def test_this_machine() -> None:
    machine = inspect_machine()
    assert 0 < machine.usable_cores <= machine.affinity_cpus <= machine.logical_cpus
    assert machine.fingerprint == inspect_machine().fingerprint
    missing = {
        field.name for field in dataclasses.fields(machine) if getattr(machine, field.name) is None
    }
    assert missing <= set(machine.unavailable) | {
        "quota_cores",
        "memory_limit_bytes",
        "read_limit_bytes_per_s",
        "accelerator",
    }


def _key(**changes: Any) -> str:
    facts: dict[str, Any] = {
        "cpu_model": "Intel(R) Xeon(R) Processor @ 2.50GHz",
        "usable_cores": 2.0,
        "logical_cpus": 2,
        "memory_bytes": 25276514304,
        "gpus": (),
    }
    return inspection.fingerprint(**(facts | changes))


def test_the_key_is_readable_and_stable() -> None:
    assert _key() == "intel-xeon-2.50ghz-2c-24g-0gpu-91c69d5c"


def test_a_little_less_memory_after_an_update_is_the_same_machine() -> None:
    assert _key(memory_bytes=25276514304 - (200 << 20)) == _key()


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_model": "AMD EPYC 7R32"},
        {"usable_cores": 1.5},
        {"logical_cpus": 4},
        {"memory_bytes": 50 * _GIB},
        {"memory_bytes": None},
        {"gpus": GpuReader(FakeNvml(count=1)).list_gpus()},
    ],
)
def test_what_changes_the_best_settings_changes_the_key(changes: dict[str, Any]) -> None:
    assert _key(**changes) != _key()


def test_the_order_of_the_cards_does_not_matter() -> None:
    first, second = GpuReader(FakeNvml()).list_gpus()
    other = dataclasses.replace(second, name="NVIDIA A10G")
    assert _key(gpus=(first, other)) == _key(gpus=(other, first))


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_cpu_model_makes_a_plain_key(model: str) -> None:
    key = _key(cpu_model=model)
    assert key
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


@settings(deadline=None)
@given(st.integers(1, 10**15))
def test_memory_is_rounded_up_to_a_size_that_is_sold(size: int) -> None:
    installed = inspection.installed_gib(size)
    assert installed * _GIB >= size
    assert installed == 1 or installed * _GIB < 1.5 * size


@pytest.mark.parametrize("module", [procfs, cgroups, inspection])
def test_examples_in_docstrings(module: types.ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


_RANK = b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=4\0"
_SPAWNED = b"python\0-c\0from multiprocessing.spawn import spawn_main\0--multiprocessing-fork\0"


@pytest.mark.parametrize(
    ("above", "environ", "launcher", "cpus"),
    [
        (["0-63"], _RANK, 1, 64),  # srun or mpirun has bound its rank
        (["0-7", "0-63"], _RANK, 1, 64),  # and a shell between them with it
        (["0-7", "0-7", "0-63"], _RANK, 2, 8),  # mpirun under taskset has bound none
        (["0-7", "0-63"], b"RANK=0\0WORLD_SIZE=2\0", 2, 8),  # torchrun likewise
        (["0-7", "0-7"], _RANK, 1, 8),  # in a container all have its CPUs
        (["0-7", "0-63"], b"", 2, 8),  # mp.spawn under taskset
        (["0-63"], b"", 1, 64),
    ],
)
def test_all_of_a_job_may_run_on_what_its_launcher_may(
    tmp_path: Path, above: list[str], environ: bytes, launcher: int, cpus: int
) -> None:
    """Each rank counts on its share of that, whoever started the launcher may run on more."""
    rank = 1 + len(above)
    for pid, mask in enumerate(reversed(["0-7", *above]), 1):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"PPid:\t{pid - 1}\nCpus_allowed_list:\t{mask}\n")
        # What is above its launcher, and that itself, say nothing of a rank.
        (folder / "environ").write_bytes(b"HOME=/root\0" + (environ if pid > launcher else b""))
    assert launcher_of(rank, tmp_path) == launcher
    assert inspection.cpus_of_job(rank, tmp_path) == cpus
    assert inspection.cpus_of_job(99, tmp_path) is None


def test_ranks_that_horovodrun_starts_by_a_process_each_have_one_launcher(tmp_path: Path) -> None:
    """And a shell, which may make way for the rank."""
    said = b"HOROVOD_RANK=%d\0HOROVOD_SIZE=2\0HOROVOD_LOCAL_RANK=%d\0HOROVOD_LOCAL_SIZE=2\0"
    shell = b"/bin/sh\0-c\0" + (said % (0, 0)).replace(b"\0", b" ") + b"python train.py\0"
    family = {
        10: (1, b"horovodrun\0", b""),
        20: (10, _SPAWNED, b""),
        30: (20, shell, b""),
        40: (30, b"python\0", said % (0, 0)),
        21: (10, _SPAWNED, b""),
        41: (21, b"python\0", said % (1, 1)),
    }
    _write(tmp_path, family)
    assert {launcher_of(40 + rank, tmp_path) for rank in (0, 1)} == {10}


@pytest.mark.parametrize(
    "command",
    [
        b"mpirun\0-x\0LORA_RANK=16\0python\0train.py\0",
        b"torchrun\0train.py\0MODEL.LORA_RANK=8\0RANK=4\0",
        b"bash\0-c\0for r in 0 1; do RANK=$r WORLD_SIZE=2 python train.py & done; wait\0",
    ],
)
def test_a_launcher_may_have_an_argument_that_looks_like_a_rank(
    tmp_path: Path, command: bytes
) -> None:
    ranked = b"RANK=%d\0WORLD_SIZE=2\0"
    family = {10: (1, command, b""), 20: (10, b"python\0", ranked % 0)}
    family[21] = (10, b"python\0", ranked % 1)
    _write(tmp_path, family)
    assert {launcher_of(pid, tmp_path) for pid in (20, 21)} == {10}


def _write(root: Path, family: Mapping[int, tuple[int, bytes, bytes]]) -> None:
    """Processes, each with its parent, its command and its environment."""
    for pid, (parent, command, environ) in family.items():
        folder = root / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"PPid:\t{parent}\n")
        (folder / "cmdline").write_bytes(command)
        (folder / "environ").write_bytes(environ)


@pytest.mark.parametrize(
    ("files", "ghz"),
    [
        ({"cpufreq/base_frequency": "2400000\n", "acpi_cppc/nominal_freq": "2500\n"}, 2.4),
        ({"acpi_cppc/nominal_freq": "2450\n"}, 2.45),
        ({"cpufreq/base_frequency": "0\n"}, None),
        ({"cpufreq/base_frequency": "300\n"}, None),  # 0.0 GHz, which no profile may say
        ({"cpufreq/base_frequency": "-1\n", "acpi_cppc/nominal_freq": "2450\n"}, 2.45),
        ({}, None),
    ],
)
def test_the_clock_without_boost_is_what_the_kernel_says(
    tmp_path: Path, files: dict[str, str], ghz: float | None
) -> None:
    root = shutil.copytree(_RECORDED / "server-96t", tmp_path / "root")
    for name, text in files.items():
        file = root / "sys/devices/system/cpu/cpu0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")
    machine = inspect_machine(root)
    assert machine.base_ghz == ghz
    assert ("base_ghz" in machine.unavailable) == (ghz is None)


@pytest.mark.parametrize(
    ("line", "ghz"),
    [
        ("cpu MHz\t\t: 2445.404\nflags\t\t: fpu hypervisor", 2.445),
        ("cpu MHz\t\t: 3912.044\nflags\t\t: fpu", None),  # of this moment
        ("cpu MHz\t\t: ?\nflags\t\t: fpu hypervisor", None),
        ("cpu MHz\t\t: nan\nflags\t\t: fpu hypervisor", None),
    ],
)
def test_a_guest_has_the_clock_of_its_host(tmp_path: Path, line: str, ghz: float | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\n{line}\n", encoding="ascii")
    assert inspect_machine(tmp_path).base_ghz == ghz


def test_cores_that_nobody_says_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ``/proc`` is mounted with processes alone."""

    def absent(*, logical: bool) -> int:
        raise FileNotFoundError(logical)

    monkeypatch.setattr("psutil.cpu_count", absent)
    monkeypatch.setattr(inspection, "numbered", lambda *_: {})
    monkeypatch.setattr(inspection, "read_text", lambda _: "")
    assert inspect_machine().physical_cores is None


@pytest.mark.parametrize("answers", [True, False])
def test_a_mac_is_named_by_its_processor(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """All of Apple's were ``arm``: settings and baselines of one were taken for another."""

    def ask(command: tuple[str, ...], **_options: Any) -> types.SimpleNamespace:
        assert command[-1] == "machdep.cpu.brand_string"
        if not answers:
            raise FileNotFoundError
        return types.SimpleNamespace(stdout="Apple M2 Pro\n")

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.processor", lambda: "arm")
    monkeypatch.setattr("subprocess.run", ask)
    unnamed = procfs.CpuInfo(model="", physical_cores=None)
    monkeypatch.setattr(inspection, "parse_cpuinfo", lambda _text: unnamed)
    machine = inspect_machine(gpus=GpuReader(FakeNvml()))
    assert machine.cpu_model == ("Apple M2 Pro" if answers else "arm")
    assert machine.fingerprint.startswith("apple-m2-pro-" if answers else "arm-")
