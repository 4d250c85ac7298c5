"""What the model says of file descriptors, held against torch's own loader."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dlprof.records import Config

FD = Path("/proc/self/fd")
TENSORS = 3

pytestmark = pytest.mark.skipif(not FD.exists(), reason="counts descriptors by /proc")


class Triples(Dataset[tuple[torch.Tensor, ...]]):
    """Three tensors a sample; the first of them comes last."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index == 0:
            time.sleep(1.0)
        return tuple(torch.zeros(1) for _ in range(TENSORS))


def count() -> int:
    gc.collect()  # what earlier loaders had open is theirs
    return sum(1 for _ in FD.iterdir())


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 4))]
)
def test_descriptors_are_those_of_torch(workers: int) -> None:
    before = count()
    loader = DataLoader(
        Triples(), num_workers=workers, prefetch_factor=2, multiprocessing_context="fork"
    )
    config = Config(num_workers=workers, prefetch_factor=2)
    batches = iter(loader)
    assert count() - before == config.open_files(0)
    held = next(batches)
    there = count() - before
    least, most = config.open_files(TENSORS, batches=1), config.open_files(TENSORS)
    assert least <= there <= most
    assert len(held) == TENSORS
    del batches, held
