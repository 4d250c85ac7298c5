"""Timing copies: a fake accelerator with a known latency and bandwidth has to be found again."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import FakeDevice

from dlprof.device.runtime import (
    HostRuntime,
    Runtime,
    UnavailableError,
    open_runtime,
)
from dlprof.errors import TargetError
from dlprof.records.transfer import CopyTime, LinkState
from dlprof.targets.grammar import parse_target
from dlprof.transfer.copying import (
    Buffers,
    Copier,
    all_at_once,
    answer,
    bring,
    copies_per_round,
    look_at_link,
    measure_batch,
    measure_copies,
    measure_device,
    near_and_far,
)
from dlprof.trial.protocol import BuildRequest, Message, TransferRequest

_LATENCY_S = 10e-6
_SPEED = 12e9
_SIZES = tuple(4096 * 4**power for power in range(6))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device whose copies take 10 µs and then go at 12 GB/s."""
    fake = FakeDevice()

    def copy(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> Any:
        fake.clock.sleep(2e-6)  # the call itself
        fake.current().order(_LATENCY_S + source.nbytes / _SPEED)
        if not non_blocking:
            fake.clock.now_s = max(fake.clock.now_s, fake.current().until_s)
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(torch.Tensor, "bitwise_not_", lambda _: fake.current().order(50e-6))
    return fake


def _cells(device: FakeDevice, **changes: Any) -> dict[tuple[str, str, int], CopyTime]:
    copier = Copier(device, clock=device.clock)
    cells, _, _ = measure_copies(
        copier, Buffers(device, _SIZES[-1]), budget_s=0.0, sizes=_SIZES, **changes
    )
    return {(cell.memory, cell.mode, cell.bytes): cell for cell in cells}


def test_latency_and_bandwidth_of_the_link_are_found(device: FakeDevice) -> None:
    _, fits, _ = measure_copies(
        Copier(device, clock=device.clock),
        Buffers(device, _SIZES[-1]),
        budget_s=0.0,
        sizes=_SIZES,
    )
    (fit,) = [each for each in fits if (each.memory, each.mode) == ("pinned", "non_blocking")]
    assert fit.latency_s.value == pytest.approx(_LATENCY_S, rel=0.01)
    assert fit.bytes_per_s.value == pytest.approx(_SPEED, rel=0.01)
    assert fit.worst_error < 0.01


def test_every_size_memory_and_mode_is_measured_at_least_six_times(device: FakeDevice) -> None:
    cells = _cells(device)
    assert len(cells) == len(_SIZES) * 2 * 3
    assert {cell.rounds for cell in cells.values()} == {6}
    assert all(cell.time_s.low is not None for cell in cells.values())


def test_ordering_pinned_copies_is_not_timed(device: FakeDevice) -> None:
    cells = _cells(device)
    expected_s = _LATENCY_S + 4096 / _SPEED
    assert cells["pinned", "non_blocking", 4096].time_s.value == pytest.approx(expected_s, rel=1e-3)
    assert cells["pinned", "non_blocking", 4096].host_s == pytest.approx(2e-6)
    # A blocking copy is waited for, so its call is a part of what it takes.
    assert cells["pinned", "blocking", 4096].time_s.value == pytest.approx(
        expected_s + 2e-6, rel=0.05
    )


def test_a_device_without_side_streams_or_pinned_memory_says_so() -> None:
    device = FakeDevice(pins=False, streams=False)
    buffers = Buffers(device, 1 << 16)
    modes, reasons = Copier(device, clock=device.clock).modes()
    assert buffers.memories == ("pageable",)
    assert "no pinned memory" in buffers.unavailable["pinned"]
    assert modes == ("blocking", "non_blocking")
    assert "no side streams" in reasons["side_stream"]


def test_want_of_memory_to_pin_is_not_want_of_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    runtime = Runtime(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="out of memory"):
        runtime.pin(torch.ones(1))
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match=r"no pinned memory in torch: (Cannot|Found)"):
        runtime.pin(torch.ones(1))


def test_small_copies_go_through_the_whole_buffer() -> None:
    runtime = HostRuntime()
    pairs = Buffers(runtime, 1 << 14).pairs(4096, "pageable", 6)
    starts = [source.data_ptr() - pairs[0][1].data_ptr() for _, source in pairs]
    assert starts == [0, 4096, 8192, 12288, 0, 4096]
    assert all(target.numel() == 4096 for target, _ in pairs)


