"""What the costs of batches leave out of the CPU time that the kernel counts: next to nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dlprof.records import Config, Explanation
from dlprof.records.stages import BatchCosts
from dlprof.targets.grammar import parse_target
from dlprof.tracing.clocks import ChildrenClock
from dlprof.tracing.explain import explain
from dlprof.tracing.trace import Trace
from dlprof.tracing.tracer import Tracer
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits
from dlprof.tuning.seeding import UsedClock

BATCHES = 40
LEAST, MOST = 0.85, 1.05
"""Of the kernel's count; the tracer's own work belongs to no batch."""

INIT_S = 0.2

BUILD = BuildRequest(target=parse_target(f"{Path(__file__)}:computed"))
LIMITS = TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0)


class Copied(Dataset[torch.Tensor]):
    """Samples of 4 MB, so that handing batches over and letting them go costs something."""

    def __init__(self) -> None:
        self.kept = torch.zeros(1 << 20)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.kept + index


def traced(**options: Any) -> tuple[Trace, BatchCosts]:
    """An epoch of a loader, and what its batches cost."""
    tracer = Tracer(DataLoader(Copied(), batch_size=1, **options))
    tracer.install()
    for _ in tracer:
        pass
    tracer.remove()
    trace, config = tracer.trace(), Config(num_workers=options.get("num_workers", 0))
    shown = explain(trace, trial_id="", config=config.canonical(), computes=False)
    return trace, shown.costs


def test_all_cpu_of_a_worker_is_reported() -> None:
    trace, costs = traced(num_workers=1)
    counted = [row.made.process_cpu for row in trace.rows if row.made is not None]
    shown_s = sum(map(sum, (costs.cpu_s, costs.put_cpu_s, costs.between_cpu_s)))
    assert LEAST < shown_s / (1e-9 * (counted[-1] - counted[0])) < MOST


def computing(_worker: int) -> None:
    """Keeps a worker computing before its first batch."""
    while time.thread_time() < INIT_S:
        pass


def test_starting_a_worker_is_no_cost_of_its_first_batch() -> None:
    trace, _ = traced(num_workers=1, worker_init_fn=computing)
    first = trace.rows[0].made
    assert first is not None
    assert first.between_cpu * 1e-9 < INIT_S / 2


@pytest.mark.parametrize("workers", [0, 1])
def test_all_cpu_of_main_is_reported(workers: int) -> None:
    trace, costs = traced(num_workers=workers)
    counted = [row.thread_cpu for row in trace.rows]
    own = () if workers else costs.cpu_s
    shown = costs.receive_cpu_s, costs.main_cpu_s, costs.let_go_cpu_s, own
    first = 0 if workers else 1  # a worker's first batch is no usual one
    shown_s = sum(sum(column[first:]) for column in shown)
    assert LEAST < shown_s / (1e-9 * (counted[-1] - counted[0])) < MOST


CHILD_S = 0.02
BURN = f"""
import sys, time
for _ in sys.stdin:
    until_s = time.process_time() + {CHILD_S}
    while time.process_time() < until_s: pass
    print("made", flush=True)
