"""Ranks that load at once: real processes, each with its share, and what becomes of a lost one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import python

from dlprof.engine.ranks import launched, resolve_ranks
from dlprof.errors import TargetError
from dlprof.records import Config, Trial
from dlprof.settings import SweepSettings
from dlprof.store import read_run
from dlprof.targets.grammar import parse_target
from dlprof.trial import child
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.rank_group import RankGroup
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")

TARGETS = Path(__file__).parent / "rank_targets.py"
LIMITS = TrialLimits(wall_s=90.0, stall_s=60.0, usable_cores=2.0)


@contextlib.contextmanager
def ranks(
    place: Path, target: str, count: int = 2, together: Ranks | None = None, **arguments: str
) -> Iterator[TrialRunner]:
    """A bench of several ranks with their targets built; afterwards no process may be left."""
    before = set(psutil.Process().children(recursive=True))
    request = BuildRequest(target=parse_target(f"{TARGETS}:{target}"), arguments=arguments)
    runner = TrialRunner(
        request,
        directory=place,
        together=together or Ranks(local=launched(count, os.environ)),
        first_probe_s=60.0,
    )
    with contextlib.closing(runner):
        runner.build(LIMITS)
        yield runner
    assert not set(psutil.Process().children(recursive=True)) - before


def trial(runner: TrialRunner, workers: int = 0, **request: Any) -> Trial:
    config = Config(num_workers=workers).canonical()
    asked = TrialRequest(config=config, trial_s=0.3, **request)
    return runner.explain(asked, trial_id="t0001", repetition=0)[0]


@pytest.mark.slow
def test_the_slowest_rank_is_the_trials_rate(tmp_path: Path) -> None:
    with ranks(tmp_path, "straggling") as runner:
        free, in_step = trial(runner), trial(runner, step_barrier=True)
        alone = runner.explain(
            TrialRequest(config=Config(), trial_s=0.3), trial_id="t0003", repetition=0, ranks=1
        )[0]

    assert free.failure is None
    assert [each.rank for each in free.ranks] == [0, 1]
    fast, slow = (each.samples_per_s for each in free.ranks)
    assert fast is not None
    assert slow is not None
    assert fast.value > 1.5 * slow.value
    assert free.samples_per_s == slow
    assert free.together_samples_per_s == slow.times(2)
    assert free.ranks[0].barrier_fraction == 0.0
    assert {None} - {each.own_cpu_cores for each in free.ranks}  # each of them is observed

    assert in_step.failure is None
    one, other = (each.samples_per_s for each in in_step.ranks)
    assert one is not None
    assert other is not None
    assert 0.8 < one.value / other.value < 1.25
    waited = [each.barrier_fraction or 0.0 for each in in_step.ranks]
    assert waited[0] > 0.3 > waited[1]

    assert alone.failure is None
    assert alone.ranks == ()
    assert alone.samples_per_s is not None
    assert alone.samples_per_s.value > 1.5 * slow.value


@pytest.mark.slow
def test_each_rank_loads_its_share(tmp_path: Path) -> None:
    place = tmp_path / "noted"
    place.mkdir()
    with ranks(tmp_path, "noted", folder=str(place)) as runner:
        found = trial(runner)

    assert found.failure is None
    assert [each.epoch_batches for each in found.ranks] == [25, 25]
    first, second = (set((place / f"rank{rank}").read_text().split()) for rank in (0, 1))
    assert first
    assert second
    assert not first & second


@pytest.mark.slow
@pytest.mark.parametrize("assumed", [False, True])
def test_ranks_compute_in_one_thread_as_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, assumed: bool
) -> None:
    """Launched ones, and one that is measured for others that are assumed beside it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    together = resolve_ranks(SweepSettings(ranks=2), Ranks())[1] if assumed else None
    with ranks(tmp_path, "of_one_thread", together=together) as runner:
        found = trial(runner)

    assert found.failure is None
    assert len(found.ranks) == (0 if assumed else 2)
    assert ["OMP_NUM_THREADS=1" in note for note in runner.notes] == [True]


