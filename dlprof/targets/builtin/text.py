"""``text``: lines of a file, tokenised on the fly, ragged, padded to the longest of a batch."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from dlprof.targets.builtin.files import directory
from dlprof.targets.builtin.options import TextOptions

UNKNOWN = 1  # 0 is what torch pads with

_TOKEN = re.compile(r"[a-z]+|\d|[^\sa-z\d]")


class TextLines(Dataset[torch.Tensor]):
    """Token ids of the lines of a text file; indices beyond the last start over."""

    def __init__(self, directory: Path, length: int) -> None:
        self.length = length
        self.path = str(directory / "corpus.txt")
        raw = (directory / "offsets.bin").read_bytes()
        self.offsets = array("Q", raw)
        words = (directory / "vocabulary.txt").read_text(encoding="ascii").split("\n")
        known = (*".,;:?!0123456789", *words)
        self.vocabulary = {word: number for number, word in enumerate(known, UNKNOWN + 1)}
        self._file: tuple[int, BinaryIO] | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        line = index % (len(self.offsets) - 1)
        start, end = self.offsets[line], self.offsets[line + 1]
        # A file opened by this very process: forked workers would share one position.
        if self._file is None or self._file[0] != os.getpid():
            self._file = (os.getpid(), Path(self.path).open("rb"))  # stays open
        file = self._file[1]
        file.seek(start)
        return torch.tensor(tokenise(file.read(end - start).decode("ascii"), self.vocabulary))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def tokenise(line: str, vocabulary: dict[str, int]) -> list[int]:
    """Words, digits and marks as ids, cut where training pipelines cut documents."""
    tokens = _TOKEN.findall(line.lower())[:512]
    return [vocabulary.get(token, UNKNOWN) for token in tokens]


def collate(lines: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pad to the longest line; the lengths say what is padding."""
    return {
        "tokens": pad_sequence(list(lines), batch_first=True),
        "lengths": torch.tensor([len(line) for line in lines]),
    }


def make_loader(options: TextOptions, *, seed: int) -> DataLoader[torch.Tensor]:
    """The loader of the workload, shuffled as for training."""
    dataset = TextLines(directory("text", options.lines, options.words), options.length)
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=64, shuffle=True, generator=generator, collate_fn=collate)
