"""``dlprof run`` over a script with loaders of many kinds, on the torch that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from golden import drawn
from programs import python
from schemas import conforms, run_file_conforms

from dlprof.records import Run, WatchedLoader
from dlprof.report.export.formats import run_report
from dlprof.store import read_run

ZOO = Path(__file__).with_name("zoo_script.py")
DLPROF = ["-m", "dlprof", "run"]


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return python(folder, *words, timeout_s=300, PYTHONWARNINGS="ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("zoo")
    shutil.copy(ZOO, made / "train.py")
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> subprocess.CompletedProcess[str]:
    return ran(["train.py", "fail"], folder)


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.slow) for each in ("--follow", "--no-follow")],
)
def watched(
    request: pytest.FixtureRequest, folder: Path
) -> tuple[subprocess.CompletedProcess[str], Run]:
    files = ["--force", "-o", "zoo.dlprof.jsonl", "--json", "zoo.json"]
    done = ran([*DLPROF, request.param, *files, "train.py", "fail"], folder)
    return done, read_run(folder / "zoo.dlprof.jsonl")


@pytest.mark.slow
def test_the_script_does_what_it_does_alone(
    plain: subprocess.CompletedProcess[str], watched: tuple[subprocess.CompletedProcess[str], Run]
) -> None:
    done, _ = watched
    assert plain.stdout.count("\n") == 11
    assert done.stdout == plain.stdout
    assert done.returncode == plain.returncode == 1
    traceback = plain.stderr[plain.stderr.index("Traceback") :]
    assert traceback in done.stderr


def test_every_loader_is_distinguished(
    watched: tuple[subprocess.CompletedProcess[str], Run],
) -> None:
    _, run = watched
    lines = {
        text.strip().split("(")[1].split('"')[1]: number
        for number, text in enumerate(ZOO.read_text().splitlines(), 1)
        if text.strip().startswith("show(")
    }
    seen = {each.called_from: each for each in run.watched}
    seen |= {each.place: each for each in run.watched}

    def of(name: str) -> WatchedLoader:
        return seen[f"train.py:{lines[name]}"]

    assert (of("plain").batches, of("plain").epochs) == (10, 1)
    assert of("plain").sampler == "RandomSampler"
    assert (of("spawned").batches, of("stream").batches, of("shard").batches) == (2, 12, 5)
    spawned = of("spawned").config
    assert spawned is not None
    assert spawned.start_method == "spawn"
    assert of("shard").kind.endswith("DataLoaderShard")
    (workers,) = [each for each in run.watched if each.epochs == 3 and each.batches == 30]
    assert workers.config is not None
    assert workers.config.persistent_workers
    (half,) = [each for each in run.watched if each.batches == 3]
    assert (half.epochs, half.epochs_completed) == (1, 0)
    hundred = [each for each in run.watched if each.dataset == "list"]
    assert sum(each.made for each in hundred) == 100
    assert len(hundred) <= 4
    (threaded,) = [each for each in run.watched if each.background_s > 0]
    assert threaded.batches == 4
    assert len(run.watched) <= 14


def test_the_report_and_the_document_show_it(
    watched: tuple[subprocess.CompletedProcess[str], Run], folder: Path
) -> None:
    done, run = watched
    assert run.script is not None
    assert (run.script.ending, run.script.exit_code) == ("exception", 1)
    assert run.script.notes == ()
    assert 0 < run.script.waited_s < run.script.wall_s
    said = " ".join(done.stderr.split())
    assert "ended by an exception with exit code 1" in said
    assert "waiting for data" in said
    document = json.loads((folder / "zoo.json").read_text())
    assert len(document["loaders"]) == len(run.watched)


def test_following_explains_and_not_following_does_not(
    watched: tuple[subprocess.CompletedProcess[str], Run], request: pytest.FixtureRequest
) -> None:
    _, run = watched
    explained = {each.trial_id for each in run.explanations}
    if "no-follow" in request.node.callspec.id:
        assert not explained
        assert run.diagnosis is not None
        assert run.diagnosis.findings == ()
        assert "not traced (leave out --no-follow)" in run.diagnosis.notes[0]
    else:
        assert explained <= {each.name for each in run.watched}
        assert len(explained) >= 5
        assert all(each.hooked for each in run.explanations)


SLOW = """
import time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 480
    def __getitem__(self, index):
        time.sleep(0.008)
        return index
if __name__ == "__main__":
    for batch in DataLoader(Slow(), batch_size=8, num_workers=1): time.sleep(0.001)
"""


def test_a_script_that_waits_is_shown_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "--json", "run.json", "train.py"], tmp_path)
    assert done.returncode == 0
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.diagnosis is not None
    assert "train.py:10" in run.diagnosis.notes[0]
    assert {"fetch.io", "too_few_workers"} & {each.code for each in run.diagnosis.findings}
    said = " ".join(done.stderr.split())
    assert "The loop over train.py:10 spends" in said
    assert f"Bottleneck {run.diagnosis.findings[0].title}" in said
    run_file_conforms(tmp_path / "run.dlprof.jsonl")
    document = json.loads((tmp_path / "run.json").read_text())
    conforms("run", document)
    assert document["findings"][0]["code"] == run.diagnosis.findings[0].code


BESIDE = """
import threading, time
from torch.utils.data import DataLoader, Dataset
class Beside(Dataset):
    thread = None
    def __len__(self): return 300 if KIND == "computes" else 1600
    def __getitem__(self, index):
        if self.thread is None and KIND == "computes":
            self.thread = threading.Thread(target=self.compute, daemon=True)
            self.thread.start()
        for _ in range(4): time.sleep(0.0005)
        return index
    def compute(self):
        while True: sum(range(1000))
