"""Real ``webdataset.WebLoader``: measured as the loaders that they are, exact in their samples."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from programs import python

from dlprof.records import Run
from dlprof.store import read_run

pytest.importorskip("webdataset")
pytestmark = pytest.mark.slow

SHARDS, SAMPLES, BATCH = 4, 48, 16
TARGET = f"""
import time
import torch
import webdataset as wds

def decode(data):
    time.sleep(0.001)
    return torch.tensor([int(data)])

def pipeline():
    shards = "shards/{{000..00{SHARDS - 1}}}.tar"
    return wds.WebDataset(shards, shardshuffle=False).to_tuple("txt").map_tuple(decode)

def make_loader():
    return wds.WebLoader(pipeline().batched({BATCH}), batch_size=None, num_workers=2)

def make_rebatched():
    return make_loader().unbatched().shuffle(20).batched({2 * BATCH})

def make_epochs():
    return make_rebatched().with_epoch(3)

def make_batched_dataset():
    return pipeline().batched({BATCH})

def make_by_settings(num_workers=2):
    return wds.WebLoader(pipeline().batched({BATCH}), batch_size=None, num_workers=num_workers)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the targets and their shards."""
    (tmp_path / "target.py").write_text(TARGET)
    (tmp_path / "shards").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(tmp_path / "shards" / f"{shard:03}.tar", "w") as tar:
            for index in range(SAMPLES):
                member, data = (
                    tarfile.TarInfo(f"{shard}-{index:04}.txt"),
                    str(SAMPLES * shard + index).encode(),
                )
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return tmp_path


def dlprof(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = ("-m", "dlprof", *arguments, "-o", "run.jsonl")
    return python(place, *words, DLPROF_CACHE_DIR=str(place / "cache"))


def swept(place: Path, target: str, *arguments: str) -> Run:
    short = ("--repeats", "1", "--trial-time", "0.3s", "--budget", "120s")
    done = dlprof(place, "sweep", target, *arguments, *short)
    assert done.returncode == 0, done.stderr
    return read_run(place / "run.jsonl")


@pytest.mark.parametrize(
    ("function", "batch"),
    [
        ("make_loader", BATCH),
        ("make_rebatched", 2 * BATCH),
        ("make_epochs", 2 * BATCH),
        ("make_batched_dataset", BATCH),
    ],
)
def test_a_web_loader_is_swept_as_a_loader(place: Path, function: str, batch: int) -> None:
    axes = ("--num-workers", "0,2", "--prefetch-factor", "2", "--persistent-workers", "off")
    run = swept(place, f"target.py:{function}", *axes)
    assert [(t.config.num_workers, t.outcome) for t in sorted(run.trials, key=_workers)] == [
        (0, "completed"),
        (2, "completed"),
    ]
    # Every batch is full: the epochs' lengths are multiples of it.
    assert {trial.samples_per_batch for trial in run.trials} == {batch}
    assert run.header.target.dataset.endswith("WebDataset")
    own = run.header.target.own_config
    asked = None if function == "make_batched_dataset" else (2, 2)  # a dataset has no settings
    assert (own and (own.num_workers, own.prefetch_factor)) == asked


def _workers(trial: object) -> int:
    return int(getattr(trial, "config").num_workers)  # noqa: B009 - any record of a trial


def test_a_settings_function_is_not_tried_with_what_it_does_not_take(place: Path) -> None:
    run = swept(place, "target.py:make_by_settings", "--max-workers", "2")
    assert {trial.outcome for trial in run.trials} == {"completed"}
    assert {trial.config.key for trial in run.trials} == {"w0", "w1-p2", "w2-p2"}
    left_out = {each.setting: each.reason for each in run.header.left_out}
    assert left_out["prefetch_factor"] == "make_by_settings() takes no prefetch_factor"
    assert left_out["persistent_workers"] == "make_by_settings() takes no persistent_workers"


def test_what_it_does_not_take_is_refused_where_it_is_asked_for(place: Path) -> None:
    done = dlprof(place, "profile", "target.py:make_by_settings", "--prefetch-factor", "4")
    assert done.returncode == 2
    assert "make_by_settings() takes no prefetch_factor" in done.stderr


def test_a_profile_follows_the_batches_of_a_web_loader(place: Path) -> None:
    done = dlprof(
        place, "profile", "target.py:make_loader", "--budget", "60s", "--trial-time", "0.3s"
    )
    assert done.returncode == 0, done.stderr
    run = read_run(place / "run.jsonl")
    own = next(each for each in run.explanations if each.config.num_workers == 2)
    fetch = own.stage("fetch")
    assert own.hooked
    assert fetch is not None
    assert fetch.mean_s >= BATCH * 0.001


def test_a_profile_of_other_batches_than_the_inner_ones_says_so(place: Path) -> None:
    done = dlprof(
        place, "profile", "target.py:make_rebatched", "--budget", "60s", "--trial-time", "0.3s"
    )
    assert done.returncode == 0, done.stderr
    run = read_run(place / "run.jsonl")
    assert not any(each.hooked for each in run.explanations)
    assert "makes other batches" in run.explanations[0].unavailable["hooks"]
