"""``dlprof check`` on real repositories, loaders and processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from check_fakes import Listener, run_git
from programs import python
from schemas import conforms
from waiting import has_ended, until

from dlprof import trial
from dlprof.engine.check import run_check
from dlprof.engine.checking.compared import CheckSettings
from dlprof.errors import DlprofError, NothingMeasuredError, TargetError, UsageError
from dlprof.gate.verdict import NextLook, exit_code, judge
from dlprof.records import Config
from dlprof.records.gate import CheckReport, Series
from dlprof.settings import SweepSettings
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BlockRequest, BuildRequest
from dlprof.trial.side import SidePlace, SideProcess

DATA = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return {length}

    def __getitem__(self, index):
        {before}
        time.sleep({wait_s})
        return torch.full((4,), float(index))

def make():
    {inside}
    return DataLoader(Data(), batch_size=2, num_workers={workers})
"""


def data(
    wait_s: float = 0.001,
    *,
    before: str = "pass",
    inside: str = "pass",
    length: int = 64,
    workers: int = 0,
) -> str:
    return DATA.format(wait_s=wait_s, before=before, inside=inside, length=length, workers=workers)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose one commit holds ``data.py``."""
    folder = tmp_path / "a-checkout-with-a-long-name"
    folder.mkdir()
    run_git(folder, "init", "-qb", "main")
    (folder / "data.py").write_text(data())
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "one")
    return folder.resolve()


def settings(target: str = "data.py:make", **rest: Any) -> CheckSettings:
    made = CheckSettings(sweep=SweepSettings(target=target, budget_s=120.0), block_s=0.02)
    return dataclasses.replace(made, **{"against": "HEAD", **rest})


def check(folder: Path, **rest: Any) -> CheckReport:
    return run_check(settings(**rest), listener=Listener(), environ={}, cwd=folder)


def left_nothing(repository: Path) -> bool:
    return run_git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_a_slower_change_fails_and_the_verdict_follows_from_the_blocks(repository: Path) -> None:
    (repository / "data.py").write_text(data(0.004))
    report = check(repository)
    target = report.target
    assert report.state == "fail"
    assert target.plan is not None
    assert judge(target.plan, target.quads) == target.verdict
    assert target.verdict.stages[0].stage == "fetch"
    assert "in fetch" in report.explanation
    assert (target.source_file, target.source_line) == ("data.py", 15)
    assert "the same file" not in report.base.note
    assert report.base.commit == report.change.commit
    assert report.change.note == "with uncommitted changes"
    assert report.machine is not None
    assert report.torch_version
    assert left_nothing(repository)
    assert run_git(repository, "status", "--porcelain", "--untracked-files=no") == "M data.py"


@pytest.mark.slow
def test_workers_that_start_late_fail_the_start(repository: Path) -> None:
    lasting = data(workers=1).replace("num_workers=1", "num_workers=1, persistent_workers=True")
    (repository / "data.py").write_text(lasting)
    run_git(repository, "commit", "-qam", "two")
    late = lasting.replace("persistent", "worker_init_fn=lambda _: time.sleep(0.8), persistent")
    (repository / "data.py").write_text(late)
    report = check(repository)
    gates = {gate.name: gate for gate in report.target.verdict.gates}
    assert gates["startup"].state == "fail"
    shift = gates["startup"].views[0].shift
    assert shift is not None
    assert shift > 0.4
    block = report.target.quads[0].blocks[0]
    assert set(block.stages_s) == {"fetch", "collate", "receive"}


CORES = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="cores can't be chosen here"
)
ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")


@pytest.mark.slow
@CORES
@pytest.mark.parametrize(
    ("workers", "count"),
    [(2, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, 1), (0, 64), (2, 64)))],
)
def test_both_sides_of_a_quad_run_on_the_same_cores(
    repository: Path, workers: int, count: int
) -> None:
    (repository / "data.py").write_text(data(workers=workers))
    run_git(repository, "commit", "-qam", "two", "--allow-empty")
    own = os.sched_getaffinity(0)
    usable = sorted(own)[:count]
    os.sched_setaffinity(0, usable)
    try:
        report = check(repository)
        assert os.sched_getaffinity(0) == set(usable)
    finally:
        os.sched_setaffinity(0, own)
    assert report.state == "pass"
    load = [quad for quad in report.target.quads if quad.series == "load"]
    places = [{(block.cores, block.pinned) for block in quad.blocks} for quad in load]
    for number, place in enumerate(places):
        cores = [usable[(number + each) % len(usable)] for each in range(max(1, workers))]
        assert place == {(tuple(cores), True)}


@pytest.mark.slow
@CORES
def test_a_side_that_chooses_its_core_frees_both_and_that_is_said(repository: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core, so nothing to choose")
    chosen = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    (repository / "data.py").write_text(data(inside=chosen))
    target = check(repository).target
    load = [block for quad in target.quads if quad.series == "load" for block in quad.blocks]
    assert {block.unpinned for block in load[:4]} == {"", "its code chooses cores itself"}
    assert not any(block.unpinned for block in load[4:])
    assert not any(block.pinned for block in load)
    assert "(change: its code chooses cores itself" in target.verdict.notes[0]


@pytest.mark.slow
@CORES
def test_a_system_that_refuses_to_hold_processes_does_no_harm(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef refuse(*_):\n    raise PermissionError(1, 'no')\n"
        "os.sched_setaffinity = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    target = check(repository).target
    assert target.verdict.state == "pass"
    assert "the system refuses it" in target.verdict.notes[0]


@contextlib.contextmanager
def control_group(controller: str, v1: Mapping[str, str], v2: Mapping[str, str]) -> Iterator[Path]:
    """A control group of the test's own, left at the end; skips where none can be made."""
    mount = Path("/sys/fs/cgroup")
    is_v1 = (mount / controller).is_dir()
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    home = {name: path.lstrip("/") for _, name, path in lines}[controller if is_v1 else ""]
    try:
        group = Path(tempfile.mkdtemp(prefix="dlprof-", dir=mount / controller if is_v1 else mount))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            for name, text in (v1 if is_v1 else v2).items():
                (group / name).write_text(text)
        except OSError as error:
            pytest.skip(f"{controller} can't be limited here: {error}")
        yield group
    finally:
        procs = (mount / controller if is_v1 else mount) / home / "cgroup.procs"
        procs.write_text(str(os.getpid()))
        # Where CPU time is rationed, ending takes its time too.
        assert until(lambda: not (group / "cgroup.procs").read_text(), 30.0), "some outlived it"
        group.rmdir()


