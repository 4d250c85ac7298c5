"""Who used the machine between two looks."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machine_fake_proc import MS, FakeProc

from dlprof.machine.neighbours import Neighbours, ProcessScan, between, look, watch
from dlprof.machine.procfs import CpuTicks, ProcessStat

_HZ = os.sysconf("SC_CLK_TCK")
_PSI = ("cpu", "io", "memory")


def _look(
    at_s: float,
    processes: dict[tuple[int, int], tuple[int, ProcessStat]],
    cpus: CpuTicks | None = None,
    pressure: int | None = 0,
) -> ProcessScan:
    return ProcessScan(
        time_ns=int(at_s * 1e9),
        cpus={} if cpus is None else {0: cpus},
        allowed=frozenset({0}),
        processes=processes,
        pressures_us=dict.fromkeys(_PSI, pressure),
        runnable=3,
        load_1m=1.5,
    )


def _used(
    user: int, own_s: float, parent: int = 1, reaped_s: float = 0.0
) -> tuple[int, ProcessStat]:
    own, reaped = round(own_s * _HZ), round(reaped_s * _HZ)
    return user, ProcessStat(parent=parent, cpu_ticks=own, reaped_ticks=reaped, start_ticks=0)


def _between(first: ProcessScan, last: ProcessScan) -> Neighbours:
    return between(first, last, user_name=lambda number: f"user{number}")


def _by_user(found: Neighbours) -> dict[str, tuple[float, int]]:
    return {user.user: (user.cpu_cores, user.processes) for user in found.users}


def test_cpu_is_summed_per_user_most_first() -> None:
    first = _look(0, {(1, 0): _used(7, 10), (2, 0): _used(8, 5), (3, 0): _used(8, 0)})
    last = _look(2, {(1, 0): _used(7, 11), (2, 0): _used(8, 8), (3, 0): _used(8, 1)})
    found = _between(first, last)
    assert [user.user for user in found.users] == ["user8", "user7"]
    assert _by_user(found) == {"user8": (2.0, 2), "user7": (0.5, 1)}


def test_idle_users_are_left_out() -> None:
    looks = [_look(at, {(1, 0): _used(7, 10)}) for at in (0, 1)]
    assert _between(*looks).users == ()


def test_a_process_that_started_meanwhile_counts_with_all_it_used() -> None:
    found = _between(_look(0, {}), _look(1, {(5, 9): _used(7, 0.5)}))
    assert _by_user(found) == {"user7": (0.5, 1)}


def test_a_process_that_ended_counts_with_what_it_used_meanwhile() -> None:
    first = _look(0, {(1, 0): _used(7, 0, reaped_s=100), (5, 0): _used(7, 3600, parent=1)})
    last = _look(1, {(1, 0): _used(7, 0, reaped_s=100 + 3600.5)})
    assert _by_user(_between(first, last)) == {"user7": (0.5, 1)}


def test_processes_that_ended_with_their_parent_count_with_what_they_used_meanwhile() -> None:
    shell, parent, child = _used(7, 0), _used(7, 100), _used(7, 3600, parent=5)
    first = _look(0, {(1, 0): shell, (5, 0): parent, (6, 0): child})
    last = _look(1, {(1, 0): _used(7, 0, reaped_s=3700.5)})
    assert _by_user(_between(first, last)) == {"user7": (0.5, 1)}


def test_users_have_no_more_than_the_machine_was_busy() -> None:
    # The parent ended first: the first process has the whole life of the child on its account.
    cpus = [CpuTicks(busy=busy, idle=0, stolen=0) for busy in (0, _HZ)]
    first = _look(0, {(1, 0): _used(7, 0), (6, 0): _used(8, 3600, parent=5)}, cpus[0])
    last = _look(1, {(1, 0): _used(7, 0, reaped_s=3600.5), (8, 0): _used(8, 0.5)}, cpus[1])
    found = _between(first, last)
    assert sum(user.cpu_cores for user in found.users) == pytest.approx(1.0, abs=0.02)


def test_an_id_used_again_is_another_process() -> None:
    first = _look(0, {(5, 1): _used(7, 50)})
    last = _look(1, {(5, 2): _used(8, 0.25)})
    assert _by_user(_between(first, last)) == {"user8": (0.25, 1)}


def test_what_no_visible_process_used_is_distinguished() -> None:
    first = _look(0, {(1, 0): _used(7, 0)}, CpuTicks(busy=0, idle=0, stolen=0))
    last = _look(
        1,
        {(1, 0): _used(7, 0.5)},
        CpuTicks(busy=round(2 * _HZ), idle=_HZ, stolen=_HZ // 2),
        pressure=250_000,
    )
    found = _between(first, last)
    assert (found.busy_cores, found.idle_cores, found.stolen_cores) == (2.0, 1.0, 0.5)
    assert found.unseen_cores == 1.5
    assert found.cpu_pressure_fraction == 0.25
    assert found.unavailable == {}


def test_a_cpu_that_comes_while_it_is_watched_adds_nothing_of_before() -> None:
    ticks = [CpuTicks(busy=busy, idle=busy, stolen=0) for busy in (0, _HZ, 3600 * _HZ)]
    first = dataclasses.replace(_look(0, {}), cpus={0: ticks[0]})
    last = dataclasses.replace(
        _look(1, {}), cpus={0: ticks[1], 1: ticks[2]}, allowed=frozenset({0, 1})
    )
    found = _between(first, last)
    assert (found.busy_cores, found.idle_cores, found.free_cores) == (1.0, 1.0, 1.0)


def test_what_the_system_does_not_count_is_not_0() -> None:
    """As in gVisor: the machine seemed to be busy with others, and nobody used it."""
    nothing = CpuTicks(busy=0, idle=0, stolen=0)
    found = _between(
        _look(0, {(1, 0): _used(7, 10)}, nothing), _look(1, {(1, 0): _used(7, 10.5)}, nothing)
    )
    fields = ("busy_cores", "idle_cores", "free_cores", "stolen_cores", "unseen_cores")
    assert {getattr(found, field) for field in fields} == {None}
    assert {found.unavailable[field] for field in fields} == {
        "the system doesn't count it (/proc/stat)"
    }
    assert _by_user(found) == {"user7": (0.5, 1)}


def test_what_is_missing_has_a_reason() -> None:
    found = _between(_look(0, {}, pressure=None), _look(1, {}, pressure=None))
    assert found.busy_cores is None
    assert found.io_pressure_fraction is None
    assert {"busy_cores", "unseen_cores", "io_pressure_fraction"} <= set(found.unavailable)


def test_no_time_no_figures() -> None:
    found = _between(_look(1, {}), _look(1, {}))
    assert found.busy_cores is None
    assert set(found.unavailable.values()) == {"no time passed"}


def test_watching_a_machine(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.start(10, run_ns=100 * MS)
    proc.write()
    (tmp_path / "proc/self").mkdir(exist_ok=True)
    (tmp_path / "proc/self/status").write_text("Cpus_allowed_list:\t0\n")
    stat = tmp_path / "proc/stat"
    stat.write_text(f"cpu 0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 {_HZ}\n")
    (tmp_path / "proc/loadavg").write_text("0.50 0.40 0.30 2/10 99\n")
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        proc.processes[10].threads[10] = (600 * MS, 0)
        proc.write()
        stat.write_text(f"cpu 0\ncpu0 {_HZ} 0 0 0\ncpu1 0 0 0 {_HZ * 2}\n")

    found = watch(1.0, root=tmp_path, clock=iter([0, 10**9]).__next__, sleep=sleep)
    assert slept == [1.0]
    assert (found.busy_cores, found.idle_cores, found.free_cores) == (1.0, 1.0, 0.0)
    assert found.runnable == 1
    assert found.load_1m == 0.5
    (user,) = found.users
    assert user.cpu_cores == pytest.approx(0.5)
    assert found.unseen_cores == pytest.approx(0.5)


def test_a_process_that_may_not_be_looked_into_is_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder in ``/proc`` is root's, as of ssh-agent or a browser's sandbox."""
    proc = FakeProc(tmp_path)
    for pid in (10, 11):
        proc.start(pid)
    proc.write()
    (tmp_path / "proc/10/status").write_text("Name:\tssh-agent\nUid:\t7\t7\t7\t7\n")
    real = os.stat

    def stat(path: Any, **options: Any) -> Any:
        is_process = str(path).endswith(("proc/10", "proc/11"))
        return SimpleNamespace(st_uid=0) if is_process else real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    found = look(root=tmp_path, clock=lambda: 0)
    assert {pid: owner for (pid, _), (owner, _) in found.processes.items()} == {10: 7, 11: 0}


def test_a_look_where_there_is_nothing(tmp_path: Path) -> None:
    nothing = look(root=tmp_path, clock=lambda: 0)
    assert nothing == ProcessScan(
        time_ns=0,
        cpus={},
        allowed=frozenset(),
        processes={},
        pressures_us=dict.fromkeys(_PSI),
        runnable=None,
        load_1m=None,
    )
