"""What a bench does when the process that starts trials dies, without processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from fake_processes import Clock

from dlprof.errors import DlprofError, TargetError
from dlprof.records import Config, Target, Trial
from dlprof.targets.grammar import parse_target
from dlprof.trial import launch as launch_module
from dlprof.trial import runner as runner_module
from dlprof.trial.failures import ResourceLimitError
from dlprof.trial.hangs import parse_stacks
from dlprof.trial.launch import BuilderDiedError, Built, LocalRank
from dlprof.trial.nodes import Link, Nodes, Ranks
from dlprof.trial.protocol import BuildRequest, Channel, Message, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.runtime import TrialLog, open_log
from dlprof.trial.state import TrialLimits
from dlprof.trial.supervisor import LauncherDiedError, ProbeKilledError, ProbeTimeoutError

LIMITS = TrialLimits(wall_s=30.0, stall_s=20.0, usable_cores=2.0)
TARGET = Target(spec="data.py:make", kind="map", dataset="data.Set", import_s=1.0)
REQUEST = TrialRequest(config=Config(num_workers=1).canonical())


@dataclasses.dataclass
class World:
    """What happens, in turn, each after it has taken its time."""

    clock: Clock
    builds: list[tuple[float, Exception | None]]
    runs: list[tuple[float, Exception | None]]
    patience_s: list[float] = dataclasses.field(default_factory=list)
    limits: list[str] = dataclasses.field(default_factory=list)
    first_batch_s: float | None = 0.1
    stall_s: list[float] = dataclasses.field(default_factory=list)
    left_s: list[float] = dataclasses.field(default_factory=list)
    launchers: int = 0
    said: list[str] = dataclasses.field(default_factory=list)

    def spend(self, what: list[tuple[float, Exception | None]]) -> None:
        spent_s, error = what.pop(0)
        self.clock.now_s += spent_s
        if error is not None:
            raise error


class FakeLauncher:
    """Builds as the world has it; also takes the place of the real one's class."""

    world: World

    def __init__(self, inbox: object, directory: Path, local_rank: LocalRank | None) -> None:
        self.world.launchers += 1

    def build(self, request: BuildRequest) -> None:
        pass

    def built(self, patience_s: float = 0.0, limit: str = "--timeout") -> Built:
        self.world.patience_s.append(patience_s)
        self.world.limits.append(limit)
        self.world.spend(self.world.builds)
        return Built(target=TARGET, versions={"torch": "2.13.0", "python": "3.11.0"})

    def preload(self, request: BuildRequest) -> None:
        raise AssertionError("these targets can be forked")

    def launch(self, request: TrialRequest, log: IO[bytes]) -> tuple[Channel, str]:
        raise AssertionError("the supervisor is a fake")

    def kill(self) -> None:
        raise AssertionError("the supervisor is a fake")

    def close(self) -> None:
        pass


class FakeSupervisor:
    """Runs as the world has it."""

    world: World

    def __init__(self, *, limits: TrialLimits, left_s: float, **_others: object) -> None:
        self.limits, self.left_s = limits, left_s

    def run(self, request: TrialRequest, blank: Trial) -> tuple[Trial, Message]:
        self.world.left_s.append(self.left_s)
        self.world.stall_s.append(self.limits.stall_s)
        self.world.spend(self.world.runs)
        return blank, {}

    def probe(self, request: TrialRequest) -> Message:
        self.world.left_s.append(self.left_s)
        self.world.spend(self.world.runs)
        first_s = self.world.first_batch_s
        times = {"batch_s": 0.1, "first_batch_s": first_s}
        return {"failure": None, "start_method": "fork", **times}


Make = Callable[..., tuple[TrialRunner, World]]
WELL = (1.0, None)


def dies(spent_s: float) -> tuple[float, Exception]:
    return spent_s, LauncherDiedError("The process that starts the trials died.", hint="Look.")


def builder_dies(spent_s: float, directory: Path) -> tuple[float, Exception]:
    with open_log(directory / "log") as log:
        return spent_s, BuilderDiedError(-9, TrialLog(log))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    def made(
        *runs: tuple[float, Exception | None],
        builds: Sequence[tuple[float, Exception | None]] = (WELL, WELL),
    ) -> tuple[TrialRunner, World]:
        world = World(clock=Clock(), builds=list(builds), runs=list(runs))
        FakeLauncher.world = FakeSupervisor.world = world
        monkeypatch.setattr(runner_module, "ForkLauncher", FakeLauncher)
        monkeypatch.setattr(runner_module, "Launcher", FakeLauncher)
        monkeypatch.setattr(runner_module, "Supervisor", FakeSupervisor)
        return TrialRunner(
            BuildRequest(target=parse_target("x.py:make")),
            directory=tmp_path,
            clock=world.clock,
            say=world.said.append,
        ), world

    return made


