"""The parts of ``dlprof run`` that need no script to run."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import ntpath
import os
import re
import runpy
import sys
import types
from datetime import datetime
from pathlib import Path, PureWindowsPath
from typing import Any

import builders
import pytest
from golden import drawn
from schemas import conforms

import dlprof
from dlprof.cli.entry import run
from dlprof.cli.run import end_options_at_module
from dlprof.integrations import loaders
from dlprof.integrations.loaders import Callers, _has_packages, callers_of, line_of
from dlprof.integrations.ranks import Rank, read_rank
from dlprof.integrations.recorder import DATALOADER_MODULE
from dlprof.integrations.running import AfterImport
from dlprof.integrations.script import show_fault
from dlprof.integrations.wait_statistics import WaitStatistics
from dlprof.machine.launchers import job_moment, launch_words
from dlprof.records import (
    Config,
    Diagnosis,
    Durations,
    Estimate,
    Finding,
    FindingCode,
    Fix,
    Headroom,
    Run,
    TriedSetting,
    WatchedLoader,
    WatchedScript,
    own_s,
)
from dlprof.records.watched import ScriptEnding
from dlprof.report.export.formats import render_as
from dlprof.report.script import script_document, script_report, verdict
from dlprof.store import RunWriter, read_run, run_file_name
from dlprof.tuning.loader import _row


@pytest.mark.parametrize(
    ("words", "split"),
    [
        (["train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["-m", "pkg.train", "--lr", "3"], ["-m", "pkg.train", "--", "--lr", "3"]),
        (["-o", "f", "-m", "t", "-o", "g"], ["-o", "f", "-m", "t", "--", "-o", "g"]),
        (["-mpkg", "--lr"], ["-mpkg", "--", "--lr"]),
        (["--module=pkg", "a"], ["--module=pkg", "--", "a"]),
        (["-m", "t", "--", "a"], ["-m", "t", "--", "--", "a"]),
        (["-q", "train.py", "--", "-m"], ["-q", "train.py", "--", "-m"]),
        (["--", "-m", "x"], ["--", "-m", "x"]),
        (["-m"], ["-m"]),
        ([], []),
    ],
)
def test_options_end_where_the_scripts_words_begin(words: list[str], split: list[str]) -> None:
    assert end_options_at_module(words, {"-o", "-m", "--module"}) == split


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "There is no script to run"),
        (["-m"], "requires an argument"),
        (["no-such.py"], "There is no file 'no-such.py'"),
        (["."], "'.' is a directory, not a script"),
        (["a.dlprof.jsonl"], "'a.dlprof.jsonl' is a run file, not a script"),
        (["train.sh"], "'train.sh' is not a Python script (line 2: "),
        (["picture.py"], "'picture.py' is not a Python script ("),
        (["-m", "no_such_module_here"], "There is no module 'no_such_module_here' to run"),
        (["-m", "json.no_such_part"], "There is no module 'json.no_such_part' to run"),
        (["-m", ".."], "There is no module '..' to run"),
        (["-m", "email"], "There is no module 'email' to run"),
        (["--force", "-o", "old.jsonl", "-m", "json.no_such_part"], "There is no module"),
        (["x" * 300], "can't be read: File name too long"),
        (["-o", "old.jsonl", "good.py"], "already exists"),
        (["-o", "no/such/folder/f.jsonl", "good.py"], "There is no folder"),
        (["--json", "no/such/folder/f.json", "good.py"], "There is no folder"),
        (["--json", ".", "good.py"], "Give another path with --json"),
        (["--json", "old.jsonl", "good.py"], "There is no permission to write"),
        (["--json", "a.json", "-o", "a.json", "good.py"], "name the same file, a.json"),
        (["--nonsense", "good.py"], "No such option"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\nset -e; if true; then\n")
    (tmp_path / "picture.py").write_bytes(b"\x89PNG\x00\x01")
    (tmp_path / "good.py").write_text("print('ran')")
    (tmp_path / "old.jsonl").write_text("of an earlier run")
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "_exit", os._exit)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    # As in a process of its own: torch, which another test may have loaded, is not there to be
    # watched, and nothing waits for it afterwards.
    monkeypatch.delitem(sys.modules, DATALOADER_MODULE, raising=False)
    waiting = list(sys.meta_path)

    assert run(["run", *words], {}) == 2
    assert sys.meta_path == waiting
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) <= 2
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old.jsonl").read_text() == "of an earlier run"
    assert not any(isinstance(each, AfterImport) for each in sys.meta_path)


def test_the_users_frames_make_the_place() -> None:
    place = callers_of(sys._getframe())
    assert place[0][0] == __file__
    assert all("site-packages" not in path for path, _ in place)
    assert line_of(place, 0, str(Path(__file__).parent)).startswith("test_run_pieces.py:")


@pytest.mark.parametrize("name", ["timm", "torch"])
def test_a_package_on_a_target_path_is_no_place_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As ``pip install --target`` leaves it, also within the folder of the project."""
    installed, project = tmp_path / "project" / "deps", tmp_path / "project"
    (installed / name / "data").mkdir(parents=True)
    (installed / f"{name}-1.0.dist-info").mkdir()
    module = installed / name / "data" / "loader.py"
    module.write_text("def make(look):\n    return look()\n")
    for folder in ("bin", "own"):
        (project / folder).mkdir()
    mine = project / "own" / "mine.py"
    mine.write_text("def call(make, look):\n    return make(look)\n")
    paths = [project / "bin", project / "own", installed, tmp_path]
    monkeypatch.setattr(sys, "path", [str(path) for path in paths] + sys.path)

    def look() -> Callers:
        return callers_of(sys._getframe().f_back)

    make = runpy.run_path(str(module))["make"]
    assert place_of_files(runpy.run_path(str(mine))["call"](make, look))[0] == str(mine)
    (installed / f"{name}-1.0.dist-info").rmdir()
    _has_packages.cache_clear()
    assert place_of_files(make(look))[0] == str(module)  # it may be the user's own


