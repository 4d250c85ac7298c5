"""Torch's own pin thread and the consumer's copies, with an accelerator that torch is made to see.

``meta`` is the device: tensors really go there by ``Tensor.to``, and no hardware is needed. Pinning
copies within the host's memory.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, FakeEvent
from torch.utils.data import DataLoader, TensorDataset

import dlprof
from dlprof import internals
from dlprof.device.runtime import find_accelerator, open_runtime
from dlprof.records import Config
from dlprof.trial.copying import make_copier
from dlprof.trial.protocol import TrialRequest
from dlprof.tuning import loader as tuned
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """An accelerator of kind ``meta``, whose events run on the fake's clock."""
    fake = FakeDevice()
    there = torch.device("meta")
    pinned: set[int] = set()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.clone()
        pinned.add(copied.data_ptr())
        return copied

    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda: there,
        "current_device_index": lambda: 0,
        "device_count": lambda: 1,
        "set_device_index": lambda _index: None,
        "current_stream": lambda _device=None: fake.current(),
        "synchronize": lambda _device=None: fake.synchronize(),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.accelerator, name, stand_in)
    monkeypatch.setattr(torch, "Event", lambda _device, **_: FakeEvent(fake.clock))
    monkeypatch.setattr(torch, "Stream", lambda _device: fake.stream())
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self.data_ptr() in pinned)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _self, _stream: None)
    return fake


def _copied(loader: Any, *, pin: bool, ahead: bool = False) -> Any:
    config = Config(num_workers=1, prefetch_factor=2, pin_memory=pin)
    watch = make_copier(TrialRequest(config=config, device="auto", copy_ahead=ahead))
    assert watch is not None
    window = watch.window(lambda _name, _fill_s: None)
    batches = iter(loader)
    watch(next(batches))
    window("start", 0.0)
    for _ in range(10):
        watch(next(batches))
    window("end", 0.0)
    return watch.to_record()


def _loader(*, pin: bool) -> DataLoader[Any]:
    data = TensorDataset(torch.ones(64, 256), torch.arange(64))
    return DataLoader(data, batch_size=4, num_workers=1, pin_memory=pin)


def test_the_accelerator_is_found(accelerator: FakeDevice) -> None:
    del accelerator
    assert find_accelerator() == "meta"
    runtime = open_runtime("meta")
    assert runtime.asynchronous
    assert str(runtime.device) == "meta:0"


@pytest.mark.parametrize("ahead", [False, True])
def test_the_pin_threads_cost_comes_with_the_copies(
    accelerator: FakeDevice, *, ahead: bool
) -> None:
    del accelerator
    copies = _copied(_loader(pin=True), pin=True, ahead=ahead)
    assert copies.device == "meta:0"
    assert copies.batches == 10
    assert copies.bytes == 4 * 256 * 4 + 4 * 8
    assert copies.pinned_fraction == 1.0
    assert copies.prefetched is ahead
    assert copies.pin is not None
    assert copies.pin.thread_cpu_s is not None
    assert copies.pin.thread_cpu_s > 0
    assert "CUDA only" in copies.pin.unavailable["alloc_s"]


def test_without_pinning_batches_come_pageable(accelerator: FakeDevice) -> None:
    del accelerator
    copies = _copied(_loader(pin=False), pin=False)
    assert copies.pinned_fraction == 0.0
    assert copies.pin is None


class Turning(Control):
    """Has other workers and queues every three batches, and where that may be no workers."""

    def begin(self) -> Ask:
        settings = [Setting(*each) for each in [(3, 2), (1, 1), (4, 3), (2, 1)]]
        settings += [NO_WORKERS] if self._spares_workers else []
        self._following = itertools.cycle(settings)
        return Ask(self.kept, 0, 2, 0.0)

    def look(self, window: Window) -> Ask:
        del window
        return Ask(next(self._following), 1, 2, 0.0)


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_batches_of_a_loader_that_is_tuned_are_pinned_in_order(
    accelerator: FakeDevice, monkeypatch: pytest.MonkeyPatch, *, persistent: bool
) -> None:
    """Workers are forked, and parked, beside the thread that pins what they send."""
    del accelerator
    monkeypatch.setattr(tuned, "Control", Turning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    made: Any = DataLoader(
        TensorDataset(torch.arange(160)),
        batch_size=4,
        num_workers=2,
        pin_memory=True,
        persistent_workers=persistent,
    )
    dlprof.tune(made, max_workers=4)
    for _ in range(2):
        came: list[int] = []
        batches = iter(made)
        for (batch,) in batches:
            assert batch.is_pinned()
            came += batch.tolist()
        assert came == [*range(160)]
        assert internals.started_workers(batches) == 4
    internals.shut_down(batches)
    assert made.tuning.off == ""
    assert not vars(batches)["_pin_memory_thread"].is_alive()
