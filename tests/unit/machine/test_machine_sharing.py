"""What the scheduler leaves a program beside others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_fake_proc import MS, FakeProc

from dlprof.machine.sharing import Entity, Group, GroupShares, fair_share
from dlprof.records import Usage


@pytest.mark.parametrize(
    ("used", "cores", "fair"),
    [
        ({}, 2.0, 2.0),
        ({(2,): 0.5}, 2.0, 1.5),  # which wants no more
        ({(2,): 1.0}, 2.0, 1.0),
        ({(2,): 1.9}, 2.0, 1.0),  # however many threads it has
        ({(2,): 0.9, (3,): 0.9}, 2.0, 2 / 3),
        ({(2,): 0.5, (3,): 7.0}, 8.0, 3.75),
        # Of its parent it shares what that gets beside the others of the first level.
        ({("user", "b"): 2.0, ("system",): 2.0}, 4.0, 1.0),
        ({("user", "b"): 0.5, ("system",): 3.5}, 4.0, 1.5),
        # Whoever is in the parent itself is one of its groups.
        ({("user",): 2.0, ("system",): 2.0}, 4.0, 1.0),
    ],
)
def test_a_group_gets_what_others_leave_or_an_equal_share(
    used: dict[tuple[int | str, ...], float], cores: float, fair: float
) -> None:
    mine = ("user", "a") if any("user" in group for group in used) else (1,)
    taken = {_named(*group): each for group, each in used.items()}
    assert fair_share(_named(*mine), taken, cores) == pytest.approx(fair)


def _named(*names: int | str) -> Group:
    return tuple(map(Entity, names))


@pytest.mark.parametrize(
    ("weights", "used", "fair"),
    [
        ((2.0, 1.0), (3.0,), 2.0),
        ((1.0, 2.0), (3.0,), 1.0),
        ((1.0, 2.0), (1.5,), 1.5),  # which wants less than that
        ((1.0, 1.0, 4.0), (0.3, 2.7), 0.54),
    ],
)
def test_of_several_each_gets_by_its_weight(
    weights: tuple[float, ...], used: tuple[float, ...], fair: float
) -> None:
    mine, *others = ((Entity(n, weight),) for n, weight in enumerate(weights))
    assert fair_share(mine, dict(zip(others, used, strict=True)), 3.0) == pytest.approx(fair)


@given(
    st.lists(st.floats(0.0, 64.0), max_size=8),
    st.floats(0.5, 64.0),
)
def test_a_share_is_no_more_than_idle_nor_less_than_equal(used: list[float], cores: float) -> None:
    found = fair_share(_named(0), {_named(n): each for n, each in enumerate(used, 1)}, cores)
    equal, idle = cores / (len(used) + 1), cores - sum(used)
    assert max(equal, idle) <= found * (1 + 1e-9) <= cores * (1 + 2e-9)


class _Machine:
    """A machine whose clock stands still between ``passes``."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, autogroup: str) -> None:
        self.proc, self._now_s = FakeProc(tmp_path), 0.0
        monkeypatch.setattr("time.monotonic", lambda: self._now_s)
        setting = tmp_path / "proc/sys/kernel/sched_autogroup_enabled"
        setting.parent.mkdir(parents=True)
        setting.write_text(autogroup)
        self.proc.start(100).session = 100
        self.proc.start(101, parent=100).session = 100  # a worker

    def has(self, pid: int, session: int, cgroup: str = "") -> None:
        process = self.proc.start(pid)
        process.session, process.cgroup = session, cgroup

    def shares(self) -> GroupShares:
        self.proc.write()
        return GroupShares(100, self.proc.root)

    def passes(self, seconds: float, **cores: float) -> None:
        self._now_s += seconds
        for name, used in cores.items():
            process = self.proc.processes[int(name[1:])]
            process.hidden_ns += int(used * seconds * 1000) * MS
        self.proc.write()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    return _Machine(tmp_path, monkeypatch, autogroup="1\n")


def test_sessions_share_alike_however_many_processes_they_have(machine: _Machine) -> None:
    for pid in (200, 201, 202):
        machine.has(pid, session=200)
    shares = machine.shares()
    machine.passes(2.0, p100=0.1, p101=0.5, p200=0.5, p201=0.5, p202=0.4)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.4)) == pytest.approx(1.0)


def test_each_session_is_a_group(machine: _Machine) -> None:
    for pid in (200, 201, 202):
        machine.has(pid, session=pid)
    shares = machine.shares()
    machine.passes(2.0, p101=0.5, p200=0.5, p201=0.5, p202=0.5)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) == pytest.approx(0.5)
    # Half of what they used was on CPUs that the program may not use.
    assert shares.fair_cores(1, Usage(other_cpu_cores=0.75)) == pytest.approx(0.25)


def test_who_is_not_seen_is_one_group(machine: _Machine) -> None:
    shares = machine.shares()
    machine.passes(2.0, p101=0.4)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.6)) == pytest.approx(1.0)


def test_what_a_hypervisor_took_is_shared_by_nobody(machine: _Machine) -> None:
    machine.has(200, session=200)
    shares = machine.shares()
    machine.passes(2.0, p101=0.4, p200=0.5)
    gone = Usage(other_cpu_cores=1.6, stolen_cpu_cores=1.1)
    assert shares.fair_cores(2, gone) == pytest.approx(0.45)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.1, stolen_cpu_cores=1.1)) is None


