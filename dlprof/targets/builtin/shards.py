"""``shards``: an iterable-style dataset over tar files of JPEGs, divided among workers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dlprof.targets.builtin.files import directory
from dlprof.targets.builtin.images import training_image
from dlprof.targets.builtin.options import ShardsOptions

Sample = tuple[torch.Tensor, int]


class TarShards(IterableDataset[Sample]):
    """Images with labels from tar files; a worker reads every n-th file, in sequence."""

    def __init__(self, directory: Path, size: int, passes: int) -> None:
        self.size = size
        self.passes = passes
        self.paths = [str(path) for path in sorted(directory.glob("*.tar"))]

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for _ in range(self.passes):
            for path in self.paths[first::step]:
                for jpeg, label in read_shard(path):
                    with Image.open(io.BytesIO(jpeg)) as image:
                        yield training_image(image.convert("RGB"), self.size), label


def read_shard(path: str) -> Iterator[tuple[bytes, int]]:
    """The JPEG files of a shard, each with the label that follows it, read as one stream."""
    with tarfile.open(path, "r|") as tar:
        jpeg = b""
        for entry in tar:
            file = tar.extractfile(entry)
            content = b"" if file is None else file.read()
            if entry.name.endswith(".jpg"):
                jpeg = content
            else:
                yield jpeg, int(content)


def make_loader(options: ShardsOptions, *, seed: int) -> DataLoader[Sample]:
    """The loader of the workload; shards are read in order, so ``seed`` changes nothing."""
    del seed
    folder = directory("shards", options.count, options.shards)
    passes = max(1, round(options.length / options.count))
    return DataLoader(TarShards(folder, options.size, passes), batch_size=32)
