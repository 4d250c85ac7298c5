"""The drivers of this machine's GPUs, asked with a limit of time: one that hangs holds nobody up.

The rest goes on without figures, and says why.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dlprof.files import is_there
from dlprof.machine.amd_gpus import AmdReader
from dlprof.machine.gpus import GpuNeighbours, Gpus, SilentDriverError, within
from dlprof.machine.nvidia import GpuReader
from dlprof.records import GpuInfo

_T = TypeVar("_T")


def open_gpus(root: Path = Path("/"), platform: str = sys.platform) -> Gpus:
    """Whoever knows this machine's GPUs: NVML, else amdsmi; may hang, as every call may."""
    reasons = []
    for vendor in (GpuReader, AmdReader):
        gpus = vendor()
        if gpus.list_gpus(root):
            return gpus
        gpus.close()
        reasons.append(gpus.unavailable)
    nvidia, amd = reasons
    if is_there(root / "sys/class/kfd"):  # ROCm's driver is loaded: NVIDIA's is not what lacks
        return Gpus(amd)
    if platform == "darwin":
        return Gpus({"gpus": "Apple's GPUs report to their user's processes only"})
    return Gpus(nvidia)


class PatientGpus(Gpus):
    """The machine's GPUs, asked with a limit of time.

    Args:
        limit_s: Seconds for one call. After one that ran over it, or failed, none is made any more.
        opener: Opens the driver.
        opening_s: For that: without its daemon it wakes one card after the other, each in a second
            or two, and a server has eight.
    """

    def __init__(
        self,
        limit_s: float = 5.0,
        opener: Callable[[], Gpus] = open_gpus,
        *,
        opening_s: float = 20.0,
    ) -> None:
        self._cards, self._limit_s = (), limit_s
        try:
            self._gpus = within(opening_s, opener)
        except SilentDriverError as silence:
            self._gpus = Gpus({"gpus": str(silence)})
        self.unavailable = self._gpus.unavailable

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        """The cards."""
        return self._within(lambda: self._gpus.list_gpus(root), ())

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        """Who is on each card."""
        return self._within(self._gpus.neighbours, ())

    def close(self) -> None:
        """Let go of the driver, where it answers."""
        self._within(self._gpus.close, None)

    def _within(self, work: Callable[[], _T], otherwise: _T) -> _T:
        """What ``work`` gives; ``otherwise`` once that has failed or taken too long."""
        try:
            return within(self._limit_s, work)
        except SilentDriverError as silence:
            self._gpus = Gpus({"gpus": str(silence)})
            self.unavailable = self._gpus.unavailable
            return otherwise


def asked(gpus: Gpus | None) -> contextlib.AbstractContextManager[Gpus]:
    """Those that are given, or the machine's own, which are then let go of."""
    return contextlib.closing(PatientGpus()) if gpus is None else contextlib.nullcontext(gpus)