def test_others_in_its_own_session_have_a_share_by_thread(machine: _Machine) -> None:
    machine.has(200, session=100)
    machine.has(201, session=201)
    shares = machine.shares()
    machine.passes(2.0, p100=0.5, p200=1.0, p201=0.5)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) is None


def test_who_is_in_its_own_session_has_a_part_of_that_ones_share(machine: _Machine) -> None:
    machine.has(200, session=100)
    machine.has(201, session=201)
    shares = machine.shares()
    machine.passes(2.0, p101=0.7, p200=0.3, p201=1.0)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.3)) == pytest.approx(0.7)


def test_of_a_program_that_looks_at_itself_its_workers_are_no_others(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``dlprof run`` does."""
    monkeypatch.setattr("os.getpid", lambda: 100)
    machine.has(200, session=200)
    shares = machine.shares()
    machine.passes(2.0, p101=1.0, p200=1.0)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.0)) == pytest.approx(1.0)


def test_without_groups_each_thread_has_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = _Machine(tmp_path, monkeypatch, autogroup="0\n")
    machine.has(200, session=200)
    shares = machine.shares()
    machine.passes(2.0, p200=1.5)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) is None


def _in_cgroups(machine: _Machine, groups: dict[int, str]) -> GroupShares:
    for pid, name in groups.items():
        machine.proc.processes[pid].cgroup = f"0::/{name}\n"
    machine.proc.mounts = "31 1 0:26 / /cg rw - cgroup2 cgroup rw\n"
    return machine.shares()


def test_cgroups_with_a_weight_go_before_sessions(machine: _Machine) -> None:
    root = machine.proc.root
    for name in ("jobs", "jobs/mine", "jobs/theirs", "rest"):
        (root / "cg" / name).mkdir(parents=True)
        (root / "cg" / name / "cpu.weight").write_text("100\n")
    (root / "cg/rest/plain").mkdir()  # which the controller doesn't set apart from its parent
    for pid, session in ((200, 100), (201, 201), (202, 202)):
        machine.has(pid, session=session)
    groups = {100: "jobs/mine", 101: "jobs/mine", 200: "jobs/theirs"}
    shares = _in_cgroups(machine, groups | dict.fromkeys((201, 202), "rest/plain"))
    machine.passes(2.0, p101=1.0, p200=1.0, p201=1.2, p202=1.2)
    for pid in (201, 202):  # a container sees its cgroup elsewhere
        mounts = "7 1 0:26 /rest /elsewhere rw - cgroup2 cgroup rw\n"
        (root / f"proc/{pid}/mountinfo").write_text(mounts)
    assert shares.fair_cores(4, Usage(other_cpu_cores=3.4)) == pytest.approx(1.0)


def test_weights_of_cgroups_and_nice_values_of_sessions_are_read(machine: _Machine) -> None:
    machine.has(200, session=200)
    shares = machine.shares()
    machine.passes(2.0, p101=0.5, p200=1.5)
    text = "/autogroup-7 nice -3\n"
    (machine.proc.root / "proc/200/autogroup").write_text(text)
    more = 1.25**3
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) == pytest.approx(2 / (1 + more))

    for name, weight in (("mine", 300), ("theirs", 100)):
        (machine.proc.root / "cg" / name).mkdir(parents=True)
        (machine.proc.root / "cg" / name / "cpu.weight").write_text(f"{weight}\n")
    shares = _in_cgroups(machine, {100: "mine", 101: "mine", 200: "theirs"})
    machine.passes(2.0, p101=1.0, p200=1.0)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.0)) == pytest.approx(1.5)


def test_a_share_is_no_more_than_the_quota(machine: _Machine) -> None:
    folder = machine.proc.root / "cg/mine"
    folder.mkdir(parents=True)
    (folder / "cpu.weight").write_text("100\n")
    (folder / "cpu.max").write_text("150000 100000\n")
    machine.has(200, session=200)
    shares = _in_cgroups(machine, {100: "mine", 101: "mine"})
    machine.passes(2.0, p101=1.0, p200=4.0)
    assert shares.fair_cores(8, Usage(other_cpu_cores=4.0)) == pytest.approx(1.5)


@pytest.mark.parametrize(("is_root", "fair"), [(True, 1.0), (False, None)])
def test_sessions_are_no_groups_below_the_root_of_version_1(
    machine: _Machine, is_root: bool, fair: float | None
) -> None:
    """A container's own root has the name of the host's."""
    (machine.proc.root / "cg").mkdir()
    if is_root:
        (machine.proc.root / "cg/release_agent").write_text("\n")
    machine.has(200, session=200)
    for process in machine.proc.processes.values():
        process.cgroup = "4:cpu:/\n"
    machine.proc.mounts = "31 1 0:26 / /cg rw - cgroup cgroup rw,cpu\n"
    shares = machine.shares()
    machine.passes(2.0, p101=1.0, p200=1.0)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.0)) == fair


def test_who_came_later_counts_and_an_ended_program_has_none(machine: _Machine) -> None:
    shares = machine.shares()
    machine.has(300, session=300)
    machine.passes(2.0, p300=1.5)
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) == pytest.approx(1.0)
    assert shares.fair_cores(2, Usage(other_cpu_cores=0.01)) is None
    assert shares.fair_cores(None, Usage(other_cpu_cores=1.5)) is None
    machine.proc.end(100, reaped=False)
    machine.proc.write()
    assert shares.fair_cores(2, Usage(other_cpu_cores=1.5)) is None