def place_of_files(place: Callers) -> list[str]:
    return [path for path, _ in place]


def test_what_lies_beside_the_script_is_the_users_whatever_is_installed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm-1.0.dist-info").mkdir()
    script = tmp_path / "train.py"
    script.write_text("def call(look):\n    return look()\n")
    call = runpy.run_path(str(script))["call"]

    def look() -> Callers:
        return callers_of(sys._getframe().f_back)

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert place_of_files(call(look))[0] == str(script)
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path), *sys.path])
    assert place_of_files(call(look))[0] != str(script)
    monkeypatch.chdir(tmp_path)
    assert place_of_files(call(look))[0] == str(script)


def test_a_place_outside_the_folder_is_named_in_full() -> None:
    place = (("/data/train.py", 3), ("<string>", 1))
    assert line_of(place, 0, "/home/me") == "/data/train.py:3"
    assert line_of((("/home/me/../train.py", 3),), 0, "/home/me") == "/home/train.py:3"
    named = [line_of(place, which, "/data") for which in range(3)]
    assert named == ["train.py:3", "<string>:1", ""]


def test_a_place_on_another_drive_is_named_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "Path", PureWindowsPath)
    monkeypatch.setattr(os, "path", ntpath)
    place = (("D:\\train.py", 3), ("c:\\work\\..data\\train.py", 4))
    named = [line_of(place, which, "C:\\work") for which in range(2)]
    assert named == ["D:\\train.py:3", "..data\\train.py:4"]


def test_a_truth_value_is_an_exit_code_as_python_takes_it() -> None:
    assert repr(show_fault(SystemExit(True)).exit_code) == "1"


def test_a_script_may_end_by_a_text_where_stderr_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert show_fault(SystemExit("bad luck")).exit_code == 1