@pytest.mark.parametrize(("size", "copies"), [(4096, 100), (1 << 20, 32), (1 << 28, 1)])
def test_a_round_has_enough_copies_and_not_too_many(size: int, copies: int) -> None:
    assert copies_per_round(size) == copies


def test_the_cpu_is_a_device_like_the_others() -> None:
    runtime = open_runtime("cpu")
    request = TransferRequest(most_bytes=1 << 16, budget_s=0.0)
    found = measure_device("cpu", runtime, request, 0.0)
    assert found.timed_by == "host clock"
    assert {(cell.memory, cell.mode) for cell in found.cells} == {("pageable", "blocking")}
    assert found.best_bytes_per_s
    assert found.link is None
    assert set(found.unavailable) == {"pinned", "non_blocking", "side_stream", "link", "numa"}


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UnavailableError, match="no accelerator, and no cuda:3"):
        open_runtime("cuda:3")
    with pytest.raises(UnavailableError, match="knows no device toaster"):
        open_runtime("toaster")


def test_a_device_that_can_not_be_used_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour has all of its memory: CUDA can't even begin."""

    def fail(_index: int) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    monkeypatch.setattr("dlprof.device.runtime.find_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(torch.accelerator, "set_device_index", fail)
    with pytest.raises(UnavailableError) as raised:
        open_runtime("cuda:3")
    assert str(raised.value) == "cuda:3 can't be used: CUDA error: out of memory"


def _reads(state: LinkState, device: FakeDevice, takes_s: float = 0.0) -> Any:
    def read(meanwhile: Callable[[], object]) -> LinkState:
        meanwhile()
        device.clock.sleep(takes_s)
        return state

    return read


def test_the_link_is_read_while_copies_are_on_their_way(device: FakeDevice) -> None:
    state = LinkState(generation=3, width=16, theory_bytes_per_s=15.75e9)
    link = look_at_link(device, 1 << 20, _SPEED, _reads(state, device))
    assert link.generation == 3
    assert link.reached_fraction == pytest.approx(12 / 15.75, rel=1e-3)


def test_a_link_that_was_read_too_late_is_not_believed(device: FakeDevice) -> None:
    state = LinkState(generation=1, width=16, theory_bytes_per_s=4e9)
    link = look_at_link(device, 1 << 20, _SPEED, _reads(state, device, takes_s=60.0))
    assert link.generation is None
    assert link.reached_fraction is None
    assert "had ended" in link.unavailable["generation"]


def test_copies_faster_than_the_link_are_no_share_of_it(device: FakeDevice) -> None:
    state = LinkState(generation=1, width=16, theory_bytes_per_s=4e9)
    link = look_at_link(device, 1 << 20, _SPEED, _reads(state, device))
    assert link.reached_fraction is None
    assert "faster than the link" in link.unavailable["reached_fraction"]


def test_all_devices_at_once_are_compared_with_each_alone(device: FakeDevice) -> None:
    rates = all_at_once({"fake:0": device, "fake:1": device}, 1 << 20)
    alone, together = rates[1].alone_bytes_per_s, rates[1].together_bytes_per_s.value
    assert alone == pytest.approx(_SPEED, rel=0.2)
    assert together > 0
    assert [rate.device for rate in rates] == ["fake:0", "fake:1"]


def test_near_and_far_need_two_nodes_that_the_process_may_run_on(device: FakeDevice) -> None:
    with pytest.raises(UnavailableError, match="near and a far node"):
        near_and_far(device, 1 << 16, {0: (0,), 1: (100_000,)}, near=0)


def test_the_thread_goes_back_to_its_cpus_after_each_node(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[set[int]] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda _, to: places.append(set(to)), raising=False)
    rates = near_and_far(device, 1 << 16, {0: (0, 1), 1: (2, 3)}, near=1)
    assert [(rate.node, rate.near) for rate in rates] == [(0, False), (1, True)]
    assert places == [{0, 1}, {0, 1, 2, 3}, {2, 3}, {0, 1, 2, 3}]


def test_nodes_are_not_compared_where_pinned_memory_is_kept(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far node's buffers would be the near one's."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("dlprof.transfer.copying.empty_pinned_cache", lambda: False)
    with pytest.raises(UnavailableError, match="can't give pinned memory back"):
        near_and_far(device, 1 << 16, {0: (0,), 1: (1,)}, near=1)


def _batch(pin: bool) -> Any:
    del pin
    return {"image": torch.ones(4, 3), "label": [torch.ones(4, dtype=torch.int64)]}


def test_a_batch_is_copied_together_and_tensor_by_tensor() -> None:
    found = measure_batch(_batch, HostRuntime(), "mine.py:data")
    assert found.bytes == 4 * 3 * 4 + 4 * 8
    assert [(each.path, each.shape, each.dtype) for each in found.tensors] == [
        ("['image']", (4, 3), "float32"),
        ("['label'][0]", (4,), "int64"),
    ]
    assert [way.way for way in found.together] == ["pageable"]
    assert set(found.unavailable) == {"pinned_by_caller", "pinned_by_loader", "device"}


def test_the_targets_random_numbers_are_left_alone() -> None:
    random.seed(7)
    before = random.getstate()
    measure_batch(_batch, FakeDevice(), "mine.py:data")
    assert random.getstate() == before


def test_a_batch_that_the_loader_did_not_pin_is_no_figure_of_pinning() -> None:
    found = measure_batch(_batch, FakeDevice(), "mine.py:data")
    assert [way.way for way in found.together] == ["pageable", "pinned_by_caller"]
    assert found.together[1].pin_s is not None
    assert found.together[1].total_s >= found.together[1].copy_s.value
    assert "without being pinned" in found.unavailable["pinned_by_loader"]


def test_a_batch_that_the_loader_can_not_pin_is_measured_otherwise() -> None:
    def load(pin: bool) -> Any:
        if pin:
            raise TargetError("Loading a batch raised RuntimeError: cannot pin it.")
        return _batch(pin)

    found = measure_batch(load, FakeDevice(), "mine.py:data")
    assert [way.way for way in found.together] == ["pageable", "pinned_by_caller"]
    reason = found.unavailable["pinned_by_loader"]
    assert reason == "with pin_memory=True: Loading a batch raised RuntimeError: cannot pin it"


@pytest.mark.parametrize("batch", [None, ["a text", 3]])
def test_a_batch_without_a_tensor_gives_no_figure(batch: Any) -> None:
    with pytest.raises(UnavailableError, match="no tensor is found in the batch"):
        measure_batch(lambda _pin: batch, HostRuntime(), "mine.py:data")


class TokenBatch(collections.UserDict[str, Any]):
    """A tokenizer's batch: a mapping that stays where it has gone, and can't pin itself."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_gone = False

    def to(self, _device: torch.device) -> TokenBatch:
        assert not self.has_gone
        self.has_gone = True
        return self


class PinningDevice(FakeDevice):
    """One that knows what it has pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = set[int]()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.sent.add(tensor.data_ptr())
        return tensor


def test_a_batch_that_stays_where_it_has_gone_is_brought_there_each_time() -> None:
    """Else each time but the first was that of nothing, and its tensors stayed pageable."""
    device, batch = PinningDevice(), TokenBatch({"input_ids": torch.ones(2)})
    found = measure_batch(lambda _pin: batch, device, "mine.py:data")
    assert [way.way for way in found.together] == ["pageable", "pinned_by_caller"]
    assert not batch.has_gone
    assert device.sent == {batch["input_ids"].data_ptr()}

    there = bring(batch, HostRuntime())
    assert torch.equal(there["input_ids"], batch["input_ids"])
    assert there["input_ids"].data_ptr() != batch["input_ids"].data_ptr()


class Uncopied(TokenBatch):
    """One of a type that allows no copies of it."""

    def __copy__(self) -> Uncopied:
        raise TypeError("no copies")

    def to(self, _device: torch.device) -> Uncopied:
        return self


def test_a_batch_that_can_not_be_copied_is_brought_as_it_is() -> None:
    batch = Uncopied({"input_ids": torch.ones(2)})
    found = measure_batch(lambda _pin: batch, FakeDevice(), "mine.py:data")
    assert [way.way for way in found.together] == ["pageable", "pinned_by_caller"]


def test_what_can_not_be_pinned_is_no_figure_of_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [torch.ones(2), torch.ones(2, device="meta")]
    reason = "on a device already, or a part of it"
    monkeypatch.setattr("dlprof.transfer.copying.bring", lambda batch, _runtime: batch)
    found = measure_batch(lambda _pin: batch, FakeDevice(), "mine.py:data")
    assert [way.way for way in found.together] == ["pageable"]
    assert reason in found.unavailable["pinned_by_caller"]
    assert reason in found.unavailable["pinned_by_loader"]


def _asked(request: TransferRequest) -> list[Message]:
    shown: list[Message] = []
    answer(request, shown.append)
    return shown


def test_a_torch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    monkeypatch.delattr(torch, "accelerator")  # which 2.6 brought
    (failed,) = _asked(TransferRequest(most_bytes=1 << 14, budget_s=0.0))
    assert "needs torch 2.6 or newer, and this environment has 2.5.1+cpu" in str(failed["error"])


def test_the_process_reports_each_part_and_ends_with_done() -> None:
    shown = _asked(TransferRequest(most_bytes=1 << 14, budget_s=0.0))
    assert [message["event"] for message in shown] == ["progress", "device", "done"]
    assert shown[-1]["accelerator"] is None


def test_an_accelerator_comes_before_the_cpu_and_has_the_batch(device: FakeDevice) -> None:
    shown: list[Message] = []
    request = TransferRequest(
        device="fake",
        most_bytes=1 << 14,
        budget_s=0.0,
        build=BuildRequest(target=parse_target("synthetic:cpu_ms=0,shape=2x2")),
        batch_size=4,
    )
    answer(request, shown.append, lambda _name: device)
    names = [message["event"] for message in shown]
    assert names.count("device") == 1  # the fake calls itself cpu too, and so is the only one
    (batch,) = [message["batch"] for message in shown if message["event"] == "batch"]
    assert batch.tensors[0].shape[0] == 4
    assert names[-1] == "done"


def test_a_batch_that_can_not_go_leaves_the_rest(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("this batch stays")

    monkeypatch.setattr("dlprof.transfer.copying.bring", fail)
    shown: list[Message] = []
    build = BuildRequest(target=parse_target("synthetic:cpu_ms=0,shape=2x2"))
    request = TransferRequest(device="fake", most_bytes=1 << 14, budget_s=0.0, build=build)
    answer(request, shown.append, lambda _name: device)
    assert shown[-2] == {
        "event": "missing",
        "what": "batch",
        "reason": "ValueError: this batch stays",
    }
    assert shown[-1]["event"] == "done"


def test_a_device_that_is_not_there_is_the_users_fault() -> None:
    (shown,) = _asked(TransferRequest(device="cuda:0", most_bytes=1 << 14, budget_s=0.0))
    assert shown["error"]["kind"] == "usage"
    assert "--device cuda:0" in shown["error"]["message"]


def test_buffers_shrink_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.empty

    def empty(size: int, **options: Any) -> torch.Tensor:
        if size > 1 << 24:
            raise torch.OutOfMemoryError("out of memory")
        return real(size, **options)

    monkeypatch.setattr(torch, "empty", empty)
    request = TransferRequest(most_bytes=1 << 26, budget_s=0.0)
    found = measure_device("cpu", HostRuntime(), request, 0.0)
    assert max(cell.bytes for cell in found.cells) == 1 << 24
    assert "64 MiB could not be allocated" in found.unavailable["sizes"]


def test_a_device_that_fails_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device has fallen off the bus\nand more words")

    monkeypatch.setattr(FakeDevice, "event", fail)
    request = TransferRequest(most_bytes=1 << 14, budget_s=0.0)
    found = measure_device("fake:0", FakeDevice(), request, 0.0)
    assert found.cells == ()
    assert found.unavailable["copies"] == "the device has fallen off the bus"
    assert found.unavailable["link"] == "no copy could be measured"


def test_an_accelerators_link_and_nodes_have_reasons_where_they_are_not_reported(
    device: FakeDevice,
) -> None:
    request = TransferRequest(most_bytes=1 << 16, budget_s=0.0, nodes={"0": (0,), "1": (1,)})
    found = measure_device("fake:0", device, request, 0.0)
    assert found.best_bytes_per_s
    assert found.link is not None
    assert "doesn't report" in found.link.unavailable["generation"]
    assert "slot is not known" in found.unavailable["numa"]
