"""Which rank a process is, and where several are launched."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext

import pytest

from dlprof.engine import ranks
from dlprof.engine.ranks import LaunchedRank, gather_ranks, launched, with_ranks
from dlprof.errors import UsageError
from dlprof.settings import SweepSettings
from dlprof.trial.nodes import Ranks

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are launched on Linux only")


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"RANK": "3"}])
def test_a_process_by_itself_is_no_rank(environ: dict[str, str]) -> None:
    assert LaunchedRank.of(environ) is None
    with gather_ranks(environ, [], SweepSettings()) as ranks:
        assert ranks is not None
        assert ranks == Ranks(nodes=ranks.nodes)
        assert not ranks.nodes.links


@linux
@pytest.mark.parametrize(
    "environ",
    [
        TORCHRUN,
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
        | {"SLURM_STEP_TASKS_PER_NODE": "2"},
        MPIRUN,
        {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
        | {"LOCAL_SIZE": "2", "CROSS_SIZE": "1"},  # as deepspeed says it
        # In a job of Slurm's, of which mpirun had srun start its daemons.
        MPIRUN
        | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "3"}
        | {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"},
    ],
)
def test_launchers_show_the_rank(environ: dict[str, str]) -> None:
    own = LaunchedRank.of(environ)
    assert own is not None
    assert (own.rank, own.local_rank, own.local_size) == (1, 1, 2)
    assert {name: own.environ[name] for name in ("RANK", "WORLD_SIZE")} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
    }


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("RANK", "no RANK"),
        ("LOCAL_WORLD_SIZE", "no LOCAL_WORLD_SIZE"),  # the world's size is never taken for it
        ("MASTER_ADDR", "without MASTER_ADDR"),
        ("MASTER_PORT", "without MASTER_ADDR"),
    ],
)
def test_what_a_launcher_leaves_out_is_not_guessed(missing: str, said: str) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(UsageError, match=said):
        LaunchedRank.of(environ)


SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "1234567",
}


@linux
@pytest.mark.parametrize(
    ("environ", "address", "first"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "4"}, "127.0.0.1", 29501),
        ({**TORCHRUN, "WORLD_SIZE": "4", "MASTER_PORT": "65535"}, "127.0.0.1", 65520),
        ({**SRUN, "SLURM_STEP_NODELIST": "gpu[03-04,7]"}, "gpu03", 24568),
        ({**SRUN, "SLURM_STEP_NODELIST": "login,gpu7"}, "login", 24568),
        ({**SRUN, "SLURM_STEP_NODELIST": "rack[1-2,4]-n[3-4]x,n[1,2]"}, "rack1-n3x", 24568),
        ({**SRUN, "SLURM_STEP_NODELIST": "n1", "MASTER_ADDR": "10.0.0.1"}, "10.0.0.1", 24568),
    ],
)
def test_nodes_meet_beside_the_rendezvous(
    environ: dict[str, str], address: str, first: int
) -> None:
    found = LaunchedRank.of(environ)
    assert found is not None
    assert found.leader is not None
    assert (found.leader[0], found.leader[1][0], len(found.leader[1])) == (address, first, 16)


@linux
def test_nodes_without_an_address_are_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks on several machines without MASTER_ADDR"):
        LaunchedRank.of(SRUN)


@linux
@pytest.mark.parametrize(
    ("tasks", "node", "here"),
    [("4(x2),2", "1", 4), ("4(x2),2", "2", 2), ("3,2", "0", 3), ("3,2", "1", 2), ("2(x3)", "1", 2)],
)
def test_nodes_may_have_unequal_numbers_of_ranks(tasks: str, node: str, here: int) -> None:
    counts = {"SLURM_STEP_NUM_TASKS": "10", "SLURM_STEP_TASKS_PER_NODE": tasks}
    environ = {**SRUN, **counts, "SLURM_NODEID": node, "SLURM_STEP_NODELIST": "n[1-3]"}
    found = LaunchedRank.of(environ)
    assert found is not None
    assert (found.local_size, found.environ["LOCAL_WORLD_SIZE"]) == (here, str(here))


@linux
@pytest.mark.parametrize("node", [{}, {"SLURM_NODEID": "3"}, {"SLURM_NODEID": "x"}])
def test_which_of_unequal_nodes_this_is_is_not_guessed(node: dict[str, str]) -> None:
    environ = {**SRUN, "SLURM_STEP_NUM_TASKS": "10", "SLURM_STEP_TASKS_PER_NODE": "4(x2),2"}
    with pytest.raises(UsageError, match="no LOCAL_WORLD_SIZE"):
        LaunchedRank.of({**environ, **node})


@linux
@pytest.mark.parametrize(
    "wrong",
    [{"RANK": "2"}, {"LOCAL_RANK": "2"}, {"LOCAL_WORLD_SIZE": "3"}],
)
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="numbers don't fit: rank"):
        LaunchedRank.of({**TORCHRUN, **wrong})


@linux
@pytest.mark.parametrize(("asked", "refused"), [(None, True), ("8", True), ("1", False)])
def test_a_single_core_that_nobody_asked_srun_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
    refused: bool,
) -> None:
    """What sbatch was asked for stays in the environment, and srun doesn't go by it."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if asked is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
    fails = pytest.raises(UsageError, match="single CPU")
    with fails if refused else nullcontext():
        ranks._refuse_one_core(os.environ, {0}, 2)
    with fails if refused else nullcontext():
        ranks.resolve_ranks(SweepSettings(launch_ranks=(2,)), Ranks())


