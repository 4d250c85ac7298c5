"""Which rank a process is, and where several are launched."""

from __future__ import annotations

import os
import sys

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
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        | {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    ],
)
def test_launchers_tell_the_rank(environ: dict[str, str]) -> None:
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
def test_a_barrier_of_steps_is_within_one_machine() -> None:
    environ, settings = {**TORCHRUN, "WORLD_SIZE": "4"}, SweepSettings(step_barrier=True)
    with (
        pytest.raises(UsageError, match="these are on several"),
        gather_ranks(environ, [], settings),
    ):
        pass


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
