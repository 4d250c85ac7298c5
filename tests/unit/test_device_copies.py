"""Copying a trial's batches: what is exposed, what is hidden, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_device import FakeBatch, FakeDevice

from dlprof.errors import TargetError
from dlprof.machine.procfs import SchedStat
from dlprof.records import Config, Copies
from dlprof.trial.copying import (
    DeviceCopier,
    Step,
    make_copier,
    open_device,
    pin_costs,
    pin_threads,
)
from dlprof.trial.protocol import TrialRequest


def _run(device: FakeDevice, step: Step, *, ahead: bool, host_s: float = 0.0) -> Copies:
    """Twenty batches within a window, each 1 ms of loading after the other."""
    copying = DeviceCopier(device, step, ahead=ahead, clock=device.clock)
    window = copying.window(lambda _name, _fill_s: None)
    copying(FakeBatch(device, host_s))
    window("start", 0.0)
    for _ in range(20):
        device.clock.sleep(1e-3)
        copying(FakeBatch(device, host_s))
    window("end", 0.0)
    return copying.to_record()


def _sleeping(device: FakeDevice, step_s: float) -> Step:
    return Step(work=lambda _batch: device.clock.sleep(step_s), waits=True)


def _computing(device: FakeDevice, step_s: float) -> Step:
    return Step(work=lambda _batch: device.main.order(step_s), runs_ahead=True)


def test_a_copy_before_a_step_that_sleeps_is_exposed() -> None:
    device = FakeDevice(copy_s=3e-3)
    copies = _run(device, _sleeping(device, 5e-3), ahead=False)
    assert copies.batches == 20
    assert copies.timed == 5
    assert copies.copy_s == pytest.approx(3e-3)
    assert copies.exposed_s == pytest.approx(3e-3)
    assert copies.hidden_s == pytest.approx(0.0)


def test_the_step_is_what_is_left_when_the_copy_is_taken_out() -> None:
    device = FakeDevice(copy_s=3e-3)
    watch = DeviceCopier(device, _sleeping(device, 5e-3), clock=device.clock)
    window = watch.window(lambda _name, _fill_s: None)
    window("start", 0.0)
    began_s = device.clock()
    watch(FakeBatch(device, host_s=1e-3))
    consumed_s = device.clock() - began_s
    window("end", 0.0)
    assert consumed_s - watch.held_s() == pytest.approx(5e-3)


def test_copying_ahead_hides_the_copy_behind_the_step() -> None:
    device = FakeDevice(copy_s=3e-3)
    copies = _run(device, _sleeping(device, 5e-3), ahead=True)
    assert copies.prefetched
    assert copies.exposed_s == pytest.approx(0.0, abs=1e-9)
    assert copies.hidden_s == pytest.approx(3e-3)


def test_copying_ahead_leaves_exposed_what_is_longer_than_the_step() -> None:
    device = FakeDevice(copy_s=9e-3)
    copies = _run(device, _sleeping(device, 5e-3), ahead=True)
    assert copies.exposed_s is not None
    assert 0 < copies.exposed_s < 9e-3


def test_a_step_of_the_device_waits_for_its_copy_on_the_device() -> None:
    device = FakeDevice(copy_s=3e-3)
    plain = _run(device, _computing(device, 5e-3), ahead=False)
    assert plain.exposed_s == pytest.approx(3e-3)
    device = FakeDevice(copy_s=3e-3)
    ahead = _run(device, _computing(device, 5e-3), ahead=True)
    assert ahead.exposed_s == pytest.approx(0.0, abs=1e-9)


def test_exposed_time_is_the_difference_between_the_loop_with_and_without_copies() -> None:
    lengths = {}
    for copy_s in (0.0, 3e-3):
        device = FakeDevice(copy_s=copy_s)
        copies = _run(device, _sleeping(device, 5e-3), ahead=False)
        lengths[copy_s] = device.clock() / 21, copies.exposed_s or 0.0
    difference_s = lengths[3e-3][0] - lengths[0.0][0]
    assert lengths[3e-3][1] == pytest.approx(difference_s, rel=0.1)


@pytest.mark.parametrize("kind", [_sleeping, _computing])
def test_staging_a_batch_ahead_is_exposed_where_it_keeps_the_step_waiting(
    kind: Callable[[FakeDevice, float], Step],
) -> None:
    """Pageable memory is copied by the calling thread, also to a side stream."""
    lengths_s, shown = {}, {}
    for host_s in (0.0, 9e-3):
        device = FakeDevice(copy_s=0.0)
        shown[host_s] = _run(device, kind(device, 5e-3), ahead=True, host_s=host_s)
        lengths_s[host_s] = device.clock() / 21
    difference_s = lengths_s[9e-3] - lengths_s[0.0]
    assert shown[0.0].exposed_s == pytest.approx(0.0, abs=1e-9)
    assert shown[9e-3].exposed_s == pytest.approx(difference_s, rel=0.15)


def test_a_loop_does_not_run_far_ahead_of_the_device() -> None:
    device = FakeDevice(copy_s=1e-3)
    _run(device, _computing(device, 50e-3), ahead=False)
    assert device.main.until_s - device.clock() <= 3 * 51e-3


def test_the_calling_threads_own_time_in_the_copy_is_reported() -> None:
    device = FakeDevice(copy_s=3e-3)
    copies = _run(device, _sleeping(device, 5e-3), ahead=False, host_s=2e-3)
    assert copies.blocked_s == pytest.approx(2e-3)


def test_a_long_window_keeps_few_events() -> None:
    device = FakeDevice(copy_s=1e-3)
    copying = DeviceCopier(device, _sleeping(device, 0.0), clock=device.clock)
    window = copying.window(lambda _name, _fill_s: None)
    window("start", 0.0)
    for _ in range(5000):
        copying(FakeBatch(device))
    window("end", 0.0)
    copies = copying.to_record()
    assert copies.batches == 5000
    assert 256 <= copies.timed <= 512
    assert copies.copy_s == pytest.approx(1e-3)


class GraphBatch:
    """A batch that goes by itself and is no container, as those of PyTorch Geometric."""

    def __init__(self) -> None:
        self.nodes, self.store = torch.ones(3, 4), self

    def to(self, device: torch.device) -> GraphBatch:
        assert device.type == "cpu"
        return self


class OpaqueBatch:
    """One that keeps its tensors elsewhere, as those of DGL."""

    __slots__ = ()

    def to(self, _device: torch.device) -> OpaqueBatch:
        return self


@pytest.mark.parametrize(
    ("batch", "found"),
    [(GraphBatch(), (48, 1.0)), ([GraphBatch(), 1], (48, 1.0)), (OpaqueBatch(), (None, None))],
)
def test_tensors_of_objects_that_go_by_themselves_count(
    monkeypatch: pytest.MonkeyPatch, batch: object, found: tuple[float | None, float | None]
) -> None:
    """Else all that torch has pinned for them would count as pageable."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _self: True)
    freed: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, _stream: freed.append(self))
    device = FakeDevice(copy_s=1e-3)
    copying = DeviceCopier(device, _computing(device, 1e-3), ahead=True, clock=device.clock)
    window = copying.window(lambda _name, _fill_s: None)
    window("start", 0.0)
    copying(batch)
    copying(batch)
    window("end", 0.0)
    copies = copying.to_record()

    assert (copies.timed, copies.bytes, copies.pinned_fraction) == (1, *found)
    assert ("pinned_fraction" in copies.unavailable) is (found[1] is None)
    assert len(freed) == (found[0] is not None)


