"""Trainings among recorded processes: six workers of torch 2.13, four of which had no shard."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from dlprof.attach import session
from dlprof.attach.trainings import Training, find_trainings, read_training, training_of
from dlprof.attach.watching import Watcher, _Pipes
from dlprof.cli.commands import taking_values
from dlprof.cli.run import run
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.machine import gpus
from dlprof.machine.gpus import Gpus
from dlprof.machine.neighbours import name_of_user
from dlprof.machine.tree import ProcessTree, TreeUsage
from dlprof.machine.waits import Glances

RECORDED = Path(__file__).parents[2] / "data" / "attach" / "shards"
MAIN, WORKERS = 17191, (17661, 17666)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy, which tests may change."""
    return shutil.copytree(RECORDED, tmp_path / "root")


def _rename(root: Path, pid: int, name: str) -> None:
    stat = root / f"proc/{pid}/stat"
    text = stat.read_text(encoding="ascii")
    stat.write_text(f"{pid} ({name}){text.rpartition(')')[2]}", encoding="ascii")


def _reparent(root: Path, pid: int, parent: int) -> None:
    stat = root / f"proc/{pid}/stat"
    head, _, rest = stat.read_text(encoding="ascii").rpartition(")")
    state, _, *columns = rest.split()
    stat.write_text(f"{head}) {state} {parent} {' '.join(columns)}\n", encoding="ascii")


def test_a_training_has_its_workers_those_that_ended_apart(root: Path) -> None:
    (found,) = find_trainings(root)
    assert found.pid == found.parent == MAIN
    assert found.workers == WORKERS
    assert found.ended_workers == 4
    assert found.script == "train.py"
    assert found.rerun == "dlprof run train.py --epochs 3"


def test_a_worker_leads_to_its_training(root: Path) -> None:
    assert training_of(WORKERS[0], root).pid == MAIN


def test_workers_of_a_fork_server_belong_to_whom_it_serves(root: Path) -> None:
    server = root / "proc/18000"
    shutil.copytree(root / f"proc/{MAIN}", server)
    _rename(root, 18000, "python")
    _reparent(root, 18000, MAIN)
    command = b"python\0-c\0from multiprocessing.forkserver import main; main()\0"
    (server / "cmdline").write_bytes(command)
    for pid in WORKERS:
        _reparent(root, pid, 18000)
    found = training_of(MAIN, root)
    assert found.parent == 18000
    assert found.workers == WORKERS
    assert [each.pid for each in find_trainings(root)] == [MAIN]


def test_a_training_without_workers_is_known_by_torch(root: Path) -> None:
    for pid in (17661, 17666, 17672, 17680, 17695, 17700):
        shutil.rmtree(root / f"proc/{pid}")
    assert [each.workers for each in find_trainings(root)] == [()]
    (root / f"proc/{MAIN}/maps").write_text("7f00-7f01 r-xp 00000000 00:00 0 /lib/libc.so.6\n")
    assert find_trainings(root) == ()


@pytest.mark.parametrize("loads", [True, False])
def test_what_dlprof_runs_by_itself_is_no_training(root: Path, *, loads: bool) -> None:
    """A sweep's fork server has torch, and its trial workers; a script under dlprof run is one."""
    if not loads:
        for pid in (17661, 17666, 17672, 17680, 17695, 17700):
            shutil.rmtree(root / f"proc/{pid}")
    own = [f"-m\0dlprof.trial.{name}" for name in ("fork_server\0/tmp/7", "child", "warm")]
    for words, listed in [(each, []) for each in own] + [("-m\0dlprof\0run\0train.py", [MAIN])]:
        (root / f"proc/{MAIN}/cmdline").write_text(f"/venv/bin/python\0-P\0{words}\0")
        assert [each.pid for each in find_trainings(root)] == listed


@pytest.mark.parametrize("loads", [True, False])
def test_a_process_that_runs_tests_is_a_training_once_it_has_workers(
    root: Path, *, loads: bool
) -> None:
    command = b"/usr/bin/python3\0-u\0-c\0import sys;exec(eval(sys.stdin.readline()))\0"
    (root / f"proc/{MAIN}/cmdline").write_bytes(command)
    if not loads:
        for pid in (17661, 17666, 17672, 17680, 17695, 17700):
            shutil.rmtree(root / f"proc/{pid}")
    assert [each.pid for each in find_trainings(root)] == [MAIN] * loads