class AfterQuads(Listener):
    """Acts after each block of four, and is given how many there are."""

    def __init__(self, acts: Callable[[int], None]) -> None:
        super().__init__()
        self.acts = acts

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        self.acts(done["load"])


@pytest.mark.slow
@CORES
@ROOT
@pytest.mark.root
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_cpuset_that_changes_in_the_middle_is_followed(repository: Path, workers: int) -> None:
    own = sorted(os.sched_getaffinity(0))[:2]
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to narrow")
    (repository / "data.py").write_text(data(0.004, workers=workers))
    run_git(repository, "commit", "-qam", "two", "--allow-empty")
    limits = {"cpuset.mems": "0", "cpuset.cpus": f"{own[0]},{own[1]}"}
    changes = {3: f"{own[0]}", 5: f"{own[1]}", 7: limits["cpuset.cpus"]}
    with control_group("cpuset", limits, limits) as group:

        def narrow(quads: int) -> None:
            if quads in changes:
                (group / "cpuset.cpus").write_text(changes[quads])

        (group / "cgroup.procs").write_text(str(os.getpid()))
        report = run_check(settings(), listener=AfterQuads(narrow), environ={}, cwd=repository)
    load = [quad for quad in report.target.quads if quad.series == "load"]
    assert report.state == "pass"
    assert all(block.pinned for quad in load for block in quad.blocks)
    for place, core in ((4, own[0]), (6, own[1])):
        assert {core} == {each for block in load[place].blocks for each in block.cores}


