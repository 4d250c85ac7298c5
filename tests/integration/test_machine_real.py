"""The machine room on the machine that runs the tests: processes, a quota, the command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import python

from dlprof.machine import Sampler, inspect_machine, usage_between
from dlprof.machine.cgroups import cpu_quota, read_cgroups

_V1_CPU = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")
_LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
MACHINE = ("-m", "dlprof", "machine")

# Says so when it is ready, burns CPU time until it is asked to stop, and says how much that was.
_BURNER = """
import os, select, sys, time
print("ready", flush=True)
if sys.argv[1] == "fork":
    child = os.fork()
while not select.select([sys.stdin], [], [], 0)[0]:
    sum(range(2000))
if sys.argv[1] == "fork" and child == 0:
    os._exit(0)
if sys.argv[1] == "fork":
    os.waitpid(child, 0)
times = os.times()
print(times.user + times.system + times.children_user + times.children_system, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _burner(kind: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _BURNER, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("stop\n")
    process.stdin.flush()


@_LINUX
@pytest.mark.parametrize("kind", ["alone", "fork"])
def test_cpu_time_is_what_the_processes_say_themselves(kind: str) -> None:
    with _burner(kind) as process:
        assert _line(process) == "ready"
        sampler = Sampler(process.pid)
        start_ns = sampler.take().tree.cpu_ns
        time.sleep(0.3)
        sampler.take()
        _stop(process)
        reported_s = float(_line(process))
        total_s = sampler.take().tree.cpu_ns / 1e9
    assert start_ns / 1e9 <= reported_s + 0.05
    # The process reports clock ticks, and keeps a little to itself after it has answered.
    assert total_s == pytest.approx(reported_s, abs=0.08)


@_LINUX
def test_figures_of_a_real_window_fit_together() -> None:
    machine = inspect_machine()
    with _burner("fork") as process:
        assert _line(process) == "ready"
        sampler = Sampler(process.pid)
        first = sampler.take(memory=True)
        time.sleep(0.5)
        usage, missing = usage_between(first, sampler.take(memory=True))
    assert usage.own_cpu_cores is not None
    assert 0 < usage.own_cpu_cores <= machine.affinity_cpus + 0.1
    assert usage.available_cpu_cores is not None
    assert usage.available_cpu_cores >= usage.own_cpu_cores
    assert usage.observer_cpu_cores is not None
    empty = {name for name in usage.__slots__ if getattr(usage, name) is None}
    assert empty == set(missing)


@contextlib.contextmanager
def _quota_group(cores: float) -> Iterator[Path]:
    """A cgroup with a CPU quota of so many cores; skips where none can be made."""
    group = (_V1_CPU if _V1_CPU.is_dir() else _V2) / f"dlprof-test-{os.getpid()}"
    quota, period = str(int(cores * 100_000)), "100000"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            if _V1_CPU.is_dir():
                (group / "cpu.cfs_period_us").write_text(period)
                (group / "cpu.cfs_quota_us").write_text(quota)
            else:
                (group / "cpu.max").write_text(f"{quota} {period}")
        except OSError as error:
            pytest.skip(f"no CPU quota can be set here: {error}")
        yield group
    finally:
        group.rmdir()


@_LINUX
@pytest.mark.root
def test_a_real_quota_is_seen_and_its_throttling_measured() -> None:
    with _quota_group(0.3) as group, _burner("alone") as process:
        assert _line(process) == "ready"
        (group / "cgroup.procs").write_text(str(process.pid))
        quota = cpu_quota(read_cgroups(process.pid))
        assert quota is not None
        assert quota.amount == pytest.approx(0.3)
        assert quota.cgroup.endswith(group.name)
        sampler = Sampler(process.pid)
        first = sampler.take()
        time.sleep(1.0)
        usage, _ = usage_between(first, sampler.take())
    assert usage.throttled_fraction is not None
    assert usage.run_queue_wait_fraction is not None
    # Where other programs leave it less than the quota, there is nothing to throttle.
    assert usage.throttled_fraction > 0.2 or usage.run_queue_wait_fraction > 0.3
    assert usage.own_cpu_cores is not None
    assert usage.own_cpu_cores < 0.6
    assert usage.available_cpu_cores is not None
    assert usage.available_cpu_cores < 0.6


@_LINUX
@pytest.mark.root
def test_the_tightest_of_nested_real_quotas_counts() -> None:
    with _quota_group(0.5) as outer, _burner("alone") as process:
        assert _line(process) == "ready"
        inner = outer / "inner"
        inner.mkdir()
        try:
            (inner / "cgroup.procs").write_text(str(process.pid))
            quota = cpu_quota(read_cgroups(process.pid))
        finally:
            process.kill()
            process.wait()
            inner.rmdir()
    assert quota is not None
    assert quota.amount == pytest.approx(0.5)
    assert Path(quota.cgroup).name == outer.name


def test_the_command_prints_one_json_document() -> None:
    done = python(Path.cwd(), *MACHINE, "--json", "--seconds", "0.05")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["machine"]["fingerprint"] == inspect_machine().fingerprint
    assert document["neighbours"]["watched_s"] >= 0.05


@pytest.mark.slow
@_LINUX
def test_the_speed_of_its_cores_is_in_the_profile_that_it_saves(tmp_path: Path) -> None:
    saved = tmp_path / "here.toml"
    measured = python(tmp_path, *MACHINE, "--json", "--save", str(saved))
    assert measured.stderr == f"Written: {saved}, for dlprof recommend RUN --machine {saved}\n"
    found = json.loads(measured.stdout)["machine"]["core_speed"]
    assert 0 < found["low"] <= found["median"] <= found["high"]
    assert 0 <= found["slow_fraction"] < 1
    shown = python(tmp_path, *MACHINE, "--json", "--profile", str(saved))
    assert json.loads(shown.stdout)["machine"]["core_speed"] == found


def test_a_profile_is_not_saved_as_one(tmp_path: Path) -> None:
    saved = tmp_path / "there.toml"
    done = python(tmp_path, *MACHINE, "--profile", "x.toml", "--save", str(saved))
    assert done.returncode == 2
    assert "--machine and --save exclude each other" in done.stderr
    assert not saved.exists()


def test_a_profile_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    done = python(tmp_path, *MACHINE, "--profile", "none.toml")
    assert done.returncode == 2
    assert "none.toml" in done.stderr
    assert done.stdout == ""