def test_a_launcher_with_one_training_leads_to_it_and_one_with_two_lists_them(root: Path) -> None:
    launcher = root / "proc/17000"
    shutil.copytree(root / f"proc/{MAIN}", launcher)
    _rename(root, 17000, "torchrun")
    _reparent(root, MAIN, 17000)
    assert training_of(17000, root).pid == MAIN
    shutil.copytree(root / f"proc/{MAIN}", root / "proc/17100")
    _rename(root, 17100, "python")
    shutil.copytree(root / f"proc/{WORKERS[0]}", root / "proc/17101")
    _rename(root, 17101, "pt_data_worker")
    _reparent(root, 17101, 17100)
    with pytest.raises(UsageError, match="2 trainings: 17100, 17191") as raised:
        training_of(17000, root)
    assert "dlprof attach 17100" in raised.value.hint


def _process(root: Path, pid: int, parent: int, words: str, *, torch: bool = False) -> None:
    """One more process: a copy of the training's main one, without its torch."""
    shutil.copytree(root / f"proc/{MAIN}", root / f"proc/{pid}")
    _rename(root, pid, Path(words.split("\0", maxsplit=1)[0]).name)
    _reparent(root, pid, parent)
    (root / f"proc/{pid}/cmdline").write_text(f"{words}\0", encoding="ascii")
    if not torch:
        (root / f"proc/{pid}/maps").write_bytes(b"")


def _without_workers(root: Path) -> None:
    for pid in (*WORKERS, 17672, 17680, 17695, 17700):
        shutil.rmtree(root / f"proc/{pid}")


@pytest.mark.parametrize("torch", [True, False])
def test_a_launcher_leads_to_a_training_that_has_no_workers(root: Path, *, torch: bool) -> None:
    """Nor torch, where it has just begun; what compiles for it is a part of it."""
    _without_workers(root)
    _process(root, 17000, 1, "timeout\x00100\0bash\0train.sh")
    _process(root, 17001, 17000, "bash\0train.sh")
    _reparent(root, MAIN, 17001)
    _process(root, 17200, MAIN, "python\0-m\0compile_worker", torch=torch)
    if not torch:
        (root / f"proc/{MAIN}/maps").write_bytes(b"")
    found = training_of(17000, root)
    assert (found.pid, found.launcher) == (MAIN, "17000 (timeout)")
    assert read_training(found, root).launcher == found.launcher
    assert training_of(MAIN, root).launcher == ""


def test_of_several_without_workers_each_is_named_with_its_script(root: Path) -> None:
    _without_workers(root)
    _process(root, 17000, 1, "bash\0all.sh")
    _reparent(root, MAIN, 17000)
    _process(root, 17200, 17000, "python\0evaluate.py", torch=True)
    _process(root, 17300, 17000, "python\0serve.py")  # has no torch
    named = r"2 trainings: 17191 \(train.py\), 17200 \(evaluate.py\)"
    with pytest.raises(UsageError, match=named) as raised:
        training_of(17000, root)
    assert "dlprof attach 17191" in raised.value.hint
    (root / f"proc/{MAIN}/maps").write_bytes(b"")
    assert training_of(17000, root).pid == 17200
    (root / "proc/17200/maps").write_bytes(b"")
    with pytest.raises(UsageError, match="3 Python programs: 17191 "):
        training_of(17000, root)


def test_what_launches_ranks_has_torch_and_is_no_training(root: Path) -> None:
    _without_workers(root)
    _process(root, 17000, 1, "timeout\x00100\0torchrun\0train.py")
    _process(root, 17001, 17000, "python\0torchrun\0train.py", torch=True)
    _reparent(root, MAIN, 17001)
    (root / f"proc/{MAIN}/environ").write_bytes(b"RANK=0\0TORCHELASTIC_RUN_ID=x\0")
    assert [each.pid for each in find_trainings(root)] == [MAIN]
    assert [training_of(each, root).pid for each in (17000, 17001, MAIN)] == 3 * [MAIN]
    # What a rank starts is no rank.
    _process(root, 17200, MAIN, "python\0-m\0compile_worker", torch=True)
    shutil.copy(root / f"proc/{MAIN}/environ", root / "proc/17200/environ")
    assert training_of(17000, root).pid == MAIN


