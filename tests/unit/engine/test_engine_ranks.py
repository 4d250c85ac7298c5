"""Which rank a process is, and where several are launched."""

from __future__ import annotations

import os
import sys

import pytest

from dlprof.engine import ranks
from dlprof.engine.ranks import LaunchedRank, gather_ranks, launched, with_ranks
from dlprof.errors import UsageError
from dlprof.settings import SweepSettings

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
    with gather_ranks(environ, []) as local_ranks:
        assert local_ranks == ()


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


def test_ranks_of_other_machines_are_refused() -> None:
    with pytest.raises(UsageError, match="2 of 4 ranks are on this machine"):
        LaunchedRank.of({**TORCHRUN, "WORLD_SIZE": "4"})


@linux
def test_a_rank_whose_first_never_comes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.0)
    with pytest.raises(UsageError, match="found no first rank"), gather_ranks(TORCHRUN, []):
        pass


@linux
def test_a_first_rank_whose_others_never_come_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.0)
    first = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(os.getpid())}
    with pytest.raises(UsageError, match="Rank 1 of 2 did not come"), gather_ranks(first, []):
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
