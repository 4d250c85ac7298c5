"""What a loader may take, and whose turn it is among ranks."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from dlprof.files import lock
from dlprof.tuning import budget
from dlprof.tuning.budget import Budget, Node
from dlprof.tuning.control import Setting

MEBI = 1 << 20


class Ranks:
    """Two ranks on one machine, in this process; both are alive."""

    def __init__(self, path: Path, patched: pytest.MonkeyPatch) -> None:
        self._patched, self.now_s = patched, 1000.0
        self._pids = (os.getpid(), os.getppid())
        self._nodes = [Node(path, lambda: self.now_s) for _ in self._pids]

    def __call__(self, rank: int) -> Node:
        self._patched.setattr(os, "getpid", lambda: self._pids[rank])
        return self._nodes[rank]


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path / "node.json", monkeypatch)


def test_one_rank_tries_at_a_time_and_the_slowest_first(ranks: Ranks) -> None:
    assert ranks(0).take_turn(2, 0.2)
    assert ranks(0).take_turn(2, 0.2)
    assert not ranks(1).take_turn(2, 0.5)
    ranks(0).end_turn(4, 0.1)
    assert not ranks(0).take_turn(4, 0.1)
    assert ranks(1).take_turn(2, 0.5)
    assert ranks(1).others() == 4
    ranks(1).end_turn(6, 0.0)
    assert ranks(0).others() == 6
    assert ranks(0).take_turn(4, 0.1)


def test_ranks_know_of_each_other_on_windows_too(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("pread", "pwrite"):
        monkeypatch.delattr(os, missing)
    for workers in (100, 4):  # the second says less than the first
        ranks(0).end_turn(workers, 0.0)
        assert ranks(1).others() == workers


def test_a_rank_that_says_nothing_any_more_keeps_none_waiting(ranks: Ranks) -> None:
    assert ranks(1).take_turn(2, 0.9)
    assert not ranks(0).take_turn(2, 0.2)
    ranks(1).end_turn(2, 0.9)
    assert not ranks(1).take_turn(2, 0.1)
    ranks.now_s += 120
    assert ranks(1).take_turn(2, 0.1)


def test_what_a_rank_that_is_gone_has_said_is_forgotten(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(1).end_turn(9, 0.0)
    assert ranks(0).others() == 9
    monkeypatch.setattr(budget, "_lives", lambda _: False)
    assert ranks(0).others() == 0


def test_loaders_of_one_rank_count_each_until_they_are_gone(tmp_path: Path) -> None:
    training, validation = (Node(tmp_path / "node.json") for _ in range(2))
    training.end_turn(5, 0.0)
    validation.end_turn(3, 0.0)
    assert training.others() == 3
    assert validation.others() == 5
    del training
    gc.collect()
    assert validation.others() == 0


def test_a_turn_that_is_dropped_is_anothers(ranks: Ranks) -> None:
    assert ranks(0).take_turn(2, 0.6)
    assert not ranks(1).take_turn(2, 0.7)
    ranks(0).drop_turn()
    assert ranks(1).take_turn(2, 0.7)


def is_free(path: Path) -> bool:
    with path.open("w") as file:
        return lock(file.fileno(), wait=False)


def test_ctrl_c_as_a_turn_is_taken_keeps_nobody_from_it(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int, *, wait: bool) -> bool:
        assert lock(descriptor, wait=wait)
        if os.fstat(descriptor).st_ino == turn.stat().st_ino:
            raise KeyboardInterrupt
        return True

    turn = tmp_path / "node.turn"
    turn.touch()
    with monkeypatch.context() as patched:
        patched.setattr(budget, "lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ranks(0).take_turn(2, 0.6)
    assert is_free(turn)
    assert ranks(0).take_turn(2, 0.6)
    assert not is_free(turn)


def test_a_turn_ends_though_the_ranks_file_can_not_be_used(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(0).take_turn(2, 0.6)
    (tmp_path / "node.json").unlink()
    (tmp_path / "node.json").mkdir()
    with pytest.raises(OSError, match=r"node\.json"):
        ranks(0).end_turn(2, 0.6)
    assert is_free(tmp_path / "node.turn")


def test_a_worker_that_is_forked_as_the_file_is_locked_keeps_nobody_from_it(
    ranks: Ranks, tmp_path: Path
) -> None:
    """By another thread, which starts the workers of another loader: it has a copy of the file."""
    path, copies = tmp_path / "node.json", []
    with ranks(0)._entries():
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # such as of the folder itself
                if each.samefile(path):
                    copies.append(os.dup(int(each.name)))
    assert copies
    assert is_free(path)
    for copy in copies:
        os.close(copy)


@pytest.mark.parametrize(
    ("environ", "world", "there"),
    [
        ({}, 1, False),
        ({"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}, 1, False),
        ({"LOCAL_WORLD_SIZE": "8", "MASTER_PORT": "29500"}, 1, True),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "7"}, 1, True),  # srun
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, True),  # mpirun
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 1, True),  # Lightning's own
        ({}, 2, True),  # a process that only torch.distributed knows of
    ],
)
def test_only_a_process_of_its_own_has_no_node(
    environ: dict[str, str],
    world: int,
    there: bool,
) -> None:
    assert (Node.of(environ, world) is not None) is there


def test_a_file_that_others_put_in_its_place_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "node.json"
    victim.write_text("{}      ")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="node"):
        Node(link).end_turn(2, 0.0)
    assert victim.read_text() == "{}      "
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="somebody else's"):
        Node(victim).end_turn(2, 0.0)
    assert victim.read_text() == "{}      "


@pytest.mark.parametrize(
    "content", ["[1]", '{"PID.0": 3}', '{"PID.0": {"workers": 2}}', '{"one": {}}']
)
def test_a_file_that_is_damaged_is_one_that_can_not_be_used(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ranks.json"
    path.write_text(content.replace("PID", str(os.getppid())))
    with pytest.raises(OSError, match="it is damaged"):
        Node(path).others()


def test_a_file_that_stays_locked_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    with path.open("w") as held:
        assert lock(held.fileno(), wait=False)
        with pytest.raises(TimeoutError, match=r"keeps .* locked"):
            Node(path).take_turn(2, 0.1)


def test_a_file_system_that_counts_no_links_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some of those in user space do: each file seems to have been taken away."""
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result([0] * 10))
    with pytest.raises(TimeoutError, match="whenever it is made"):
        Node(tmp_path / "node.json").take_turn(2, 0.1)