def _cores(root: Path) -> float:
    watcher = _watched(root)
    try:
        return watcher.machine.usable_cores
    finally:
        watcher.close()


def test_of_several_ranks_each_counts_on_its_share_of_the_cores(root: Path) -> None:
    assert _cores(root) == 2.0
    (root / f"proc/{MAIN}/environ").write_bytes(b"RANK=5\0LOCAL_WORLD_SIZE=4\0HOME=/root\0")
    assert training_of(MAIN, root).ranks == 4
    assert _cores(root) == 0.5


def test_ranks_that_no_launcher_started_are_counted_beside_each_other(root: Path) -> None:
    spawned = "python\0-c\0import spawn_main; spawn_main(tracker_fd=5, pipe_handle={})\0--fork\0"
    for pid, name in ((17000, "python"), (17100, "python"), (17101, "pt_data_worker")):
        shutil.copytree(root / f"proc/{MAIN}", root / f"proc/{pid}")
        _rename(root, pid, name)
    (root / "proc/17000/maps").write_bytes(b"")
    for pid, parent in ((MAIN, 17000), (17100, 17000), (17101, 17100)):
        _reparent(root, pid, parent)
    for pid in (MAIN, 17100):
        (root / f"proc/{pid}/cmdline").write_bytes(spawned.format(pid).encode())
    assert [each.ranks for each in find_trainings(root)] == [2, 2]
    (root / "proc/17100/cmdline").write_bytes(b"python\0evaluate.py\0")  # is no rank
    assert training_of(MAIN, root).ranks == 1
    (root / "proc/17100/cmdline").write_bytes(spawned.format(9).encode())
    # One task of srun's, which has started several.
    (root / f"proc/{MAIN}/environ").write_bytes(b"SLURM_STEP_TASKS_PER_NODE=1\0")
    assert training_of(MAIN, root).ranks == 2
    _rename(root, 17000, "bash")  # a shell starts what it is asked to
    assert training_of(MAIN, root).ranks == 1


def test_the_rank_that_started_the_others_is_one_of_them(root: Path) -> None:
    """As Lightning does by default."""
    for main, worker in ((17100, 17101), (17200, 17201)):
        for pid, name, parent in ((main, "python", MAIN), (worker, "pt_data_worker", main)):
            shutil.copytree(root / f"proc/{MAIN}", root / f"proc/{pid}")
            _rename(root, pid, name)
            _reparent(root, pid, parent)
    shell = root / "proc/17000"
    shutil.copytree(root / f"proc/{MAIN}", shell)
    _rename(root, 17000, "bash")
    _reparent(root, MAIN, 17000)
    (shell / "cmdline").write_bytes(b"bash\0")
    assert [each.ranks for each in find_trainings(root)] == [3, 3, 3]
    (root / "proc/17200/cmdline").write_bytes(b"python\0evaluate.py\0")  # is no rank
    assert [each.ranks for each in find_trainings(root)] == [2, 2, 1]


@pytest.mark.parametrize(("left", "unseen"), [("all", 0), ("no figures", 1), ("nothing", 0)])
def test_an_own_training_that_is_protected_counts_as_unseen(
    root: Path, monkeypatch: pytest.MonkeyPatch, left: str, unseen: int
) -> None:
    """One that has just ended doesn't."""
    found = find_trainings(root)
    if left != "all":
        (root / f"proc/{MAIN}/io").unlink()
    if left == "nothing":
        shutil.rmtree(root / f"proc/{MAIN}")
    monkeypatch.setattr(session, "_check_system", lambda _: None)
    monkeypatch.setattr(session, "find_trainings", lambda *_: found)
    board = session.Board(root=root, clock=lambda: 0)
    board.watch(0.0)
    board.close()
    assert board.unseen == unseen


def test_the_driver_of_gpus_is_opened_once_for_all_trainings(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root / f"proc/{MAIN}", root / "proc/17200")
    _rename(root, 17200, "python")
    opened = list[Gpus]()

    def open_driver() -> Gpus:
        opened.append(Gpus({"gpus": "none here"}))
        return opened[-1]

    monkeypatch.setattr(session, "_check_system", lambda _: None)
    for place in (session, gpus):
        monkeypatch.setattr(place, "PatientGpus", open_driver)
    board = session.Board(root=root, clock=lambda: 0)
    assert not opened
    assert [each.seen.training.pid for each in board.watch(0.0)] == [MAIN, 17200]
    board.close()
    assert len(opened) == 1


