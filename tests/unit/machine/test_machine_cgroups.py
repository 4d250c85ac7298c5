"""Limits over all ancestor cgroups: v1, v2, both at once, containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.machine import cgroups
from dlprof.machine.cgroups import Limit, read_cgroups

_RECORDED = Path(__file__).parents[2] / "data" / "machine"
_GIB = 1 << 30
_DOCKER = "/docker/9c8d7e6f5a4b3c2d1e0f9c8d7e6f5a4b3c2d1e0f9c8d7e6f5a4b3c2d1e0f9c8d"
_POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e3d4c.slice"


@pytest.mark.parametrize(
    ("machine", "quota"),
    [
        ("server-96t", None),
        ("docker-v2-quota", Limit(amount=2.5, cgroup="/")),
        ("docker-v1-nested", Limit(amount=1.5, cgroup=_DOCKER)),
        ("kubernetes", Limit(amount=6.5, cgroup=_POD)),
        ("wsl", None),
        ("old-kernel", None),
        ("graviton", None),
    ],
)
def test_the_tightest_quota_of_all_ancestors_counts(machine: str, quota: Limit | None) -> None:
    assert cgroups.cpu_quota(read_cgroups(None, _RECORDED / machine)) == quota


@pytest.mark.parametrize(
    ("machine", "limit_gib", "room_gib"),
    [
        ("server-96t", 192, 192 - 48 + 12),
        ("docker-v2-quota", 8, 8 - 3 + 1.5),
        # The parent that a container can't see shows in hierarchical_memory_limit.
        ("docker-v1-nested", 12, 12 - 4 + 1),
        ("kubernetes", 32, 31),
        ("wsl", None, None),
        ("old-kernel", None, None),
    ],
)
def test_the_tightest_memory_limit_counts(
    machine: str, limit_gib: float | None, room_gib: float | None
) -> None:
    groups = read_cgroups(None, _RECORDED / machine)
    limit, room = cgroups.memory_limit(groups), cgroups.memory_headroom(groups)
    assert (limit and limit.amount / _GIB) == limit_gib
    assert (room and room / _GIB) == room_gib


@pytest.mark.parametrize(
    ("machine", "throttled"),
    [
        ("server-96t", [0, 0]),
        ("docker-v2-quota", [30_123_456_000]),
        ("docker-v1-nested", [7_000_000, 2_500_000_000]),
        ("kubernetes", [1_000_000, 4_000_000]),
        ("graviton", None),
    ],
)
def test_throttled_time_is_that_of_each_level(machine: str, throttled: list[int] | None) -> None:
    found = cgroups.throttled_ns(read_cgroups(None, _RECORDED / machine))
    assert (found and list(found.values())) == throttled


@pytest.mark.parametrize(
    ("machine", "kills"),
    [("server-96t", 1), ("docker-v2-quota", 0), ("docker-v1-nested", 3), ("wsl", None)],
)
def test_kills_for_memory_are_those_of_the_own_cgroup(machine: str, kills: int | None) -> None:
    root = _RECORDED / machine
    assert cgroups.oom_kills(read_cgroups(None, root), root) == kills


def test_kills_for_memory_fall_back_on_the_whole_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 4\n")
    assert cgroups.oom_kills(read_cgroups(None, tmp_path), tmp_path) == 4


def test_the_cpuset_of_v1() -> None:
    groups = read_cgroups(None, _RECORDED / "docker-v1-nested")
    assert cgroups.allowed_cpus(groups) == frozenset(range(2, 10))
    assert cgroups.allowed_cpus(read_cgroups(None, _RECORDED / "wsl")) is None


def _container(root: Path, cgroup: str, mounts: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    return root


def _cpu_max(root: Path, folder: str, text: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "cpu.max").write_text(text)


def test_a_path_outside_of_the_namespace_falls_back_on_the_mounts_root(tmp_path: Path) -> None:
    mounts = "1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    root = _container(tmp_path, "0::/../../kubepods/x\n", mounts)
    _cpu_max(root, "sys/fs/cgroup", "300000 100000\n")
    assert cgroups.cpu_quota(read_cgroups(None, root)) == Limit(amount=3, cgroup="/")


def test_a_path_that_is_not_under_the_mount_falls_back_on_the_mounts_root(tmp_path: Path) -> None:
    mounts = "1 0 0:1 /docker/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    root = _container(tmp_path, "0::/docker/b\n", mounts)
    _cpu_max(root, "sys/fs/cgroup", "50000 100000\n")
    assert cgroups.cpu_quota(read_cgroups(None, root)) == Limit(amount=0.5, cgroup="/docker/a")


def test_a_path_that_cannot_be_looked_at_falls_back_on_the_mounts_root(tmp_path: Path) -> None:
    mounts = "1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    root = _container(tmp_path, f"0::/{'x' * 300}\n", mounts)
    _cpu_max(root, "sys/fs/cgroup", "300000 100000\n")
    assert cgroups.cpu_quota(read_cgroups(None, root)) == Limit(amount=3, cgroup="/")


def test_of_several_mounts_the_one_that_shows_most_ancestors_is_read(tmp_path: Path) -> None:
    mounts = (
        "1 0 0:1 /a/b /part rw - cgroup2 cgroup rw\n"
        "2 0 0:1 /other /elsewhere rw - cgroup2 cgroup rw\n"
        "3 0 0:1 / /with\\040blank rw - cgroup2 cgroup rw\n"
    )
    root = _container(tmp_path, "0::/a/b\n", mounts)
    _cpu_max(root, "part", "900000 100000\n")
    _cpu_max(root, "with blank/a/b", "900000 100000\n")
    _cpu_max(root, "with blank/a", "700000 100000\n")
    assert cgroups.cpu_quota(read_cgroups(None, root)) == Limit(amount=7, cgroup="/a")


def test_of_equal_limits_the_outermost_is_named() -> None:
    limit = cgroups.memory_limit(read_cgroups(None, _RECORDED / "docker-v1-nested"))
    assert limit == Limit(amount=12 * _GIB, cgroup=_DOCKER)


def test_the_tightest_limit_of_reads_counts(tmp_path: Path) -> None:
    root = _container(tmp_path, "0::/a\n", "1 0 0:1 / /cg rw - cgroup2 cgroup rw\n")
    (root / "cg/a").mkdir(parents=True)
    (root / "cg/a/io.max").write_text(
        "8:0 rbps=max wbps=1000 riops=max wiops=max\n8:16 rbps=5000 wbps=max riops=9 wiops=max\n"
    )
    groups = read_cgroups(None, root)
    assert cgroups.read_limit(groups) == Limit(amount=5000, cgroup="/a")
    (root / "cg/io.max").write_text("8:16 rbps=3000 wbps=max riops=max wiops=max\n")
    assert cgroups.read_limit(groups) == Limit(amount=3000, cgroup="/")


def test_v1_limits_reads_too(tmp_path: Path) -> None:
    root = _container(tmp_path, "7:blkio:/a\n", "1 0 0:1 / /cg rw - cgroup cgroup rw,blkio\n")
    (root / "cg/a").mkdir(parents=True)
    limits = root / "cg/a/blkio.throttle.read_bps_device"
    limits.write_text("")
    assert cgroups.read_limit(read_cgroups(None, root)) is None
    limits.write_text("8:0 4000\n8:16 7000\n")
    assert cgroups.read_limit(read_cgroups(None, root)) == Limit(amount=4000, cgroup="/a")


def test_v2s_soft_limit_counts_as_a_limit(tmp_path: Path) -> None:
    root = _container(tmp_path, "0::/\n", "1 0 0:1 / /cg rw - cgroup2 cgroup rw\n")
    (root / "cg").mkdir()
    (root / "cg/memory.max").write_text("2000\n")
    (root / "cg/memory.high").write_text("1000\n")
    (root / "cg/memory.current").write_text("1500\n")
    groups = read_cgroups(None, root)
    assert cgroups.memory_limit(groups) == Limit(amount=1000, cgroup="/")
    assert cgroups.memory_headroom(groups) == 0


@pytest.mark.parametrize(
    ("memberships", "mount"),
    [("0::/a\n", "cgroup2 cgroup rw\n"), ("8:pids:/a\n", "cgroup cgroup rw,pids\n")],
)
def test_the_level_with_the_fewest_threads_left_counts(
    tmp_path: Path, memberships: str, mount: str
) -> None:
    root = _container(tmp_path, memberships, f"1 0 0:1 / /cg rw - {mount}")
    (root / "cg/a").mkdir(parents=True)
    assert cgroups.threads_left(read_cgroups(None, root)) is None
    for place, most, current in (("a", "max", 5), (".", 1000, 930)):
        (root / f"cg/{place}/pids.max").write_text(f"{most}\n")
        (root / f"cg/{place}/pids.current").write_text(f"{current}\n")
    assert cgroups.threads_left(read_cgroups(None, root)) == 70
    (root / "cg/a/pids.max").write_text("3\n")  # lowered since
    assert cgroups.threads_left(read_cgroups(None, root)) == 0


def test_without_proc_there_are_no_limits(tmp_path: Path) -> None:
    groups = read_cgroups(None, tmp_path)
    assert groups == cgroups.Cgroups(cpu=(), cpuset=(), memory=())
    assert cgroups.cpu_quota(groups) is None
    assert cgroups.throttled_ns(groups) is None
    assert cgroups.threads_left(groups) is None


@settings(deadline=None)
@given(st.text())
def test_no_parser_raises_on_any_text(text: str) -> None:
    cgroups.parse_memberships(text)
    cgroups.parse_mounts(text)
    cgroups.parse_cpu_max(text)


@settings(deadline=None)
@given(st.lists(st.text(" :-/0123456789cgroup2rw,cpu\\\n", max_size=80)))
def test_no_parser_raises_on_broken_lines(lines: list[str]) -> None:
    text = "\n".join(lines)
    cgroups.parse_memberships(text)
    cgroups.parse_mounts(text)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_v2_quotas_are_read_as_written(quota: int, period: int) -> None:
    assert cgroups.parse_cpu_max(f"{quota} {period}\n") == quota / period


@pytest.mark.parametrize("text", ["", "max 100000", "100", "1 0", "-1 100000", "² 3", "1 2 3"])
def test_what_is_no_quota_is_none(text: str) -> None:
    assert cgroups.parse_cpu_max(text) is None
