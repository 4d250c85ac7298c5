"""Six kinds of batches whose way to the device differs, and the step that works on them there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 64
SAMPLES = 1 << 20
"""So many that no epoch ends while it is measured."""

_SIDE = 1024


class Made(Dataset[Any]):
    """Samples that cost little to make, so that the way to the device is what counts."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def __len__(self) -> int:
        """An epoch without end, as far as a measurement goes."""
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        """One sample."""
        return self._make(index)


def _many(_index: int) -> dict[str, torch.Tensor]:
    return {f"field_{number}": torch.zeros(8) for number in range(64)}


def _large(_index: int) -> torch.Tensor:
    return torch.empty(3, 256, 256)


def _ragged(index: int) -> torch.Tensor:
    return torch.zeros(1000 + 977 * index % 4000)


def _image(_index: int) -> torch.Tensor:
    return torch.empty(3, 224, 224, dtype=torch.uint8)


def _sized(index: int) -> torch.Tensor:
    return torch.empty(3, 64 + 37 * index % 128, 96)


def as_list(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    """A batch of tensors of different lengths."""
    return samples


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch of the size of its largest sample."""
    tall = max(sample.shape[1] for sample in samples)
    batch = torch.zeros(len(samples), 3, tall, 96)
    for place, sample in enumerate(samples):
        batch[place, :, : sample.shape[1]] = sample
    return batch


def on_device(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch that is on the device already."""
    return torch.stack(samples).to(device())


def device() -> torch.device:
    """Where batches go; the CPU where there is no accelerator."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _loader(make: Callable[[int], Any], collate: Any = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Made(make), **{"batch_size": BATCH, "collate_fn": collate, **settings})


def many_small(**settings: Any) -> DataLoader[Any]:
    """64 tensors of 2 KB."""
    return _loader(_many, **settings)


def one_large(**settings: Any) -> DataLoader[Any]:
    """One tensor of 48 MiB."""
    return _loader(_large, **settings)


def ragged_list(**settings: Any) -> DataLoader[Any]:
    """A list of 64 tensors of different lengths."""
    return _loader(_ragged, as_list, **settings)


def uint8_images(**settings: Any) -> DataLoader[Any]:
    """Images as bytes, 9 MiB."""
    return _loader(_image, **settings)


def variable_shapes(**settings: Any) -> DataLoader[Any]:
    """A padded tensor whose shape differs from batch to batch."""
    return _loader(_sized, padded, **settings)


def already_there(**settings: Any) -> DataLoader[Any]:
    """What needs no copy at all."""
    return _loader(_sized_alike, on_device, **settings)


def _sized_alike(_index: int) -> torch.Tensor:
    return torch.empty(3, 64, 64)


KINDS: dict[str, Callable[..., DataLoader[Any]]] = {
    "many_small": many_small,
    "one_large": one_large,
    "ragged_list": ragged_list,
    "uint8_images": uint8_images,
    "variable_shapes": variable_shapes,
    "already_there": already_there,
}


@functools.cache
def _matrix() -> torch.Tensor:
    return torch.ones(_SIDE, _SIDE, device=device())


def step(_batch: Any) -> None:
    """Matrices multiplied on the device, waited for as a training loop waits for its loss."""
    product = _matrix()
    for _ in range(8):
        product = product @ _matrix()
    float(product[0, 0])