@ROOT
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_runner_that_is_throttled_to_five_percent(repository: Path, workers: int) -> None:
    (repository / "data.py").write_text(data(0.0005, workers=workers))
    run_git(repository, "commit", "-qam", "two")
    v1 = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"}
    with control_group("cpu", v1, {"cpu.max": "5000 100000"}) as group:

        def throttle(_quads: int) -> None:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(OSError):  # it has ended
                    (group / "cgroup.procs").write_text(str(process.pid))

        began_s, made = time.monotonic(), settings()
        made = dataclasses.replace(made, sweep=dataclasses.replace(made.sweep, budget_s=30.0))
        report = run_check(made, listener=AfterQuads(throttle), environ={}, cwd=repository)
    assert report.state in {"pass", "inconclusive"}
    assert time.monotonic() - began_s < 90  # the budget, one block and the end of processes


@pytest.mark.slow
def test_an_absolute_path_and_a_directory(repository: Path, tmp_path: Path) -> None:
    before = tmp_path / "a-directory-of-equal-len--e"
    before.mkdir()
    (before / "data.py").write_text(data(0.004))
    target = f"{repository / 'data.py'}:make"
    report = check(repository, target=target, against=str(before))
    assert report.state == "pass"
    shift = report.target.verdict.gates[0].views[0].shift
    assert shift is not None
    assert shift < -0.5


@pytest.mark.slow
def test_code_that_an_editable_install_finds_in_the_checkout_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "made.py").write_text("NUMBER = 1\n")
    (repository / "data.py").write_text(f"import made\n{data()}")
    run_git(repository, "add", ".")
    run_git(repository, "commit", "-qm", "two")
    # As setuptools' editable installs find modules.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\n"
        "class Finder:\n    def find_spec(name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(repository / 'src')!r}])\n"
        "sys.meta_path.append(Finder)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UsageError, match=r"the base takes .*made\.py from the working tree"):
        check(repository)


@pytest.mark.slow
@pytest.mark.parametrize(
    "named", ["installed:make", pytest.param("{}/installed.py:make", marks=pytest.mark.slow)]
)
def test_a_target_that_both_sides_take_from_the_same_file_is_noted(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "installed.py").write_text(data())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    base = check(repository, target=named.format(tmp_path)).base
    assert base.note == "the same commit, with the same file of the target, which is outside of it"