def test_a_window_without_a_timed_batch_says_so() -> None:
    device = FakeDevice()
    copying = DeviceCopier(device, _sleeping(device, 0.0), clock=device.clock)
    copies = copying.to_record()
    assert copies.copy_s is None
    assert "no batch" in copies.unavailable["copy_s"]


def test_a_device_without_side_streams_can_not_copy_ahead() -> None:
    device = FakeDevice(streams=False)
    with pytest.raises(TargetError, match="--copy-ahead can't be used"):
        DeviceCopier(device, _sleeping(device, 0.0), ahead=True)


def test_batches_stay_on_the_cpu_without_an_accelerator() -> None:
    assert open_device("cpu") is None
    assert open_device("auto") is None
    assert make_copier(TrialRequest(config=Config(), device="auto")) is None
    with pytest.raises(TargetError, match="no accelerator"):
        open_device("cuda:0")


@pytest.mark.parametrize(
    ("name", "current", "opened"),
    [("cuda", 0, "cuda:3"), ("cuda:1", 0, "cuda:1"), ("auto", 2, "cuda")],
)
def test_each_rank_copies_to_a_device_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str, current: int, opened: str
) -> None:
    """Else all of them would share the link of the first, as no training has them do."""
    monkeypatch.setenv("LOCAL_RANK", "11")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr("dlprof.trial.copying.current_index", lambda: current)
    monkeypatch.setattr("dlprof.trial.copying.find_accelerator", lambda: "cuda")
    monkeypatch.setattr("dlprof.trial.copying.open_runtime", lambda wanted: wanted)
    found: object = open_device(name)
    assert found == opened


