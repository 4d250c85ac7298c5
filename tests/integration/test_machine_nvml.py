"""The real NVML bindings against a stub library: no GPU, but every call goes through ctypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stub_nvml import answer_of, build, environment

_READ = """
import dataclasses, json
from dlprof.machine.nvidia import GpuReader
reader = GpuReader()
cards = reader.list_gpus()
reader.prime()
usage = [reader.sample(pcie=True) for _ in range(4)]
neighbours = reader.neighbours()
reader.close()
plain = lambda records: [dataclasses.asdict(record) for record in records]
print(json.dumps({"cards": plain(cards), "usage": [plain(each) for each in usage],
                  "neighbours": plain(neighbours), "unavailable": reader.unavailable}))
"""

# A window of the observer's sampler, with the time that each of its steps held the observer up.
_SAMPLE = """
import dataclasses, json, time
from dlprof.trial.observer import GpuSampler
held = []
def timed(step):
    began = time.monotonic()
    result = step()
    held.append(time.monotonic() - began)
    return result
sampler = timed(lambda: GpuSampler(period_s=0.05))
time.sleep(0.3)
windows = []
for _ in range(2):
    timed(sampler.begin), timed(sampler.start)
    time.sleep(0.4)
    timed(sampler.stop)
    windows.append([dataclasses.asdict(usage) for usage in timed(sampler.usage)])
timed(sampler.close)
print(json.dumps({"windows": windows, "held_s": max(held)}))
"""

HELD_S = 20.0  # on a machine of any speed: what waits for a driver that hangs never ends

_PATIENT = """
import dataclasses, json
from dlprof.machine.inspection import inspect_machine
from dlprof.machine.gpus import PatientGpus
gpus = PatientGpus(limit_s=0.5, opening_s=0.5)
machine = inspect_machine(gpus=gpus)
print(json.dumps([dataclasses.asdict(machine), len(gpus.neighbours())]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"), old=True)


def _read(library: Path, folder: Path, **scenario: object) -> Any:
    return answer_of(_READ, environment(library, folder, **scenario))


def test_a_card_shows_everything(library: Path, tmp_path: Path) -> None:
    shown = _read(library, tmp_path, gpm=1, processes=3, held=200, reasons=0x24, link=4)
    (card,), usage = shown["cards"], shown["usage"][1][0]
    assert card["name"] == "Stub 0"
    assert card["memory_bytes"] == 24 << 30
    assert (card["pcie_generation"], card["pcie_width"], card["cuda_index"]) == (4, 16, 0)
    assert usage["kernel_active_fraction"] == 0.4
    assert usage["memory_used_bytes"] == 1 << 30
    assert usage["sm_active_fraction"] == pytest.approx(0.6)
    assert usage["sm_occupancy_fraction"] == pytest.approx(0.25)
    assert usage["pcie_rx_bytes_per_s"] == 800 << 20
    assert (usage["pcie_generation"], usage["pcie_width"]) == (4, 16)
    assert (usage["sm_clock_hz"], usage["power_w"]) == (1.5e9, 250.5)
    assert usage["throttle_reasons"] == ["power cap", "heat (software)"]
    assert usage["unavailable"] == {}
    assert shown["neighbours"][0]["processes"] == 3
    assert shown["neighbours"][0]["process_memory_bytes"] == 600 << 20
    assert shown["unavailable"] == {}


def test_without_a_library_there_is_a_reason(tmp_path: Path) -> None:
    shown = _read(tmp_path, tmp_path)
    assert shown["cards"] == shown["neighbours"] == []
    assert "no NVIDIA driver is installed" in shown["unavailable"]["gpus"]


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ({"init": 9}, "the NVIDIA driver is not loaded"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ({"init": 4}, "this user has no permission (NVML)"),
                ({"count": 0}, "NVML lists no GPU"),
            )
        ),
    ],
)
def test_no_cards(library: Path, tmp_path: Path, scenario: dict[str, int], reason: str) -> None:
    shown = _read(library, tmp_path, **scenario)
    assert shown["cards"] == shown["usage"][0] == shown["neighbours"] == []
    assert shown["unavailable"] == {"gpus": reason}


def test_eight_cards_have_their_links_probed_in_turn(library: Path, tmp_path: Path) -> None:
    shown = _read(library, tmp_path, count=8)
    assert [card["uuid"][:5] for card in shown["cards"]] == [f"GPU-{c}" for c in "abcdefgh"]
    probed = [
        [usage["index"] for usage in sample if usage["pcie_rx_bytes_per_s"] is not None]
        for sample in shown["usage"]
    ]
    assert probed == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shown["usage"][0][0]["pcie_rx_bytes_per_s"] == 2000 * 1024
    assert "came with Hopper" in shown["usage"][0][0]["unavailable"]["sm_active_fraction"]


def test_an_old_driver_has_fewer_figures(old_library: Path, tmp_path: Path) -> None:
    shown = _read(old_library, tmp_path, processes=2, reasons=0x40)
    usage = shown["usage"][1][0]
    assert usage["kernel_active_fraction"] == 0.4
    assert usage["throttle_reasons"] == ["heat (hardware)"]
    assert usage["pcie_rx_bytes_per_s"] == 2000 * 1024
    assert usage["unavailable"] == {
        "sm_active_fraction": "the driver is too old to report it",
        "sm_occupancy_fraction": "the driver is too old to report it",
    }
    assert shown["neighbours"][0]["processes"] == 2


def test_a_split_card_shows_no_activity(library: Path, tmp_path: Path) -> None:
    usage = _read(library, tmp_path, mig=1, gpm=1)["usage"][1][0]
    assert usage["kernel_active_fraction"] is None
    assert usage["sm_active_fraction"] is None
    assert usage["memory_used_bytes"] == 1 << 30
    assert usage["unavailable"]["kernel_active_fraction"].startswith("MIG is on")


