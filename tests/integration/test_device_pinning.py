"""Torch's own pin thread and the consumer's copies, with an accelerator that torch is made to see.

``meta`` is the device: tensors really go there by ``Tensor.to``, and no hardware is needed. Pinning
copies within the host's memory.
"""

from __future__ import annotations

import itertools
import sys
import time
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
from dlprof.tuning.budget import Budget
from dlprof.tuning.control import NO_WORKERS, Ask, Control, Setting, Window

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """An accelerator of kind ``meta``, whose events run on the fake's clock."""
    fake = FakeDevice()
    there = torch.device("meta")
    pinned: set[int] = set()

    def pin(tensor: torch.Tensor, *_device: Any) -> torch.Tensor:  # torch names it up to 2.9
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
    if torch.__version__ < "2.7":  # whose loader asks CUDA
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        index = lambda: torch.accelerator.current_device_index()  # noqa: E731, PLW0108 - a test's own
        monkeypatch.setattr(torch.cuda, "current_device", index)
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


class Pinning(Control):
    """Once a window was seen pins and doesn't in turn, by the ``tries``; then keeps to pin."""

    tries = 10

    def begin(self) -> Ask:
        self.windows: list[Setting] = []
        return Ask(self.kept, 0, 2, 0.0)

    def look(self, window: Window) -> Ask:
        self.settled_s = 1.0
        pins, offered = window.setting.pins, self.repins
        self.windows += [window.setting] if offered is not None else []
        if offered is None or len(self.windows) <= self.tries:
            turn = None if offered is None else (offered, None)[len(self.windows) % 2]
            return Ask(self.kept._replace(pins=turn), 9, 2, 0.0)
        if pins is not None:  # it is kept while the older setting has its turn
            return Ask(self.kept, 9, 2, 0.0)
        self._note(self.kept._replace(pins=offered), "", kept=True)
        self.repins = None
        return Ask(self.kept, 0, 2, 0.0)


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_pinning_is_tried_within_an_epoch_and_kept_from_then_on(
    accelerator: FakeDevice, monkeypatch: pytest.MonkeyPatch, *, pin: bool, persistent: bool
) -> None:
    """Batches come in order, each as it was asked for, and the thread that pins with an epoch."""
    del accelerator
    monkeypatch.setattr(tuned, "Control", Pinning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    options: dict[str, Any] = {"pin_memory": pin, "persistent_workers": persistent}
    made: Any = DataLoader(TensorDataset(torch.arange(800)), 4, num_workers=2, **options)
    dlprof.tune(made, max_workers=2)
    pinned: list[list[bool]] = []
    for _ in range(3):
        came: list[int] = []
        pinned.append([])
        for (batch,) in iter(made):
            came += batch.tolist()
            pinned[-1].append(batch.is_pinned())
        assert came == [*range(800)]
    assert made.tuning.off == ""
    assert made.pin_memory is pin
    if persistent and not pin:  # workers that outlive an epoch got no such thread
        assert not any(map(any, pinned))
        assert "pin_memory" not in made.tuning.kwargs
        return
    trial = pinned[0 if pin else 1]
    assert pinned[0][:8] == [pin] * 8
    assert trial.count(True) > 20
    assert trial.count(False) > 20
    assert trial[-20:] == [not pin] * 20
    assert pinned[2][4:] == [not pin] * 196  # a thread begins as torch has it
    assert made.tuning.kwargs.get("pin_memory", False) is not pin
    assert f"pin_memory={not pin}" in str(made.tuning)


def test_pinned_batches_count_twice_before_they_are_tried(
    accelerator: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copies, in memory that is given out in powers of two."""
    del accelerator
    asked: set[tuple[int, int]] = set()

    def refusal(_budget: Budget, before: Setting, after: Setting, **_given: Any) -> str:
        asked.add((before.in_flight, after.in_flight))
        return "no room"

    monkeypatch.setattr(tuned, "Control", Pinning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(Pinning, "tries", 1 << 30)
    monkeypatch.setattr(Budget, "refusal", refusal)
    made: Any = DataLoader(TensorDataset(torch.arange(400)), 4, num_workers=2)
    dlprof.tune(made, max_workers=2)
    for _ in range(2):
        pinned = [batch.is_pinned() for (batch,) in made]
        assert not any(pinned[4:])  # a thread begins as torch has it
    assert asked == {(4, 8)}


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_thread_that_can_not_be_started_ends_tuning_and_no_training(
    accelerator: FakeDevice, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """Whether it is to be tried then, or is kept by then: all comes as without."""

    def failed() -> int:
        raise RuntimeError("no device any more")

    del accelerator
    monkeypatch.setattr(tuned, "Control", Pinning)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    made: Any = DataLoader(TensorDataset(torch.arange(800)), 4, num_workers=2)
    dlprof.tune(made, max_workers=2)
    for _ in range(epochs):
        assert [*made][-1][0].tolist() == [796, 797, 798, 799]
    assert ("pin_memory" in made.tuning.kwargs) is (epochs > 1)
    monkeypatch.setattr(torch.accelerator, "current_device_index", failed)
    assert torch.cat([batch for (batch,) in made]).tolist() == [*range(800)]
    assert "no device any more" in made.tuning.off
    assert "pin_memory" not in made.tuning.kwargs


class _Fetched(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(0.0005)
        return (self.tensors[0][index],)


@pytest.mark.slow
def test_a_loop_whose_copies_are_faster_pinned_gets_pinned_batches(
    accelerator: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step waits for the copy, by half as long; the first epoch has no thread that pins."""
    del accelerator
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    made: Any = DataLoader(_Fetched(torch.arange(2000)), 4, num_workers=1)
    dlprof.tune(made, max_workers=1)
    epochs: list[set[bool]] = []
    until_s = time.monotonic() + 120
    while "pin_memory" not in made.tuning.kwargs and time.monotonic() < until_s:
        epochs.append(set())
        for (batch,) in made:
            time.sleep(0.005 if batch.is_pinned() else 0.01)
            epochs[-1].add(batch.is_pinned())
    assert epochs[0] == {False}
    assert made.tuning.kwargs["pin_memory"] is True
    (change,) = [each for each in made.tuning.changes if each.after.pins]
    assert change.speedup.value > 1.3
    assert all(batch.is_pinned() for (batch,) in made)


@pytest.mark.parametrize(
    ("options", "in_use"), [({"max_workers": 2}, False), ({}, True), ({"max_workers": 2}, True)]
)
def test_pinning_is_tried_only_where_a_device_is_used_and_workers_may_change(
    accelerator: FakeDevice,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    *,
    in_use: bool,
) -> None:
    del accelerator
    monkeypatch.setattr(tuned, "Control", Pinning)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(tuned, "_SHORT_EPOCH", 0)
    made: Any = DataLoader(_Classes(), 4, num_workers=2, collate_fn=_Batch)
    dlprof.tune(made, **options)
    for _ in range(2):
        assert all(type(batch) is _Batch and not batch[0].is_pinned() for batch in made)
    assert "pin_memory" not in made.tuning.kwargs


@pytest.mark.parametrize("kept", [True, False])
def test_tuples_are_pinned_where_they_stay_tuples(
    monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    """Up to some version torch pins a collate function's tuple into a list."""
    pin_memory: Any = internals._find("torch.utils.data._utils", "pin_memory")
    made = tuple if kept else list
    monkeypatch.setattr(pin_memory, "pin_memory", lambda data, _device=None: made(data))
    batch = torch.zeros(2), torch.ones(2)
    assert tuned._pins_alike(batch) is kept
    assert tuned._pins_alike({"both": batch}) is kept
    assert tuned._pins_alike([*batch])


class _Batch(list[torch.Tensor]):
    """A list of a class of its own, of which torch may make another."""


class _Classes(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.arange(160))

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override] # not a tuple
        return self.tensors[0][index]


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