"""
WAIT = f"import time\ntime.sleep({CHILD_S})"


def burn(_index: int) -> None:
    """What a process of a pool does."""
    until_s = time.process_time() + CHILD_S
    while time.process_time() < until_s:
        pass


class Decoded(Dataset[torch.Tensor]):
    """Samples by child processes."""

    def __init__(self, make: Callable[[Decoded, int], object]) -> None:
        self.make = make
        self.helper: Any = None
        self.pool: Any = None

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        self.make(self, index)
        return torch.zeros(4)

    def by_its_own(self, _index: int) -> None:
        """Each by a process."""
        subprocess.run([sys.executable, "-S", "-c", BURN], input=b"1\n", check=True)

    def by_one(self, _index: int) -> None:
        """All by one, which lives as long."""
        if self.helper is None:
            self.helper = subprocess.Popen(
                [sys.executable, "-S", "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        self.helper.stdin.write(b"1\n")
        self.helper.stdin.flush()
        assert self.helper.stdout.readline()

    def by_a_pool(self, index: int) -> None:
        """Each by a process of a pool."""
        if self.pool is None:
            self.pool = multiprocessing.get_context("fork").Pool(1)
        self.pool.apply(burn, [index])

    def by_a_server(self, index: int) -> None:
        """Each by a process of a pool, which a server has started."""
        if self.pool is None:
            self.pool = multiprocessing.get_context("forkserver").Pool(1)
        self.pool.apply(burn, [index])

    def by_waiting(self, _index: int) -> None:
        """Each by a process that waits, as for the network."""
        subprocess.run([sys.executable, "-S", "-c", WAIT], check=True)

    def close(self) -> None:
        """End what still runs here."""
        if self.helper is not None:
            self.helper.communicate()
        if self.pool is not None:
            self.pool.terminate()
            self.pool.join()


def decoded(make: Callable[[Decoded, int], object], workers: int) -> Explanation:
    """What an epoch of such samples shows."""
    with contextlib.closing(Decoded(make)) as dataset:
        tracer = Tracer(DataLoader(dataset, batch_size=1, num_workers=workers))
        tracer.install()
        for _ in tracer:
            pass
        tracer.remove()
    return explain(tracer.trace(), trial_id="", config=Config(num_workers=workers).canonical())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        (Decoded.by_its_own, 0),
        (Decoded.by_its_own, 1),
        (Decoded.by_one, 0),
        (Decoded.by_one, 1),
        (Decoded.by_a_pool, 0),  # a worker may start no processes of multiprocessing's
        (Decoded.by_a_server, 0),
    ],
)
def test_what_child_processes_compute_is_cpu_time(
    make: Callable[[Decoded, int], object], workers: int
) -> None:
    """It was taken for I/O, of which more workers than cores would make more at once."""
    found = decoded(make, workers)
    least_s = 0.75 * CHILD_S  # it begins while its parent still has to do with starting it
    assert min(found.costs.cpu_s) >= least_s
    assert found.children_cpu_s
    fetch = found.stage("fetch")
    assert fetch is not None
    assert fetch.cpu_s is not None
    assert fetch.cpu_s >= least_s


@pytest.mark.parametrize("workers", [0, 1])
def test_a_child_process_that_waits_is_waited_for(workers: int) -> None:
    assert min(decoded(Decoded.by_waiting, workers).costs.io_s) >= 0.75 * CHILD_S


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_a_childs_end_changes_nothing_of_what_it_has_computed() -> None:
    clock = ChildrenClock()
    began_ns = clock.read()
    run = [sys.executable, "-S", "-c", BURN]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(10 * b"1\n")
        child.stdin.flush()
        assert all(child.stdout.readline() for _ in range(10))
        living_s = 1e-9 * (clock.read() - began_ns)
    ended_s = 1e-9 * (clock.read() - began_ns)
    assert 10 * CHILD_S <= living_s <= ended_s < 1.5 * living_s
    clock.close()


@contextlib.contextmanager
def killed(run: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends at the end, whatever comes."""
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def until(clock: ChildrenClock, least_ns: int) -> None:
    """Wait until the children have used so much."""
    deadline_s = time.monotonic() + 60
    while clock.read() < least_ns:
        assert time.monotonic() < deadline_s


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_workers_of_another_loader_in_main_are_no_children_of_this_ones(tmp_path: Path) -> None:
    shell = tmp_path / "pt_data_worker"
    shell.symlink_to("/bin/sh")
    every, others = ChildrenClock(), ChildrenClock(leave_out=shell.name)
    began_ns, theirs_ns = every.read(), others.read()
    with killed([shell, "-c", "while :; do :; done"]):
        until(every, began_ns + 10_000_000)
        assert others.read() == theirs_ns


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_a_child_that_gets_its_name_late_is_a_worker_from_then_on(tmp_path: Path) -> None:
    """As one that is spawned."""
    shell = tmp_path / "pt_data_worker"
    shell.symlink_to("/bin/sh")
    others = ChildrenClock(leave_out=shell.name)
    become = f"read go; exec {shell} -c 'echo; while :; do :; done'"
    with killed(["/bin/sh", "-c", become]) as child:
        others.read()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline()
        named_ns = others.read()
        before = ChildrenClock()
        began_ns = before.read()
        until(before, began_ns + 10_000_000)
        assert others.read() == named_ns


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_a_name_that_is_no_text_is_a_name(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of it, and may cut a letter in two."""
    shell = tmp_path / ("a" * 14 + "é")
    shell.symlink_to("/bin/sh")
    clock = ChildrenClock(leave_out="pt_data_worker")
    with killed([shell, "-c", "while :; do :; done"]):
        until(clock, clock.read() + 1)


HELPER = """
import subprocess, sys
for line in sys.stdin:
    subprocess.run([sys.executable, "-S", "-c", sys.argv[1]], input=b"1\\n", check=True)
    print("made", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_what_a_child_has_started_and_waited_for_counts_too() -> None:
    clock, run = ChildrenClock(), [sys.executable, "-S", "-c", HELPER, BURN]
    began_ns = clock.read()
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(5 * b"1\n")
        child.stdin.flush()
        assert all(child.stdout.readline() for _ in range(10))  # two for each
        living_s = 1e-9 * (clock.read() - began_ns)
    ended_s = 1e-9 * (clock.read() - began_ns)
    assert 4 * CHILD_S <= living_s <= ended_s < 1.5 * living_s
    clock.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere living children have no clock")
def test_children_that_nobody_waits_for_count_each() -> None:
    """Where their end is ignored, the kernel adds them to no sum."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    clock = ChildrenClock()
    began_ns = clock.read()
    try:
        for count in (10, 5, 5):
            run = [sys.executable, "-S", "-c", BURN]
            with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(count * b"1\n")
                child.stdin.flush()
                assert all(child.stdout.readline() for _ in range(count))
                clock.read()
            clock.read()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert clock.read() - began_ns >= 20 * 1e9 * CHILD_S
    clock.close()


def test_tuning_sees_what_a_small_child_computes() -> None:
    """The system's ticks are of 10 ms, and most batches would show none."""

    def ended_s() -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + ended.ru_utime + ended.ru_stime

    used = UsedClock()
    for _ in range(5):
        began_s, least_s = used.read_s(), -ended_s()
        subprocess.run(["/bin/sh", "-c", ":"], check=True)
        least_s += ended_s()
        assert used.read_s() - began_s > least_s


class Computed(Dataset[torch.Tensor]):
    """Samples that keep the interpreter's lock for 5 ms, as plain Python does."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        until_s = time.thread_time() + 0.005
        while time.thread_time() < until_s:
            pass
        return torch.zeros(4) + index


def computed() -> DataLoader[torch.Tensor]:
    """Batches of 10 ms."""
    return DataLoader(Computed(), batch_size=2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no descriptors are asked for")
@pytest.mark.parametrize("workers", [1, 2])
def test_receiving_from_resting_workers_is_distinguished(tmp_path: Path, workers: int) -> None:
    config = Config(num_workers=workers, prefetch_factor=2)
    request = TrialRequest(config=config, trial_s=0.4, turnover=False, explain=True)
    with contextlib.closing(TrialRunner(BUILD, directory=tmp_path)) as bench:
        bench.build(LIMITS)
        trial, shown = bench.explain(request, trial_id="t1", repetition=0)
    assert trial.failure is None
    waits = shown["explanation"]["costs"]["receive_io_s"]
    rested_s = shown["explanation"]["rested_receive_s"]
    if rested_s is None:  # queues that take seconds to fill are not waited for
        pytest.skip("the machine is too busy to let the workers rest")
    # By how much, the machine decides: its other programs lengthen both.
    assert 0.0 <= rested_s < statistics.fmean(waits)


class Filled(Dataset[torch.Tensor]):
    """Samples of 9 MB, each a copy."""

    def __init__(self) -> None:
        self._kept = torch.zeros(2_250_000)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._kept.clone()


def filled() -> DataLoader[torch.Tensor]:
    """Batches of 36 MB, which glibc's malloc gives back to the system once they are freed."""
    torch.set_num_threads(1)
    return DataLoader(Filled(), batch_size=4)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc gives back otherwise")
@pytest.mark.parametrize("name", ["filled", "computed"])
def test_page_faults_are_found_that_malloc_can_spare(tmp_path: Path, name: str) -> None:
    build = BuildRequest(target=parse_target(f"{Path(__file__)}:{name}"))
    request = TrialRequest(
        config=Config(), trial_s=0.3, turnover=False, explain=True, keeps_freed=True
    )
    with contextlib.closing(TrialRunner(build, directory=tmp_path)) as bench:
        bench.build(LIMITS)
        trial, shown = bench.explain(request, trial_id="t1", repetition=0)
    assert trial.failure is None
    found = shown["explanation"]["page_faults"]
    if trial.batches_per_s is None or trial.batches_per_s.value < 8:
        pytest.skip("the machine is too busy for some batches more")
    if name == "computed":
        assert found is None
    else:
        # A batch of 36 MB begins and ends within a page, which may be there already.
        assert (found["spared"] + 2) * os.sysconf("SC_PAGESIZE") > 36e6
        assert 0.1 * found["cpu_s"] <= found["kept_cpu_s"] < found["cpu_s"]
