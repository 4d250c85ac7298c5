"""Snapshots of a fake machine: what is read, what is missing, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_fake_proc import MS, FakeProc

from dlprof.machine.snapshot import Sampler, cores_of_others, usage_between

_S = 1_000_000_000


def _system(root: Path, idle: tuple[int, int, int]) -> None:
    """Three CPUs with so many ticks of idle time; the trial may use the first two."""
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{cpu} 100 0 0 {ticks} 0 0 0 0 0 0" for cpu, ticks in enumerate(idle)]
    text = "\n".join(["cpu  300 0 0 0", *lines, "intr 7", "procs_running 2"])
    (root / "proc/stat").write_text(text + "\n")
    (root / "proc/loadavg").write_text("0.50 0.40 0.30 6/200 4711\n")


def _pressure(root: Path, total_us: int) -> None:
    (root / "proc/pressure").mkdir(exist_ok=True)
    for name in ("cpu", "io", "memory"):
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n"
        (root / "proc/pressure" / name).write_text(text)


def _cgroup(root: Path, throttled_us: int) -> None:
    folder = root / "sys/fs/cgroup/job"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text("150000 100000\n")
    (folder / "cpu.stat").write_text(f"nr_periods 1\nthrottled_usec {throttled_us}\n")
    (root / "proc/10").mkdir(parents=True, exist_ok=True)
    (root / "proc/10/cgroup").write_text("0::/job\n")
    mounts = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    (root / "proc/self").mkdir(exist_ok=True)
    (root / "proc/self/mountinfo").write_text(mounts)


def test_a_window_on_a_machine_with_a_quota(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    trial = proc.start(10, run_ns=100 * MS)
    proc.write()
    _system(tmp_path, (1000, 1000, 1000))
    _pressure(tmp_path, 0)
    _cgroup(tmp_path, 0)
    sampler = Sampler(10, root=tmp_path, clock=iter([0, 2 * _S]).__next__, cpu_clock=lambda: 0)
    first = sampler.take(memory=True)
    sampler.look()

    trial.threads[10] = (1100 * MS, 250 * MS)
    proc.write()
    _system(tmp_path, (1150, 1050, 1200))
    _pressure(tmp_path, 500_000)
    _cgroup(tmp_path, 1_000_000)
    usage, missing = usage_between(first, sampler.take(memory=True))

    assert first.allowed_cpus == 2
    assert usage.own_cpu_cores == 0.5
    assert usage.available_cpu_cores == 1.5
    assert usage.other_cpu_cores == 0.5
    assert usage.other_runnable == 5 - 0.625
    assert usage.run_queue_wait_fraction == 0.2
    assert usage.throttled_fraction == 0.5
    assert usage.cpu_pressure_fraction == 0.25
    assert usage.pss_peak_bytes == 1000 * 1024
    in_trials = {"core_speed", "fair_cpu_cores"}
    assert set(missing) == {"shm_peak_bytes", "cache_hit_fraction", *in_trials}
    assert missing["core_speed"] == "it is measured in trials alone"


def test_a_cpuset_that_is_changed_within_a_window(tmp_path: Path) -> None:
    """Of a CPU that comes along, all that it did since boot is none of the window's."""
    proc = FakeProc(tmp_path)
    trial = proc.start(10, run_ns=0)
    proc.write()
    _system(tmp_path, (1000, 2000, 9_000_000))
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S, 2 * _S, 3 * _S]).__next__)
    first = sampler.take()
    status = tmp_path / "proc/10/status"
    trial.threads[10] = (1000 * MS, 0)
    proc.write()
    status.write_text("Cpus_allowed_list:\t0-2\n")
    _system(tmp_path, (1000, 2100, 9_000_100))
    wider = sampler.take()
    usage, _ = usage_between(first, wider)
    assert (wider.allowed_cpus, usage.own_cpu_cores) == (3, 1.0)
    assert usage.available_cpu_cores == 2.0

    trial.threads[10] = (2000 * MS, 0)
    proc.write()
    status.write_text("Cpus_allowed_list:\t0\n")
    _system(tmp_path, (1000, 2200, 9_000_200))
    narrower = sampler.take()
    usage, _ = usage_between(wider, narrower)
    assert (usage.available_cpu_cores, usage.other_cpu_cores) == (1.0, 0.0)


def test_cpus_of_a_trial_that_has_just_ended_are_still_those_that_it_might_use(
    tmp_path: Path,
) -> None:
    """Else what the others keep idle would seem to be busy with somebody's work."""
    proc = FakeProc(tmp_path)
    proc.start(10, run_ns=0)
    proc.write()
    _system(tmp_path, (0, 0, 0))
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S]).__next__)
    first = sampler.take()
    proc.end(10, reaped=True)
    proc.write()
    _system(tmp_path, (100, 100, 100))
    last = sampler.take()
    usage, _ = usage_between(first, last)
    assert (last.allowed_cpus, last.tree.processes) == (2, 0)
    assert usage.other_cpu_cores == 0.0


