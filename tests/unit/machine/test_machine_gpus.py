"""NVML's answers, and every way in which there are none."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from fake_nvml import (
    FakeNvml,
    NVMLError,
    NVMLError_DriverNotLoaded,
    NVMLError_GpuIsLost,
    NVMLError_NotSupported,
    NVMLLibraryMismatchError,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.machine.gpus import GpuNeighbours, mean_usage
from dlprof.machine.nvidia import GpuReader
from dlprof.records import GpuInfo, GpuUsage


def test_cards_as_nvml_lists_them(tmp_path: Path) -> None:
    slots = tmp_path / "sys/bus/pci/devices"
    for bus, node in (("0000:60:00.0", "1"), ("0000:61:00.0", "-1")):
        (slots / bus).mkdir(parents=True)
        (slots / bus / "numa_node").write_text(node + "\n")
    reader = GpuReader(FakeNvml(), environ={"CUDA_VISIBLE_DEVICES": "1,0"})
    first, second = reader.list_gpus(tmp_path)
    assert first == GpuInfo(
        index=0,
        name="NVIDIA TITAN RTX",
        uuid="GPU-0",
        memory_bytes=24 << 30,
        pcie_generation=3,
        pcie_width=16,
        numa_node=1,
        cuda_index=1,
    )
    assert second.cuda_index == 0
    assert second.numa_node is None
    assert reader.unavailable == {}


def test_a_sample_without_the_link_says_so() -> None:
    usage = GpuReader(FakeNvml()).sample()[1]
    assert usage.kernel_active_fraction == 0.37
    assert usage.memory_used_bytes == 3 << 30
    assert usage.pcie_rx_bytes_per_s is None
    assert usage.unavailable["pcie_rx_bytes_per_s"] == "not asked for"


def test_a_sample_with_the_link_has_both_directions() -> None:
    usage = GpuReader(FakeNvml()).sample(pcie=True)[0]
    assert usage.pcie_rx_bytes_per_s == 2000 * 1024
    assert usage.pcie_tx_bytes_per_s == 10 * 1024
    assert set(usage.unavailable) == {"sm_active_fraction", "sm_occupancy_fraction"}


def test_neighbours_are_counted_not_named() -> None:
    assert GpuReader(FakeNvml()).neighbours()[1] == GpuNeighbours(
        index=1,
        name="NVIDIA TITAN RTX",
        uuid="GPU-1",
        processes=2,
        process_memory_bytes=2 << 30,
        memory_used_bytes=3 << 30,
        kernel_active_fraction=0.37,
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (NVMLError_DriverNotLoaded(), "the NVIDIA driver is not loaded"),
        (
            NVMLLibraryMismatchError("v1 v2"),
            "versions of nvidia-ml-py and of the driver don't match",
        ),
        (NVMLError("Unknown Error"), "NVML: Unknown Error"),
        (NVMLError(), "NVML: NVMLError"),
        (OSError("no such file"), "no such file"),
        (AttributeError("nvmlInit"), "too old"),
    ],
)
def test_a_library_that_can_not_be_started_is_a_reason(fault: Exception, reason: str) -> None:
    reader = GpuReader(FakeNvml(faults={"nvmlInit": fault}))
    assert reader.list_gpus() == ()
    assert reader.sample() == ()
    assert reader.neighbours() == ()
    assert reason in reader.unavailable["gpus"]
    reader.close()


def test_bindings_that_are_not_installed_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "not installed" in GpuReader().unavailable["gpus"]


def test_the_real_bindings_never_raise() -> None:
    reader = GpuReader()
    cards = reader.list_gpus()
    assert cards or reader.unavailable["gpus"]
    assert len(reader.sample()) == len(cards)
    reader.close()


def test_no_cards_is_a_reason() -> None:
    assert GpuReader(FakeNvml(count=0), {}).unavailable == {"gpus": "NVML lists no GPU"}


def test_a_lost_card_is_left_out_with_a_reason() -> None:
    reader = GpuReader(FakeNvml(faults={"nvmlDeviceGetHandleByIndex": NVMLError_GpuIsLost()}))
    assert reader.list_gpus() == ()
    assert "off the bus" in reader.unavailable["gpus[0]"]


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "kernel_active_fraction"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetPcieThroughput", "pcie_rx_bytes_per_s"),
    ],
)
@pytest.mark.parametrize("fault", [NVMLError_NotSupported(), AttributeError("old bindings")])
def test_each_missing_figure_has_its_reason(function: str, field: str, fault: Exception) -> None:
    usage = GpuReader(FakeNvml(faults={function: fault})).sample(pcie=True)[0]
    assert getattr(usage, field) is None
    assert usage.unavailable[field]
    assert {"kernel_active_fraction", "memory_used_bytes"} - {field} - set(usage.unavailable)


def test_facts_that_a_card_does_not_show_have_reasons_on_the_reader() -> None:
    reader = GpuReader(FakeNvml(faults={"nvmlDeviceGetMaxPcieLinkWidth": NVMLError_NotSupported()}))
    assert reader.list_gpus()[0].pcie_width is None
    assert "not supported" in reader.unavailable["gpus[0].pcie_width"]


def test_closing_twice_shuts_down_once() -> None:
    nvml = FakeNvml()
    reader = GpuReader(nvml)
    reader.close()
    reader.close()
    assert nvml.calls.count("nvmlShutdown") == 1
    assert reader.sample() == ()


def _usage(active: float | None, memory: int | None, **reasons: str) -> GpuUsage:
    return GpuUsage(
        index=0,
        name="X",
        uuid="u",
        kernel_active_fraction=active,
        memory_used_bytes=memory,
        unavailable=reasons,
    )


def test_several_samples_make_means_and_peaks() -> None:
    samples = [
        [_usage(0.2, 10)],
        [_usage(None, 30, kernel_active_fraction="once")],
        [_usage(0.6, 20, pcie_rx_bytes_per_s="not asked for")],
    ]
    (mean,) = mean_usage(samples)
    assert mean.kernel_active_fraction == pytest.approx(0.4)
    assert mean.memory_used_bytes == 30
    assert mean.unavailable == {"pcie_rx_bytes_per_s": "not asked for"}
    assert mean_usage([]) == ()


def test_a_card_that_fell_silent_keeps_its_figures_and_says_why() -> None:
    lost = _usage(None, None, kernel_active_fraction="lost", memory_used_bytes="lost")
    (mean,) = mean_usage([[_usage(0.5, 10)], [lost]])
    assert mean.kernel_active_fraction == 0.5
    assert mean.unavailable["samples"] == "lost; the figures are of the 1 samples before"


def test_what_held_the_clocks_down_is_named_once() -> None:
    held = dataclasses.replace(
        _usage(0.5, 10), throttled_fraction=1.0, throttle_reasons=("power cap",)
    )
    free = dataclasses.replace(_usage(0.5, 10), throttled_fraction=0.0)
    (mean,) = mean_usage([[held], [free], [held], [free]])
    assert mean.throttled_fraction == 0.5
    assert mean.throttle_reasons == ("power cap",)


_FRACTIONS = st.none() | st.floats(0, 1)


@given(st.lists(st.tuples(_FRACTIONS, st.none() | st.integers(0, 1 << 40)), min_size=1))
def test_means_lie_among_what_was_reported_and_are_missing_only_where_nothing_was(
    shown: list[tuple[float | None, int | None]],
) -> None:
    (mean,) = mean_usage([[_usage(active, memory)] for active, memory in shown])
    shares = [active for active, _ in shown if active is not None]
    sizes = [memory for _, memory in shown if memory is not None]
    assert mean.memory_used_bytes == max(sizes, default=None)
    assert (mean.kernel_active_fraction is None) == (not shares)
    if mean.kernel_active_fraction is not None:
        assert min(shares) - 1e-9 <= mean.kernel_active_fraction <= max(shares) + 1e-9
