"""Files whose position forked workers share: planted faults and sound datasets, really forked."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import python

from dlprof.integrations.first_batches import SharedFiles
from dlprof.integrations.loaders import config_of
from dlprof.store import read_run
from dlprof.targets.files import moved_by_workers, named, open_files

cases: Any = importlib.import_module("shared_files")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="workers are forked, and seen by /proc"
)

READ_IN_A_SCRIPT = (
    *("open, seek and read", "a text file", "a temporary file", "zipfile", "a part of it"),
    *("a file of the transform", "opened lazily, but before the fork"),
)
"""Faults that end soon whatever a worker reads in place of its own sample."""

SOUND_IN_A_SCRIPT = (
    *("opened in each worker", "opened again in each process", "opened again by worker_init_fn"),
    *("read by the sampler, in main", "pread", "mmap", "a log that is added to"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("shared_files")
    cases.write_all(found)
    return found


def loader_of(title: str, folder: Path) -> Any:
    try:
        return cases.loader_for({**cases.FAULTS, **cases.SOUND}[title], folder)
    except ImportError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def script_of(loader: Any) -> Iterator[SharedFiles]:
    """A loader as a script iterates it, some batches of which are looked at as ``run`` does."""
    shared = SharedFiles(config_of(loader))
    looking = shared.looking_at(loader)
    iterator = iter(loader)
    take = looking(lambda advance, iterator: advance(iterator))
    with contextlib.suppress(Exception):  # as a worker that reads another one's bytes may raise
        for _ in range(12):
            take(next, iterator)
    yield shared


@pytest.mark.parametrize("title", cases.FAULTS)
def test_what_several_workers_move_is_found_in_a_process_of_its_own(
    title: str, folder: Path
) -> None:
    loader = loader_of(title, folder)
    assert len(moved_by_workers(loader, open_files())) == 1


@pytest.mark.parametrize("title", cases.SOUND)
def test_sound_files_are_left_alone(title: str, folder: Path) -> None:
    loader = loader_of(title, folder)
    assert moved_by_workers(loader, open_files()) == ()


@pytest.mark.parametrize(
    "title",
    [
        READ_IN_A_SCRIPT[0],
        *(pytest.param(each, marks=pytest.mark.slow) for each in READ_IN_A_SCRIPT[1:]),
    ],
)
def test_what_several_workers_move_is_found_in_a_script(title: str, folder: Path) -> None:
    with script_of(loader_of(title, folder)) as shared:
        assert len(shared.found) == 1


@pytest.mark.parametrize("title", SOUND_IN_A_SCRIPT)
def test_sound_files_of_a_script_are_left_alone(title: str, folder: Path) -> None:
    with script_of(loader_of(title, folder)) as shared:
        assert shared.found == ()


def test_what_one_worker_moves_is_known_before_there_are_more(folder: Path) -> None:
    with script_of(loader_of("one worker", folder)) as shared:
        assert shared.found == ("file (samples.bin)",)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("open, seek and read", "file (samples.bin)"),
        ("zipfile", "file (zipfile.ZipFile of samples.zip)"),
        ("npz", "file (numpy.lib.npyio.NpzFile of samples.npz)"),
        ("gzip", "file (gzip.GzipFile of samples.gz)"),
        ("a file of the transform", "read.table (samples.bin)"),
        ("a part of it", "dataset.file (samples.bin)"),
        ("one of two files", "datasets[0].file (samples.bin)"),
    ],
)
def test_a_file_is_named_by_what_holds_it(title: str, name: str, folder: Path) -> None:
    loader = loader_of(title, folder)
    files = [each for each in open_files() if each.path.startswith(str(folder))]
    assert name in named(files, loader)


def test_what_no_python_object_holds_is_named_by_its_path(folder: Path) -> None:
    loader = loader_of("a descriptor", folder)
    (file,) = (each for each in open_files() if each.descriptor == loader.dataset.file)
    assert named([file], loader) == (f"the open file {folder}/samples.bin",)


TARGET = """
import itertools
import pathlib
import sys
import torch
from torch.utils.data import DataLoader, Dataset

PATH = pathlib.Path(__file__).with_name("samples.bin")

