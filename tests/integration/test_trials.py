"""Real trials: real processes, real loaders, real faults."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from shared_memory import shared_memory, shared_memory_left

from dlprof.errors import TargetError
from dlprof.records import Config, Trial
from dlprof.targets.grammar import parse_target
from dlprof.trial.launch import Launcher
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.runtime import Inbox
from dlprof.trial.state import TrialLimits
from dlprof.trial.supervisor import ObserverProcess, Supervisor

TARGETS = Path(__file__).parent / "faulty_targets.py"
linux = pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only")


def config(workers: int = 0, *, persistent: bool = False, start: str | None = None) -> Config:
    return Config(
        num_workers=workers, persistent_workers=persistent, start_method=start
    ).canonical()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for the bench; afterwards nothing of its own may be left."""
    before = set(psutil.Process().children(recursive=True))
    shared = shared_memory()
    yield tmp_path
    assert not left_of(lambda: set(psutil.Process().children(recursive=True)) - before)
    assert not shared_memory_left(shared)


def left_of(look: Callable[[], set[Any]]) -> set[Any]:
    """What is seen at first and still after 5 s: a test beside this one clears up after itself."""
    deadline = time.monotonic() + 5.0
    left = look()
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left &= look()
    return left


class Running:
    """A bench with its target built and probed."""

    def __init__(self, bench: TrialRunner) -> None:
        self.bench = bench
        self.target = bench.build(TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
        self.probe = bench.probe(TrialRequest(config=Config(), probe=True))
        self._count = 0

    def run(self, tried: Config, *, trial_s: float = 0.1, wall_s: float | None = None) -> Trial:
        self._count += 1
        return self.bench.explain(
            TrialRequest(config=tried, trial_s=trial_s),
            trial_id=f"t{self._count:04d}",
            repetition=0,
            wall_s=wall_s,
        )[0]


def start(
    place: Path,
    attr: str,
    *,
    arguments: dict[str, str] | None = None,
    first_probe_s: float = 15.0,
) -> Running:
    request = BuildRequest(target=parse_target(f"{TARGETS}:{attr}"), arguments=arguments or {})
    bench = TrialRunner(request, directory=place, first_probe_s=first_probe_s)
    try:
        return Running(bench)
    except BaseException:
        bench.close()
        raise


@linux
def test_every_kind_of_configuration_is_measured(place: Path) -> None:
    running = start(place, "plain")
    try:
        trials = [
            running.run(config()),
            running.run(config(1)),
            running.run(config(2, persistent=True)),
            running.run(config(1, start="spawn"), trial_s=0.05),
            running.run(config(1, start="forkserver"), trial_s=0.05),
        ]
    finally:
        running.bench.close()

    for trial in trials:
        assert trial.outcome == "completed", trial.failure
        assert trial.samples_per_s is not None
        assert trial.samples_per_s.value > 0
        assert trial.samples_per_batch == 32
        assert trial.startup_s is not None
        assert trial.epoch_turnover_s is not None
        assert trial.usage.own_cpu_cores is not None
        assert trial.usage.pss_peak_bytes is not None
    assert running.target.length == 4096
    assert running.probe["samples_per_batch"] == 32
    assert running.bench.fork_safe


@pytest.mark.slow
@linux
def test_batches_of_whole_epochs_hold_what_their_own_size_says(place: Path) -> None:
    """Not what the target's does: one of 32 would hold all ten samples."""
    running = start(place, "few")
    try:
        tried = (running.run(Config(batch_size=3).canonical(), trial_s=0.3) for _ in range(9))
        three = next(each for each in tried if each.whole_epochs)  # others, where cores are busy
        ten = running.run(Config(batch_size=10).canonical(), trial_s=0.3)
    finally:
        running.bench.close()

    assert (three.samples_per_batch, ten.samples_per_batch) == (2.5, 10.0)
    assert running.target.epoch_batches(3) == 4


@pytest.mark.slow
@linux
def test_a_target_that_reads_its_command_line_finds_none_of_dlprof_s(place: Path) -> None:
    running = start(place, "reads_command_line")
    try:
        assert running.run(config(1, start="spawn"), trial_s=0.05).failure is None
    finally:
        running.bench.close()


@pytest.mark.slow
@linux
def test_no_trial_finds_what_another_left_in_shared_memory(place: Path) -> None:
    running = start(place, "remembers")
    try:
        trials = [running.run(config()), running.run(config())]
    finally:
        running.bench.close()

    assert [trial.failure for trial in trials] == [None, None]
    assert "made the shared memory" in running.bench.notes[0]


@pytest.mark.slow
@linux
def test_a_sampler_that_is_a_generator_has_one_epoch(place: Path) -> None:
    running = start(place, "ordered_once")
    try:
        trial = running.run(config())
    finally:
        running.bench.close()

    assert trial.failure is not None
    assert trial.failure.kind == "empty"
    assert trial.failure.message == "An epoch after the first gave no batch."
    assert "as a generator can" in trial.failure.hint


@pytest.mark.slow
@linux
def test_a_cache_that_could_not_be_made_cold_is_said(place: Path) -> None:
    running = start(place, "plain")
    try:
        request = TrialRequest(config=config(), trial_s=0.05, cold_cache=True)
        trial = running.bench.explain(request, trial_id="t0001", repetition=0)[0]
    finally:
        running.bench.close()

    assert any("nothing was dropped from the page cache" in each for each in trial.warnings)


@pytest.mark.slow
@linux
@pytest.mark.parametrize("attr", ["huge", "endless"])
def test_memory_stays_bounded(place: Path, attr: str) -> None:
    running = start(place, attr)
    try:
        trial = running.run(config(1))
    finally:
        running.bench.close()

    assert trial.outcome == "completed", trial.failure
    assert trial.usage.pss_peak_bytes is not None
    assert trial.usage.pss_peak_bytes < 600 * 1024**2


@linux
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("segfault", "worker_signal"),
        pytest.param("exit", "worker_exit", marks=pytest.mark.slow),  # as a sweep's is
    ],
)
def test_a_worker_that_dies_costs_one_trial(place: Path, how: str, kind: str) -> None:
    running = start(place, "dies", arguments={"how": how})
    try:
        failed, fine = running.run(config(2)), running.run(config())
    finally:
        running.bench.close()

    assert failed.outcome == "crashed"
    assert failed.failure is not None
    assert failed.failure.kind == kind
    assert failed.failure.hint
    assert fine.outcome == "completed"