def test_the_last_rank_takes_the_files_away(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.json"
    assert ranks(0).take_turn(2, 0.1)
    ranks(0).drop_turn()
    ranks(1).end_turn(2, 0.0)
    for rank in range(2):
        assert {each.name for each in tmp_path.iterdir()} == {"node.json", "node.turn"}
        monkeypatch.setattr(budget, "_FILES", {path})
        ranks(rank)
        budget.remove_files()
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_taken_away_as_one_waits_for_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.json"
    taken: list[Path] = []

    def lock_and_take(descriptor: int, *, wait: bool) -> bool:
        assert lock(descriptor, wait=wait)
        if not taken:
            path.unlink()
            taken.append(path)
        return True

    monkeypatch.setattr(budget, "lock", lock_and_take)
    first = Node(path)
    first.end_turn(3, 0.0)
    assert taken
    assert Node(path).others() == 3


def test_ranks_of_srun_and_mpirun_share_their_machine_too() -> None:
    srun = {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    mpirun = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a"}
    nodes = [Node.of(each) for each in (srun, mpirun, {**srun, "SLURM_STEP_ID": "1"})]
    assert len({str(node._path) for node in nodes if node is not None}) == 3


def test_jobs_that_no_launcher_started_have_files_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of ``mp.spawn``: the process that started its ranks keeps one apart from another."""
    paths = set()
    for parent in (4711, 4712):
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        nodes = [Node.of({}, world=2), Node.of({}, world=2)]
        paths |= {str(node._path) for node in nodes if node is not None}
    assert len(paths) == 2


def refusal(limits: Budget, after: Setting, batch_bytes: int = MEBI) -> str:
    return limits.refusal(Setting(2, 2), after, pids=(), batch_bytes=batch_bytes)


def test_memory_is_checked_before_a_change(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    info = "MemTotal: 1000000 kB\nMemAvailable: 300000 kB\n"
    (tmp_path / "proc" / "meminfo").write_text(info)
    few, many = Setting(3, 2), Setting(12, 2)
    assert refusal(Budget(None, 1000 * MEBI, root=tmp_path), few) == ""
    assert "above max_ram" in refusal(Budget(None, 100 * MEBI, root=tmp_path), few)
    assert "free" in refusal(Budget(None, None, root=tmp_path), many)
    assert "free" in refusal(Budget(None, None, root=tmp_path), few, 200 * MEBI)


def test_workers_of_the_next_epoch_are_taken_to_be_as_large(tmp_path: Path) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "smaps_rollup").write_text("Pss:              200000 kB\n")
    limits = Budget(None, 1000 * MEBI, root=tmp_path)
    assert refusal(limits, Setting(12, 2)) == ""
    limits.weigh([7])
    assert "above max_ram" in refusal(limits, Setting(12, 2))
    limits.weigh([8])  # it is gone
    assert "above max_ram" in refusal(limits, Setting(12, 2))


def test_shared_memory_is_checked_before_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        free_bytes = 64 * MEBI

    monkeypatch.setattr(budget, "read_shared_memory", lambda _: Small)
    assert refusal(Budget(None, None), Setting(3, 2)) == ""
    assert "shared memory" in refusal(Budget(None, None), Setting(2, 16), 4 * MEBI)


def test_batches_that_a_forked_worker_keeps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        free_bytes = 64 * MEBI

    monkeypatch.setattr(budget, "read_shared_memory", lambda _: Small)
    one_more = Setting(2, 4), Setting(3, 4)
    given: dict[str, Any] = {"batch_bytes": 5 * MEBI}
    pids = (os.getpid(), os.getpid())
    assert Budget(None, None).refusal(Setting(2, 4), Setting(2, 8), pids=pids, **given) == ""
    assert "shared memory" in Budget(None, None).refusal(*one_more, pids=pids, **given)


def test_an_epoch_begins_with_empty_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last one had in flight is free by then, and taken again: files, too."""

    class Small:
        free_bytes = 64 * MEBI

    monkeypatch.setattr(budget, "read_shared_memory", lambda _: Small)
    monkeypatch.setattr(budget, "open_files_limit", lambda: 512)
    deeper: Any = Setting(2, 4), Setting(2, 8)
    pids = (os.getpid(), os.getpid())
    large: dict[str, Any] = {"batch_bytes": 5 * MEBI}
    many: dict[str, Any] = {"batch_bytes": 0, "batch_tensors": 30}
    for given, said in ((large, "shared memory"), (many, "more files")):
        assert not Budget(None, None).refusal(*deeper, pids=pids, **given)
        assert said in Budget(None, None).refusal(*deeper, pids=(), **given)


def test_the_ranks_of_a_machine_share_its_workers(ranks: Ranks) -> None:
    ranks(1).end_turn(1_000_000, 0.0)
    limits = Budget(None, None)
    limits.node = ranks(0)
    said = refusal(limits, Setting(3, 2))
    assert said.startswith("the ranks of this machine would have more than")
    assert refusal(limits, Setting(2, 8)) == ""  # a deeper queue has no more of them


def test_ranks_on_cores_of_their_own_share_those_of_all(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Srun and mpirun pin them, and then no rank's own cores are the machine's."""
    monkeypatch.setattr(budget, "cpu_quota", lambda _: None)
    monkeypatch.setattr(budget, "allowed_cpus", lambda: frozenset({8, 9}))
    limits = Budget(None, None)
    limits.node = ranks(0)
    assert limits.node.take_turn(2, 0.1)
    assert "more than 16 workers" in refusal(limits, Setting(17, 2))
    monkeypatch.setattr(budget, "allowed_cpus", lambda: frozenset(range(8)))
    ranks(1).end_turn(3, 0.0)
    limits.node = ranks(0)
    assert not refusal(limits, Setting(17, 2))
    assert "more than 20 workers" in refusal(limits, Setting(18, 2))


def test_more_files_than_may_be_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "open_files_limit", lambda: 512)
    more, fewer = Setting(8, 16), Setting(2, 2)
    given: dict[str, Any] = {"pids": (), "batch_bytes": 0}
    assert "more files" in Budget(None, None).refusal(fewer, more, batch_tensors=20, **given)
    assert not Budget(None, None).refusal(fewer, more, batch_tensors=1, **given)
