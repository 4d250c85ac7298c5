"""``dlprof run`` on loaders whose data is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import python

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Stream(IterableDataset):
    def __init__(self, kind):
        self.kind = kind
    def __len__(self):
        return 320
    def __iter__(self):
        shared = self.kind not in {"duplicated", "augmented"}
        info = get_worker_info() if shared else None
        first, step = (info.id, info.num_workers) if shared else (0, 1)
        for i in range(first, 160 if self.kind == "short" else 320, step):
            time.sleep(0.001)
            sample = torch.full((8,), 1.0 if self.kind == "constant" else float(i))
            yield sample + torch.rand(8) if self.kind == "augmented" else sample

"""
LOOP = """
loader = DataLoader(Stream("{kind}"), batch_size=8, num_workers=2)
if "{kind}" in ("short", "augmented"):
    print(len(loader), "batches are promised")
if "{kind}" == "zipped":
    for one, other in zip(loader, loader):
        pass
for epoch in range(2):
    if "{kind}" == "broken off":
        next(iter(loader))  # worker 0's first batch, and the same once more
    for batch in loader:
        batch.mul_(0)  # in place: what is compared later must not be the script's own
"""


def watched(folder: Path, *kinds: str, options: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """What is seen of a script with a loader of each kind."""
    loops = (LOOP.format(kind=kind) for kind in kinds)
    (folder / "train.py").write_text(SCRIPT + "".join(loops))
    words = ("-o", "run.dlprof.jsonl", "--json", "run.json", "train.py")
    done = python(folder, "-m", "dlprof", "run", *options, *words)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run.json").read_text()), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--no-follow",), marks=pytest.mark.slow)],
    ids=["followed", "not followed"],
)
def test_data_that_every_worker_gives_is_said_first(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    document, screen = watched(tmp_path, "duplicated", options=options)
    assert [each["code"] for each in document["findings"]] == ["data.duplicated"]
    assert document["loaders"][0]["duplicated"] is True
    assert document["loaders"][0]["batches"] == 160  # 2 x 2 epochs of 40
    said = "The data of train.py:21 is wrong: Workers yield the same samples"
    assert said in " ".join(screen.split())
    assert screen.index("is wrong") < screen.index("Data wait")
    assert document["loaders"][0]["samples_per_s"] is None
    assert document["loaders"][0]["asks_worker"] is False


@pytest.mark.slow
def test_only_what_is_wrong_is_called_so(tmp_path: Path) -> None:
    right = ("shared", "constant", "broken off", "zipped")
    document, _ = watched(tmp_path, *right)
    assert not [each for each in document["findings"] if each["code"].startswith("data.")]
    assert len(document["loaders"]) == len(right)
    for loader in document["loaders"]:
        assert loader["duplicated"] is False
        assert loader["asks_worker"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"),
    [("short", "truncated"), pytest.param("augmented", "duplicated", marks=pytest.mark.slow)],
)
def test_wrong_lengths_are_named_by_what_makes_them(kind: str, code: str, tmp_path: Path) -> None:
    document, _ = watched(tmp_path, kind)
    found = [each["code"] for each in document["findings"]]
    assert [each for each in found if each.startswith("data.")] == [f"data.{code}"]
    (loader,) = document["loaders"]
    assert loader["duplicated"] is False
    assert loader["asks_worker"] is (kind != "augmented")
    if kind == "short":
        assert found == ["data.truncated"]
        assert loader["promised_batches"] == 80