if __name__ == "__main__":
    for batch in DataLoader(Beside(), batch_size=4, num_workers=1): pass
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="system calls aren't shown")
@pytest.mark.parametrize("kind", ["computes", "sleeps"])
def test_a_wait_for_the_gil_is_not_one_for_storage(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BESIDE.replace("KIND", repr(kind)))
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run.dlprof.jsonl")
    (explanation,) = run.explanations
    fetch = explanation.stage("fetch")
    assert fetch is not None
    assert fetch.gil_s is not None
    assert fetch.io_s is not None
    assert (fetch.gil_s > fetch.io_s / 2) is (kind == "computes")
    assert run.diagnosis is not None
    codes = {each.code for each in run.diagnosis.findings}
    if "cpu.neighbours" not in codes:  # whose part of the wait looks like the thread's
        assert ("lock" in codes) is (kind == "computes")


FASTAI = """
import itertools, time
import torch
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

class Fake:
    # As fastai's: it hands itself to torch's iterator, as its own dataset, and is no DataLoader.
    _IterableDataset_len_called, _auto_collation, drop_last = None, False, False
    _dataset_kind, generator, prefetch_factor, in_order = _DatasetKind.Iterable, None, 2, True
    pin_memory, pin_memory_device, timeout, persistent_workers = False, "", 0, False
    multiprocessing_context = worker_init_fn = None
    _index_sampler = itertools.count()
    def __init__(self, num_workers): self.dataset, self.num_workers = self, num_workers
    def collate_fn(self, batch): return batch
    def __iter__(self):
        for _ in range(60):
            time.sleep(0.02)
            yield torch.zeros(8, 4)

class Loader:
    def __init__(self): self.fake = Fake(1)
    def __iter__(self): return iter(_MultiProcessingDataLoaderIter(self.fake))

if __name__ == "__main__":
    for batch in Loader(): pass
"""


@pytest.mark.slow
def test_a_loader_that_is_no_dataloader_shows_why_it_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FASTAI)
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run.dlprof.jsonl")
    (loader,) = run.watched
    assert loader.config is not None
    assert (loader.batches, loader.config.num_workers, loader.config.batch_size) == (60, 1, None)
    assert run.diagnosis is not None
    assert {"fetch.io", "too_few_workers"} & {each.code for each in run.diagnosis.findings}


UNSAID = """
import time
from torch.utils.data import DataLoader, Dataset
class Own(DataLoader):
    def __setattr__(self, name, value):
        if name == "worker_init_fn" and name in vars(self): raise TypeError("it is frozen")
        super().__setattr__(name, value)
class Slow(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        time.sleep(0.05)
        return index
if __name__ == "__main__":
    for kind in (Own, DataLoader):
        for batch in kind(Slow(), batch_size=4, num_workers=1): pass
"""


@pytest.mark.slow
def test_a_wait_of_unknown_cause_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSAID)
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "train.py"], tmp_path)
    assert done.returncode == 0
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.diagnosis is not None
    assert run.diagnosis.findings == ()
    notes = " ".join(run.diagnosis.notes)
    assert "Own refused the hooks (it is frozen), so only the wait in next() is timed." in notes
    assert "batches could be traced, and 10 are needed" in notes
    assert "Not known why" in done.stderr


VALIDATED = """
import time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds
    def __len__(self): return self.length
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index
if __name__ == "__main__":
    training = DataLoader(Slow(40, 0.0), batch_size=4)
    validation = DataLoader(Slow(8, 0.06), batch_size=4, num_workers=1)
    for epoch in range(5):
        for batch in training: time.sleep(0.02)
        for batch in validation: pass
"""


@pytest.mark.slow
def test_a_validation_of_two_batches_that_is_waited_for_is_diagnosed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(VALIDATED)
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "train.py"], tmp_path)
    assert done.returncode == 0
    run = read_run(tmp_path / "run.dlprof.jsonl")
    slow = next(each for each in run.watched if each.batches == 10)
    assert f"The loop over {slow.name}" in done.stderr
    assert run.diagnosis is not None
    # All of its ten are looked at, not the seven behind those by which queues fill.
    assert run.diagnosis.findings
    assert slow.name in run.diagnosis.trials


ABRUPT = """
import os, sys, signal, time, torch
from torch.utils.data import DataLoader
end = sys.argv[1]
loader = DataLoader(range(100000), num_workers=1)
began = time.monotonic()
for batch in loader:
    if time.monotonic() - began > 2.5:
        os._exit(9) if end == "exit" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param("exit", marks=pytest.mark.slow), "kill"])
def test_an_abrupt_end_leaves_what_was_seen(end: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ABRUPT)
    (tmp_path / "report.json").write_text("of an earlier run")
    words = ["--json", "report.json", "-o", "run.dlprof.jsonl", "train.py", end]
    done = ran([*DLPROF, *words], tmp_path)
    run = read_run(tmp_path / "run.dlprof.jsonl")
    screen = drawn(run_report(run), width=100)
    (seen,) = run.watched
    assert seen.batches > 10
    assert run.script is not None
    if end == "exit":
        assert done.returncode == 9
        assert (run.script.ending, run.script.exit_code) == ("os._exit", 9)
        assert "train.py:5" in done.stderr
        assert json.loads((tmp_path / "report.json").read_text())["script"]["exit_code"] == 9
        assert "cut off" not in screen
    else:
        assert done.returncode == -9
        assert (run.script.ending, run.script.exit_code) == ("running", None)
        assert run.end is None
        assert not (tmp_path / "report.json").exists()
        assert "cut off" in screen
