"""How a target's samples were counted, before trials are spent on it."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from dlprof.trial import probing

CLASSES = torch.arange(5)


def batch(size: int) -> dict[str, torch.Tensor]:
    return {"classes": CLASSES, "x": torch.zeros(size, 5), "y": torch.zeros(size)}


@pytest.mark.parametrize(
    ("sizes", "batch_size", "found"),
    [
        ([4, 8], None, (8.0, "")),  # by the indices handed out
        (None, 8, (12.0, "")),
        (None, None, (12.0, "The second batch counts as 12 samples, by the length of batch['x'].")),
    ],
)
def test_only_what_nobody_says_is_told(
    sizes: list[int] | None, batch_size: int | None, found: tuple[float, str]
) -> None:
    gate: Any = types.SimpleNamespace(sizes=sizes, attached=sizes is not None)
    built: Any = types.SimpleNamespace(target=types.SimpleNamespace(batch_size=batch_size))
    assert probing._samples_per_batch(gate, batch(8), batch(12), built) == found


def test_one_sample_at_a_time_is_told() -> None:
    gate: Any = types.SimpleNamespace(sizes=None, attached=False)
    built: Any = types.SimpleNamespace(target=types.SimpleNamespace(batch_size=None))
    image = torch.zeros(3, 16, 16)
    told = probing._samples_per_batch(gate, image, image, built)
    assert told == (1.0, "The second batch counts as 1 sample.")