@pytest.mark.slow
def test_what_may_not_be_asked_has_a_reason(library: Path, tmp_path: Path) -> None:
    shown = _read(
        library, tmp_path, fail="nvmlDeviceGetComputeRunningProcesses_v3", code=4, processes=2
    )
    assert shown["neighbours"][0]["processes"] == 2  # the older function answers
    shown = _read(library, tmp_path, fail="nvmlDeviceGetPowerUsage", code=4)
    assert shown["usage"][0][0]["unavailable"]["power_w"].startswith("this user has no permission")


@pytest.mark.slow
def test_counters_that_may_not_be_read_leave_the_link_to_probes(
    library: Path, tmp_path: Path
) -> None:
    shown = _read(library, tmp_path, gpm=1, fail="nvmlGpmSampleGet", code=4)
    usage = shown["usage"][0][0]
    assert usage["pcie_rx_bytes_per_s"] == 2000 * 1024
    assert usage["unavailable"]["sm_active_fraction"].startswith("this user has no permission")
    lost = _read(library, tmp_path, gpm=1, fail="nvmlGpmMetricsGet", code=15)["usage"][0][0]
    assert "dropped off the bus" in lost["unavailable"]["pcie_rx_bytes_per_s"]


def test_processes_whose_memory_is_not_reported_are_counted(library: Path, tmp_path: Path) -> None:
    (card,) = _read(library, tmp_path, processes=2, held=-1)["neighbours"]
    assert card["processes"] == 2
    assert card["process_memory_bytes"] is None
    assert "each process" in card["unavailable"]["process_memory_bytes"]


@pytest.mark.parametrize(
    ("visible", "order", "expected"),
    [
        ("GPU-c,GPU-a", None, [1, None, 0]),
        ("2,0", None, [None, None, None]),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("2,0", "PCI_BUS_ID", [1, None, 0]),
                (None, None, [None, None, None]),
                ("", None, [None, None, None]),
            )
        ),
    ],
)
def test_unlike_cards_in_an_order_of_cudas_own(
    library: Path, tmp_path: Path, visible: str | None, order: str | None, expected: list[int]
) -> None:
    environ = environment(library, tmp_path, count=3, kinds=3)
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    if order is not None:
        environ["CUDA_DEVICE_ORDER"] = order
    shown = answer_of(_READ, environ)
    assert [card["cuda_index"] for card in shown["cards"]] == expected
    hidden = [card for card in shown["cards"] if card["cuda_index"] is None]
    assert all(f"gpus[{card['index']}].cuda_index" in shown["unavailable"] for card in hidden)


def test_a_window_of_the_sampler(library: Path, tmp_path: Path) -> None:
    shown = answer_of(_SAMPLE, environment(library, tmp_path, count=2, processes=2, gpm=1))
    for window in shown["windows"]:
        assert [usage["other_processes"] for usage in window] == [2, 2]
        assert [usage["other_memory_bytes"] for usage in window] == [200 << 20] * 2
        assert window[0]["kernel_active_fraction"] == pytest.approx(0.4)
        assert window[0]["samples"] >= 1
        assert window[0]["sampler_cpu_cores"] >= 0
        assert window[0]["unavailable"] == {}


@pytest.mark.slow
def test_a_card_lost_in_a_window_keeps_what_it_reported(library: Path, tmp_path: Path) -> None:
    shown = answer_of(_SAMPLE, environment(library, tmp_path, lost_after=60))
    last = shown["windows"][-1][0]
    reasons = " ".join(last["unavailable"].values())
    assert "dropped off the bus" in reasons


@pytest.mark.slow
def test_a_slow_driver_is_asked_less_and_holds_nobody_up(library: Path, tmp_path: Path) -> None:
    scenario = {"slow": "nvmlDeviceGetPcieThroughput", "slow_ms": 20, "count": 8}
    shown = answer_of(_SAMPLE, environment(library, tmp_path, **scenario))
    assert shown["held_s"] < HELD_S
    assert shown["windows"][0][0]["kernel_active_fraction"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("function", "good_calls"),
    [
        pytest.param("nvmlDeviceGetUtilizationRates", 0, marks=pytest.mark.slow),
        ("nvmlDeviceGetUtilizationRates", 2),
    ],
)
def test_a_hung_call_holds_nobody_up(
    library: Path, tmp_path: Path, function: str, good_calls: int
) -> None:
    scenario = {"hang": function, "good_calls": good_calls}
    shown = answer_of(_SAMPLE, environment(library, tmp_path, **scenario))
    assert shown["held_s"] < HELD_S
    last = shown["windows"][-1][0]
    assert "may hang" in " ".join(last["unavailable"].values())


@pytest.mark.slow
def test_a_driver_that_hangs_as_it_is_loaded(library: Path, tmp_path: Path) -> None:
    shown = answer_of(_SAMPLE, environment(library, tmp_path, hang="nvmlInitWithFlags"))
    assert shown["held_s"] < HELD_S
    assert shown["windows"] == [[], []]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlInitWithFlags",
        pytest.param("nvmlDeviceGetMaxPcieLinkWidth", marks=pytest.mark.slow),
    ],
)
def test_a_machine_is_described_beside_a_driver_that_hangs(
    library: Path, tmp_path: Path, function: str
) -> None:
    machine, neighbours = answer_of(_PATIENT, environment(library, tmp_path, hang=function))
    assert machine["gpus"] == []
    assert "it may hang" in machine["unavailable"]["gpus"]
    assert neighbours == 0
