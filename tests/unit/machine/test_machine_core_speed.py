"""The speed of cores by a pretended clock: what the mean is of, and when there is none."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlprof.machine import core_speed
from dlprof.machine.core_speed import TOO_SHORT, UNPINNED, SpeedProbe

_STEPS = 400
_SLOW_NS, _FAST_NS = 40_000, 20_000
_SLOW, _FAST = 10_000.0, 20_000.0
"""Thousands of steps a second of a core that takes so long for them."""

_VISIT_S = 5.0
"""After which a test fails, rather than waits for a visit that does not come."""


class FakeCores:
    """Cores that take as long for the work as a test says.

    Attributes:
        lasts_ns: What each core takes for the timed work.
        visited: Cores in the order in which they did some.
        gone: Cores that this process may no longer use.
    """

    def __init__(self, root: Path, lasts_ns: dict[int, int]) -> None:
        self.lasts_ns = lasts_ns
        self.visited: list[int] = []
        self.gone: set[int] = set()
        self._root = root
        self._on = threading.local()
        self._changed = threading.Condition()
        self.tick({})

    def pin(self, _pid: int, cpus: set[int]) -> None:
        """What takes the place of ``os.sched_setaffinity``."""
        (self._on.cpu,) = cpus
        if self._on.cpu in self.gone:
            raise OSError(22, "Invalid argument")
        self._on.now_ns = 0

    def work(self, steps: int) -> None:
        """Only timed work takes time, and counts as a visit."""
        if steps != _STEPS:
            return
        self._on.now_ns += self.lasts_ns[self._on.cpu]
        with self._changed:
            self.visited.append(self._on.cpu)
            self._changed.notify_all()

    def clock(self) -> int:
        """CPU time of the calling thread."""
        return int(self._on.now_ns)

    def tick(self, busy: dict[int, int]) -> None:
        """Write so many ticks of busy time of each core to ``/proc/stat``."""
        (self._root / "proc").mkdir(exist_ok=True)
        lines = [f"cpu{cpu} {busy.get(cpu, 0)} 0 0 1000 0 0 0 0 0 0" for cpu in self.lasts_ns]
        (self._root / "proc/stat").write_text("\n".join(["cpu 0 0 0 0", *lines, "intr 7"]) + "\n")

    def await_visits(self, *cpus: int) -> None:
        """Wait until each of the cores did some work after those that it did before."""
        with self._changed:
            before = len(self.visited)
            assert self._changed.wait_for(
                lambda: {*cpus} <= {*self.visited[before:]}, timeout=_VISIT_S
            )


Made = Callable[[dict[int, int]], tuple[FakeCores, SpeedProbe]]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes cores that take so long each, and a probe of them."""

    def make(lasts_ns: dict[int, int]) -> tuple[FakeCores, SpeedProbe]:
        cores = FakeCores(tmp_path, lasts_ns)
        monkeypatch.setattr(os, "sched_setaffinity", cores.pin, raising=False)
        probe = SpeedProbe(tmp_path, cpus=[*lasts_ns], work=cores.work, clock=cores.clock)
        return cores, probe

    return make


def window(cores: FakeCores, probe: SpeedProbe, busy: dict[int, int]) -> None:
    """One in which every core is visited, and was busy for so many ticks more."""
    probe.start()
    cores.await_visits(*cores.lasts_ns)
    cores.tick(busy)
    probe.stop()