class Samples(Dataset):
    def __init__(self, lazily=False):
        if not PATH.exists():
            PATH.write_bytes(b"".join(bytes([number]) * 4096 for number in range(256)))
        self.file = None if lazily else PATH.open("rb")

    def __len__(self):
        return 256

    def __getitem__(self, index):
        if self.file is None:
            self.file = PATH.open("rb")
        self.file.seek(index * 4096)
        return torch.frombuffer(bytearray(self.file.read(4096)), dtype=torch.uint8)

def shared():
    return DataLoader(Samples(), batch_size=4, num_workers=2)

def alone():
    return DataLoader(Samples(), batch_size=4)

def lazily():
    return DataLoader(Samples(lazily=True), batch_size=4, num_workers=2)

class Sent(Samples):
    def __len__(self):
        return 100_000  # the workers of an epoch are started once in a trial

    def __getitem__(self, index):
        return super().__getitem__(index % 256)

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        self.file = PATH.open("rb")

def sent():
    return DataLoader(Sent(), batch_size=4, num_workers=2, multiprocessing_context="spawn")

if __name__ == "__main__":
    if sys.argv[1:] == ["one"]:
        loaders = [DataLoader(Samples(), batch_size=4, num_workers=1)]
    else:
        loaders = [shared(), lazily()]
    for batch in itertools.chain(*loaders):
        pass
"""


def dlprof(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "target.py").write_text(TARGET)
    return python(folder, "-m", "dlprof", *words, timeout_s=500)


@pytest.mark.slow
def test_a_profile_says_it_in_place_of_a_rate(tmp_path: Path) -> None:
    done = dlprof(tmp_path, "profile", "target.py:shared", "--json", "-o", "run.jsonl")
    found = json.loads(done.stdout)
    (first,) = found["findings"]
    assert (first["code"], first["severity"]) == ("data.shared_file", "high")
    assert first["title"] == "Workers share an open file: file (samples.bin)"
    assert first["evidence"]["files"] == ["file (samples.bin)"]
    assert "self.file = open" in first["fix"]["code"]
    assert found["trials"][0]["outcome"] == "skipped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "outcome"),
    [("fork", "skipped"), ("spawn", "completed")],
)
def test_workers_share_a_file_where_a_setting_forks_them(
    method: str, outcome: str, tmp_path: Path
) -> None:
    words = ("--num-workers", "2", "--start-method", method, "--budget", "60s", "--json")
    done = dlprof(tmp_path, "profile", "target.py:sent", *words, "-o", "run.jsonl")
    found = json.loads(done.stdout)
    assert found["trials"][0]["outcome"] == outcome
    shared = [each["severity"] for each in found["findings"] if "shared" in each["code"]]
    assert shared == (["high"] if method == "fork" else [])


@pytest.mark.slow
def test_a_profile_without_workers_has_a_rate_and_promises_nothing_of_more(tmp_path: Path) -> None:
    done = dlprof(tmp_path, "profile", "target.py:alone", "--json", "-o", "run.jsonl")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    codes = [each["code"] for each in found["findings"]]
    assert codes[0] != "data.shared_file"
    assert "data.shared_file" in codes
    assert all(trial["config"]["num_workers"] < 2 for trial in found["trials"])
    assert not any(
        "num_workers" in (each["fix"] or {}).get("dataloader_kwargs", {})
        for each in found["findings"]
    )


@pytest.mark.slow
def test_a_sweep_measures_and_recommends_none_of_it(tmp_path: Path) -> None:
    words = ("--num-workers", "0,1,2,3", "--budget", "20s", "-o", "run.jsonl")
    done = dlprof(tmp_path, "sweep", "target.py:shared", *words)
    run = read_run(tmp_path / "run.jsonl")
    failures = {trial.config.num_workers: trial.failure for trial in run.trials}
    assert {workers for workers, failure in failures.items() if failure is None} == {0, 1}
    assert {each.kind for each in failures.values() if each is not None} == {"shared_file"}
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2
    assert run.recommendation.findings[0].code == "data.shared_file"
    assert "move one read position of file (samples.bin)" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_file_that_each_worker_opens_is_swept_as_ever(tmp_path: Path) -> None:
    words = ("--num-workers", "0,2", "--budget", "20s", "-o", "run.jsonl")
    dlprof(tmp_path, "sweep", "target.py:lazily", *words)
    run = read_run(tmp_path / "run.jsonl")
    assert {trial.outcome for trial in run.trials} == {"completed"}
    assert not run.header.target.shared_files


@pytest.mark.slow
def test_a_script_names_the_loader_that_shares(tmp_path: Path) -> None:
    done = dlprof(tmp_path, "run", "-o", "run.jsonl", "--json", "run.json", "target.py")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    shared, lazily = found["loaders"]
    assert shared["shared_files"] == ["file (samples.bin)"]
    assert lazily["shared_files"] == []
    said = "is wrong: Workers share an open file: file (samples.bin)"
    assert said in " ".join(done.stderr.split())
    codes = [each["code"] for each in found["findings"]]
    assert codes[0] == "data.shared_file"
    assert codes.count("data.shared_file") == 1


@pytest.mark.slow
def test_a_script_of_one_worker_is_right_and_advised_no_more(tmp_path: Path) -> None:
    words = ("run", "-o", "run.jsonl", "--json", "run.json", "target.py", "one")
    done = dlprof(tmp_path, *words)
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["loaders"][0]["shared_files"] == ["file (samples.bin)"]
    assert "is wrong" not in done.stderr
    asked = [(each["fix"] or {}).get("dataloader_kwargs", {}) for each in found["findings"]]
    assert all(each.get("num_workers", 0) <= 1 for each in asked)  # none is advised at rest


SOUND_SCRIPT = """
import sys
import threading
import time
from target import *
from torch.utils.data import get_worker_info