def run(bench: TrialRunner, **details: Any) -> Trial:
    return bench.explain(REQUEST, trial_id="t0001", repetition=0, **details)[0]


def test_a_trial_that_goes_well_has_all_its_time(make: Make) -> None:
    bench, world = make((2.0, None))
    bench.build(LIMITS)
    trial = run(bench, wall_s=10.0)

    assert trial.outcome == "completed"
    assert trial.wall_s == 2.0
    assert world.left_s == [10.0]
    assert world.launchers == 1


@pytest.mark.parametrize(
    ("left_s", "took_s"), [(27.0, 26.0), (10.0, 9.0), (100.0, 15.0 + 20.0), (0.0, 3.0 + 3.0)]
)
def test_a_target_that_hangs_keeps_the_budget(
    make: Make, monkeypatch: pytest.MonkeyPatch, left_s: float, took_s: float
) -> None:
    """It is probed twice, since the fork may be what hangs."""
    bench, world = make()

    def hang(supervisor: FakeSupervisor, request: TrialRequest) -> Message:
        world.clock.now_s += min(supervisor.limits.wall_s, supervisor.limits.stall_s)
        raise ProbeTimeoutError("The target gives no batch.")

    monkeypatch.setattr(FakeSupervisor, "probe", hang)
    monkeypatch.setattr(FakeLauncher, "preload", lambda *_: None)
    bench.build(LIMITS)
    began_s = world.clock()
    with pytest.raises(ProbeTimeoutError):
        bench.probe(REQUEST, left_s=left_s)
    assert world.clock() - began_s == pytest.approx(took_s)


@pytest.mark.parametrize(
    ("left_s", "patience_s", "limit"),
    [
        (20.0, 20.0, "--budget"),
        (1.0, 8.0, "--budget"),  # torch itself takes a while to be imported
        (40.0, 30.0, "--timeout"),
    ],
)
def test_a_target_has_no_longer_to_be_built_than_is_left_of_the_budget(
    make: Make, tmp_path: Path, left_s: float, patience_s: float, limit: str
) -> None:
    """And what is named when it takes longer is what has to be raised."""
    bench, world = make(builds=[builder_dies(2.0, tmp_path), WELL])
    bench.build(LIMITS, left_s=left_s)
    assert world.patience_s == [patience_s, patience_s - 2.0]
    assert world.limits == [limit, limit]


@pytest.mark.parametrize(
    ("first_batch_s", "workers", "stall_s"),
    [(None, 4, 22.0), (0.1, 4, 22.0), (12.1, 0, 34.0), (12.1, 4, 70.0)],
)
def test_a_trial_may_be_as_long_before_its_first_batch_as_the_probe_was(
    make: Make, first_batch_s: float | None, workers: int, stall_s: float
) -> None:
    """Each of its workers fills a buffer before, and they share the cores and the storage."""
    bench, world = make(WELL, WELL)
    world.first_batch_s = first_batch_s
    bench.build(LIMITS)
    bench.probe(REQUEST)
    request = dataclasses.replace(REQUEST, config=Config(num_workers=workers).canonical())
    bench.explain(request, trial_id="t0001", repetition=0)
    assert world.stall_s == pytest.approx([stall_s])


def test_a_second_attempt_has_what_is_left(make: Make) -> None:
    """Building again is part of it, and so are both in what the trial has cost."""
    bench, world = make(dies(6.0), (2.0, None), builds=[WELL, (3.0, None)])
    bench.build(LIMITS)
    trial = run(bench)

    assert trial.outcome == "completed"
    assert world.patience_s == [30.0, 24.0]
    assert world.left_s == [30.0, 21.0]
    assert trial.wall_s == 11.0
    assert world.launchers == 2
    assert world.said == [
        "The process that starts the trials died. What it had started is run again."
    ]


def test_a_probe_that_a_signal_ended_is_tried_again(make: Make) -> None:
    hit = ProbeKilledError("It gives no batch.", failures=[("worker_signal", "It was ended.")])
    bench, world = make((1.0, hit), WELL)
    bench.build(LIMITS)

    assert bench.try_workers(REQUEST.config) is None
    assert world.said == ["It was ended. What it had started is run again."]
    assert (len(world.left_s), world.launchers) == (2, 1)


def test_what_workers_share_is_not_known_where_the_process_dies(make: Make) -> None:
    bench, _ = make((1.0, TargetError("It died.")), (1.0, ProbeTimeoutError("It hangs.")))
    bench.build(LIMITS)

    assert bench.shared_files(REQUEST.config, left_s=60.0) == ()
    assert bench.shared_files(REQUEST.config, left_s=60.0) == ()