@pytest.mark.slow
def test_bound_ranks_and_their_workers_run_on_their_cpus_alone(tmp_path: Path) -> None:
    place = tmp_path / "placed"
    place.mkdir()
    free = sorted(os.sched_getaffinity(0))
    first, last = free[0], free[-1]
    with ranks(tmp_path, "placed", folder=str(place)) as runner:
        bound = [trial(runner, workers, cpus=((first,), (last,))) for workers in (0, 2)]
        seen = {each.name: each.read_text().split() for each in place.iterdir()}
        for each in place.iterdir():
            each.unlink()
        trial(runner, 1)
        later = {each.name: each.read_text().split() for each in place.iterdir()}
        lost = trial(runner, cpus=((first,), (4096,)))

    assert [each.failure for each in bound] == [None, None]
    processes = ("main", "worker0", "worker1")
    assert {name: {*cpus} for name, cpus in seen.items()} == {
        f"rank{rank}-{process}": {str(cpu)}
        for rank, cpu in enumerate((first, last))
        for process in processes
    }
    whole = {",".join(map(str, free))}
    assert {name: {*cpus} for name, cpus in later.items()} == {
        "rank0-worker0": whole,
        "rank1-worker0": whole,
    }
    assert lost.failure is not None
    assert lost.failure.message.startswith("Rank 1 of 2 on ")
    assert "can't be bound to the CPUs of its NUMA node" in lost.failure.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "word"),
    [pytest.param("killed", "SIGKILL", marks=pytest.mark.slow), ("stopped", "is stopped")],
)
def test_a_lost_rank_is_named_and_the_next_trial_works(
    tmp_path: Path, target: str, word: str
) -> None:
    with ranks(tmp_path, target) as runner:
        lost, next_one = trial(runner), trial(runner, workers=1)
        in_step = trial(runner, step_barrier=True)

    assert lost.failure is not None
    assert lost.failure.message.startswith("Rank 1 of 2 on ")
    assert word in lost.failure.message
    assert lost.wall_s < LIMITS.stall_s / 2  # not by the clock that hangs are judged by
    assert next_one.failure is None
    assert len(next_one.ranks) == 2
    assert in_step.failure is not None  # though the other rank waits for it
    assert in_step.failure.message.startswith("Rank 1 of 2 on ")


@pytest.mark.slow
def test_a_target_may_ask_torch_for_its_rank(tmp_path: Path) -> None:
    with ranks(tmp_path, "asking") as runner:
        found = trial(runner, workers=1)

    assert found.failure is None
    assert [each.epoch_batches for each in found.ranks] == [512, 512]


@pytest.mark.slow
def test_a_look_at_a_target_for_which_ranks_meet_has_all_of_them_come(tmp_path: Path) -> None:
    with ranks(tmp_path, "meeting") as runner:
        assert not runner.fork_safe
        one = Config(num_workers=1).canonical()
        message = runner.weigh(one, limit_s=2.0, left_s=45.0)  # alone it would wait for longer
        assert runner.try_workers(one) is None

    assert message["weight"]["start_method"] == "fork"


@pytest.mark.slow
def test_uneven_shares_are_named_and_hang_nothing(tmp_path: Path) -> None:
    with ranks(tmp_path, "uneven") as runner:
        found = trial(runner, step_barrier=True)

    assert found.failure is None
    assert any("20 batches on one rank and 10 on another" in each for each in found.warnings)


@pytest.mark.slow
def test_ranks_with_different_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="Ranks differ: dataset is"), ranks(tmp_path, "other"):
        pass


