"""A stand-in for the module ``pynvml``: cards, faults, and functions that are not there."""
# ruff: noqa: N802, N818 - the names are those of the bindings

from __future__ import annotations

import types
from typing import Any


class NVMLError(Exception):
    """The base class that most of NVML's faults have."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - NVML's name
    """What a card or its mode doesn't report."""


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801 - NVML's name
    """A library without a driver."""


class NVMLError_GpuIsLost(NVMLError):  # noqa: N801 - NVML's name
    """A card off the bus."""


class NVMLLibraryMismatchError(Exception):
    """Outside of NVMLError, as in the bindings."""


class FakeNvml:
    """Two cards; ``faults`` maps a function to what it raises."""

    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_CLOCK_SM = 1
    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError

    def __init__(self, count: int = 2, faults: dict[str, Exception] | None = None) -> None:
        self.count = count
        self.faults = faults or {}
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            fault = self.faults.get(name)
            if isinstance(fault, AttributeError):
                raise fault
            if fault is not None:
                return _raiser(fault)
        return super().__getattribute__(name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, _handle: int) -> str:
        return "NVIDIA TITAN RTX"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> Any:
        return types.SimpleNamespace(total=24 << 30, used=3 << 30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(busId=f"00000000:6{handle}:00.0")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, _handle: int) -> int:
        return 3

    def nvmlDeviceGetMaxPcieLinkWidth(self, _handle: int) -> int:
        return 16

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> Any:
        return types.SimpleNamespace(gpu=37, memory=9)

    def nvmlDeviceGetPcieThroughput(self, _handle: int, counter: int) -> int:
        return 2000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 10

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [types.SimpleNamespace(usedGpuMemory=1 << 30)] * (handle + 1)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, _handle: int) -> int:
        return 1

    def nvmlDeviceGetCurrPcieLinkWidth(self, _handle: int) -> int:
        return 16

    def nvmlDeviceGetClockInfo(self, _handle: int, _kind: int) -> int:
        return 1350

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> int:
        return 80_000

    def nvmlDeviceGetMigMode(self, _handle: int) -> list[int]:
        return [0, 0]

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: int) -> int:
        return 1

    def nvmlGpmQueryDeviceSupport(self, _handle: int) -> Any:
        return types.SimpleNamespace(isSupportedDevice=0)


def _raiser(fault: Exception) -> Any:
    def call(*_arguments: object) -> None:
        raise fault

    return call