@linux
def test_another_users_process_hears_nothing_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is a rank's environment sent to it, nor its own used."""
    me = LaunchedRank.of({**TORCHRUN, "MASTER_PORT": str(os.getpid())})
    assert me is not None
    name = f"\0dlprof-{me.job}-"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(name)
        door.listen(1)
        monkeypatch.setattr(ranks, "_is_own", lambda _link: False)
        with pytest.raises(UsageError, match="Another user's process"):
            ranks._follow(me, name, {})
        assert door.accept()[0].recv(1) == b""


@linux
def test_a_first_rank_that_ends_as_others_come_is_no_fault_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says itself why, as where memory doesn't hold the ranks."""
    me = LaunchedRank.of({**TORCHRUN, "MASTER_PORT": str(os.getpid())})
    assert me is not None
    name = f"\0dlprof-{me.job}-"
    door = socket.socket(socket.AF_UNIX)
    door.bind(name)
    door.listen(1)

    def ends(_link: socket.socket) -> bool:
        door.close()
        return True

    monkeypatch.setattr(ranks, "_is_own", ends)
    ranks._follow(me, name, {})


@linux
def test_what_the_first_rank_refuses_is_said_once_and_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that comes later must not look for it a minute long, and then blame it."""
    job = {**TORCHRUN, "MASTER_PORT": str(os.getpid())}
    ended = list[object]()

    def refuse(_count: int) -> None:
        raise UsageError("2 ranks need more memory")

    def come() -> None:
        with gather_ranks(job, [], SweepSettings()) as found:
            ended.append(found)

    monkeypatch.setattr(ranks, "_refuse_many", refuse)
    monkeypatch.setattr(ranks, "_PATIENCE_S", 5.0)
    other = threading.Thread(target=come)
    other.start()
    with (
        pytest.raises(UsageError, match="need more memory"),
        gather_ranks({**job, "RANK": "0", "LOCAL_RANK": "0"}, [], SweepSettings()),
    ):
        pass
    other.join()
    assert ended == [None]


@linux
def test_who_is_let_go_may_come_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that calls a second sweep must not be heard by the first, which is over."""
    job = {**TORCHRUN, "MASTER_PORT": str(os.getpid())}
    me = LaunchedRank.of(job)
    assert me is not None
    answers = []

    def knock(_cpus: frozenset[int]) -> None:
        with socket.socket(socket.AF_UNIX) as link:
            answers.append(link.connect_ex(f"\0dlprof-{me.job}-"))

    monkeypatch.setattr(ranks, "_run_on", knock)  # called as all have come, and as they are let go

    def follow() -> None:
        with gather_ranks(job, [], SweepSettings()) as none:
            assert none is None

    other = threading.Thread(target=follow)
    other.start()
    with gather_ranks({**job, "RANK": "0", "LOCAL_RANK": "0"}, [], SweepSettings()) as found:
        assert found is not None
    other.join()
    assert answers == [0, errno.ECONNREFUSED]


@linux
def test_a_rank_whose_first_never_comes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.0)
    with (
        pytest.raises(UsageError, match="found no first rank"),
        gather_ranks(TORCHRUN, [], SweepSettings()),
    ):
        pass