def test_ranks_of_several_nodes_agree_by_gloo_and_one_that_is_lost_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    RankGroup.create(tmp_path, 2, 1)
    found: list[list[int]] = []
    lost = list[ConnectionError]()

    def agree(rank: int) -> None:
        least = child._least_of_all(rank, 2, RankGroup(tmp_path, rank, 2))
        found.append(least([rank, -rank]))
        if rank == 0:
            try:
                least([1, 0])  # the other one has gone
            except ConnectionError as error:
                lost.append(error)

    threads = [threading.Thread(target=agree, args=[rank], daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == [[0, -1]] * 2
    assert lost


SWEEP = (
    *("-m", "dlprof", "sweep", f"{TARGETS}:even", "--num-workers", "0,1", "--prefetch-factor", "2"),
    *("--persistent-workers", "off", "--trial-time", "0.4s", "--repeats", "1", "--budget", "60s"),
    *("-o", "ranks.dlprof.jsonl"),
)


def sweep(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return python(place, *command, timeout_s=170, DLPROF_CACHE_DIR=str(place / "cache"))


@pytest.mark.slow
def test_a_sweep_launches_ranks_and_shows_how_they_scale(tmp_path: Path) -> None:
    done = sweep(tmp_path, *SWEEP, "--launch-ranks", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    run = read_run(tmp_path / "ranks.dlprof.jsonl")

    assert run.header.launched == 2
    assert {len(each.ranks) for each in run.completed} == {2}
    assert [each["ranks"] for each in document["scaling"]][:2] == [1, 2]
    over_one = document["scaling"][1]["over_one"]["value"]
    assert 1.4 < over_one < 2.6  # what waits doubles
    assert document["recommendation"]["constraints"]["ranks"] == 2
    assert "at once" not in document["recommendation"]["confidence_reason"]

    shown = sweep(tmp_path, "-m", "dlprof", "recommend", "ranks.dlprof.jsonl", "-v")
    assert "2 at once give" in shown.stdout
    asked = sweep(tmp_path, "-m", "dlprof", "recommend", "ranks.dlprof.jsonl", "--ranks", "4")
    assert "2 ranks were measured, not 4 at once" in " ".join(asked.stdout.split())


@pytest.mark.slow
def test_what_is_kept_for_scaling_leaves_a_single_configuration_its_trial(tmp_path: Path) -> None:
    command = ["-m", "dlprof", "sweep", f"{TARGETS}:even", "--num-workers", "0"]
    done = sweep(tmp_path, *command, "--launch-ranks", "2", "--budget", "30s", "-o", "one.jsonl")
    assert done.returncode == 0, done.stderr
    assert "measure" in {each.purpose for each in read_run(tmp_path / "one.jsonl").completed}


@pytest.mark.slow
def test_a_profile_explains_the_slowest_rank(tmp_path: Path) -> None:
    done = sweep(
        tmp_path,
        *("-m", "dlprof", "profile", f"{TARGETS}:straggling", "--num-workers", "1"),
        *("--launch-ranks", "2", "--trial-time", "0.2s", "--budget", "25s"),
        *("-o", "ranks.dlprof.jsonl"),
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "ranks.dlprof.jsonl")

    fetch = [stage for each in run.explanations if (stage := each.stage("fetch"))]
    assert fetch
    assert all(each.mean_s > 4 * 0.005 for each in fetch)  # four samples of 6 ms, not of 2
    assert "the slowest (rank 1)" in " ".join(done.stdout.split())


CALLED = f"""
import os
import dlprof
cpus = os.sched_getaffinity(0)
run = dlprof.sweep(
    {f"{TARGETS}:even"!r}, num_workers=0, trial_time=0.1, repeats=1, budget=30, progress=False
)
assert os.sched_getaffinity(0) == cpus
said = os.environ["RANK"], run.header.run_id, str(run.header.launched), run.path
print(" ".join(said) + "\\n", end="")
"""


@pytest.mark.slow
def test_ranks_that_call_it_from_python_measure_together(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text(CALLED)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = sweep(tmp_path, *torchrun, "called.py")
    assert done.returncode == 0, done.stderr
    (one, *first), (other, *second) = (line.split() for line in done.stdout.splitlines())
    assert {one, other} == {"0", "1"}
    assert first == second
    assert first[1] == "2"
    command = read_run(Path(first[2])).resume_command
    assert command.startswith("torchrun --standalone --nproc-per-node=2 -m dlprof sweep ")


ALIKE = """
import sys
import dlprof
import torch
from torch.utils.data import TensorDataset

# The first node's rank replaces what is there, and each has arguments of its own.
run = dlprof.sweep(
    TensorDataset(torch.zeros(256, 4)), output="run.dlprof.jsonl", force=True,
    num_workers=0, trial_time=0.1, repeats=1, budget=30, progress=False,
)
print(run.header.run_id, max(len(each.ranks) for each in run.trials), *sys.argv[1:])
"""


@pytest.mark.slow
def test_nodes_that_call_it_with_a_live_object_measure_together(tmp_path: Path) -> None:
    (tmp_path / "alike.py").write_text(ALIKE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
    torchrun = (sys.executable, "-m", "torch.distributed.run", *meeting, f"--master-port={port}")
    with contextlib.ExitStack() as agents:
        begun = [
            agents.enter_context(
                subprocess.Popen(
                    [*torchrun, f"--node-rank={node}", "alike.py", f"--mine={node}"],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for node in range(2)
        ]
        for agent in begun:
            agents.callback(agent.kill)
        ended = [agent.communicate(timeout=150) for agent in begun]
    assert [agent.returncode for agent in begun] == [0, 0], ended
    one, other = (out.split() for out, _ in ended)
    assert one == [other[0], "2", "--mine=0"]
    assert other[1:] == ["2", "--mine=1"]


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = sweep(tmp_path, *torchrun, *SWEEP)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "ranks.dlprof.jsonl")

    assert run.header.launched == 2
    assert {len(each.ranks) for each in run.completed} == {2}
    assert done.stdout.count("Recommended") == 1