def test_frames_of_dlprof_are_taken_out_of_tracebacks_and_workers_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading = WaitStatistics(clock=lambda: 0, began_ns=0).open(lambda: None)[0]
    own = Path(dlprof.__file__).with_name("tracing") / "fetchers.py"
    text = (
        "Caught KeyError in worker.\n"
        f'  File "{own}", line 39, in __getitem__\n    sample = dataset[index]\n             ~~~\n'
        '  File "train.py", line 7, in __getitem__\n    raise KeyError\nKeyError: 40'
    )

    def broken(_: object) -> None:
        raise RuntimeError(text) from ValueError("the cause")

    try:
        reading.take(broken, None)
    except RuntimeError as error:
        ending = show_fault(error)
    assert (ending.kind, ending.exit_code) == ("exception", 1)
    err = capsys.readouterr().err
    assert f'File "{__file__}"' in err
    assert "dlprof/tracing" not in err
    assert "dlprof/integrations" not in err
    assert "sample = dataset[index]" not in err
    assert '  File "train.py", line 7, in __getitem__\n    raise KeyError\nKeyError: 40' in err


def test_ranks_come_from_the_environment() -> None:
    job = {"RANK": "3", "WORLD_SIZE": "8"}
    assert read_rank(job) == Rank(rank=3, world_size=8)
    four = Rank(rank=3, world_size=8, local_size=4, local_rank=3)
    assert read_rank(job | {"LOCAL_WORLD_SIZE": "4"}) == four
    second = dataclasses.replace(four, local_rank=1)
    assert read_rank(job | {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == second
    assert read_rank(job | {"LOCAL_WORLD_SIZE": "many"}) == Rank(rank=3, world_size=8)
    for environ in ({}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "WORLD_SIZE": "2"},
                    {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "1"}):  # fmt: skip
        assert read_rank(environ) is None


SRUN = {
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_PROCID": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_NODEID": "1",
}


def test_ranks_that_srun_starts_are_ranks_of_one_job() -> None:
    assert read_rank(SRUN) == Rank(rank=4, world_size=6, local_size=2)
    assert read_rank({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None  # a shell within a step
    node = {"SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_LOCALID": "0", "SLURM_PROCID": "3"}
    leads = read_rank({**SRUN, **node, "SLURM_STEP_NUM_TASKS": "5"})
    assert leads == Rank(rank=3, world_size=5, local_size=2)
    first, other = (
        job_moment({**SRUN, "SLURM_PROCID": n}, 4711, began_at=lambda _: 1.8e9) for n in "01"
    )
    assert first == other


def as_said_by(launcher: str) -> dict[str, str]:
    """What it says of rank 5 of 8, the second of the four on the second of two machines."""
    words: dict[str, dict[str, str]] = {
        "deepspeed": {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}
        | {"CROSS_RANK": "1", "CROSS_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
        "Intel MPI": {"PMI_SIZE": "8", "PMI_RANK": "5"}
        | {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    }
    for name, prefix in (("MVAPICH", "MV2_COMM_WORLD_"), ("horovodrun", "HOROVOD_")):
        said = {"SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}
        words[name] = {prefix + each: value for each, value in said.items()}
    return words[launcher]


@pytest.mark.parametrize(
    ("launcher", "again"),
    [
        (
            "deepspeed",
            (
                "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 "
                "--nproc-per-node=4 -m"
            ),
        ),
        ("Intel MPI", "mpirun -n 8 python -m"),
        ("MVAPICH", "mpirun -n 8 python -m"),
        ("horovodrun", "horovodrun -np 8 python -m"),
    ],
)
def test_each_launcher_says_which_rank_of_how_many_on_the_machine_it_is(
    launcher: str, again: str
) -> None:
    said = as_said_by(launcher)
    # The batch script's own, where a job of Slurm's has started the launcher.
    by_slurm = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    for environ in (said, {**by_slurm, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", **said}):
        assert read_rank(environ) == Rank(rank=5, world_size=8, local_size=4, local_rank=1)
        assert " ".join(launch_words(environ)) == again
    first, other = (job_moment(said, 4711, began_at=lambda _: 1.8e9) for _ in range(2))
    assert first == other


NODES = {"WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "node0"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "1", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, ""),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"},
            "torchrun --standalone --nproc-per-node=2 -m",
        ),
        (
            {**NODES, "LOCAL_WORLD_SIZE": "8"},
            (
                "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 "
                "--nproc-per-node=8 -m"
            ),
        ),
        (
            {**SRUN, "SLURM_CPUS_PER_TASK": "8"},
            "srun --nodes=3 --ntasks=6 --cpus-per-task=8 python -m",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "mpirun -n 4 python -m"),
        ({**SRUN, "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun -n 4 python -m"),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"},  # by hand
            "torchrun --standalone --nproc-per-node=2 -m",
        ),
    ],
)
def test_as_many_ranks_are_launched_again_by_the_same_launcher(
    environ: dict[str, str], words: str
) -> None:
    assert " ".join(launch_words(environ)) == words


def test_the_files_of_a_job_share_all_but_the_rank() -> None:
    """And no other job's, nor those of another attempt."""
    job = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}

    def name(environ: dict[str, str], parent: int = 4711, began_s: float = 1.8e9) -> str:
        return run_file_name("t.py", job_moment(environ, parent, began_at=lambda _: began_s))

    assert name(job) == name(job) == name(job, began_s=1.8e9 + 0.3)
    again = job | {"TORCHELASTIC_RESTART_COUNT": "1"}
    others = {name(job, 4712), name(job, began_s=1.8e9 + 1), name(again), name(again, 4710)}
    assert len(others) == 4
    assert name(job) not in others


def test_without_torchrun_a_file_is_named_after_now() -> None:
    before = datetime.now().astimezone()
    alone = job_moment({}, 1, began_at=lambda _: 1.0)
    unknown = job_moment({"TORCHELASTIC_RUN_ID": "none"}, 1, began_at=lambda _: None)
    assert before <= alone <= unknown <= datetime.now().astimezone()
    assert job_moment({"TORCHELASTIC_RUN_ID": "none"}, os.getpid()) < before


def test_each_rank_has_a_file() -> None:
    rank = Rank(rank=1, world_size=2)
    assert rank.file(Path("a/b.dlprof.jsonl")) == Path("a/b.rank1.dlprof.jsonl")
    assert rank.file(Path("b.json")) == Path("b.rank1.json")


def test_a_module_is_acted_on_once_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module_of_a_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    finder = AfterImport("late_module_of_a_test", lambda module: seen.append(module.value))
    finder.install()
    assert seen == []
    late: Any = importlib.import_module("late_module_of_a_test")
    assert seen == [1]
    assert finder not in sys.meta_path
    assert "exec_module" not in vars(late.__spec__.loader)
    assert late.__loader__ is late.__spec__.loader
    AfterImport("late_module_of_a_test", seen.append).install()
    assert seen == [1, late]
    assert isinstance(late, types.ModuleType)


def durations(mean_s: float, count: int = 10) -> Durations:
    return Durations(
        count=count,
        total_s=mean_s * count,
        mean_s=mean_s,
        median_s=mean_s,
        p95_s=2 * mean_s,
        p99_s=3 * mean_s,
        max_s=4 * mean_s,
    )


def loader(name: str, wait_fraction: float, **more: Any) -> WatchedLoader:
    return WatchedLoader(
        name=name,
        place=name,
        dataset="data.Images",
        sampler="RandomSampler",
        config=Config(num_workers=4, prefetch_factor=2, batch_size=64),
        epochs=3,
        epochs_completed=2,
        batches=1200,
        waited_s=100 * wait_fraction,
        stepped_s=100 * (1 - wait_fraction),
        wait_fraction=wait_fraction,
        batches_per_s=12.0,
        samples_per_s=768.0,
        startup_s=1.1,
        turnover=durations(1.3, 2),
        wait=durations(0.012),
        step=durations(0.150),
        **more,
    )


def watched_run(*loaders: WatchedLoader, **more: Any) -> Run:
    script = WatchedScript(
        wall_s=125.0,
        ending="exit",
        exit_code=3,
        waited_s=47.5,
        wait_fraction=0.38,
        loaders=len(loaders),
        **more,
    )
    header = builders.header(target=builders.target(spec="run:train.py"))
    return Run(path="train.dlprof.jsonl", header=header, watched=loaders, script=script)


@pytest.mark.parametrize(
    ("lines", "samplers", "shown"),
    [
        (
            ("train.py:29", "train.py:30"),
            ("RandomSampler",) * 2,
            ("from train.py:29", "from train.py:30"),
        ),
        (
            ("train.py:29",) * 2,
            ("RandomSampler", "SequentialSampler"),
            ("RandomSampler", "SequentialSampler"),
        ),
    ],
)
def test_loaders_that_one_function_makes_are_distinguished(
    lines: tuple[str, str], samplers: tuple[str, str], shown: tuple[str, str]
) -> None:
    made = [
        dataclasses.replace(
            loader(name, 0.9, called_from=line), place="data.py:32", sampler=sampler
        )
        for name, line, sampler in zip(
            ("data.py:32", "data.py:32 #2"), lines, samplers, strict=True
        )
    ]
    chart = drawn(script_report(watched_run(*made)), 80).partition("loader\n")[2].splitlines()
    for row, what in zip(chart[: len(shown)], shown, strict=True):
        assert what in row
    alone = drawn(script_report(watched_run(made[0])), 80)
    assert not any(each in alone for each in shown)


def test_the_loader_that_is_waited_for_longest_is_named() -> None:
    slow, quick = loader("train.py:31", 0.38), loader("train.py:32", 0.01)
    assert (
        verdict([quick, slow])
        == "The loop over train.py:31 spends 38% of its 1 min 40 s waiting for data."
    )
    late = dataclasses.replace(slow, startup_s=8.4)  # and 2.6 s of restarts, of 100 s
    starting = " data: 27% in epochs, 11% at epoch starts"
    assert verdict([quick, late]).endswith(
        f"{starting} (persistent_workers=True starts workers once)."
    )
    # No workers, none that could persist, or none that are to.
    for more in ({"config": Config()}, {"made": 3}, {"against_persisting": "it has set_epoch."}):
        assert verdict([dataclasses.replace(late, **more)]).endswith(f"{starting}.")
    one = dataclasses.replace(late, epochs=1)
    assert verdict([one]).endswith(f"{starting} (less in longer epochs).")
    assert verdict([quick]).startswith("No DataLoader bottleneck")
    aside = loader("a.py:1", 0.5, background_s=50.0)
    assert "in a background thread" in verdict([aside])
    assert verdict([WatchedLoader(name="a.py:1")]) == "a.py:1 gave no batch."
    rarely = WatchedScript(wall_s=100.0, ending="returned", wait_fraction=0.01)
    assert verdict([slow], rarely).startswith("No DataLoader bottleneck: the script spends 1%")
    for ending in ("interrupted", "running", "exception"):  # of which the loop was to go on
        cut = dataclasses.replace(rarely, ending=ending)
        assert verdict([slow], cut).startswith("The loop over train.py:31 spends 38% of its 1 min")


@pytest.mark.parametrize("ending", ["returned", "interrupted"])
def test_a_screen_has_one_share_of_one_window(ending: ScriptEnding) -> None:
    """A script of 125 s whose loop of 4 s had just begun, or had come to its end."""
    begun = dataclasses.replace(loader("train.py:3", 0.87), waited_s=3.48, stepped_s=0.52)
    begun = dataclasses.replace(begun, startup_s=0.1, turnover=None)
    run, found = watched_run(begun), Diagnosis(config=Config(), findings=(), trials=("train.py:3",))
    assert run.script is not None
    script = dataclasses.replace(run.script, waited_s=3.48, wait_fraction=0.028, ending=ending)
    text = drawn(script_report(dataclasses.replace(run, script=script, diagnosis=found)), 80)
    assert set(re.findall(r"\d+%", text)) == {"3%" if ending == "returned" else "87%"}
    most = "1.03x for the script" if ending == "returned" else "7.69x in this loop"
    assert f"at most {most}" in text


@pytest.mark.parametrize(
    ("code", "trials", "share", "reported"),
    [
        ("fetch.io", ("train.py:3",), 0.38, True),
        ("consumer", ("train.py:3",), 0.38, False),
        ("fetch.io", ("other.py:1",), 0.38, False),
        ("fetch.io", ("train.py:3",), 0.01, False),
    ],
)
def test_the_verdict_names_the_likeliest_cause_of_that_loader(
    code: FindingCode, trials: tuple[str, ...], share: float, *, reported: bool
) -> None:
    finding = Finding(code=code, severity="high", title="Samples wait", explanation="Long.")
    found = Diagnosis(config=Config(), findings=(finding,), trials=trials)
    run = dataclasses.replace(watched_run(loader("train.py:3", share)), diagnosis=found)
    text = " ".join(drawn(script_report(run), 80).split())
    assert (f"Bottleneck Samples wait {code}" in text) is reported
    at_most = "Speed-up at most 1.61x for the script, without any wait for data"
    sure = "Certainty medium: the script ran once; run-to-run variation is unknown"
    none = f"Bottleneck none found that is worth fixing {at_most} {sure}"
    assert (none in text) is not reported


def test_a_loader_whose_waits_have_no_known_cause_is_named_whatever_others_show() -> None:
    """As that of a validation of two batches, beside a training that keeps up."""
    slow, other = loader("val.py:3", 0.99), loader("train.py:3", 0.1)
    step = Finding(code="consumer", severity="info", title="The step", explanation="Long.")
    why = "Not known why val.py:3 is waited for: only 7 batches could be traced."
    found = Diagnosis(
        config=Config(), findings=(step,), trials=("train.py:3",), notes=(why, "Of train.py:3.")
    )
    run = dataclasses.replace(watched_run(other, slow), diagnosis=found)
    text = " ".join(drawn(script_report(run), 80).split())
    assert f"Bottleneck {why} Speed-up at most" in text
    assert "none found" not in text


def test_others_that_slow_the_step_are_named_where_no_loader_is_waited_for() -> None:
    others = Finding(code="cpu.neighbours", severity="info", title="Others", explanation="Long.")
    step = dataclasses.replace(others, code="consumer", title="The step")
    for findings in ((others, step), (others,)):  # else they slow a loader that doesn't matter
        found = Diagnosis(config=Config(), findings=findings, trials=("train.py:3",))
        run = dataclasses.replace(watched_run(loader("train.py:3", 0.01)), diagnosis=found)
        shown = drawn(script_report(run), 80)
        assert ("Others  cpu.neighbours" in shown) is (len(findings) > 1)


def test_each_figure_of_a_screen_says_what_it_is_of() -> None:
    """Of the whole script its seconds, of the loop a share of its own, and a bound of that."""
    finding = Finding(
        code="fetch.io", severity="high", title="Slow", explanation="Long.", fix=Fix(text="Less.")
    )
    found = Diagnosis(config=Config(), findings=(finding,), trials=("train.py:3",))
    run = dataclasses.replace(watched_run(loader("train.py:3", 0.75)), diagnosis=found)
    text = " ".join(drawn(script_report(run), 80).split())
    assert "train.py ran 2 min 5 s and waited 48 s of that for data" in text
    assert "The loop over train.py:3 spends 75% of its 1 min 40 s waiting for data" in text
    assert "Speed-up not known; at most 4.00x in this loop, without any wait for data" in text
    idle = dataclasses.replace(run, watched=(loader("train.py:3", 0.998),))  # no step to speak of
    text = " ".join(drawn(script_report(idle), 80).split())
    assert "Speed-up not known Certainty" in text


HEADROOM = Headroom(
    rounds=8,
    live_batches=80,
    replayed_batches=80,
    extra_steps=160,
    extra_s=25.0,
    period_s=0.02,
    step_s=0.0124,
    speedup=Estimate(value=1.61, low=1.58, high=1.64),
    waiting_fraction=Estimate(value=0.38, low=0.37, high=0.39),
    slowed_fraction=Estimate(value=0.0, low=-0.01, high=0.01),
)


def test_how_much_a_wait_may_bring_is_said_only_where_it_is_a_bound() -> None:
    """A main thread may wait for another that waits for data; headroom is a better bound."""
    found = Diagnosis(config=Config(), findings=(), trials=("train.py:3",))
    aside = loader("train.py:3", 0.38, background_s=30.0)
    given = loader("train.py:3", 0.38, headroom=HEADROOM)
    for each in (aside, given):
        run = dataclasses.replace(watched_run(each), diagnosis=found)
        text = drawn(script_report(run), 80)
        assert "none found that is worth fixing" in text
        assert "without any wait for data" not in text
        # A thread of its own fetches: what the main thread waits for that one isn't seen.
        assert ("for data" in text.partition("Data wait")[0]) is (each is given)


@pytest.mark.parametrize(
    ("wait", "said", "of"),
    [(0.3, "38", "time"), (0.38, "38", "1 min 40 s"), (0.45, "45", "1 min 40 s")],
)
def test_a_loop_that_waits_less_than_its_rounds_waits_as_they_do(
    wait: float, said: str, of: str
) -> None:
    report = script_report(watched_run(loader("train.py:3", wait, headroom=HEADROOM)))
    text = drawn(report, 80)
    # Seconds are its own only where the share is of them, and not of a batch in its rounds.
    whole = f"The loop over train.py:3 spends {said}% of its {of} waiting for data."
    assert whole in " ".join(text.split()).replace("Data wait ", "")
    assert f"  train.py:3  {said}% wait  " in text
    why = "waiting costs 38% of the time, without the pauses, which fill queues"
    assert why in " ".join(drawn(report, 80, verbose=True).split())


def test_batches_given_again_are_no_time_of_the_script() -> None:
    given = loader("train.py:3", 0.38, headroom=HEADROOM)
    assert own_s(125.0, [given, loader("train.py:4", 0.1)]) == 100.0
    assert own_s(125.0, [given] * 5) == 125.0  # in several threads, more than there is
    text = " ".join(drawn(script_report(watched_run(given)), 80).split())
    assert "ran 2 min 5 s, 25 s of that for --headroom, and waited 48 s of the rest" in text


TRIED = (
    TriedSetting(
        dataset="Images",
        at_s=4.5,
        setting="num_workers=6, prefetch_factor=2",
        why="43% of the time waits for data",
        speedup=Estimate(value=1.52, low=1.41, high=1.64),
        result="kept",
    ),
    TriedSetting(
        dataset="Images",
        at_s=9.0,
        setting="num_workers=12, prefetch_factor=2",
        why="12% of the time waits for data",
        result="not tried: it would take 1.2 GiB, above max_ram",
    ),
)


@pytest.mark.parametrize(
    ("speedup", "result", "said"),
    [
        (Estimate(value=3.0, low=0.4, high=22.0), "kept", "faster, too noisy for a figure"),
        (Estimate(value=3.0, low=1.4, high=6.4), "kept", "at least 1.40x"),
        (Estimate(value=1.1, low=0.5, high=2.4), "taken back", "too noisy"),
    ],
)
def test_what_is_kept_by_a_noisy_figure_is_said_to_be_faster(
    speedup: Estimate, result: str, said: str
) -> None:
    tried = dataclasses.replace(TRIED[0], speedup=speedup, result=result)
    assert _row(tried)[3] == said
    shown = drawn(script_report(watched_run(tried=(tried,))), 200, verbose=True)
    assert f"{result}, {said}" in shown or said == "too noisy"


@pytest.mark.parametrize(
    ("low", "result", "shown"),
    [(0.94, "kept", "kept: no slower"), (1.02, "kept", "kept"), (0.94, "taken back", "taken back")],
)
def test_what_is_kept_without_being_faster_says_so(low: float, result: str, shown: str) -> None:
    """As deeper queues, which take memory only where they fill."""
    speedup = Estimate(value=low + 0.03, low=low, high=low + 0.06)
    tried = dataclasses.replace(TRIED[0], speedup=speedup, result=result)
    assert _row(tried)[4] == shown
    page = drawn(script_report(watched_run(tried=(tried,))), 200, verbose=True)
    assert f"{tried.setting} {shown}, " in page


def test_what_loaders_tried_that_tune_themselves_is_in_the_report(tmp_path: Path) -> None:
    run_of = watched_run(loader("train.py:31", 0.1), tried=TRIED)
    with RunWriter.create(tmp_path / "run.dlprof.jsonl", run_of.header) as writer:
        writer.append(run_of.script)
    back = read_run(tmp_path / "run.dlprof.jsonl")
    assert back.script is not None
    assert back.script.tried == TRIED
    page = drawn(script_report(back), 200, verbose=True)
    kept, refused = (line.strip() for line in page.splitlines() if "Images, after" in line)
    assert kept.removeprefix("- ") == (
        "Images, after 4.5 s: num_workers=6, prefetch_factor=2 kept, 1.52x (95% CI 1.41-1.64); "
        "43% of the time waits for data"
    )
    assert "not tried: it would take 1.2 GiB" in refused
    assert "Tuning" not in drawn(script_report(watched_run()), 200, verbose=True)


@pytest.mark.parametrize("result", ["kept", "taken back"])
def test_a_loader_that_tuned_itself_had_its_own_settings_at_first(result: str) -> None:
    seen = loader("train.py:31", 0.1)
    tried = dataclasses.replace(TRIED[0], result=result)
    page = drawn(script_report(watched_run(seen, tried=(tried,))), 200)
    row = next(line for line in page.splitlines() if "10% wait" in line)
    assert ("at first" in row) is (result == "kept")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_screen_keeps_to_its_width(width: int, encoding: str) -> None:
    shown = watched_run(
        loader("train.py:31", 0.38, called_from="main.py:7", made=3, consumers=2, nested_s=1.0),
        loader("a" * 70 + ".py:12", 0.01, failures=1, failure="OSError"),
        WatchedLoader(name="other loaders"),
        rank=0,
        world_size=2,
        tried=TRIED,
        notes=("dlprof has a fault of its own: none, in fact.",),
    )
    text = drawn(script_report(shown), width, encoding, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    assert "38% wait" in text
    assert ("#" if encoding == "ascii" else "█") in text


def test_names_from_a_script_cannot_act_on_the_terminal() -> None:
    shown = watched_run(loader("\x1b[31mtrain.py\x07:3", 0.5))
    assert "\x1b" not in drawn(script_report(shown), 80)
    assert "\x07" not in drawn(script_report(shown), 80)


def test_a_thousand_loaders_are_not_all_shown() -> None:
    shown = watched_run(*(loader(f"train.py:{line}", 0.2) for line in range(60)))
    assert len(drawn(script_report(shown), 80).splitlines()) <= 16
    assert "10 loaders not shown." in drawn(script_report(shown), 80, verbose=True)
    notes = tuple(f"dlprof.tune: {n} changes tried" for n in range(60))
    tuned = drawn(script_report(watched_run(loader("train.py:1", 0.2), notes=notes)), 80)
    assert "0 changes tried" in tuned
    assert "59 more results, in the full report" in tuned
    assert len(tuned.splitlines()) <= 16


def test_the_document_holds_script_and_loaders() -> None:
    document = json.loads(script_document(watched_run(loader("train.py:31", 0.38))))
    conforms("run", document)
    assert document["script"]["exit_code"] == 3
    assert document["loaders"][0]["wait"]["p95_s"] == 0.024
    assert document["findings"] == []
    assert document["notes"] == []
    reported = Diagnosis(config=Config(), notes=("Why it is waited for isn't known: it refused.",))
    reported_run = dataclasses.replace(watched_run(loader("train.py:31", 0.38)), diagnosis=reported)
    assert json.loads(script_document(reported_run))["notes"] == list(reported.notes)
    page = render_as(reported_run, "markdown").decode()
    assert "isn't known: it refused." in page


def test_the_file_keeps_the_last_of_each_loader(tmp_path: Path) -> None:
    path = tmp_path / "run.dlprof.jsonl"
    run_of = watched_run()
    with RunWriter.create(path, run_of.header) as writer:
        writer.append(loader("a.py:1", 0.5))
        writer.append(loader("b.py:1", 0.1))
        writer.append(run_of.script)
        writer.append(loader("a.py:1", 0.2))
    back = read_run(path)
    assert [(each.name, each.wait_fraction) for each in back.watched] == [
        ("a.py:1", 0.2),
        ("b.py:1", 0.1),
    ]
    assert back.script == run_of.script
