"""``dlio``: the loader of a DLIO or MLPerf Storage workload, which reads its files for real."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from dlprof.errors import FileError
from dlprof.targets.builtin.options import DlioOptions
from dlprof.targets.builtin.workload import ZIPPED, Workload


class Records(Dataset[torch.Tensor]):
    """Samples that are read, dropped, and given as a tensor that is always the same, as in DLIO.

    Indices beyond the last file that is there start over at the first.
    """

    def __init__(self, workload: Workload) -> None:
        self.paths = [str(path) for path in workload.paths()]
        if not self.paths:
            raise FileError(
                f"{workload.folder} holds no files of the workload", hint="Name its data."
            )
        self.samples = workload.samples
        self.record_bytes = workload.record_bytes
        self.length = workload.files * workload.samples
        self.given = torch.zeros(workload.sample_bytes, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        number, place = divmod(index, self.samples)
        _read(self.paths[number % len(self.paths)], place * self.record_bytes, self.record_bytes)
        return self.given


def _read(path: str, start: int, count: int) -> None:
    with Path(path).open("rb") as file:
        if path.endswith(ZIPPED) and file.read(2) == b"PK":
            np = importlib.import_module("numpy")  # which has made it

            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                arrays["x"]
            return
        file.seek(start)
        file.read(count)


def make_loader(options: DlioOptions, *, seed: int) -> DataLoader[torch.Tensor]:
    """The loader as the file of the workload has it."""
    workload = options.workload()
    return DataLoader(
        Records(workload),
        batch_size=workload.batch_size,
        shuffle=workload.shuffle,
        generator=torch.Generator().manual_seed(seed),
        drop_last=True,
        **workload.loader,
    )
