"""Faults of the device that batches are copied to, which are not the dataset's."""

from __future__ import annotations

import pytest
import torch

from dlprof.transfer.copying import _is_shortage
from dlprof.trial.failures import classify


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB."), "is full"),
        (RuntimeError("CUDA error: out of memory\nkernel errors might be ..."), "is full"),
        (
            RuntimeError("cannot pin 'torch.cuda.X' only dense CPU tensors can be pinned"),
            "--pin-memory off",
        ),
    ],
)
def test_a_devices_fault_is_not_blamed_on_the_dataset(error: Exception, hint: str) -> None:
    failure = classify(error)
    assert hint in failure.hint
    assert str(error).splitlines()[0] in failure.message


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("CUDA error: out of memory", True),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_only_want_of_memory_makes_buffers_smaller(text: str, *, short: bool) -> None:
    assert _is_shortage(RuntimeError(text)) == short
