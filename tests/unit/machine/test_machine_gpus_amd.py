"""AMD's cards by a stand-in for amdsmi, and limits of time."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml

from dlprof.machine.amd_gpus import AmdReader
from dlprof.machine.gpus import GpuNeighbours, Gpus, PatientGpus, open_gpus


class _AmdSmiError(Exception):
    pass


class _AmdSmi:
    """As amdsmi words its answers."""

    AmdSmiException = _AmdSmiError

    class AmdSmiClkType:
        GFX = 0

    def __init__(self, **changed: Any) -> None:
        self.answers: dict[str, Any] = {
            "amdsmi_init": None,
            "amdsmi_shut_down": None,
            "amdsmi_get_processor_handles": ["card"],
            "amdsmi_get_gpu_asic_info": {"market_name": "Instinct MI300X"},
            "amdsmi_get_gpu_device_uuid": "a-uuid",
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196_608, "vram_used": 1024},
            "amdsmi_get_gpu_activity": {"gfx_activity": 73, "umc_activity": 1},
            "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
            "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 300},
            "amdsmi_get_pcie_info": {
                "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
                "pcie_metric": {"pcie_width": 16},
            },
            "amdsmi_get_gpu_process_list": [{}, {}],
            **changed,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        answer = self.answers[name]

        def call(*_arguments: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_what_amdsmi_shows() -> None:
    reader = AmdReader(_AmdSmi())
    (card,), (usage,), (crowd,) = reader.list_gpus(), reader.sample(), reader.neighbours()
    assert (card.name, card.uuid, card.memory_bytes) == ("Instinct MI300X", "a-uuid", 192 << 30)
    assert (card.pcie_generation, card.pcie_width) == (5, 16)
    assert usage.kernel_active_fraction == 0.73
    assert usage.memory_used_bytes == 1 << 30
    assert (usage.sm_clock_hz, usage.power_w) == (2.1e9, 300)
    assert usage.unavailable["pcie_rx_bytes_per_s"] == "amdsmi doesn't report it"
    assert crowd.processes == 2
    reader.close()
    assert reader.sample() == ()


def test_what_it_does_not_show_has_reasons() -> None:
    shown = _AmdSmi(
        amdsmi_get_gpu_activity={"gfx_activity": "N/A"},
        amdsmi_get_power_info=_AmdSmiError("no right"),
        amdsmi_get_gpu_vram_usage=["another shape"],
    )
    (usage,) = AmdReader(shown).sample()
    assert usage.kernel_active_fraction is None
    assert usage.memory_used_bytes is None
    assert usage.power_w is None
    assert usage.unavailable["power_w"] == "amdsmi: no right"


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (_AmdSmi(amdsmi_init=_AmdSmiError("no driver")), "no driver"),
        (_AmdSmi(amdsmi_get_processor_handles=[]), "lists no GPU"),
    ],
)
def test_no_cards_have_a_reason(shown: _AmdSmi, reason: str) -> None:
    reader = AmdReader(shown)
    assert reader.list_gpus() == ()
    assert reason in reader.unavailable["gpus"]


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert "not installed" in AmdReader().unavailable["gpus"]


def test_a_driver_that_answers_is_passed_on() -> None:
    gpus = PatientGpus(opener=lambda: Gpus({"gpus": "none here"}))
    assert gpus.list_gpus() == ()
    assert gpus.neighbours() == ()
    assert gpus.unavailable == {"gpus": "none here"}
    gpus.close()


def test_a_driver_that_never_answers_is_given_up() -> None:
    never = threading.Event()

    def opener() -> Gpus:
        never.wait()
        return Gpus({})

    gpus = PatientGpus(opener=opener, opening_s=0.01)
    assert gpus.list_gpus() == ()
    assert "it may hang" in gpus.unavailable["gpus"]
    never.set()


def test_a_driver_that_raises_is_reported_at_once_as_what_it_is(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def opener() -> Gpus:
        raise OSError("libnvidia-ml.so.1:\n wrong ELF class")

    began = time.monotonic()
    gpus = PatientGpus(opener=opener, opening_s=600.0)
    assert gpus.list_gpus() == ()
    assert time.monotonic() - began < 60.0
    assert gpus.unavailable == {
        "gpus": "the GPUs' driver can't be asked: OSError: libnvidia-ml.so.1: wrong ELF class"
    }
    assert capfd.readouterr().err == ""


def test_a_call_that_raises_is_the_last() -> None:
    class Sick(Gpus):
        """Lists cards, and fails to read them."""

        def neighbours(self) -> tuple[GpuNeighbours, ...]:
            raise AttributeError

    gpus = PatientGpus(limit_s=600.0, opener=lambda: Sick({}))
    assert gpus.unavailable == {}
    assert gpus.neighbours() == ()
    assert gpus.unavailable == {"gpus": "the GPUs' driver can't be asked: AttributeError"}


def test_a_driver_that_wakes_many_cards_is_given_longer_than_a_call() -> None:
    def opener() -> Gpus:
        time.sleep(0.1)
        return Gpus({"gpus": "none here"})

    gpus = PatientGpus(limit_s=0.01, opener=opener, opening_s=60.0)
    assert gpus.unavailable == {"gpus": "none here"}


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)


def test_nvidias_cards_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setitem(sys.modules, "amdsmi", _AmdSmi())
    assert [card.name for card in open_gpus(tmp_path).list_gpus()] == ["NVIDIA TITAN RTX"] * 2


def test_amds_cards_come_where_there_are_no_others(
    no_driver: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", _AmdSmi())
    assert [card.name for card in open_gpus(tmp_path).list_gpus()] == ["Instinct MI300X"]


@pytest.mark.parametrize(
    ("has_rocm", "platform", "reason"),
    [
        (False, "linux", "nvidia-ml-py is not installed"),
        (True, "linux", "amdsmi is not installed, or finds no ROCm"),
        (False, "darwin", "Apple's GPUs report to their user's processes only"),
    ],
)
def test_without_cards_the_reason_fits_the_machine(
    no_driver: None, tmp_path: Path, *, has_rocm: bool, platform: str, reason: str
) -> None:
    if has_rocm:
        (tmp_path / "sys/class/kfd").mkdir(parents=True)
    gpus = open_gpus(tmp_path, platform)
    assert gpus.list_gpus() == ()
    assert gpus.unavailable == {"gpus": reason}
