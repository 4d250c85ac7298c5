"""Datasets in files of their own, as users have them, for what the built-in ones don't show."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

SLOW_S = 3.0
"""How long a slow target takes to import, and as long again to build."""

_SLOW = """
import time

import torch


def spend_{how}(seconds):
    {body}


spend_{how}({seconds})


class Tiny(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000_000

    def __getitem__(self, index):
        return torch.full((4,), index % 251, dtype=torch.float32), index


def make_dataset():
    spend_{how}({seconds})
    return Tiny()
"""
_BODIES = {
    "sleep": "time.sleep(seconds)",
    "burn": "end = time.thread_time() + seconds\n    while time.thread_time() < end:\n        pass",
}
_ENDLESS = """
import torch


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        index = 0
        while True:
            yield torch.full((4,), index % 251, dtype=torch.float32), index
            index += 1


def make_dataset():
    return Endless()
"""


def slow_target(directory: Path, how: Literal["sleep", "burn"], seconds: float = SLOW_S) -> str:
    """A target on a tiny dataset that takes long to import and as long again to build.

    Args:
        directory: Where its file is made.
        how: Whether it waits, as for storage, or keeps a core busy.
        seconds: Length of the import, and of the build.
    """
    path = directory / f"slow_{how}.py"
    path.write_text(_SLOW.format(how=how, body=_BODIES[how], seconds=seconds))
    return f"{path}:make_dataset"


def endless_target(directory: Path) -> str:
    """A target whose iterable dataset never ends."""
    path = directory / "endless.py"
    path.write_text(_ENDLESS)
    return f"{path}:make_dataset"