def test_a_step_of_the_users_that_only_orders_its_work_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the loop would be timed, until the device's queue is full, and not the step."""
    device = FakeDevice(copy_s=1e-3)
    monkeypatch.setattr("dlprof.trial.copying.open_device", lambda _name: device)

    def work(_batch: object) -> None:
        device.main.order(50e-3)

    monkeypatch.setattr("dlprof.trial.copying.make_consumer", lambda *_: work)
    copying = make_copier(TrialRequest(config=Config(), step_callable="mine:step"))
    assert copying is not None
    for _ in range(20):
        copying(FakeBatch(device))
    assert device.main.until_s - device.clock() <= 3 * 51e-3


def test_what_pinning_costs_is_reported_with_the_copies() -> None:
    device = FakeDevice(copy_s=1e-3)
    watch = DeviceCopier(device, _sleeping(device, 0.0), pins=True, clock=device.clock)
    window = watch.window(lambda _name, _fill_s: None)
    window("start", 0.0)
    watch(FakeBatch(device))
    window("end", 0.0)
    pin = watch.to_record().pin
    assert pin is not None
    assert "no thread of this name" in pin.unavailable["thread_cpu_s"]
    assert "CUDA only" in pin.unavailable["pinned_bytes"]


def _thread(proc: Path, number: int, name: str, schedstat: str) -> None:
    task = proc / "task" / str(number)
    task.mkdir(parents=True)
    (task / "comm").write_text(f"{name}\n")
    (task / "schedstat").write_text(schedstat)


def test_the_thread_that_pins_is_known_by_its_name(tmp_path: Path) -> None:
    _thread(tmp_path, 10, "python", "900 90 1")
    _thread(tmp_path, 11, "pt_data_pin", "500 50 1")
    assert pin_threads(tmp_path) == {11: SchedStat(run_ns=500, wait_ns=50)}
    assert pin_threads(tmp_path / "nowhere") == {}


def test_pinning_costs_are_per_batch_and_a_new_thread_counts_from_its_start() -> None:
    before = {1: SchedStat(run_ns=1_000_000, wait_ns=0)}
    after = {
        1: SchedStat(run_ns=3_000_000, wait_ns=500_000),
        2: SchedStat(run_ns=2_000_000, wait_ns=500_000),
    }
    memory = {
        "allocated_bytes.current": 1 << 20,
        "host_alloc_time.total": 2500,
        "num_host_alloc": 3,
    }
    costs = pin_costs(before, after, 4, memory)
    assert costs.thread_cpu_s == pytest.approx(1e-3)
    assert costs.thread_run_queue_s == pytest.approx(0.25e-3)
    assert costs.pinned_bytes == 1 << 20
    assert costs.alloc_s == pytest.approx(2.5e-3)
    assert costs.allocations == 3
    assert not costs.unavailable


def test_a_thread_that_ended_within_the_window_leaves_no_figure() -> None:
    times = SchedStat(run_ns=1_000_000, wait_ns=0)
    costs = pin_costs({1: times}, {2: times}, 4, {})
    assert costs.thread_cpu_s is None
    assert "ended with an epoch" in costs.unavailable["thread_cpu_s"]
    assert "kernel reports no CPU" in pin_costs(None, {}, 4, {}).unavailable["thread_cpu_s"]