def test_what_is_kept_is_not_known_where_the_second_process_dies(make: Make) -> None:
    bench, world = make((1.0, TargetError("It died.")), (1.0, ProbeTimeoutError("It hangs.")))
    bench.build(LIMITS)

    assert bench.kept(left_s=12.0) == {}
    assert bench.kept(left_s=12.0) == {}
    assert world.left_s == [6.0, 6.0]  # half of what is left
    assert world.launchers == 1  # none falls back to a build in each trial


def test_no_second_attempt_without_time(make: Make) -> None:
    bench, world = make(dies(30.0), (2.0, None), builds=[WELL, WELL])
    bench.build(LIMITS)
    trial = run(bench)

    assert trial.outcome == "crashed"
    assert trial.failure is not None
    assert trial.failure.kind == "start_failed"
    assert world.launchers == 1
    assert run(bench).outcome == "completed", "the next trial begins with a new process"


def test_a_second_death_costs_the_trial(make: Make) -> None:
    bench, world = make(dies(1.0), dies(1.0), (2.0, None), builds=[WELL, WELL, WELL])
    bench.build(LIMITS)
    trial = run(bench)

    assert trial.failure is not None
    assert trial.failure.hint == "Look."
    assert trial.wall_s == 3.0
    assert run(bench).outcome == "completed"
    assert world.launchers == 3


def test_a_target_that_can_not_be_built_again_costs_the_trial(make: Make) -> None:
    gone = TargetError("The disk is gone.", hint="Mount it.", traceback="line 7")
    bench, _ = make(dies(1.0), (2.0, None), builds=[WELL, (1.0, gone), WELL])
    bench.build(LIMITS)
    trial = run(bench)

    assert trial.failure is not None
    assert (trial.failure.kind, trial.failure.message) == ("start_failed", "The disk is gone.")
    assert trial.failure.stderr_tail == "line 7"
    assert run(bench).outcome == "completed"


def test_a_builder_that_dies_once_is_tried_again(make: Make, tmp_path: Path) -> None:
    bench, world = make(builds=[builder_dies(10.0, tmp_path), WELL])

    assert bench.build(LIMITS) == TARGET
    assert world.patience_s == [30.0, 20.0]
    assert world.launchers == 2
    assert ["started again" in each for each in world.said] == [True]


def test_a_builder_that_is_stopped_is_ended_and_counts_as_dead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stopped:
        pid, source, ended = 99_999_999, "launcher", False

        def answer(self, patience_s: float) -> None:
            assert patience_s < 5.0
            assert not self.ended

        def kill(self) -> None:
            self.ended = True

        def status(self, _patience_s: float) -> int:
            return -15

    monkeypatch.setattr(launch_module, "is_stopped", lambda _pid: True)
    with open_log(tmp_path / "log") as log:
        process = Stopped()
        process.log = TrialLog(log)  # type: ignore[attr-defined] # as a process has one
        with pytest.raises(BuilderDiedError, match="SIGTERM"):
            launch_module.built_by(process, 120.0)  # type: ignore[arg-type] # as much as is asked
    assert process.ended


