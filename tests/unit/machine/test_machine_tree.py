"""Totals of a process tree while its processes start, work and end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_fake_proc import MS, FakeProc

from dlprof.machine.tree import PortableTree, ProcessTree, TreeUsage, open_tree


def _read(proc: FakeProc, tree: ProcessTree) -> TreeUsage:
    proc.write()
    return tree.read()


def _tree(proc: FakeProc, pid: int = 10) -> ProcessTree:
    proc.write()
    return ProcessTree(pid, root=proc.root)


@pytest.fixture(params=[True, False], ids=["children-listed", "children-scanned"])
def proc(request: pytest.FixtureRequest, tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path, children=request.param)


def test_descendants_count_and_strangers_do_not(proc: FakeProc) -> None:
    proc.start(10, run_ns=100 * MS)
    proc.start(11, parent=10, run_ns=20 * MS)
    proc.start(12, parent=11, run_ns=3 * MS)
    proc.start(99, parent=1, run_ns=5000 * MS)
    usage = _read(proc, _tree(proc))
    assert usage.processes == 3
    assert usage.cpu_ns == usage.run_ns == 123 * MS


def test_nanoseconds_and_waits_of_all_threads_are_summed(proc: FakeProc) -> None:
    first = proc.start(10, run_ns=7)
    first.threads = {10: (7, 3), 15: (11, 5)}
    usage = _read(proc, _tree(proc))
    assert (usage.run_ns, usage.wait_ns) == (18, 8)


def test_what_the_first_process_wanted_is_known_beside_its_workers(proc: FakeProc) -> None:
    first = proc.start(10, run_ns=7)
    first.threads = {10: (7, 3), 15: (11, 5)}
    proc.start(11, parent=10, run_ns=20 * MS)
    assert _read(proc, _tree(proc)).first_ns == 26


def test_a_thread_that_ended_stays_counted(proc: FakeProc) -> None:
    first = proc.start(10, run_ns=50 * MS)
    first.threads[15] = (30 * MS, 4 * MS)
    tree = _tree(proc)
    tree.read()
    del first.threads[15]
    first.hidden_ns = 30 * MS
    usage = _read(proc, tree)
    assert (usage.run_ns, usage.wait_ns) == (80 * MS, 4 * MS)
    assert usage.cpu_ns == 80 * MS


def test_a_thread_that_was_never_seen_is_in_the_process_total(proc: FakeProc) -> None:
    first = proc.start(10, run_ns=50 * MS)
    tree = _tree(proc)
    tree.read()
    first.hidden_ns = 400 * MS
    assert _read(proc, tree).cpu_ns == 450 * MS


def test_a_reaped_child_counts_with_all_that_it_used(proc: FakeProc) -> None:
    proc.start(10, run_ns=50 * MS)
    child = proc.start(11, parent=10, run_ns=100 * MS)
    tree = _tree(proc)
    assert tree.read().cpu_ns == 150 * MS
    child.threads[11] = (300 * MS, 0)
    proc.end(11, reaped=True)
    assert _read(proc, tree).cpu_ns == 350 * MS


def test_a_child_that_lived_between_two_readings_counts(proc: FakeProc) -> None:
    proc.start(10, run_ns=50 * MS)
    tree = _tree(proc)
    tree.read()
    proc.start(11, parent=10, run_ns=70 * MS)
    proc.end(11, reaped=True)
    assert _read(proc, tree).cpu_ns == 120 * MS


def test_a_child_that_nobody_waits_for_counts_as_last_seen(proc: FakeProc) -> None:
    proc.start(10, run_ns=50 * MS)
    proc.start(11, parent=10, run_ns=100 * MS)
    tree = _tree(proc)
    tree.read()
    proc.end(11, reaped=False)
    assert _read(proc, tree).cpu_ns == 150 * MS
    assert _read(proc, tree).cpu_ns == 150 * MS


def test_a_child_reaped_later_is_not_counted_twice(proc: FakeProc) -> None:
    first = proc.start(10, run_ns=50 * MS)
    proc.start(11, parent=10, run_ns=100 * MS)
    tree = _tree(proc)
    tree.read()
    proc.end(11, reaped=False)
    assert _read(proc, tree).cpu_ns == 150 * MS
    first.reaped_ns = 130 * MS
    assert _read(proc, tree).cpu_ns == 180 * MS


def test_an_orphan_stays_in_the_tree(proc: FakeProc) -> None:
    proc.start(10)
    proc.start(11, parent=10)
    orphan = proc.start(12, parent=11, run_ns=5 * MS)
    tree = _tree(proc)
    tree.read()
    proc.end(11, reaped=True)
    orphan.parent = 1
    orphan.threads[12] = (90 * MS, 0)
    usage = _read(proc, tree)
    assert usage.processes == 2
    assert usage.cpu_ns == 90 * MS


@pytest.mark.parametrize(
    ("parent", "run_ms", "counted"), [(1, 7000, (1, 110 * MS)), (10, 40, (2, 150 * MS))]
)
def test_an_id_that_is_used_again_counts_as_new_of_a_child_and_not_of_a_stranger(
    proc: FakeProc, parent: int, run_ms: int, counted: tuple[int, int]
) -> None:
    proc.start(10, run_ns=10 * MS)
    proc.start(11, parent=10, run_ns=100 * MS)
    tree = _tree(proc)
    tree.read()
    proc.end(11, reaped=True)
    proc.start(11, parent=parent, start=999, run_ns=run_ms * MS)
    usage = _read(proc, tree)
    assert (usage.processes, usage.cpu_ns) == counted


def test_a_tree_that_has_ended_keeps_its_totals(proc: FakeProc) -> None:
    proc.start(10, run_ns=10 * MS)
    proc.start(11, parent=10, run_ns=20 * MS)
    tree = _tree(proc)
    before = tree.read()
    proc.end(11, reaped=False)
    proc.end(10, reaped=False)
    after = _read(proc, tree)
    assert after.processes == 0
    assert (after.cpu_ns, after.run_ns) == (before.cpu_ns, before.run_ns)


def test_a_process_that_never_was(proc: FakeProc) -> None:
    usage = _read(proc, _tree(proc))
    assert usage == TreeUsage(
        processes=0,
        cpu_ns=0,
        run_ns=None,
        wait_ns=None,
        read_chars=None,
        read_bytes=None,
    )


def test_bytes_read_by_ended_children_stay_counted(proc: FakeProc) -> None:
    first = proc.start(10)
    child = proc.start(11, parent=10)
    first.rchar, child.rchar, child.read_bytes = 5, 100, 64
    tree = _tree(proc)
    tree.read()
    child.rchar = 1000
    proc.end(11, reaped=True)
    usage = _read(proc, tree)
    assert (usage.read_chars, usage.read_bytes) == (1005, 64)
    proc.end(10, reaped=False)
    assert _read(proc, tree).read_chars == 1005


def test_without_schedstat_clock_ticks_show_the_cpu_time(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path, schedstat=False)
    proc.start(10, run_ns=120 * MS)
    usage = _read(proc, _tree(proc))
    assert usage.cpu_ns == 120 * MS
    assert usage.run_ns is None
    assert usage.wait_ns is None


def test_memory_is_summed_over_the_tree(proc: FakeProc) -> None:
    proc.start(10).pss_kib = 1000
    proc.start(11, parent=10).pss_kib = 24
    tree = _tree(proc)
    tree.read()
    assert tree.pss_bytes() == 1024 * 1024
    private = tree.private_bytes()
    assert private is not None
    assert private > 0


def test_memory_that_can_not_be_read_is_unknown(proc: FakeProc) -> None:
    proc.start(10)
    tree = _tree(proc)
    tree.read()
    (proc.root / "proc/10/smaps_rollup").unlink()
    (proc.root / "proc/10/statm").unlink()
    assert tree.pss_bytes() is None
    assert tree.private_bytes() is None


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "work", "end", "abandon", "read"]),
        st.integers(0, 5),
        st.integers(0, 300),
    ),
    max_size=15,
)


@settings(max_examples=40, deadline=None)  # each example writes and reads many files
@given(_EVENTS)
def test_totals_never_go_backwards(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]]
) -> None:
    proc = FakeProc(tmp_path_factory.mktemp("proc"))
    proc.start(10)
    tree = _tree(proc)
    last = tree.read()
    for number, (what, which, amount) in enumerate(events):
        alive = sorted(proc.processes)
        pid = alive[which % len(alive)]
        if what == "start":
            proc.start(100 + number, parent=pid, run_ns=amount * MS)
        elif what == "work":
            run, wait = proc.processes[pid].threads[pid]
            proc.processes[pid].threads[pid] = (run + amount * MS, wait + amount)
        elif what in {"end", "abandon"} and pid != 10:
            for process in proc.processes.values():
                process.parent = 1 if process.parent == pid else process.parent
            proc.end(pid, reaped=what == "end")
        now = _read(proc, tree)
        assert now.cpu_ns >= last.cpu_ns
        assert (now.run_ns or 0) >= (last.run_ns or 0)
        assert (now.wait_ns or 0) >= (last.wait_ns or 0)
        last = now


def test_where_psutil_finds_no_proc_there_is_nothing_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where /proc shows processes alone, and psutil asks when the system was started."""

    def fail(_pid: int) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/stat")

    monkeypatch.setattr(psutil, "Process", fail)
    tree = PortableTree(os.getpid())
    assert (tree.read().processes, tree.private_bytes()) == (0, None)


def test_psutil_reads_a_real_process() -> None:
    tree = PortableTree(os.getpid())
    usage = tree.read()
    assert usage.processes >= 1
    assert usage.cpu_ns > 0
    assert usage.wait_ns is None
    assert tree.pss_bytes() is None
    assert (tree.private_bytes() or 0) > 0


def test_psutil_reads_the_trees_of_all_ranks(tmp_path: Path) -> None:
    """They are divided by the number of ranks, where there is no /proc, too."""
    command = [sys.executable, "-c", "input()"]
    with contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)) for _ in range(2)
        )
        tree = open_tree(one.pid, tmp_path, [other.pid])
        assert tree.read().processes == 2
        one.communicate(b"\n")
        assert tree.read().processes == 1
        other.communicate(b"\n")
