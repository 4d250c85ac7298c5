"""A target on a machine whose torch is made to see an accelerator, imported by trials.

``meta`` stands in for the device: tensors really go there by ``Tensor.to``. A copy takes 4 ms of
the stream that it is ordered on, and 1 ms where its source is pinned; nothing else happens there.
"""

from __future__ import annotations

import time
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

_PAGEABLE_S, _PINNED_S = 4e-3, 1e-3
_pinned: set[int] = set()


class _Stream:
    until_s = 0.0

    def order(self, seconds: float) -> None:
        self.until_s = max(self.until_s, time.perf_counter()) + seconds

    def wait_event(self, event: Any) -> None:
        self.until_s = max(self.until_s, event.at_s)

    def __enter__(self) -> Self:
        _streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _streams.pop()


class _Event:
    at_s = 0.0

    def record(self, stream: Any = None) -> None:
        self.at_s = max((stream or _streams[-1]).until_s, time.perf_counter())

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.at_s - time.perf_counter()))

    def query(self) -> bool:
        return time.perf_counter() >= self.at_s

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event.at_s - self.at_s) * 1e3


_streams: list[Any] = [_Stream()]
_send = torch.Tensor.to


def _to(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
    if arguments and str(arguments[0]).startswith("meta"):
        _streams[-1].order(_PINNED_S if tensor.is_pinned() else _PAGEABLE_S)
    moved: Tensor = _send(tensor, *arguments, **options)
    return moved


def _pin(tensor: Tensor) -> Tensor:
    copied = tensor.clone()
    _pinned.add(copied.data_ptr())
    return copied


def _patch() -> None:
    there = torch.device("meta")
    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda: there,
        "current_device_index": lambda: 0,
        "device_count": lambda: 1,
        "set_device_index": lambda _index: None,
        "current_stream": lambda _device=None: _streams[-1],
        "synchronize": lambda _device=None: _streams[0].order(0.0),
    }
    for name, stand_in in stand_ins.items():
        setattr(torch.accelerator, name, stand_in)
    patches: dict[str, Any] = {
        "to": _to,
        "pin_memory": _pin,
        "is_pinned": lambda self: self.data_ptr() in _pinned,
        "record_stream": lambda _self, _stream: None,
    }
    for name, patch in patches.items():
        setattr(torch.Tensor, name, patch)
    for name, kind in {"Event": _Event, "Stream": _Stream}.items():
        setattr(torch, name, lambda *_, kind=kind, **__: kind())


_patch()


class Numbers(Dataset[Tensor]):
    """Samples that cost nothing."""

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((64,), index, dtype=torch.float32)


def train() -> DataLoader[Tensor]:
    """Batches of one tensor."""
    return DataLoader(Numbers(), batch_size=16)


def step(batch: Tensor) -> None:
    """A step that wants its batch on the device."""
    if batch.device.type != "meta":
        raise RuntimeError("the batch is not on the device")
    time.sleep(1e-3)