class Plain(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4)

class OneEach(Samples):
    def __init__(self):
        self.files = [PATH.open("rb") for _ in range(2)]

    def __getitem__(self, index):
        self.file = self.files[get_worker_info().id]
        return super().__getitem__(index)

def zipped():
    for _ in zip(DataLoader(Plain(), 4, num_workers=2), DataLoader(Samples(), 4, num_workers=1)):
        pass

def threaded():
    over = threading.Event()
    def read(file):
        while not over.is_set():
            file.seek(0)
            file.read(100_000)
    thread = threading.Thread(target=read, args=[PATH.open("rb")])
    thread.start()
    for _ in DataLoader(Plain(), 4, num_workers=2):
        pass
    over.set()
    thread.join()

def one_each():
    for _ in DataLoader(OneEach(), 4, num_workers=2):
        pass

Samples()
globals()[sys.argv[1]]()
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["zipped", "threaded", "one_each"])
def test_a_script_whose_workers_share_nothing_is_not_blamed(case: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SOUND_SCRIPT)
    words = ("run", "-o", "run.jsonl", "--json", "run.json", "script.py", case)
    assert dlprof(tmp_path, *words).returncode == 0
    found = json.loads((tmp_path / "run.json").read_text())
    several = [each for each in found["loaders"] if each["config"]["num_workers"] > 1]
    assert [each["shared_files"] for each in several] == [[]]
    costs = [each["cost"] for each in found["findings"] if each["code"] == "data.shared_file"]
    assert not any(costs)


STREAM = """
import os
import pathlib
import torch
from torch.utils.data import DataLoader, IterableDataset

PATH = pathlib.Path(__file__).with_name("lines.txt")

class Lines(IterableDataset):
    def __init__(self):
        PATH.write_text("".join(f"{number}\\n" for number in range(200_000)))
        self.file = PATH.open()

    def __iter__(self):
        position = os.lseek(self.file.fileno(), 0, os.SEEK_CUR)
        with PATH.with_name("begun.txt").open("a") as log:
            log.write(f"{os.getpid()} {position}\\n")
        for line in self.file:
            yield torch.full((4,), float(line))

def make_loader():
    return DataLoader(Lines(), batch_size=4)
"""


@pytest.mark.slow
def test_a_trial_moves_no_file_of_the_trials_after_it(tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(STREAM)
    words = ("--num-workers", "0", "--repeats", "3", "--trial-time", "0.5s", "--budget", "20s")
    dlprof(tmp_path, "sweep", "stream.py:make_loader", *words, "-o", "run.jsonl")
    begun: dict[str, str] = {}
    for line in (tmp_path / "begun.txt").read_text().splitlines():
        process, position = line.split()
        begun.setdefault(process, position)
    assert len(begun) >= 4  # the probe's and the trials'
    assert set(begun.values()) == {"0"}