def test_what_it_costs_to_begin_with_a_training_puts_no_screen_off(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_check_system", lambda _: None)
    monkeypatch.setattr("time.process_time_ns", itertools.count(0, 10**7).__next__)
    board = session.Board(root=root, clock=itertools.count(0, 10**12).__next__)
    board.watch(0.0)
    judging_ns = board._pause_ns
    board.watch(0.0)
    board.close()
    assert 0 < judging_ns < board._pause_ns == pytest.approx(2 * judging_ns)


def test_a_training_has_an_owner_whoever_has_its_folder(root: Path) -> None:
    status = root / f"proc/{MAIN}/status"
    text = status.read_text(encoding="ascii")
    for uid, is_own in ((os.geteuid(), True), (65_533, False)):
        status.write_text(f"{text}Uid:\t0\t{uid}\t0\t0\n", encoding="ascii")
        assert training_of(MAIN, root).is_own is is_own
    assert training_of(MAIN, root).user == name_of_user(65_533)


def test_a_process_that_is_none_or_another_is_refused_in_one_sentence(root: Path) -> None:
    with pytest.raises(UsageError, match="There is no process 4"):
        training_of(4, root)
    with pytest.raises(UsageError, match="has ended, and its parent"):
        training_of(17672, root)
    _rename(root, MAIN, "bash")
    for pid in (*WORKERS, 17672, 17680, 17695, 17700):
        shutil.rmtree(root / f"proc/{pid}")
    (root / f"proc/{MAIN}/cmdline").write_bytes(b"/bin/bash\0")
    (root / f"proc/{MAIN}/maps").write_bytes(b"")
    with pytest.raises(UsageError, match=r"\(bash\) runs no Python"):
        training_of(MAIN, root)


def test_a_training_that_has_ended_is_not_mistaken_for_another(root: Path) -> None:
    found = training_of(MAIN, root)
    other = Training(pid=MAIN, start_ticks=found.start_ticks + 1, parent=MAIN)
    assert read_training(found, root).workers == WORKERS
    with pytest.raises(NothingMeasuredError, match="has ended"):
        read_training(other, root)


def test_looks_at_recorded_threads_find_what_they_did(root: Path) -> None:
    watcher = Watcher(training_of(MAIN, root), root=root)
    try:
        assert all(watcher.look() for _ in range(3))
        seen = watcher.seen()
    finally:
        watcher.close()
    assert {look.main for look in seen.looks} == {"queue"}
    assert {(look.idle, look.alive) for look in seen.looks} == {(0, 2)}
    assert [dict(each.waits) for each in seen.workers] == [{"running": 3}, {"running": 3}]
    assert seen.training.ended_workers == len(seen.ended_before) == 4
    assert not seen.ended


def test_without_workers_no_look_says_how_long_another_would_take(root: Path) -> None:
    for worker in WORKERS:
        shutil.rmtree(root / f"proc/{worker}")
    watcher = Watcher(training_of(MAIN, root), root=root)
    try:
        assert watcher.look()
        watcher.rest(lambda _: None)
        assert watcher.seen().cold_factor == 1.0
    finally:
        watcher.close()


def test_main_is_looked_at_between_two_looks_at_all(root: Path) -> None:
    watcher, slept = Watcher(training_of(MAIN, root), root=root), list[float]()
    try:
        assert watcher.look()
        watcher.rest(slept.append)
        seen = watcher.seen()
    finally:
        watcher.close()
    assert len(seen.looks) == 1
    assert dict(seen.main.waits) == {"queue": len(slept)}
    assert [sum(each.waits.values()) for each in seen.workers] == [1, 1]
    assert 1.0 <= seen.cold_factor <= 10.0
    # Together as long as one that is looked at by itself no more seldom.
    assert sum(slept) >= 0.5 * 0.025


def test_looks_leave_a_part_of_half_a_percent_to_what_both_ends_take(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    ticks = itertools.count(0, 50_000)
    watcher = Watcher(training_of(MAIN, root), root=root, cpu_clock=lambda: next(ticks))
    try:
        for _ in range(50):
            began_ns = next(ticks)
            assert watcher.look()
            cost_s = (next(ticks) - began_ns) / 1e9
        assert cost_s / watcher.pause_s() <= 0.0036
    finally:
        watcher.close()


@pytest.mark.parametrize(
    ("words", "script", "rerun"),
    [
        (
            ("python", "-u", "-X", "dev", "train.py", "--lr", "1"),
            "train.py",
            "dlprof run train.py --lr 1",
        ),
        (("python", "-m", "pkg.train", "x"), "-m pkg.train", "dlprof run -m pkg.train x"),
        (("python", "-c", "import x\nx.train()"), "-c import x", ""),
        (("python", "a b.py"), "a b.py", "dlprof run 'a b.py'"),
        (
            ("python", "-m", "dlprof", "run", "-o", "rl.jsonl", "--force", "train.py", "-o", "x"),
            "train.py",
            "dlprof run train.py -o x",
        ),
        (
            ("python", "/venv/bin/dlprof", "run", "--json=a.json", "--tune", "-mpkg.train", "x"),
            "-m pkg.train",
            "dlprof run -m pkg.train x",
        ),
        (
            ("python", "-u", "-m", "dlprof", "run", "--module", "train", "--lr=1"),
            "-m train",
            "dlprof run -m train --lr=1",
        ),
        (("python", "-m", "dlprof", "run", "--", "train.py"), "train.py", "dlprof run train.py"),
        (("python", "dlprof", "sweep"), "dlprof", "dlprof run dlprof sweep"),
        (("python",), "python", ""),
        ((), "process 7", ""),
    ],
)
def test_a_script_is_what_stands_behind_the_interpreters_options(
    words: tuple[str, ...], script: str, rerun: str
) -> None:
    found = Training(pid=7, start_ticks=1, parent=7, command=words)
    assert found.script == script
    assert found.rerun == rerun


def test_the_values_of_all_options_of_dlprof_run_are_told_from_a_script() -> None:
    taken = {*taking_values(run.params)} - {"-m", "--module"}
    for option in taken:
        command = ("python", "-m", "dlprof", "run", option, "value", "train.py")
        found = Training(pid=7, start_ticks=1, parent=7, command=command)
        assert found.script == "train.py", option


def _watched(root: Path) -> Watcher:
    watcher = Watcher(training_of(MAIN, root), root=root)
    assert watcher.look()
    return watcher


@pytest.mark.parametrize(("spawned", "method"), [(False, "fork"), (True, "spawn")])
def test_workers_of_a_rank_that_was_spawned_may_be_forked(
    root: Path, *, spawned: bool, method: str
) -> None:
    words = "python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main({})\0"
    for pid in (MAIN, *WORKERS):
        own = words.format(pid if spawned else MAIN)
        (root / f"proc/{pid}/cmdline").write_text(own)
    watcher = _watched(root)
    try:
        assert watcher.seen().start_method == method
    finally:
        watcher.close()


def test_workers_that_a_thread_has_started_are_found(root: Path) -> None:
    task = root / f"proc/{MAIN}/task"
    shutil.copytree(task / str(MAIN), task / "17300")
    (task / f"{MAIN}/children").write_text("")
    watcher = _watched(root)
    try:
        assert [each.pid for each in watcher.seen().workers] == [*WORKERS]
    finally:
        watcher.close()


def test_workers_of_a_fork_server_that_starts_later_are_found(root: Path) -> None:
    """As from Python 3.14 on, of a training that is watched from before its first epoch."""
    for pid in (17672, 17680, 17695, 17700):
        shutil.rmtree(root / f"proc/{pid}")
    server = root / "proc/18000"
    shutil.copytree(root / f"proc/{MAIN}", server)
    (server / f"task/{MAIN}").rename(server / "task/18000")
    (server / "cmdline").write_text("python\0-c\0from multiprocessing.forkserver import main\0")
    _rename(root, 18000, "python")
    _reparent(root, 18000, MAIN)
    (root / f"proc/{MAIN}/task/{MAIN}/children").write_text("18000 ")
    (server / "task/18000/children").write_text("")
    for pid in WORKERS:
        _rename(root, pid, "python")
        _reparent(root, pid, 18000)
    now = [0]
    watcher = Watcher(training_of(MAIN, root), root=root, clock=lambda: now[0])
    try:
        assert watcher.look()
        assert not watcher.has_workers
        for pid in WORKERS:
            _rename(root, pid, "pt_data_worker")
        (server / "task/18000/children").write_text("17661 17666 ")
        now[0] += 2_000_000_000
        assert watcher.look()
        seen = watcher.seen()
    finally:
        watcher.close()
    assert [each.pid for each in seen.workers] == [*WORKERS]
    assert seen.start_method == "forkserver"


def test_a_pin_thread_that_has_ended_waits_for_nothing(root: Path) -> None:
    pin = root / f"proc/{MAIN}/task/17400"
    shutil.copytree(root / f"proc/{MAIN}/task/{MAIN}", pin)
    (pin / "comm").write_text("pt_data_pin\n")
    (pin / "children").write_text("")
    watcher = _watched(root)
    try:
        assert watcher.seen().looks[-1].pin == "queue"
        (pin / "syscall").write_text("-1 0x0 0x0\n")
        (pin / "stat").write_text("")
        assert watcher.look()
        assert watcher.seen().looks[-1].pin is None
    finally:
        watcher.close()


def _end(root: Path, pid: int) -> None:
    for name in (f"task/{pid}/syscall", f"task/{pid}/stat", "stat"):
        path = root / f"proc/{pid}/{name}"
        path.write_text(path.read_text().replace(") S ", ") Z ").replace(") R ", ") Z "))
    (root / f"proc/{pid}/task/{pid}/syscall").write_text("-1 0x0 0x0\n")


def test_workers_that_have_ended_are_let_go(root: Path) -> None:
    watcher = _watched(root)
    try:
        for pid in WORKERS:
            _end(root, pid)
        assert watcher.look()
        assert watcher.seen().workers == ()
        assert not watcher._workers
        assert watcher.look()
    finally:
        watcher.close()


def test_what_a_feeder_sent_until_it_ended_counts(root: Path) -> None:
    feeder = root / f"proc/{MAIN}/task/17400"
    shutil.copytree(root / f"proc/{MAIN}/task/{MAIN}", feeder)
    (feeder / "children").write_text("")
    sent = "rchar: 0\nwchar: {0}\nsyscr: 0\nsyscw: {1}\nread_bytes: 0\nwrite_bytes: 0\n"
    (feeder / "io").write_text(sent.format(500, 5))
    now = [0]
    watcher = Watcher(training_of(MAIN, root), root=root, clock=lambda: now[0])
    try:
        assert watcher.look()
        before = watcher.seen().main.messages
        (feeder / "io").write_text(sent.format(4500, 45))
        now[0] += 300_000_000
        assert watcher.look()
        shutil.rmtree(feeder)  # as at an epoch's end, with its worker
        now[0] += 2_000_000_000
        assert watcher.look()
        assert watcher.seen().main.messages == before + 40
        assert watcher.seen().main.feeding_cpu_s == 0
    finally:
        watcher.close()


def test_a_thread_that_logs_to_a_file_sends_no_indices(root: Path) -> None:
    """As TensorBoard's, with a call for each figure: such trainings had several times the rate."""
    logs = root / f"proc/{MAIN}/task/17400"
    shutil.copytree(root / f"proc/{MAIN}/task/{MAIN}", logs)
    (logs / "children").write_text("")
    sent = "rchar: 0\nwchar: {0}\nsyscr: 0\nsyscw: {1}\nread_bytes: 0\nwrite_bytes: {2}\n"
    (logs / "io").write_text(sent.format(500, 5, 4096))
    watcher = _watched(root)
    try:
        before = watcher.seen().main
        (logs / "io").write_text(sent.format(4500, 45, 8192))
        after = watcher.seen().main
        assert (after.messages, after.message_bytes) == (before.messages, before.message_bytes)
    finally:
        watcher.close()


def _give_each_worker_a_loader(root: Path) -> None:
    first = {7: "pipe:[3]", 8: "pipe:[3]", 9: "pipe:[4]", 10: "pipe:[4]"}
    both = first | {11: "pipe:[5]", 12: "pipe:[5]", 13: "pipe:[6]", 14: "pipe:[6]"}
    for pid, files in ((MAIN, both), (WORKERS[0], first), (WORKERS[1], both)):
        (root / f"proc/{pid}/fd").mkdir()
        for number, leads in files.items():
            (root / f"proc/{pid}/fd/{number}").symlink_to(leads)


def test_workers_of_a_loader_that_rests_are_not_idle_in_another(root: Path) -> None:
    """As a validation's that persist: a third of all workers seemed to have nothing to do."""
    _give_each_worker_a_loader(root)
    waits = (root / f"proc/{MAIN}/task/{MAIN}/syscall").read_text()
    (root / f"proc/{WORKERS[1]}/task/{WORKERS[1]}/syscall").write_text(waits)
    watcher = _watched(root)
    try:
        sent = root / f"proc/{WORKERS[0]}/task/17757/io"
        sent.write_text(sent.read_text().replace("syscw: 16", "syscw: 26"))
        seen = watcher.seen()
    finally:
        watcher.close()
    assert ([each.pid for each in seen.workers], seen.other_workers) == ([WORKERS[0]], 1)
    assert {(look.idle, look.alive) for look in seen.looks} == {(0, 1)}


@pytest.mark.parametrize(("ended", "others"), [(WORKERS[1], 40), (None, 0)])
def test_what_workers_gave_that_have_ended_counts_for_their_own_loader(
    root: Path, ended: int | None, others: int
) -> None:
    """As a validation's that was under way: its batches were counted for the training's loader.

    Where no worker of another loader has ended, it was an own one's feeder.
    """
    _give_each_worker_a_loader(root)
    feeder = root / f"proc/{MAIN}/task/17400"
    shutil.copytree(root / f"proc/{MAIN}/task/{MAIN}", feeder)
    (feeder / "children").write_text("")
    sent = "rchar: 0\nwchar: {0}\nsyscr: 0\nsyscw: {1}\nread_bytes: 0\nwrite_bytes: 0\n"
    (feeder / "io").write_text(sent.format(500, 5))
    now = [0]
    watcher = Watcher(training_of(MAIN, root), root=root, clock=lambda: now[0])
    try:
        assert watcher.look()
        before = watcher.seen().batches
        (feeder / "io").write_text(sent.format(4500, 45))
        now[0] += 300_000_000
        assert watcher.look()
        shutil.rmtree(feeder)
        if ended is not None:
            _end(root, ended)
        now[0] += 2_000_000_000
        assert watcher.look()
        seen = watcher.seen()
    finally:
        watcher.close()
    assert (seen.other_batches, seen.batches) == (others, before + 40 - others)


def test_of_two_loaders_the_one_that_is_waited_for_is_diagnosed(root: Path) -> None:
    """Where a step takes a batch of each, both give as many."""
    _give_each_worker_a_loader(root)
    for number in (3, 5):
        os.mkfifo(root / f"proc/{MAIN}/fd/pipe:[{number}]")
    watcher = Watcher(training_of(MAIN, root), root=root)
    finished = os.open(root / f"proc/{MAIN}/fd/pipe:[3]", os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(finished, bytes(300))
        assert watcher.look()
        seen = watcher.seen()
    finally:
        os.close(finished)
        watcher.close()
    assert ([each.pid for each in seen.workers], seen.other_workers) == ([WORKERS[1]], 1)
    assert seen.looks[0].finished_bytes == 300


@pytest.mark.parametrize(("waits", "shown"), [(1, WORKERS[0]), (10, WORKERS[1])])
def test_a_loader_that_is_seldom_waited_for_is_not_chosen_for_that(
    root: Path, monkeypatch: pytest.MonkeyPatch, waits: int, shown: int
) -> None:
    """As for a validation's first batch, in a training that keeps its device busy."""
    watcher = Watcher(training_of(MAIN, root), root=root)
    try:
        assert watcher.look()
        look, idle, alive, _ = watcher._looks.pop()
        watcher._looks += [(look, idle, alive, ("slow",) * (n < waits)) for n in range(20)]
        members = [each.seen() for each in watcher._workers.values()]
    finally:
        watcher.close()
    loaders = dict(zip(WORKERS, ("fast", "slow"), strict=True))
    monkeypatch.setattr(watcher._pipes, "loader_of", loaders.__getitem__)
    given = {WORKERS[0]: 900, WORKERS[1]: 30}
    members = [dataclasses.replace(each, messages=given[each.pid]) for each in members]
    assert [each.pid for each in watcher._by_loader(members)] == [shown]


def _run(root: Path, pid: int, *, place: int, ticks: int) -> None:
    stat = root / f"proc/{pid}/stat"
    head, _, rest = stat.read_text(encoding="ascii").rpartition(")")
    columns = rest.split()
    columns[place] = str(int(columns[place]) + ticks)
    stat.write_text(f"{head}) {' '.join(columns)}\n", encoding="ascii")


def test_what_a_worker_computes_while_it_is_read_is_no_childs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own and whole were read one after the other."""
    now, read = [0], ProcessTree.read

    def later(tree: ProcessTree) -> TreeUsage:
        for pid in WORKERS:
            _run(root, pid, place=11, ticks=1000)
        return read(tree)

    watcher = Watcher(training_of(MAIN, root), root=root, clock=lambda: now[0])
    try:
        assert watcher.look()
        monkeypatch.setattr(ProcessTree, "read", later)
        now[0] += 1_000_000_000
        assert {each.children_cpu_s for each in watcher.seen().workers} == {0.0}
    finally:
        watcher.close()


def test_what_the_children_of_a_worker_compute_is_counted(root: Path) -> None:
    """Of one that ended, and of one that lives."""
    now, (first, *_), child = [0], WORKERS, 29999
    ran = functools.partial(_run, root)

    watcher = Watcher(training_of(MAIN, root), root=root, clock=lambda: now[0])
    try:
        assert watcher.look()
        shutil.copytree(root / f"proc/{first}", root / f"proc/{child}")
        _rename(root, child, "ffmpeg")
        _reparent(root, child, first)
        for task in (root / f"proc/{child}/task").iterdir():
            shutil.rmtree(task)
        ran(child, place=11, ticks=100 - _ticks(root, child, 11))
        ran(child, place=12, ticks=-_ticks(root, child, 12))
        ran(child, place=13, ticks=-_ticks(root, child, 13))
        (root / f"proc/{first}/task/{first}/children").write_text(f"{child} ")
        ran(first, place=13, ticks=50)
        now[0] += 1_000_000_000
        seen = {each.pid: each for each in watcher.seen().workers}
    finally:
        watcher.close()
    assert seen.pop(first).children_cpu_s == pytest.approx(1.5)
    assert {each.children_cpu_s for each in seen.values()} <= {0.0}


def _ticks(root: Path, pid: int, place: int) -> int:
    text = (root / f"proc/{pid}/stat").read_text(encoding="ascii")
    return int(text.rpartition(")")[2].split()[place])


PYTHON = "10-20 rw-p 00000000 00:19 11                     /usr/bin/python3.11\n"


def test_glances_count_what_first_threads_do(root: Path) -> None:
    for pid in (MAIN, *WORKERS):
        (root / f"proc/{pid}/maps").write_text(PYTHON)
    glances = Glances(f"{root}/proc")
    glances.add(MAIN, 4)  # of which there is none
    for _ in range(4):
        glances.look()
    glances.add(MAIN, WORKERS[0])
    for _ in range(4):
        glances.look()
    assert glances.shares() == {"queue": 2 / 3, "running": 1 / 3}
    glances.close()
    assert glances.shares() == {"queue": 2 / 3, "running": 1 / 3}


@pytest.mark.parametrize("missing", ["maps", "syscall"])
def test_where_a_wait_for_the_gil_would_look_like_another_nothing_counts(
    missing: str, root: Path
) -> None:
    """As where Yama shows system calls to ancestors alone."""
    (root / f"proc/{MAIN}/maps").write_text(PYTHON)
    path = f"proc/{MAIN}/maps" if missing == "maps" else f"proc/{MAIN}/task/{MAIN}/syscall"
    (root / path).unlink()
    glances = Glances(f"{root}/proc")
    glances.add(MAIN, leave_out="pt_data_worker")
    glances.look()
    assert glances.shares() == {}


def test_workers_of_two_loaders_are_kept_apart_where_descriptors_were_given_out_again(
    tmp_path: Path,
) -> None:
    # Of the first loader's first epoch 5 and 6 are free again, and 3 and 4 something else's.
    first = {5: "pipe:[5]", 6: "pipe:[5]", 11: "pipe:[6]", 12: "pipe:[6]"}
    second = {7: "pipe:[3]", 8: "pipe:[3]", 9: "pipe:[4]", 10: "pipe:[4]"}
    held = {1: {**first, **second}, 20: second, 30: {**first, **second}}
    for pid, files in held.items():
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        for number, leads in files.items():
            (tmp_path / f"{pid}/fd/{number}").symlink_to(leads)
    pipes = _Pipes(str(tmp_path), 1)
    pipes.open([30, 20])
    assert pipes.loader_of(20) == "pipe:[3]"
    assert pipes.loader_of(30) == "pipe:[5]"