def test_ranks_may_use_the_cpus_of_all_of_them(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    for pid, cpu in ((10, 0), (11, 1)):
        proc.start(pid, run_ns=0)
        proc.write()
        (tmp_path / f"proc/{pid}/status").write_text(f"Cpus_allowed_list:\t{cpu}\n")
    (tmp_path / "proc/10/status").write_text("Cpus_allowed_list:\t0\n")
    _system(tmp_path, (0, 0, 0))
    sampler = Sampler(10, beside=[11], root=tmp_path, clock=iter([0, _S]).__next__)
    first = sampler.take()
    _system(tmp_path, (100, 50, 100))
    usage, _ = usage_between(first, sampler.take())
    assert (first.allowed_cpus, usage.available_cpu_cores, usage.other_cpu_cores) == (2, 1.5, 0.5)


def test_what_ranks_use_is_no_other_jobs_as_far_as_they_share_cpus() -> None:
    mine, half, apart = frozenset({0, 1}), frozenset({1, 2}), frozenset({2, 3})
    beside = [(1.0, half), (2.0, apart), (1.0, frozenset[int]()), (None, mine)]
    assert cores_of_others(1.5, mine, beside) == 1.0
    assert cores_of_others(0.2, mine, beside) == 0.0
    assert cores_of_others(None, mine, beside) is None


def test_a_container_that_numbers_its_cpus_again(tmp_path: Path) -> None:
    """The mask has the host's numbers, /proc/stat the container's (lxcfs)."""
    proc = FakeProc(tmp_path)
    proc.start(10, run_ns=0)
    proc.write()
    (tmp_path / "proc/10/status").write_text("Cpus_allowed_list:\t2-3,8\n")
    _system(tmp_path, (0, 0, 0))
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S]).__next__)
    first = sampler.take()
    _system(tmp_path, (100, 50, 0))
    usage, _ = usage_between(first, sampler.take())
    assert (first.allowed_cpus, usage.available_cpu_cores, usage.other_cpu_cores) == (3, 1.5, 1.5)


def test_a_kernel_that_shows_little(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path, schedstat=False, children=False)
    proc.start(10)
    proc.write()
    _system(tmp_path, (0, 0, 0))
    (tmp_path / "proc/10/io").unlink()
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S]).__next__)
    _, missing = usage_between(sampler.take(), sampler.take())
    assert "schedstat" in missing["run_queue_wait_fraction"]
    assert "pressure" in missing["cpu_pressure_fraction"]
    assert "controller" in missing["throttled_fraction"]
    assert "/io" in missing["read_bytes_per_s"]
    assert "own_cpu_cores" not in missing


def test_a_machine_that_counts_no_idle_time(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.start(10)
    proc.write()
    (tmp_path / "proc/stat").write_text("cpu 0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\n")
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S]).__next__)
    usage, missing = usage_between(sampler.take(), sampler.take())
    assert usage.own_cpu_cores == 0
    assert usage.available_cpu_cores is None
    assert "idle" in missing["available_cpu_cores"]


def test_a_trial_that_has_ended_keeps_its_figures(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.start(10, run_ns=MS)
    proc.write()
    _system(tmp_path, (0, 0, 0))
    sampler = Sampler(10, root=tmp_path, clock=iter([0, _S]).__next__)
    first = sampler.take()
    proc.end(10, reaped=False)
    proc.write()
    last = sampler.take()
    assert last.tree.processes == 0
    assert last.tree.cpu_ns == first.tree.cpu_ns


def test_the_growth_of_shared_memory_counts_from_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    proc.start(10)
    proc.write()
    _system(tmp_path, (1, 1, 1))
    (tmp_path / "dev/shm").mkdir(parents=True)
    used = iter([100, 300, 250])

    class Space:
        f_blocks = 1000
        f_bavail = 600
        f_frsize = 4096

        def __init__(self) -> None:
            self.f_bfree = self.f_blocks - next(used)

    monkeypatch.setattr("os.statvfs", lambda _path: Space())
    sampler = Sampler(10, root=tmp_path, clock=lambda: 0)
    assert sampler.take().shm_peak_bytes is None
    assert sampler.take(memory=True).shm_peak_bytes == 200 * 4096
    assert sampler.take(memory=True).shm_peak_bytes == 200 * 4096


def test_sampling_rests_as_long_as_its_cost_asks_for(tmp_path: Path) -> None:
    costs = iter([0, 3 * MS])
    sampler = Sampler(10, root=tmp_path, cpu_clock=costs.__next__)
    assert sampler.rest_s() == 0
    sampler.take()
    assert sampler.rest_s(share=0.02) == pytest.approx(0.15)


def test_memory_now_is_what_the_tree_holds_and_what_is_left(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.start(10)
    proc.start(11, parent=10)
    proc.write()
    _system(tmp_path, (1, 1, 1))
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    sampler = Sampler(10, root=tmp_path)
    sampler.take()
    private_bytes, available_bytes = sampler.memory_now()
    assert available_bytes == 40 * 1024
    assert private_bytes is not None
    assert private_bytes % 600 == 0