@pytest.mark.parametrize(
    ("file", "caller", "advised"),
    [
        ("/torch/utils/data/dataloader.py", "/train.py", "Name what makes the loader"),
        ("/torch/utils/data/dataloader.py", "<frozen importlib._bootstrap>", "__main__"),
        ("/lib/socket.py", "/train.py", ""),
    ],
)
def test_a_builder_that_trains_is_shown_dlprof_run_and_no_frame_of_dlprof(
    file: str, caller: str, advised: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = launch_module.__file__
    stack = f'Thread 0x01 (most recent call first):\n  File "{file}", line 725 in wait\n'
    stack += '  File "<frozen importlib._bootstrap>", line 9 in _load\n'  # as torch imports late
    stack += f'  File "/train.py", line 25 in main\n  File "{caller}", line 9 in exec\n'
    stack += f'  File "{own}", line 9 in _call\n  File "<frozen runpy>", line 8 in run\n'
    error = _not_built(stack, monkeypatch, tmp_path)
    assert ("dlprof run" in error.hint) == bool(advised)
    assert advised in error.hint
    assert "--budget" in error.hint
    assert "/train.py" in error.traceback
    assert own not in error.traceback


def _not_built(stack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TargetError:
    """What is said of a builder that does not answer, whose log holds this."""

    class Waits:
        pid, source = 99_999_999, "launcher"

        def answer(self, _patience_s: float) -> None: ...

    found = parse_stacks(stack)
    monkeypatch.setattr("dlprof.trial.hangs.collect", lambda pids, _log: {pids[0]: found})
    with open_log(tmp_path / "log") as log:
        log.write(stack.encode())
        log.flush()
        process = Waits()
        process.log = TrialLog(log)  # type: ignore[attr-defined] # as a process has one
        with pytest.raises(TargetError, match="did not end within") as caught:
            launch_module.built_by(process, 0.1, "--budget")  # type: ignore[arg-type] # as above
    return caught.value


def test_a_stack_that_holds_nothing_of_the_user_s_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stack = "loading the index\nCurrent thread 0x00007f (most recent call first):\n"
    stack += f'  File "{launch_module.__file__}", line 9 in _call\n'
    stack += '  File "<frozen runpy>", line 88 in _run_code\n'
    stack += '  File "<frozen runpy>", line 198 in _run_module_as_main\n'
    error = _not_built(stack, monkeypatch, tmp_path)
    assert error.traceback.strip() == "loading the index"
    assert error.hint == "Raise --budget if it takes that long."
    own = stack.replace(launch_module.__file__, "/home/runpytorch/data.py")
    assert "/home/runpytorch/data.py" in _not_built(own, monkeypatch, tmp_path).traceback


def test_a_builder_that_dies_twice_is_named_by_its_end(make: Make, tmp_path: Path) -> None:
    bench, _ = make(builds=[builder_dies(1.0, tmp_path), builder_dies(1.0, tmp_path)])

    with pytest.raises(TargetError, match="SIGKILL"):
        bench.build(LIMITS)


def test_what_can_not_be_tried_is_no_fault(make: Make) -> None:
    bench, _ = make((1.0, DlprofError("It hung.")), (1.0, None))
    bench.build(LIMITS)

    assert bench.try_workers(REQUEST.config) is None
    assert bench.try_workers(REQUEST.config) is None


def test_ranks_are_all_ended_where_one_can_not_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended: list[int] = []

    class Rank(FakeLauncher):
        def __init__(self, inbox: object, directory: Path, local_rank: LocalRank) -> None:
            self.rank = local_rank.rank
            if self.rank == 2:
                raise ResourceLimitError("no more processes", hint="ulimit -u")

        def close(self) -> None:
            ended.append(self.rank)

    monkeypatch.setattr(runner_module, "ForkLauncher", Rank)
    ranks = Ranks(local=tuple(LocalRank(rank=number, environ={}) for number in range(4)))
    with pytest.raises(ResourceLimitError):
        TrialRunner(
            BuildRequest(target=parse_target("x.py:make")), directory=tmp_path, together=ranks
        )

    assert sorted(ended) == [0, 1]


def test_nodes_with_another_torch_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Others(Nodes):
        def order(self, name: str, below: int, **details: Any) -> None:
            pass

        def all_answer(self, patience_s: float) -> list[tuple[Link, Message]]:
            theirs = {"torch": "2.12.0", "python": "3.11.0"}
            return [(Link("other", [1]), {"versions": theirs})]

    FakeLauncher.world = World(clock=Clock(), builds=[WELL], runs=[])
    monkeypatch.setattr(runner_module, "ForkLauncher", FakeLauncher)
    monkeypatch.setattr(runner_module, "Launcher", FakeLauncher)
    bench = TrialRunner(
        BuildRequest(target=parse_target("x.py:make")),
        directory=tmp_path,
        together=Ranks(nodes=Others(2)),
    )
    with pytest.raises(TargetError, match=r"torch is 2\.13\.0 on rank 0 and 2\.12\.0 on rank 1"):
        bench.build(LIMITS)


def test_ranks_of_a_machine_with_another_torch_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has an environment of its own, by which it may find other packages."""

    class Rank(FakeLauncher):
        def __init__(self, inbox: object, directory: Path, local_rank: LocalRank) -> None:
            self.rank = local_rank.rank

        def built(self, patience_s: float = 0.0, limit: str = "") -> Built:
            versions = {"torch": f"2.1{3 - self.rank}.0", "python": "3.11.0"}
            return Built(target=TARGET, versions=versions)

    monkeypatch.setattr(runner_module, "ForkLauncher", Rank)
    bench = TrialRunner(
        BuildRequest(target=parse_target("x.py:make")),
        directory=tmp_path,
        together=Ranks(local=tuple(LocalRank(rank=number, environ={}) for number in range(2))),
    )
    with pytest.raises(TargetError, match=r"torch is 2\.13\.0 on rank 0 and 2\.12\.0 on rank 1"):
        bench.build(LIMITS)
