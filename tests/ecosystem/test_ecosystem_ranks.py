"""Two ranks of real packages under torchrun: one without data, and rank 0 that loads for both."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

UNFED = """
import io, tarfile
import torch.distributed as dist
import webdataset as wds

if __name__ == "__main__":
    dist.init_process_group("gloo")
    path = f"shard-{dist.get_rank()}.tar"
    with tarfile.open(path, "w") as tar:
        for key in range(512):
            content = str(key).encode()
            info = tarfile.TarInfo(f"{key:05d}.txt")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    shards = ["shard-0.tar"] + ["shard-1.tar"] * SPARE
    dist.barrier()
    data = wds.WebDataset(
        shards, shardshuffle=False, nodesplitter=wds.split_by_node, empty_check=False
    )
    data = data.decode().to_tuple("txt").batched(8)
    for batch in wds.WebLoader(data, batch_size=None, num_workers=1):
        pass
    dist.barrier()
    dist.destroy_process_group()
"""

DISPATCHED = """
import time
import accelerate, datasets, torch

def rows(shards):
    for shard in shards:
        for number in range(160):
            time.sleep(0.004)
            yield {"x": [float(number)] * 8}

if __name__ == "__main__":
    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(4))})
    config = accelerate.DataLoaderConfiguration(dispatch_batches=DISPATCH)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(
        torch.utils.data.DataLoader(data.with_format("torch"), batch_size=8, num_workers=1)
    )
    for batch in loader:
        time.sleep(0.005)
"""

TRAINED = """
import time
import datasets, torch, transformers

def rows(shards):
    for shard in shards:
        for number in range(160):
            time.sleep(0.004)
            yield {"x": [float(number)] * 8, "labels": number % 2}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}

if __name__ == "__main__":
    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(4))})
    own = {"output_dir": "out", "max_steps": 20, "dataloader_num_workers": 1, "use_cpu": True}
    own |= {"report_to": [], "save_strategy": "no", "disable_tqdm": True}
    args = transformers.TrainingArguments(**own)
    FIX
    transformers.Trainer(Model(), args, train_dataset=data.with_format("torch")).train()
"""

SPLIT = """
import time
import datasets, torch
import torch.distributed as dist
from datasets.distributed import split_dataset_by_node

def rows(shards):
    for shard in shards:
        for number in range(160):
            yield {"x": [float(number)] * 8}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0]})
    data = split_dataset_by_node(data, rank=dist.get_rank(), world_size=2).with_format("torch")
    for batch in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        pass
    dist.barrier()
    dist.destroy_process_group()
"""


def shown(folder: Path, script: str) -> dict[str, Any]:
    """What rank 0 says of a script that two ranks run."""
    (folder / "train.py").write_text(script)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "PYTHONWARNINGS": "ignore"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["-m", "dlprof", "run", "-q", "--json", "said.json", "-o", "a.dlprof.jsonl", "train.py"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", "--no-python", sys.executable, *words],
        cwd=folder,
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    document: dict[str, Any] = json.loads((folder / "said.rank0.json").read_text())
    return document


def unfed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in document["findings"] if each["code"] == "workers.unfed"]


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; .ci/ecosystem installs it")


@pytest.mark.parametrize("spare", [0, 1])
def test_a_rank_without_a_shard_is_named(spare: int, tmp_path: Path) -> None:
    needs("webdataset")
    found = unfed(shown(tmp_path, UNFED.replace("SPARE", str(spare))))
    if spare:
        assert not found
        return
    assert found[0]["title"] == "Rank 1 of 2 gets no data"
    assert found[0]["evidence"]["batches_by_rank"] == {"0": 64, "1": 0}


@pytest.mark.parametrize("dispatch", ["None", "False"])
def test_dispatch_from_rank_0_is_named(dispatch: str, tmp_path: Path) -> None:
    needs("accelerate", "datasets")
    document = shown(tmp_path, DISPATCHED.replace("=DISPATCH", f"={dispatch}"))
    (loader,) = document["loaders"]
    assert loader["loads_for"] == (2 if dispatch == "None" else 1)
    found = unfed(document)
    if dispatch == "False":
        assert not found
        return
    assert found == document["findings"][:1]
    assert found[0]["title"] == "Rank 0 loads the batches of all 2 ranks"
    assert 1.3 < found[0]["predicted_gain"]["value"] <= 2.0
    assert "dispatch_batches=False" in found[0]["fix"]["code"]


def test_dispatch_by_a_trainer_is_ended_in_its_arguments(tmp_path: Path) -> None:
    """By the code of the fix, with what the script has in place of the dots."""
    needs("transformers", "accelerate", "datasets")
    first, *_ = shown(tmp_path, TRAINED.replace("FIX", ""))["findings"]
    assert first["title"] == "Rank 0 loads the batches of all 2 ranks"
    dots, kept = "TrainingArguments(..., ", "transformers.TrainingArguments(**own, "
    code = first["fix"]["code"].replace(dots, kept)
    assert kept in code
    (after := tmp_path / "after").mkdir()
    document = shown(after, TRAINED.replace("FIX", code))
    (loader,) = document["loaders"]
    assert loader["loads_for"] == 1
    assert not unfed(document)


def test_datasets_of_fewer_shards_than_ranks_feed_both(tmp_path: Path) -> None:
    """Each rank then reads all of it, and drops what is the other's: nobody goes without."""
    needs("datasets")
    document = shown(tmp_path, SPLIT)
    assert not unfed(document)
    assert document["loaders"][0]["batches"] == 20