@pytest.mark.slow
@linux
def test_an_exception_in_a_worker_shows_the_users_traceback(place: Path) -> None:
    running = start(place, "raises")
    try:
        failed = running.run(config(2))
    finally:
        running.bench.close()

    assert failed.failure is not None
    assert failed.failure.kind == "worker_exception"
    assert "LookupError" in failed.failure.message
    assert "faulty_targets.py" in failed.failure.stderr_tail


@pytest.mark.slow
@linux
def test_a_worker_that_hangs_is_ended_at_the_limit(place: Path) -> None:
    running = start(place, "dies", arguments={"how": "hang"})
    try:
        failed, fine = running.run(config(1), wall_s=2.0), running.run(config())
    finally:
        running.bench.close()

    assert failed.outcome == "timed_out"
    assert failed.wall_s < 30.0
    assert fine.outcome == "completed"


@linux
def test_a_thread_of_the_targets_makes_each_trial_build_it(place: Path) -> None:
    running = start(place, "starts_a_thread")
    try:
        trial = running.run(config(1))
    finally:
        running.bench.close()

    assert not running.bench.fork_safe
    assert any("started the thread" in note for note in running.bench.notes)
    assert trial.outcome == "completed", trial.failure


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("target", "fork_safe"),
    [
        ("computes_while_building", True),
        pytest.param("computes_with_threads_while_building", False, marks=pytest.mark.slow),
    ],
)
def test_torch_s_pool_of_threads_hangs_no_fork(place: Path, target: str, fork_safe: bool) -> None:
    running = start(place, target)
    try:
        trial = running.run(config())
    finally:
        running.bench.close()

    assert trial.outcome == "completed", trial.failure
    assert running.bench.fork_safe is fork_safe
    assert any("pool of threads" in note for note in running.bench.notes) is not fork_safe


@pytest.mark.slow
@linux
def test_a_fork_that_hangs_is_noticed(place: Path) -> None:
    running = start(place, "HangsInForks", first_probe_s=3.0)
    try:
        trial = running.run(config())
    finally:
        running.bench.close()

    assert trial.outcome == "completed", trial.failure
    assert not running.bench.fork_safe
    assert any("hangs" in note for note in running.bench.notes)


@pytest.mark.slow
@linux
def test_a_target_that_can_not_be_built_says_why(place: Path) -> None:
    with pytest.raises(TargetError) as caught:
        start(place, "cannot_be_built")

    assert "the disk is not mounted" in caught.value.traceback


@pytest.mark.slow
def test_without_fork_each_trial_is_a_process_of_its_own(place: Path) -> None:
    inbox = Inbox()
    launcher, watcher = Launcher(inbox, place), ObserverProcess(inbox)
    supervisor = Supervisor(
        launchers=[launcher],
        watcher=watcher,
        inbox=inbox,
        directory=place,
        limits=TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0),
    )
    try:
        launcher.build(BuildRequest(target=parse_target(f"{TARGETS}:plain")))
        built = launcher.built()
        request = TrialRequest(config=config(1), trial_s=0.1)
        blank = Trial(id="t0001", config=config(1), repetition=0, outcome="completed")
        trial, _ = supervisor.run(request, blank)
    finally:
        launcher.close()
        watcher.close()

    assert built.target.length == 4096
    assert trial.outcome == "completed", trial.failure
    assert trial.samples_per_s is not None


def own_loader(folder: Path, samples: int, attr: str) -> TrialRunner:
    """A bench of a dataset that makes its own loader."""
    (folder / "own.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, IterableDataset, TensorDataset\n"
        "class Own(IterableDataset):\n"
        "    def __init__(self, workers=0):\n"
        "        self.workers = workers\n"
        "    def __iter__(self):\n"
        f"        data = TensorDataset(torch.arange({samples}.0))\n"
        "        return iter(DataLoader(data, batch_size=4, num_workers=self.workers))\n"
        "def make(num_workers=0):\n"
        "    return Own(num_workers)\n"
    )
    return TrialRunner(
        BuildRequest(target=parse_target(f"{folder}/own.py:{attr}"), seed=0), directory=folder
    )


@pytest.mark.slow
def test_a_dataset_that_makes_its_own_loader_is_refused_as_a_dataset(tmp_path: Path) -> None:
    with (
        contextlib.closing(own_loader(tmp_path, 400, "Own")) as bench,
        pytest.raises(TargetError, match="makes a DataLoader of its own"),
    ):
        Running(bench)


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "a_batch"), [(400, 4), (6, 3)])  # six are 4 and 2
def test_a_dataset_that_makes_its_own_loader_is_not_batched_again(
    tmp_path: Path, samples: int, a_batch: float
) -> None:
    with contextlib.closing(own_loader(tmp_path, samples, "make")) as bench:
        trial = Running(bench).run(config(2))
    assert trial.outcome == "completed", trial.failure
    assert trial.samples_per_batch == a_batch