BAD: dict[str, tuple[str, str, type[DlprofError], str]] = {
    "the base lacks the target": (
        data().replace("def make", "def other"),
        data(),
        TargetError,
        r"^The base \(HEAD, \w{7}\): 'data.py' has no attribute 'make'",
    ),
    "the change crashes": (
        data(),
        data(before="os.kill(os.getpid(), signal.SIGKILL)"),
        NothingMeasuredError,
        r"^The change \(working tree, \w{7}\) can't be loaded from: .*SIGKILL",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_bad_sides_have_their_own_sentence(repository: Path, case: str) -> None:
    base, change, kind, expected = BAD[case]
    (repository / "data.py").write_text(base)
    run_git(repository, "commit", "-qam", "base", "--allow-empty")
    (repository / "data.py").write_text(change)
    with pytest.raises(kind, match=expected) as caught:
        check(repository)
    assert caught.value.hint
    assert left_nothing(repository)


@pytest.mark.slow
def test_a_side_that_dies_is_stood_up_again(tmp_path: Path) -> None:
    fatal = tmp_path / "fatal"
    once = f"os.path.exists({str(fatal)!r}) and (os.remove({str(fatal)!r}), os._exit(3))"
    (tmp_path / "data.py").write_text(data(before=once))
    library = Path(trial.__file__).parents[2]
    place, request = (
        SidePlace(directory=tmp_path),
        BuildRequest(target=parse_target("data.py:make")),
    )
    side = SideProcess("change", request, place, library=library, logs=tmp_path)
    with contextlib.closing(side):
        side.build(60.0)
        side.open(Config(), 60.0)
        fatal.touch()  # after another process has asked the dataset whether it keeps samples
        side.order(BlockRequest(batches=4))
        block, failure = side.collect(60.0)
        assert failure is not None
        assert "exit code 3" in block.failure
        side.order(BlockRequest(batches=4))
        block, failure = side.collect(60.0)
        assert failure is None
        assert block.samples == (2, 2, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_kept_and_take_longer_the_first_time_fail(
    repository: Path, workers: int
) -> None:
    """Warm blocks never load them again, and passed."""
    for wait_s in (0.02, 0.06):
        kept = data(wait_s, workers=workers, before="kept = vars(self).setdefault('kept', {})")
        kept = kept.replace("time.sleep(", "index in kept or time.sleep(")
        kept = kept.replace("return torch.full", "return kept.setdefault(index, 1) * torch.full")
        (repository / "data.py").write_text(kept)
        if wait_s == 0.02:
            run_git(repository, "commit", "-qam", "keeps")
    report = check(repository)
    assert report.state == "fail"
    assert exit_code(report) == 3
    assert report.target.plan is not None
    assert (report.target.plan.keeping, report.target.plan.epochs) == (("base", "change"), 10)
    assert "in 10 epochs" in " ".join(report.target.verdict.notes)


@pytest.mark.slow
def test_data_of_less_than_a_batch_is_the_targets_fault_on_both_sides(repository: Path) -> None:
    (repository / "data.py").write_text(data(length=1))
    run_git(repository, "commit", "-qam", "one sample")
    with pytest.raises(TargetError, match=r"^The dataset is smaller than one batch") as caught:
        check(repository)
    assert caught.value.exit_code == 2


def test_a_side_that_is_not_built_in_time_names_the_option_that_gives_more(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    building = f"open({str(begun)!r}, 'w').close(); time.sleep(3600)"
    (tmp_path / "data.py").write_text(data(inside=building))
    place, library = SidePlace(directory=tmp_path), Path(trial.__file__).parents[2]
    request = BuildRequest(target=parse_target("data.py:make"))
    side = SideProcess("change", request, place, library=library, logs=tmp_path, limit="--budget")
    with contextlib.closing(side):
        side.begin()
        assert until(begun.exists)  # one that has no stack yet shows none
        with pytest.raises(TargetError, match="did not end within") as caught:
            side.build(0.1)
    assert caught.value.hint.startswith("Raise --budget if it takes that long; the stack")


def dlprof(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "dlprof", "check", *words, timeout_s=120, **environ)


def test_the_command_ends_with_3_and_says_so_to_ci(
    repository: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (repository / "data.py").write_text(data(0.004))
    summary, outputs = tmp_path / "summary.md", tmp_path / "outputs.txt"
    names = ("--junit", "--markdown", "--bencher", "--benchmark-action", "--openmetrics", "-o")
    files = {name: tmp_path / f"written{name}" for name in names}
    temporary = tmp_path_factory.mktemp("t")  # sockets have room for a short name only
    words = [word for name, path in files.items() for word in (name, str(path))]
    done = dlprof(
        repository,
        *("data.py:make", "--against", "main", "--budget", "60s", "--json", *words),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
        GITHUB_OUTPUT=str(outputs),
        TMPDIR=str(temporary),
    )
    assert list(temporary.iterdir()) == []
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    conforms("check", document)
    assert document["state"] == "fail"
    assert json.loads(files["-o"].read_text()) == document
    assert "::error file=data.py,line=15,title=dlprof" in done.stderr
    assert left_nothing(repository)
    assert "FAIL" in summary.read_text()
    assert "verdict<<" in outputs.read_text()
    assert all(path.stat().st_size > 50 for path in files.values())


def test_a_failing_command_prints_one_document(repository: Path) -> None:
    done = dlprof(repository, "data.py:make", "--against", "nowhere", "--json")
    assert done.returncode == 2
    assert "no such git ref" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_check_that_is_ended_removes_its_worktree_and_processes(
    repository: Path, tmp_path: Path, times: int
) -> None:
    ready = tmp_path / "ready"
    waiting = data(inside=f"open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    (repository / "data.py").write_text(waiting)
    command = [sys.executable, "-m", "dlprof", "check", "data.py:make", "--against", "main"]
    with subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True) as running:
        assert until(ready.exists)
        assert not left_nothing(repository)
        for _ in range(times):
            running.send_signal(signal.SIGTERM)
            time.sleep(0.1)  # two of one kind at once would be one
        _, shown = running.communicate(timeout=30)
    assert running.returncode == 130, shown
    assert left_nothing(repository)
    loads = int(ready.read_text())
    assert until(lambda: has_ended(loads), 30.0)  # it notices that its parent has gone
