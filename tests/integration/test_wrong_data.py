"""Loaders whose data is wrong, or feeds some workers only, swept through the command line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from programs import python

from dlprof.advise.wrong_data import data_findings
from dlprof.errors import ExitCode
from dlprof.records import Run
from dlprof.store import read_run

pytestmark = pytest.mark.slow


LOADERS = """
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Doubled(IterableDataset):
    def __iter__(self):
        for number in range(1600):
            time.sleep(0.001)
            yield torch.full((8,), float(number))


class Shuffled(IterableDataset):
    # Each worker yields all of it, in an order of its own, in epochs that don't end.
    def __iter__(self):
        order = torch.Generator().manual_seed(torch.initial_seed())
        for number in torch.randperm(1_000_000, generator=order).tolist():
            time.sleep(0.001)
            yield torch.full((8,), float(number))


class Unsized(IterableDataset):
    # Each worker yields all of it, no two samples alike.
    def __iter__(self):
        for number in range(320):
            time.sleep(0.001)
            yield torch.full((8,), float(number)) + torch.rand(8)


class Augmented(Unsized):
    def __len__(self):
        return 320


class Lying(IterableDataset):
    def __len__(self):
        return 5000

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, 320, step):
            yield torch.full((8,), float(number))


class Sharded(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for shard in range(first, 2, step):
            for number in range(800):
                time.sleep(0.001)
                yield torch.full((8,), float(1000 * shard + number))


class Brief(Sharded):
    # Epochs that end several times in a window.
    def __init__(self, shards=8, samples=64):
        self.shards, self.samples = shards, samples

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for shard in range(first, self.shards, step):
            for number in range(self.samples):
                time.sleep(0.0005)
                yield torch.full((8,), float(1000 * shard + number))


def doubled():
    return DataLoader(Doubled(), batch_size=16, num_workers=2)


def shuffled():
    return DataLoader(Shuffled(), batch_size=16, num_workers=2)


def augmented():
    return DataLoader(Augmented(), batch_size=16, num_workers=2)


def unsized():
    return DataLoader(Unsized(), batch_size=16, num_workers=2)


def briefly():
    return DataLoader(Brief(), batch_size=16)


def single_batches():
    return DataLoader(Brief(shards=3, samples=16), batch_size=16)


def unfed():
    return DataLoader(Sharded(), batch_size=16)


def lying():
    return DataLoader(Lying(), batch_size=32, num_workers=2)


def idle():
    return DataLoader(Sharded(), batch_size=16, num_workers=6)
"""

WEBDATASET = """
import time

import torch
import webdataset as wds
from torch.utils.data import DataLoader


def decode(text):
    time.sleep(0.001)
    return torch.zeros(8)


def few():
    shards = wds.WebDataset("shard-{000000..000001}.tar", shardshuffle=False)
    samples = shards.to_tuple("txt").map_tuple(decode).batched(16)
    return DataLoader(samples, batch_size=None, num_workers=4)
"""


def dlprof(place: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    done = python(place, "-m", "dlprof", *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def swept(place: Path, target: str, *arguments: str) -> tuple[Run, str]:
    options = ("--search", "model", "--budget", "60s", "--trial-time", "0.3s")
    output, _ = dlprof(place, "sweep", target, *options, *arguments, "-o", "run.dlprof.jsonl")
    return read_run(place / "run.dlprof.jsonl"), output


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "loaders.py").write_text(LOADERS)
    return tmp_path


def test_an_iterable_that_every_worker_gives_whole_is_loaded_by_one_at_most(place: Path) -> None:
    run, output = swept(place, "loaders.py:doubled")
    assert output.lstrip().startswith("Your settings (num_workers=2) are wrong: workers yield")
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2
    assert run.recommendation.findings[0].code == "data.duplicated"
    tried = [trial for trial in run.trials if trial.config.num_workers > 1]
    assert [trial.failure.kind for trial in tried if trial.failure] == ["duplicated"]
    asked = ("recommend", "run.dlprof.jsonl", "--cores", "16")
    assert "are wrong" in dlprof(place, *asked)[0].splitlines()[0]
    advice = json.loads(dlprof(place, *asked, "--json")[0])
    assert advice["config"]["num_workers"] < 2
    _, errors = dlprof(
        place, "predict", "run.dlprof.jsonl", "--num-workers", "4", code=ExitCode.NOTHING_MEASURED
    )
    assert "data is wrong" in errors


def test_workers_that_give_more_than_is_promised_duplicate_however_augmented(place: Path) -> None:
    run, output = swept(place, "loaders.py:augmented")
    assert output.lstrip().startswith("Your settings (num_workers=2) are wrong: workers yield")
    assert "An epoch gave 40 batches where __len__ promises 20." in " ".join(output.split())
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2


def test_epochs_that_grow_with_their_workers_are_wrong_without_a_promise_too(place: Path) -> None:
    run, output = swept(place, "loaders.py:unsized")
    assert output.lstrip().startswith(
        "Your settings (num_workers=2) may be wrong: an epoch has 640"
    )
    assert "Workers may yield the same samples" in output
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers < 2


def test_workers_that_never_ask_which_samples_are_theirs_are_reported(place: Path) -> None:
    run, output = swept(place, "loaders.py:shuffled")
    assert output.lstrip().startswith(
        "Workers may yield the same samples. The iterable dataset never asks"
    )
    assert run.recommendation is not None
    assert run.recommendation.findings[0].code == "data.unshared"


def test_a_length_that_lies_ends_the_sweep_with_one_sentence(place: Path) -> None:
    options = ("--budget", "60s", "--trial-time", "0.3s", "-o", "run.dlprof.jsonl")
    output, errors = dlprof(
        place, "sweep", "loaders.py:lying", *options, code=ExitCode.NOTHING_MEASURED
    )
    assert not output
    assert "No settings give the right data" in errors
    run = read_run(place / "run.dlprof.jsonl")
    assert {trial.failure.kind for trial in run.trials if trial.failure} == {"truncated"}
    assert len(run.trials) == 3


def test_workers_that_get_no_shard_are_not_recommended_nor_tried(place: Path) -> None:
    run, output = swept(place, "loaders.py:idle")
    assert output.lstrip().startswith("4 of 6 workers get no data. num_workers=2 does as well")
    assert {trial.config.num_workers for trial in run.trials} <= {0, 1, 2, 6}
    assert run.recommendation is not None
    assert run.recommendation.findings[0].code == "workers.unfed"


def test_workers_without_a_shard_show_in_any_trial_of_several(place: Path) -> None:
    run, output = swept(place, "loaders.py:unfed", "--search", "grid", "--num-workers", "0,5")
    assert {t.fed_workers for t in run.trials if t.config.num_workers == 5} == {2}
    assert output.lstrip().startswith("3 of 5 workers get no data. num_workers=2 does as well")


@pytest.mark.parametrize(("target", "fed"), [("briefly", 5), ("single_batches", 3)])
def test_workers_are_counted_in_short_epochs_too(place: Path, target: str, fed: int) -> None:
    # On a busy machine 60 s may pass before workers are tried.
    options = ("--search", "grid", "--num-workers", "0,5", "--repeats", "1", "--budget", "10m")
    run, _ = swept(place, f"loaders.py:{target}", *options)
    assert {t.fed_workers for t in run.trials if t.config.num_workers == 5} == {fed}
    # Said first only where so many workers are the fastest, as on a quiet machine.
    assert [each.code for each in data_findings(run)] == ["workers.unfed"] * (fed < 5)


def test_webdataset_with_fewer_shards_than_workers(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    (tmp_path / "loaders.py").write_text(WEBDATASET)
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard:06}.tar", "w") as file:
            for number in range(200):
                text = f"{shard} {number}".encode()
                member = tarfile.TarInfo(f"{shard}-{number:05}.txt")
                member.size = len(text)
                file.addfile(member, io.BytesIO(text))
    run, output = swept(tmp_path, "loaders.py:few")
    assert output.lstrip().startswith(
        "Your settings (num_workers=4) fail: ValueError in a worker process"
    )
    failed = [trial.config.num_workers for trial in run.trials if trial.failure is not None]
    assert failed[0] == 4
    assert max(failed) == 4
    assert failed.count(4) == 1
    assert run.recommendation is not None
    assert run.recommendation.config.num_workers <= 2