def test_the_mean_is_over_the_cores_by_how_busy_they_were(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    window(cores, probe, {0: 300, 1: 100})
    assert probe.mean == pytest.approx((3 * _SLOW + _FAST) / 4, rel=1e-4)


def test_where_a_container_numbers_its_cores_again_each_counts_the_same(
    made: Made, tmp_path: Path
) -> None:
    cores, probe = made({2: _SLOW_NS, 8: _FAST_NS})

    def tick(busy: int) -> None:
        lines = [f"cpu{cpu} {busy} 0 0 1000 0 0 0 0 0 0" for cpu in (0, 1, 2)]
        (tmp_path / "proc/stat").write_text("\n".join(lines) + "\n")

    tick(0)
    probe.start()
    cores.await_visits(2, 8)
    tick(300)
    probe.stop()
    assert probe.mean == pytest.approx((_SLOW + _FAST) / 2, rel=1e-4)


def test_a_limit_of_threads_ends_no_window(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    _, probe = made({0: _SLOW_NS})
    monkeypatch.setattr(threading.Thread, "start", refused)
    probe.start()
    probe.stop()
    assert (probe.mean, probe.unavailable) == (None, TOO_SHORT)


def test_where_no_core_was_busy_each_counts_the_same(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    window(cores, probe, {})
    assert probe.mean == pytest.approx((_SLOW + _FAST) / 2)


def test_what_cores_did_before_the_window_does_not_count(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    cores.tick({0: 5000, 1: 100})
    window(cores, probe, {0: 5000, 1: 200})
    assert probe.mean == pytest.approx(_FAST, rel=1e-3)


def test_without_the_kernels_figures_each_core_counts_the_same(made: Made, tmp_path: Path) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    (tmp_path / "proc/stat").unlink()
    probe.start()
    cores.await_visits(0, 1)
    probe.stop()
    assert probe.mean == pytest.approx((_SLOW + _FAST) / 2)


def test_one_that_never_ran_has_none_and_says_why(made: Made) -> None:
    _, probe = made({0: _SLOW_NS})
    assert probe.mean is None
    assert probe.unavailable == TOO_SHORT


def test_a_core_that_was_not_visited_leaves_none(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    cores.gone = {1}
    probe.start()
    cores.await_visits(0)
    probe.stop()
    assert probe.mean is None
    assert probe.speeds == {0: pytest.approx(_SLOW)}


def test_a_window_that_begins_again_forgets(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS})
    window(cores, probe, {0: 100})
    assert probe.mean == pytest.approx(_SLOW)
    cores.lasts_ns[0] = _FAST_NS
    window(cores, probe, {0: 200})
    assert probe.mean == pytest.approx(_FAST)


def test_beginning_again_without_an_end_leaves_no_thread_behind(made: Made) -> None:
    before = threading.active_count()
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    for _ in range(3):
        probe.start()
        assert threading.active_count() == before + len(cores.lasts_ns)
    probe.stop()
    assert threading.active_count() == before
    seen = len(cores.visited)
    probe.stop()  # once more does nothing
    assert len(cores.visited) == seen


def test_a_machine_of_many_cores_is_visited_in_turns(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_speed, "_MOST_CORES", 2)
    cores, probe = made(dict.fromkeys(range(5), _SLOW_NS))
    turns = []
    for some in ((0, 1), (2, 3), (4, 0), (1, 2)):
        probe.start()
        cores.await_visits(*some)
        probe.stop()
        turns.append({*cores.visited})
        cores.visited.clear()
        assert probe.mean == pytest.approx(_SLOW)
    assert turns == [{0, 1}, {2, 3}, {4, 0}, {1, 2}]


def test_where_threads_can_not_be_pinned_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    before = threading.active_count()
    probe = SpeedProbe(tmp_path, cpus=[0, 1])
    probe.start()
    assert threading.active_count() == before
    probe.stop()
    assert probe.mean is None
    assert probe.over_all is None
    assert probe.unavailable == UNPINNED


def test_a_thread_that_is_left_behind_needs_nothing_that_may_be_gone(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    cores, probe = made({0: _SLOW_NS})
    monkeypatch.delattr(os, "sched_setaffinity")  # as a test does that ends before its threads
    window(cores, probe, {})
    assert probe.mean == pytest.approx(_SLOW)
    assert not failed


def test_a_thread_that_comes_late_knows_its_own_window(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a core that gives it no time before the next window visits other cores."""
    monkeypatch.setattr(core_speed, "_MOST_CORES", 1)
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    late: list[Callable[[], object]] = []

    class Late:
        """A thread that has not come to anything when its window ends."""

        def __init__(self, *, target: Callable[..., object], args: Any, daemon: bool) -> None:
            del daemon
            late.append(lambda: target(*args))

        def start(self) -> None:
            """Not yet."""

        def join(self, _timeout: float) -> None:
            """Not now."""

    monkeypatch.setattr(threading, "Thread", Late)
    probe.start()
    probe.start()
    late[0]()
    assert cores.visited == []


def test_of_a_machine_it_says_the_median_and_the_slowest_and_fastest_core(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS, 2: _FAST_NS})
    assert probe.over_all is None
    window(cores, probe, {0: 900})
    found = probe.over_all
    assert found is not None
    assert (found.median, found.low, found.high) == pytest.approx((_FAST, _SLOW, _FAST))
    assert found.unit == f"thousand steps/s of Python {sys.version_info[0]}.{sys.version_info[1]}"


def test_slow_time_is_what_is_slow_beside_the_quickest(made: Made) -> None:
    cores, probe = made({0: _SLOW_NS})
    probe.start()
    cores.await_visits(0)
    probe.stop()
    assert probe.over_all is not None
    assert probe.over_all.slow_fraction == 0  # nothing was any quicker
    probe._visits = {0: [_FAST, _FAST, _FAST, _SLOW], 1: [_FAST, _FAST / 1.2, _SLOW, _SLOW]}
    assert probe.over_all is not None
    assert probe.over_all.slow_fraction == pytest.approx(3 / 8)


def test_little_cores_are_not_big_ones_that_are_slow(made: Made, tmp_path: Path) -> None:
    cores, probe = made({0: _SLOW_NS, 1: _FAST_NS})
    for cpu in cores.lasts_ns:
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "cpuinfo_max_freq").write_text(f"{3_600_000 + 1_300_000 * cpu}\n")
    window(cores, probe, {})
    assert probe.over_all is not None
    assert (probe.over_all.low, probe.over_all.high) == pytest.approx((_SLOW, _FAST), rel=1e-3)
    assert probe.over_all.slow_fraction == 0


def test_its_own_work_is_timed_by_its_own_cpu_time(tmp_path: Path) -> None:
    """On whatever machine: of the cores that this process may use, with neither made up."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("threads can't be pinned here")
    visits = threading.Event()

    def work(steps: int) -> None:
        core_speed._loop(steps)
        visits.set()

    some = min(os.sched_getaffinity(0))
    probe = SpeedProbe(tmp_path, cpus=[some], work=work)
    while probe.mean is None:
        probe.start()
        assert visits.wait(_VISIT_S)
        visits.wait(0.05)
        probe.stop()
    assert probe.mean > 0
    assert probe.over_all is not None
    assert probe.over_all.median == pytest.approx(probe.mean)


def test_slow_cores_are_visited_more_rarely(made: Made) -> None:
    cores, probe = made({0: 8_000_000})  # of which a hundred would be most of a core
    probe.start()
    cores.await_visits(0)
    time.sleep(0.2)
    probe.stop()
    assert len(cores.visited) <= 2