@linux
def test_a_first_rank_whose_others_never_come_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.0)
    first = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(os.getpid())}
    with (
        pytest.raises(UsageError, match="Rank 1 of 2 did not come"),
        gather_ranks(first, [], SweepSettings()),
    ):
        pass


@linux
def test_launched_ranks_find_what_torchrun_gives() -> None:
    local_ranks = launched(2, {"HOME": "/home/me"})
    assert [local_rank.environ["RANK"] for local_rank in local_ranks] == ["0", "1"]
    for local_rank in local_ranks:
        assert local_rank.environ["LOCAL_WORLD_SIZE"] == local_rank.environ["WORLD_SIZE"] == "2"
        assert local_rank.environ["OMP_NUM_THREADS"] == "1"
        assert (local_rank.environ["HOME"], local_rank.environ["MASTER_ADDR"]) == (
            "/home/me",
            "127.0.0.1",
        )
    assert len({local_rank.environ["MASTER_PORT"] for local_rank in local_ranks}) == 1
    assert launched(2, {"OMP_NUM_THREADS": "4"})[0].environ["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("own", "count", "found"), [(None, 1, []), (None, 2, ["1"]), ("4", 2, ["4"])]
)
def test_one_of_several_assumed_ranks_finds_as_many_threads_as_torchrun_gives(
    monkeypatch: pytest.MonkeyPatch, own: str | None, count: int, found: list[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    alone = ranks.resolve_ranks(SweepSettings(ranks=count), Ranks())[1]
    assert [each.environ["OMP_NUM_THREADS"] for each in alone.local] == found


@linux
def test_more_ranks_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "available_memory", lambda _cgroups: 1 << 30)
    with pytest.raises(UsageError, match=r"8 ranks need 1.6 GiB .* 1.0 GiB is free") as caught:
        launched(8, {})
    assert "Launch 5 at most" in (caught.value.hint or "")


@linux
def test_the_settings_hold_for_all_ranks_that_a_launcher_started() -> None:
    local_ranks = launched(2, {})
    assert with_ranks(SweepSettings(), local_ranks).launch_ranks == (2,)
    both = with_ranks(SweepSettings(launch_ranks=(1, 2)), local_ranks)
    assert (both.launch_ranks, both.ranks) == ((1, 2), 2)
    with pytest.raises(UsageError, match="the launcher started 2 ranks"):
        with_ranks(SweepSettings(launch_ranks=(4,)), local_ranks)
    with pytest.raises(UsageError, match="ranks = 8 assumes what launch_ranks = 2 measures"):
        with_ranks(SweepSettings(ranks=8), local_ranks)


@linux
def test_a_rank_of_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one runs all ranks of its machine, by its own."""
    job = {**TORCHRUN, "MASTER_PORT": str(os.getpid())}
    first = {**job, "RANK": "0", "LOCAL_RANK": "0"}
    follow = ranks._follow

    def otherwise(me: LaunchedRank, name: str, said: Mapping[str, object]) -> None:
        follow(me, name, {**said, "python": "/another"})

    def come() -> None:
        with gather_ranks(job, [], SweepSettings()):
            pass

    monkeypatch.setattr(ranks, "_follow", otherwise)
    follower = threading.Thread(target=come)
    follower.start()
    with (
        pytest.raises(
            UsageError, match=f"python is {sys.prefix!r} on rank 0 and '/another' on rank 1"
        ),
        gather_ranks(first, [], SweepSettings()),
    ):
        pass
    follower.join()


@linux
def test_a_rank_that_differs_is_named_before_one_that_does_not_come() -> None:
    """Who differs may be why the other one is late."""
    three = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    me = LaunchedRank.of(TORCHRUN | three)
    assert me is not None
    there, here = socket.socketpair(socket.AF_UNIX)
    hello = {"rank": 1, "said": {"words": ["profile"]}, "environ": {}, "cpus": []}
    with there, _Door([here]) as door, ExitStack() as links:
        there.sendall(json.dumps(hello).encode() + b"\n")
        with pytest.raises(UsageError, match=r"words is .* on rank 1"):
            ranks._others(door, me, {"words": ["sweep"]}, links)


class _Door(socket.socket):
    """Some come, and then no more within the time."""

    def __init__(self, coming: list[socket.socket]) -> None:
        super().__init__(socket.AF_UNIX)
        self._coming = coming

    def accept(self) -> tuple[socket.socket, object]:
        if not self._coming:
            raise TimeoutError
        return self._coming.pop(), None
